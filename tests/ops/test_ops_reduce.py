"""Reductions against NumPy and torch; accuracy of long sums; special values; gradients."""
from __future__ import annotations

from typing import Any

import numpy as np
import paths
import pytest
from evaluate import check_gradient, check_gradient_kernels, check_kernel, run_kernel
from peers import needs

from tileflow.graph import TensorType
from tileflow.kernels.isa import cpu
from tileflow.ops.reduce import ArgMax, ArgMin, ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum
from tileflow.system.errors import ShapeError, TypeMismatchError

rng = np.random.default_rng(2)
NUMPY: dict[Any, Any] = {ReduceSum: np.sum, ReduceMean: np.mean, ReduceMax: np.max, ReduceMin: np.min}
KINDS = list(NUMPY)

SHAPES = [
    ((5,), (0,)), ((3, 700), (1,)), ((700, 3), (0,)), ((40, 8, 33), (0, 2)), ((2, 3, 4, 5), (1, 3)), ((2, 3, 4, 5), (0, 2)),
    ((100000,), None), ((50000, 3), (0,)), ((3, 2100), (0,)), ((2, 3), ()), ((1, 4, 1), (0, 2)), ((), None), ((3, 1), (-1,)),
    ((2, 40000, 2, 1), (-3,)),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_against_numpy(kind: Any, shape: tuple[int, ...], axes: tuple[int, ...] | None) -> None:
    x = rng.standard_normal(shape).astype("float32")
    for keepdims in (0, 1):
        op = kind(axes=axes, keepdims=keepdims, noop_with_empty_axes=int(axes == ()))
        exact = kind in (ReduceMax, ReduceMin)
        y, = check_kernel(op, x, rtol=0 if exact else 3e-6, atol=0 if exact else 2e-4 if x.size > 10000 else 1e-5)
        wanted = NUMPY[kind](x.astype("float64"), axis=axes, keepdims=bool(keepdims))
        assert y.shape == wanted.shape
        np.testing.assert_allclose(y, wanted, rtol=3e-6, atol=2e-4 if x.size > 10000 else 1e-5)


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0,), (2, 0, 3)])
def test_empty_axes(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, "float32")
    for kind in KINDS:
        for axes in [None, (0,), (-1,)]:
            check_kernel(kind(axes=axes), x)
    assert run_kernel(ReduceSum(), x)[0].item() == 0
    assert np.isnan(run_kernel(ReduceMean(), x)[0].item())
    assert run_kernel(ReduceMax(), x)[0].item() == -np.inf


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_integer_sums_wrap(dtype: str) -> None:
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, (50, 70), dtype, endpoint=True)
    for axes in [(0,), (1,), None]:
        check_kernel(ReduceSum(axes=axes), x)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64", "float64"])
def test_best_of_other_types(dtype: str) -> None:
    x = (rng.standard_normal((30, 40)) * 100).astype("int64").astype(dtype)
    for op in (ReduceMax(axes=(0,)), ReduceMin(axes=(1,)), ReduceMax(axes=())):
        check_kernel(op, x)


def test_long_sums_are_as_accurate_as_pairwise() -> None:
    x = (rng.random(1_000_003) + 1).astype("float32")
    exact = np.sum(x, dtype=np.longdouble)
    assert abs(run_kernel(ReduceSum(), x)[0].item() - exact) <= abs(np.sum(x) - exact) + np.spacing(np.float32(exact))
    y, = run_kernel(ReduceSum(axes=(0,)), x[:999_999].reshape(-1, 3))
    np.testing.assert_allclose(y[0], np.sum(x[:999_999].reshape(-1, 3), 0, dtype=np.float64), rtol=2e-7)


@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_special_values(axes: tuple[int, ...]) -> None:
    x = rng.standard_normal((40, 40)).astype("float32")
    x[3, :], x[:, 7] = np.nan, np.nan
    x[20, 9], x[30, 9], x[21, 10], x[22, 11] = np.inf, -np.inf, np.inf, -np.inf
    for kind in KINDS:
        check_kernel(kind(axes=axes), x, rtol=1e-5, atol=1e-5)
    zeros = np.full((2, 20), -np.inf, "float32")
    check_kernel(ReduceMax(axes=axes), zeros)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "axes"), [((3, 4), (1,)), ((2, 3, 4), (0, 2)), ((5,), None), ((2, 3), ())])
def test_gradients(kind: Any, shape: tuple[int, ...], axes: tuple[int, ...] | None) -> None:
    for keepdims in (0, 1):
        op = kind(axes=axes, keepdims=keepdims, noop_with_empty_axes=int(axes == ()))
        check_gradient(op, rng.standard_normal(shape))
        check_gradient_kernels(op, rng.standard_normal(shape).astype("float32"))


