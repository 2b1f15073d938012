"""The kernels that a wheel carries: those of networks as people have them, compiled for CPU paths that this machine
need not have.

    python -m bench.packing kernels/machine/kernels.pack avx2 avx512

What is compiled is not run, but for a path that this machine has nothing else is needed than LLVM. Two packs of one
version are equal byte for byte.
"""
from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

PATHS = ("avx2", "avx512", "vnni", "bf16", "fp16", "amx")
"""Of most computers."""
LARGEST = 6 << 20
"""Bytes that a pack may have."""


def environment(path: str) -> dict[str, str]:
    """Variables under which a process compiles for a path, whatever this machine has."""
    from tileflow.kernels.isa.paths import PATHS as ALL
    entry = ALL[path]
    return {"NUMBA_CPU_NAME": entry.processor, "NUMBA_CPU_FEATURES": ",".join(f"+{f}" for f in entry.features.split())}


def networks() -> Iterator[tuple[Any, tuple[Any, ...], Any]]:
    """Modules with inputs and labels."""
    from tileflow import nn

    from .models import TutorialNet, initial_weights
    rng = np.random.default_rng(0)

    def images(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    def classes(*shape: int) -> np.ndarray:
        return rng.integers(0, 2, shape)
    yield TutorialNet(initial_weights(0)), (images(8, 1, 28, 28),), classes(8)
    activations = (nn.ReLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.Hardswish, nn.LeakyReLU)
    for activation in activations:
        yield (nn.Sequential(nn.Linear(20, 64), activation(), nn.LayerNorm(64), nn.Linear(64, 10)),
               (images(8, 20),), classes(8))
        yield (nn.Sequential(nn.Conv2d(3, 32, 3, 2, padding=1, bias=False), nn.BatchNorm2d(32), activation(),
                             nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False), nn.BatchNorm2d(32), activation(),
                             nn.Conv2d(32, 64, 1, bias=False), nn.BatchNorm2d(64), activation(),
                             nn.Conv2d(64, 64, 3, padding=1), activation(), nn.MaxPool2d(2),
                             nn.Conv2d(64, 64, 3, 2, padding=1, groups=64, bias=False), nn.BatchNorm2d(64),
                             activation(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 10)),
               (images(8, 3, 32, 32),), classes(8))


def sequences() -> Iterator[tuple[Any, tuple[Any, ...], Any]]:
    """Recurrent networks over embedded words."""
    from tileflow import nn

    class Recurrent(nn.Module):
        def __init__(self, kind: Any) -> None:
            self.words, self.layer, self.last = nn.Embedding(50, 32), kind(32, 32, batch_first=True), nn.Linear(32, 4)

        def forward(self, x: Any) -> Any:                              # type: ignore[override]
            return self.last(self.layer(self.words(x))[0].mean(1))
    for kind in (nn.LSTM, nn.GRU):
        yield Recurrent(kind), (np.zeros((8, 12), np.int64),), np.zeros(8, np.int64)


