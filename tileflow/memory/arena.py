"""Planning an arena: where buffers lie if those that are not live together share bytes. The host's memory is planned so, and a tile's."""
from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .alignment import ALIGN, padded

STEPS = 200
"""Ranges looked at for each buffer, on average; networks need 30."""


@dataclass(frozen=True)
class Interval:
    """A buffer of `nbytes`, live from row `first` to row `last`, both included."""

    key: Hashable
    nbytes: int
    first: int
    last: int


class Arena:
    """Offsets for intervals, largest first at the lowest offset where nothing live overlaps (greedy by size, Pisarchyk & Lee 2020).

    base: the first byte. align: buffers begin at multiples of so many bytes, counted from there.
    """

    def __init__(self, base: int = 0, align: int = ALIGN) -> None:
        self.base = self.size = base
        self.align = align

    def place(self, intervals: Sequence[Interval]) -> dict[Any, int]:
        """Byte offsets by key; `size` becomes the arena's bytes."""
        taken = _Taken(1 + max((i.last for i in intervals), default=0), STEPS * (len(intervals) + 5000))
        offsets: dict[Any, int] = {}
        for item in sorted(intervals, key=lambda i: (-i.nbytes, i.first)):
            need = padded(item.nbytes, self.align)
            offsets[item.key] = at = taken.lowest(item, need, self.base)
            if need:
                taken.add(item, at, at + need)
            self.size = max(self.size, at + need)
        return offsets


class _Ranges:
    """Bytes taken: disjoint ranges in order, neighbours joined."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def beyond(self, at: int, need: int) -> int:
        """The end of the first range in the way of `need` bytes from `at` on, or `at` where none is."""
        i = bisect_right(self.ends, at)
        return self.ends[i] if i < len(self.ends) and self.starts[i] < at + need else at

    def add(self, start: int, end: int) -> bool:
        """Take a range; False where it was taken already."""
        i, j = bisect_left(self.ends, start), bisect_right(self.starts, end)
        if i < j:
            if j == i + 1 and self.starts[i] <= start and end <= self.ends[i]:
                return False
            start, end = min(start, self.starts[i]), max(end, self.ends[j - 1])
        self.starts[i:j], self.ends[i:j] = [start], [end]
        return True


class _Taken:
    """Which bytes are taken during which rows: a segment tree over the rows, so that a plan of many rows takes little more than linear time.

    A buffer belongs to the few places of the tree that make up its rows. `whole`: what is taken throughout a place's rows by buffers that
    belong to it. `any`: what is taken in some of its rows. Beyond `steps` looks at a range, buffers go on top of all that is in their way:
    lifetimes without any order could else take as long as their number squared.
    """

    def __init__(self, rows: int, steps: int) -> None:
        self.leaves, self.steps = 1 << (rows - 1).bit_length(), steps
        self.whole: dict[int, _Ranges] = {}
        self.any: dict[int, _Ranges] = {}

    def _cover(self, item: Interval) -> Iterator[int]:
        """The places that make up an interval's rows."""
        low, high = item.first + self.leaves, item.last + self.leaves + 1
        while low < high:
            if low & 1:
                yield low
                low += 1
            if high & 1:
                high -= 1
                yield high
            low, high = low >> 1, high >> 1

    def _above(self, item: Interval) -> set[int]:
        """The places from the first and the last row up to the root."""
        depth = self.leaves.bit_length()
        return {(row + self.leaves) >> k for row in (item.first, item.last) for k in range(depth)}

    def lowest(self, item: Interval, need: int, at: int) -> int:
        """The lowest offset from `at` on where `need` bytes are free during the interval."""
        found = [self.any.get(p) for p in self._cover(item)] + [self.whole.get(p) for p in self._above(item)]
        present = [ranges for ranges in found if ranges is not None]
        before = -1
        while before < at and self.steps >= 0:
            before = at
            self.steps -= len(present)
            for ranges in present:
                at = ranges.beyond(at, need)
        return at if before == at else max([at, *(ranges.ends[-1] for ranges in present)])

    def add(self, item: Interval, start: int, end: int) -> None:
        """Take a range of bytes during an interval."""
        for place in self._cover(item):
            self.whole.setdefault(place, _Ranges()).add(start, end)
            while place and self.any.setdefault(place, _Ranges()).add(start, end):
                place >>= 1
