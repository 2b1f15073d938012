"""Arena planning: tensors that are not live together share bytes."""
from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

ALIGN = 64
"""Bytes: one cache line and one AVX-512 register."""


def padded(nbytes: int) -> int:
    """`nbytes` rounded up to whole lines."""
    return -(-nbytes // ALIGN) * ALIGN


@dataclass(frozen=True)
class Interval:
    """A buffer of `nbytes`, live from row `first` to row `last`, both included."""

    key: Hashable
    nbytes: int
    first: int
    last: int


class Arena:
    """Offsets for intervals, largest first at the lowest offset where nothing live overlaps (greedy by size, Pisarchyk & Lee 2020)."""

    def __init__(self, base: int = 0) -> None:
        self.base = self.size = base

    def place(self, intervals: Sequence[Interval]) -> dict[Any, int]:
        """Byte offsets by key; `size` becomes the arena's bytes."""
        placed: list[tuple[int, int, Interval]] = []
        offsets: dict[Any, int] = {}
        for item in sorted(intervals, key=lambda i: (-i.nbytes, i.first)):
            need = padded(item.nbytes)
            at = self.base
            for start, end, other in placed:
                if other.last < item.first or item.last < other.first:
                    continue
                if at + need <= start:
                    break
                at = max(at, end)
            offsets[item.key] = at
            placed.append((at, at + need, item))
            placed.sort(key=lambda p: (p[0], p[1]))
            self.size = max(self.size, at + need)
        return offsets
