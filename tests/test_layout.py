"""Channels-last forms against the logical ones, the choice between them, whole networks in both."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from evaluate import check_kernel, run_kernel

from tileflow.graph import Op, type_of
from tileflow.kernels import cpu
from tileflow.ops.norm import BatchNormalization, BatchNormalizationGrad
from tileflow.ops.pool import AveragePool, AveragePoolGrad, MaxPool, MaxPoolGrad

rng = np.random.default_rng(11)
Array = np.ndarray


def form(op: Op, *arrays: Array | None) -> tuple[Op, list[Array | None]]:
    """The channels-last form of an operator and its operands in that order."""
    types = [None if a is None else type_of(a) for a in arrays]
    last = op.channels_last(types, op.infer(*types))
    assert last is not None
    return last.op, [np.ascontiguousarray(np.moveaxis(a, 1, -1)) if a is not None and turned else a
                     for a, turned in zip(arrays, last.inputs, strict=True)]


def check_form(op: Op, *arrays: Array | None, rtol: float, atol: float = 0.0) -> tuple[Array, ...]:
    """The form's kernels against the operator's reference, on every path; returns the results of the fastest."""
    found = []
    for path in cpu.available():
        with cpu.forced(path):
            found.append(check_kernel(*_flat(form(op, *arrays)), rtol=rtol, atol=atol))
    return found[0]


def _flat(pair: tuple[Op, list[Any]]) -> list[Any]:
    return [pair[0], *pair[1]]


# ---- batch normalisation

@pytest.mark.parametrize("shape", [(4, 3, 5, 7), (1, 8, 40), (2, 130, 3, 11), (3, 257, 1, 1), (1, 64, 90, 70), (2, 1, 1000), (1, 40, 2, 2, 3)])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
def test_batch_norm(shape: tuple[int, ...], dtype: str, tolerance: float) -> None:
    c = shape[1]
    x = (rng.standard_normal(shape) * 2 + 0.5).astype(dtype)
    scale, shift = (rng.random(c) + 0.5).astype(dtype), rng.standard_normal(c).astype(dtype)
    op = BatchNormalization(training_mode=1, epsilon=1e-3)
    _, mean, _, inverse = check_form(op, x, scale, shift, None, None, rtol=tolerance, atol=tolerance)
    g = rng.standard_normal(shape).astype(dtype)
    check_form(BatchNormalizationGrad(), g, x, scale, mean, inverse, rtol=20 * tolerance, atol=20 * tolerance)


def test_statistics_of_data_far_from_zero() -> None:
    x = (rng.standard_normal((6, 20, 30, 9)) + 3000).astype("f4")
    one, zero = np.ones(20, "f4"), np.zeros(20, "f4")
    op, arrays = form(BatchNormalization(training_mode=1), x, one, zero, None, None)
    _, mean, var, _ = run_kernel(op, *arrays)
    wide = x.astype("f8")
    np.testing.assert_allclose(mean, wide.mean((0, 2, 3)), rtol=1e-7)
    np.testing.assert_allclose(var, wide.var((0, 2, 3)), rtol=1e-5)


def test_a_channel_that_is_not_finite_stays_alone() -> None:
    x = rng.standard_normal((2, 5, 4, 4)).astype("f4")
    x[0, 1, 2, 3], x[1, 3, 0, 0] = np.nan, np.inf
    op, arrays = form(BatchNormalization(training_mode=1), x, np.ones(5, "f4"), np.zeros(5, "f4"), None, None)
    y = run_kernel(op, *arrays)[0]
    assert np.isnan(y[..., [1, 3]]).all()
    assert np.isfinite(y[..., [0, 2, 4]]).all()


# ---- pools

POOLS: list[dict[str, Any]] = [
    dict(kernel_shape=(2, 2), strides=(2, 2)),
    dict(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    dict(kernel_shape=(3, 2), strides=(1, 3), pads=(2, 0, 1, 1), ceil_mode=1),
    dict(kernel_shape=(2, 3), strides=(3, 4)),
]


def tied(shape: tuple[int, ...], dtype: str) -> Array:
    """Few different numbers, so that elements of a window tie; NaN and infinities."""
    x = rng.integers(-2, 3, shape).astype(dtype)
    x.reshape(-1)[::37], x.reshape(-1)[5::41], x.reshape(-1)[9::53] = np.nan, -np.inf, np.inf
    return x


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(("dtype", "channels"), [("float32", 3), ("float32", 45), ("float64", 17)])
def test_max_pool(pool: dict[str, Any], dtype: str, channels: int) -> None:
    x = tied((2, channels, 9, 11), dtype)
    y, = check_form(MaxPool(**pool), x, rtol=0)
    g = rng.standard_normal(np.moveaxis(y, -1, 1).shape).astype(dtype)
    check_form(MaxPoolGrad(**pool), g, x, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize(("dtype", "channels"), [("float32", 3), ("float32", 45), ("float64", 17)])
def test_average_pool(pool: dict[str, Any], count: int, dtype: str, channels: int) -> None:
    x = rng.standard_normal((2, channels, 9, 11)).astype(dtype)
    y, = check_form(AveragePool(**pool, count_include_pad=count), x, rtol=1e-5, atol=1e-6)
    g = rng.standard_normal(np.moveaxis(y, -1, 1).shape).astype(dtype)
    check_form(AveragePoolGrad(**pool, count_include_pad=count, shape=(9, 11)), g, rtol=1e-5, atol=1e-6)


def test_pools_of_one_axis_and_of_nothing() -> None:
    pool: dict[str, Any] = dict(kernel_shape=(3,), strides=(2,), pads=(1, 1))
    x = tied((2, 8, 12), "float32")
    check_form(MaxPool(**pool), x, rtol=0)
    check_form(MaxPoolGrad(**pool), np.ones((2, 8, 6), "f4"), x, rtol=0)
    check_form(AveragePool(**pool), np.nan_to_num(x, posinf=1, neginf=1), rtol=1e-6)
    check_form(MaxPool(**pool), x[:0], rtol=0)
    check_form(MaxPoolGrad(**pool), np.ones((2, 0, 6), "f4"), x[:, :0], rtol=0)


def test_what_a_byte_or_a_step_cannot_tell_has_no_form() -> None:
    x = type_of(np.zeros((1, 2, 40, 40), "f4"))
    for op in (MaxPool(kernel_shape=(16, 16)), MaxPool(kernel_shape=(2, 2), dilations=(2, 1)), MaxPool(kernel_shape=(2, 2), indices=True)):
        assert op.channels_last([x], op.infer(x)) is None
