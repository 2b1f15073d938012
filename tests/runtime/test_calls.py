"""What calls cost: few functions for a small model, one import for each shape; arrays copied in and out are as good as arrays used in place."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from effort import counted
from onnx_models import model_of, node, port

import tileflow
from tileflow import compiler, nn
from tileflow.executable import ports
from tileflow.executable.ports import address
from tileflow.graph import to_text, verify
from tileflow.importers.onnx import OnnxModel
from tileflow.loss import find
from tileflow.onnx_backend import Backend
from tileflow.optim import SGD
from tileflow.program.batching import Batching
from tileflow.runtime import imports as importing
from tileflow.runtime import onnx_source
from tileflow.system.errors import TypeMismatchError

MOST_CALLS = 60
"""Python and C functions that a call of a small model may call: 12 us at the most."""
X, Y = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)


def adder() -> Any:
    return Backend.prepare(model_of([node("Add", ["x", "y"], ["z"])], [port("x", [4]), port("y", [4])], ["z"]), threads=1)


class Add(nn.Module):
    def forward(self, x: nn.Tensor, y: nn.Tensor) -> nn.Tensor:
        return x + y


def functions_called(work: Callable[[], Any]) -> int:
    """How many functions run when `work` is called a third time."""
    work()
    work()
    with counted() as effort:
        work()
    return effort.calls


def test_a_call_costs_few_functions() -> None:
    prepared, model = adder(), tileflow.inference_model(Add(), threads=1)
    assert functions_called(lambda: prepared.run([X, Y])) < MOST_CALLS
    assert functions_called(lambda: prepared.run({"x": X, "y": Y})) < MOST_CALLS
    assert functions_called(lambda: model(X, Y)) < MOST_CALLS


def test_what_a_call_returned_is_the_callers() -> None:
    """Later calls leave the results of earlier ones alone, and results can be changed."""
    prepared, model = adder(), tileflow.inference_model(Add(), threads=1)
    for run in (lambda x, y: prepared.run([x, y])[0], model):
        first = run(X, Y)
        kept = first.copy()
        second = run(Y, Y)
        np.testing.assert_array_equal(first, kept)
        first[:] = -1
        np.testing.assert_array_equal(second, Y + Y)
        np.testing.assert_array_equal(run(X, Y), X + Y)


def test_arrays_of_every_kind_after_a_fast_call() -> None:
    """What is not an array of the very type and layout takes the longer way to the same numbers, or to the same sentence."""
    prepared, model = adder(), tileflow.inference_model(Add(), threads=1)
    wide, read_only = np.repeat(X, 2)[::2], X.copy()
    read_only.flags.writeable = False
    for run in (lambda x, y: prepared.run([x, y])[0], model):
        for x in (X, wide, read_only, X.tolist() if run is model else X, X.astype(">f4").astype("<f4"), X):
            np.testing.assert_array_equal(run(x, Y), X + Y)
    with pytest.raises(TypeMismatchError):
        model(X > 1, Y)
    np.testing.assert_array_equal(prepared.run([X[:2], Y[:2]])[0], X[:2] + Y[:2])
    np.testing.assert_array_equal(prepared.run([X, Y])[0], X + Y)


@pytest.mark.parametrize("held", [0, 1 << 30])
def test_small_and_large_arrays_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    """Every array in place, and every array through the engine's own memory: inference and training, several micro-batches, all outputs."""
    results = []
    for limit in (1 << 13, held):
        monkeypatch.setattr(ports, "HELD", limit)
        nn.manual_seed(3)
        net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
        rng = np.random.default_rng(1)
        x, y = rng.standard_normal((24, 6)).astype(np.float32), rng.integers(0, 3, 24)
        training = tileflow.training_model(net, gradient_accumulation=2, device_iterations=3, output_mode="all", threads=2)
        made = [*training(x, y), *training(x, y)]
        made += [tileflow.inference_model(net, device_iterations=3, output_mode=mode, threads=1)(x) for mode in ("all", "final", "sum")]
        results.append([np.asarray(a).tobytes() for a in made])
    assert results[0] == results[1]


def test_addresses() -> None:
    read_only = X.copy()
    read_only.flags.writeable = False
    for array in (X, read_only, np.zeros((0, 3)), np.array(3.0), np.ones(3, bool)):
        assert address(array) == array.ctypes.data


# ---- one import for each shape and mode

@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool | None]]:
    """What is imported from now on: the model's name and the mode."""
    seen: list[tuple[str, bool | None]] = []
    whole = importing.import_graph

    def counted(model: OnnxModel, **given: Any) -> Any:
        seen.append((Path(model.where).name, given["training"]))
        return whole(model, **given)
    monkeypatch.setattr(importing, "import_graph", counted)
    return seen


def classifier(folder: Path) -> Path:
    weights = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    proto = model_of([node("MatMul", ["x", "w"], ["y"])], [port("x", ["N", 4])], [port("y", ["N", 3])], {"w": weights})
    onnx.save(proto, folder / "net.onnx")
    return folder / "net.onnx"


def test_a_shape_is_imported_once(tmp_path: Path, imports: list[tuple[str, bool | None]]) -> None:
    """Verbs, checks, training, evaluation and the trained file's own check ask for the same graphs."""
    path = classifier(tmp_path)
    rng = np.random.default_rng(2)
    data = rng.standard_normal((32, 4)).astype(np.float32), rng.integers(0, 3, 32)
    result = tileflow.train(path, data=data, micro_batch_size=8, epochs=2, validation_split=0.25, out=tmp_path / "run", threads=1)
    written = [name for name, _ in imports if name != path.name]
    assert len(written) == 1                                                         # the trained file is read again
    assert imports.count((path.name, True)) == imports.count((path.name, False)) == 1
    assert imports.count((path.name, None)) == 1                                     # what it will be, before anything is trained
    result.evaluate()
    result.evaluate((data[0][:16], data[1][:16]))
    assert len(imports) == 4
    imports.clear()
    tileflow.infer(path, data=data[0], micro_batch_size=8, threads=1)
    assert imports == [(path.name, False)]
    imports.clear()
    tileflow.compile(path, training=True, micro_batch_size=8)
    assert imports == [(path.name, True)]


def test_what_is_kept_is_not_what_is_compiled(tmp_path: Path) -> None:
    """A source gives copies away: compiling one, which changes it in place, leaves the next as the file says."""
    found = onnx_source.OnnxSource(tileflow.load(classifier(tmp_path)), tileflow.Options(micro_batch_size=2))
    types = list(found.input_types().values())
    before = to_text(found.graph(types, True)[0])
    graph, _ = found.graph(types, True)
    compiler.training(graph, find("cross_entropy", found.options), SGD(), Batching(2))
    assert to_text(graph) != before
    assert to_text(found.graph(types, True)[0]) == before
    verify(found.graph(types, True)[0])
    assert [v.name for v in found.signature(types, True).outputs] == ["y"]
