"""Memory that processes of one host have in common, beside what each has of its own."""
from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Callable

import numpy as np

from ..system.errors import ProcessError

PLACE = "/dev/shm"
"""Where files lie in memory; where it is not there or too small, files of the folder for temporary files serve."""


def opened(nbytes: int, is_first: bool, told: Callable[[str], str], barrier: Callable[[], None]) -> np.ndarray:
    """`nbytes` of zeros, uint8, at a multiple of 4096 bytes, that every process of a group has: a call of all. The
    memory goes when the last array over it does, for its file has no name any more.

    Args:
        told: gives the first process's text to all. barrier: waits until all are there.
    """
    path = told(_made(nbytes) if is_first else "")
    try:
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), max(nbytes, 1))
        barrier()
    finally:
        if is_first:
            os.unlink(path)
    return np.frombuffer(memory, np.uint8)[:nbytes]


def _made(nbytes: int) -> str:
    """A file of so many bytes that are really there."""
    for folder in (PLACE, tempfile.gettempdir()):
        with contextlib.suppress(OSError):
            handle, path = tempfile.mkstemp(prefix="tileflow-", dir=folder)
            try:
                os.posix_fallocate(handle, 0, max(nbytes, 1))
            except OSError:
                os.unlink(path)
                continue
            finally:
                os.close(handle)
            return path
    raise ProcessError(f"There is no room for {nbytes:,} bytes that processes have in common, neither in {PLACE} nor "
                       f"in {tempfile.gettempdir()}: make room, give a container more (docker run --shm-size), or use "
                       "a smaller replication_factor.")
