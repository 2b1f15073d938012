"""The tile way of a product: operands split into bfloat16 parts, products of parts summed by the tile unit in float32.

A first call lays B out in panels of 32 columns; a weight's panels can be kept. The second walks blocks of C: it lays out the block of A in
the worker's scratch and runs the register kernel over pairs of panels. Sums are restarted every DEPTH terms, which keeps their
error below that of one chain of float32.

What cannot be split (infinities, NaN, magnitudes near either end of the range) is found while packing. A block of A meets B's panels in tiles only if
all of them can; else that block, for those DEPTH terms, is done with vectors. Blocks lie where they lie for any number of threads,
and so do the results. For this B's panels serve both: one with such numbers holds them as they were, the others are put together again.
"""
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..isa import cpu
from ..isa.amx import SIDE, TERMS, TILE, closer, opener, parts_of, product
from ..isa.half import widen_rows, widen_turned
from ..isa.vector import itemsize
from ..machine.call import Call, In, Out, Work
from ..machine.leaf import Leaf
from ..machine.places import address_of
from .micro import copy, outer, transpose
from .problem import MORE
from .split import LARGEST, LARGEST_PRODUCT, SCALE, STAGE, deposit, most, packer, peek, poke, restore

DEPTH = 512
"""Terms that are summed in tiles before the sum is added to C."""
GROUP = 8
"""Panels of B laid out together: their rows are read 8 * 32 columns at a time."""
LINE = 64
HEADER = 128
FLOPS_PER_NS = {6: 290.0, 4: 430.0, 3: 480.0, 1: 900.0}
"""Rough speed of one core by number of products, for the cost estimates of calls."""
SHORTEST = {6: 40, 4: 24, 3: 26, 1: 20}
"""By number of products, the harmonic mean of m and n (half of it) from which tiles save more than splitting costs."""
PRODUCTS = {"highest": 6, "high": 3, "medium": 1}


def products(dtype: str, path: cpu.Cpu) -> int:
    """bfloat16 products for each product of elements: as the precision says for float32, all (they are exact) for 16-bit numbers."""
    return {"f4": PRODUCTS[path.precision], "f2": 4, "b2": 1}[dtype]


def pays(m: int, n: int, k: int, count: int, packed: bool = False) -> bool:
    """Whether C [m, n] of sums over k is faster in tiles than in vectors, with `count` products; `packed`: B is laid out already.

    Tiles save time in proportion to m * n * k, splitting takes time in proportion to (m + n) * k.
    """
    if k < 2 * TERMS or min(m, n) < 8:
        return False
    return m * n >= SHORTEST[count] * (m if packed else m + n)


