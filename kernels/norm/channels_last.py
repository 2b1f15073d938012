"""Batch normalisation over rows of channels: x [rows, channels], as channels-last images are seen. Vectors run over channels.

Statistics are read once from memory: blocks of rows that fit the first-level cache get their own mean and then the squares of
differences from it; blocks are combined in float64 as by Chan, Golub and LeVeque (Technical Report STAN-CS-79-773, 1979). So a
mean far from zero costs no accuracy. Blocks have fixed sizes and are combined in order, whoever computes them.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llvmlite import ir

from ..elementwise.epilogue import Epilogue, arguments, finisher
from ..isa import cpu, mathlib
from ..isa.half import borrowed
from ..isa.vector import Emitter, inlined_code, itemsize, vector, word
from ..machine.call import Address, Call, In, Out, Work
from ..machine.called import CALLED
from ..machine.leaf import Leaf
from ..machine.places import address_of
from ..streamed import own_form

BYTES = 16 << 10
"""Of one array in a block of rows."""
UNIT = 16
"""Blocks whose partial results are combined by one unit of the range."""


def block_rows(channels: int, dtype: str) -> int:
    """Rows of a block."""
    return max(8, min(256, BYTES // max(1, channels * itemsize(dtype))))


# ---- vector code over a block -------------------------------------------------------------------------------------------------

class Columns:
    """Emits code over the columns of a block, `count` vectors of channels at a time, then single ones, the last one masked."""

    def __init__(self, e: Emitter, dtype: str, columns: Any) -> None:
        self.e, self.b, self.columns = e, e.b, columns
        self.size = itemsize(dtype)
        self.lanes = e.path.lanes(self.size)
        self.kind = vector(dtype, self.lanes)

    def each(self, count: int, body: Callable[..., None]) -> None:
        """body(load, store, number of vectors) per strip; load(address of a row) and store(values, address) see its columns."""
        whole = self.b.and_(self.columns, word(-count * self.lanes)) if count & (count - 1) == 0 else self.e.times(
            self.b.udiv(self.columns, word(count * self.lanes)), count * self.lanes)
        self.e.loop(0, whole, count * self.lanes, [], lambda j, _: self._strip(j, count, None, body))
        self.e.loop(whole, self.columns, self.lanes, [], lambda j, _: self._strip(
            j, 1, self.e.first(self.b.sub(self.columns, j), self.lanes), body))

    def _strip(self, column: Any, count: int, mask: Any, body: Callable[..., None]) -> None:
        offset = self.e.times(column, self.size)

        def places(row: Any) -> list[Any]:
            return [self.e.address(row, offset, v * self.lanes * self.size) for v in range(count)]

        def load(row: Any) -> list[Any]:
            return [self.e.load(place, self.kind, mask) for place in places(row)]

        def store(values: Sequence[Any], row: Any) -> None:
            for value, place in zip(values, places(row), strict=True):
                self.e.store(value, place, mask)
        body(load, store, count)

    def zeros(self, count: int) -> list[Any]:
        return [mathlib.constant(self.kind, 0.0)] * count

    def over(self, rows: Any, bases: Sequence[Any], steps: Sequence[Any], carried: Sequence[Any], body: Callable[..., Sequence[Any]]) -> list[Any]:
        """body(addresses of a row, carried) -> carried for each row."""
        def row(_: Any, state: list[Any]) -> list[Any]:
            at, values = state[:len(bases)], state[len(bases):]
            return [*(self.b.add(a, s) for a, s in zip(at, steps, strict=True)), *body(at, values)]
        return self.e.loop(0, rows, 1, [*bases, *carried], row)[len(bases):]


def _moments(e: Emitter, dtype: str, rows: Any, columns: Any, x: Any, x_row: Any, out: Any, out_row: Any) -> None:
    """out = [m, sum of x - m, sum of (x - m)^2] per channel, m being the block's rounded mean."""
    c = Columns(e, dtype, columns)
    b = e.b
    inverse = e.splat(b.fdiv(ir.Constant(c.kind.element, 1.0), b.sitofp(rows, c.kind.element)), c.lanes)

    def strip(load: Any, store: Any, count: int) -> None:
        sums = c.over(rows, [x], [x_row], c.zeros(count), lambda at, s: [b.fadd(t, v) for t, v in zip(s, load(at[0]), strict=True)])
        means = [b.fmul(s, inverse) for s in sums]

        def add(at: list[Any], state: list[Any]) -> list[Any]:
            apart = [b.fsub(v, m) for v, m in zip(load(at[0]), means, strict=True)]
            rest = [b.fadd(s, d) for s, d in zip(state[:count], apart, strict=True)]
            return [*rest, *(e.fma(d, d, s) for s, d in zip(state[count:], apart, strict=True))]
        found = c.over(rows, [x], [x_row], c.zeros(2 * count), add)
        for k, values in enumerate((means, found[:count], found[count:])):
            store(values, e.address(out, e.times(out_row, k)))
    c.each(4, strip)


