"""Pooling over channels-last images [n, h, w, channels]: maximum, average, their gradients, means of whole images.

Vectors run over channels. A forward unit of range is a row of outputs; a backward one is a row of inputs, each element of which
gathers from the windows that meet it in their order, so nothing is added to memory twice. A winner is stored as its tap's number in
one byte. NaN is larger than every number; of equal elements (NaNs among them) the first tap wins.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from ..isa import cpu, mathlib
from ..isa.half import borrowed
from ..isa.vector import ELEMENTS, Emitter, inlined_code, itemsize, vector, word
from ..machine.call import Call, In, Out, Work
from ..machine.leaf import Leaf
from ..machine.places import address_of, within
from ..streamed import own_form
from .average import taps_within
from .planar import AverageWindow, PoolWindow

NOBODY = 255
"""The winner of a window that meets no element, as in `max_pool`. Pools of as many taps have no form here."""
WIDE = 4
"""Registers of channels that one step takes."""
BYTE = ir.IntType(8)


# ---- vector code at one output or input ---------------------------------------------------------------------------------------------

def _channels(e: Emitter, dtype: str, count: Any, body: Callable[[Any, int, Any], None]) -> None:
    """body(first channel, lanes, mask) in steps of WIDE registers, then of one, the last masked."""
    lanes = e.path.lanes(itemsize(dtype))
    whole = e.b.and_(count, word(-WIDE * lanes))
    e.loop(0, whole, WIDE * lanes, [], lambda j, _: body(j, WIDE * lanes, None))
    e.loop(whole, count, lanes, [], lambda j, _: body(j, lanes, e.first(e.b.sub(count, j), lanes)))


def _grid(e: Emitter, rows: Any, columns: Any, bases: Sequence[Any], row_steps: Sequence[Any], column_steps: Sequence[Any],
          carried: Sequence[Any], body: Callable[[list[Any], list[Any]], Sequence[Any]]) -> list[Any]:
    """body(places, carried) -> carried at each cell of a grid, in row-major order."""
    def row(_: Any, state: list[Any]) -> list[Any]:
        starts, values = state[:len(bases)], state[len(bases):]

        def cell(_: Any, state: list[Any]) -> list[Any]:
            at, values = state[:len(bases)], state[len(bases):]
            return [*map(e.b.add, at, column_steps), *body(at, values)]
        return [*map(e.b.add, starts, row_steps), *e.loop(0, columns, 1, [*starts, *values], cell)[len(bases):]]
    return e.loop(0, rows, 1, [*bases, *carried], row)[len(bases):]


def _best(dtype: str, winners: bool) -> Callable[..., None]:
    size = itemsize(dtype)

    def emit(e: Emitter, channels: Any, rows: Any, columns: Any, x: Any, x_row: Any, x_column: Any, tap: Any, tap_row: Any, y: Any,
             where: Any) -> None:
        """The largest of rows x columns taps from x on, and its tap: the first one's number is `tap`, `tap_row` leads to the next row's."""
        def step(j: Any, lanes: int, mask: Any) -> None:
            kind, offset = vector(dtype, lanes), e.times(j, size)
            places = ir.VectorType(ir.IntType(8 * size), lanes)

            def number(at: Any) -> Any:
                return e.splat(e.b.trunc(at, places.element) if size < 8 else at, lanes)

            def meet(at: list[Any], state: list[Any]) -> list[Any]:
                v = e.load(e.address(at[0], offset), kind, mask)
                larger = e.b.and_(e.b.fcmp_unordered(">", v, state[0]), e.b.fcmp_ordered("ord", state[0], state[0]))
                found = [e.b.select(larger, v, state[0])]
                return [*found, e.b.select(larger, number(at[1]), state[1])] if winners else found
            first = [e.load(e.address(x, offset), kind, mask), *([number(tap)] if winners else [])]
            best = _grid(e, rows, columns, [x, tap], [x_row, tap_row], [x_column, word(1)], first, meet)
            e.store(best[0], e.address(y, offset), mask)
            if winners:
                e.store(e.b.trunc(best[1], ir.VectorType(BYTE, lanes)), e.address(where, j), mask)
        _channels(e, dtype, channels, step)
    return emit


def _won(dtype: str) -> Callable[..., None]:
    size = itemsize(dtype)

    def emit(e: Emitter, channels: Any, rows: Any, columns: Any, g: Any, g_row: Any, g_column: Any, where: Any, where_row: Any,
             where_column: Any, tap: Any, tap_row: Any, tap_column: Any, dx: Any) -> None:
        """The sum of g over the windows whose winner is this element, which is tap number `tap` of the first one."""
        def step(j: Any, lanes: int, mask: Any) -> None:
            kind, offset = vector(dtype, lanes), e.times(j, size)
            zero, wide = mathlib.constant(kind, 0.0), ir.VectorType(ir.IntType(8 * size), lanes)

            def meet(at: list[Any], state: list[Any]) -> list[Any]:
                winner = e.b.zext(e.load(e.address(at[1], j), ir.VectorType(BYTE, lanes), mask), wide)
                number = e.splat(e.b.trunc(at[2], wide.element) if size < 8 else at[2], lanes)
                share = e.load(e.address(at[0], offset), kind, mask)
                return [e.b.fadd(state[0], e.b.select(e.b.icmp_unsigned("==", winner, number), share, zero))]
            total = _grid(e, rows, columns, [g, where, tap], [g_row, where_row, tap_row], [g_column, where_column, tap_column], [zero], meet)
            e.store(total[0], e.address(dx, offset), mask)
        _channels(e, dtype, channels, step)
    return emit


def _mean(dtype: str) -> Callable[..., None]:
    size = itemsize(dtype)

    def emit(e: Emitter, channels: Any, rows: Any, columns: Any, x: Any, x_row: Any, x_column: Any, count: Any, y: Any) -> None:
        """y = the sum of rows x columns taps over `count`."""
        def step(j: Any, lanes: int, mask: Any) -> None:
            kind, offset = vector(dtype, lanes), e.times(j, size)
            divisor = e.splat(e.b.sitofp(count, ELEMENTS[dtype]), lanes)
            total, = _grid(e, rows, columns, [x], [x_row], [x_column], [mathlib.constant(kind, 0.0)],
                           lambda at, state: [e.b.fadd(state[0], e.load(e.address(at[0], offset), kind, mask))])
            e.store(e.b.fdiv(total, divisor), e.address(y, offset), mask)
        _channels(e, dtype, channels, step)
    return emit


def _shares(dtype: str) -> Callable[..., None]:
    size = itemsize(dtype)

    def emit(e: Emitter, channels: Any, rows: Any, columns: Any, g: Any, g_row: Any, g_column: Any, counts: Any, counts_row: Any,
             dx: Any) -> None:
        """dx = the sum over windows of g over the window's count; counts are of `dtype`, one per window."""
        def step(j: Any, lanes: int, mask: Any) -> None:
            kind, offset = vector(dtype, lanes), e.times(j, size)

            def meet(at: list[Any], state: list[Any]) -> list[Any]:
                share = e.b.fdiv(e.load(e.address(at[0], offset), kind, mask), e.splat(e.load(at[1], ELEMENTS[dtype]), lanes))
                return [e.b.fadd(state[0], share)]
            total, = _grid(e, rows, columns, [g, counts], [g_row, counts_row], [g_column, word(size)], [mathlib.constant(kind, 0.0)], meet)
            e.store(total, e.address(dx, offset), mask)
        _channels(e, dtype, channels, step)
    return emit