def pictures() -> Iterator[tuple[Any, tuple[np.ndarray, ...]]]:
    """Detectors' and recognisers' parts, one image at a time: blocks that weigh their channels, depthwise convolutions
    of each size, what makes coarse maps fine, and convolutions of as many filters and pixels as registers tell apart.
    """
    from tileflow import nn

    def convolved(a: int, b: int, k: int, stride: int, groups: int, activation: Any) -> list[Any]:
        return [nn.Conv2d(a, b, k, stride, padding=k // 2, groups=groups, bias=False), nn.BatchNorm2d(b), activation()]

    class Weighed(nn.Module):
        """Widened, convolved by channels, weighed by their means, and narrowed."""

        def __init__(self, a: int, b: int, k: int, stride: int, activation: Any) -> None:
            wide = 3 * a
            self.before = nn.Sequential(*convolved(a, wide, 1, 1, 1, activation),
                                        *convolved(wide, wide, k, stride, wide, activation))
            self.means, self.less = nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, wide // 4, 1)
            self.more, self.gate = nn.Conv2d(wide // 4, wide, 1), nn.Hardsigmoid()
            self.after = nn.Sequential(nn.Conv2d(wide, b, 1, bias=False), nn.BatchNorm2d(b))
            self.kept = (a, 1) == (b, stride)

        def forward(self, x: Any) -> Any:
            y = self.before(x)
            y = self.after(y * self.gate(self.more(self.less(self.means(y)).relu())))
            return x + y if self.kept else y

    class Pyramid(nn.Module):
        """Maps of three sizes, the coarse ones made fine again, and scores of each pixel."""

        def __init__(self, a: int, activation: Any) -> None:
            self.first = nn.Sequential(*convolved(3, a, 3, 2, 1, activation), Weighed(a, a, 3, 1, activation))
            self.second = nn.Sequential(Weighed(a, 2 * a, 3, 2, activation), Weighed(2 * a, 2 * a, 5, 1, activation))
            self.third = nn.Sequential(Weighed(2 * a, 4 * a, 5, 2, activation), nn.MaxPool2d(3, 1, padding=1))
            self.sides = nn.ModuleList([nn.Conv2d(n * a, 24, 1) for n in (1, 2, 4)])
            self.finer, self.finest = nn.Upsample(scale_factor=2), nn.ConvTranspose2d(72, 6, 2, 2)
            self.last = nn.ConvTranspose2d(6, 1, 2, 2)

        def forward(self, x: Any) -> Any:
            fine = self.first(x)
            middle = self.second(fine)
            a, b, c = (side(y) for side, y in zip(self.sides, (fine, middle, self.third(middle)), strict=True))
            b = b + self.finer(c)
            whole = nn.cat([a + self.finer(b), self.finer(b), self.finer(self.finer(c))], 1)
            return self.last(self.finest(whole).relu()).sigmoid()
    rng = np.random.default_rng(0)
    for activation in (nn.ReLU, nn.SiLU, nn.Hardswish):
        yield Pyramid(16, activation), (rng.standard_normal((1, 3, 64, 96), np.float32),)
    for side in (6, 9, 14, 28):                                        # less than a vector of a line, one, several
        few = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(),
                            *(nn.Conv2d(a, b, 3, padding=1) for a, b in itertools.pairwise(range(8, 25))))
        yield few, (rng.standard_normal((1, 3, side, side), np.float32),)


def collect(path: str) -> None:
    """Compile all for a path into the cache of this process."""
    import warnings

    import tileflow
    from bench import files
    from tileflow.kernels import loss
    from tileflow.kernels.isa import cpu
    from tileflow.system.packaged import model_path
    warnings.simplefilter("ignore")
    chosen = contextlib.ExitStack()
    chosen.enter_context(cpu.forced(cpu.PATHS[path]))          # for as long as this process lives
    batches = {"micro_batch_size": 8}
    for module, arrays, labels in (*networks(), *sequences()):
        tileflow.inference_model(module, **batches).compile(*arrays)
        for optimizer, accumulated in (("sgd", 1), ("adam", 1), ("adamw", 1), ("adamw", 2)):
            model = tileflow.training_model(module, optimizer=optimizer, learning_rate=0.01, loss="cross_entropy",
                                            gradient_accumulation=accumulated, **batches)
            model.compile(*(np.repeat(a, accumulated, 0) for a in (*arrays, labels)))
    for module, arrays in pictures():
        tileflow.inference_model(module).compile(*arrays)
    loss.convert("f8", "f4").compile()                          # of the losses of rows, which a set is measured by
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        import onnx
        for name, proto, arrays in (("bert", files.bert_mini(), (rng.integers(0, 9, (8, 128)),)),
                                    ("resnet", files.resnet18(10, 64),
                                     (rng.standard_normal((8, 3, 64, 64), np.float32),)),
                                    ("digits", onnx.load(model_path("digits_cnn.onnx")),
                                     (np.zeros((8, 1, 8, 8), np.float32),))):
            file, labels = str(Path(folder) / f"{name}.onnx"), rng.integers(0, 2, 8)
            onnx.save(proto, file)
            tileflow.inference_model(file, **batches).compile(*arrays)
            tileflow.inference_model(file).compile(*(a[:1] for a in arrays))
            for optimizer in ("sgd", "adamw"):
                model = tileflow.training_model(file, optimizer=optimizer, learning_rate=0.01, loss="cross_entropy",
                                                **batches)
                model.compile(*arrays, labels)
        for proto, rows in ((files.quantised(3), (8, 64)), (files.quantised_images(), (1, 3, 24, 40))):
            file = str(Path(folder) / f"{proto.graph.name}.onnx")
            onnx.save(proto, file)
            tileflow.inference_model(file).compile(rng.standard_normal(rows, np.float32))


def main(arguments: list[str]) -> None:
    if arguments[0] == "--collect":
        return collect(arguments[1])
    from tileflow.executable import store
    from tileflow.kernels.machine import cache, pack
    target, paths = Path(arguments[0]), arguments[1:] or PATHS
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TILEFLOW_CACHE_DIR"] = folder  # one for all paths: names tell them apart, and the driver is of none
        for path in paths:
            subprocess.run([sys.executable, "-m", "bench.packing", "--collect", path], check=True,
                           env={**os.environ, **environment(path), "NUMBA_NUM_THREADS": "2"})
        names = [file.stem for file in cache.folder().glob(f"*{cache.SUFFIX}")
                 if file.stem.partition("-")[0] not in store.KINDS]
        found = {name: payload for name in names if (payload := cache.read(name)) is not None}
    temporary = target.with_suffix(".tmp")
    pack.write(temporary, found)
    if temporary.stat().st_size > LARGEST:
        temporary.unlink()
        raise SystemExit(f"{len(found)} kernels are more than {LARGEST >> 20} MB.")
    temporary.replace(target)
    print(f"{target}: {len(found)} kernels for {', '.join(paths)}, {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
