"""Weighted sums of a few elements along one axis: what resizing images takes, one axis at a time.

The weights are a sparse matrix by rows: output j of the axis is the sum of weight[t] * x[index[t]] for start[j] <= t < start[j + 1], in the
order of t. What an output does not name it does not meet, so what is not finite stays where it is.
"""
from __future__ import annotations

from typing import Any

from .machine.leaf import generic

FLOATS = ("f4", "f8")


@generic("T[:,:,:], i8[:], i8[:], T[:], T[:,:,:], lo, hi", FLOATS)
def interpolate_rows(x: Any, start: Any, index: Any, weight: Any, y: Any, lo: int, hi: int) -> None:
    """x[o, n, i] to y[o, m, i], for many i; a unit of range is one (o, j)."""
    m = y.shape[1]
    for unit in range(lo, hi):
        o, j = unit // m, unit % m
        target, first, last = y[o, j], start[j], start[j + 1]
        if last - first == 2:
            a, b, p, q = x[o, index[first]], x[o, index[first + 1]], weight[first], weight[first + 1]
            for i in range(target.shape[0]):
                target[i] = p * a[i] + q * b[i]
            continue
        if first == last:
            for i in range(target.shape[0]):
                target[i] = 0
        for t in range(first, last):
            source, p = x[o, index[t]], weight[t]
            if t == first:
                for i in range(target.shape[0]):
                    target[i] = p * source[i]
            else:
                for i in range(target.shape[0]):
                    target[i] += p * source[i]


@generic("T[:,:,:], i8[:], i8[:], T[:], T[:,:,:], lo, hi", FLOATS)
def interpolate_points(x: Any, start: Any, index: Any, weight: Any, y: Any, lo: int, hi: int) -> None:
    """x[o, n, i] to y[o, m, i], for few i; a unit of range is one o."""
    m, inner = y.shape[1], y.shape[2]
    pairs = index.shape[0] == 2 * m
    for j in range(m):
        pairs = pairs and start[j] == 2 * j
    for o in range(lo, hi):
        if pairs and inner == 1:
            for j in range(m):
                y[o, j, 0] = weight[2 * j] * x[o, index[2 * j], 0] + weight[2 * j + 1] * x[o, index[2 * j + 1], 0]
            continue
        for j in range(m):
            first, last = start[j], start[j + 1]
            for i in range(inner):
                if first == last:
                    y[o, j, i] = 0
                    continue
                total = weight[first] * x[o, index[first], i]
                for t in range(first + 1, last):
                    total += weight[t] * x[o, index[t], i]
                y[o, j, i] = total