def _products(e: Emitter, dtype: str, rows: Any, columns: Any, g: Any, x: Any, x_row: Any, mean: Any, out: Any, out_row: Any) -> None:
    """out = [sum of g, sum of g * (x - mean)] per channel."""
    c = Columns(e, dtype, columns)

    def strip(load: Any, store: Any, count: int) -> None:
        means = load(mean)

        def add(at: list[Any], state: list[Any]) -> list[Any]:
            gs, apart = load(at[0]), [e.b.fsub(v, m) for v, m in zip(load(at[1]), means, strict=True)]
            sums = [e.b.fadd(s, v) for s, v in zip(state[:count], gs, strict=True)]
            return [*sums, *(e.fma(v, d, s) for s, v, d in zip(state[count:], gs, apart, strict=True))]
        found = c.over(rows, [g, x], [x_row, x_row], c.zeros(2 * count), add)
        for k in range(2):
            store(found[k * count:(k + 1) * count], e.address(out, e.times(out_row, k)))
    c.each(2, strip)


def _normalise(e: Emitter, dtype: str, rows: Any, columns: Any, x: Any, x_row: Any, y: Any, mean: Any, factor: Any, shift: Any) -> None:
    """y = (x - mean) * factor + shift."""
    c = Columns(e, dtype, columns)

    def strip(load: Any, store: Any, count: int) -> None:
        means, factors, shifts = load(mean), load(factor), load(shift)

        def put(at: list[Any], _: list[Any]) -> list[Any]:
            values = zip(load(at[0]), means, factors, shifts, strict=True)
            store([e.fma(e.b.fsub(v, m), f, s) for v, m, f, s in values], at[1])
            return []
        c.over(rows, [x, y], [x_row, x_row], [], put)
    c.each(4, strip)


def _pull(e: Emitter, dtype: str, rows: Any, columns: Any, g: Any, x: Any, x_row: Any, dx: Any, mean: Any, tilt: Any, level: Any,
          factor: Any) -> None:
    """dx = (g - (x - mean) * tilt - level) * factor."""
    c = Columns(e, dtype, columns)

    def strip(load: Any, store: Any, count: int) -> None:
        means, tilts, levels, factors = load(mean), [e.b.fneg(t) for t in load(tilt)], load(level), load(factor)

        def put(at: list[Any], _: list[Any]) -> list[Any]:
            values = zip(load(at[0]), load(at[1]), means, tilts, levels, factors, strict=True)
            store([e.b.fmul(e.b.fsub(e.fma(e.b.fsub(v, m), t, u), k), f) for u, v, m, t, k, f in values], at[2])
            return []
        c.over(rows, [g, x, dx], [x_row] * 3, [], put)
    c.each(2, strip)


_EMIT: dict[str, tuple[str, Callable[..., None]]] = {
    "moments": ("rows, columns, x, x_row, out, out_row", _moments),
    "products": ("rows, columns, g, x, x_row, mean, out, out_row", _products),
    "normalise": ("rows, columns, x, x_row, y, mean, factor, shift", _normalise),
    "pull": ("rows, columns, g, x, x_row, dx, mean, tilt, level, factor", _pull),
}


