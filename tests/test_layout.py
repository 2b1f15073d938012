"""Channels-last forms against the logical ones, the choice between them, whole networks in both."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from evaluate import check_kernel, run_kernel

from tileflow.graph import Op, type_of
from tileflow.kernels import cpu
from tileflow.ops.norm import BatchNormalization, BatchNormalizationGrad

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
    y, mean, _, inverse = check_form(op, x, scale, shift, None, None, rtol=tolerance, atol=tolerance)
    g = rng.standard_normal(shape).astype(dtype)
    check_form(BatchNormalizationGrad(), g, x, scale, mean, inverse, rtol=20 * tolerance, atol=20 * tolerance)


def test_statistics_of_data_far_from_zero() -> None:
    x = (rng.standard_normal((6, 20, 30, 9)) + 3000).astype("f4")
    one, zero = np.ones(20, "f4"), np.zeros(20, "f4")
    op, arrays = form(BatchNormalization(training_mode=1), x, one, zero, None, None)
    y, mean, var, _ = run_kernel(op, *arrays)
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
