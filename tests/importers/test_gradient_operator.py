"""Gradient of ai.onnx.preview.training: gradients that a file asks for within its own graph."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto
from onnx_models import imported, model_of, node, port, run

from tileflow.onnx_backend import Backend
from tileflow.system.errors import UnsupportedError

DOMAIN = "ai.onnx.preview.training"
X, W = np.random.default_rng(3).standard_normal((4, 3)), np.random.default_rng(4).standard_normal((3, 2))


def gradient(inputs: Sequence[str], outputs: Sequence[str], **attributes: object) -> NodeProto:
    return node("Gradient", inputs, outputs, "grad", domain=DOMAIN, **attributes)


def network(*more: NodeProto, outputs: Sequence[str]) -> ModelProto:
    """y = sum(u u h) with h = x w and u its rows of length 1 (`value`), then `more`; ReduceL2 is made of other operators."""
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("ReduceL2", ["h"], ["n"], axes=[1]), node("Div", ["h", "n"], ["u"]),
             node("Mul", ["u", "u"], ["uu"]), node("Mul", ["uu", "h"], ["c"]), node("ReduceSum", ["c"], ["y"], keepdims=0), *more]
    given = [port("x", [4, 3], "float64"), port("w", [3, 2], "float64")]
    return model_of(nodes, given, [port(n, None, "float64") for n in outputs], domains=[DOMAIN])


def value(x: np.ndarray, w: np.ndarray) -> float:
    h = x @ w
    u = h / np.sqrt((h * h).sum(1, keepdims=True))
    return float((u * u * h).sum())


def differences(which: int) -> np.ndarray:
    """Central differences of `value` by x or w."""
    result = np.zeros((X, W)[which].shape)
    for at in np.ndindex(*result.shape):
        ends = []
        for step in (1e-6, -1e-6):
            given = [X.copy(), W.copy()]
            given[which][at] += step
            ends.append(value(*given))
        result[at] = (ends[0] - ends[1]) / 2e-6
    return result


def test_gradients_by_inputs_are_those_of_differences() -> None:
    proto = network(gradient(["x", "w"], ["dx", "dw"], xs=["x", "w"], y="y"), node("Neg", ["dx"], ["down"]), outputs=["y", "dx", "dw", "down"])
    feeds = {"x": X, "w": W}
    for found in (run(imported(proto), feeds), Backend.prepare(proto).run([X, W])):
        np.testing.assert_allclose(found[0], value(X, W), rtol=1e-12)
        np.testing.assert_allclose(found[1], differences(0), rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(found[2], differences(1), rtol=1e-6, atol=1e-8)
        assert np.array_equal(found[3], -found[1])


def test_outputs_may_be_left_out_and_what_does_not_matter_has_zeros() -> None:
    proto = network(gradient(["x", "w", "n"], ["", "dw"], xs=["x", "w"], zs=["n"], y="y"), gradient(["w"], ["none"], xs=["w"], y="n_of_x"),
                    outputs=["dw", "none"])
    proto.graph.node.insert(0, node("ReduceSum", ["x"], ["n_of_x"]))
    found = run(imported(proto), {"x": X, "w": W})
    np.testing.assert_allclose(found[0], differences(1), rtol=1e-6, atol=1e-8)
    assert np.array_equal(found[1], np.zeros((3, 2)))


def test_second_derivatives() -> None:
    """d2/dx2 of the sum of x^3."""
    nodes = [node("Mul", ["x", "x"], ["two"]), node("Mul", ["two", "x"], ["three"]), gradient(["x"], ["first"], xs=["x"], y="three"),
             gradient(["x"], ["second"], xs=["x"], y="first")]
    proto = model_of(nodes, [port("x", [5], "float64")], [port(n, None, "float64") for n in ("first", "second")], domains=[DOMAIN])
    x = np.linspace(-1, 2, 5)
    first, second = run(imported(proto), {"x": x})
    np.testing.assert_allclose(first, 3 * x * x, rtol=1e-12)
    np.testing.assert_allclose(second, 6 * x, rtol=1e-12)


@pytest.mark.parametrize("name", ["test_gradient_of_add", "test_gradient_of_add_and_mul"])
def test_onnx_own_cases(name: str) -> None:
    from onnx.backend.test.loader import load_model_tests
    case = next(case for case in load_model_tests(kind="simple") if case.name == name)
    proto = case.model if case.model is not None else onnx.load(f"{case.model_dir}/model.onnx")
    a, b = np.float32(3.5), np.float32(-2.0)
    found = Backend.prepare(proto).run([a, b])
    wanted = [a + b, 1, 1] if name.endswith("_add") else [(a + b) * a, 2 * a + b, a]
    assert [float(x) for x in found] == [float(x) for x in wanted]


def test_what_it_cannot_be_asked() -> None:
    other = network(gradient(["x", "x"], ["dx", "dw"], xs=["x", "w"], y="y"), outputs=["dx"])
    with pytest.raises(UnsupportedError, match="are others than the tensors"):
        imported(other)
    whole = network(node("ArgMax", ["c"], ["best"]), gradient(["x"], ["dx"], xs=["x"], y="best"), outputs=["dx"])
    with pytest.raises(UnsupportedError, match="a gradient of int64"):
        imported(whole)
    trees = model_of([node("SoftmaxCrossEntropyLoss", ["x", "t", "k"], ["y"]), gradient(["k"], ["dk"], xs=["k"], y="y")],
                     [port("x", [2, 3]), port("t", [2], "int64"), port("k", [3])], ["dk"], domains=[DOMAIN])
    with pytest.raises(UnsupportedError, match="operators before its y have no gradient: SoftmaxCrossEntropyLoss"):
        imported(trees)
