"""Compiling many kernels at once: on Linux, copies of this process share the work and leave their code in the on-disk cache.

Python compiles under one lock, so threads would not help. A copy (fork) has all closures and types at hand, compiles what it
draws from a common queue and ends; it opens no parallel region. A copy that fails or dies costs time, never a result: what
it leaves undone this process compiles itself.
"""
from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from . import cache, limits, pool
from .driver import driver

FEWEST = 4
"""Missing kernels for which a copy of the process is worth its while."""
MOST_COPIES = 7
COPY_MEMORY = 160 << 20
"""Bytes that a copy may come to need for itself (measured: 70 million)."""
_INDEX = struct.Struct("<H")
_PARENT_DEATH = 1
"""Linux: prctl's number for the signal that a process gets when its parent ends."""

Tell = Callable[[str, int, int], None]


def compile_all(leaves: Sequence[Any], tell: Tell | None = None) -> None:
    """Make every leaf and the driver ready, from the cache where it has them.

    Args:
        leaves: the kernels (`Leaf`).
        tell: called as tell(name of the next kernel, kernels ready, kernels in all), last with ("done", n, n).
    """
    done, total = 0, len(leaves) + 1

    def ready(name: str) -> None:
        nonlocal done
        done += 1
        if tell is not None:
            tell(name, done, total)

    missing = []
    for leaf in leaves:
        if leaf.load():
            ready(leaf.name)
        else:
            missing.append(leaf)
    copies = None
    if len(missing) >= FEWEST and _may_fork():
        copies = _Copies(missing)
    driver()
    ready("driver")
    if copies is not None:
        copies.help(ready)
    for leaf in missing:
        if not leaf.load():
            leaf.compile()
            ready(leaf.name)
    if tell is not None:
        tell("done", total, total)


def _may_fork() -> bool:
    """One Python thread besides helpers (a lock of another one would stay shut in the copy), a second core, a cache that can be written."""
    return sys.platform == "linux" and threading.active_count() - pool.helpers() == 1 and limits.processors() > 1 and cache.writable()


def _memory_for() -> int:
    """How many copies there is memory for."""
    room = limits.memory()
    return MOST_COPIES if room is None else room.nbytes // COPY_MEMORY


class _Copies:
    """Copies of this process that compile what they draw from a queue, and report each kernel when it is in the cache."""

    def __init__(self, missing: Sequence[Any]) -> None:
        self._missing = missing
        self._queue, fill = os.pipe()
        self._reports, report = os.pipe()
        os.write(fill, b"".join(_INDEX.pack(i) for i in range(min(len(missing), 4096 // _INDEX.size))))
        os.close(fill)
        self._children = []
        self._parent, self._prctl = os.getpid(), ctypes.CDLL(None).prctl
        for _ in range(min(limits.processors() - 1, MOST_COPIES, len(missing) - 1, _memory_for())):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)       # threads of libraries (BLAS) hold nothing a compiler needs
                child = os.fork()
            if child == 0:
                self._serve(report)
            self._children.append(child)
        os.close(report)

    def _serve(self, report: int) -> NoReturn:
        """What a copy does: compile until the queue is empty or its parent has ended; never come back."""
        status = 1
        try:
            self._prctl(_PARENT_DEATH, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != self._parent:                       # it ended before that
                os._exit(status)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            cache.on_compile.clear()
            for leaf in self._named_by(self._queue):
                leaf.compile()
                os.write(report, _INDEX.pack(self._missing.index(leaf)))
            status = 0
        finally:
            os._exit(status)

    def help(self, ready: Callable[[str], None]) -> None:
        """Compile along until the queue is empty, then wait for the copies."""
        try:
            for leaf in self._named_by(self._queue):
                leaf.compile()
                ready(leaf.name)
            for leaf in self._named_by(self._reports):
                for listener in cache.on_compile:
                    listener(leaf.name)
                leaf.load()
                ready(leaf.name)
        except BaseException:
            for child in self._children:
                os.kill(child, signal.SIGTERM)
            raise
        finally:
            os.close(self._queue)
            os.close(self._reports)
            for child in self._children:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child, 0)

    def _named_by(self, pipe: int) -> Iterator[Any]:
        """The kernels whose numbers come out of a pipe."""
        while word := os.read(pipe, _INDEX.size):
            yield self._missing[_INDEX.unpack(word)[0]]
