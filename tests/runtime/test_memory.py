"""Memory is budgeted before it is taken: what does not fit ends in a sentence, not in the kernel's killer."""
from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from images import arenas
from onnx import TensorProto, helper
from places import ROOT

import tileflow
from tileflow import nn
from tileflow.kernels.machine import limits
from tileflow.memory import budget as memory
from tileflow.onnx_backend import Backend
from tileflow.runtime import budget
from tileflow.runtime.checkpoint import load_tensors, save_tensors
from tileflow.runtime.data import DataLoader, Dataset, open_data
from tileflow.runtime.evaluate import Evaluator
from tileflow.system.errors import OutOfMemoryError

MB = 1 << 20


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set how much memory can be had, above the reserve."""
    def allow(nbytes: int) -> None:
        monkeypatch.setattr(limits, "memory", lambda: limits.Room(nbytes + memory.RESERVE, "a test"))
    return allow


def outer_product(folder: Path, n: int) -> Path:
    """A small file: a column times a row."""
    x, w, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [n, 1]), ("w", [1, n]), ("y", [n, n])))
    model = helper.make_model(helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x, w], [y]),
                              opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, folder / "outer.onnx")
    return folder / "outer.onnx"


class Dense(nn.Module):
    def __init__(self, width: int) -> None:
        self.first, self.last = nn.Linear(8, width), nn.Linear(width, 2)

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        return self.last(self.first(x).relu())


def test_require(room: Any):
    room(100 * MB)
    memory.require(100 * MB, "It", "do without")
    with pytest.raises(OutOfMemoryError, match=r"^It needs 106 MB of memory, and 105 MB can be had \(a test\); do without\.$"):
        memory.require(101 * MB, "It", "do without")
    with pytest.raises(OutOfMemoryError, match=r"^All \(much 210 MB, some 21 MB\) needs 231 MB"):
        memory.require_parts({"some": 20 * MB, "much": 200 * MB, "next to nothing": 3}, "All", "do without")
    assert issubclass(OutOfMemoryError, MemoryError)
    assert memory.available() == 100 * MB + memory.RESERVE
    assert [memory.size(n) for n in (0, 999, 1000, 6.4e9, 3.25e12)] == ["0 bytes", "999 bytes", "1 KB", "6.4 GB", "3.2 TB"]


def test_what_is_small_or_unknown_is_not_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "memory", lambda: None)
    memory.require(1 << 60, "It", "do without")
    assert memory.available() is None
    monkeypatch.setattr(limits, "memory", lambda: 1 / 0)
    memory.require(memory.SMALL - 1, "It", "do without")


def test_files_in_memory_are_budgeted_as_memory_is(room: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    room(20 * MB)
    assert [memory.fits(20 * MB), memory.fits(21 * MB), memory.fits(memory.SMALL - 1)] == [True, False, True]
    for found in (None, limits.Room(30 * MB + memory.RESERVE, "a test")):
        monkeypatch.setattr(limits, "memory_of_files", lambda folder, found=found: found)
        memory.require_for_file(tmp_path, 30 * MB, "It", "do without")
        if found is None:                                           # on a disk
            memory.require_for_file(tmp_path, 1 << 60, "It", "do without")
            continue
        with pytest.raises(OutOfMemoryError, match=r"It needs 33 MB of .*, whose files lie in memory, and 31 MB can be "
                                                   r"had \(a test\); do without\."):
            memory.require_for_file(tmp_path, 31 * MB, "It", "do without")
    monkeypatch.setattr(limits, "memory_of_files", lambda folder: 1 / 0)
    memory.require_for_file(tmp_path, memory.SMALL - 1, "It", "do without")


# ---- programs

def test_a_small_file_that_needs_much(tmp_path: Path, room: Any):
    path = outer_product(tmp_path, 4000)
    assert path.stat().st_size < 250
    x, w = np.ones((4000, 1), np.float32), np.ones((1, 4000), np.float32)
    room(50 * MB)
    with pytest.raises(OutOfMemoryError, match=r"The program \(outputs of a call 64 MB\) needs 64 MB .* lower micro_batch_size"):
        tileflow.inference_model(path)(x, w)
    with pytest.raises(OutOfMemoryError, match="outputs of a call 64 MB"):
        Backend.prepare(path).run([x, w])
    room(70 * MB)
    model = tileflow.inference_model(path)
    assert model(x, w).shape == (4000, 4000)
    room(50 * MB)
    with pytest.raises(OutOfMemoryError, match="What a call returns needs 64 MB"):          # less room than when it was compiled
        model(x, w)


def test_weights_and_activations_are_counted(room: Any):
    made: list[str] = []
    net = Dense(700_000)                                            # 28 MB of weights, gradients and two moments as large
    room(50 * MB)
    model = tileflow.training_model(net, optimizer=tileflow.optim.AdamW(lr=1e-3), progress=lambda *said: made.append("compiled"))
    with pytest.raises(OutOfMemoryError, match=r"The training program \(.*weights and optimizer states 92 MB.* lower micro_batch_size "
                                               r"\(gradient_accumulation makes up for it\)"):
        model(np.ones((2, 8), np.float32), np.zeros(2, np.int64))
    assert made == []                                               # before anything is compiled, and
    assert "first.weight" not in net.session                        # before anything is taken


def test_needs_are_what_the_engine_takes():
    net = Dense(3000)
    model = tileflow.training_model(net, gradient_accumulation=2, device_iterations=2, output_mode="all", threads=2)
    x, y = np.ones((16, 8), np.float32), np.zeros(16, np.int64)
    found = {}
    require = budget.require
    try:
        budget.require = lambda needs, training, iterations: found.update(needs)
        returned = model.run_call(x, y)
    finally:
        budget.require = require
    taken = arenas(model.engine, model.plan)
    sizes = {name: sum(a.nbytes for a in of) for name, of in taken.items()}
    assert len(taken["micro"]) == 2
    assert found["activations and gradients"] == sum(sizes[name] for name in ("micro", "fold", "update"))
    assert found["weights laid out for the kernels"] == sizes["prologue"]
    states = [net.session[name] for name in net.session.names()]
    assert 0 <= found["weights and optimizer states"] - sum(a.nbytes for a in states) < 64 * sum(a.itemsize for a in states)      # padding
    assert found["outputs of a call"] == sum(a.nbytes for a in returned)
    image = model.engine.image
    assert image.needs == {name: n for name, n in found.items() if name != "weights and optimizer states"}
    assert budget.needs(image.needs, image.states, net.session)["weights and optimizer states"] == 0


def test_weights_are_drawn_where_there_is_room(room: Any):
    room(10 * MB)
    with pytest.raises(OutOfMemoryError, match=r"Drawing weights of shape \[2000, 1000\] needs 24 MB"):
        nn.Linear(1000, 2000)
    with pytest.raises(OutOfMemoryError, match=r"Drawing weights of shape \[3000, 1000\] needs 24 MB"):
        nn.Embedding(3000, 1000)
    with nn.skip_init():
        nn.Linear(1000, 2000)


def test_inputs_are_converted_where_there_is_room(room: Any):
    model = tileflow.inference_model(Dense(4))
    x = np.ones((700_000, 8))
    room(10 * MB)
    with pytest.raises(OutOfMemoryError, match="The conversion of input 0 to float32 needs 22 MB"):
        model(x)
    with pytest.raises(OutOfMemoryError, match="A copy of input 0 in row-major order needs 22 MB"):
        model(np.asfortranarray(x, np.float32))


# ---- files and data

def test_weights_of_a_file_are_counted_before_they_are_read(tmp_path: Path, room: Any):
    """A small file that points many times to one large piece of data."""
    (tmp_path / "data").write_bytes(bytes(4 * MB))
    tensors = []
    for i in range(10):
        tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[1024, 1024], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="data")
        tensors.append(tensor)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1024]) for n in "xy")
    names = ["x", *(f"v{i}" for i in range(9)), "y"]
    nodes = [helper.make_node("MatMul", [a, f"w{i}"], [b]) for i, (a, b) in enumerate(itertools.pairwise(names))]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y], tensors), opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    room(30 * MB)
    model = tileflow.inference_model(tmp_path / "m.onnx")
    with pytest.raises(OutOfMemoryError, match=r"its weights and constants needs 42 MB"):
        model(np.ones((1, 1024), np.float32))


def test_constants_that_are_folded_are_counted(tmp_path: Path, room: Any):
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "xy")
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [3000, 3000])
    nodes = [helper.make_node("ConstantOfShape", ["shape"], ["c"]), helper.make_node("ReduceSum", ["c"], ["s"], keepdims=0),
             helper.make_node("Add", ["x", "s"], ["y"])]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y], [shape]), opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    room(30 * MB)
    with pytest.raises(OutOfMemoryError, match=r"The constant of shape \[3000, 3000\] that .* gives needs 36 MB"):
        tileflow.inference_model(tmp_path / "m.onnx")(np.ones(4, np.float32))


def test_a_checkpoint_is_read_where_there_is_room(tmp_path: Path, room: Any):
    save_tensors(tmp_path / "c", {"w": np.zeros((5 * MB,), np.float32)})
    room(15 * MB)
    with pytest.raises(OutOfMemoryError, match=r"Checkpoint .*c needs 21 MB"):
        load_tensors(tmp_path / "c")


def test_a_table_is_read_where_there_is_room(tmp_path: Path, room: Any):
    path = tmp_path / "t.csv"
    path.write_text("a,b,c\n" + "1,2,3\n" * 400_000, encoding="ascii")
    room(15 * MB)
    with pytest.raises(OutOfMemoryError, match=r"Table .*t.csv needs 19 MB"):
        open_data(path)
    room(25 * MB)
    assert len(open_data(path).train) == 400_000
    path.write_text("a,b,c\n" + "1,2,3\n" * 400_000 + "1,2,x\n", encoding="ascii")
    with pytest.raises(OutOfMemoryError, match=r"Table .*t.csv, read cell by cell, needs 48 MB"):
        open_data(path)


def test_what_metrics_keep_is_counted(room: Any):
    model = tileflow.training_model(Dense(4), micro_batch_size=1000)
    measure = Evaluator(model)
    measure.metrics = ("auc",)
    data = Dataset.of({"x": np.zeros((400_000, 8), np.float32)}, np.arange(400_000) % 2)
    model.compile(*data.gather(np.arange(1000)))
    room(18 * MB)
    with pytest.raises(OutOfMemoryError, match=r"Measuring auc on 400,000 rows needs 19 MB"):
        measure.measure(data)


def test_batches_and_results_are_counted(room: Any):
    x = np.zeros((200_000, 8), np.float32)
    room(20 * MB)
    with pytest.raises(OutOfMemoryError, match=r"Holding 4 batches of 200,000 rows of data in memory needs 26 MB .* lower micro_batch_size"):
        DataLoader(tileflow.Options(micro_batch_size=200_000, prefetch=2), Dataset.of({"x": x}))
    with pytest.raises(OutOfMemoryError, match=r"What the model gives for 200,000 rows needs 26 MB"):
        tileflow.infer(Wide(), data=x, micro_batch_size=1000)


class Wide(nn.Module):
    def __init__(self) -> None:
        self.first = nn.Linear(8, 8)

    def forward(self, x: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:                  # type: ignore[override]
        return self.first(x), self.first(x).relu()


# ---- for real

LIMITED = """
import resource, sys
import numpy as np
import tileflow, tileflow.cli, tileflow.api, tileflow.onnx_backend
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
"""
CODES = {
    "a program": """
