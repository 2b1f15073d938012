"""Sums of squares of many tensors: exact to the stated bound, the same bits however they are cut, NaN and infinity as they are."""
from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import paths
import pytest
from evaluate import run_kernel

from tileflow.graph import TensorType
from tileflow.kernels.isa import cpu
from tileflow.kernels.squares import BLOCK
from tileflow.ops.squares import SquareSum, SquareSums
from tileflow.system.errors import ShapeError, TypeMismatchError

SIZES = (1, 31, 32, 33, 0, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 77)


def drawn(dtype: str) -> list[Any]:
    rng = np.random.default_rng(3)
    return [(rng.standard_normal(n) * 10.0 ** rng.integers(-4, 4, n)).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype) for n in SIZES]


@pytest.mark.parametrize("path", paths.PATHS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_sums_keep_their_bound_on_every_path(dtype: str, path: str) -> None:
    arrays = drawn(dtype)
    with cpu.forced(path):
        each, = run_kernel(SquareSums(), *arrays)
        total, = run_kernel(SquareSum(), *arrays)
    exact = [math.fsum(float(v) ** 2 for v in a.reshape(-1)) for a in arrays]
    np.testing.assert_allclose(each, exact, rtol=140 * 2.0 ** -53)
    assert total.shape == ()
    assert total == pytest.approx(math.fsum(exact), rel=150 * 2.0 ** -53, abs=0)


def test_neither_paths_nor_neighbours_change_a_bit() -> None:
    arrays = drawn("float32")
    found = []
    for path in cpu.available():
        with cpu.forced(path):
            found.append(run_kernel(SquareSums(), *arrays)[0])
    alone = [run_kernel(SquareSums(), a)[0][0] for a in arrays]
    for other in (*found, np.array(alone)):
        assert other.tobytes() == found[0].tobytes()


def test_what_would_overflow_or_vanish_in_float32_does_not() -> None:
    big, small = np.full(3, 3e38, np.float32), np.full(5, 1e-38, np.float32)
    each, = run_kernel(SquareSums(), big, small)
    np.testing.assert_allclose(each, [3 * float(big[0]) ** 2, 5 * float(small[0]) ** 2], rtol=1e-15)


def test_what_is_not_finite_keeps_its_meaning() -> None:
    ones, infinite, both = np.ones(5000, np.float32), np.ones(5000, np.float32), np.ones(70, np.float32)
    infinite[4999], both[[3, 69]] = -np.inf, (np.inf, np.nan)
    each, = run_kernel(SquareSums(), ones, infinite, both)
    np.testing.assert_array_equal(each, [5000, np.inf, np.nan])
    assert run_kernel(SquareSum(), ones, infinite)[0] == np.inf
    assert np.isnan(run_kernel(SquareSum(), ones, infinite, both)[0])


def test_operands_are_of_one_float_type() -> None:
    f4, f2 = TensorType("float32", (2,)), TensorType("float16", (2,))
    with pytest.raises(TypeMismatchError, match="input 1 is float16 and input 0 float32"):
        SquareSum().infer(f4, f2)
    with pytest.raises(TypeMismatchError, match="input 0 is int64"):
        SquareSums().infer(TensorType("int64", (2,)))
    with pytest.raises(ShapeError, match="at least one tensor"):
        SquareSums().infer()
