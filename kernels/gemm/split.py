"""Numbers as sums of bfloat16 parts, laid out in tiles; and the way back.

A float32 x is the sum of three parts of 8 bits each: the part nearest to x (halves rounded up, by integer arithmetic), the part nearest to
what is left, and what is left then, exactly (Henry, Tang, Heinecke, arXiv:1904.06376). A float16 is the sum of two parts, a
bfloat16 is its own part. float32 numbers are multiplied by SCALE first and products by its inverse squared: the tile unit takes
denormal numbers for zero, and so scaled neither the parts of the smallest float32 nor their products come near them. What is too large
for that (LARGEST), infinite or NaN is for the caller to find, from the largest magnitude that packing reports.

A 32-bit word of a tile holds terms i (low half) and 16 + i (high half) of a block of 32: two vectors of terms become a vector of words
without a shuffle, and A and B agree.
"""
from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir

from ..isa import cpu
from ..isa.amx import ROW, ROWS, SIDE, TERMS, TILE
from ..isa.half import read
from ..isa.inlined import over_words
from ..isa.vector import ELEMENTS, Emitter, inlined_code, itemsize, vector, word
from .micro import copy, transpose

SCALE_BITS = 24
SCALE = {"f4": 2.0 ** SCALE_BITS, "f2": 1.0, "b2": 1.0}
"""What elements are multiplied by while they are split."""
LARGEST = {"f4": (127 + 127 - SCALE_BITS) << 23, "f2": 0xFF << 23, "b2": 0x7FFFFFFF}
"""Magnitudes (bits of the float32) from which a number cannot be split. A bfloat16 always can."""
LARGEST_PRODUCT = 127 - 2 * SCALE_BITS - 2 - 9
"""Most that the exponents of the largest A and the largest B may add up to, for sums of 512 products to stay finite."""
WHOLE = {"f2": 2, "f4": 3, "b2": 1}
"""Parts that make up an element exactly."""


def _parts(e: Emitter, x: Any, parts: int, exact: bool) -> list[Any]:
    """Words whose upper halves are the parts of the float32 x; the lower halves hold rests. `exact`: the last part needs no rounding."""
    words = ir.VectorType(ELEMENTS["i4"], x.type.count)
    half, upper = (ir.Constant(words, [n] * words.count) for n in (0x8000, -1 << 16))
    found = []
    for i in range(parts):
        u = e.b.bitcast(x, words)
        if i + 1 < parts or not exact:
            u = e.b.add(u, half)
        found.append(u)
        if i + 1 < parts:
            x = e.b.fsub(x, e.b.bitcast(e.b.and_(u, upper), x.type))
    return found


def _pair(e: Emitter, low: Any, high: Any) -> Any:
    """The upper half of each word of `high` above that of `low`."""
    upper, shift = (ir.Constant(low.type, [n] * low.type.count) for n in (-1 << 16, 16))
    return e.b.or_(e.b.lshr(low, shift), e.b.and_(high, upper))


def _split(dtype: str, parts: int, path: cpu.Cpu) -> Any:
    """One tile of each part: 16 rows of 16 words, the word's terms lying `half` bytes apart."""
    lanes, size = path.lanes(4), itemsize(dtype)
    words, exact, scale = vector("i4", lanes), parts >= WHOLE[dtype], SCALE[dtype]
    magnitude = ir.Constant(words, [0x7FFFFFFF] * lanes)

    def emit(e: Emitter, source: Any, row: Any, half: Any, target: Any, part: Any, seen: Any) -> None:
        def line(i: Any, state: list[Any]) -> list[Any]:
            largest = state[0]
            for j in range(0, ROWS, lanes):
                at, pair = e.address(source, e.b.mul(row, i), j * size), []
                for place in (at, e.address(at, half)):
                    x = read(e, dtype, place, lanes)
                    u = e.b.and_(e.b.bitcast(x, words), magnitude)
                    largest = e.b.select(e.b.icmp_signed(">", u, largest), u, largest)
                    if scale != 1:
                        x = e.b.fmul(x, ir.Constant(x.type, [scale] * lanes))
                    pair.append(_parts(e, x, parts, exact))
                for p, (low, high) in enumerate(zip(*pair, strict=True)):
                    e.store(_pair(e, low, high), e.address(target, e.times(part, p), e.times(i, ROW), 4 * j))
            return [largest]

        e.store(e.loop(0, ROWS, 1, [e.load(seen, words)], line)[0], seen)
    return emit


