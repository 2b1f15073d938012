"""tileflow as an ONNX backend: models run through the compiled engine."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_models import model_of, node, port

from tileflow.onnx_backend import Backend
from tileflow.system.errors import DataError, ModelError, TypeMismatchError, UnsupportedError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_run() -> None:
    proto = model_of([node("Add", ["x", "w"], ["y"]), node("Identity", ["x"], ["same"])], [port("x", ["N", 3])], ["y", "same"],
                     {"w": np.array([1, 2, 3], np.float32)})
    prepared = Backend.prepare(proto)
    for x in (X, X[:1], np.zeros((0, 3), np.float32), X):
        y, same = prepared.run([x])
        np.testing.assert_array_equal(y, x + np.array([1, 2, 3], np.float32))
        np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(prepared.run({"x": X})[1], X)
    np.testing.assert_array_equal(Backend.run_model(proto, [X])[1], X)
    with pytest.raises(DataError, match="the inputs x and got 2 arrays"):
        prepared.run([X, X])
    with pytest.raises(DataError, match="needs its inputs x"):
        prepared.run({"q": X})
    with pytest.raises(TypeMismatchError, match="element type <U1"):
        prepared.run([np.array(["a"])])


def test_inputs_that_decide_a_shape() -> None:
    proto = model_of([node("Cast", ["s"], ["t"], to=onnx.TensorProto.INT64), node("Reshape", ["x", "t"], ["y"])],
                     [port("x", [2, 3]), port("s", [2], "int32")], ["y"])
    prepared = Backend.prepare(proto)
    for shape in ((3, 2), (6, 1), (3, 2)):
        np.testing.assert_array_equal(prepared.run([X, np.array(shape, np.int32)])[0], X.reshape(shape))


def test_files_and_old_opsets(tmp_path: Path) -> None:
    proto = model_of([node("Add", ["x", "x"], ["y"])], [port("x", [2, 3])], [port("y", [2, 3])])
    onnx.save(proto, tmp_path / "model.onnx")
    np.testing.assert_array_equal(Backend.prepare(tmp_path / "model.onnx").run([X])[0], X + X)
    old = model_of([node("Add", ["x", "b"], ["y"], broadcast=1, axis=0)], [port("x", [2, 3]), port("b", [2])], [port("y", [2, 3])], opset=6)
    np.testing.assert_array_equal(Backend.prepare(old).run([X, np.array([10, 20], np.float32)])[0], X + np.array([[10], [20]], np.float32))


def test_refusals() -> None:
    proto = model_of([node("Strange", ["x"], ["y"], domain="other")], [port("x", [2])], ["y"], domains=["other"])
    assert Backend.supports_device("CPU")
    assert not Backend.supports_device("CUDA")
    assert not Backend.is_compatible(proto)
    with pytest.raises(UnsupportedError, match="other::Strange"):
        Backend.prepare(proto)
    with pytest.raises(UnsupportedError, match="ask for 'CPU'"):
        Backend.prepare(proto, "CUDA")
    with pytest.raises(ModelError, match="does not exist"):
        Backend.prepare("missing.onnx")