@functools.cache
def _over_block(kind: str, dtype: str, path: cpu.Cpu) -> Any:
    parameters, emit = _EMIT[kind]
    return inlined_code(f"norm_last_{kind}_{dtype}_{path.name}", parameters, path, lambda e, *words: emit(e, dtype, *words))


# ---- leaves ----------------------------------------------------------------------------------------------------------------------

def _letters(dtype: str, own: Sequence[str]) -> list[str]:
    """The types in which arrays lie: those of `own`, or the kernel's."""
    return [letter or dtype for letter in own]


def _form(dtype: str, own: Sequence[str], make: Callable[[tuple[str, ...]], Leaf], arrays: Sequence[int], spare: int) -> Any:
    """`Leaf.narrowed` of a leaf over blocks of rows of its parameter 0."""
    def room(args: Sequence[Any]) -> int:
        channels = int(args[0].shape[1])
        return len(arrays) * channels * block_rows(channels, dtype)
    return own_form(make, arrays, spare, room) if dtype == "f4" and not any(own) else None


@functools.cache
def _batch_moments(dtype: str, path: cpu.Cpu, own: tuple[str, ...] = ("",)) -> Leaf:
    """`own`: the 16-bit type in which x lies, if it does."""
    moments, size, (take, _, _) = _over_block("moments", dtype, path), itemsize(dtype), borrowed(dtype, own[0])

    def batch_moments(x, partial, out, spare, block, lo, hi):                                                                       # type: ignore
        """partial[unit] = [mean, sum of squares of differences from it] of UNIT blocks of rows."""
        rows, channels = x.shape
        for unit in range(lo, hi):
            mean, squares = partial[unit, 0], partial[unit, 1]
            mean[:], squares[:] = 0.0, 0.0
            seen = 0.0
            start, stop = unit * UNIT * block, min(rows, (unit + 1) * UNIT * block)
            for first in range(start, stop, block):
                height = min(block, stop - first)
                moments(height, channels, take(x, first * channels, height * channels, spare, 0), channels * size, address_of(out), channels * size)
                count = float(height)
                share, weight = count / (seen + count), seen * count / (seen + count)
                for c in range(channels):
                    rest = float(out[1, c])
                    apart = float(out[0, c]) + rest / count - mean[c]
                    mean[c] += apart * share
                    squares[c] += float(out[2, c]) - rest * rest / count + apart * apart * weight
                seen += count

    x, = _letters(dtype, own)
    return Leaf(batch_moments, f"{x}[:,:], f8[:,:,:], {dtype}[w,:,:], {dtype}[w,:], i8, lo, hi", key=path.name,
                narrowed=_form(dtype, own, lambda letters: _batch_moments(dtype, path, letters), (0,), 3))


def _batch_statistics(partial, scale, means, variances, inverses, factors, rows, block, epsilon, lo, hi):                    # type: ignore
    """The moments of all units together, in those of the first; a unit of range is a channel."""
    mean, squares = partial[0, 0, lo:hi], partial[0, 1, lo:hi]
    seen = float(min(rows, UNIT * block))
    for unit in range(1, partial.shape[0]):
        count = float(min(rows, (unit + 1) * UNIT * block) - unit * UNIT * block)
        share, weight = count / (seen + count), seen * count / (seen + count)
        other, more = partial[unit, 0, lo:hi], partial[unit, 1, lo:hi]
        for c in range(hi - lo):
            apart = other[c] - mean[c]
            mean[c] += apart * share
            squares[c] += more[c] + apart * apart * weight
        seen += count
    for c in range(lo, hi):
        variance = squares[c - lo] / float(rows)
        inverse = 1.0 / math.sqrt(variance + epsilon)
        means[c], variances[c], inverses[c], factors[c] = mean[c - lo], variance, inverse, inverse * scale[c]


