"""The process's pool of helpers: threads that take part in every job (see `claim`).

A helper is a Python thread that spends its life inside one compiled function without the interpreter's lock, so that it has a name, can be joined and
shows in a debugger. Helpers start when they are first needed; a forked child, which has none, starts with an empty pool. They hold nothing between
chunks: a process may be forked, and a job given up, at any time.
"""
from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable

import numpy as np

from . import boards, limits
from .driver import driver
from .share import Share

MOST_BOARDS = 1024
SPIN_NS, YIELD_NS = 50_000, 250_000
"""How long a thread without work looks for some before it yields its core, and how long it does that before it sleeps. Waking takes 100 to 250
us where cores are virtual, and a woken thread is often queued behind its waker; one that yields can be seen by the scheduler and moved."""
_HARMLESS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}


def aligned(nbytes: int) -> np.ndarray:
    """Zeroed words that begin at a multiple of 128 bytes: lines that threads write do not share one with others."""
    raw = np.zeros(nbytes + 128, np.uint8)
    return raw[-raw.ctypes.data % 128:][:nbytes].view(np.int64)


_processors = limits.Processors()
_processor: Callable[[], int] | None = getattr(ctypes.CDLL(None), "sched_getcpu", None) if hasattr(os, "sched_setaffinity") else None
"""The number of the processor that this thread runs on; None where threads cannot be kept to some."""


_TOLD = "NUMBA_NUM_THREADS"


def most_threads() -> int:
    """NUMBA_NUM_THREADS where that is set to a number, else as many as affinity allows."""
    told = os.environ.get(_TOLD, "")
    return max(1, int(told)) if told.strip().isdigit() else _processors.usable()


def usable() -> int:
    """How many threads can run at once: as affinity and quotas allow, or as the environment says (NUMBA_NUM_THREADS)."""
    return most_threads() if _TOLD in os.environ else _processors.count()


def start_threads(threads: int | None = None) -> int:
    """The number of workers for `threads`, the user's choice.

    By default as many as can run at once (`limits.processors`), or NUMBA_NUM_THREADS where that is set; never more than that, or than there are
    processors.
    """
    most = most_threads()
    usual = most if _TOLD in os.environ else min(most, limits.processors())
    return max(1, min(threads or usual, most))


class Boards:
    """Boards that no helper knows: for a job on its caller's thread alone. words [boards, words of a board]."""

    def __init__(self, count: int) -> None:
        self.words = aligned(count * boards.BOARD_BYTES).reshape(count, -1)
        self.address = int(self.words.ctypes.data)


