"""Convolution and its gradients against their references, torch, ONNX's evaluator and finite differences."""
from __future__ import annotations

from typing import Any

import numpy as np
import paths
import pytest
from evaluate import check_gradient, check_kernel, evaluate, gradient_graph, normal, run_kernel
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from peers import needs

from tileflow.graph import TensorType, type_of
from tileflow.graph.work import Contraction
from tileflow.kernels.isa import cpu
from tileflow.ops.conv import Conv, ConvInputGrad, ConvWeightGrad
from tileflow.ops.window import windows
from tileflow.system.errors import ShapeError, TypeMismatchError, UnsupportedError

Array = np.ndarray

CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "mnist1": ((3, 1, 28, 28), (10, 1, 5, 5), {}),
    "mnist2": ((2, 10, 12, 12), (20, 10, 5, 5), {}),
    "primes": ((2, 5, 11, 13), (5, 5, 3, 2), dict(pads=(1, 2, 0, 1))),
    "strides": ((2, 10, 13, 17), (10, 5, 3, 3), dict(group=2, strides=(3, 2), pads=(1, 2, 0, 1))),
    "dilation": ((1, 5, 13, 17), (5, 5, 3, 3), dict(strides=(2, 1), dilations=(3, 2), pads=(0, 1, 2, 1))),
    "depthwise": ((2, 5, 10, 9), (10, 1, 3, 3), dict(group=5, pads=(1, 1, 1, 1))),
    "pointwise": ((2, 5, 11, 10), (20, 5, 1, 1), {}),
    "pointwise, stride 2": ((1, 5, 13, 14), (5, 5, 1, 1), dict(strides=(2, 2))),
    "stride beyond kernel": ((1, 5, 33, 9), (5, 5, 2, 1), dict(strides=(5, 2))),
    "all ones": ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    "line": ((2, 5, 57), (5, 5, 4), dict(pads=(2, 1))),
    "line, stride and dilation": ((2, 10, 87), (10, 5, 3), dict(group=2, strides=(2,), dilations=(3,), pads=(1, 0))),
    "line in place": ((2, 5, 57), (5, 5, 4), {}),
    "same": ((1, 5, 7, 10), (5, 5, 4, 3), dict(auto_pad="SAME_UPPER", strides=(2, 1))),
    "kernel as large as the image": ((2, 5, 5, 4), (5, 5, 5, 4), {}),
    "rows in blocks": ((1, 5, 150, 200), (5, 5, 3, 3), dict(pads=(1, 1, 1, 1))),
    "channels in blocks": ((9, 160, 4, 4), (70, 160, 3, 3), dict(pads=(1, 1, 1, 1))),
    "channels in blocks, last block of filters overlaps": ((1, 641, 6, 5), (64, 641, 1, 1), {}),
    "no image": ((0, 5, 6, 6), (5, 5, 3, 3), {}),
}
"""Most have 5 or 10 channels per group, so that they share compiled register blocks."""


def gradients_of(op: Conv, x: tuple[int, ...], w: tuple[int, ...], biased: bool = True) -> tuple[ConvInputGrad, ConvWeightGrad]:
    """The gradient operators that belong to `op`."""
    win = windows(x[2:], w[2:], op.strides, op.pads, op.dilations, op.auto_pad)
    shared: dict[str, Any] = dict(strides=win.strides, pads=win.pads, dilations=win.dilations, group=op.group)
    return ConvInputGrad(shape=x[2:], **shared), ConvWeightGrad(kernel_shape=w[2:], biased=biased, **shared)


EVERYWHERE = ("strides", "primes")
"""Cases that every path runs: compiling is what these tests spend their time on."""
SELDOM = ("all ones", "kernel as large as the image", "line in place", "channels in blocks, last block of filters overlaps", "mnist1", "same",
          "channels in blocks", "line", "line, stride and dilation", "pointwise, stride 2", "stride beyond kernel")
"""Cases that compile register blocks of their own and take the ways of others."""
DOUBLE = ("primes", "strides")
"""Cases in float64."""


@pytest.mark.parametrize(("path", "name"), [paths.rare(path, name) if name in SELDOM else paths.on(path, name) for path in cpu.available()
                                            for name in CASES if path == paths.FASTEST or name in EVERYWHERE])
