"""Running a table: slices of it on the pool, between which Python has the word."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import pool as pools
from .boards import AT_HOST, BOARD_BYTES, LATE, PARKED, PC, POOL_BYTES
from .table import Failure, Table

SLICE_NS = 20_000_000
"""Python gets the word about this often: the reaction time to Ctrl-C and the grain of progress."""
_DONE, _LATE, _FAILED, _HOST = range(4)


def run(table: Table, workers: int = 1, *, slice_ns: int = SLICE_NS, stop: Callable[[], bool] | None = None,
        pool: pools.Pool | None = None) -> Failure | bool:
    """Run a sealed table from its start, on the caller's thread and at most `workers` - 1 helpers. One thread at a time may run a table.

    Args:
        slice_ns: nanoseconds after which Python gets the word, between two rows and never within a `hold`.
        stop: asked then; once true the job is given up.
        pool: the process's, where none is given.

    Returns:
        True: it came to its end. False: it was given up. Else the row that failed.
    """
    pool = pool or pools.current()
    count = len(table.tasks)
    at = None
    if workers > 1:
        pool.start(workers)
        at = pool.take(count)
    if at is None:
        return _run(table, 1, slice_ns, stop, pool, _own_boards(table))
    try:
        first = (POOL_BYTES + at * BOARD_BYTES) // 8
        return _run(table, workers, slice_ns, stop, pool, pool.memory[first:first + count * BOARD_BYTES // 8].reshape(count, -1))
    finally:
        pool.give_back(at, count)


def _own_boards(table: Table) -> np.ndarray:
    if table.boards is None:
        table.boards = pools.aligned(len(table.tasks) * BOARD_BYTES).reshape(len(table.tasks), -1)
    return table.boards


def _run(table: Table, workers: int, slice_ns: int, stop: Callable[[], bool] | None, pool: pools.Pool, boards: np.ndarray) -> Failure | bool:
    drive, root, tasks = pools.compiled().drive, int(boards.ctypes.data), table.address
    while True:
        state = drive(pool.address, root, len(boards), tasks, pool.allowed(workers), slice_ns)
        if state == _DONE:
            return True
        if state == _FAILED:
            return table.failure(boards)
        if state == _HOST:
            for board, task in zip(boards, table.tasks, strict=True):
                if board[PARKED // 8] == AT_HOST:
                    table.hosts[task.rows[int(board[PC // 8])][1]]()
                    board[PC // 8] += 1
                    board[PARKED // 8] = LATE
        if stop is not None and stop():
            return False
        tasks = 0
