"""What numbers lose on their way into a model: NaN, infinities, digits. All of it is legal, and likely not meant."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...memory.tensor import kind_of
from .columns import Column

MOST_BYTES = 1 << 28
"""Of larger arrays only rows that lie evenly are looked at."""
WHOLE = 2.0 ** 53
"""From here on every number in float64 is a whole one."""
CHUNK = 1 << 22
"""Elements looked at together."""


def doubts(what: str, array: Any, rows: np.ndarray | None, wanted: np.dtype) -> list[str]:
    """Sentences on numbers that are not finite, or that are others once they are `wanted`, a type of floating-point numbers.

    Args:
        array: [all rows, ...]. rows: those that count; None: all.
    """
    if isinstance(array, Column) or kind_of(array.dtype) not in "iuf" or kind_of(wanted) != "f" or array.dtype.itemsize < 4:
        return []
    row = max(1, math.prod(array.shape[1:]))
    count = len(array) if rows is None else len(rows)
    looked = min(count, max(1, MOST_BYTES // (row * array.dtype.itemsize)))
    places = np.arange(looked) * count // looked
    at = places if rows is None else rows[places]
    whole = looked == len(array)
    for start in range(0, looked, step := max(1, CHUNK // row)):
        part = array[start:start + step] if whole else array[at[start:start + step]]
        if kind_of(array.dtype) == "f" and not (finite := np.isfinite(part)).all():
            first = np.unravel_index(int(np.argmin(finite)), part.shape)
            return [f"{what}: row {at[start + first[0]]} of the data holds {part[first]}, and what comes of it is no number."]
        if wanted.kind == "f" and (array.dtype.itemsize > wanted.itemsize or array.dtype.kind != "f"):
            with np.errstate(over="ignore"):
                cast = part.astype(wanted)
            found = _changed(what, part, cast, at[start:start + step])
            if found:
                return [found]
    return []


def _changed(what: str, part: np.ndarray, cast: np.ndarray, rows: np.ndarray) -> str:
    """A sentence where a number has become infinite, or a whole number another one."""
    if not (finite := np.isfinite(cast)).all():
        first = np.unravel_index(int(np.argmin(finite)), part.shape)
        return f"{what}: row {rows[first[0]]} of the data holds {part[first]}, which is infinite as a {cast.dtype}."
    limit = 2 ** (np.finfo(cast.dtype).nmant + 1)
    if max(abs(float(part.max(initial=0))), abs(float(part.min(initial=0)))) < limit:
        return ""
    with np.errstate(invalid="ignore"):
        other = cast.astype(part.dtype) != part
    if part.dtype.kind == "f":
        other &= (np.abs(part) < WHOLE) & (part == np.trunc(part))
    if not other.any():
        return ""
    first = np.unravel_index(int(np.argmax(other)), part.shape)
    return (f"{what}: row {rows[first[0]]} of the data holds {_plain(part[first])}, which is {_plain(cast[first])} as a {cast.dtype}: above "
            f"{limit:,} it holds no longer all whole numbers. Subtract a number from such a column, or scale it, before it is fed.")


def _plain(number: Any) -> str:
    return f"{int(number)}" if abs(float(number)) < 1e18 else f"{number:g}"