def test_ties_share_the_gradient_as_torch_does() -> None:
    torch = needs("torch")
    from evaluate import evaluate, gradient_graph
    x = np.array([[1.0, 3, 3], [2, 2, 2], [5, 1, 0]])
    graph, grads, (dx,) = gradient_graph(ReduceMax(axes=(1,), keepdims=0), [x])
    t = torch.tensor(x, requires_grad=True)
    torch.amax(t, 1).backward(torch.tensor(grads[0]))
    assert dx is not None
    np.testing.assert_allclose(evaluate(graph, {"x0": x})[dx.name], t.grad.numpy(), rtol=1e-12)


def test_errors() -> None:
    with pytest.raises(ShapeError, match="axis 2 does not exist"):
        ReduceSum(axes=(2,)).infer(TensorType("float32", (2, 3)))
    with pytest.raises(TypeMismatchError, match="int32"):
        ReduceMean().infer(TensorType("int32", (2, 3)))


def test_work() -> None:
    t = TensorType("float32", (4, 5, 6))
    work = ReduceSum(axes=(1,), keepdims=0).work([t], [TensorType("float32", (4, 6))])
    assert work.flops == 120
    assert [a.kind for a in work.axes] == ["parallel", "reduce", "parallel"]
    assert work.outputs[0].dims == ("a", "c")


@pytest.mark.parametrize(("shape", "axes"), [((5,), (0,)), ((3, 70), (1,)), ((70, 3), (0,)), ((2, 3, 4), (0, 2)), ((0, 3), (0,)), ((40000,), None)])
def test_products(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> None:
    own = np.random.default_rng(7)
    x = (1 + 0.1 * own.standard_normal(shape)).astype("float32")
    rounding = 1e-5 if x.size < 1000 else 1e-4            # n products in another order: about sqrt(n) roundings apart
    check_kernel(ReduceProd(axes=axes), x if x.size < 1000 else 1 + x / 1e4, rtol=rounding)
    check_kernel(ReduceProd(axes=axes), own.integers(-9, 9, shape))


def test_gradient_of_products_with_zeros() -> None:
    x = np.array([[1.0, 2, 3], [0, 2, 3], [0, 0, 3], [-1, 2, 0]])
    check_gradient(ReduceProd(axes=(1,), keepdims=0), x)
    check_gradient(ReduceProd(), x)
    check_gradient(ReduceProd(axes=(), noop_with_empty_axes=1), x)


@pytest.mark.parametrize("kind", [ArgMax, ArgMin])
@pytest.mark.parametrize(("shape", "axis"), [((7,), 0), ((40, 10), 1), ((10, 40), 0), ((2, 5, 3), -2), ((0, 4), 1), ((3, 1), 1), ((2, 1500), 0)])
def test_index_of_best(kind: Any, shape: tuple[int, ...], axis: int) -> None:
    for x in (rng.integers(0, 4, shape).astype("float32"), rng.integers(0, 4, shape)):
        for last in (0, 1):
            check_kernel(kind(axis=axis, keepdims=last, select_last_index=last), x)
    if x.size > 20:
        y = rng.standard_normal(shape).astype("float32")
        y[y > 1] = np.nan
        check_kernel(kind(axis=axis), y)
        check_kernel(kind(axis=axis, select_last_index=1), y)


@pytest.mark.parametrize("path", paths.PATHS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_index_of_best_along_rows(dtype: str, path: str) -> None:
    own = np.random.default_rng(3)
    with cpu.forced(path):
        for shape in ((67, 80), (3, 1), (40, 10), (2, 16), (5, 1003)):
            ties = own.integers(-2, 2, shape).astype(dtype)                      # zeros of either sign are equal
            ties[ties == 0] = own.choice([0.0, -0.0], int((ties == 0).sum()))
            rare = own.standard_normal(shape).astype(dtype)
            rare[rare > 1.5] = np.nan
            rare[0], rare[-1, -1] = -np.inf, np.nan
            for x in (ties, rare, -ties, np.full(shape, np.inf, dtype), np.full(shape, np.nan, dtype)):
                for kind in (ArgMax, ArgMin):
                    for last in (0, 1):
                        check_kernel(kind(axis=1, select_last_index=last), x)


def test_nothing_has_no_best() -> None:
    with pytest.raises(ShapeError, match="empty"):
        ArgMax().infer(TensorType("float32", (0, 3)))
