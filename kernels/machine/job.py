"""Running a table: slices of it on the pool, between which Python has the word."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import pool as pools
from .boards import AT_HOST, LATE, PARKED, PC
from .driver import Slice
from .table import Failure, Table

SLICE_NS = 20_000_000
"""Python gets the word about this often: the reaction time to Ctrl-C and the grain of progress."""
_DONE, _LATE, _FAILED, _HOST = range(4)


def run(table: Table, workers: int = 1, *, slice_ns: int = SLICE_NS, stop: Callable[[], bool] | None = None,
        pool: pools.Pool | None = None, seen: Callable[[np.ndarray], None] | None = None) -> Failure | bool:
    """Run a sealed table from its start, on the caller's thread and at most `workers` - 1 helpers. One thread at a time may run a table.

    Args:
        slice_ns: nanoseconds after which Python gets the word, between two rows and never within a `hold`.
        stop: asked then, and once more at the end; once true the job is given up.
        pool: the process's, where none is given.
        seen: called after each slice with the boards of the table's tasks, [tasks, words].

    Returns:
        True: it came to its end. False: it was given up. Else the row that failed.
    """
    pool = pool or pools.current()
    count = len(table.tasks)
    at = None
    if workers > 1 and table.shared:
        pool.start(workers)
        at = pool.take(count)
    if at is None:
        if table.boards is None:
            table.boards = pools.Boards(count)
        own = table.boards
        return _run(table, 1, slice_ns, stop, pool, own.address, lambda: own.words, seen)
    try:
        return _run(table, workers, slice_ns, stop, pool, pool.board(at), lambda: pool.words(at, count), seen)
    finally:
        pool.give_back(at, count)


def _run(table: Table, workers: int, slice_ns: int, stop: Callable[[], bool] | None, pool: pools.Pool, root: int,
         words: Callable[[], np.ndarray], seen: Callable[[np.ndarray], None] | None) -> Failure | bool:
    if table.slice is None:
        table.slice = Slice()
    drive, tasks, count = table.slice.run, table.address, len(table.tasks)
    while True:
        state = drive(pool.address, root, count, tasks, pool.allowed(workers), slice_ns)
        if seen is not None:
            seen(words())
        if state == _DONE:
            if stop is not None:
                stop()
            return True
        if state == _FAILED:
            return table.failure(words())
        if state == _HOST:
            for board, task in zip(words(), table.tasks, strict=True):
                if board[PARKED // 8] == AT_HOST:
                    table.hosts[task.rows[int(board[PC // 8])][1]]()
                    board[PC // 8] += 1
                    board[PARKED // 8] = LATE
        if stop is not None and stop():
            return False
        tasks = 0