class Pool:
    """Boards, and the helpers that look at them."""

    def __init__(self, spin_ns: int = SPIN_NS, yield_ns: int = YIELD_NS, futex: bool = boards.FUTEX_CALL != 0,
                 processors: Callable[[], int] | None = None) -> None:
        """`futex`: helpers sleep by a futex; else by a mutex and a condition. `processors`: how many threads can run at once, asked every second."""
        self.memory = aligned(boards.POOL_BYTES + MOST_BOARDS * boards.BOARD_BYTES)
        self.address = int(self.memory.ctypes.data)
        self.memory[boards.SPIN // 8], self.memory[boards.YIELD // 8], self.memory[boards.FUTEX // 8] = spin_ns, yield_ns, futex
        if not futex:
            libc = ctypes.CDLL(None)
            libc.pthread_mutex_init(ctypes.c_void_p(self.address + boards.MUTEX), None)
            libc.pthread_cond_init(ctypes.c_void_p(self.address + boards.CONDITION), None)
        self.helpers: list[threading.Thread] = []
        self.closed = False
        self._off: tuple[int, set[int]] | None = None             # the processor that helpers keep off, of those that the caller may use
        self._share = Share(processors or usable, self._awake)
        self._lock = threading.Lock()
        self._taken: list[tuple[int, int]] = []

    def start(self, workers: int) -> None:
        """Have a helper for every worker but the caller."""
        if len(self.helpers) >= workers - 1 or self.closed:
            return
        with self._lock:
            for me in range(len(self.helpers) + 1, workers):
                thread = threading.Thread(target=_help, args=(self.address, me), daemon=True, name=f"tileflow-worker-{me}")
                try:
                    thread.start()
                except RuntimeError:                              # the system has no more: fewer workers do the same work
                    return
                self.helpers.append(thread)
                self._off = None
                if thread.native_id is not None:
                    self._share.watch(thread.native_id)

    def allowed(self, workers: int) -> int:
        """How many of `workers` may run now."""
        if workers == 1 or self.closed:
            return 1
        found = min(self._share.allowed(workers), len(self.helpers) + 1)
        if found > 1 and self.memory[boards.SLEEPERS // 8] == len(self.helpers):
            self._apart()
        return found

    def _apart(self) -> None:
        """Keep the helpers, which all sleep, off the processor on which their caller runs now.

        Linux takes a virtual processor that sleeps for one that its host has taken away, and queues a woken thread behind its waker instead: two
        threads then share one processor of two for up to 10 ms, and a call after a rest takes the time of one. The processors are otherwise those
        that the caller may use.
        """
        if _processor is None:
            return
        try:
            here, usable = _processor(), os.sched_getaffinity(0)
            if (here, usable) == self._off or usable == {here}:
                return
            for number in filter(None, [thread.native_id for thread in self.helpers]):
                os.sched_setaffinity(number, usable - {here})
            self._off = here, usable
        except OSError:                                           # a sandbox may forbid it
            self._off = None

    def _awake(self) -> int:
        """How many threads run jobs or look for some: helpers and callers, less those asleep."""
        return max(1, len(self.helpers) + max(1, len(self._taken)) - int(self.memory[boards.SLEEPERS // 8]))

    def take(self, count: int) -> int | None:
        """Index of the first of so many adjacent boards that nobody else uses; None where there are none left."""
        with self._lock:
            at = 0
            for i, (start, length) in enumerate(self._taken):
                if start - at >= count:
                    self._taken.insert(i, (at, count))
                    break
                at = start + length
            else:
                if at + count > MOST_BOARDS:
                    return None
                self._taken.append((at, count))
            start, length = self._taken[-1]
            self.memory[boards.SLOTS // 8] = start + length
            return at

    def give_back(self, at: int, count: int) -> None:
        with self._lock:
            self._taken.remove((at, count))
            start, length = self._taken[-1] if self._taken else (0, 0)
            self.memory[boards.SLOTS // 8] = start + length

    def board(self, at: int) -> int:
        """The address of a board."""
        return self.address + boards.POOL_BYTES + at * boards.BOARD_BYTES

    def words(self, at: int, count: int) -> np.ndarray:
        """The words of so many boards [count, words of a board]."""
        first = (boards.POOL_BYTES + at * boards.BOARD_BYTES) // 8
        return self.memory[first:first + count * boards.BOARD_BYTES // 8].reshape(count, -1)

    def close(self) -> None:
        """End the helpers; jobs go on with their callers alone."""
        with self._lock:
            self.closed = True
            if self.helpers:
                driver().quit(self.address)
                for thread in self.helpers:
                    thread.join()
            self.helpers = []
            self._share.close()

    def forget(self) -> None:
        """In a forked child: the helpers are not here, and a lock that another thread held would stay shut."""
        self._lock, self.helpers, self.closed = threading.Lock(), [], True


def _help(pool: int, me: int) -> None:
    with contextlib.suppress(AttributeError):                     # Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _HARMLESS)          # Ctrl-C belongs to the main thread
    driver().serve(pool, 0, 0, me)


_current: Pool | None = None
_making = threading.Lock()


def current() -> Pool:
    """The process's pool."""
    global _current
    if _current is None:
        with _making:
            if _current is None:
                _current = Pool()
    return _current


def helpers() -> int:
    """How many helpers this process has: threads that hold no lock of Python's."""
    return 0 if _current is None else len(_current.helpers)


def _forked() -> None:
    global _current, _making
    _making = threading.Lock()
    if _current is not None:
        _current.forget()
        _current = None


@atexit.register
def _close() -> None:
    """Compiled code must not be unmapped under a helper."""
    if _current is not None:
        _current.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

