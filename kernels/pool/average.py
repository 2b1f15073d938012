"""Averages over planes [h, w] of NCHW tensors, and their gradients: the sums of one axis after the other."""
from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from ..isa import cpu
from ..isa.vector import itemsize
from ..machine.call import Call, In, Out, Work
from ..machine.inner import register_jitable
from ..machine.leaf import Leaf, generic
from ..machine.places import address_of, within
from . import separable
from .planar import POOL, Pool, run
from .separable import Form, columns, fold, form_of, whole


@register_jitable
def taps_within(start: int, dilation: int, kernel: int, low: int, high: int) -> int:
    """How many of `kernel` taps from `start` on, `dilation` apart, lie in low..high."""
    first = max(0, (low - start + dilation - 1) // dilation)
    return max(0, min(kernel, (high - 1 - start) // dilation + 1) - first)


@register_jitable
def _counts(counts: Any, count: int, start: int, stride: int, dilation: int, kernel: int, low: int, high: int) -> None:
    for i in range(count):
        counts[i] = taps_within(start + i * stride, dilation, kernel, low, high)


SPARE = 256 << 10
"""Bytes of a plane's rows that a worker keeps in its second cache."""
_LIMITS = ", i8, i8, i8, i8"
"""The rows and columns (low and high each) in which a tap counts for the average."""


@functools.cache
def _average_pool(dtype: str, form: Form, path: cpu.Cpu) -> Leaf:
    size, down, across = itemsize(dtype), columns("sum", dtype, form.down, path), fold("mean", dtype, form.across, form.stride, path)

    def average_pool(x, y, rows, counts, shares, h, w, oh, ow, kh, kw, sh, sw, dh, dw, top, left, row_low, row_high,  # type: ignore
                     column_low, column_high, pitch):
        """Sums of the elements met, divided by how many taps count."""
        zero = x.dtype.type(0)
        for i in range(rows.shape[0]):
            rows[i] = zero
        _counts(counts, ow, -left, sw, dw, kw, column_low, column_high)
        band, known, (low, high) = rows.shape[0] // pitch, -1, whole(h, oh, kh, sh, dh, top)
        for plane in range(y.shape[0]):
            for first in range(0, oh, band):
                last = min(first + band, oh)
                down(address_of(x) + plane * h * w * size, rows, first, last, low, high, pitch, h, w, kh, sh, dh, top, left, zero)
                at = first
                while at < last:
                    taps, count = kh, min(last, high) - at
                    if not low <= at < high:
                        taps, count = taps_within(at * sh - top, dh, kh, row_low, row_high), 1
                    if taps != known:
                        for i in range(ow):
                            shares[i] = max(x.dtype.type(taps) * counts[i], x.dtype.type(1))
                        known = taps
                    across(count, ow, kw, dw * size, sw * size, address_of(rows) + (at - first) * pitch * size, pitch * size,
                           address_of(y) + (plane * oh + at) * ow * size, ow * size, address_of(shares))
                    at += count

    work = f"{dtype}[w,:], {dtype}[w,:], {dtype}[w,:]"
    return Leaf(average_pool, f"{dtype}[r,:], {dtype}[r,:], {work}{POOL}{_LIMITS}, i8", key=f"{form} {path.name}")


@generic(f"T[r,:], T[r,:], T[w,:], T[w,:], T[w,:]{POOL}{_LIMITS}")
def average_pool_gradient(g, dx, counts, shares, row, h, w, oh, ow, kh, kw, sh, sw, dh, dw, top, left,                        # type: ignore
                          row_low, row_high, low, high):
    """dx = the sum of the shares of the windows that meet each element: what a row of windows gives to a row, then that to its rows."""
    _counts(counts, ow, -left, sw, dw, kw, low, high)
    for plane in range(dx.shape[0]):
        target = dx[plane]
        for i in range(h * w):
            target[i] = 0
        for oy in range(oh):
            rows = g.dtype.type(taps_within(oy * sh - top, dh, kh, row_low, row_high))
            gradient = g[plane, oy * ow:(oy + 1) * ow]
            for i in range(ow):
                shares[i] = gradient[i] / max(rows * counts[i], g.dtype.type(1))
            for i in range(w):
                row[i] = 0
            for kx in range(kw):
                shift = kx * dw - left
                first, last = within(shift, ow, sw, w)
                taps = row[shift + first * sw:]
                if sw == 1:
                    for i in range(last - first):
                        taps[i] += shares[first + i]
                else:
                    for i in range(last - first):
                        taps[i * sw] += shares[first + i]
            t0, t1 = within(oy * sh - top, kh, dh, h)
            for ky in range(t0, t1):
                below = target[(oy * sh + ky * dh - top) * w:]
                for i in range(w):
                    below[i] += row[i]


@functools.cache
def _gradient_planes(dtype: str, form: Form, path: cpu.Cpu) -> Leaf:
    size, down, across = itemsize(dtype), fold("sum", dtype, form.down, 1, path), fold("sum", dtype, form.across, 1, path)

    def average_gradient_planes(g, dx, rows, line, counts, shares, h, w, oh, ow, kh, kw, sh, sw, dh, dw, top, left,          # type: ignore
                                row_low, row_high, column_low, column_high):
        """The same as sums over shares that lie as far apart as their windows, with zeros between and around them."""
        zero = g.dtype.type(0)
        for i in range(rows.shape[0]):
            rows[i] = zero
        for i in range(line.shape[0]):
            line[i] = zero
        _counts(counts, ow, -left, sw, dw, kw, column_low, column_high)
        (low, high), at = whole(h, oh, kh, sh, dh, top), (kw - 1) * dw - left
        i0, i1 = within(at, ow, sw, line.shape[0])
        for plane in range(dx.shape[0]):
            for oy in range(oh):
                row, taps = oy * sh + (kh - 1) * dh - top, g.dtype.type(kh)
                if row < 0 or row >= h + (kh - 1) * dh:                # a window of padding alone
                    continue
                if not low <= oy < high:
                    taps = g.dtype.type(taps_within(oy * sh - top, dh, kh, row_low, row_high))
                gradient = g[plane, oy * ow:(oy + 1) * ow]
                for i in range(ow):
                    shares[i] = gradient[i] / max(taps * counts[i], g.dtype.type(1))
                for i in range(i0, i1):
                    line[at + i * sw] = shares[i]
                across(1, w, kw, dw * size, 0, address_of(line), 0, address_of(rows) + row * w * size, 0, 0)
            down(h, w, kh, dh * w * size, 0, address_of(rows), w * size, address_of(dx) + plane * h * w * size, w * size, 0)

    work = ", ".join([f"{dtype}[w,:]"] * 4)
    return Leaf(average_gradient_planes, f"{dtype}[r,:], {dtype}[r,:], {work}{POOL}{_LIMITS}", key=f"{form} {path.name}")


@generic("T[r,:], T[r]", fastmath={"contract", "reassoc", "nsz", "arcp", "afn"})
def row_means(x: Any, y: Any) -> None:
    """y = the mean of each row of x."""
    for r in range(y.shape[0]):
        total, row = x.dtype.type(0), x[r]
        for i in range(row.shape[0]):
            total += row[i]
        y[r] = total / x.dtype.type(row.shape[0])


# ---- calls -----------------------------------------------------------------------------------------------------------------------

def average(p: Pool, limits: tuple[int, int, int, int], planes: int, dtype: str, path: cpu.Cpu) -> list[Call]:
    """Averages (output 0) of input 0; taps in `limits` (rows low, high, columns low, high) count."""
    if p.whole:                                              # no tap lies outside of the plane
        return means(planes, p.h * p.w, dtype)
    between, pitch = separable.rows(p, dtype, path)
    work = (between, Work("counts", (p.ow,), dtype), Work("shares", (p.ow,), dtype))
    args = (In(0, (planes, p.h * p.w)), Out(0, (planes, p.oh * p.ow)), *work, *p.numbers, *limits, pitch)
    return run(_average_pool(dtype, form_of(p), path), args, planes, separable.cost(p, dtype, path))


def average_gradient(p: Pool, limits: tuple[int, int, int, int], planes: int, dtype: str, path: cpu.Cpu) -> list[Call]:
    """dx (output 0) from the gradient of the averages (input 0)."""
    arrays = (In(0, (planes, p.oh * p.ow)), Out(0, (planes, p.h * p.w)))
    work = (Work("counts", (p.ow,), dtype), Work("shares", (p.ow,), dtype))
    rows, line = (p.h + (p.kh - 1) * p.dh) * p.w, p.w + (p.kw - 1) * p.dw
    if rows * itemsize(dtype) <= SPARE:
        between = Work("rows", (rows,), dtype), Work("line", (line,), dtype)
        cost = separable.cost(replace(p, oh=p.h, ow=p.w, sw=1), dtype, path) + p.oh * (p.ow * 0.6 + 15)
        leaf = _gradient_planes(dtype, form_of(p)._replace(stride=1), path)
        return run(leaf, (*arrays, *between, *work, *p.numbers, *limits), planes, cost)
    args = (*arrays, *work, Work("row", (p.w,), dtype), *p.numbers, *limits)
    cost = p.oh * ((p.ow * p.kw * min(p.sw, 2) + p.w * (p.kh + 1)) * 0.15 + 30) + p.h * p.w * 0.1
    return run(average_pool_gradient[dtype], args, planes, cost)


def means(planes: int, size: int, dtype: str) -> list[Call]:
    """The mean (output 0) of each plane of input 0."""
    return run(row_means[dtype], (In(0, (planes, size)), Out(0, (planes,))), planes, size * 0.15 + 5)
