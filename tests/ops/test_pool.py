"""Pooling against its references, torch, onnxruntime and finite differences."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import paths
import pytest
from evaluate import check_gradient, check_kernel, evaluate, gradient_graph, run_kernel
from onnx import TensorProto, helper
from peers import needs

from tileflow.graph import Op, TensorType
from tileflow.host.pool import WinningMaxPool, WinningMaxPoolGrad
from tileflow.kernels.isa import cpu
from tileflow.ops.pool import AveragePool, AveragePoolGrad, GlobalAveragePool, GlobalMaxPool, MaxPool, MaxPoolGrad
from tileflow.system.errors import ShapeError, TypeMismatchError, UnsupportedError

Array = np.ndarray

HALVES: dict[str, Any] = dict(kernel_shape=(2, 2), strides=(2, 2))
CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 8, 8), HALVES),
    ((1, 2, 25, 37), HALVES),                                          # an odd row and column that no window meets
    ((2, 1, 2, 3), HALVES),
    ((2, 3, 9, 7), dict(kernel_shape=(3, 2), pads=(1, 1, 0, 0))),
    ((1, 2, 13, 11), dict(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), ceil_mode=1)),
    ((1, 2, 6, 10), dict(kernel_shape=(2, 2), strides=(2, 3), ceil_mode=1)),
    ((1, 2, 11, 10), dict(kernel_shape=(2, 3), strides=(5, 4), dilations=(3, 2))),
    ((2, 2, 7, 5), dict(kernel_shape=(3, 3), strides=(2, 2), auto_pad="SAME_UPPER")),
    ((2, 2, 8, 5), dict(kernel_shape=(3, 2), strides=(2, 1), auto_pad="SAME_LOWER")),
    ((2, 2, 7, 5), dict(kernel_shape=(3, 3), auto_pad="VALID", pads=(1, 1, 1, 1))),
    ((2, 3, 19), dict(kernel_shape=(3,), strides=(2,), pads=(1, 0))),
    ((0, 3, 8, 8), HALVES),
    ((3, 2, 1, 1), dict(kernel_shape=(1, 1))),
    ((2, 1, 40, 33), dict(kernel_shape=(17, 16), strides=(3, 2), pads=(8, 8, 8, 8))),     # more taps than a byte can number
    ((1, 1, 90, 150), dict(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))),      # more rows than are spread at once
]
PADDED: list[tuple[tuple[int, ...], dict[str, Any]]] = [                       # padding as wide as the kernel, which onnxruntime refuses
    ((1, 2, 2, 53), dict(kernel_shape=(1, 2), strides=(1, 3), dilations=(1, 3), pads=(0, 1, 0, 2))),
    ((1, 1, 1, 1), dict(kernel_shape=(2, 2), dilations=(3, 3), pads=(1, 1, 2, 2))),       # a window that meets nothing
]


def normal(*shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def levels(*shape: int, dtype: str = "float32") -> Array:
    """Few distinct values, so that most windows hold ties."""
    return np.random.default_rng(0).integers(0, 3, shape).astype(dtype)


def runtime(op: Op, x: Array, outputs: int = 1) -> list[Array]:
    """The ONNX operator by onnxruntime."""
    ort = needs("onnxruntime")
    attributes = {k: v for k, v in op.attributes().items() if k != "indices" and v is not None}
    kinds = [("y", TensorProto.FLOAT), ("z", TensorProto.INT64)][:outputs]
    names = [n for n, _ in kinds]
    graph = helper.make_graph([helper.make_node(op.name, ["x"], names, **attributes)], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
                              [helper.make_tensor_value_info(n, kind, None) for n, kind in kinds])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})


@pytest.mark.parametrize(("shape", "attributes"), CASES + PADDED)
@pytest.mark.parametrize("dtype", ["float32", paths.rare("float64")])
@pytest.mark.parametrize("path", paths.PATHS)
def test_max_pool_and_its_gradient(path: str, dtype: str, shape: tuple[int, ...], attributes: dict) -> None:
    op = MaxPool(**attributes)
    with cpu.forced(path):
        y, = check_kernel(op, normal(*shape, dtype=dtype))
        x = levels(*shape, dtype=dtype)
        g = normal(*y.shape, dtype=dtype)
        dx, = check_kernel(MaxPoolGrad(**op.same()), g, x, rtol=1e-6)
        _, won = check_kernel(WinningMaxPool(**op.same()), x)
        unpooled, = check_kernel(WinningMaxPoolGrad(**op.same(), shape=shape[2:]), g, won, rtol=1e-6)
        assert dx.tobytes() == unpooled.tobytes()


SEPARABLE: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 2, 20, 20), dict(kernel_shape=(5, 5), pads=(2, 2, 2, 2))),
    ((1, 2, 20, 35), dict(kernel_shape=(13, 9), pads=(6, 4, 6, 4))),                       # more taps than have code of their own
    ((1, 3, 14, 14), dict(kernel_shape=(3, 3), strides=(3, 3))),
    ((1, 1, 20, 113), dict(kernel_shape=(3, 3), strides=(3, 3), pads=(2, 2, 1, 1), ceil_mode=1)),
    ((1, 1, 7, 150), dict(kernel_shape=(4, 3), strides=(1, 6), pads=(0, 1, 0, 1))),        # a stride without code of its own
    ((1, 1, 9, 84), dict(kernel_shape=(3, 3), strides=(1, 1), dilations=(2, 5), pads=(4, 10, 4, 10))),    # rows that meet half of the taps
    ((1, 1, 130, 48), dict(kernel_shape=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1))),       # more rows than lie between both axes at once
]


@pytest.mark.parametrize(("path", "shape", "attributes"), [
    (paths.on if k in (1, 3) else paths.rare)(path, *case) for path in paths.cpu.available() for k, case in enumerate(SEPARABLE)])
def test_one_axis_after_the_other(path: str, shape: tuple[int, ...], attributes: dict) -> None:
    x = normal(*shape)
    rng = np.random.default_rng(1)
    rare = x.copy()
    rare.flat[rng.choice(x.size, x.size // 20, replace=False)] = rng.choice([np.nan, np.inf, -np.inf, -0.0], x.size // 20)
    rare[..., :4, :4] = -np.inf
    average = AveragePool(**attributes)
    with cpu.forced(path):
        for given in (x, rare, -np.abs(x), np.full_like(x, -np.inf)):
            y, = check_kernel(MaxPool(**attributes), given)
            won, _ = check_kernel(WinningMaxPool(**attributes), given)
            np.testing.assert_array_equal(y, won)
        for given in (x, rare):
            check_kernel(average, given, rtol=2e-6, atol=2e-7)
        counted, = check_kernel(replace(average, count_include_pad=1), x, rtol=2e-6, atol=2e-7)
        gradient = AveragePoolGrad(shape=shape[2:], **average.same())
        for given in (normal(*counted.shape), np.where(normal(*counted.shape) > 2, np.inf, np.float32(1))):
            check_kernel(gradient, given, rtol=4e-6, atol=4e-7)
        check_kernel(replace(gradient, count_include_pad=1), counted, rtol=4e-6, atol=4e-7)


def test_gradients_of_means_over_planes_beyond_the_cache() -> None:
    """The other code for them gives what float64 has."""
    op = AveragePool(kernel_shape=(3, 3), strides=(2, 1), pads=(1, 1, 1, 1))
    y, = op.infer(TensorType("float32", (1, 1, 400, 200)))
    check_kernel(AveragePoolGrad(shape=(400, 200), **op.same()), normal(*y.shape), rtol=4e-6, atol=4e-7)


@pytest.mark.parametrize("shape_attributes", CASES + PADDED)
def test_indices_and_average(shape_attributes: tuple) -> None:
    shape, attributes = shape_attributes
    check_kernel(MaxPool(**attributes, indices=True), levels(*shape))
    check_kernel(MaxPool(**attributes, indices=True, storage_order=1), levels(*shape))
    for include in (0, 1):
        op = AveragePool(**attributes, count_include_pad=include)
        for dtype in ("float32", "float64"):
            y, = check_kernel(op, normal(*shape, dtype=dtype), rtol=1e-5, atol=1e-6)
            grad = AveragePoolGrad(shape=shape[2:], count_include_pad=include, **op.same())
            check_kernel(grad, normal(*y.shape, dtype=dtype), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("shape", "attributes"), [c for c in CASES if 0 not in c[0]])
def test_as_onnxruntime(shape: tuple[int, ...], attributes: dict) -> None:
    x = normal(*shape)
    maximum = MaxPool(**attributes, indices=True)
    for order in (0, 1):
        counted = replace(maximum, storage_order=order)
        for got, wanted in zip(run_kernel(counted, x), runtime(counted, x, 2), strict=True):
            np.testing.assert_array_equal(got, wanted)
    for include in (0, 1):
        average = AveragePool(**attributes, count_include_pad=include)
        np.testing.assert_allclose(run_kernel(average, x)[0], runtime(average, x)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize(("kernel", "stride", "pad", "dilation"), [(2, 2, 0, 1), (3, 2, 1, 1), (3, 1, 1, 2), (2, 3, 1, 1)])
def test_as_torch(kernel: int, stride: int, pad: int, dilation: int, ceil_mode: int) -> None:
    torch = needs("torch")
    x = levels(2, 3, 11, 14, dtype="float64")
    x[0, 0, 3, 4] = np.nan
    x[1, 1, 5, 6] = np.inf
    x[1, 2, :4, :4] = -np.inf
    op = MaxPool(kernel_shape=(kernel,) * 2, strides=(stride,) * 2, pads=(pad,) * 4, dilations=(dilation,) * 2, ceil_mode=ceil_mode,
                 indices=True)
    source = torch.tensor(x, requires_grad=True)
    wanted, places = torch.nn.functional.max_pool2d(source, kernel, stride, pad, dilation, bool(ceil_mode), return_indices=True)
    got, indices = run_kernel(op, x)
    np.testing.assert_array_equal(got, wanted.detach().numpy())
    plane = np.arange(6).reshape(2, 3, 1, 1) * 11 * 14
    np.testing.assert_array_equal(indices - plane, places.numpy())
    g = normal(*got.shape, dtype="float64")
    wanted.backward(torch.tensor(g))
    np.testing.assert_allclose(run_kernel(MaxPoolGrad(**op.same()), g, x)[0], source.grad.numpy(), rtol=1e-12)
    if dilation == 1:
        for include in (0, 1):
            average = AveragePool(**op.same(), count_include_pad=include)
            x = normal(2, 3, 11, 14, dtype="float64")
            source = torch.tensor(x, requires_grad=True)
            wanted = torch.nn.functional.avg_pool2d(source, kernel, stride, pad, bool(ceil_mode), bool(include))
            np.testing.assert_allclose(run_kernel(average, x)[0], wanted.detach().numpy(), rtol=1e-12)
            wanted.backward(torch.tensor(g))
            gradient = AveragePoolGrad(shape=(11, 14), count_include_pad=include, **average.same())
            np.testing.assert_allclose(run_kernel(gradient, g)[0], source.grad.numpy(), rtol=1e-12)


@pytest.mark.parametrize("path", paths.PATHS)
def test_nan_and_ties_in_halves(path: str) -> None:
    x = levels(2, 2, 6, 40)
    x[0, 0, 1, 3] = x[0, 0, 0, 2] = x[1, 1, 4, 39] = np.nan                       # the first two lie in one block
    x[0, 1, 2:4, 6:8] = -np.inf
    with cpu.forced(path):
        y, = check_kernel(MaxPool(**HALVES), x)
        g = normal(*y.shape)
        dx, = check_kernel(MaxPoolGrad(**MaxPool(**HALVES).same()), g, x)
        winners = check_kernel(WinningMaxPool(**HALVES), x)[1]
        check_kernel(WinningMaxPoolGrad(**MaxPool(**HALVES).same(), shape=(6, 40)), g, winners)
        general = dict(kernel_shape=(2, 2), strides=(2, 2), pads=(0, 0, 1, 1))                # the same windows by the general code
        assert run_kernel(MaxPool(**general), x)[0].tobytes() == y.tobytes()
        assert run_kernel(MaxPoolGrad(**MaxPool(**general).same()), g, x)[0].tobytes() == dx.tobytes()
    assert np.isnan(y).sum() == 2


@pytest.mark.parametrize("op", [
    MaxPool(kernel_shape=(3, 2), strides=(2, 1), pads=(1, 1, 0, 0)), AveragePool(kernel_shape=(3, 2), strides=(2, 1), pads=(1, 1, 0, 0)),
    AveragePool(kernel_shape=(2, 2), strides=(2, 2), pads=(1, 1, 0, 0), count_include_pad=1), MaxPool(**HALVES), GlobalAveragePool(),
    GlobalMaxPool()])
def test_gradients(op: Op) -> None:
    check_gradient(op, normal(2, 2, 6, 5, dtype="float64"))


def test_second_gradient_of_average() -> None:
    op = AveragePool(kernel_shape=(3, 2), strides=(2, 1), pads=(1, 1, 0, 0))
    y, = op.reference(normal(1, 2, 6, 5, dtype="float64"))
    check_gradient(AveragePoolGrad(shape=(6, 5), **op.same()), normal(*y.shape, dtype="float64"))


@pytest.mark.parametrize("size", [1, 3, 16, 63, 64, 200])
@pytest.mark.parametrize("path", paths.PATHS)
def test_the_largest_of_a_plane_wherever_it_lies(path: str, size: int) -> None:
    with cpu.forced(path):
        for dtype in ("float32", "float64"):
            x = -np.abs(normal(size, 2, size, dtype=dtype)) - 1
            x[np.arange(size), 0, np.arange(size)] = 5.0
            x[np.arange(size), 1, np.arange(size)] = np.nan
            y, = check_kernel(GlobalMaxPool(), x)
            assert (y[:, 0] == 5).all()
            assert np.isnan(y[:, 1]).all()
    least, = check_kernel(GlobalMaxPool(), np.full((1, 1, 70), -np.inf, np.float32))
    assert least == -np.inf


@pytest.mark.parametrize("shape", [(3, 5, 7, 7), (2, 1, 17), (2, 3, 2, 3, 4), (0, 3, 4, 4), (1, 1, 1, 1)])
def test_global_pools(shape: tuple[int, ...]) -> None:
    for dtype in ("float32", "float64"):
        check_kernel(GlobalAveragePool(), normal(*shape, dtype=dtype), rtol=1e-5, atol=1e-6)
        if 0 not in shape:
            check_kernel(GlobalMaxPool(), normal(*shape, dtype=dtype))
    graph, _, results = gradient_graph(GlobalMaxPool(), [normal(*shape)])
    assert results[0] is not None
    if 0 not in shape:
        assert evaluate(graph, {"x0": normal(*shape)}, run_kernel)[results[0].name].shape == shape


@pytest.mark.parametrize(("op", "x", "error", "words"), [
    (MaxPool(kernel_shape=(5, 5)), TensorType("float32", (1, 1, 4, 9)), ShapeError, "larger than spatial axis 0"),
    (MaxPool(kernel_shape=(2,)), TensorType("float32", (1, 1, 4, 9)), ShapeError, "kernel_shape"),
    (MaxPool(kernel_shape=(2, 2), strides=(0, 1)), TensorType("float32", (1, 1, 4, 9)), ShapeError, "strides"),
    (MaxPool(kernel_shape=(2, 2), auto_pad="SAME"), TensorType("float32", (1, 1, 4, 9)), ShapeError, "auto_pad"),
    (AveragePool(kernel_shape=(2, 2, 2)), TensorType("float32", (1, 1, 4, 9, 9)), UnsupportedError, "3 spatial axes"),
    (AveragePool(kernel_shape=(2, 2)), TensorType("int64", (1, 1, 4, 9)), TypeMismatchError, "int64"),
    (GlobalAveragePool(), TensorType("float32", (3, 4)), ShapeError, "spatial"),
    (GlobalMaxPool(), TensorType("float32", (3, 4, 0)), ShapeError, "elements to pool"),
])
def test_errors(op: Op, x: TensorType, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        op.infer(x)


def test_work_counts_taps() -> None:
    x = TensorType("float32", (2, 3, 8, 8))
    op = MaxPool(**HALVES)
    assert op.work([x], op.infer(x)).points == 2 * 3 * 16 * 4
