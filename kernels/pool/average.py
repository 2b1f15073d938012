"""Averages over planes [h, w] of NCHW tensors, and their gradients: the sums of one axis after the other."""
from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from ..isa import cpu
from ..isa.vector import itemsize
from ..machine.call import Call, In, Out, Work
from ..machine.leaf import Leaf, generic
from ..machine.places import address_of, within
from ..sums import block_sum
from . import separable
from .planar import AverageWindow, run
from .separable import FoldForm, columns, fold, form_of, whole


def taps_within(start: int, dilation: int, kernel: int, low: int, high: int) -> int:
    """How many of `kernel` taps from `start` on, `dilation` apart, lie in low..high."""
    first = max(0, (low - start + dilation - 1) // dilation)
    return max(0, min(kernel, (high - 1 - start) // dilation + 1) - first)


def _counts(counts: Any, p: Any) -> None:
    """The taps of a row that count for the windows p (`AverageWindow`) of each column."""
    for i in range(p.ow):
        counts[i] = taps_within(i * p.sw - p.left, p.dw, p.kw, p.column_low, p.column_high)


SPARE = 256 << 10
"""Bytes of a plane's rows that a worker keeps in its second cache."""


@functools.cache
def _average_pool(dtype: str, form: FoldForm, path: cpu.Cpu) -> Leaf:
    size, down, across = itemsize(dtype), columns("sum", dtype, form.down, path), fold("mean", dtype, form.across, form.stride, path)

    def average_pool(x, y, rows, counts, shares, pitch, p):  # type: ignore[no-untyped-def]
        """Sums of the elements met, divided by how many taps count."""
        oh, ow, zero = p.oh, p.ow, x.dtype.type(0)
        for i in range(rows.shape[0]):
            rows[i] = zero
        _counts(counts, p)
        band, known, (low, high) = rows.shape[0] // pitch, -1, whole(p)
        for plane in range(y.shape[0]):
            for first in range(0, oh, band):
                last = min(first + band, oh)
                down(address_of(x) + plane * p.h * p.w * size, rows, first, last, low, high, pitch, p, zero)
                at = first
                while at < last:
                    taps, count = p.kh, min(last, high) - at
                    if not low <= at < high:
                        taps, count = taps_within(at * p.sh - p.top, p.dh, p.kh, p.row_low, p.row_high), 1
                    if taps != known:
                        for i in range(ow):
                            shares[i] = max(x.dtype.type(taps) * counts[i], x.dtype.type(1))
                        known = taps
                    across(count, ow, p.kw, p.dw * size, p.sw * size, address_of(rows) + (at - first) * pitch * size,
                           pitch * size, address_of(y) + (plane * oh + at) * ow * size, ow * size, address_of(shares))
                    at += count

    work = f"{dtype}[w,:], {dtype}[w,:], {dtype}[w,:]"
    return Leaf(average_pool, f"{dtype}[r,:], {dtype}[r,:], {work}, i8, numbers", key=f"{form} {path.name}",
                numbers=AverageWindow)


@generic("T[r,:], T[r,:], T[w,:], T[w,:], T[w,:], numbers", numbers=AverageWindow)
def average_pool_gradient(g: Any, dx: Any, counts: Any, shares: Any, row: Any, p: Any) -> None:
    """dx = the sum of the shares of the windows that meet each element: what a row of windows gives to a row, then that to its rows."""
    h, w, ow, sw = p.h, p.w, p.ow, p.sw
    _counts(counts, p)
    for plane in range(dx.shape[0]):
        target = dx[plane]
        for i in range(h * w):
            target[i] = 0
        for oy in range(p.oh):
            rows = g.dtype.type(taps_within(oy * p.sh - p.top, p.dh, p.kh, p.row_low, p.row_high))
            gradient = g[plane, oy * ow:(oy + 1) * ow]
            for i in range(ow):
                shares[i] = gradient[i] / max(rows * counts[i], g.dtype.type(1))
            for i in range(w):
                row[i] = 0
            for kx in range(p.kw):
                shift = kx * p.dw - p.left
                first, last = within(shift, ow, sw, w)
                taps = row[shift + first * sw:]
                if sw == 1:
                    for i in range(last - first):
                        taps[i] += shares[first + i]
                else:
                    for i in range(last - first):
                        taps[i * sw] += shares[first + i]
            t0, t1 = within(oy * p.sh - p.top, p.kh, p.dh, h)
            for ky in range(t0, t1):
                below = target[(oy * p.sh + ky * p.dh - p.top) * w:]
                for i in range(w):
                    below[i] += row[i]


@functools.cache
def _gradient_planes(dtype: str, form: FoldForm, path: cpu.Cpu) -> Leaf:
    size, down, across = itemsize(dtype), fold("sum", dtype, form.down, 1, path), fold("sum", dtype, form.across, 1, path)

    def average_gradient_planes(g, dx, rows, line, counts, shares, p):  # type: ignore[no-untyped-def]
        """The same as sums over shares that lie as far apart as their windows, with zeros between and around them."""
        h, w, oh, ow, kh, kw, zero = p.h, p.w, p.oh, p.ow, p.kh, p.kw, g.dtype.type(0)
        for i in range(rows.shape[0]):
            rows[i] = zero
        for i in range(line.shape[0]):
            line[i] = zero
        _counts(counts, p)
        (low, high), at = whole(p), (kw - 1) * p.dw - p.left
        i0, i1 = within(at, ow, p.sw, line.shape[0])
        for plane in range(dx.shape[0]):
            for oy in range(oh):
                row, taps = oy * p.sh + (kh - 1) * p.dh - p.top, g.dtype.type(kh)
                if row < 0 or row >= h + (kh - 1) * p.dh:              # a window of padding alone
                    continue
                if not low <= oy < high:
                    taps = g.dtype.type(taps_within(oy * p.sh - p.top, p.dh, p.kh, p.row_low, p.row_high))
                gradient = g[plane, oy * ow:(oy + 1) * ow]
                for i in range(ow):
                    shares[i] = gradient[i] / max(taps * counts[i], g.dtype.type(1))
                for i in range(i0, i1):
                    line[at + i * p.sw] = shares[i]
                across(1, w, kw, p.dw * size, 0, address_of(line), 0, address_of(rows) + row * w * size, 0, 0)
            down(h, w, kh, p.dh * w * size, 0, address_of(rows), w * size, address_of(dx) + plane * h * w * size,
                 w * size, 0)

    work = ", ".join([f"{dtype}[w,:]"] * 4)
    return Leaf(average_gradient_planes, f"{dtype}[r,:], {dtype}[r,:], {work}, numbers", key=f"{form} {path.name}",
                numbers=AverageWindow)


@generic("T[r,:], T[r]")
def row_means(x: Any, y: Any) -> None:
    """y = the mean of each row of x."""
    share = x.dtype.type(1) / x.dtype.type(x.shape[1])
    for r in range(y.shape[0]):
        y[r] = block_sum(x[r]) * share


# ---- calls -----------------------------------------------------------------------------------------------------------------------

def average(p: AverageWindow, planes: int, dtype: str, path: cpu.Cpu) -> list[Call]:
    """Averages (output 0) of input 0."""
    if p.whole:                                              # no tap lies outside of the plane
        return means(planes, p.h * p.w, dtype)
    between, pitch = separable.rows(p, dtype, path)
    work = (between, Work("counts", (p.ow,), dtype), Work("shares", (p.ow,), dtype))
    args = (In(0, (planes, p.h * p.w)), Out(0, (planes, p.oh * p.ow)), *work, pitch, p)
    return run(_average_pool(dtype, form_of(p), path), args, planes, separable.cost(p, dtype, path))


def average_gradient(p: AverageWindow, planes: int, dtype: str, path: cpu.Cpu) -> list[Call]:
    """dx (output 0) from the gradient of the averages (input 0)."""
    arrays = (In(0, (planes, p.oh * p.ow)), Out(0, (planes, p.h * p.w)))
    work = (Work("counts", (p.ow,), dtype), Work("shares", (p.ow,), dtype))
    rows, line = (p.h + (p.kh - 1) * p.dh) * p.w, p.w + (p.kw - 1) * p.dw
    if rows * itemsize(dtype) <= SPARE:
        between = Work("rows", (rows,), dtype), Work("line", (line,), dtype)
        cost = separable.cost(replace(p, oh=p.h, ow=p.w, sw=1), dtype, path) + p.oh * (p.ow * 0.6 + 15)
        leaf = _gradient_planes(dtype, form_of(p)._replace(stride=1), path)
        return run(leaf, (*arrays, *between, *work, p), planes, cost)
    args = (*arrays, *work, Work("row", (p.w,), dtype), p)
    cost = p.oh * ((p.ow * p.kw * min(p.sw, 2) + p.w * (p.kh + 1)) * 0.15 + 30) + p.h * p.w * 0.1
    return run(average_pool_gradient[dtype], args, planes, cost)


def means(planes: int, size: int, dtype: str) -> list[Call]:
    """The mean (output 0) of each plane of input 0."""
    return run(row_means[dtype], (In(0, (planes, size)), Out(0, (planes,))), planes, size * 0.15 + 5)