def _hidden(dtype: str) -> Callable[..., None]:
    def emit(e: Emitter, channels: Any, y: Any) -> None:
        """y = -infinity: what a window without elements has."""
        _channels(e, dtype, channels, lambda j, lanes, mask: e.store(
            mathlib.constant(vector(dtype, lanes), float("-inf")), e.address(y, e.times(j, itemsize(dtype))), mask))
    return emit


_EMIT: dict[str, tuple[str, Callable[[str], Callable[..., None]]]] = {
    "hidden": ("channels, y", _hidden),
    "best": ("channels, rows, columns, x, x_row, x_column, tap, tap_row, y, where", lambda dtype: _best(dtype, False)),
    "winner": ("channels, rows, columns, x, x_row, x_column, tap, tap_row, y, where", lambda dtype: _best(dtype, True)),
    "won": ("channels, rows, columns, g, g_row, g_column, where, where_row, where_column, tap, tap_row, tap_column, dx", _won),
    "mean": ("channels, rows, columns, x, x_row, x_column, count, y", _mean),
    "shares": ("channels, rows, columns, g, g_row, g_column, counts, counts_row, dx", _shares),
}


@functools.cache
def _at(kind: str, dtype: str, path: cpu.Cpu) -> Any:
    parameters, emitter = _EMIT[kind]
    return inlined_code(f"pool_last_{kind}_{dtype}_{path.name}", parameters, path, emitter(dtype))


