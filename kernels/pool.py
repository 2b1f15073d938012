"""Pooling over planes [h, w] of NCHW tensors: maximum, average and their gradients.

A unit of range is one plane. Rows of outputs are computed tap by tap, so the inner loops run along the row. NaN is larger than every
number; of equal elements (NaNs among them) the first in row-major order wins. Maxima over 2 x 2 blocks have code of their own.
"""
from __future__ import annotations

import functools
from dataclasses import astuple, dataclass
from typing import Any

from llvmlite import ir
from numba.extending import register_jitable

from . import cpu
from .call import Call, In, Out, Work
from .leaf import Leaf, generic
from .places import address_of, within
from .vector import ELEMENTS, Emitter, as_intrinsic, itemsize, vector, word


@dataclass(frozen=True)
class Pool:
    """The sizes of one pooling of planes [h, w] to [oh, ow]: kernel, strides, dilations, padding before each axis."""

    h: int
    w: int
    oh: int
    ow: int
    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int
    top: int
    left: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """The arguments of the leaves."""
        return astuple(self)

    @property
    def halves(self) -> bool:
        """2 x 2 blocks side by side, none of them cut."""
        return self.numbers[4:] == (2, 2, 2, 2, 1, 1, 0, 0) and 2 * self.oh <= self.h and 2 * self.ow <= self.w


_POOL = ", i8" * 12
"""`Pool.numbers` in a signature."""


# ---- maxima ------------------------------------------------------------------------------------------------------------------------

def _best_row(dtype: str, path: cpu.Cpu, step: int) -> Any:
    """The maxima of a row of windows, and how far behind the first tap of its window each winner lies (-1: all is padding).

    Output i meets element start + i * step + kx * dilation of `rows` rows from address x on, where that is in 0..limit; `place` is
    what the first of these rows adds to a winner's distance, `place_row` the next ones. A result with address 0 is not stored.
    """
    size, lanes = itemsize(dtype), path.lanes(itemsize(dtype))
    kind, places, words = vector(dtype, lanes), vector("i4", lanes), vector("i8", lanes)
    spread = step if step in (1, 2) and path.name != "generic" else 0

    def positions(e: Emitter, first: Any, stride: Any) -> Any:
        lane = ir.Constant(words, list(range(lanes)))
        return e.b.add(e.splat(first, lanes), e.b.mul(lane, e.splat(stride, lanes)))

    def load(e: Emitter, row: Any, first: Any, stride: Any, limit: Any) -> Any:
        """Elements first + lane * stride of a row; anything outside of the row."""
        if spread:
            found = []
            for v in range(spread):
                at = e.address(first, v * lanes)
                inside = e.b.icmp_unsigned("<", positions(e, at, word(1)), e.splat(limit, lanes))
                found.append(e.load(e.address(row, e.times(at, size)), kind, inside))
            return found[0] if spread == 1 else e.shuffle(found[0], found[1], range(0, 2 * lanes, 2))
        value = ir.Constant(kind, ir.Undefined)
        for lane in range(lanes):
            at = e.address(first, e.times(stride, lane))
            safe = e.b.select(e.b.icmp_unsigned("<", at, limit), at, word(0))
            element = e.load(e.address(row, e.times(safe, size)), ELEMENTS[dtype])
            value = e.b.insert_element(value, element, ir.Constant(ir.IntType(32), lane))
        return value

    def emit(e: Emitter, width: Any, rows: Any, taps: Any, x: Any, x_row: Any, start: Any, stride: Any, dilation: Any, limit: Any,
             place: Any, place_row: Any, y: Any, where: Any) -> None:
        def chunk(j: Any, _state: list[Any]) -> None:
            def row(_r: Any, state: list[Any]) -> list[Any]:
                at_row, at_place, *state = state

                def tap(t: Any, state: list[Any]) -> list[Any]:
                    best, winner = state
                    shift = e.b.mul(t, dilation)
                    first = e.address(start, e.b.mul(j, stride), shift)
                    v = load(e, at_row, first, stride, limit)
                    inside = e.b.icmp_unsigned("<", positions(e, first, stride), e.splat(limit, lanes))
                    larger = e.b.and_(e.b.fcmp_unordered(">", v, best), e.b.fcmp_ordered("ord", best, best))
                    larger = e.b.or_(larger, e.b.icmp_signed("<", winner, ir.Constant(places, None)))
                    take = e.b.and_(inside, larger)
                    here = e.splat(e.b.trunc(e.address(at_place, shift), ir.IntType(32)), lanes)
                    return [e.b.select(take, v, best), e.b.select(take, here, winner)]

                state = e.loop(0, taps, 1, state, tap)
                return [e.address(at_row, x_row), e.address(at_place, place_row), *state]

            lowest = ir.Constant(kind, [float("-inf")] * lanes)
            _, _, best, winner = e.loop(0, rows, 1, [x, place, lowest, ir.Constant(places, [-1] * lanes)], row)
            wanted = e.first(e.b.sub(width, j), lanes)
            with e.when(e.b.icmp_signed("!=", y, word(0))):
                e.store(best, e.address(y, e.times(j, size)), wanted)
            with e.when(e.b.icmp_signed("!=", where, word(0))):
                e.store(winner, e.address(where, e.times(j, 4)), wanted)
        e.loop(0, width, lanes, [], chunk)
    return emit


