"""Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011) and dropout.

A number depends only on its key (seed, stream) and its counter (element, micro-batch), so a recomputed or split pass, a
resumed run or another schedule draws the same ones. Element i takes word i % 4 of the block with counter
(i // 4 low, i // 4 high, micro-batch, seed high) and key (seed low, stream).
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from .isa import cpu
from .isa.half import HALVES, narrow, read, summed
from .isa.vector import ELEMENTS, INT32, WORD, Emitter, inlined_code, itemsize, word
from .machine.leaf import Leaf, generic

U4, U8 = np.uint32, np.uint64
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
LOW = 0xFFFFFFFF
BLOCKS = 8                # counters computed side by side, one to a 64-bit lane
UNIT = 4 * BLOCKS         # elements of one unit of range
SPAN = 64                 # elements whose words `span_bits` draws together


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Counters [n, 4] uint32 to random [n, 4] uint32."""
    c0, c1, c2, c3 = (counter[:, i].astype(U8) for i in range(4))
    m0, m1 = map(U8, MULTIPLIERS)
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = m0 * c0, m1 * c2
        c0, c1, c2, c3 = (p1 >> U8(32)) ^ c1 ^ U8(k0), p1 & U8(LOW), (p0 >> U8(32)) ^ c3 ^ U8(k1), p0 & U8(LOW)
        k0, k1 = (k0 + WEYL[0]) & LOW, (k1 + WEYL[1]) & LOW
    return np.stack([c0, c1, c2, c3], 1).astype(U4)


