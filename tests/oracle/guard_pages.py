"""A pytest plugin under which every leaf runs natively on copies of its arrays that lie against pages nobody may touch, before and after.

A leaf that reads or writes outside of its arrays ends the process; the file named by `TILEFLOW_GUARDED` then holds what ran. If it ends well,
the file named by `TILEFLOW_LEAVES` holds the modules and names of all leaves that ran, a line for each.
"""
from __future__ import annotations

import ctypes
import functools
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from emulator.layout import PAGE, SIDES, Layout, rows, run_against

from tileflow.kernels.machine.leaf import Address, Leaf, invoke_leaf

READ, WRITE = 1, 2


class Memory:
    """Pages of this process whose access can be taken away."""

    def __init__(self, pages: int = 8192) -> None:
        self._map = mmap.mmap(-1, pages * PAGE)
        self.arena = np.frombuffer(self._map, np.uint8)
        self.base = self.arena.ctypes.data
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._used = pages

    def _protect(self, first: int, count: int, rights: int) -> None:
        if count and self._libc.mprotect(ctypes.c_void_p(self.base + first * PAGE), ctypes.c_size_t(count * PAGE), rights):
            raise OSError(ctypes.get_errno(), "mprotect")

    def hide(self) -> None:
        """Let this process write the arena."""
        self._protect(0, self._used, READ | WRITE)

    def show(self, spans: list[tuple[int, int, bool]]) -> None:
        """Make these runs of pages (first, count, writable) accessible, all others before, between and after them not."""
        at = 0
        for first, count, writable in spans:
            self._protect(at, first - at, 0)
            self._protect(first, count, READ | WRITE if writable else READ)
            at = first + count
        self._protect(at, 1, 0)
        self._used = at + 1


@functools.cache
def memory() -> Memory:
    return Memory()


@functools.cache
def journal() -> int:
    """The file that names what runs."""
    return os.open(os.environ.get("TILEFLOW_GUARDED", os.devnull), os.O_WRONLY)


RAN: set[str] = set()
"""Modules and names of the leaves that ran."""


def run(leaf: Leaf, *args: Any, n: int | None = None, lo: int = 0, worker: int = 0) -> int:
    """As `Leaf.__call__`, once with no memory before the arrays and once with none after them."""
    stop = rows(leaf, args, n)
    called = (arg.leaf for arg in args if isinstance(arg, Address) and arg.leaf is not None)
    RAN.update(f"{one.twin.__module__}.{one.name}" for one in (leaf, *called))

    def call(layout: Layout, what: str) -> int:
        os.pwrite(journal(), what.encode().ljust(4096), 0)
        return invoke_leaf(leaf.address, layout.block, lo, stop, worker)

    return run_against(memory(), leaf, args, (lo, stop), SIDES, call)


def pytest_configure() -> None:
    Leaf.__call__ = run                            # type: ignore[assignment, method-assign]


def pytest_unconfigure() -> None:
    if "TILEFLOW_LEAVES" in os.environ:
        Path(os.environ["TILEFLOW_LEAVES"]).write_text("\n".join(sorted(RAN)))