@functools.cache
def best_row(dtype: str, path: cpu.Cpu, step: int) -> Any:
    """Numba-callable; see `_best_row`. `step` is the horizontal stride if it is 1 or 2, else 0."""
    return as_intrinsic(f"tileflow_best_row_{dtype}_{path.name}_{step}",
                        "width, rows, taps, x, x_row, start, stride, dilation, limit, place, place_row, y, where", path,
                        _best_row(dtype, path, step))


@functools.cache
def _max_pool(dtype: str, path: cpu.Cpu, step: int) -> Leaf:
    size, best = itemsize(dtype), best_row(dtype, path, step)

    def max_pool(x, y, h, w, oh, ow, kh, kw, sh, sw, dh, dw, top, left):                                                    # type: ignore
        for plane in range(y.shape[0]):
            for oy in range(oh):
                t0, t1 = within(oy * sh - top, kh, dh, h)
                row = plane * h + oy * sh - top + t0 * dh
                best(ow, t1 - t0, kw, address_of(x) + row * w * size, dh * w * size, -left, sw, dw, w, 0, 0,
                     address_of(y) + (plane * oh + oy) * ow * size, 0)

    return Leaf(max_pool, f"{dtype}[r,:], {dtype}[r,:]{_POOL}", key=f"{path.name} {step}")


@functools.cache
def _max_indices(dtype: str, path: cpu.Cpu, step: int) -> Leaf:
    size, best = itemsize(dtype), best_row(dtype, path, step)

    def max_pool_indices(x, y, indices, where, h, w, oh, ow, kh, kw, sh, sw, dh, dw, top, left, lo, hi):                     # type: ignore
        for plane in range(lo, hi):
            for oy in range(oh):
                t0, t1 = within(oy * sh - top, kh, dh, h)
                first = plane * h + oy * sh - top
                best(ow, t1 - t0, kw, address_of(x) + (first + t0 * dh) * w * size, dh * w * size, -left, sw, dw, w,
                     t0 * dh * w, dh * w, address_of(y) + (plane * oh + oy) * ow * size, address_of(where))
                found = indices[plane, oy * ow:(oy + 1) * ow]
                for i in range(ow):
                    found[i] = first * w - left + i * sw + where[i] if where[i] >= 0 else -1

    return Leaf(max_pool_indices, f"{dtype}[:,:], {dtype}[:,:], i8[:,:], i4[w,:]{_POOL}, lo, hi", key=f"{path.name} {step}")


@functools.cache
def _max_gradient(dtype: str, path: cpu.Cpu, step: int) -> Leaf:
    size, best = itemsize(dtype), best_row(dtype, path, step)

    def max_pool_gradient(g, x, dx, where, h, w, oh, ow, kh, kw, sh, sw, dh, dw, top, left):                                 # type: ignore
        for plane in range(dx.shape[0]):
            target = dx[plane]
            for i in range(h * w):
                target[i] = 0
            for oy in range(oh):
                t0, t1 = within(oy * sh - top, kh, dh, h)
                row = plane * h + oy * sh - top + t0 * dh
                best(ow, t1 - t0, kw, address_of(x) + row * w * size, dh * w * size, -left, sw, dw, w, t0 * dh * w, dh * w,
                     0, address_of(where))
                gradient, start = g[plane, oy * ow:(oy + 1) * ow], (oy * sh - top) * w - left
                for i in range(ow):
                    if where[i] >= 0:
                        target[start + i * sw + where[i]] += gradient[i]

    return Leaf(max_pool_gradient, f"{dtype}[r,:], {dtype}[r,:], {dtype}[r,:], i4[w,:]{_POOL}", key=f"{path.name} {step}")


# ---- maxima over 2 x 2 blocks --------------------------------------------------------------------------------------------------