def uniform_bits(n: int, seed: int, stream: int, micro: int) -> np.ndarray:
    """The random uint32 of elements 0..n-1 (the NumPy twin of what the kernels draw)."""
    block = np.arange(-(-n // 4), dtype=U8)
    counter = np.empty((block.size, 4), U4)
    counter[:, 0], counter[:, 1] = block & U8(LOW), block >> U8(32)
    counter[:, 2], counter[:, 3] = micro & LOW, seed >> 32 & LOW
    return philox(counter, (seed & LOW, stream & LOW)).reshape(-1)[:n]


def position_bits(n: int, start: int, seed: int, stream: int, count: int) -> np.ndarray:
    """The random uint32 of the elements at positions start..start+n-1, start a multiple of SPAN (the NumPy twin of `span_bits`)."""
    at = start + np.arange(-(-n // SPAN) * SPAN, dtype=U8)
    block = at // U8(SPAN) * U8(SPAN // 4) + at % U8(SPAN // 4)
    counter = np.empty((at.size, 4), U4)
    counter[:, 0], counter[:, 1] = block & U8(LOW), block >> U8(32)
    counter[:, 2], counter[:, 3] = count & LOW, seed >> 32 & LOW
    word = (at % U8(SPAN) // U8(SPAN // 4)).astype(np.int64)
    return philox(counter, (seed & LOW, stream & LOW))[np.arange(at.size), word][:n]


def threshold(ratio: float) -> int:
    """For 0 < ratio < 1: an element is dropped where its random uint32 lies below this, a share `ratio` of them."""
    return min(max(round(ratio * 2 ** 32), 1), LOW)


def _philox(e: Emitter, block: Any, seed: Any, micro: Any, stream: Any) -> list[Any]:
    """Four vectors of BLOCKS uint32: the words of the blocks from `block` on."""
    b, kind = e.b, ir.VectorType(WORD, BLOCKS)

    def constant(number: int) -> Any:
        return ir.Constant(kind, [number] * BLOCKS)

    def splat(x: Any) -> Any:
        return e.splat(x, BLOCKS)

    low, shift = constant(LOW), constant(32)
    block = b.add(splat(block), ir.Constant(kind, list(range(BLOCKS))))
    c0, c1 = b.and_(block, low), b.lshr(block, shift)
    c2, c3 = splat(b.and_(micro, word(LOW))), splat(b.lshr(seed, word(32)))
    keys = [b.and_(seed, word(LOW)), b.and_(stream, word(LOW))]
    for _ in range(ROUNDS):
        p0, p1 = b.mul(c0, constant(MULTIPLIERS[0])), b.mul(c2, constant(MULTIPLIERS[1]))
        k0, k1 = map(splat, keys)
        c0, c1, c2, c3 = (b.xor(b.xor(b.lshr(p1, shift), c1), k0), b.and_(p1, low),
                          b.xor(b.xor(b.lshr(p0, shift), c3), k1), b.and_(p0, low))
        keys = [b.and_(b.add(k, word(w)), word(LOW)) for k, w in zip(keys, WEYL, strict=True)]
    return [b.trunc(c, ir.VectorType(INT32, BLOCKS)) for c in (c0, c1, c2, c3)]


def span_bits(e: Emitter, span: Any, seed: Any, count: Any, stream: int, to: Any) -> None:
    """Write the random uint32 of the SPAN elements from position SPAN * span on to the address `to`: element j has word j // 16 of the
    block 16 * span + j % 16, so that vectors of any width lie side by side."""
    for half in range(0, SPAN // 4, BLOCKS):
        block = e.b.add(e.times(span, SPAN // 4), word(half))
        for k, words in enumerate(_philox(e, block, seed, count, word(stream))):
            e.store(words, e.address(to, 4 * (k * (SPAN // 4) + half)))


def _draw(e: Emitter, unit: Any, seed: Any, micro: Any, stream: Any) -> list[Any]:
    """The random words of the UNIT elements from UNIT * unit on: two vectors of UNIT / 2 uint32, in order."""
    words = _philox(e, e.times(unit, BLOCKS), seed, micro, stream)
    even, odd = (e.shuffle(words[i], words[i + 1], list(range(2 * BLOCKS))) for i in (0, 2))
    order = [[block + BLOCKS * (w % 2) + 2 * BLOCKS * (w // 2) for block in range(start, start + BLOCKS // 2) for w in range(4)]
             for start in (0, BLOCKS // 2)]
    return [e.shuffle(even, odd, picks) for picks in order]


def _kept(put: Callable[..., None]) -> Callable[..., None]:
    """Emit a loop over units lo..hi of n elements that calls put(emitter, first element, which are kept, mask)."""
    def emit(e: Emitter, lo: Any, hi: Any, n: Any, seed: Any, micro: Any, stream: Any, below: Any, *rest: Any) -> None:
        half = UNIT // 2
        limit = e.splat(e.b.trunc(below, INT32), half)

        def unit(i: Any, masked: bool) -> None:
            for k, words in enumerate(_draw(e, i, seed, micro, stream)):
                first = e.address(e.times(i, UNIT), k * half)
                mask = e.first(e.b.sub(n, first), half) if masked else None
                put(e, first, e.b.icmp_unsigned(">=", words, limit), mask, *rest)
        whole = e.minimum(hi, e.b.udiv(n, word(UNIT)))             # masks cost as much as drawing does: only the last unit has them
        e.loop(lo, whole, 1, [], lambda i, _: unit(i, False))
        e.loop(e.b.select(e.b.icmp_signed("<", lo, whole), whole, lo), hi, 1, [], lambda i, _: unit(i, True))
    return emit


def random_bits() -> Leaf:
    """y flat (uint32); range: units of UNIT elements; seed, micro-batch, stream."""
    return _random_bits(cpu.current())


@functools.cache
def _random_bits(path: cpu.Cpu) -> Leaf:
    def put(e: Emitter, lo: Any, hi: Any, n: Any, seed: Any, micro: Any, stream: Any, y: Any) -> None:
        half = UNIT // 2

        def unit(i: Any, masked: bool) -> None:
            for k, words in enumerate(_draw(e, i, seed, micro, stream)):
                first = e.address(e.times(i, UNIT), k * half)
                e.store(words, e.address(y, e.times(first, 4)), e.first(e.b.sub(n, first), half) if masked else None)
        whole = e.minimum(hi, e.b.udiv(n, word(UNIT)))
        e.loop(lo, whole, 1, [], lambda i, _: unit(i, False))
        e.loop(e.b.select(e.b.icmp_signed("<", lo, whole), whole, lo), hi, 1, [], lambda i, _: unit(i, True))
    kernel = inlined_code(f"random_bits_{path.name}", "lo, hi, n, seed, micro, stream, y", path, put)

    def random_bits(y: Any, lo: int, hi: int, seed: int, micro: int, stream: int) -> None:
        kernel(lo, hi, y.shape[0], seed, micro, stream, y.ctypes.data)
    return Leaf(random_bits, "u4[:], lo, hi, i8, i8, i8")


@generic("T[:,:], T[:,:], i8[:,:], lo, hi")
def first_above(totals: Any, marks: Any, y: Any, lo: int, hi: int) -> None:
    """y[b, s] = the first place of totals[b], which ascend, that is above marks[b, s], or the last; a unit of range is one (b, s)."""
    n, count = totals.shape[1], marks.shape[1]
    for unit in range(lo, hi):
        row, s = unit // count, unit % count
        mark, low, high = marks[row, s], 0, n - 1
        while low < high:
            middle = (low + high) // 2
            if totals[row, middle] > mark:
                high = middle
            else:
                low = middle + 1
        y[row, s] = low


def dropout(dtype: str) -> Leaf:
    """x, y flat; range: units of UNIT elements; seed, micro-batch, stream, threshold, the scale's bits."""
    return _dropout(dtype, cpu.current())


@functools.cache
def _dropout(dtype: str, path: cpu.Cpu) -> Leaf:
    element = ELEMENTS[summed(dtype)]
    kind = ir.VectorType(element, UNIT // 2)

    def put(e: Emitter, first: Any, kept: Any, mask: Any, scale: Any, x: Any, y: Any) -> None:
        """y = x * scale where kept, 0 elsewhere; 16-bit elements are multiplied in float32 and rounded once."""
        bits = scale if itemsize(dtype) == 8 else e.b.trunc(scale, INT32)
        factor = e.splat(e.b.bitcast(bits, element), UNIT // 2)
        offset = e.times(first, itemsize(dtype))
        value = e.b.select(kept, e.b.fmul(read(e, dtype, e.address(x, offset), UNIT // 2, mask), factor), ir.Constant(kind, None))
        e.store(narrow(e, dtype, value) if dtype in HALVES else value, e.address(y, offset), mask)
    kernel = inlined_code(f"dropout_{dtype}_{path.name}", "lo, hi, n, seed, micro, stream, below, scale, x, y", path, _kept(put))

    def dropout(x: Any, y: Any, lo: int, hi: int, seed: int, micro: int, stream: int, below: int, scale: int) -> None:
        kernel(lo, hi, y.shape[0], seed, micro, stream, below, scale, x.ctypes.data, y.ctypes.data)
    return Leaf(dropout, f"{dtype}[:], {dtype}[:], lo, hi, i8, i8, i8, i8, i8")


def dropout_mask() -> Leaf:
    """y flat (bool as bytes); range: units of UNIT elements; seed, micro-batch, stream, threshold."""
    return _dropout_mask(cpu.current())


@functools.cache
def _dropout_mask(path: cpu.Cpu) -> Leaf:
    byte = ir.IntType(8)

    def put(e: Emitter, first: Any, kept: Any, mask: Any, y: Any) -> None:
        e.store(e.b.zext(kept, ir.VectorType(byte, UNIT // 2)), e.address(y, first), mask)
    kernel = inlined_code(f"dropout_mask_{path.name}", "lo, hi, n, seed, micro, stream, below, y", path, _kept(put))

    def dropout_mask(y: Any, lo: int, hi: int, seed: int, micro: int, stream: int, below: int) -> None:
        kernel(lo, hi, y.shape[0], seed, micro, stream, below, y.ctypes.data)
    return Leaf(dropout_mask, "u1[:], lo, hi, i8, i8, i8, i8")
