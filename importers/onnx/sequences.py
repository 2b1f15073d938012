"""Sequences whose length is known: lists of tensors at import, nothing in the graph (PyTorch's newer exporter splits so)."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tileflow.errors import ShapeError
from tileflow.graph import Value
from tileflow.ops.shape import normal_axis

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


@form("SequenceConstruct")
def sequence_construct(site: Site) -> Sequence[None]:
    site.scope.sequences[site.outputs[0]] = tuple(site.value(i) for i in range(len(site.inputs)))
    return [None]


@form("SequenceAt")
def sequence_at(site: Site) -> Sequence[Value]:
    parts, given = _sequence(site), site.static(1)
    if given.size != 1:
        raise ShapeError(f"{site.title} takes one place of a sequence; its operand {list(given.shape)} holds {given.size}")
    place = int(given.reshape(-1)[0])
    if not -len(parts) <= place < len(parts):
        raise ShapeError(f"{site.title} takes element {place} of a sequence of {len(parts)}; export the model again")
    return [parts[place]]


@form("SequenceLength")
def sequence_length(site: Site) -> Sequence[np.ndarray]:
    return [np.array(len(_sequence(site)), np.int64)]


def _sequence(site: Site) -> tuple[Value, ...]:
    if site.inputs[0] not in site.scope.sequences:
        raise site.unsupported("a sequence that is not made of known parts")
    return site.scope.sequences[site.inputs[0]]
