"""The vertex of a contraction: any sum of products that work.py describes, on slices, as matmuls of strided views.

Axes that both operands and the result have are batch axes, those of one operand and the result are rows or columns, those of
both operands alone are summed. Where windows overlap or reach into padding, one tap runs after the other, each over the points
whose element exists: so nothing is copied per tap, and no padding is stored.
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..graph.work import Contraction, Operand, Window
from .boxes import Box, Region, reaches_out, slides
from .vertex import multiply

Array = np.ndarray


@dataclass(frozen=True)
class Slice:
    """A contiguous array that holds `where` of a tensor of `shape`, which `operand` indexes."""

    array: Array
    operand: Operand
    where: Region
    shape: tuple[int, ...]


def accumulate(work: Contraction, box: Box, a: Slice, b: Slice, target: Slice) -> None:
    """target += alpha * sum over `box` of a * b; sums in the operands' type, added in the target's. Sums of 16-bit operands are float32 where the
    target is, and rounded after every 16 products where it is float16."""
    sizes = {axis.name: axis.size for axis in work.axes}
    windows = [(d, n) for s in (a, b, target) for d, n in zip(s.operand.dims, s.shape, strict=True)
               if isinstance(d, Window) and (slides(d, sizes) or reaches_out(d, sizes, n))]
    looped = sorted({w.tap for w, _ in windows})
    for at in itertools.product(*(range(*box[name]) for name in looped)):
        taps = dict(zip(looped, at, strict=True))
        local = _met(box, windows, taps)
        if all(lo < hi for lo, hi in local.values()):
            x, y, z = (_view(s, local, taps, sizes) for s in (a, b, target))
            _multiply(x, y, z, work.alpha)


def add(target: Slice, addend: Slice, box: Box, work: Contraction) -> None:
    """target += beta * addend, broadcast along the axes that the addend lacks."""
    sizes = {axis.name: axis.size for axis in work.axes}
    (z, names), (x, own) = (_view(s, box, {}, sizes) for s in (target, addend))
    order = [own.index(name) for name in names if name in own]
    shape = [n if name in own else 1 for name, n in zip(names, z.shape, strict=True)]
    if order:
        x = x.transpose(order)
    x = x.reshape(shape)
    z += (x.dtype.type(work.beta) * x).astype(z.dtype) if work.beta != 1 else x.astype(z.dtype)


def add_sum(target: Slice, source: Slice, box: Box, work: Contraction) -> None:
    """target += the sum of `source` over the axes that the target lacks."""
    sizes = {axis.name: axis.size for axis in work.axes}
    (z, names), (x, own) = (_view(s, box, {}, sizes) for s in (target, source))
    summed = tuple(i for i, name in enumerate(own) if name not in names)
    kept = [name for name in own if name in names]
    total: Array = np.asarray(np.sum(x, summed, dtype=np.float64)).transpose([kept.index(name) for name in names])
    z += total.astype(z.dtype)


def axes_of(operand: Operand) -> set[str]:
    """The axes that index an operand."""
    return {name for d in operand.dims if d is not None for name in ((d.out, d.tap) if isinstance(d, Window) else (d,))}


def _met(box: Box, windows: Sequence[tuple[Window, int]], taps: Mapping[str, int]) -> Box:
    """The points of `box` whose windows' tap lies on an element of a dimension."""
    local = dict(box)
    for w, n in windows:
        shift = w.pad - taps[w.tap] * w.dilation
        lo, hi = local[w.out]
        local[w.out] = max(lo, -(-shift // w.stride)), min(hi, (n - 1 + shift) // w.stride + 1)
    return local


def _view(s: Slice, box: Box, taps: Mapping[str, int], sizes: Mapping[str, int]) -> tuple[Array, list[str]]:
    """The points of `box` as a strided view (one dimension per axis), and the axes' names. NumPy checks that it stays inside."""
    offset, shape, strides, names = 0, [], [], []
    for dim, (start, _), n, step in zip(s.operand.dims, s.where, s.shape, s.array.strides, strict=True):
        if dim is None:
            assert n == 1, f"a contraction reads {n} elements at every point"
            continue
        if isinstance(dim, str):
            terms = [(dim, 1)]
        else:
            terms, start = [(dim.out, dim.stride), (dim.tap, dim.dilation)], start + dim.pad
        offset -= start * step
        for name, stride in terms:
            at = taps.get(name, box[name][0])
            offset += at * stride * step
            if name not in taps:
                names.append(name)
                shape.append(box[name][1] - at)
                strides.append(stride * step)
    return np.ndarray(shape, s.array.dtype, s.array, offset, strides), names


def _multiply(a: tuple[Array, list[str]], b: tuple[Array, list[str]], c: tuple[Array, list[str]], alpha: float) -> None:
    """c += alpha * a * b, summed over the axes that c lacks."""
    (x, left), (y, right), (z, out) = a, b, c
    batch = [n for n in out if n in left and n in right]
    rows, columns = [n for n in out if n in left and n not in right], [n for n in out if n in right and n not in left]
    summed = [n for n in left if n in right and n not in out]
    assert {*left, *right} == {*batch, *rows, *columns, *summed}, f"{left} times {right} to {out}: an axis has no place"
    size = dict(zip([*left, *right], [*x.shape, *y.shape], strict=True))

    def count(names: list[str]) -> int:
        return math.prod(size[n] for n in names)

    x = np.ascontiguousarray(x.transpose([left.index(n) for n in (*batch, *rows, *summed)])).reshape(count(batch), count(rows), count(summed))
    y = np.ascontiguousarray(y.transpose([right.index(n) for n in (*batch, *summed, *columns)])).reshape(count(batch), count(summed), count(columns))
    if z.dtype == np.float32 and x.dtype.itemsize == 2:
        x, y = x.astype(np.float32), y.astype(np.float32)
    product = multiply(x, y, "f2" if z.dtype == x.dtype == np.float16 else "f4")
    if alpha != 1:
        product *= product.dtype.type(alpha)
    order = [*batch, *rows, *columns]
    product = product.reshape([size[n] for n in order]).transpose([order.index(n) for n in out])
    z += product if z.dtype == product.dtype else product.astype(z.dtype)
