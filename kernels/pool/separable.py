"""Pools over planes [h, w] of NCHW tensors, one axis after the other: what its columns give for the rows that a row of windows meets, then
that along the row. A window of kh x kw taps so takes kh + kw steps, and all of them run along rows, whatever the width of a plane.

The columns' results lie in rows of scratch memory, framed by what changes no window: the padding needs no tests. There are as many as stay in
the first cache, so that the second step does not wait for what the first one has just stored.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..isa import cpu
from ..isa.vector import Emitter, inlined_code, itemsize, vector, word
from ..machine.call import Work
from ..machine.places import address_of, within
from .planar import PoolWindow

KNOWN = 7
"""Taps up to which a number of them has code of its own: loops over few taps take twice as long."""
WIDE = 4
"""Registers of neighbours that one step takes."""
ROOM = 8 << 10
"""Bytes of rows between both axes."""
SHUFFLED = 4
"""Strides up to which every such element of a row is picked by shuffles; beyond, elements are met one by one."""


def _largest(e: Emitter, best: Any, taps: Sequence[Any]) -> Any:
    """The largest of `best` and one or two taps: an instruction each. Two are asked at once whether one is NaN, as their sum is then; a NaN of
    `best` passes by itself. Which of +0 and -0 comes out is not said, nor which NaN of several.
    """
    found = best
    for tap in taps:
        found = e.b.select(e.b.fcmp_ordered(">", tap, found), tap, found)
    v, w = taps if len(taps) > 1 else (best, taps[0])
    return e.b.select(e.b.fcmp_unordered("uno", v, w), e.b.fadd(v, w), found)


def _sum(e: Emitter, total: Any, taps: Sequence[Any]) -> Any:
    return functools.reduce(e.b.fadd, taps, total)


MEET = {"max": _largest, "sum": _sum, "mean": _sum}
"""How one tap or two are met; a mean is divided by its share."""


class FoldForm(NamedTuple):
    """What of a pool has code of its own; 0: the one for any number."""

    down: int                              # taps of a column
    across: int                            # and of a row
    stride: int                            # along the row


def form_of(p: PoolWindow) -> FoldForm:
    """The form of these windows."""
    def known(taps: int) -> int:
        return taps if taps <= KNOWN else 0
    return FoldForm(known(p.kh), known(p.kw), p.sw if p.sw <= SHUFFLED else 0)


def sizes(lanes: int) -> list[int]:
    """Vector lengths for rows of every length: the register, its half, its quarter, one element."""
    return [n for n in (lanes, lanes // 2, lanes // 4) if n > 1] + [1]


def chunks(e: Emitter, n: Any, lengths: Sequence[int], body: Callable[[Any, int], None], done: Any = 0) -> None:
    """body(i, lanes) over done..n in the longest vectors that fit into 0..n; the last one may overlap its neighbour, so results are written twice."""
    lanes, *shorter = lengths
    if lanes == 1:
        e.loop(done, n, 1, [], lambda i, _: body(i, 1))
        return
    last = e.b.sub(n, word(lanes))
    with e.b.if_else(e.b.icmp_signed(">=", last, word(0))) as (fits, short):
        with fits:
            e.loop(done, n, lanes, [], lambda i, _: body(e.minimum(i, last), lanes))
        with short:
            chunks(e, n, shorter, body, done)


@functools.cache
def fold(kind: str, dtype: str, known: int, stride: int, path: cpu.Cpu) -> Any:
    """The function `fold(rows, count, taps, step, hop, x, x_row, y, y_row, shares)`: y[i] = what x meets at its taps, for i < count.

    Tap t of y[i] lies `i * stride` elements and `t * step` bytes behind x; there is at least one, and `known` of them where that is not 0. For
    `stride` 0 it is `i * hop` bytes. With strides from 2 to SHUFFLED it reads as far as `pitch` says, else only what it meets. x_row, y_row:
    bytes to the next one of `rows` rows. shares: the address of what the elements of y are divided by, for means.
    """
    size, meet = itemsize(dtype), MEET[kind]

    def emit(e: Emitter, rows: Any, count: Any, taps: Any, step: Any, hop: Any, x: Any, x_row: Any, y: Any, y_row: Any, shares: Any) -> None:
        lanes = path.lanes(size)

        def take(at: Any, lanes: int) -> Any:
            if stride < 2 or lanes == 1:
                return e.load(at, vector(dtype, lanes))
            parts = [e.load(e.address(at, k * lanes * size), vector(dtype, lanes)) for k in range(stride)]
            return e.picked(parts, [k * stride for k in range(lanes)])

        def chunk(x: Any, y: Any, i: Any, lanes: int) -> None:
            at = e.address(x, e.times(i, stride * size) if stride else e.b.mul(i, hop))

            def some(number: int, state: Sequence[Any]) -> list[Any]:
                (found, at), met = state, []
                for _ in range(number):
                    met.append(take(at, lanes))
                    at = e.address(at, step)
                return [meet(e, found, met), at]

            state = [take(at, lanes), e.address(at, step)]
            if known:
                for t in range(1, known, 2):
                    state = some(min(2, known - t), state)
            else:
                pairs = e.b.or_(e.b.sub(taps, word(1)), word(1))                 # 1, and pairs of taps as long as there are two
                state = e.loop(1, pairs, 2, state, lambda _, s: some(2, s))
                state = e.loop(pairs, taps, 1, state, lambda _, s: some(1, s))
            found, offset = state[0], e.times(i, size)
            if kind == "mean":
                found = e.b.fdiv(found, e.load(e.address(shares, offset), found.type))
            e.store(found, e.address(y, offset))

        def row(_: Any, state: list[Any]) -> list[Any]:
            x, y = state
            done: Any = word(0)
            for together in [WIDE * lanes, lanes] if stride == 1 else [lanes] if stride else []:
                end = e.b.and_(count, word(-together))
                e.loop(done, end, together, [], lambda i, _, n=together: chunk(x, y, i, n))
                done = end
            chunks(e, count, sizes(lanes)[1:] if stride and lanes > 1 else [1], lambda i, n: chunk(x, y, i, n), done)
            return [e.address(x, x_row), e.address(y, y_row)]
        e.loop(0, rows, 1, [x, y], row)

    return inlined_code(f"tileflow_fold_{kind}_{dtype}_{known}_{stride}_{path.name}", "rows, count, taps, step, hop, x, x_row, y, y_row, shares",
                        path, emit)


def whole(p: Any) -> tuple[int, int]:
    """The rows low..high - 1 of windows p (`PoolWindow`) all of whose taps lie in the plane."""
    low = min(p.oh, (p.top + p.sh - 1) // p.sh)
    return low, max(low, min(p.oh, (p.h - 1 - (p.kh - 1) * p.dh + p.top) // p.sh + 1))


@functools.cache
def columns(kind: str, dtype: str, known: int, path: cpu.Cpu) -> Any:
    """The function `columns(x, rows, first, last, low, high, pitch, p, nothing)`, the first step for windows p.

    x: the address of the plane. rows: the array to which it writes row `first` and those up to `last`, `pitch` elements
    apart, from `p.left` on; `nothing` where a window meets no row. low, high: as `whole` gives them.
    known: `FoldForm.down`.
    """
    size, down, fewer = itemsize(dtype), fold(kind, dtype, known, 1, path), fold(kind, dtype, 0, 1, path)

    def columns(x: int, rows: Any, first: int, last: int, low: int, high: int, pitch: int, p: Any,
                nothing: float) -> None:
        w, row, apart = p.w, first, p.dh * p.w * size
        while row < last:
            start, to = row * p.sh - p.top, (row - first) * pitch + p.left
            if low <= row < high:
                count = min(last, high) - row
                down(count, w, p.kh, apart, 0, x + start * w * size, p.sh * w * size, address_of(rows) + to * size,
                     pitch * size, 0)
                row += count
                continue
            t0, t1 = within(start, p.kh, p.dh, p.h)
            if t0 < t1:
                fewer(1, w, t1 - t0, apart, 0, x + (start + t0 * p.dh) * w * size, 0, address_of(rows) + to * size, 0,
                      0)
            else:
                for i in range(w):
                    rows[to + i] = nothing
            row += 1
    return columns


def pitch(p: PoolWindow, dtype: str, path: cpu.Cpu) -> int:
    """Elements of a row between both axes: padding, elements, and what vectors of outputs read behind them."""
    lanes = path.lanes(itemsize(dtype))
    return max(p.left + p.w, -(-p.ow // lanes) * lanes * p.sw + (p.kw - 1) * p.dw)


def rows(p: PoolWindow, dtype: str, path: cpu.Cpu) -> tuple[Work, int]:
    """Those rows, and their pitch."""
    wide = pitch(p, dtype, path)
    return Work(f"rows {dtype}", (wide * max(1, min(p.oh, ROOM // (wide * itemsize(dtype)))),), dtype), wide


def cost(p: PoolWindow, dtype: str, path: cpu.Cpu) -> float:
    """Nanoseconds of a plane on one core."""
    vectors = itemsize(dtype) / path.vector_bytes
    return 20 + p.oh * (4 + 0.6 * (p.kh * math.ceil(p.w * vectors) + p.kw * math.ceil(p.ow * vectors) * min(p.sw, 4)))