def test_kernels(path: str, name: str) -> None:
    x_shape, w_shape, attributes = CASES[name]
    op = Conv(**attributes)
    x, w = normal(*x_shape), normal(*w_shape, seed=1)
    scale = 2e-5 * float(np.sqrt(w[0].size))
    with cpu.forced(path):
        y, = check_kernel(op, x, w, normal(w_shape[0]), rtol=2e-5, atol=scale)
        g = normal(*y.shape, seed=2)
        over_input, over_weights = gradients_of(op, x_shape, w_shape)
        check_kernel(over_input, g, w, rtol=2e-5, atol=scale)
        check_kernel(over_weights, x, g, rtol=2e-5, atol=scale * float(np.sqrt(g[:, 0].size + 1)))


@pytest.mark.parametrize("name", DOUBLE)
def test_as_torch(name: str) -> None:
    torch = needs("torch")
    x_shape, w_shape, attributes = CASES[name]
    op = Conv(**attributes)
    win = windows(x_shape[2:], w_shape[2:], op.strides, op.pads, op.dilations, op.auto_pad)
    x, w, bias = normal(*x_shape, dtype="float64"), normal(*w_shape, dtype="float64", seed=1), normal(w_shape[0], dtype="float64")
    tensors = [torch.tensor(a, requires_grad=True) for a in (x, w, bias)]
    pads = [p for pair in zip(win.begin[::-1], win.end[::-1], strict=True) for p in pair]
    convolve = torch.nn.functional.conv1d if x.ndim == 3 else torch.nn.functional.conv2d
    wanted = convolve(torch.nn.functional.pad(tensors[0], pads), *tensors[1:], stride=win.strides, dilation=win.dilations, groups=op.group)
    graph, grads, results = gradient_graph(op, [x, w, bias])
    values = evaluate(graph, {"x0": x, "x1": w, "x2": bias}, run_kernel)
    wanted.backward(torch.tensor(grads[0]))
    np.testing.assert_allclose(run_kernel(op, x, w, bias)[0], wanted.detach().numpy(), rtol=1e-10, atol=1e-11)
    for result, tensor in zip(results, tensors, strict=True):
        assert result is not None
        np.testing.assert_allclose(values[result.name], tensor.grad.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["primes", "strides", "dilation", "line", "same"])
