"""Places in tensors by index: what of an index is known is computed with NumPy, what is computed becomes an elementwise node."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..kernels.elementwise.expr import Const, Expr, Var, cast, where
from ..memory.types import TensorType
from ..system.errors import ShapeError, TypeMismatchError
from .shape import Shape

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value

INDICES = ("int32", "int64")


def check_indices(index: TensorType) -> None:
    """Raise TypeMismatchError unless it is an index."""
    if index.dtype not in INDICES:
        raise TypeMismatchError(f"indices are {index.dtype}; they must be int32 or int64.")


def known_place(place: np.ndarray, n: int, shape: Shape) -> np.ndarray:
    """Known indices along an axis of n elements of a tensor of `shape`, counted from the front. Raises ShapeError for one out of range."""
    place = place.astype(np.int64)
    if place.size and not (-n <= place.min() and place.max() < n):
        raise ShapeError(f"indices outside of {list(shape)}: places along an axis of {n} elements are {-n} to {n - 1}.")
    return place % max(n, 1)


def inside(given: Expr, n: int) -> tuple[Expr, Expr]:
    """A computed index along an axis of n elements counted from the front, and whether it lies outside of it."""
    wide = cast(given, "int64")
    place = where(wide < 0, wide + n, wide)
    return place, (place < 0) | (place >= n)


def element_places(b: Builder, index: Value, shape: Shape, axis: int) -> Value:
    """For each element of the index the number of the element of a tensor of `shape` that it names along `axis`, at its own place along the others.

    One beyond the last where the index is out of range; raises ShapeError where it is known.
    """
    n, step = shape[axis], math.prod(shape[axis + 1:])
    known = b.graph.constants.get(index)
    if known is not None:
        return b.constant(known_elements(known, shape, axis), "places")
    operands, row = [index], Const(0, "int64")
    for others in (range(axis), range(axis + 1, len(shape))):
        starts = _starts(index.shape, shape, others)
        if starts is not None:
            row = row + Var(len(operands), "int64")
            operands.append(b.constant(starts))
    place, outside = inside(Var(0, index.dtype), n)
    return b.Map(*operands, exprs=(where(outside, math.prod(shape), row + place * step),))


def known_elements(index: np.ndarray, shape: Shape, axis: int) -> np.ndarray:
    """The same of an index that is known."""
    rows = known_place(index, shape[axis], shape) * math.prod(shape[axis + 1:])
    for others in (range(axis), range(axis + 1, len(shape))):
        starts = _starts(index.shape, shape, others)
        rows = rows if starts is None else rows + starts
    return rows


def _starts(index: Shape, shape: Shape, axes: Sequence[int]) -> np.ndarray | None:
    """What the places along `axes` add to an element's number, to be broadcast with the index; None where that is nothing."""
    total: np.ndarray | None = None
    for a in axes:
        if index[a] != 1:
            sizes = [index[a] if i == a else 1 for i in range(len(shape))]
            own = (np.arange(index[a], dtype=np.int64) * math.prod(shape[a + 1:])).reshape(sizes)
            total = own if total is None else total + own
    return total
