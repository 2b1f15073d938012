"""What an index in brackets means for a shape: which elements of each axis, new axes, and arrays of places. NumPy's rules, PyTorch's order."""
from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..system.errors import ShapeError, TypeMismatchError


@dataclass(frozen=True)
class Cut:
    """An index taken apart, in the order in which it is carried out.

    slices: one for each axis, with its bounds inside. shape: what they take, without axes that an int picked and with new ones.
    places: (axis of that shape, array or tensor of whole numbers) for axes indexed by places.
    """

    slices: tuple[slice, ...]
    shape: tuple[int, ...]
    places: tuple[tuple[int, Any], ...]

    @property
    def adjacent(self) -> bool:
        """The axes of places lie side by side: their result stays where they are; else it comes first."""
        return all(b[0] - a[0] == 1 for a, b in zip(self.places, self.places[1:], strict=False))


def cut(key: Any, shape: tuple[int, ...]) -> Cut:
    """The index `x[key]` for an x of this shape.

    Raises:
        ShapeError: more indices than axes, or a place outside of its axis.
        TypeMismatchError: an index of another kind.
    """
    items = _spread(key if isinstance(key, tuple) else (key,), shape)
    slices: list[slice] = []
    taken: list[int] = []
    places: list[tuple[int, Any]] = []
    for item in items:
        if item is None:
            taken.append(1)
            continue
        axis = len(slices)
        n = shape[axis]
        if isinstance(item, slice):
            slices.append(slice(*item.indices(n)))
            taken.append(len(range(*item.indices(n))))
        elif (number := _whole(item)) is not None:
            if not -n <= number < n:
                raise ShapeError(f"index {number} is outside of axis {axis} with {n} elements of {list(shape)}.")
            slices.append(slice(number % n, number % n + 1, 1))
        else:
            slices.append(slice(0, n, 1))
            places.append((len(taken), _places(item, axis, n)))
            taken.append(n)
    return Cut(tuple(slices), tuple(taken), tuple(places))


def _whole(item: Any) -> int | None:
    """A number as an int; None for anything else."""
    if isinstance(item, (bool, np.bool_)):
        raise TypeMismatchError(f"a tensor has no index {item}; use None for a new axis.")
    try:
        return operator.index(item)
    except TypeError:
        return None


def _spread(items: tuple[Any, ...], shape: tuple[int, ...]) -> list[Any]:
    """One item for each axis and each new one: masks become places, `...` and what is missing full slices."""
    flat: list[Any] = []
    for item in items:
        if isinstance(item, (list, np.ndarray)) and (array := np.asarray(item)).dtype == bool:
            here = sum(1 for i in flat if i is not None and i is not Ellipsis)
            if Ellipsis not in [i for i in flat if i is Ellipsis] and array.shape != shape[here:here + array.ndim]:
                raise ShapeError(f"a mask of shape {list(array.shape)} does not fit {list(shape)} from axis {here} on.")
            flat.extend(np.nonzero(array))
        else:
            flat.append(item)
    dots = sum(1 for i in flat if i is Ellipsis)
    used = sum(1 for i in flat if i is not None and i is not Ellipsis)
    if dots > 1 or used > len(shape):
        raise ShapeError(f"{used} indices{' and more than one ...' if dots > 1 else ''} for {list(shape)} with {len(shape)} axes.")
    rest = [slice(None)] * (len(shape) - used)
    at = next((k for k, i in enumerate(flat) if i is Ellipsis), len(flat))
    return [*flat[:at], *rest, *flat[at + 1:]]


def _places(item: Any, axis: int, n: int) -> Any:
    """An array of places, each checked; or a tensor of places, which the run checks."""
    dtype = getattr(item, "dtype", None)
    if isinstance(dtype, str):
        if dtype == "bool":
            raise TypeMismatchError("a tensor of booleans as an index would give a shape that depends on values; use where or masked_fill.")
        if dtype not in ("int32", "int64"):
            raise TypeMismatchError(f"indices are {dtype}; they must be int32 or int64.")
        return item
    array = np.asarray(item) if isinstance(item, (list, np.ndarray)) else None
    if array is None or (array.dtype.kind not in "iu" and array.size):
        raise TypeMismatchError(f"a tensor is indexed by ints, slices, None, ... and arrays of whole numbers, not by {item!r:.60}.")
    array = array.astype(np.int64)
    if array.size and not (-n <= array.min() and array.max() < n):
        raise ShapeError(f"indices {array.min()} to {array.max()} go beyond axis {axis} with {n} elements.")
    return array
