"""Rows of a table written, or combined with others, at places that an index names: in the order of the index, whatever the number of workers."""
from __future__ import annotations

import functools
from typing import Any

from .machine.leaf import Leaf
from .machine.status import INDEX_OUT_OF_RANGE, OK

STRIP = 1024              # columns that one unit of range writes
LANES = 32                # columns of one unit whose elements go their own ways
REDUCTIONS = ("none", "add", "mul", "min", "max")


def _combine(reduction: str) -> Any:
    """What becomes of an element `old` when `new` comes; NaN wins in extremes."""
    def none(_old: Any, new: Any) -> Any:
        return new

    def add(old: Any, new: Any) -> Any:
        return old + new

    def mul(old: Any, new: Any) -> Any:
        return old * new

    def smallest(old: Any, new: Any) -> Any:
        return new if new < old or new != new else old

    def largest(old: Any, new: Any) -> Any:
        return new if new > old or new != new else old
    return dict(none=none, add=add, mul=mul, min=smallest, max=largest)[reduction]


def _scatter(combine: Any) -> Any:
    def scatter_rows(index: Any, updates: Any, y: Any, lo: int, hi: int) -> int:
        """y[index[k]] = combine(y[index[k]], updates[k]) in the order of k; a unit of range is a strip of columns.

        Negative indices count from the end.
        """
        rows, inner = y.shape[0], y.shape[1]
        first, last = lo * STRIP, min(hi * STRIP, inner)
        for k in range(index.shape[0]):
            v = int(index[k])
            if v < 0:
                v += rows
            if v < 0 or v >= rows:
                return INDEX_OUT_OF_RANGE
            if inner == 1:
                if last > 0:
                    y[v, 0] = combine(y[v, 0], updates[k, 0])
                continue
            target, source = y[v, first:last], updates[k, first:last]
            for i in range(target.shape[0]):
                target[i] = combine(target[i], source[i])
        return OK
    return scatter_rows


@functools.cache
def scatter_rows(dtype: str, index: str, reduction: str) -> Leaf:
    """index[k], updates[k, i], y[v, i]; elements of type `dtype`, moved by their bits where the reduction is "none"."""
    return Leaf(_scatter(_combine(reduction)), f"{index}[:], {dtype}[:,:], {dtype}[:,:], lo, hi", checked=True, key=reduction)


def _along(combine: Any) -> Any:
    def scatter_along(index: Any, updates: Any, y: Any, lo: int, hi: int) -> int:
        """y[o, index[o, k, i], i] = combine(y[o, index[o, k, i], i], updates[o, k, i]) in the order of k; a unit of
        range is a strip of i for one o.

        Negative indices count from the end.
        """
        n, inner = y.shape[1], y.shape[2]
        strips = -(-inner // LANES)
        for unit in range(lo, hi):
            o, first = unit // strips, unit % strips * LANES
            for k in range(index.shape[1]):
                for i in range(first, min(first + LANES, inner)):
                    v = int(index[o, k, i])
                    if v < 0:
                        v += n
                    if v < 0 or v >= n:
                        return INDEX_OUT_OF_RANGE
                    y[o, v, i] = combine(y[o, v, i], updates[o, k, i])
        return OK
    return scatter_along


@functools.cache
def scatter_along(dtype: str, index: str, reduction: str) -> Leaf:
    """index[o, k, i], updates[o, k, i], y[o, v, i]; elements of type `dtype`, moved by their bits where the reduction
    is "none"."""
    return Leaf(
        _along(_combine(reduction)),
        f"{index}[:,:,:], {dtype}[:,:,:], {dtype}[:,:,:], lo, hi",
        checked=True,
        key=reduction,
    )
