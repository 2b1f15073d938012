"""What a call computes when, for traces: between two slices of a job, from where its tasks have come."""
from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..kernels.machine.boards import PC
from ..kernels.machine.table import AGAIN, LEAF, Table
from ..system.spans import add_row

SLICE_NS = 1
"""Of a job that is watched: it stops after each row whose cost is worth a look at the clock."""
MOST_NAMES = 12


class Timeline:
    """Tells traces which rows each task of a table has done between two slices; `job.run` calls it after each."""

    def __init__(self, table: Table) -> None:
        self._tasks = table.tasks
        self._at = [0] * len(table.tasks)
        self._since = time.perf_counter_ns()

    def __call__(self, boards: np.ndarray) -> None:
        now = time.perf_counter_ns()
        for task, board in enumerate(boards):
            at = int(board[PC // 8])
            if at != self._at[task]:
                add_row(_named(_done(self._tasks[task].rows, self._tasks[task].owners, self._at[task], at)),
                        self._since, now, task)
                self._at[task] = at
        self._since = time.perf_counter_ns()                       # what was told takes time that is nobody's


def _done(rows: Sequence[Sequence[int]], owners: Sequence[Any], begin: int, end: int) -> list[str]:
    """What the owners are called, each once, of the leaves from one row to before another; a loop turns back where that
    lies behind."""
    names: dict[str, None] = {}
    row, turned = begin, False
    while row != end and row < len(rows):
        kind = rows[row][0]
        if kind == LEAF and owners[row] is not None:
            names[str(owners[row])] = None
        back = kind == AGAIN and not turned and rows[row][4] <= end <= row
        turned |= back
        row = rows[row][4] if back else row + 1
    return list(names)


def _named(names: Sequence[str]) -> str:
    """The first of them, and how many more."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "") if names else "between rows"
