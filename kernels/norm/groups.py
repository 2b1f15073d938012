"""Group normalisation over planes: a row is one sample's one group, [channels of the group, inner] side by side in memory.

Statistics take two passes over a row, as those of layers do; the gradient takes one for all its sums, a channel at a time. A row's arrays mostly
stay in the second-level cache from pass to pass. All sums of a row are of its own unit, so no thread changes a bit.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from ..isa import cpu
from ..isa.vector import inlined_code, itemsize
from ..machine.call import Call, In, Out, Work
from ..machine.leaf import Leaf
from ..machine.places import address_of
from ..rows import Rows
from .planar import UNROLL, add_blocks, centred, norm_pass, nothing

COLUMNS = 64              # channels whose sums over the samples are formed by one unit of the range


# ---- emitted passes over the channels of a row ---------------------------------------------------------------------------------------

def _each(r: Rows, channels: Any, step: Any, smalls: Sequence[Any], arrays: Sequence[Any], size: int, body: Callable[..., None]) -> None:
    """body(small addresses, array addresses) per channel; `step` bytes from channel to channel, `size` between a small array's elements."""
    def channel(_: Any, at: list[Any]) -> list[Any]:
        body(at[:len(smalls)], at[len(smalls):])
        return [*(r.e.address(a, size) for a in at[:len(smalls)]), *(r.e.address(a, step) for a in at[len(smalls):])]
    r.e.loop(0, channels, 1, [*smalls, *arrays], channel)


def _normalise(dtype: str) -> Any:
    """y = (x - mean) * (inverse * scale) + shift; numbers: mean, inverse."""
    def emit(e: Any, channels: Any, n: Any, step: Any, numbers: Any, scale: Any, shift: Any, x: Any, y: Any) -> None:
        r = Rows(e, dtype, n)
        mean, inverse = (r.splat(e.load(e.address(numbers, k * r.size), r.element)) for k in range(2))

        def channel(small: list[Any], at: list[Any]) -> None:
            factor, offset = (r.splat(e.load(a, r.element)) for a in small)
            factor = r.b.fmul(inverse, factor)
            r.map(at[1], lambda place, mask: e.fma(centred(r, mean, at[0], place, mask), factor, offset), UNROLL)
        _each(r, channels, step, (scale, shift), (x, y), r.size, channel)
    return emit


def _products(dtype: str) -> Any:
    """shifts = sum of g, scales = sum of g * (x - mean), both float64, per channel; numbers: mean."""
    def emit(e: Any, channels: Any, n: Any, step: Any, numbers: Any, scales: Any, shifts: Any, g: Any, x: Any) -> None:
        r = Rows(e, dtype, n)
        mean = r.splat(e.load(numbers, r.element))

        def channel(small: list[Any], at: list[Any]) -> None:
            def terms(place: Any, mask: Any) -> list[Any]:
                value = r.load(at[0], place, mask)
                return [r.b.fmul(value, centred(r, mean, at[1], place, mask)), value]
            for total, target in zip(add_blocks(e, dtype, n, [nothing(r)] * 2, terms), small, strict=True):
                e.store(r.fold(total, e.b.fadd), target)
        _each(r, channels, step, (scales, shifts), (g, x), 8, channel)
    return emit


def _pull(dtype: str) -> Any:
    """dx = (g * scale - level - (x - mean) * tilt) * inverse; numbers: mean, inverse, tilt, level."""
    def emit(e: Any, channels: Any, n: Any, step: Any, numbers: Any, scale: Any, g: Any, x: Any, dx: Any) -> None:
        r = Rows(e, dtype, n)
        mean, inverse, tilt, level = (r.splat(e.load(e.address(numbers, k * r.size), r.element)) for k in range(4))
        tilt, level = r.b.fneg(tilt), r.b.fneg(level)

        def channel(small: list[Any], at: list[Any]) -> None:
            own = r.splat(e.load(small[0], r.element))

            def pulled(place: Any, mask: Any) -> Any:
                h = e.fma(r.load(at[0], place, mask), own, level)
                return r.b.fmul(e.fma(centred(r, mean, at[1], place, mask), tilt, h), inverse)
            r.map(at[2], pulled, UNROLL)
        _each(r, channels, step, (scale,), (g, x, dx), r.size, channel)
    return emit