@functools.cache
def _batch_normalise(dtype: str, path: cpu.Cpu, own: tuple[str, ...] = ("", "")) -> Leaf:
    """`own`: the 16-bit types in which x and y lie, if they do; an epilogue reads y in the kernel's."""
    normalise, finish, size = _over_block("normalise", dtype, path), finisher(), itemsize(dtype)
    (take, _, _), (_, room, give) = (borrowed(dtype, letter) for letter in own)

    def batch_normalise(x, shift, y, means, factors, spare, block, lo, hi, epilogue, rest):  # type: ignore
        """A unit of range is a block of rows."""
        rows, channels = x.shape
        for unit in range(lo, hi):
            at = unit * block * channels
            height = min(block, rows - unit * block)
            many = height * channels
            normalise(height, channels, take(x, at, many, spare, 0), channels * size, room(y, at, many, spare, many),
                      address_of(means), address_of(factors), address_of(shift))
            give(y, at, many, spare, many)
            finish(epilogue, rest, height, channels, address_of(y), at, channels, 0)

    flat = f"{dtype}[:]"
    x, y = _letters(dtype, own)
    narrow = _form(dtype, own, lambda letters: _batch_normalise(dtype, path, letters), (0, 2), 5)

    def narrowed(call: Call, letters: Mapping[int, str]) -> Call | None:
        return None if 2 in letters and call.args[7] != Address() else narrow(call, letters)

    signature = f"{x}[:,:], {flat}, {y}[:,:], {flat}, {flat}, {dtype}[w,:], i8, lo, hi{CALLED}"
    return Leaf(batch_normalise, signature, key=path.name, narrowed=narrow and narrowed)


@functools.cache
def _batch_products(dtype: str, path: cpu.Cpu, own: tuple[str, ...] = ("", "")) -> Leaf:
    """`own`: the 16-bit types in which g and x lie, if they do."""
    products, size = _over_block("products", dtype, path), itemsize(dtype)
    (take_g, _, _), (take_x, _, _) = (borrowed(dtype, letter) for letter in own)

    def batch_products(g, x, means, partial, out, spare, block, lo, hi):                                                            # type: ignore
        """partial[unit] = [sum of g, sum of g * (x - mean)] of UNIT blocks of rows."""
        rows, channels = x.shape
        for unit in range(lo, hi):
            total, product = partial[unit, 0], partial[unit, 1]
            total[:], product[:] = 0.0, 0.0
            stop = min(rows, (unit + 1) * UNIT * block)
            for first in range(unit * UNIT * block, stop, block):
                at, height = first * channels, min(block, stop - first)
                many = height * channels
                products(height, channels, take_g(g, at, many, spare, 0), take_x(x, at, many, spare, many), channels * size,
                         address_of(means), address_of(out), channels * size)
                for c in range(channels):
                    total[c] += float(out[0, c])
                    product[c] += float(out[1, c])

    g, x = _letters(dtype, own)
    return Leaf(batch_products, f"{g}[:,:], {x}[:,:], {dtype}[:], f8[:,:,:], {dtype}[w,:,:], {dtype}[w,:], i8, lo, hi", key=path.name,
                narrowed=_form(dtype, own, lambda letters: _batch_products(dtype, path, letters), (0, 1), 5))


def _batch_slopes(partial, scale, inverses, dscale, dshift, tilts, levels, factors, rows, lo, hi):                           # type: ignore
    """The gradients per channel and what `pull` needs; a unit of range is a channel."""
    total, product = partial[0, 0, lo:hi], partial[0, 1, lo:hi]
    for unit in range(1, partial.shape[0]):
        more, further = partial[unit, 0, lo:hi], partial[unit, 1, lo:hi]
        for c in range(hi - lo):
            total[c] += more[c]
            product[c] += further[c]
    for c in range(lo, hi):
        inverse, count = float(inverses[c]), float(rows)
        dshift[c], dscale[c] = total[c - lo], product[c - lo] * inverse
        tilts[c], levels[c] = product[c - lo] * inverse * inverse / count, total[c - lo] / count
        factors[c] = scale[c] * inverse


