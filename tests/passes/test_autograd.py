"""Reverse mode on composed graphs: against central differences in float64; fan-out, unused outputs, no path, no gradient."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from evaluate import evaluate

from tileflow.graph import Builder, Graph, Hints, Origin, TensorType, Value, verify
from tileflow.passes.autograd import gradients
from tileflow.system.errors import UnsupportedError

rng = np.random.default_rng(1)


def check(build: Callable[..., Value], *shapes: tuple[int, ...], rtol: float = 1e-6) -> Graph:
    """Gradients of sum(build(b, *inputs)) against central differences; returns the graph."""
    graph = Graph()
    b = Builder(graph)
    inputs = [b.input(f"x{i}", TensorType("float64", s)) for i, s in enumerate(shapes)]
    loss = build(b, *inputs)
    grads = gradients(graph, loss, inputs)
    graph.outputs = [loss, *grads]
    verify(graph)
    feeds = {f"x{i}": rng.standard_normal(s) for i, s in enumerate(shapes)}
    found = evaluate(graph, feeds)

    def value() -> float:
        return float(np.sum(evaluate(graph, feeds)[loss.name], dtype=np.longdouble))

    for v, g in zip(inputs, grads, strict=True):
        assert g.type == v.type
        x, wanted = feeds[v.name], np.empty(v.shape)
        for at in np.ndindex(x.shape):
            kept = x[at]
            x[at] = kept + 1e-6
            above = value()
            x[at] = kept - 1e-6
            wanted[at] = (above - value()) / 2e-6
            x[at] = kept
        np.testing.assert_allclose(found[g.name], wanted, rtol=rtol, atol=1e-7, err_msg=v.name)
    return graph


def test_one_value_with_several_readers():
    check(lambda b, x: b.Add(b.Mul(x, x), b.Mul(b.Sin(x), b.Exp(b.Tanh(x)))), (3, 4))


def test_the_same_value_twice_in_one_node():
    check(lambda b, x: b.MatMul(x, x), (3, 3))
    check(lambda b, x: b.Concat(x, x, b.Mul(x, x), axis=0), (2, 3))


def test_broadcasting():
    check(lambda b, x, y, z: b.Div(b.Mul(x, y), b.Add(b.Mul(z, z), b.constant(np.float64(2)))), (2, 3, 4), (3, 1), ())


def test_an_output_that_nobody_reads():
    check(lambda b, x: b.Mul(b.Split(x, axis=1, sizes=(1, 2, 1))[1], b.constant(np.array([[2.0, 3.0]]))), (3, 4))


def test_a_small_network():
    labels = np.array([0, 2, 1, 2])

    def network(b: Builder, x: Value, w: Value, bias: Value, v: Value) -> Value:
        hidden = b.Sigmoid(b.Gemm(x, w, bias, transB=1))
        return b.SoftmaxCrossEntropyLoss(b.MatMul(hidden, v), b.constant(labels), reduction="mean")
    check(network, (4, 3), (5, 3), (5,), (5, 3))


def test_convolution_pool_and_norm():
    def network(b: Builder, x: Value, w: Value, scale: Value, shift: Value) -> Value:
        y = b.BatchNormalization(b.Conv(x, w, strides=(2, 1)), scale, shift, None, None, training_mode=1)[0]
        return b.Mul(b.MaxPool(y, kernel_shape=(2, 2)), b.constant(rng.standard_normal((2, 3, 1, 3))))
    check(network, (2, 2, 6, 6), (3, 2, 3, 3), (3,), (3,), rtol=1e-5)


def test_second_order():
    """A gradient is a graph like any other: d/dx of (d/dx x^3) . x."""
    def twice(b: Builder, x: Value) -> Value:
        cube = b.Mul(b.Mul(x, x), x)
        return b.Mul(gradients(b.graph, cube, [x])[0], x)
    graph = check(twice, (4,))
    found = evaluate(graph, {"x0": np.array([1.0, 2.0, -1.0, 0.5])})
    np.testing.assert_allclose(found[graph.outputs[1].name], 9 * np.array([1.0, 4.0, 1.0, 0.25]))


def test_the_seed_scales():
    graph = Graph()
    b = Builder(graph)
    x = b.input("x", TensorType("float64", (3,)))
    grad, = gradients(graph, b.ReduceSum(b.Mul(x, x), axes=(0,), keepdims=False), [x], seed=128.0)
    values = evaluate(graph, {"x": np.arange(3.0)})
    np.testing.assert_array_equal(values[grad.name], 128 * 2 * np.arange(3.0))


def test_what_the_loss_does_not_depend_on_has_gradient_zero():
    graph = Graph()
    b = Builder(graph)
    x, y = b.input("x", TensorType("float32", (2,))), b.input("y", TensorType("float32", (3, 2)))
    b.Relu(y)
    grads = gradients(graph, b.Mul(x, x), [x, y])
    graph.outputs = grads
    values = evaluate(graph, {"x": np.ones(2, np.float32), "y": np.ones((3, 2), np.float32)})
    assert grads[1].type == y.type
    np.testing.assert_array_equal(values[grads[1].name], np.zeros((3, 2), np.float32))


def test_integers_between_stop_the_gradient():
    """A path through whole numbers is no path."""
    graph = Graph()
    b = Builder(graph)
    x = b.input("x", TensorType("float64", (3,)))
    loss = b.Mul(b.Cast(b.Cast(x, to="int64"), to="float64"), x)
    grad, = gradients(graph, loss, [x])
    graph.outputs = [grad]
    np.testing.assert_array_equal(evaluate(graph, {"x": np.array([1.5, 2.5, -3.5])})[grad.name], [1.0, 2.0, -3.0])


def test_operators_without_gradient_are_all_named():
    graph = Graph()
    b = Builder(graph)
    x = b.input("x", TensorType("float64", (2, 3)))
    with b.at(Origin(("norm1",))):
        y = b.BatchNormalization(x, b.constant(np.ones(3)), b.constant(np.zeros(3)), x_row(b, x), x_row(b, x))
    with pytest.raises(UnsupportedError, match=r"BatchNormalization \(norm1\).*frozen"):
        gradients(graph, y, [x])


def x_row(b: Builder, x: Value) -> Value:
    return b.ReduceMean(x, axes=(0,), keepdims=False)


def test_origin_and_role():
    graph = Graph()
    b = Builder(graph, Origin(("layer",), hints=Hints(recomputed="first")))
    x = b.input("x", TensorType("float64", (3,)))
    before = 1 + len(graph.nodes)
    gradients(graph, b.Exp(x), [x])
    added = graph.nodes[before:]
    assert added
    assert {n.origin for n in added} == {Origin(("layer",), "backward", Hints(recomputed="first"))}


def test_sums_have_one_order():
    """Three readers: their gradients are added from the last to the first, whatever a hash says."""
    def names() -> list[str]:
        graph = Graph()
        b = Builder(graph)
        x = b.input("x", TensorType("float32", (3,)))
        loss = b.Sum(b.Exp(x), b.Sin(x), b.Tanh(x))
        gradients(graph, loss, [x])
        return [repr(n) for n in graph.nodes]
    assert names() == names()