class _Halves:
    """Emits code that meets one row of 2 x 2 blocks: `lanes` blocks are two vectors of each of two rows."""

    def __init__(self, dtype: str, path: cpu.Cpu) -> None:
        self.size, self.lanes = itemsize(dtype), path.lanes(itemsize(dtype))
        self.kind = vector(dtype, self.lanes)

    def masks(self, e: Emitter, blocks: Any) -> list[Any]:
        """Of the two vectors that hold `blocks` blocks."""
        return [e.first(e.b.sub(e.times(blocks, 2), word(v * self.lanes)), self.lanes) for v in range(2)]

    def taps(self, e: Emitter, x: Any, x_row: Any, masks: list[Any]) -> list[Any]:
        """The four elements of each block, one vector per tap."""
        even, odd = range(0, 2 * self.lanes, 2), range(1, 2 * self.lanes, 2)
        found = []
        for row in (x, e.address(x, x_row)):
            low, high = (e.load(e.address(row, v * self.lanes * self.size), self.kind, masks[v]) for v in range(2))
            found += [e.shuffle(low, high, even), e.shuffle(low, high, odd)]
        return found

    @staticmethod
    def compete(e: Emitter, taps: list[Any]) -> tuple[Any, list[Any]]:
        """The maxima; for each tap after the first, where it beat those before."""
        best, beaten = taps[0], []
        for v in taps[1:]:
            beats = e.b.and_(e.b.fcmp_unordered(">", v, best), e.b.fcmp_ordered("ord", best, best))
            best = e.b.select(beats, v, best)
            beaten.append(beats)
        return best, beaten


def _halve(dtype: str, path: cpu.Cpu) -> Any:
    half = _Halves(dtype, path)

    def emit(e: Emitter, rows: Any, width: Any, x: Any, x_row: Any, y: Any, y_row: Any) -> None:
        def chunk(i: Any, _state: list[Any]) -> None:
            left = e.b.sub(width, i)
            masks, wanted = half.masks(e, left), e.first(left, half.lanes)

            def row(_r: Any, state: list[Any]) -> list[Any]:
                best, _ = half.compete(e, half.taps(e, state[0], x_row, masks))
                e.store(best, state[1], wanted)
                return [e.address(state[0], e.times(x_row, 2)), e.address(state[1], y_row)]
            e.loop(0, rows, 1, [e.address(x, e.times(i, 2 * half.size)), e.address(y, e.times(i, half.size))], row)
        e.loop(0, width, half.lanes, [], chunk)
    return emit