def _restore(dtype: str, parts: int, path: cpu.Cpu) -> Any:
    """Rows of 32 float32 from a block of B's parts."""
    lanes = path.lanes(4)
    words, floats = vector("i4", lanes), vector("f4", lanes)
    upper, shift, back = ir.Constant(words, [-1 << 16] * lanes), ir.Constant(words, [16] * lanes), ir.Constant(floats, [1 / SCALE[dtype]] * lanes)

    def emit(e: Emitter, source: Any, target: Any) -> None:
        def row(i: Any, _state: list[Any]) -> None:
            for j in range(0, SIDE, lanes):
                at = e.address(source, e.times(i, ROW), j // ROWS * TILE + j % ROWS * 4)
                values = [e.load(e.address(at, p * 2 * TILE), words) for p in reversed(range(parts))]
                for shown, first in ((lambda v: e.b.shl(v, shift), 0), (lambda v: e.b.and_(v, upper), ROWS)):
                    total = e.b.bitcast(shown(values[0]), floats)
                    for value in values[1:]:
                        total = e.b.fadd(total, e.b.bitcast(shown(value), floats))
                    e.store(e.b.fmul(total, back), e.address(target, e.times(e.address(i, first), 4 * SIDE), 4 * j))
        e.loop(0, ROWS, 1, [], row)
    return emit


def _deposit(dtype: str, path: cpu.Cpu) -> Any:
    """C[i, j] = or += the block of products [32, 32], their scale taken back."""
    lanes = path.lanes(4)
    floats = vector("f4", lanes)
    back = ir.Constant(floats, [SCALE[dtype] ** -2] * lanes)

    def emit(e: Emitter, m: Any, n: Any, block: Any, c: Any, c_row: Any, accumulate: Any) -> None:
        masks = [e.first(e.b.sub(n, word(j)), lanes) for j in range(0, SIDE, lanes)]
        adding = e.splat(e.b.icmp_signed("!=", accumulate, word(0)), lanes)

        def row(i: Any, _state: list[Any]) -> None:
            at, to = e.address(block, e.times(i, 4 * SIDE)), e.address(c, e.b.mul(i, c_row))
            for number, mask in enumerate(masks):
                value, place = e.load(e.address(at, 4 * lanes * number), floats), e.address(to, 4 * lanes * number)
                sums = e.load(place, floats, e.b.and_(mask, adding))
                e.store(e.b.fadd(sums, e.b.fmul(value, back) if SCALE[dtype] != 1 else value), place, mask)
        e.loop(0, m, 1, [], row)
    return emit


@functools.cache
def _kernel(kind: str, dtype: str, parts: int, path: cpu.Cpu) -> Any:
    parameters, emit = {
        "split": ("source, row, half, target, part, seen", _split(dtype, parts, path)),
        "restore": ("source, target", _restore(dtype, parts, path)),
        "deposit": ("m, n, block, c, c_row, accumulate", _deposit(dtype, path)),
    }[kind]
    return inlined_code(f"tileflow_split_{kind}_{dtype}_{parts}_{path.name}", parameters, path, emit)


def restore(dtype: str, parts: int) -> Any:
    """The function `restore(source, target)`: 32 rows of 32 float32 from the packed block of B at `source`.

    The numbers are those that were split, or their sums of `parts` parts where these are fewer than it takes.
    """
    return _kernel("restore", dtype, parts, cpu.current())


def deposit(dtype: str) -> Any:
    """The function `deposit(m, n, block, c, c_row, accumulate)`: C [m, n] = or += the products [32, 32] of split numbers."""
    return _kernel("deposit", dtype, 1, cpu.current())


@over_words(1)
def peek(b: Any, address: Any) -> Any:
    """The unsigned 32-bit word at an address."""
    return b.zext(b.load(b.inttoptr(address, ELEMENTS["i4"].as_pointer()), align=4), ir.IntType(64))


@over_words(2)
def poke(b: Any, address: Any, value: Any) -> None:
    """Write a 32-bit word."""
    b.store(b.trunc(value, ELEMENTS["i4"]), b.inttoptr(address, ELEMENTS["i4"].as_pointer()), align=4)


def _clear(address: int, nbytes: int) -> None:
    for at in range(0, nbytes, 4):
        poke(address + at, 0)


def most(seen: int) -> int:
    """The largest of the 16 words at `seen`."""
    found = 0
    for i in range(16):
        found = max(found, peek(seen + 4 * i))
    return found


EDGE = TERMS * ROWS * 4
STAGE = EDGE + 3 * TILE
"""Bytes of the staging area of `packer`: the elements of a tile at the edge, and tiles to be transposed."""


@functools.cache
def _packer(dtype: str, parts: int, left: bool, path: cpu.Cpu) -> Any:
    split, move, turn, size = _kernel("split", dtype, parts, path), copy("f4" if dtype == "f4" else "f2"), transpose("f4"), itemsize(dtype)

    def tile(lines: int, deep: int, source: int, line: int, term: int, first: int, p: int, to: int, part: int, seen: int, stage: int) -> None:
        count, terms = min(ROWS, lines - first), min(TERMS, deep - p)
        at = source + first * line + p * term
        whole = count == ROWS and terms == TERMS
        if term == size:
            row, half = line, ROWS * size
            if not whole:
                row = TERMS * size
                _clear(stage, size * ROWS * TERMS)
                move(max(0, count), terms, at, line, stage, row)
                at = stage
        else:
            row, half = term, ROWS * term
            if not whole:
                row, half = ROWS * size, ROWS * ROWS * size
                _clear(stage, size * ROWS * TERMS)
                move(terms, max(0, count), at, term, stage, row)
                at = stage
        if (term == size) == left:
            split(at, row, half, to, part, seen)
        else:                                                     # the parts of a word move together
            turned = stage + EDGE
            split(at, row, half, turned, TILE, seen)
            for i in range(parts):
                turn(ROWS, ROWS, turned + i * TILE, ROW, to + i * part, ROW)

    def pack(lines: int, deep: int, source: int, line: int, term: int, target: int, panel: int, step: int, seen: int, seen_step: int,
             stage: int) -> None:
        groups, blocks = (lines + SIDE - 1) // SIDE, (deep + TERMS - 1) // TERMS
        for number in range(groups * blocks):
            g, p = (number // blocks, number % blocks) if term == size else (number % groups, number // groups)
            wide = 1 if left and lines - g * SIDE <= ROWS else 2
            to = target + g * panel + p * (step // 2 if wide == 1 else step)
            for t in range(wide):
                tile(lines, deep, source, line, term, g * SIDE + t * ROWS, p * TERMS, to + t * TILE, wide * TILE, seen + g * seen_step, stage)

    return pack


def packer(dtype: str, parts: int, left: bool) -> Any:
    """The function `pack(lines, deep, source, line, term, target, panel, step, seen, seen_step, stage)`.

    Lays out A (`left`; its lines are rows) or B (its lines are columns) in tiles: element (line i, term k) lies at
    source + i * line + k * term, one of the strides being an element's size. 32 lines make a panel, `panel` bytes after the one
    before; 32 terms make a block, `step` bytes after the one before in its panel: its parts, largest first, each of two tiles of 16
    lines. A last panel of A with 16 lines or less has one tile for each part, and blocks of half the bytes. What is missing is
    zero. The 16 words at seen + number of the panel * seen_step become the largest magnitudes (bits of the float32), lane by lane,
    that they and the panel hold. `stage` is the address of STAGE free bytes.
    """
    return _packer(dtype, parts, left, cpu.current())
