"""Weighted sums of elements at places that are computed while the model runs, and their gradients: sampling of images.

    y[b, c, p] = sum over t of weight[b, t, p] * x[b, c, index[b, t, p]]

A place outside of x contributes nothing, whatever its weight is. Sums are in the order of t; those of gradients in the order of t, then p,
and of the channels.
"""
from __future__ import annotations

from typing import Any

from .machine.leaf import generic

FLOATS = ("f4", "f8")
STRIP = 512
"""Points p that one unit of range computes."""


@generic("T[:,:,:], i8[:,:,:], T[:,:,:], T[:,:,:], lo, hi", FLOATS)
def gather(x: Any, index: Any, weight: Any, y: Any, lo: int, hi: int) -> None:
    """x [b, c, s] to y [b, c, p]; a unit of range is a strip of points of one b."""
    size, points = x.shape[2], y.shape[2]
    strips = (points + STRIP - 1) // STRIP
    for unit in range(lo, hi):
        b, first = unit // strips, unit % strips * STRIP
        last = min(first + STRIP, points)
        for c in range(x.shape[1]):
            source, target = x[b, c], y[b, c, first:last]
            for p in range(target.shape[0]):
                target[p] = 0
            for t in range(index.shape[1]):
                place, share = index[b, t, first:last], weight[b, t, first:last]
                for p in range(target.shape[0]):
                    at = place[p]
                    if 0 <= at < size:
                        target[p] += share[p] * source[at]


@generic("T[:,:,:], i8[:,:,:], T[:,:,:], T[:,:,:], lo, hi", FLOATS)
def scatter(g: Any, index: Any, weight: Any, dx: Any, lo: int, hi: int) -> None:
    """g [b, c, p] to dx [b, c, s], its transposed map; a unit of range is one channel of one b."""
    channels, size = dx.shape[1], dx.shape[2]
    for unit in range(lo, hi):
        b, c = unit // channels, unit % channels
        source, target = g[b, c], dx[b, c]
        for s in range(size):
            target[s] = 0
        for t in range(index.shape[1]):
            place, share = index[b, t], weight[b, t]
            for p in range(source.shape[0]):
                at = place[p]
                if 0 <= at < size:
                    target[at] += share[p] * source[p]


@generic("T[:,:,:], T[:,:,:], i8[:,:,:], T[:,:,:], lo, hi", FLOATS)
def dots(g: Any, x: Any, index: Any, dweight: Any, lo: int, hi: int) -> None:
    """The sums over the channels of g[b, c, p] * x[b, c, index[b, t, p]], to dweight [b, t, p]; a unit is a strip of points of one b."""
    size, points = x.shape[2], g.shape[2]
    strips = (points + STRIP - 1) // STRIP
    for unit in range(lo, hi):
        b, first = unit // strips, unit % strips * STRIP
        last = min(first + STRIP, points)
        for t in range(index.shape[1]):
            place, target = index[b, t, first:last], dweight[b, t, first:last]
            for p in range(target.shape[0]):
                target[p] = 0
            for c in range(x.shape[1]):
                source, gradient = x[b, c], g[b, c, first:last]
                for p in range(target.shape[0]):
                    at = place[p]
                    if 0 <= at < size:
                        target[p] += gradient[p] * source[at]
