"""Pooling over planes [h, w] of NCHW tensors: sizes, averages and their gradients; `max_pool` has the maxima.

A unit of range is one plane. Rows of outputs are computed tap by tap, so the inner loops run along the row.
"""
from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

from ..machine.call import Call, In, Out, Work
from ..machine.inner import register_jitable
from ..machine.leaf import Leaf, generic
from ..machine.places import within


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

    @property
    def whole(self) -> bool:
        """One window, of the whole plane."""
        return self.numbers == (self.h, self.w, 1, 1, self.h, self.w, self.sh, self.sw, 1, 1, 0, 0)


POOL = ", i8" * 12
"""`Pool.numbers` in a signature."""


# ---- averages --------------------------------------------------------------------------------------------------------------------

@register_jitable
def taps_within(start: int, dilation: int, kernel: int, low: int, high: int) -> int:
    """How many of `kernel` taps from `start` on, `dilation` apart, lie in low..high."""
    first = max(0, (low - start + dilation - 1) // dilation)
    return max(0, min(kernel, (high - 1 - start) // dilation + 1) - first)


@register_jitable
def _counts(counts: Any, count: int, start: int, stride: int, dilation: int, kernel: int, low: int, high: int) -> None:
    for i in range(count):
        counts[i] = taps_within(start + i * stride, dilation, kernel, low, high)


_LIMITS = ", i8, i8, i8, i8"
"""The rows and columns (low and high each) in which a tap counts for the average."""


@generic(f"T[r,:], T[r,:], T[w,:]{POOL}{_LIMITS}")
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
            rows = y.dtype.type(taps_within(oy * sh - top, dh, kh, row_low, row_high))
            for i in range(ow):
                total[i] /= max(rows * counts[i], y.dtype.type(1))


@generic(f"T[r,:], T[r,:], T[w,:], T[w,:]{POOL}{_LIMITS}")
def average_pool_gradient(g, dx, counts, shares, h, w, oh, ow, kh, kw, sh, sw, dh, dw, top, left, row_low, row_high, low, high):   # type: ignore
    """dx = the sum of the shares of the windows that meet each element."""
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

def run(leaf: Leaf, args: tuple[Any, ...], planes: int, ns_per_plane: float) -> list[Call]:
    """Planes in pieces of about 5 us, so that a piece outweighs what it costs to hand out."""
    return [Call(leaf, args, planes, max(1, int(5000 / (ns_per_plane + 1))), planes * ns_per_plane)]


def average(p: Pool, limits: tuple[int, int, int, int], planes: int, dtype: str) -> list[Call]:
    """Averages (output 0) of input 0; taps in `limits` (rows low, high, columns low, high) count."""
    if p.whole:                                              # no tap lies outside of the plane
        return means(planes, p.h * p.w, dtype)
    args = (In(0, (planes, p.h * p.w)), Out(0, (planes, p.oh * p.ow)), Work("counts", (p.ow,), dtype), *p.numbers, *limits)
    return run(average_pool[dtype], args, planes, p.oh * (p.ow * p.kh * p.kw * 0.5 + 20))


def average_gradient(p: Pool, limits: tuple[int, int, int, int], planes: int, dtype: str) -> list[Call]:
    """dx (output 0) from the gradient of the averages (input 0)."""
    args = (In(0, (planes, p.oh * p.ow)), Out(0, (planes, p.h * p.w)), Work("counts", (p.ow,), dtype), Work("shares", (p.ow,), dtype),
            *p.numbers, *limits)
    return run(average_pool_gradient[dtype], args, planes, p.oh * (p.ow * p.kh * p.kw * 0.7 + 20) + p.h * p.w * 0.1)


def means(planes: int, size: int, dtype: str) -> list[Call]:
    """The mean (output 0) of each plane of input 0."""
    return run(row_means[dtype], (In(0, (planes, size)), Out(0, (planes,))), planes, size * 0.15 + 5)
