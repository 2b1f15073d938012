"""Laying out the right operand of a product in panels as wide as a register block."""
from __future__ import annotations

import functools
from dataclasses import dataclass

from ..isa import cpu
from ..isa.half import widen_rows, widen_turned
from ..isa.vector import itemsize
from ..machine.leaf import Leaf, Numbers
from ..machine.places import address_of, clear
from . import pairs
from .micro import columns, copy, strips, transpose

TOGETHER = 4
"""Panels that are laid out together: rows of a row-major B are read in pieces this long."""
GROUP, RUN = 8, 64
"""Panels, and rows of them, that are converted together: B is read in longer pieces."""


@dataclass(frozen=True)
class Packing(Numbers):
    """Columns and terms of B that are laid out; elements to the first one, from row to row, from matrix to matrix."""

    n: int
    k: int
    trans_b: int
    at: int
    row: int
    matrix: int


@functools.cache
def pack_leaf(dtype: str, path: cpu.Cpu) -> Leaf:
    """B [matrix] into panels [matrix][panel][k][width], the last filled up with zeros. Range: matrices * groups of TOGETHER panels.

    """
    width, size = columns(dtype, path), itemsize(dtype)
    cut, turn = strips(dtype, width), transpose(dtype)

    def gemm_pack(b, packed, s, lo, hi):  # type: ignore[no-untyped-def]
        n, k, row = s.n, s.k, s.row
        count = (n + width - 1) // width
        groups = (count + TOGETHER - 1) // TOGETHER
        for unit in range(lo, hi):
            j = unit % groups * TOGETHER * width
            wide, source, target = min(TOGETHER * width, n - j), s.at + unit // groups * s.matrix, (unit // groups * count * width + j) * k
            to = address_of(packed) + target * size
            if s.trans_b != 0:
                for q in range(0, wide, width):
                    turn(min(width, wide - q), k, address_of(b) + (source + (j + q) * row) * size, row * size, to + q * k * size, width * size)
            else:
                cut(k, wide, address_of(b) + (source + j) * size, row * size, to, k * width * size)
            rest = wide % width
            for p in range(k if rest else 0):
                clear(to + ((wide - rest) * k + p * width + rest) * size, (width - rest) * size)

    return Leaf(gemm_pack, f"{dtype}[:], {dtype}[:], numbers, lo, hi", key=path.name, numbers=Packing)


@functools.cache
def half_pack_leaf(dtype: str, path: cpu.Cpu, way: str) -> Leaf:
    """B [matrix] into panels [matrix][panel][k][width], the last filled up with zeros, of float32 ("vectors") or float16 ("native"); or
    [matrix][panel][pair][width] of words that are pairs ("pairs").

    `width` is the panels'. Range: matrices * groups of panels.
    """
    straight, turned, size = {"native": lambda: (copy("f2"), transpose("f2"), 2), "pairs": lambda: (pairs.weave(path), pairs.turned(path), 2),
                              "vectors": lambda: (widen_rows(dtype), widen_turned(dtype), 4)}[way]()
    together = 2 if way == "pairs" else 1

    def half_pack(b, packed, width, s, lo, hi):  # type: ignore[no-untyped-def]
        n, k, row, panels = s.n, s.k, s.row, (s.n + width - 1) // width
        groups = (panels + GROUP - 1) // GROUP
        for unit in range(lo, hi):
            first, number = unit % groups * GROUP, unit // groups
            for p in range(0, k, RUN):
                deep = min(RUN, k - p)
                for panel in range(first, min(first + GROUP, panels)):
                    j, target = panel * width, ((number * panels + panel) * (k + k % together) + p) * width
                    count = min(width, n - j)
                    to, source = address_of(packed) + size * target, address_of(b) + 2 * (s.at + number * s.matrix)
                    if count < width:
                        packed[target * size // 4:(target + (deep + deep % together) * width) * size // 4] = 0
                    if s.trans_b != 0:
                        turned(count, deep, source + 2 * (j * row + p), row * 2, to, width * size * together)
                    else:
                        straight(deep, count, source + 2 * (p * row + j), row * 2, to, width * size * together)

    return Leaf(half_pack, f"{dtype}[:], f4[:], i8, numbers, lo, hi", key=f"{path.name} {way}", numbers=Packing)
