"""Neighbouring rows of one leaf as one row, wherever their arrays lie and whatever scalars they read
(`kernels/machine/grouped.py`).

What abuts in memory is one flat row already (`binding.merge`): that is quicker still. Here come the rows that differ in a scalar (a tensor's trust
ratio, a group's rate) or whose arrays lie apart, so that an update has as many rows as it has kinds of work, not as many as weights.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from ..kernels.machine.grouped import grouped
from ..lower.row import ArrayOperand, Row
from .binding import BoundRow

Span = tuple[int, int, bool, int]
"""A range of memory that a row touches: first byte, end (exclusive), whether it is written, and the index of the
row."""


def gather(rows: Sequence[BoundRow]) -> list[BoundRow]:
    """The rows with runs of neighbours merged into one row each: neighbours of one leaf and grain, none of which writes
    memory that another one reads or writes. A run in which some do is halved until none do."""
    result: list[BoundRow] = []
    for _, run in groupby(rows, key=lambda b: (id(b.row.leaf), b.row.grain)):
        result += _gathered(list(run))
    return result


def _gathered(rows: list[BoundRow]) -> list[BoundRow]:
    if len(rows) == 1:
        return rows
    spans = [_spans(i, row) for i, row in enumerate(rows)]
    if any(found is None for found in spans) or _clash([span for found in spans for span in found or ()]):
        middle = len(rows) // 2
        return _gathered(rows[:middle]) + _gathered(rows[middle:])
    return [_one(rows)]


def _spans(index: int, bound: BoundRow) -> list[Span] | None:
    """The memory that a row touches. An address that moves (with the turns of a loop, say) is not known here: what is
    read there is left out, and a row that writes there gives None."""
    found: list[Span] = []
    for arg, operand in zip(bound.args, bound.row.args, strict=True):
        if not isinstance(operand, ArrayOperand):
            continue
        at, shape, size = arg
        if isinstance(at, int):
            found.append((at, at + math.prod(shape) * size, operand.written, index))
        elif operand.written:
            return None
    return found


class _Furthest:
    """For a sweep over spans in the order of their first bytes: the two largest ends so far, of different rows. Two
    tell whether any *other* row overlaps the next span."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, int]] = []

    def beyond(self, start: int, row: int) -> bool:
        """Whether a span of another row than this ends after `start`."""
        return any(end > start and other != row for end, other in self.ends)

    def add(self, end: int, row: int) -> None:
        best: dict[int, int] = {}
        for e, r in (*self.ends, (end, row)):
            best[r] = max(e, best.get(r, 0))
        self.ends = sorted(((e, r) for r, e in best.items()), reverse=True)[:2]


def _clash(spans: list[Span]) -> bool:
    """Whether a row writes memory that another one reads or writes."""
    written, read = _Furthest(), _Furthest()
    for start, end, writes, row in sorted(s for s in spans if s[0] < s[1]):
        if written.beyond(start, row) or (writes and read.beyond(start, row)):
            return True
        (written if writes else read).add(end, row)
    return False


def _one(rows: list[BoundRow]) -> BoundRow:
    """One row for several: its range concatenates theirs, each rounded up to whole grains."""
    first = rows[0].row
    grain = max(1, first.grain)
    n = sum(-(-b.n // grain) * grain for b in rows[:-1]) + rows[-1].n
    cost = sum(b.row.cost * b.n / max(1, b.row.n) for b in rows)
    row = Row(grouped, [], n, grain, cost, False, first.node)
    return BoundRow(row, [], n, False, tuple(rows))

