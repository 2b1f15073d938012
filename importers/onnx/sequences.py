"""Sequences whose length is known: lists of tensors at import, nothing in the graph (PyTorch's newer exporter splits so)."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tileflow.graph import Value
from tileflow.ops.shape import normal_axis
from tileflow.system.errors import ShapeError

from .join import joined
from .site import Site
from .versions import form

MOST = 4096
"""Parts of a sequence."""


@form("SplitToSequence")
def split_to_sequence(site: Site) -> Sequence[None]:
    """Parts of one size (the last perhaps smaller) or of given sizes; without either single elements, their axis dropped if not keepdims."""
    x = site.value(0)
    axis = normal_axis(site.attrs.get("axis", 0), x.type.rank)
    given = site.static(1) if site.has(1) else np.array(1)
    size, total = given.reshape(-1).tolist(), x.shape[axis]
    if given.ndim == 0 and -(-total // max(size[0], 1)) > MOST:
        raise site.unsupported(f"a sequence of more than {MOST} parts")
    if given.ndim == 0:
        size = [min(size[0], total - at) for at in range(0, total, max(size[0], 1))]
    if sum(size) != total or any(n < 0 for n in size):
        raise ShapeError(f"{site.title} splits {total} elements into parts of {size}; export the model again")
    starts = np.cumsum([0, *size]).tolist()
    parts = [site.emit("Slice", x, starts=(a,), ends=(b,), axes=(axis,), steps=(1,)) for a, b in pairwise(starts)]
    if not site.has(1) and not site.attrs.get("keepdims", 1):
        parts = [site.emit("Squeeze", p, axes=(axis,)) for p in parts]
    site.scope.sequences[site.outputs[0]] = tuple(parts)
    return [None]


@form("SequenceConstruct", "SequenceEmpty")
def sequence_construct(site: Site) -> Sequence[None]:
    site.scope.sequences[site.outputs[0]] = tuple(site.value(i) for i in range(len(site.inputs)))
    return [None]


@form("SequenceInsert")
def sequence_insert(site: Site) -> Sequence[None]:
    """Before the place; at the end without one."""
    parts = _sequence(site)
    at = _place(site, 2, len(parts), len(parts) + 1) if site.has(2) else len(parts)
    site.scope.sequences[site.outputs[0]] = (*parts[:at], site.value(1), *parts[at:])
    return [None]


@form("SequenceAt")
def sequence_at(site: Site) -> Sequence[Value]:
    parts = _sequence(site)
    return [parts[_place(site, 1, len(parts), len(parts))]]


@form("ConcatFromSequence")
def concat_from_sequence(site: Site) -> Sequence[Value]:
    parts = _sequence(site)
    if not parts:
        raise ShapeError(f"{site.title} joins a sequence that is empty, so that there is no type to make; export the model again")
    return [joined(site, parts, site.attrs["axis"], bool(site.attrs.get("new_axis", 0)))]


def _place(site: Site, i: int, length: int, places: int) -> int:
    """Input `i` as one of so many places of a sequence of this length, counted from the end where negative."""
    given = site.static(i)
    if given.size != 1:
        raise ShapeError(f"{site.title} takes one place of a sequence; its operand {list(given.shape)} holds {given.size}")
    place = int(given.reshape(-1)[0])
    if not -length <= place < places:
        raise ShapeError(f"{site.title} takes element {place} of a sequence of {length}; export the model again")
    return place + length if place < 0 else place


@form("SequenceLength")
def sequence_length(site: Site) -> Sequence[np.ndarray]:
    return [np.array(len(_sequence(site)), np.int64)]


def _sequence(site: Site) -> tuple[Value, ...]:
    if site.inputs[0] not in site.scope.sequences:
        raise site.unsupported("a sequence that is not made of known parts")
    return site.scope.sequences[site.inputs[0]]
