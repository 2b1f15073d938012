"""The recurrent weights laid out for their products: panels as wide as a register block, a gate's apart from the next
one's.

Those of bfloat16 are panels of pairs (`gemm/pairs.py`): their terms are even in number.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ..gemm import pairs
from ..gemm.micro import WIDE, columns, outer, strips, transpose
from ..isa import cpu
from ..isa.half import HALVES
from ..isa.vector import itemsize
from ..machine.leaf import Leaf, Numbers
from ..machine.places import address_of


def panel_width(rows: int, dtype: str, path: cpu.Cpu) -> int:
    """Columns of a panel for products of so many rows: a single row takes wider blocks."""
    if dtype in HALVES:
        return pairs.WIDTH
    return WIDE * path.lanes(itemsize(dtype)) if rows == 1 else columns(dtype, path)


def padded(columns: int, width: int) -> int:
    """Columns filled up to whole panels."""
    return -(-columns // width) * width


@dataclass(frozen=True)
class PanelLayout(Numbers):
    """Matrices [k, n], or [n, k] where they are turned, one after the other, and the columns of a panel."""

    n: int
    k: int
    turned: int
    width: int


@functools.cache
def panels_leaf(dtype: str, width: int, path: cpu.Cpu) -> Leaf:
    """Matrices into panels [matrix][panel][k][width], the last of each filled up with zeros. Range: matrices * panels."""
    if dtype in HALVES:
        return _panels_of_pairs(dtype, path)
    cut, turn, size = strips(dtype, width), transpose(dtype), itemsize(dtype)

    def recurrent_panels(weights, packed, s, lo, hi):  # type: ignore[no-untyped-def]
        count = (s.n + width - 1) // width
        for unit in range(lo, hi):
            matrix, j = unit // count, unit % count * width
            wide, source, target = min(width, s.n - j), address_of(weights) + matrix * s.n * s.k * size, unit * s.k * width
            to = address_of(packed) + target * size
            for p in range(s.k if wide < width else 0):
                packed[target + p * width + wide:target + (p + 1) * width] = 0
            if s.turned != 0:
                turn(wide, s.k, source + j * s.k * size, s.k * size, to, width * size)
            else:
                cut(s.k, wide, source + j * size, s.n * size, to, s.k * width * size)

    return Leaf(recurrent_panels, f"{dtype}[:], {dtype}[:], numbers, lo, hi", key=f"{path.name} {width}",
                numbers=PanelLayout)


def _panels_of_pairs(dtype: str, path: cpu.Cpu) -> Leaf:
    """Likewise into [matrix][panel][k / 2][width][2]."""
    woven, turn, width, step = pairs.weave(path), pairs.turned(path), pairs.WIDTH, pairs.STEP

    def recurrent_pairs(weights, packed, s, lo, hi):  # type: ignore[no-untyped-def]
        count = (s.n + width - 1) // width
        for unit in range(lo, hi):
            matrix, j = unit // count, unit % count * width
            wide, to = min(width, s.n - j), unit * s.k * width
            source = address_of(weights) + 2 * matrix * s.n * s.k
            if wide < width:
                packed[to:to + s.k * width] = 0
            if s.turned != 0:
                turn(wide, s.k, source + 2 * j * s.k, 2 * s.k, address_of(packed) + 2 * to, step)
            else:
                woven(s.k, wide, source + 2 * j, 2 * s.n, address_of(packed) + 2 * to, step)

    return Leaf(recurrent_pairs, f"{dtype}[:], {dtype}[:], numbers, lo, hi", key=path.name, numbers=PanelLayout)


@functools.cache
def product(dtype: str, path: cpu.Cpu) -> Any:
    """The function `multiply(m, k, width, a, a_row, panels, apart, count, c, c_row, accumulate)`: C = A [m, k] @ so many panels, or +=.

    Addresses, and strides in bytes: `apart` leads from panel to panel, of which k rows are read. C gets whole panels,
    side by side; that of bfloat16 is float32.
    """
    if dtype in HALVES:
        return _product_of_pairs(path)
    kernel, size = outer(dtype), itemsize(dtype)

    def multiply(m, k, width, a, a_row, panels, apart, count, c, c_row, accumulate):  # type: ignore[no-untyped-def]
        for j in range(count):
            kernel(m, width, k, a, a_row, size, panels + j * apart, width * size, c + j * width * size, c_row, accumulate)

    multiply.__qualname__ = f"recurrent_multiply_{dtype}_{path.name}"
    return multiply


def _product_of_pairs(path: cpu.Cpu) -> Any:
    kernel = pairs.outer(path)

    def multiply(m, k, width, a, a_row, panels, apart, count, c, c_row, accumulate):  # type: ignore[no-untyped-def]
        for j in range(count):
            kernel(m, k // 2, a, a_row, 4, panels + j * apart, c + j * width * 4, c_row, accumulate)

    multiply.__qualname__ = f"recurrent_multiply_pairs_{path.name}"
    return multiply
