"""Sums and products of short runs, to the bit: the order of what is combined is written down here again, in NumPy."""
from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from evaluate import normal
from paths import PATHS

from tileflow.kernels.isa import cpu
from tileflow.kernels.machine.leaf import Leaf
from tileflow.kernels.sums import BLOCK, NARROW, WIDE, block_dot, block_product, block_sum, row_dot

LENGTHS = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65, 97, 127, 128, 511, 512, 513, 1000, 1537)
Array = np.ndarray


def in_lanes(combine: Callable[[Array, Array], Array], start: int, terms: Array) -> Any:
    """`start` and all terms, as `sums` combines them."""
    wide, narrow, n = WIDE // terms.itemsize, NARROW // terms.itemsize, terms.size
    if n < narrow:
        total = terms.dtype.type(start)
        for x in terms:
            total = combine(total, x)
        return total
    lanes, most = np.full(wide, start, terms.dtype), n // narrow * narrow
    for i in range(0, n // wide * wide, wide):
        lanes = combine(lanes, terms[i:i + wide])
    while lanes.size > narrow:
        lanes = combine(*np.split(lanes, 2))
    for i in range(n // wide * wide, most, narrow):
        lanes = combine(lanes, terms[i:i + narrow])
    if most < n:
        rest = np.full(narrow, start, terms.dtype)
        rest[narrow - n + most:] = terms[most:]
        lanes = combine(lanes, rest)
    while lanes.size > 1:
        lanes = combine(*np.split(lanes, 2))
    return lanes[0]


def sums(x, y, found, rows):                                                      # type: ignore[no-untyped-def]
    found[0], found[1], found[2] = block_sum(x), block_product(x), block_dot(x, y)
    rows[0] = row_dot(x, y)


def whole(x, found):                                                              # type: ignore[no-untyped-def]
    found[0], found[1] = block_sum(x), block_product(x)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_floats_are_combined_in_one_order(path: str, dtype: str) -> None:
    with cpu.forced(path):
        leaf = Leaf(sums, f"{dtype}[:], {dtype}[:], {dtype}[:], f8[:]", key=inspect.getsource(sums))
        for n in LENGTHS:
            x, y = 1 + normal(n, dtype=dtype) / 64, normal(n, dtype=dtype, seed=1)
            found, rows = np.empty(3, dtype), np.empty(1)
            leaf(x, y, found, rows)
            blocks = [in_lanes(np.add, 0, (x * y)[i:i + BLOCK]) for i in range(0, n, BLOCK)]
            wanted = [in_lanes(np.add, 0, x), in_lanes(np.multiply, 1, x), in_lanes(np.add, 0, x * y)]
            np.testing.assert_array_equal(found, np.array(wanted, dtype), err_msg=str(n))
            assert rows[0] == sum(map(float, blocks))


@pytest.mark.parametrize("dtype", ["i1", "i4", "u8"])
def test_integers_wrap(dtype: str) -> None:
    leaf = Leaf(whole, f"{dtype}[:], {dtype}[:]", key=inspect.getsource(whole))
    for n in LENGTHS:
        x, found = np.random.default_rng(n).integers(0, 99, n).astype(dtype) | 1, np.empty(2, dtype)
        leaf(x, found)
        np.testing.assert_array_equal(found, [x.sum(dtype=dtype), x.prod(dtype=dtype)], err_msg=str(n))


def test_numbers_that_are_not_finite_are_told() -> None:
    leaf = Leaf(whole, "f4[:], f4[:]", key=inspect.getsource(whole))
    for n in (3, 40, 97):
        for value in (np.nan, np.inf, -np.inf):
            x, found = np.ones(n, "f4"), np.empty(2, "f4")
            x[n - 2] = value
            leaf(x, found)
            np.testing.assert_array_equal(found, [value, value])


def test_what_lies_apart_is_refused() -> None:
    """By its type: a column, or two axes. A row is summed."""
    def column(x, found):                                                         # type: ignore[no-untyped-def]
        found[0] = block_sum(x[:, 0])

    def both(x, found):                                                           # type: ignore[no-untyped-def]
        found[0] = block_sum(x)

    def row(x, found):                                                            # type: ignore[no-untyped-def]
        found[0] = block_sum(x[1])

    x, found = np.arange(6, dtype="f4").reshape(2, 3), np.empty(1, "f4")
    for body, said in ((column, "nothing over words"), (both, "contiguous arrays of one axis and one type")):
        with pytest.raises(TypeError, match=said):
            Leaf(body, "f4[:,:], f4[:]", key=inspect.getsource(body))(x, found)
    Leaf(row, "f4[:,:], f4[:]", key=inspect.getsource(row))(x, found)
    assert found[0] == 12