def _unhalve(dtype: str, path: cpu.Cpu) -> Any:
    half = _Halves(dtype, path)
    low = [i // 2 + half.lanes * (i % 2) for i in range(half.lanes)]
    high = [i + half.lanes // 2 for i in low]

    def emit(e: Emitter, rows: Any, width: Any, g: Any, g_row: Any, x: Any, dx: Any, x_row: Any) -> None:
        zero = ir.Constant(half.kind, None)

        def chunk(i: Any, _state: list[Any]) -> None:
            left = e.b.sub(width, i)
            masks, wanted = half.masks(e, left), e.first(left, half.lanes)

            def row(_r: Any, state: list[Any]) -> list[Any]:
                gradient = e.load(state[0], half.kind, wanted)
                _, beaten = half.compete(e, half.taps(e, state[1], x_row, masks))
                shares, open_ = [], gradient
                for beats in reversed(beaten):
                    shares.append(e.b.select(beats, open_, zero))
                    open_ = e.b.select(beats, zero, open_)
                shares = [open_, *reversed(shares)]
                for r in range(2):
                    to = e.address(state[2], *([x_row] if r else []))
                    for v, picks in enumerate((low, high)):
                        e.store(e.shuffle(shares[2 * r], shares[2 * r + 1], picks), e.address(to, v * half.lanes * half.size), masks[v])
                return [e.address(state[0], g_row), *(e.address(place, e.times(x_row, 2)) for place in state[1:])]
            wide = e.times(i, 2 * half.size)
            e.loop(0, rows, 1, [e.address(g, e.times(i, half.size)), e.address(x, wide), e.address(dx, wide)], row)
        e.loop(0, width, half.lanes, [], chunk)
    return emit


@functools.cache
def _max_halves(dtype: str, path: cpu.Cpu) -> Leaf:
    size = itemsize(dtype)
    halve = as_intrinsic(f"tileflow_halve_{dtype}_{path.name}", "rows, width, x, x_row, y, y_row", path, _halve(dtype, path))

    def max_pool_halves(x, y, h, w, oh, ow):                                                                                # type: ignore
        source, target = address_of(x), address_of(y)
        for plane in range(y.shape[0]):
            halve(oh, ow, source + plane * h * w * size, w * size, target + plane * oh * ow * size, ow * size)

    return Leaf(max_pool_halves, f"{dtype}[r,:], {dtype}[r,:], i8, i8, i8, i8", key=path.name)


@functools.cache
def _max_halves_gradient(dtype: str, path: cpu.Cpu) -> Leaf:
    size = itemsize(dtype)
    unhalve = as_intrinsic(f"tileflow_unhalve_{dtype}_{path.name}", "rows, width, g, g_row, x, dx, x_row", path, _unhalve(dtype, path))

    def max_pool_halves_gradient(g, x, dx, h, w, oh, ow):                                                                   # type: ignore
        gradient, source, target = address_of(g), address_of(x), address_of(dx)
        for plane in range(dx.shape[0]):
            at = plane * h * w * size
            unhalve(oh, ow, gradient + plane * oh * ow * size, ow * size, source + at, target + at, w * size)
            row = dx[plane]
            for i in range(2 * oh * w, h * w):
                row[i] = 0
            if w > 2 * ow:
                for y in range(2 * oh):
                    row[y * w + w - 1] = 0

    return Leaf(max_pool_halves_gradient, f"{dtype}[r,:], {dtype}[r,:], {dtype}[r,:], i8, i8, i8, i8", key=path.name)


# ---- averages --------------------------------------------------------------------------------------------------------------------

@register_jitable
def _taps(start: int, dilation: int, kernel: int, low: int, high: int) -> int:
    """How many of `kernel` taps from `start` on, `dilation` apart, lie in low..high."""
    first = max(0, (low - start + dilation - 1) // dilation)
    return max(0, min(kernel, (high - 1 - start) // dilation + 1) - first)


@register_jitable
def _counts(counts: Any, count: int, start: int, stride: int, dilation: int, kernel: int, low: int, high: int) -> None:
    for i in range(count):
        counts[i] = _taps(start + i * stride, dilation, kernel, low, high)


_LIMITS = ", i8, i8, i8, i8"
"""The rows and columns (low and high each) in which a tap counts for the average."""


@generic(f"T[r,:], T[r,:], T[w,:]{_POOL}{_LIMITS}")
def average_pool(x, y, counts, h, w, oh, ow, kh, kw, sh, sw, dh, dw, top, left, row_low, row_high, low, high):                # type: ignore
    """Sums of the elements met, divided by how many taps count."""
    _counts(counts, ow, -left, sw, dw, kw, low, high)
    for plane in range(y.shape[0]):
        source = x[plane]
        for oy in range(oh):
            total = y[plane, oy * ow:(oy + 1) * ow]
            for i in range(ow):
                total[i] = 0
            t0, t1 = within(oy * sh - top, kh, dh, h)
            for ky in range(t0, t1):
                row = oy * sh + ky * dh - top
                for kx in range(kw):
                    shift = kx * dw - left
                    first, last = within(shift, ow, sw, w)
                    taps, found = source[row * w + shift + first * sw:], total[first:last]
                    for i in range(last - first):
                        found[i] += taps[i * sw]
            rows = y.dtype.type(_taps(oy * sh - top, dh, kh, row_low, row_high))
            for i in range(ow):
                total[i] /= max(rows * counts[i], y.dtype.type(1))


@generic(f"T[r,:], T[r,:], T[w,:], T[w,:]{_POOL}{_LIMITS}")
def average_pool_gradient(g, dx, counts, shares, h, w, oh, ow, kh, kw, sh, sw, dh, dw, top, left, row_low, row_high, low, high):   # type: ignore
    """dx = the sum of the shares of the windows that meet each element."""
    _counts(counts, ow, -left, sw, dw, kw, low, high)
    for plane in range(dx.shape[0]):
        target = dx[plane]
        for i in range(h * w):
            target[i] = 0
        for oy in range(oh):
            rows = g.dtype.type(_taps(oy * sh - top, dh, kh, row_low, row_high))
            gradient = g[plane, oy * ow:(oy + 1) * ow]
            for i in range(ow):
                shares[i] = gradient[i] / max(rows * counts[i], g.dtype.type(1))
            t0, t1 = within(oy * sh - top, kh, dh, h)
            for ky in range(t0, t1):
                row = oy * sh + ky * dh - top
                for kx in range(kw):
                    shift = kx * dw - left
                    first, last = within(shift, ow, sw, w)
                    taps = target[row * w + shift + first * sw:]
                    for i in range(last - first):
                        taps[i * sw] += shares[first + i]


@generic("T[r,:], T[r]", fastmath={"contract", "reassoc", "nsz", "arcp", "afn"})
def row_means(x: Any, y: Any) -> None:
    """y = the mean of each row of x."""
    for r in range(y.shape[0]):
        total, row = x.dtype.type(0), x[r]
        for i in range(row.shape[0]):
            total += row[i]
        y[r] = total / x.dtype.type(row.shape[0])


# ---- calls -----------------------------------------------------------------------------------------------------------------------

def _run(leaf: Leaf, args: tuple[Any, ...], planes: int, ns_per_plane: float) -> list[Call]:
    """Planes in pieces of about 5 us, so that a piece outweighs what it costs to hand out."""
    return [Call(leaf, args, planes, max(1, int(5000 / (ns_per_plane + 1))), planes * ns_per_plane)]


def _step(p: Pool) -> int:
    """The horizontal stride where it has code of its own, else 0."""
    return p.sw if p.sw <= 2 else 0


def max_pool(p: Pool, planes: int, dtype: str, path: cpu.Cpu) -> list[Call]:
    """Maxima (output 0) of input 0."""
    arrays = (In(0, (planes, p.h * p.w)), Out(0, (planes, p.oh * p.ow)))
    if p.halves and path.name != "generic":
        return _run(_max_halves(dtype, path), (*arrays, p.h, p.w, p.oh, p.ow), planes, p.oh * (4 + p.ow * 0.4))
    return _run(_max_pool(dtype, path, _step(p)), (*arrays, *p.numbers), planes, p.oh * (p.ow * p.kh * p.kw * 0.2 + 20))


def max_pool_with_indices(p: Pool, planes: int, dtype: str, path: cpu.Cpu) -> list[Call]:
    """Maxima (output 0) of input 0 and their places in the tensor (output 1, int64; -1 where a window lies in the padding)."""
    out = (planes, p.oh * p.ow)
    args = (In(0, (planes, p.h * p.w)), Out(0, out), Out(1, out), Work("where", (p.ow,), "i4"), *p.numbers)
    return _run(_max_indices(dtype, path, _step(p)), args, planes, p.oh * (p.ow * (p.kh * p.kw * 0.2 + 1) + 20))


def max_gradient(p: Pool, planes: int, dtype: str, path: cpu.Cpu) -> list[Call]:
    """dx (output 0) from the gradient of the maxima (input 0) and x (1)."""
    arrays = (In(0, (planes, p.oh * p.ow)), In(1, (planes, p.h * p.w)), Out(0, (planes, p.h * p.w)))
    if p.halves and path.name != "generic":
        return _run(_max_halves_gradient(dtype, path), (*arrays, p.h, p.w, p.oh, p.ow), planes, p.oh * (8 + p.ow * 0.8))
    return _run(_max_gradient(dtype, path, _step(p)), (*arrays, Work("where", (p.ow,), "i4"), *p.numbers), planes,
                p.oh * (p.ow * (p.kh * p.kw * 0.2 + 2) + 20) + p.h * p.w * 0.1)


def average(p: Pool, limits: tuple[int, int, int, int], planes: int, dtype: str) -> list[Call]:
    """Averages (output 0) of input 0; taps in `limits` (rows low, high, columns low, high) count."""
    args = (In(0, (planes, p.h * p.w)), Out(0, (planes, p.oh * p.ow)), Work("counts", (p.ow,), dtype), *p.numbers, *limits)
    return _run(average_pool[dtype], args, planes, p.oh * (p.ow * p.kh * p.kw * 0.5 + 20))


def average_gradient(p: Pool, limits: tuple[int, int, int, int], planes: int, dtype: str) -> list[Call]:
    """dx (output 0) from the gradient of the averages (input 0)."""
    args = (In(0, (planes, p.oh * p.ow)), Out(0, (planes, p.h * p.w)), Work("counts", (p.ow,), dtype), Work("shares", (p.ow,), dtype),
            *p.numbers, *limits)
    return _run(average_pool_gradient[dtype], args, planes, p.oh * (p.ow * p.kh * p.kw * 0.7 + 20) + p.h * p.w * 0.1)


def means(planes: int, size: int, dtype: str) -> list[Call]:
    """The mean (output 0) of each plane of input 0."""
    return _run(row_means[dtype], (In(0, (planes, size)), Out(0, (planes,))), planes, size * 0.15 + 5)