@functools.cache
def _batch_pull(dtype: str, path: cpu.Cpu, own: tuple[str, ...] = ("", "", "")) -> Leaf:
    """`own`: the 16-bit types in which g, x and dx lie, if they do."""
    pull, size = _over_block("pull", dtype, path), itemsize(dtype)
    (take_g, _, _), (take_x, _, _), (_, room, give) = (borrowed(dtype, letter) for letter in own)

    def batch_pull(g, x, means, dx, tilts, levels, factors, spare, block, lo, hi):                                                  # type: ignore
        """A unit of range is a block of rows."""
        rows, channels = x.shape
        for unit in range(lo, hi):
            at, height = unit * block * channels, min(block, rows - unit * block)
            many = height * channels
            pull(height, channels, take_g(g, at, many, spare, 0), take_x(x, at, many, spare, many), channels * size,
                 room(dx, at, many, spare, 2 * many), address_of(means), address_of(tilts), address_of(levels), address_of(factors))
            give(dx, at, many, spare, 2 * many)

    flat, (g, x, dx) = f"{dtype}[:]", _letters(dtype, own)
    return Leaf(batch_pull, f"{g}[:,:], {x}[:,:], {flat}, {dx}[:,:], {flat}, {flat}, {flat}, {dtype}[w,:], i8, lo, hi", key=path.name,
                narrowed=_form(dtype, own, lambda letters: _batch_pull(dtype, path, letters), (0, 1, 3), 7))


@functools.cache
def _per_channel(kind: str, t: str) -> Leaf:
    flat = f"{t}[:]"
    if kind == "statistics":
        return Leaf(_batch_statistics, f"f8[:,:,:]{f', {flat}' * 5}, i8, i8, f8, lo, hi")
    return Leaf(_batch_slopes, f"f8[:,:,:]{f', {flat}' * 7}, i8, lo, hi")


# ---- calls -------------------------------------------------------------------------------------------------------------------------

def batch_norm(rows: int, channels: int, dtype: str, epsilon: float, path: cpu.Cpu, epilogue: Epilogue | None = None) -> list[Call]:
    """Batch normalisation of input 0 [rows, channels] with scale (1) and shift (2): y (0), mean (1), variance (2), 1 / std (3)."""
    table, small, block = (rows, channels), (channels,), block_rows(channels, dtype)
    units, size = -(-rows // (UNIT * block)), rows * channels
    partial, factors, spare = Work("partial", (units, 2, channels), "f8"), Work("factors", small, dtype), Work("spare", (1,), dtype)
    moved = size * itemsize(dtype)
    return [
        Call(_batch_moments(dtype, path), (In(0, table), partial, Work("block", (3, channels), dtype), spare, block), units, 1, moved * 0.06),
        Call(_per_channel("statistics", dtype), (partial, In(1, small), *(Out(i, small) for i in (1, 2, 3)), factors, rows, block, epsilon),
             channels, 64, channels * (units + 20.0)),
        Call(_batch_normalise(dtype, path),
             (In(0, table), In(2, small), Out(0, table), Out(1, small), factors, spare, block, *arguments(epilogue)),
             -(-rows // block), 1, moved * 0.09 + (epilogue.cost if epilogue else 0.0))]


def batch_norm_grad(rows: int, channels: int, dtype: str, path: cpu.Cpu) -> list[Call]:
    """(g, x, scale, mean, 1 / std) to the gradients of x, scale and shift."""
    table, small, block = (rows, channels), (channels,), block_rows(channels, dtype)
    units, moved = -(-rows // (UNIT * block)), rows * channels * itemsize(dtype)
    partial, spare = Work("partial", (units, 2, channels), "f8"), Work("spare", (1,), dtype)
    slopes = [Work(what, small, dtype) for what in ("tilts", "levels", "factors")]
    return [
        Call(_batch_products(dtype, path), (In(0, table), In(1, table), In(3, small), partial, Work("block", (2, channels), dtype), spare, block),
             units, 1, moved * 0.09),
        Call(_per_channel("slopes", dtype), (partial, In(2, small), In(4, small), Out(1, small), Out(2, small), *slopes, rows),
             channels, 64, channels * (units + 20.0)),
        Call(_batch_pull(dtype, path), (In(0, table), In(1, table), In(3, small), Out(0, table), *slopes, spare, block),
             -(-rows // block), 1, moved * 0.13)]
