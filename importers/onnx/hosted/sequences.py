"""Sequences (lists) and optionals (None where empty), where they are not of a known length at import."""
from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from tileflow.graph import HIGHEST_RANK
from tileflow.memory import budget
from tileflow.system.errors import DataError, ShapeError

from .registry import Attributes, Datum, hosted

MOST = 1 << 20
"""Parts of a sequence that one tensor is split into."""


@hosted("SequenceEmpty")
def sequence_empty(attrs: Attributes) -> list[Datum]:
    return [[]]


@hosted("SequenceConstruct")
def sequence_construct(attrs: Attributes, *parts: Datum) -> list[Datum]:
    return [list(parts)]


@hosted("SequenceInsert")
def sequence_insert(attrs: Attributes, sequence: list[Datum], part: Datum, place: np.ndarray | None = None) -> list[Datum]:
    """Before the place, counted from the end where negative; at the end without one."""
    at = len(sequence) if place is None else _place(attrs, place, len(sequence), len(sequence))
    return [[*sequence[:at], part, *sequence[at:]]]


@hosted("SequenceErase")
def sequence_erase(attrs: Attributes, sequence: list[Datum], place: np.ndarray | None = None) -> list[Datum]:
    at = _place(attrs, np.array(-1) if place is None else place, len(sequence), len(sequence) - 1)
    return [[*sequence[:at], *sequence[at + 1:]]]


@hosted("SequenceAt")
def sequence_at(attrs: Attributes, sequence: list[Datum], place: np.ndarray) -> list[Datum]:
    return [sequence[_place(attrs, place, len(sequence), len(sequence) - 1)]]


@hosted("SequenceLength")
def sequence_length(attrs: Attributes, sequence: list[Datum]) -> list[Datum]:
    return [np.array(len(sequence), np.int64)]


def _place(attrs: Attributes, place: np.ndarray, length: int, last: int) -> int:
    if place.size != 1:
        raise ShapeError(f"{attrs.title} takes one place of a sequence; its operand {list(place.shape)} holds {place.size}")
    at = int(place.reshape(-1)[0])
    if not -length <= at <= last:
        raise ShapeError(f"{attrs.title} takes place {at} of a sequence of {length}")
    return at + length if at < 0 else at


@hosted("SplitToSequence")
def split_to_sequence(attrs: Attributes, x: np.ndarray, sizes: np.ndarray | None = None) -> list[Datum]:
    """Parts of one size (the last perhaps smaller) or of given sizes; without either single elements, their axis dropped if not keepdims."""
    axis = attrs.get("axis", 0)
    total = x.shape[axis]
    if sizes is None or sizes.ndim == 0:
        size = 1 if sizes is None else int(sizes)
        if size < 1 or -(-total // size) > MOST:
            raise ShapeError(f"{attrs.title} splits {total} elements into parts of {size}; there may be {MOST} parts, each of one element or more")
        bounds = [*range(0, total, size), total]
    else:
        if (sizes < 0).any() or sum(sizes.tolist()) != total:
            raise ShapeError(f"{attrs.title} splits {total} elements into parts of other sizes")
        bounds = [0, *np.cumsum(sizes).tolist()]
    whole: list[Any] = [slice(None)] * x.ndim
    parts = []
    for a, b in pairwise(bounds):
        whole[axis] = slice(a, b)
        part = np.ascontiguousarray(x[tuple(whole)])
        parts.append(np.squeeze(part, axis) if sizes is None and not attrs.get("keepdims", 1) else part)
    return [parts]


@hosted("ConcatFromSequence")
def concat_from_sequence(attrs: Attributes, sequence: list[Datum]) -> list[Datum]:
    if not sequence:
        raise DataError(f"{attrs.title} joins a sequence that is empty, so that there is no type to make")
    budget.require(sum(a.nbytes for a in sequence), f"What {attrs.title} joins", "give it shorter sequences")
    if attrs.get("new_axis", 0) and sequence[0].ndim >= HIGHEST_RANK:
        raise ShapeError(f"{attrs.title} gives a tensor of {sequence[0].ndim + 1} dimensions; tileflow's tensors have up to {HIGHEST_RANK}")
    return [(np.stack if attrs.get("new_axis", 0) else np.concatenate)(sequence, axis=attrs["axis"])]


@hosted("Optional")
def optional(attrs: Attributes, x: Datum = None) -> list[Datum]:
    return [x]


@hosted("OptionalHasElement")
def optional_has_element(attrs: Attributes, x: Datum = None) -> list[Datum]:
    return [np.array(x is not None)]


@hosted("OptionalGetElement")
def optional_get_element(attrs: Attributes, x: Datum) -> list[Datum]:
    if x is None:
        raise DataError(f"{attrs.title} takes the element of an optional that is empty; give the input that it comes from")
    return [x]


@hosted("Identity", others=True)
def identity(attrs: Attributes, x: Datum) -> list[Datum]:
    return [x]
