"""Grouped rows: one range over the ranges of many calls of one leaf, each with its own argument block.

The members' ranges follow each other, each from a multiple of the leaf's grain, so that a cut of the whole is a cut that the member alone
might have: no bit depends on who else is there. Their arrays may lie anywhere.
"""
from __future__ import annotations

from typing import Any

from .leaf import invoke, leaf


@leaf("i8, i8[:], i8[:], i8[:], lo, hi, worker", checked=True)
def grouped(function: int, starts: Any, counts: Any, blocks: Any, lo: int, hi: int, worker: int) -> int:
    """Calls `function` for the part of each member's range within lo..hi: member k has counts[k] units from starts[k], and the block at blocks[k].
    The status is that of the first that fails."""
    first, after = 0, starts.shape[0]
    while after - first > 1:                               # the last member that begins at lo or before
        middle = (first + after) // 2
        if starts[middle] <= lo:
            first = middle
        else:
            after = middle
    status = 0
    for k in range(first, starts.shape[0]):
        start = starts[k]
        if start >= hi:
            break
        begin, end = max(lo - start, 0), min(hi - start, counts[k])
        if begin < end:
            found = invoke(function, blocks[k], begin, end, worker)
            if status == 0:
                status = found
    return status
