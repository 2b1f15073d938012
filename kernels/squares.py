"""Sums of squares of many arrays: what norms over all weights are made of.

Each array is cut into blocks of BLOCK elements. A block is squared and added in float64, in SIDE_BY_SIDE sums that are folded in one order; the
blocks' sums are added in their order. So no number of threads, cut or vector width changes a bit, and arrays of one type are one row
(`runtime/binding` joins the calls).

Squares of elements of up to 32 bits are exact in float64 and can neither overflow nor vanish there, and all are positive: n elements are
summed to within (BLOCK / SIDE_BY_SIDE + log2 SIDE_BY_SIDE + n / BLOCK) * 2**-53 of the sum, 7e-13 for 25 million. One NaN makes the sum NaN, else one
infinity makes it infinite.
"""
from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from .dtypes import ELEMENTS
from .isa import cpu, half
from .isa.vector import Emitter, inlined_code, vector, word
from .machine.call import Call, Const, In, Out, Work
from .machine.leaf import Leaf, leaf
from .sums import folded

BLOCK = 4096
"""Elements of one partial sum."""
SIDE_BY_SIDE = 32
"""Sums side by side: as many as hide the latency of an addition on the widest path."""


@functools.cache
def _kernel(dtype: str, path: cpu.Cpu) -> Any:
    """The function squares(x, n, blocks, y): y[i] = the sum of the squares of block i of the n elements at x."""
    size, kind = ELEMENTS[dtype].bytes, vector("f8", SIDE_BY_SIDE)

    def emit(e: Emitter, x: Any, n: Any, blocks: Any, y: Any) -> None:
        def add(at: Any, total: Any, mask: Any) -> Any:
            value = half.read(e, dtype, at, SIDE_BY_SIDE, mask)
            value = value if value.type == kind else e.b.fpext(value, kind)
            return e.fma(value, value, total)

        def block(i: Any, _nothing: list[Any]) -> None:
            first = e.times(i, BLOCK)
            count, base = e.minimum(e.b.sub(n, first), word(BLOCK)), e.address(x, e.times(first, size))
            whole = e.b.and_(count, word(-SIDE_BY_SIDE))
            total, = e.loop(0, whole, SIDE_BY_SIDE, [ir.Constant(kind, None)],
                            lambda k, sums: [add(e.address(base, e.times(k, size)), sums[0], None)])
            before = e.b.block
            with e.b.if_then(e.b.icmp_signed("<", whole, count)):
                rest = add(e.address(base, e.times(whole, size)), total, e.first(e.b.sub(count, whole), SIDE_BY_SIDE))
                inside = e.b.block
            found = e.b.phi(kind)
            found.add_incoming(total, before)
            found.add_incoming(rest, inside)
            e.store(folded(e, found, e.b.fadd), e.address(y, e.times(i, 8)))
        e.loop(0, blocks, 1, [], block)
    return inlined_code(f"squares_{dtype}_{path.name}", "x, n, blocks, y", path, emit)


@functools.cache
def _squares(dtype: str, path: cpu.Cpu) -> Leaf:
    kernel, size = _kernel(dtype, path), ELEMENTS[dtype].bytes

    def squares(x: Any, y: Any, lo: int) -> None:
        """y[i] = the sum of the squares of block lo + i of x."""
        kernel(x.ctypes.data + lo * BLOCK * size, x.shape[0] - lo * BLOCK, y.shape[0], y.ctypes.data)
    return Leaf(squares, f"{dtype}[:], f8[r], lo", key=f"{BLOCK}, {SIDE_BY_SIDE}")


@leaf("f8[:], i8[:], f8[r], lo")
def segment_sums(x: Any, bounds: Any, y: Any, lo: int) -> None:
    """y[i] = x[bounds[i]] + … + x[bounds[i + 1] - 1], in this order."""
    for i in range(y.shape[0]):
        total = 0.0
        for k in range(bounds[lo + i], bounds[lo + i + 1]):
            total += x[k]
        y[i] = total


def count(n: int) -> int:
    """Blocks of n elements."""
    return -(-n // BLOCK)


def block_call(dtype: str, x: In, n: int, y: Out | Work) -> Call:
    """The Call from the n elements of `x` to the sums of the squares of its blocks, float64 [count(n)]."""
    return Call(_squares(dtype, cpu.current()), (x, y), count(n), 4, 15.0 + n * max(0.05, ELEMENTS[dtype].bytes / 30.0))


def total_call(x: In | Work, bounds: Sequence[int], y: Out) -> Call:
    """The Call that adds blocks bounds[i] to bounds[i + 1] of `x` to element i of `y`."""
    return Call(segment_sums, (x, Const.of(bounds), y), len(bounds) - 1, 64, 20.0 + 1.2 * bounds[-1])


def squares_calls(dtype: str, sizes: Sequence[int], together: bool) -> list[Call]:
    """The Calls that sum the squares of inputs 0, 1, … of `sizes` elements of `dtype`, to one float64 each or, `together`, to one for all."""
    starts = [0, *itertools.accumulate(count(n) for n in sizes)]
    calls = [block_call(dtype, In(i, (n,)), n, Work("squares", (count(n),), "f8", start))
             for i, (n, start) in enumerate(zip(sizes, starts, strict=False)) if n]
    bounds = [0, starts[-1]] if together else starts
    return [*calls, total_call(Work("squares", (max(1, starts[-1]),), "f8"), bounds, Out(0, (len(bounds) - 1,)))]
