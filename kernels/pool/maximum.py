"""Maximum pooling over planes [h, w] of NCHW tensors, the winner of each window, and the gradient that goes to the winners.

A unit of range is one plane. NaN is larger than every number; of equal elements (NaNs among them) the first in row-major order wins;
padding never does. A winner is written down as the number of its tap in the window, ky * kw + kx, in one byte where that fits; NONE says
that the window lies in the padding. So a gradient needs neither x nor a place of eight bytes per maximum.

Maxima alone are met one axis after the other (`separable`); where the winners are wanted, too, rows of the image are first spread into one row
per horizontal phase, padded with -Inf: then every tap of neighbouring windows is a plain load. 2 x 2 blocks side by side have code of their own
that reads the image in place.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from ..isa import cpu
from ..isa.vector import Emitter, inlined_code, itemsize, vector, word
from ..machine.call import Call, In, Out, Work
from ..machine.leaf import Leaf
from ..machine.places import address_of, within
from . import separable
from .planar import PoolWindow, run
from .separable import FoldForm, chunks, columns, fold, form_of, sizes, whole

SPREAD = 24 << 10
"""Bytes of spread rows: with what is read and written beside them they stay in the first cache."""


CHAINS = 4
"""Vectors of maxima in flight over a whole plane."""


def winner_code(taps: int) -> str:
    """The kernel dtype of winners among `taps` elements."""
    return "u1" if taps < 255 else "i4"


def none(code: str) -> int:
    """The number that says: no element at all."""
    return 255 if code == "u1" else -1


# ---- emitted rows ----------------------------------------------------------------------------------------------------------------

def _numbers(dtype: str, lanes: int) -> ir.VectorType:
    """Winners in registers: integers as wide as the elements, so that comparisons select them without conversion."""
    return ir.VectorType(ir.IntType(8 * itemsize(dtype)), lanes)


def _beats(e: Emitter, v: Any, best: Any) -> Any:
    return e.b.and_(e.b.fcmp_unordered(">", v, best), e.b.fcmp_ordered("ord", best, best))


def _splat(kind: ir.VectorType, number: float) -> ir.Constant:
    return ir.Constant(kind, [number] * kind.count)


def _best_row(dtype: str, code: str, path: cpu.Cpu) -> Any:
    """Maxima of `width` windows side by side, and their winners.

    Tap t of window i is at rows + offsets[t] + i elements, for taps t0..t1; `edges[i]` (int32) is what the first tap that meets the image
    lies behind t0, negative if there is none.
    """
    size, lanes = itemsize(dtype), path.lanes(itemsize(dtype))

    def emit(e: Emitter, width: Any, t0: Any, t1: Any, rows: Any, offsets: Any, edges: Any, y: Any, where: Any) -> None:
        def chunk(i: Any, lanes: int) -> None:
            kind, numbers = vector(dtype, lanes), _numbers(dtype, lanes)
            at = e.address(rows, e.times(i, size))
            edge = e.load(e.address(edges, e.times(i, 4)), ir.VectorType(ir.IntType(32), lanes))
            edge = edge if numbers.element.width == 32 else e.b.sext(edge, numbers)
            missing = e.b.or_(e.b.icmp_signed("<", edge, ir.Constant(numbers, None)), e.splat(e.b.icmp_signed(">=", t0, t1), lanes))
            first = e.b.trunc(t0, numbers.element) if numbers.element.width < 64 else t0

            def tap(t: Any, state: list[Any]) -> list[Any]:
                v = e.load(e.address(at, e.load(e.address(offsets, e.times(t, 8)), ir.IntType(64))), kind)
                take = _beats(e, v, state[0])
                number = e.b.trunc(t, numbers.element) if numbers.element.width < 64 else t
                return [e.b.select(take, v, state[0]), e.b.select(take, e.splat(number, lanes), state[1])]

            start = [_splat(kind, float("-inf")), e.b.add(edge, e.splat(first, lanes))]
            best, winner = e.loop(t0, t1, 1, start, tap)
            e.store(best, e.address(y, e.times(i, size)))
            chosen = e.b.select(missing, _splat(numbers, none(code)), winner)
            _store_winners(e, chosen, code, e.address(where, e.times(i, itemsize(code))))
        chunks(e, width, sizes(lanes), chunk)
    return emit


def _store_winners(e: Emitter, winners: Any, code: str, address: Any) -> None:
    kind = ir.VectorType(ir.IntType(8 * itemsize(code)), winners.type.count)
    e.store(winners if winners.type == kind else e.b.trunc(winners, kind), address)


class _Halves:
    """Emits code that meets one row of 2 x 2 blocks: `lanes` blocks are two vectors of each of two rows."""

    def __init__(self, e: Emitter, dtype: str, lanes: int) -> None:
        self.e, self.size, self.lanes, self.kind = e, itemsize(dtype), lanes, vector(dtype, lanes)

    def taps(self, x: Any, x_row: Any) -> list[Any]:
        """The four elements of each block, one vector per tap."""
        even, odd = range(0, 2 * self.lanes, 2), range(1, 2 * self.lanes, 2)
        found = []
        for row in (x, self.e.address(x, x_row)):
            low, high = (self.e.load(self.e.address(row, v * self.lanes * self.size), self.kind) for v in range(2))
            found += [self.e.shuffle(low, high, even), self.e.shuffle(low, high, odd)]
        return found

    def put(self, values: Sequence[Any], x: Any, x_row: Any) -> None:
        """Store one vector per tap where `taps` reads them."""
        low = [i // 2 + self.lanes * (i % 2) for i in range(2 * self.lanes)]
        for r in range(2):
            for v in range(2):
                together = self.e.shuffle(values[2 * r], values[2 * r + 1], low[v * self.lanes:(v + 1) * self.lanes])
                self.e.store(together, self.e.address(x, *([x_row] if r else []), v * self.lanes * self.size))


def halve(dtype: str, code: str, path: cpu.Cpu, put: Callable[[Emitter, Any, Any], None] = Emitter.store) -> Any:
    """Emits rows of maxima of 2 x 2 blocks, and where `code` is given the winners; `put(e, vector, address)` takes the maxima."""
    size = itemsize(dtype)

    def emit(e: Emitter, rows: Any, width: Any, x: Any, x_row: Any, y: Any, where: Any) -> None:
        def row(_r: Any, state: list[Any]) -> list[Any]:
            x, y, where = state

            def chunk(i: Any, lanes: int) -> None:
                numbers = _numbers(dtype, lanes)
                best, *others = _Halves(e, dtype, lanes).taps(e.address(x, e.times(i, 2 * size)), x_row)
                winner: Any = ir.Constant(numbers, None)
                for t, v in enumerate(others):
                    take = _beats(e, v, best)
                    best = e.b.select(take, v, best)
                    winner = e.b.select(take, _splat(numbers, t + 1), winner)
                put(e, best, e.address(y, e.times(i, size)))
                if code:
                    _store_winners(e, winner, code, e.address(where, i))
            chunks(e, width, sizes(path.lanes(size)), chunk)
            return [e.address(x, e.times(x_row, 2)), e.address(y, e.times(width, size)), e.address(where, width)]
        e.loop(0, rows, 1, [x, y, where], row)
    return emit


def _largest(dtype: str, path: cpu.Cpu) -> Any:
    """The largest of `count` neighbours at x."""
    size, lanes = itemsize(dtype), path.lanes(itemsize(dtype))

    def emit(e: Emitter, count: Any, x: Any, y: Any) -> None:
        def larger(v: Any, best: Any) -> Any:
            return e.b.select(_beats(e, v, best), v, best)

        def meet(i: Any, state: list[Any]) -> list[Any]:
            return [larger(e.load(e.address(x, e.times(i, size), v * lanes * size), vector(dtype, lanes)), best) for v, best in enumerate(state)]

        least = _splat(vector(dtype, lanes), float("-inf"))
        whole, blocks = e.b.and_(count, word(-lanes)), e.b.and_(count, word(-CHAINS * lanes))
        best = functools.reduce(larger, e.loop(0, blocks, CHAINS * lanes, [least] * CHAINS, meet))
        best, = e.loop(blocks, whole, lanes, [best], meet)
        kept = lanes
        while kept > 1:
            kept //= 2
            best = larger(e.shuffle(best, best, range(kept, 2 * kept)), e.shuffle(best, best, range(kept)))
        best, = e.loop(whole, count, 1, [best], lambda i, state: [larger(e.load(e.address(x, e.times(i, size)), vector(dtype, 1)), state[0])])
        e.store(best, y)
    return emit


def _unhalve(dtype: str, path: cpu.Cpu) -> Any:
    """Rows of gradients of 2 x 2 blocks: each goes to its winner, the others get 0."""
    size = itemsize(dtype)

    def emit(e: Emitter, rows: Any, width: Any, g: Any, where: Any, dx: Any, dx_row: Any) -> None:
        def row(_r: Any, state: list[Any]) -> list[Any]:
            g, where, dx = state

            def chunk(i: Any, lanes: int) -> None:
                half, numbers = _Halves(e, dtype, lanes), _numbers(dtype, lanes)
                gradient = e.load(e.address(g, e.times(i, size)), half.kind)
                winner = e.b.zext(e.load(e.address(where, i), ir.VectorType(ir.IntType(8), lanes)), numbers)
                zero = ir.Constant(half.kind, None)
                shares = [e.b.select(e.b.icmp_unsigned("==", winner, _splat(numbers, t)), gradient, zero) for t in range(4)]
                half.put(shares, e.address(dx, e.times(i, 2 * size)), dx_row)
            chunks(e, width, sizes(path.lanes(size)), chunk)
            return [e.address(g, e.times(width, size)), e.address(where, width), e.address(dx, e.times(dx_row, 2))]
        e.loop(0, rows, 1, [g, where, dx], row)
    return emit


# ---- leaves ------------------------------------------------------------------------------------------------------------------------

def _layout(offsets: Any, edges: Any, p: Any, phase: int, size: int) -> None:
    """Where the taps of windows p (`PoolWindow`) lie in the spread rows (of p.sw phases of `phase` elements each), and
    the first tap of each window that meets the row."""
    kw, sw, dw = p.kw, p.sw, p.dw
    for ky in range(p.kh):
        for kx in range(kw):
            offsets[ky * kw + kx] = (ky * p.dh * sw * phase + kx * dw % sw * phase + kx * dw // sw) * size
    for i in range(p.ow):
        first, last = within(i * sw - p.left, kw, dw, p.w)
        edges[i] = first if first < last else -1


def _pairs(dtype: str, path: cpu.Cpu) -> Any:
    """`count` pairs of neighbours at x: the first ones to `even`, the others to `odd`."""
    size = itemsize(dtype)

    def emit(e: Emitter, count: Any, x: Any, even: Any, odd: Any) -> None:
        def chunk(i: Any, lanes: int) -> None:
            at = e.address(x, e.times(i, 2 * size))
            low, high = (e.load(e.address(at, v * lanes * size), vector(dtype, lanes)) for v in range(2))
            for k, target in enumerate((even, odd)):
                e.store(e.shuffle(low, high, range(k, 2 * lanes, 2)), e.address(target, e.times(i, size)))
        chunks(e, count, sizes(path.lanes(size)), chunk)
    return emit


@functools.cache
def _spread(dtype: str, path: cpu.Cpu) -> Any:
    size = itemsize(dtype)
    pairs = inlined_code(f"tileflow_pairs_{dtype}_{path.name}", "count, x, even, odd", path, _pairs(dtype, path))

    def spread(source: Any, target: Any, w: int, left: int, sw: int, phase: int) -> None:
        """Element i of a row to place (i + left) // sw of phase (i + left) % sw."""
        if sw == 1:
            put = target[left:left + w]
            for j in range(w):
                put[j] = source[j]
            return
        done = 0
        if sw == 2:
            even, odd = left % 2 * phase + left // 2, (left + 1) % 2 * phase + (left + 1) // 2
            pairs(w // 2, address_of(source), address_of(target) + even * size, address_of(target) + odd * size)
            done = w // 2 * 2
        for first in range(done, min(done + sw, w)):
            to = (first + left) % sw * phase + (first + left) // sw
            for i in range(first, w, sw):
                target[to] = source[i]
                to += 1
    return spread


def _places(places: Any, kw: int, down: int, across: int) -> None:
    """How far behind the first tap of its window each tap lies; `down` and `across` lead to the next row and column."""
    for t in range(places.shape[0]):
        places[t] = t // kw * down + t % kw * across


@functools.cache
def _max_pool(dtype: str, form: FoldForm, path: cpu.Cpu) -> Leaf:
    """Without winners."""
    size, down, across = itemsize(dtype), columns("max", dtype, form.down, path), fold("max", dtype, form.across, form.stride, path)

    def max_pool(x, y, rows, pitch, p):  # type: ignore[no-untyped-def]
        oh, ow, nothing = p.oh, p.ow, x.dtype.type(-float("inf"))
        for i in range(rows.shape[0]):
            rows[i] = nothing
        band, (low, high) = rows.shape[0] // pitch, whole(p)
        for plane in range(y.shape[0]):
            for first in range(0, oh, band):
                last = min(first + band, oh)
                down(address_of(x) + plane * p.h * p.w * size, rows, first, last, low, high, pitch, p, nothing)
                across(last - first, ow, p.kw, p.dw * size, p.sw * size, address_of(rows), pitch * size,
                       address_of(y) + (plane * oh + first) * ow * size, ow * size, 0)

    return Leaf(max_pool, f"{dtype}[r,:], {dtype}[r,:], {dtype}[w,:], i8, numbers", key=f"{form} {path.name}",
                numbers=PoolWindow)


@functools.cache
def _max_winners(dtype: str, code: str, path: cpu.Cpu) -> Leaf:
    size, wide, spread = itemsize(dtype), itemsize(code), _spread(dtype, path)
    best = inlined_code(f"tileflow_best_row_{dtype}_{code}_{path.name}", "width, t0, t1, rows, offsets, edges, y, where", path,
                        _best_row(dtype, code, path))

    def max_pool_winners(x, y, where, rows, offsets, edges, phase, p):  # type: ignore[no-untyped-def]
        _layout(offsets, edges, p, phase, size)
        h, w, oh, ow, kh, sh, dh, top, step = p.h, p.w, p.oh, p.ow, p.kh, p.sh, p.dh, p.top, p.sw * phase
        for i in range(rows.shape[0]):
            rows[i] = x.dtype.type(-float("inf"))
        band = max(1, (rows.shape[0] // step - (kh - 1) * dh - 1) // sh + 1)
        for plane in range(y.shape[0]):
            for first in range(0, oh, band):
                last = min(first + band, oh)
                low, high = max(0, first * sh - top), min(h, (last - 1) * sh - top + (kh - 1) * dh + 1)
                for r in range(low, high):
                    row = rows[(r - low) * step:(r - low + 1) * step]
                    spread(x[plane, r * w:(r + 1) * w], row, w, p.left, p.sw, phase)
                for oy in range(first, last):
                    start, t0, t1 = oy * sh - top, 0, kh
                    if start < 0 or start + (kh - 1) * dh >= h:
                        t0, t1 = within(start, kh, dh, h)
                    at = plane * oh * ow + oy * ow
                    best(ow, t0 * p.kw, t1 * p.kw, address_of(rows) + (start - low) * step * size, address_of(offsets),
                         address_of(edges), address_of(y) + at * size, address_of(where) + at * wide)

    arrays = f"{dtype}[r,:], {dtype}[r,:], {code}[r,:]"
    return Leaf(max_pool_winners, f"{arrays}, {dtype}[w,:], i8[w,:], i4[w,:], i8, numbers", key=path.name,
                numbers=PoolWindow)


@functools.cache
def _max_plane(dtype: str, path: cpu.Cpu) -> Leaf:
    largest, size = inlined_code(f"tileflow_largest_{dtype}_{path.name}", "count, x, y", path, _largest(dtype, path)), itemsize(dtype)

    def max_plane(x, y):                                                                                                    # type: ignore
        for plane in range(y.shape[0]):
            largest(x.shape[1], address_of(x) + plane * x.shape[1] * size, address_of(y) + plane * size)

    return Leaf(max_plane, f"{dtype}[r,:], {dtype}[r,:]", key=path.name)


@functools.cache
def _max_halves(dtype: str, code: str, path: cpu.Cpu) -> Leaf:
    size = itemsize(dtype)
    rows = inlined_code(f"tileflow_halve_{dtype}_{code}_{path.name}", "rows, width, x, x_row, y, where", path, halve(dtype, code, path))

    def max_halves(x, y, p):  # type: ignore[no-untyped-def]
        for plane in range(y.shape[0]):
            source, target = address_of(x) + plane * p.h * p.w * size, address_of(y) + plane * p.oh * p.ow * size
            rows(p.oh, p.ow, source, p.w * size, target, 0)

    def max_halves_winners(x, y, where, p):  # type: ignore[no-untyped-def]
        for plane in range(y.shape[0]):
            source, at = address_of(x) + plane * p.h * p.w * size, plane * p.oh * p.ow
            rows(p.oh, p.ow, source, p.w * size, address_of(y) + at * size, address_of(where) + at)

    if code:
        return Leaf(max_halves_winners, f"{dtype}[r,:], {dtype}[r,:], {code}[r,:], numbers", key=path.name,
                    numbers=PoolWindow)
    return Leaf(max_halves, f"{dtype}[r,:], {dtype}[r,:], numbers", key=path.name, numbers=PoolWindow)


@functools.cache
def _unpool(dtype: str, code: str) -> Leaf:
    missing = none(code)

    def max_unpool(g, where, dx, places, p):  # type: ignore[no-untyped-def]
        """dx = the sum of the gradients of the windows that each element has won, in their row-major order."""
        h, w, ow, sw = p.h, p.w, p.ow, p.sw
        _places(places, p.kw, p.dh * w, p.dw)
        for plane in range(dx.shape[0]):
            target = dx[plane]
            for i in range(h * w):
                target[i] = 0
            for oy in range(p.oh):
                gradient, winner = g[plane, oy * ow:(oy + 1) * ow], where[plane, oy * ow:(oy + 1) * ow]
                start = (oy * p.sh - p.top) * w - p.left
                for i in range(ow):
                    t = int(winner[i])
                    if t != missing:
                        target[start + i * sw + places[t]] += gradient[i]

    return Leaf(max_unpool, f"{dtype}[r,:], {code}[r,:], {dtype}[r,:], i8[w,:], numbers", numbers=PoolWindow)


@functools.cache
def _unpool_halves(dtype: str, path: cpu.Cpu) -> Leaf:
    size = itemsize(dtype)
    unhalve = inlined_code(f"tileflow_unhalve_{dtype}_{path.name}", "rows, width, g, where, dx, dx_row", path, _unhalve(dtype, path))

    def max_unpool_halves(g, where, dx, p):  # type: ignore[no-untyped-def]
        h, w, oh, ow = p.h, p.w, p.oh, p.ow
        for plane in range(dx.shape[0]):
            at = plane * oh * ow
            unhalve(oh, ow, address_of(g) + at * size, address_of(where) + at, address_of(dx) + plane * h * w * size, w * size)
            row = dx[plane]
            for i in range(2 * oh * w, h * w):
                row[i] = 0
            if w > 2 * ow:
                for y in range(2 * oh):
                    row[y * w + w - 1] = 0

    return Leaf(max_unpool_halves, f"{dtype}[r,:], u1[r,:], {dtype}[r,:], numbers", key=path.name, numbers=PoolWindow)


@functools.cache
def _indices(code: str) -> Leaf:
    missing = none(code)

    def winner_places(where, indices, places, down, across, p, lo):  # type: ignore[no-untyped-def]
        """Winners as places in the whole tensor, -1 where a window lies in the padding."""
        ow = p.ow
        _places(places, p.kw, p.dh * down, p.dw * across)
        for plane in range(indices.shape[0]):
            for oy in range(p.oh):
                winner, found = where[plane, oy * ow:(oy + 1) * ow], indices[plane, oy * ow:(oy + 1) * ow]
                start = (lo + plane) * p.h * p.w + (oy * p.sh - p.top) * down - p.left * across
                for i in range(ow):
                    t = int(winner[i])
                    found[i] = start + i * p.sw * across + places[t] if t != missing else -1

    return Leaf(winner_places, f"{code}[r,:], i8[r,:], i8[w,:], i8, i8, numbers, lo", numbers=PoolWindow)


# ---- calls -----------------------------------------------------------------------------------------------------------------------

def max_pool(p: PoolWindow, planes: int, dtype: str, path: cpu.Cpu, where: Out | Work | None = None,
             y: Out | Work | None = None) -> list[Call]:
    """Maxima of input 0 to output 0 (or `y`), and the winners to `where` [planes, oh * ow] of `winner_code` if it is given."""
    code = winner_code(p.kh * p.kw) if where is not None else ""
    arrays = (In(0, (planes, p.h * p.w)), y or Out(0, (planes, p.oh * p.ow)), *([] if where is None else [where]))
    if p.whole and not code:
        return run(_max_plane(dtype, path), arrays, planes, 10 + p.h * p.w * 0.05 * itemsize(dtype))
    if p.halves:
        return run(_max_halves(dtype, code, path), (*arrays, p), planes, p.oh * (4 + p.ow * 0.5))
    if not code:
        between, pitch = separable.rows(p, dtype, path)
        return run(_max_pool(dtype, form_of(p), path), (*arrays, between, pitch, p), planes,
                   separable.cost(p, dtype, path))
    phase = max(p.ow + (p.kw - 1) * p.dw // p.sw, (p.w + p.left - 1) // p.sw + 1)
    span = (p.kh - 1) * p.dh + 1
    rows = max(span, min((p.oh - 1) * p.sh + span, SPREAD // (phase * p.sw * itemsize(dtype))))
    scratch = (Work(f"spread {dtype}", (rows * phase * p.sw,), dtype), Work("taps", (p.kh * p.kw,), "i8"), Work("edges", (p.ow,), "i4"))
    return run(_max_winners(dtype, code, path), (*arrays, *scratch, phase, p), planes,
               p.oh * (p.ow * p.kh * p.kw * 0.12 + 20) + p.h * p.w * 0.3)


def max_pool_with_indices(p: PoolWindow, planes: int, dtype: str, path: cpu.Cpu,
                          by_columns: bool = False) -> list[Call]:
    """Maxima (output 0) of input 0 and their places in the tensor (output 1, int64; -1 where a window lies in the padding).

    `by_columns` counts the elements of a plane column by column.
    """
    code, out = winner_code(p.kh * p.kw), (planes, p.oh * p.ow)
    where = _winners(code, out)
    args = (where, Out(1, out), Work("places", (p.kh * p.kw,), "i8"), *((1, p.h) if by_columns else (p.w, 1)), p)
    return [*max_pool(p, planes, dtype, path, where), *run(_indices(code), args, planes, p.oh * p.ow * 1.0)]


def max_gradient(p: PoolWindow, planes: int, dtype: str, path: cpu.Cpu) -> list[Call]:
    """dx (output 0) from the gradient of the maxima (input 0) and x (1): the winners are found again."""
    out = (planes, p.oh * p.ow)
    where = _winners(winner_code(p.kh * p.kw), out)
    first, = max_pool(p, planes, dtype, path, where, Work("maxima", out, dtype))
    x = In(1, (planes, p.h * p.w))
    again = Call(first.leaf, (x, *first.args[1:]), first.n, first.grain, first.cost)
    return [again, *max_unpool(p, planes, dtype, path, where)]


def max_unpool(p: PoolWindow, planes: int, dtype: str, path: cpu.Cpu, where: In | Work) -> list[Call]:
    """dx (output 0) from the gradient of the maxima (input 0) and the winners."""
    arrays = (In(0, (planes, p.oh * p.ow)), where, Out(0, (planes, p.h * p.w)))
    if p.halves:
        return run(_unpool_halves(dtype, path), (*arrays, p), planes, p.oh * (8 + p.ow * 0.8))
    return run(_unpool(dtype, winner_code(p.kh * p.kw)), (*arrays, Work("places", (p.kh * p.kw,), "i8"), p), planes,
               p.oh * (p.ow * 1.5 + 10) + p.h * p.w * 0.1)


def _winners(code: str, shape: tuple[int, int]) -> Work:
    return Work("winners", shape, code)
