"""Softmax and log-softmax against their references, torch and float64; special values; gradients."""
from __future__ import annotations

from typing import Any

import numpy as np
import paths
import pytest
from evaluate import check_gradient, check_gradient_kernels, check_kernel, run_kernel
from peers import needs

from tileflow.graph import TensorType
from tileflow.kernels.isa import cpu
from tileflow.ops.reduce import ReduceMax
from tileflow.ops.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from tileflow.system.errors import ShapeError, TypeMismatchError

rng = np.random.default_rng(3)


@pytest.mark.parametrize("kind", [Softmax, LogSoftmax])
@pytest.mark.parametrize(("shape", "axis"), [
    ((40, 10), -1), ((3, 1), 1), ((5,), 0), ((1, 3000), 1), ((2, 7, 5), 1), ((6, 33), 0), ((2, 3, 4, 5), -3), ((3, 0), 1), ((0, 3), 1),
])
def test_against_references(kind: Any, shape: tuple[int, ...], axis: int) -> None:
    for dtype, tolerance in (("float32", 2e-6), ("float64", 1e-14)):
        x = (rng.standard_normal(shape) * 5).astype(dtype)
        y, = check_kernel(kind(axis=axis), x, rtol=tolerance, atol=tolerance)
        if dtype == "float32" and x.size:
            wanted, = kind(axis=axis).reference(x.astype("float64"))
            np.testing.assert_allclose(y, wanted, rtol=5e-7, atol=3e-7)


@pytest.mark.parametrize("kind", [Softmax, LogSoftmax])
def test_against_torch(kind: Any) -> None:
    torch = needs("torch")
    function = torch.nn.functional.softmax if kind is Softmax else torch.nn.functional.log_softmax
    x = (rng.standard_normal((9, 77)) * 10).astype("float32")
    np.testing.assert_allclose(run_kernel(kind(), x)[0], function(torch.tensor(x), -1).numpy(), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [Softmax, LogSoftmax])
@pytest.mark.parametrize("axis", [0, 1])
def test_special_values(kind: Any, axis: int) -> None:
    x = rng.standard_normal((40, 40)).astype("float32")
    x[1, 2], x[3, 4], x[5, 6] = np.nan, np.inf, -np.inf
    x[7, :], x[8, :], x[9, 3] = -np.inf, 1e38, -1e38
    x[10, 10], x[11, 5] = -3e38, 3e38
    y, = check_kernel(kind(axis=axis), x, rtol=1e-5, atol=1e-5)
    if axis == 1:
        assert np.isnan(y[[1, 3, 7]]).all()
        assert np.isfinite(y[[0, 2, 4, 8, 12]]).all()


@pytest.mark.parametrize("path", paths.PATHS)
def test_every_path(path: str) -> None:
    x = (rng.standard_normal((5, 149)) * 20).astype("float32")
    x[1, 3], x[2, 5] = np.nan, -np.inf
    with cpu.forced(path):
        y, = check_kernel(Softmax(), x, rtol=3e-6, atol=1e-30)
        check_kernel(LogSoftmax(), x, rtol=3e-6, atol=1e-5)
        check_kernel(SoftmaxGrad(), x, y, rtol=1e-4, atol=1e-4)
        check_kernel(ReduceMax(axes=(1,)), x)


@pytest.mark.parametrize(("shape", "axis"), [((3, 4), 1), ((2, 3, 2), 1), ((5,), 0)])
def test_gradients(shape: tuple[int, ...], axis: int) -> None:
    x, g = rng.standard_normal(shape), rng.standard_normal(shape)
    for kind in (Softmax, LogSoftmax):
        check_gradient(kind(axis=axis), x)
        check_gradient_kernels(kind(axis=axis), x.astype("float32"))
    check_gradient(SoftmaxGrad(axis=axis), g, x)
    check_gradient(LogSoftmaxGrad(axis=axis), g, x)


def test_gradient_kernels_on_odd_shapes() -> None:
    for shape, axis in (((40, 10), 1), ((3, 1000), 1), ((2, 17, 9), 1)):
        g, y = (rng.standard_normal(shape).astype("float32") for _ in range(2))
        check_kernel(SoftmaxGrad(axis=axis), g, y, rtol=1e-4, atol=1e-4)
        check_kernel(LogSoftmaxGrad(axis=axis), g, -abs(y), rtol=1e-4, atol=1e-4)


def test_errors() -> None:
    with pytest.raises(ShapeError, match="axis 2 does not exist"):
        Softmax(axis=2).infer(TensorType("float32", (2, 3)))
    with pytest.raises(TypeMismatchError, match="int32"):
        Softmax().infer(TensorType("int32", (2, 3)))


def test_work() -> None:
    t = TensorType("float32", (4, 5))
    assert [a.kind for a in Softmax(axis=0).work([t], [t]).axes] == ["reduce", "parallel"]
