"""Tensors in an arena of the host, which are planned by `arena.Arena`."""
from __future__ import annotations

from collections.abc import Iterable

from ..graph import Value
from ..memory.alignment import BLOCK, padded_nbytes

MOST_ROOM = 8 * BLOCK


def side_by_side(values: Iterable[Value]) -> tuple[dict[Value, int], int]:
    """Offsets of values one after the other, and the bytes of all."""
    offsets, at = {}, 0
    for v in values:
        offsets[v] = at
        at += padded_nbytes(v.type)
    return offsets, at
