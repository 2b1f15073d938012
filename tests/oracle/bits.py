"""Digests of what networks compute and learn, to the bit, with code compiled for one CPU path: the same on whatever machine it runs.

    python tests/oracle/bits.py avx2      # prints one path's digests, by network; of some, with their names after it
    python tests/oracle/bits.py --write   # tests/oracle/bits.json anew, for this machine's paths: after a meant change

What is compiled depends on the version of LLVM, so the digests are of one. `tests/lower/test_bits.py` compares; a
process computes one path.
"""
from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from places import PATH, add_to_path

add_to_path()
FILE = Path(__file__).with_name("bits.json")
"""{"llvm": version, "paths": {path: {network: digest}}}."""
Array = Any


def llvm() -> str:
    """What compiles, and whose other versions may choose other instructions."""
    import llvmlite
    return f"llvmlite {llvmlite.__version__}"


def computed(path: str, processor: str = "", names: Iterable[str] = ()) -> dict[str, str]:
    """Digests by network (none named: of all), computed in a process that compiles for `path`, one of this machine's,
    and that processor (`emulator.environment`)."""
    import emulator
    environment = {**os.environ, **emulator.environment(path, processor), "NUMBA_NUM_THREADS": "2",
                   "OPENBLAS_CORETYPE": "Nehalem", "PYTHONPATH": PATH}
    done = subprocess.run([sys.executable, __file__, path, *names], env=environment, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


def networks() -> dict[str, Callable[[], Iterable[tuple[str, Array]]]]:
    """Runs by name; each gives named arrays."""
    found: dict[str, Callable[[], Iterable[tuple[str, Array]]]] = {}
    for seed in range(14):
        found[f"strategy {seed}"] = lambda seed=seed: _drawn_strategy(seed)                 # type: ignore[misc]
    for seed in range(16):
        found[f"graph {seed}"] = lambda seed=seed: _drawn_graph(seed)                       # type: ignore[misc]
    for precision in ("32", "16-true", "bf16-mixed"):
        found[f"recurrent {precision}"] = lambda p=precision: _trained(_recurrent(), p, (4, 5, 6))          # type: ignore[misc]
        found[f"residual {precision}"] = lambda p=precision: _trained(_residual(), p, (4, 8, 12, 12))       # type: ignore[misc]
    return found | {"digits": _digits, "quantised": _quantised}


def _drawn_strategy(seed: int) -> Iterable[tuple[str, Array]]:
    from random_strategies import draw
    from test_random_strategies import trained
    states, results, _ = trained(draw(seed), whole=False)
    return [*states.items(), *((str(i), a) for i, a in enumerate(results))]


def _drawn_graph(seed: int) -> Iterable[tuple[str, Array]]:
    from test_random_graphs import recipe

    from tileflow import compiler
    from tileflow.program.batching import Batching
    from tileflow.runtime.executable import make_engine
    from tileflow.state.session import Session
    graph, feeds = recipe(seed).build()
    return make_engine(compiler.inference(graph, Batching(1)).program, Session()).run(feeds).items()


def _recurrent() -> Any:
    from tileflow import nn

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            self.lstm, self.gru, self.norm, self.last = nn.LSTM(6, 9), nn.GRU(9, 7), nn.LayerNorm(7), nn.Linear(7, 3)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            y, _ = self.lstm(x.transpose(0, 1))
            y, _ = self.gru(y)
            return self.last(self.norm(y).mean(0))
    return Recurrent()


def _residual() -> Any:
    from tileflow import nn

    class Residual(nn.Module):
        def __init__(self) -> None:
            self.stem, self.norm, self.body = nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Conv2d(16, 16, 3, padding=1)
            self.depth, self.group, self.last = nn.Conv2d(16, 16, 3, groups=16, stride=2), nn.GroupNorm(4, 16), nn.Linear(16, 3)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            x = self.norm(self.stem(x)).relu()
            x = nn.functional.gelu(x + self.body(x))
            return self.last(nn.functional.silu(self.group(self.depth(x))).mean((2, 3)))
    return Residual()


def _trained(net: Any, precision: str, shape: tuple[int, ...]) -> Iterable[tuple[str, Array]]:
    """Weights and states after two calls of training, then what they compute."""
    import numpy as np

    import tileflow
    rng = np.random.default_rng(5)
    for p in net.parameters():
        p.data = (rng.random(p.shape) - 0.5).astype(np.float32)
    model = tileflow.training_model(net, precision=precision, optimizer="adamw", learning_rate=0.01, micro_batch_size=2, gradient_accumulation=2)
    x, y = (rng.random(shape) - 0.5).astype(np.float32), rng.integers(0, 3, shape[0])
    losses = [np.asarray(a) for _ in range(2) for a in model(x, y)]
    found = tileflow.inference_model(net, precision=precision)(x)
    return [*model.state_dict().items(), *model.optimizer_state_dict().items(), *((f"loss {i}", a) for i, a in enumerate(losses)), ("output", found)]


def _digits() -> Iterable[tuple[str, Array]]:
    """The packaged network, as files of users are trained."""
    import numpy as np

    import tileflow
    rng = np.random.default_rng(3)
    model = tileflow.training_model("digits_cnn.onnx", optimizer="sgd", momentum=0.9, learning_rate=0.05, micro_batch_size=4, device_iterations=2)
    losses = [np.asarray(a) for _ in range(3) for a in model(rng.random((8, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, 8))]
    return [*model.state_dict().items(), *((f"result {i}", a) for i, a in enumerate(losses))]


def _quantised() -> Iterable[tuple[str, Array]]:
    """Products and convolutions of bytes between quantised numbers."""
    import numpy as np
    import onnx
    import test_dequantized as files

    import tileflow
    rng = np.random.default_rng(4)
    for name, proto in (("conv", files.conv()), ("gemm", files.gemm())):
        shape = tuple(d.dim_value or 3 for d in proto.graph.input[0].type.tensor_type.shape.dim)
        with tempfile.TemporaryDirectory() as folder:
            onnx.save(proto, f"{folder}/{name}.onnx")
            yield name, tileflow.inference_model(f"{folder}/{name}.onnx")(rng.integers(0, 256, shape).astype(np.uint8))


def digest(arrays: Iterable[tuple[str, Array]]) -> str:
    """Of names, types, shapes and bytes, in the order of the names; NaN counts as one number."""
    import ml_dtypes  # noqa: F401  (bfloat16 for NumPy)
    import numpy as np
    whole = hashlib.sha256()
    for name, value in sorted(arrays, key=lambda pair: pair[0]):
        for array in value if isinstance(value, list | tuple) else [value]:
            array = np.ascontiguousarray(array)
            if array.dtype.kind not in "iub" and np.isnan(array).any():
                array = np.where(np.isnan(array), array.dtype.type("nan"), array).astype(array.dtype)
            whole.update(f"{name} {array.dtype} {array.shape}\0".encode() + array.tobytes())
    return whole.hexdigest()[:16]


def main(arguments: list[str]) -> None:
    import warnings
    if arguments == ["--write"]:
        from tileflow.kernels.isa import cpu
        old = json.loads(FILE.read_text()) if FILE.exists() else {}
        kept = old["paths"] if old.get("llvm") == llvm() else {}
        FILE.write_text(json.dumps({"llvm": llvm(), "paths": kept | {path: computed(path) for path in cpu.available()}}, indent=1) + "\n")
        return
    import emulator

    from tileflow.kernels.isa import cpu
    warnings.simplefilter("ignore")
    emulator.choose()
    path, *names = arguments
    with cpu.forced(path):
        print(json.dumps({name: digest(run()) for name, run in networks().items() if not names or name in names}))


if __name__ == "__main__":
    main(sys.argv[1:])
