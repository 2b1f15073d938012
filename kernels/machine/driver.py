"""The driver: a table of rows run by the pool of workers, resumed by Python after about 20 ms or on a failing status.

Control flow (loops, lanes) lives in the table, so a whole training call runs without Python; Ctrl-C, progress and errors are what happens between
two slices.
"""
from __future__ import annotations

import functools
import os
from collections.abc import Callable

import numba

from . import limits, pool
from .old import (
    ADVANCE,
    CALL,
    CONTROL_WORDS,
    DEADLINE,
    FAILED_PC,
    FORK,
    HELD,
    HOLD,
    ITERATION,
    LANE_WORDS,
    LOOP,
    MICRO,
    PATCH,
    PATCH_WORDS,
    ROW_WORDS,
    STATUS,
    STOP,
    WAVE,
)

__all__ = ["ADVANCE", "CALL", "CONTROL_WORDS", "DEADLINE", "FAILED_PC", "FORK", "HELD", "HOLD", "ITERATION", "LANE_WORDS", "LOOP", "MICRO", "PATCH",
           "PATCH_WORDS", "ROW_WORDS", "STATUS", "STOP", "WAVE", "drive", "start_threads", "workers"]


@functools.cache
def drive() -> Callable[[int, int, int, int, int], int]:
    """The driver, compiled: `drive()(table, rows, pc, workers, control) -> pc`, all addresses as int."""
    pool.compiled()
    return pool.drive_old


def workers(wanted: int) -> int:
    """How many of `wanted` workers may be used."""
    return wanted


def start_threads(threads: int | None = None) -> int:
    """The number of workers for `threads`, the user's choice.

    By default as many as can run at once (`limits.processors`), or NUMBA_NUM_THREADS where that is set; never more than that, or than there are
    processors.
    """
    most = int(numba.config.NUMBA_NUM_THREADS)
    usual = most if "NUMBA_NUM_THREADS" in os.environ else min(most, limits.processors())
    return max(1, min(threads or usual, most))
