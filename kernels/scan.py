"""Running sums of x[outer, n, inner] along the middle axis."""
from __future__ import annotations

from typing import Any

from .machine.leaf import generic

STRIP = 256               # columns that one unit of range sums
TYPES = ("f4", "f8", "i4", "i8", "u4", "u8")


@generic("T[:,:,:], T[:,:,:], lo, hi, i8, i8", TYPES)
def running_sum(x: Any, y: Any, lo: int, hi: int, exclusive: int, reverse: int) -> None:
    """y[o, k] = the sum of x[o, :k + 1], one element after the other; `exclusive`: without x[o, k]; `reverse`: from the other end.

    A unit of range is a strip of columns of one o.
    """
    n, inner = x.shape[1], x.shape[2]
    strips = (inner + STRIP - 1) // STRIP
    first, step = (n - 1, -1) if reverse else (0, 1)
    for unit in range(lo, hi):
        o, left = unit // strips, unit % strips * STRIP
        right = min(left + STRIP, inner)
        if right - left == 1:
            total = x.dtype.type(0)
            at = first
            for _ in range(n):
                value = x[o, at, left]
                if exclusive:
                    y[o, at, left] = total
                    total += value
                else:
                    total += value
                    y[o, at, left] = total
                at += step
            continue
        at = first
        for k in range(n):
            target = y[o, at, left:right]
            if k == 0:
                for i in range(target.shape[0]):
                    target[i] = 0
            else:
                before = y[o, at - step, left:right]
                for i in range(target.shape[0]):
                    target[i] = before[i]
            if not exclusive or k > 0:
                source = x[o, at - step if exclusive else at, left:right]
                for i in range(target.shape[0]):
                    target[i] += source[i]
            at += step