try:
    tileflow.inference_model(sys.argv[1])(np.ones((40_000, 1), np.float32), np.ones((1, 40_000), np.float32))
except tileflow.system.errors.OutOfMemoryError as error:
    sys.exit(str(error))
""",
    "data": "sys.exit(tileflow.cli.main(['infer', 'digits_cnn.onnx', '--data', sys.argv[1]]))",
}


@pytest.mark.skipif(sys.platform != "linux", reason="the size of a process is read from /proc: Linux makes it run")
@pytest.mark.parametrize(("what", "code", "needs"), [("a program", 1, r"The program \(outputs of a call 6.4 GB\) needs 6.4 GB"),
                                                     ("data", 2, r"Array x in .*bomb.npz needs 2.6 GB")])
def test_more_than_a_process_may_have(tmp_path: Path, what: str, code: int, needs: str):
    path = outer_product(tmp_path, 40_000) if what == "a program" else bomb(tmp_path)
    done = subprocess.run([sys.executable, "-c", LIMITED + CODES[what], str(path)], cwd=ROOT, capture_output=True, text=True, timeout=200,
                          check=False, env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"})
    assert done.returncode == code, done.stderr
    assert re.search(needs + r" of memory, and .* can be had \(this process's limit of 2,147,483,648 bytes \(ulimit -v\)\)", done.stderr)


def bomb(folder: Path) -> Path:
    """An archive of 3 MB whose member claims 2.6 GB, not more than its bytes could hold."""
    with zipfile.ZipFile(folder / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as file:
        np.save(file, np.random.default_rng(0).integers(0, 256, (3000, 1000), np.uint8))
    raw = bytearray((folder / "bomb.npz").read_bytes())
    at = raw.rindex(b"PK\x01\x02") + 24
    raw[at:at + 4] = (2_600_000_000).to_bytes(4, "little")
    (folder / "bomb.npz").write_bytes(raw)
    return folder / "bomb.npz"