def test_as_onnx(name: str) -> None:
    x_shape, w_shape, attributes = CASES[name]
    x, w = normal(*x_shape), normal(*w_shape, seed=1)
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in (("x", x), ("w", w))],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    wanted: Any = ReferenceEvaluator(model).run(None, {"x": x, "w": w})
    np.testing.assert_allclose(run_kernel(Conv(**attributes), x, w)[0], wanted[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("attributes", [{}, dict(group=2, strides=(2, 1), pads=(1, 0, 0, 1), dilations=(1, 2))])
def test_gradients(attributes: dict) -> None:
    op = Conv(**attributes)
    x, w, bias = normal(2, 4, 6, 5, dtype="float64"), normal(2, 4 // op.group, 2, 3, dtype="float64"), normal(2, dtype="float64")
    check_gradient(op, x, w, bias)
    y, = op.reference(x, w)
    over_input, over_weights = gradients_of(op, x.shape, w.shape)
    check_gradient(over_input, normal(*y.shape, dtype="float64"), w)
    check_gradient(over_weights, x, normal(*y.shape, dtype="float64"))


def test_several_images_share_a_unit() -> None:
    """Many small images: shares of the batch, several unfolded together, a last share that is smaller."""
    op = Conv(pads=(1, 1, 1, 1))
    x, w = normal(37, 5, 6, 9), normal(5, 5, 3, 3, seed=1)
    y, = check_kernel(op, x, w, rtol=2e-5, atol=5e-5)
    check_kernel(gradients_of(op, x.shape, w.shape)[1], x, normal(*y.shape, seed=2), rtol=2e-5, atol=1e-3)


def test_long_strides_are_operands_of_one_kernel() -> None:
    """Whatever of a row lies within the padding."""
    rng, leaves = np.random.default_rng(7), set()
    for _ in range(40):
        stride, taps, apart, wide = (int(n) for n in rng.integers((3, 1, 1, 1), (9, 5, 5, 30)))
        before, after = (int(n) for n in rng.integers(0, (taps - 1) * apart + 3, 2))
        if wide + before + after <= (taps - 1) * apart:
            continue
        op = Conv(strides=(1, stride), dilations=(1, apart), pads=(0, before, 0, after))
        x, w = normal(1, 5, 2, wide), normal(5, 5, 2, taps, seed=1)
        y, = check_kernel(op, x, w, rtol=2e-5, atol=5e-5)
        over_input, over_weights = gradients_of(op, x.shape, w.shape)
        for made, *given in ((op, x, w), (over_input, y, w), (over_weights, x, y)):
            if made is not op:
                check_kernel(made, *given, rtol=2e-5, atol=5e-5 * float(np.sqrt(y[0, 0].size + 1)))
            types = [type_of(a) for a in given]
            leaves |= {(call.leaf.name, y.shape, call.leaf)
                       for call in made.kernel(types, made.infer(*types), cpu.current())}
    found = [shape for name, shape, _ in leaves if name == "conv_forward"]
    assert len(found) == len(set(found)) > 2, "the register block follows from the result's shape"
    assert len({leaf for name, _, leaf in leaves if name == "conv_input_gradient"}) == 1


def test_nan_and_infinity_stay_where_they_belong() -> None:
    x, w = normal(2, 5, 8, 20), normal(5, 5, 3, 3, seed=1)
    x[0, 1, 4, 7], x[1, 0, 2, 18] = np.nan, np.inf
    y, = run_kernel(Conv(), x, w)
    wanted, = Conv().reference(x, w)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(y), np.isinf(wanted))
    g = normal(*y.shape, seed=2)
    g[1, 2, 3, 5] = np.nan
    over_input, over_weights = gradients_of(Conv(), x.shape, w.shape)
    np.testing.assert_array_equal(np.isnan(run_kernel(over_input, g, w)[0]), np.isnan(over_input.reference(g, w)[0]))
    np.testing.assert_array_equal(np.isnan(run_kernel(over_weights, x, g)[0]), np.isnan(over_weights.reference(x, g)[0]))


def test_work_counts_products() -> None:
    x, w = TensorType("float32", (2, 4, 9, 8)), TensorType("float32", (6, 2, 3, 3))
    op = Conv(group=2, pads=(1, 1, 1, 1))
    y, = op.infer(x, w)
    over_input, over_weights = gradients_of(op, x.shape, w.shape)
    for made in (op.work([x, w], [y]), over_input.work([y, w], [x]), over_weights.work([x, y], over_weights.infer(x, y))):
        assert isinstance(made, Contraction)
        assert made.flops == 2 * y.size * 2 * 9


@pytest.mark.parametrize(("op", "shapes", "error", "words"), [
    (Conv(), ((1, 3, 8, 8), (4, 2, 3, 3)), ShapeError, "3 channels"),
    (Conv(group=2), ((1, 4, 8, 8), (3, 2, 3, 3)), ShapeError, "divide among the groups"),
    (Conv(), ((1, 3, 2, 8), (4, 3, 3, 3)), ShapeError, "larger than spatial axis 0"),
    (Conv(kernel_shape=(2, 2)), ((1, 3, 8, 8), (4, 3, 3, 3)), ShapeError, "kernel_shape"),
    (Conv(strides=(1,)), ((1, 3, 8, 8), (4, 3, 3, 3)), ShapeError, "strides"),
    (Conv(), ((1, 3, 8, 8), (4, 3, 3)), ShapeError, "dimensions"),
    (Conv(), ((1, 3, 8, 8), (4, 3, 3, 3), (3,)), ShapeError, "bias"),
    (Conv(), ((1, 3, 8, 8, 8, 8), (4, 3, 3, 3, 3, 3)), UnsupportedError, "4 spatial axes"),
    (ConvInputGrad(shape=(8, 8)), ((1, 4, 5, 5), (4, 3, 3, 3)), ShapeError, "output shape"),
    (ConvWeightGrad(kernel_shape=(3, 3)), ((1, 3, 8, 8), (1, 4, 5, 5)), ShapeError, "output shape"),
])
def test_errors(op: Conv, shapes: tuple[tuple[int, ...], ...], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        op.infer(*[TensorType("float32", s) for s in shapes])


def test_types_must_agree() -> None:
    x, w = TensorType("float32", (1, 3, 8, 8)), TensorType("float64", (4, 3, 3, 3))
    with pytest.raises(TypeMismatchError, match="float64"):
        Conv().infer(x, w)
    with pytest.raises(TypeMismatchError, match="bias"):
        Conv().infer(x, w.with_dtype("float32"), TensorType("float64", (4,)))