# ---- leaves ----------------------------------------------------------------------------------------------------------------------

def _met(at: int, kernel: int, stride: int, before: int, windows: int) -> tuple[int, int]:
    """The windows first..last - 1 that meet element `at` of an axis (no dilation)."""
    first = max(0, (at + before - kernel + stride) // stride)
    return first, max(first, min(windows, (at + before) // stride + 1))


def _form(dtype: str, own: Sequence[str], make: Callable[[tuple[str, ...]], Leaf], arrays: Sequence[int], backward: bool) -> Any:
    """`Leaf.narrowed` of a leaf whose parameters `arrays` are the one that is read, several rows at a time, and the one that is written."""
    def room(args: Sequence[Any]) -> int:
        p = args[4]
        rows, wide, other = (-(-p.kh // p.sh), p.ow, p.w) if backward else ((p.kh - 1) * p.dh + 1, p.w, p.ow)
        return int(args[0].shape[1] * 2 * max(rows * wide, other))
    return own_form(make, arrays, 3, room) if dtype == "f4" and not any(own) else None


@functools.cache
def _max_pool(dtype: str, path: cpu.Cpu, winners: bool, own: tuple[str, ...] = ("", "")) -> Leaf:
    """`own`: the 16-bit types in which x and y lie, if they do."""
    best, hide, size = _at("winner" if winners else "best", dtype, path), _at("hidden", dtype, path), itemsize(dtype)
    (take, _, _), (_, place, give) = (borrowed(dtype, letter) for letter in own)

    def max_pool_last(x, y, where, spare, p, lo, hi):  # type: ignore[no-untyped-def]
        h, w, oh, ow, kh, kw, dh, dw = p.h, p.w, p.oh, p.ow, p.kh, p.kw, p.dh, p.dw
        channels = x.shape[1]
        pixel = channels * size
        for unit in range(lo, hi):
            image, oy = unit // oh, unit % oh
            start = oy * p.sh - p.top
            t0, t1 = within(start, kh, dh, h)
            met, line = (image * h + start + t0 * dh) * w * channels, ow * channels
            rows = take(x, met, ((t1 - t0 - 1) * dh + 1) * w * channels if t1 > t0 else 0, spare, 0)
            to = place(y, unit * line, line, spare, spare.shape[0] // 2)
            for ox in range(ow):
                left = ox * p.sw - p.left
                u0, u1 = within(left, kw, dw, w)
                if t1 > t0 and u1 > u0:
                    best(channels, t1 - t0, u1 - u0, rows + (left + u0 * dw) * pixel, dh * w * pixel, dw * pixel,
                         t0 * kw + u0, kw, to + ox * pixel, address_of(where) + unit * line + ox * channels)
                else:
                    hide(channels, to + ox * pixel)
                    if winners:
                        for c in range(channels):
                            where[unit * ow + ox, c] = NOBODY
            give(y, unit * line, line, spare, spare.shape[0] // 2)

    x, y = (letter or dtype for letter in own)
    return Leaf(max_pool_last, f"{x}[:,:], {y}[:,:], u1[:,:], {dtype}[w,:], numbers, lo, hi",
                key=f"{path.name} {winners}", numbers=PoolWindow,
                narrowed=_form(dtype, own, lambda letters: _max_pool(dtype, path, winners, letters), (0, 1), False))


@functools.cache
def _max_unpool(dtype: str, path: cpu.Cpu, own: tuple[str, ...] = ("", "")) -> Leaf:
    """`own`: the 16-bit types in which g and dx lie, if they do."""
    won, size = _at("won", dtype, path), itemsize(dtype)
    (take, _, _), (_, place, give) = (borrowed(dtype, letter) for letter in own)

    def max_unpool_last(g, where, dx, spare, p, lo, hi):  # type: ignore[no-untyped-def]
        h, w, oh, ow, kh, kw, sh, sw, channels = p.h, p.w, p.oh, p.ow, p.kh, p.kw, p.sh, p.sw, dx.shape[1]
        pixel = channels * size
        for unit in range(lo, hi):
            image, iy = unit // h, unit % h
            r0, r1 = _met(iy, kh, sh, p.top, oh)
            met, line = (image * oh + r0) * ow, w * channels
            rows = take(g, met * channels, (r1 - r0) * ow * channels, spare, 0)
            to = place(dx, unit * line, line, spare, spare.shape[0] // 2)
            for ix in range(w):
                c0, c1 = _met(ix, kw, sw, p.left, ow)
                tap = (iy + p.top - r0 * sh) * kw + ix + p.left - c0 * sw
                won(channels, r1 - r0, c1 - c0, rows + c0 * pixel, ow * pixel, pixel, address_of(where) + (met + c0) * channels,
                    ow * channels, channels, tap, -sh * kw, -sw, to + ix * pixel)
            give(dx, unit * line, line, spare, spare.shape[0] // 2)

    g, dx = (letter or dtype for letter in own)
    return Leaf(max_unpool_last, f"{g}[:,:], u1[:,:], {dx}[:,:], {dtype}[w,:], numbers, lo, hi", key=path.name,
                numbers=PoolWindow,
                narrowed=_form(dtype, own, lambda letters: _max_unpool(dtype, path, letters), (0, 2), True))


@functools.cache
def _average_pool(dtype: str, path: cpu.Cpu) -> Leaf:
    mean, size = _at("mean", dtype, path), itemsize(dtype)

    def average_pool_last(x, y, counts, p, lo, hi):  # type: ignore[no-untyped-def]
        h, w, oh, ow, kw, dh, dw, channels = p.h, p.w, p.oh, p.ow, p.kw, p.dh, p.dw, x.shape[1]
        pixel = channels * size
        for unit in range(lo, hi):
            image, oy = unit // oh, unit % oh
            start = oy * p.sh - p.top
            t0, t1 = within(start, p.kh, dh, h)
            for ox in range(ow):
                left = ox * p.sw - p.left
                u0, u1 = within(left, kw, dw, w)
                at = (image * h + start + t0 * dh) * w + left + u0 * dw
                mean(channels, t1 - t0, u1 - u0, address_of(x) + at * pixel, dh * w * pixel, dw * pixel, int(counts[oy * ow + ox]),
                     address_of(y) + (unit * ow + ox) * pixel)

    return Leaf(average_pool_last, f"{dtype}[:,:], {dtype}[:,:], {dtype}[:], numbers, lo, hi", key=path.name,
                numbers=PoolWindow)


@functools.cache
def _average_gradient(dtype: str, path: cpu.Cpu) -> Leaf:
    shares, size = _at("shares", dtype, path), itemsize(dtype)

    def average_pool_last_gradient(g, dx, counts, p, lo, hi):  # type: ignore[no-untyped-def]
        h, w, oh, ow, channels = p.h, p.w, p.oh, p.ow, dx.shape[1]
        pixel = channels * size
        for unit in range(lo, hi):
            image, iy = unit // h, unit % h
            r0, r1 = _met(iy, p.kh, p.sh, p.top, oh)
            for ix in range(w):
                c0, c1 = _met(ix, p.kw, p.sw, p.left, ow)
                at = (image * oh + r0) * ow + c0
                shares(channels, r1 - r0, c1 - c0, address_of(g) + at * pixel, ow * pixel, pixel,
                       address_of(counts) + (r0 * ow + c0) * size, ow * size, address_of(dx) + (unit * w + ix) * pixel)

    return Leaf(average_pool_last_gradient, f"{dtype}[:,:], {dtype}[:,:], {dtype}[:], numbers, lo, hi", key=path.name,
                numbers=PoolWindow)


def _window_counts(counts: Any, p: Any) -> None:
    """How many taps of each window count, at least 1."""
    for oy in range(p.oh):
        rows = taps_within(oy * p.sh - p.top, p.dh, p.kh, p.row_low, p.row_high)
        for ox in range(p.ow):
            columns = taps_within(ox * p.sw - p.left, p.dw, p.kw, p.column_low, p.column_high)
            counts[oy * p.ow + ox] = max(1, rows * columns)


@functools.cache
def _counts(dtype: str) -> Leaf:
    return Leaf(_window_counts, f"{dtype}[:], numbers", numbers=AverageWindow)


# ---- calls -------------------------------------------------------------------------------------------------------------------------

def _tables(p: PoolWindow, n: int, channels: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The shapes of an image and of its pool as pixels by channels."""
    return (n * p.h * p.w, channels), (n * p.oh * p.ow, channels)


def _rows(leaf: Leaf, args: Sequence[Any], rows: int, cost: float) -> Call:
    """A call over rows of pixels, in pieces of about 5 us."""
    return Call(leaf, args, rows, max(1, int(5000 * rows / (cost + 1))), cost)


def max_pool(p: PoolWindow, n: int, channels: int, dtype: str, path: cpu.Cpu, winners: bool) -> list[Call]:
    """Maxima (output 0) of input 0 and, if asked for, the winners' taps (output 1, bytes)."""
    image, pooled = _tables(p, n, channels)
    where = Out(1, pooled) if winners else Work("nobody", (1, 1), "u1")
    cost = n * p.oh * p.ow * channels * ((0.1 if winners else 3.2 / path.vector_bytes) * p.kh * p.kw + 0.2) * itemsize(dtype) / 4
    args = (In(0, image), Out(0, pooled), where, Work("spare", (1,), dtype), p)
    return [_rows(_max_pool(dtype, path, winners), args, n * p.oh, cost)]


def max_unpool(p: PoolWindow, n: int, channels: int, dtype: str, path: cpu.Cpu) -> list[Call]:
    """dx (output 0) from the gradient of the maxima (input 0) and the winners' taps (1)."""
    image, pooled = _tables(p, n, channels)
    args = (In(0, pooled), In(1, pooled), Out(0, image), Work("spare", (1,), dtype), p)
    return [_rows(_max_unpool(dtype, path), args, n * p.h, n * p.h * p.w * channels * itemsize(dtype) * 0.12)]


def average(p: AverageWindow, n: int, channels: int, dtype: str, path: cpu.Cpu) -> list[Call]:
    """Averages (output 0) of input 0."""
    image, pooled = _tables(p, n, channels)
    counts, cost = Work("counts", (p.oh * p.ow,), dtype), n * p.oh * p.ow * channels * (0.06 * p.kh * p.kw + 0.2) * itemsize(dtype) / 4
    return [Call(_counts(dtype), (counts, p), 1, 1, p.oh * p.ow * 3.0),
            _rows(_average_pool(dtype, path), (In(0, image), Out(0, pooled), counts, p), n * p.oh, cost)]


def average_gradient(p: AverageWindow, n: int, channels: int, dtype: str, path: cpu.Cpu) -> list[Call]:
    """dx (output 0) from the gradient of the averages (input 0)."""
    image, pooled = _tables(p, n, channels)
    counts, cost = Work("counts", (p.oh * p.ow,), dtype), n * p.h * p.w * channels * itemsize(dtype) * 0.15
    return [Call(_counts(dtype), (counts, p), 1, 1, p.oh * p.ow * 3.0),
            _rows(_average_gradient(dtype, path), (In(0, pooled), Out(0, image), counts, p), n * p.h, cost)]