def blocks(m: int, n: int) -> tuple[int, int]:
    """Rows and columns of the blocks of C: A's block stays in the second-level cache, and there are 16 blocks if n is wide enough."""
    down = max(1, -(-m // 128))
    rows = -(-m // (down * SIDE)) * SIDE
    across = max(-(-n // 1024), min(-(-16 // down), max(1, n // (4 * SIDE))))
    return rows, -(-n // (across * SIDE)) * SIDE


def step_bytes(dtype: str, path: cpu.Cpu) -> int:
    """Bytes of a block of B: 32 terms x 32 columns. There is room for float32 numbers."""
    return max(2, parts_of(products(dtype, path))) * 2 * TILE


def header_bytes(k: int) -> int:
    """Bytes before a panel's blocks: the largest magnitude for each DEPTH terms. A panel is a whole number of words for each column."""
    return -(-4 * -(-k // DEPTH) // HEADER) * HEADER


def panel_bytes(dtype: str, path: cpu.Cpu, k: int) -> int:
    """Bytes of a packed panel of B: 32 columns, k terms."""
    return header_bytes(k) + -(-k // TERMS) * step_bytes(dtype, path)


SEEN, TEMPORARY, SPARE = STAGE, STAGE + GROUP * LINE, STAGE + GROUP * LINE + SIDE * SIDE * 4
"""Places in the scratch of a worker: stage, largest magnitudes, a block of products, a panel of B as float32, the block of A."""
LEFT = SPARE + DEPTH * SIDE * 4
SKEW = 64


def scratch_bytes(dtype: str, path: cpu.Cpu, rows: int) -> int:
    """Bytes of scratch for blocks of `rows` rows: A's parts, or A as float32."""
    tall = -(-rows // SIDE) * SIDE
    parts = tall * DEPTH * 2 * parts_of(products(dtype, path))
    return LEFT + max(parts, max(tall * (DEPTH * 4 + SKEW), DEPTH * (tall * 4 + SKEW)) if dtype != "f4" else 0)


def left_as_float(dtype: str) -> Any:
    """The function (height, deep, a, a_row, a_k, scratch) -> (address, row, k) strides: a block of A as float32, copied unless it is."""
    if dtype == "f4":
        def stay(height, deep, a, a_row, a_k, scratch):  # type: ignore[no-untyped-def]
            return a, a_row, a_k
        return stay
    convert = widen_rows(dtype)

    def widened(height, deep, a, a_row, a_k, scratch):  # type: ignore[no-untyped-def]
        if a_k == 2:
            row = DEPTH * 4 + SKEW
            convert(height, deep, a, a_row, scratch, row)
            return scratch, row, 4
        row = height * 4 + SKEW
        convert(deep, height, a, a_k, scratch, row)
        return scratch, 4, row
    return widened


def tile_run(dtype: str) -> Any:
    """The function that computes one run of at most DEPTH terms of a block of C (float32), on the current path, whose tiles are open.

    run(height, width, deep, a, a_row, a_k, b, marks, panel, c, c_row, adding, scratch): addresses and byte strides; `b` is the run's first
    block in the panel of the first column, `marks` that panel's largest magnitude for the run, and `panel` bytes lead to the next panel.
    The sum is added to C where `adding` is not 0.
    """
    path = cpu.current()
    count = products(dtype, path)
    parts = parts_of(count)
    a_step, b_step, limit, scaled = parts * 2 * TILE, step_bytes(dtype, path), LARGEST[dtype], SCALE[dtype] != 1
    tall, short = product(count, 2), product(count, 1)
    pack, put, back, kernel, as_float = packer(dtype, parts, True), deposit(dtype), restore(dtype, parts), outer("f4"), left_as_float(dtype)

    def fits(first: int, second: int) -> bool:
        near = scaled and (first >> 23) + (second >> 23) - 254 > LARGEST_PRODUCT
        return first < limit and second < limit and not near

    def run(height, width, deep, a, a_row, a_k, b, marks, panel, c, c_row, adding, base):  # type: ignore[no-untyped-def]
        blocks, left = (deep + TERMS - 1) // TERMS, base + LEFT
        for i in range(16):
            poke(base + SEEN + 4 * i, 0)
        pack(height, deep, a, a_row, a_k, left, blocks * a_step, a_step, base + SEEN, 0, base)
        largest = 0
        for q in range(0, width, SIDE):
            largest = max(largest, peek(marks + q // SIDE * panel))
        if fits(most(base + SEEN), largest):
            for q in range(0, width, SIDE):
                for i in range(0, height, SIDE):
                    at = left + i // SIDE * blocks * a_step
                    if height - i > 16:
                        tall(blocks, at, a_step, b + q // SIDE * panel, b_step, base + TEMPORARY, 4 * SIDE)
                    else:
                        short(blocks, at, a_step // 2, b + q // SIDE * panel, b_step, base + TEMPORARY, 4 * SIDE)
                    put(min(SIDE, height - i), min(SIDE, width - q), base + TEMPORARY, c + i * c_row + 4 * q, c_row, adding)
        else:
            rows, row, term = as_float(height, deep, a, a_row, a_k, left)
            for q in range(0, width, SIDE):
                source = b + q // SIDE * panel
                if peek(marks + q // SIDE * panel) < limit:
                    for t in range(blocks):
                        back(source + t * b_step, base + SPARE + t * TERMS * SIDE * 4)
                    source = base + SPARE
                kernel(height, min(SIDE, width - q), deep, rows, row, term, source, SIDE * 4, c + 4 * q, c_row, adding)

    return run


def tile_block(dtype: str) -> Any:
    """The function that computes a block of C (float32) from A and packed panels of B, on the current path.

    block(height, width, k, depth, a, a_row, a_k, b, b_col, c, c_row, flags, scratch): addresses and byte strides; `b` is the panel of
    the block's first column, 32 * b_col bytes lead to the next; C holds a sum already where `flags` has MORE.
    """
    begin, end, run, b_step = opener(), closer(), tile_run(dtype), step_bytes(dtype, cpu.current())

    def block(height, width, k, depth, a, a_row, a_k, b, b_col, c, c_row, flags, scratch):  # type: ignore[no-untyped-def]
        base, first = np.intp(scratch), b + (4 * ((k + DEPTH - 1) // DEPTH) + HEADER - 1) // HEADER * HEADER
        begin(0)
        for p in range(0, k, DEPTH):
            run(height, width, min(DEPTH, k - p), a + p * a_k, a_row, a_k, first + p // TERMS * b_step, b + 4 * (p // DEPTH), SIDE * b_col,
                c, c_row, int(p + (flags & MORE) > 0), base)
        end(0)

    return block


def pack_units(n: int, k: int, matrices: int) -> int:
    """Units of the range of `pack_leaf`."""
    return matrices * -(-k // DEPTH) * -(-n // (GROUP * SIDE))


def pack_call(dtype: str, path: cpu.Cpu, b: In | Work, packed: Out | Work, n: int, k: int, trans_b: bool, start: int, row: int, matrix: int,
              matrices: int, into: int = 0) -> Call:
    """The call that lays out columns and terms of B, from element `start` of each of its matrices on, `into` bytes behind the start of
    `packed`; strides are elements."""
    scratch = Work("tile_pack", (LEFT // 4,), "f4")
    return Call(pack_leaf(dtype, path), [b, packed, scratch, n, k, int(trans_b), panel_bytes(dtype, path, k), start, row, matrix, into],
                n=pack_units(n, k, matrices), cost=0.25 * matrices * n * k)


@functools.cache
def pack_leaf(dtype: str, path: cpu.Cpu) -> Leaf:
    """B [matrix] into panels [matrix][panel]. Range: matrices, then groups of panels, then runs of DEPTH terms.

    `at`, `row` and `matrix` are elements: to the first one packed, from row to row, from matrix to matrix.
    """
    size, parts, limit = itemsize(dtype), parts_of(products(dtype, path)), LARGEST[dtype]
    step = step_bytes(dtype, path)
    pack = packer(dtype, parts, False)
    along, across = (copy(dtype), transpose(dtype)) if dtype == "f4" else (widen_rows(dtype), widen_turned(dtype))

    def tile_pack(b, packed, scratch, n, k, trans_b, panel, at, row, matrix, into, lo, hi):  # type: ignore[no-untyped-def]
        runs, groups, panels = (k + DEPTH - 1) // DEPTH, (n + GROUP * SIDE - 1) // (GROUP * SIDE), (n + SIDE - 1) // SIDE
        header, stage = (4 * runs + HEADER - 1) // HEADER * HEADER, address_of(scratch)
        for unit in range(lo, hi):
            run, g, number = unit % runs, unit // runs % groups, unit // (runs * groups)
            j, p = g * GROUP * SIDE, run * DEPTH
            lines, deep = min(GROUP * SIDE, n - j), min(DEPTH, k - p)
            first = at + number * matrix + (j * row + p if trans_b != 0 else p * row + j)
            source, line, term = address_of(b) + first * size, row * size if trans_b != 0 else size, size if trans_b != 0 else row * size
            top = address_of(packed) + into + (number * panels + g * GROUP) * panel
            target = top + header + p // TERMS * step
            for i in range(GROUP * 16):
                poke(stage + SEEN + 4 * i, 0)
            pack(lines, deep, source, line, term, target, panel, step, stage + SEEN, LINE, stage)
            for q in range((lines + SIDE - 1) // SIDE):
                largest, to, columns = most(stage + SEEN + q * LINE), target + q * panel, min(SIDE, lines - q * SIDE)
                poke(top + q * panel + 4 * run, largest)
                if largest >= limit and trans_b != 0:
                    across(columns, deep, source + q * SIDE * line, line, to, SIDE * 4)
                elif largest >= limit:
                    along(deep, columns, source + q * SIDE * line, term, to, SIDE * 4)

    element = "f4" if dtype == "f4" else "u2"
    return Leaf(tile_pack, f"{element}[:], f4[:], f4[w,:]" + ", i8" * 8 + ", lo, hi", key=f"{dtype}-{path}")