@functools.cache
def _pass(name: str, dtype: str, path: cpu.Cpu) -> Any:
    """A function over the channels of one row: channels, n, bytes from channel to channel, numbers, small arrays, arrays."""
    emit, arrays = {"normalise": (_normalise, "scale, shift, x, y"), "products": (_products, "scales, shifts, g, x"),
                    "pull": (_pull, "scale, g, x, dx")}[name]
    return inlined_code(f"tileflow_group_{name}_{dtype}_{path.name}", f"channels, n, step, numbers, {arrays}", path, emit(dtype))


# ---- leaves --------------------------------------------------------------------------------------------------------------------------

@functools.cache
def _group_norm(t: str, path: cpu.Cpu) -> Leaf:
    size, sums, squares, columns = itemsize(t), *(norm_pass(name, t, path) for name in ("sum", "row_squares", "layer_map"))
    put = _pass("normalise", t, path)

    def group_norm(x: Any, scale: Any, shift: Any, y: Any, means: Any, inverses: Any, numbers: Any, totals: Any,
                   lo: int, groups: int, width: int, inner: int, epsilon: float) -> None:
        """Normalise each row by its own mean and variance, then by its channels' scale and shift."""
        n, count = width * inner, float(width * inner)
        for r in range(y.shape[0]):
            at, first = r * n * size, (lo + r) % groups * width * size
            sums(1, n, 0, address_of(numbers), address_of(totals), address_of(x) + at)
            numbers[0] = totals[0] / count
            squares(1, n, 0, address_of(numbers), address_of(totals), address_of(x) + at)
            numbers[1] = 1.0 / math.sqrt(totals[0] / count + epsilon)
            means[r], inverses[r] = numbers[0], numbers[1]
            own_scale, own_shift = address_of(scale) + first, address_of(shift) + first
            if inner == 1:
                columns(1, n, 0, address_of(numbers), address_of(x) + at, own_scale, own_shift, address_of(y) + at)
            else:
                put(width, inner, inner * size, address_of(numbers), own_scale, own_shift, address_of(x) + at, address_of(y) + at)

    row, flat, one = f"{t}[r,:]", f"{t}[:]", f"{t}[r]"
    return Leaf(group_norm, f"{row}, {flat}, {flat}, {row}, {one}, {one}, {t}[w,:], f8[w,:], lo, i8, i8, i8, f8", key=path.name)


@functools.cache
def _group_norm_grad(t: str, path: cpu.Cpu) -> Leaf:
    size, products, pull = itemsize(t), _pass("products", t, path), _pass("pull", t, path)

    def group_norm_grad(g: Any, x: Any, scale: Any, means: Any, inverses: Any, dx: Any, scales: Any, shifts: Any, numbers: Any,
                        lo: int, groups: int, width: int, inner: int) -> None:
        """dx = inverse (h - mean(h) - xhat mean(h xhat)) with h = g scale; scales, shifts: each row's sums of g xhat and g per channel."""
        n, count = width * inner, float(width * inner)
        for r in range(dx.shape[0]):
            at, first, inverse = r * n * size, (lo + r) % groups * width, float(inverses[r])
            own, of_scale, of_shift = scale[first:first + width], scales[r], shifts[r]
            numbers[0], numbers[1] = means[r], inverses[r]
            if inner == 1:
                gradient, value, mean = g[r], x[r], means[r]
                for c in range(width):
                    of_shift[c] = gradient[c]
                    of_scale[c] = float(gradient[c]) * float(value[c] - mean)
            else:
                products(width, inner, inner * size, address_of(numbers), address_of(of_scale), address_of(of_shift),
                         address_of(g) + at, address_of(x) + at)
            tilt, level = 0.0, 0.0
            for c in range(width):
                tilt += own[c] * of_scale[c]
                level += own[c] * of_shift[c]
                of_scale[c] *= inverse
            tilt, level = tilt * inverse * inverse / count, level / count
            numbers[2], numbers[3] = tilt, level
            if inner == 1:
                gradient, value, target = g[r], x[r], dx[r]
                mean, factor, slope, even = numbers[0], numbers[1], numbers[2], numbers[3]
                for c in range(width):
                    target[c] = (gradient[c] * own[c] - even - (value[c] - mean) * slope) * factor
            else:
                pull(width, inner, inner * size, address_of(numbers), address_of(own), address_of(g) + at, address_of(x) + at, address_of(dx) + at)

    row, flat, one = f"{t}[r,:]", f"{t}[:]", f"{t}[r]"
    return Leaf(group_norm_grad, f"{row}, {row}, {flat}, {one}, {one}, {row}, f8[r,:], f8[r,:], {t}[w,:], lo, i8, i8, i8", key=path.name)


def _over_samples(scales: Any, shifts: Any, dscale: Any, dshift: Any, lo: int, hi: int) -> None:
    """The sums of all samples, in those of the first, then as they are wanted; a unit of range is a strip of COLUMNS channels."""
    for unit in range(lo, hi):
        first, last = unit * COLUMNS, min(dscale.shape[0], (unit + 1) * COLUMNS)
        of_scale, of_shift = scales[0, first:last], shifts[0, first:last]
        for k in range(1, scales.shape[0]):
            more, further = scales[k, first:last], shifts[k, first:last]
            for c in range(last - first):
                of_scale[c] += more[c]
                of_shift[c] += further[c]
        target, other = dscale[first:last], dshift[first:last]
        for c in range(last - first):
            target[c], other[c] = of_scale[c], of_shift[c]


@functools.cache
def _samples_leaf(t: str) -> Leaf:
    return Leaf(_over_samples, f"f8[:,:], f8[:,:], {t}[:], {t}[:], lo, hi")


# ---- calls -------------------------------------------------------------------------------------------------------------------------

def group_norm_calls(samples: int, groups: int, width: int, inner: int, t: str, epsilon: float, kept: Sequence[Out | Work]) -> list[Call]:
    """Input 0 [samples, groups * width, inner] normalised with scale (1) and shift (2) to output 0; `kept`: where mean and 1 / std go, [rows]."""
    rows, n, small = samples * groups, width * inner, (groups * width,)
    args = (In(0, (rows, n)), In(1, small), In(2, small), Out(0, (rows, n)), *kept, Work("numbers", (4,), t), Work("totals", (2,), "f8"),
            groups, width, inner, epsilon)
    return [Call(_group_norm(t, cpu.current()), args, rows, max(1, 2048 // max(1, n)), rows * (n * 0.4 + width * 4.0 + 30.0))]


def group_norm_grad_calls(samples: int, groups: int, width: int, inner: int, t: str) -> list[Call]:
    """(g, x, scale, mean, 1 / std) to the gradients of x, scale and shift; no size is 0."""
    rows, n, channels = samples * groups, width * inner, groups * width
    parts = [Work(f"parts of {name}", (rows, width), "f8") for name in ("scale", "shift")]
    args = (In(0, (rows, n)), In(1, (rows, n)), In(2, (channels,)), In(3, (rows,)), In(4, (rows,)), Out(0, (rows, n)), *parts,
            Work("numbers", (4,), t), groups, width, inner)
    table = [Work(p.name, (samples, channels), "f8") for p in parts]
    return [Call(_group_norm_grad(t, cpu.current()), args, rows, max(1, 2048 // max(1, n)), rows * (n * 0.6 + width * 8.0 + 40.0)),
            Call(_samples_leaf(t), (*table, Out(1, (channels,)), Out(2, (channels,))), -(-channels // COLUMNS), 1, samples * channels * 0.5)]
