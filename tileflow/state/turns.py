"""Whose turn it is. Threads that use one session take turns, whole call by whole call; so do threads that compile."""
from __future__ import annotations

import os
import threading
from collections.abc import Callable
from threading import get_ident
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

from ..system.errors import TileflowError

P = ParamSpec("P")
T = TypeVar("T")

_building = threading.RLock()
_compiler_lost = False
"""Whether this process was forked while another thread compiled: the compiler's state is inconsistent here."""


def build(work: Callable[[], T]) -> T:
    """`work()`, which lowers a program and makes its kernels, while no other thread does: the compiler and the tables of kernels made so far
    are the process's.

    Raises:
        TileflowError: this process was forked in the middle of another thread's compiling.
    """
    if _compiler_lost:
        raise TileflowError("This process was forked while another thread compiled a model, so the compiler is half way through that here: "
                            "fork before the threads start, or start the process anew (multiprocessing's spawn).")
    with _building:
        return work()


class _Thread(threading.local):
    holds = 0
    """Turns that this thread has."""


_thread = _Thread()
_turns: WeakSet[Turn] = WeakSet()


class Turn:
    """A lock that knows its holder. Work is given as a function, so that no Ctrl-C can come between taking the turn and giving it back.

    Waiting for a turn can be interrupted. A thread that holds a turn never waits for a second one (a model is called by
    a callback within a call of another network's): it gets it at once or a TileflowError, so that threads cannot
    deadlock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._calling = False
        self._torn = False
        _turns.add(self)

    def __reduce__(self) -> tuple[type[Turn], tuple[()]]:
        """Copies and pickles of what a turn guards get a turn of their own, which nobody holds."""
        return Turn, ()

    def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(...)`, a model's whole call, while no other thread has the turn.

        Raises:
            TileflowError: this thread is within a call already.
        """
        if self._calling:
            self._refuse_within()
        return self._in_turn(True, work, args, kwargs)

    def change(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(...)`, which sets weights or other states, between two calls.

        Raises:
            TileflowError: this thread is within a call.
        """
        if self._calling:
            self._refuse_within()
        return self._in_turn(False, work, args, kwargs)

    def hold(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(...)`, which reads states, between two calls or within a call of this thread's own."""
        return self._in_turn(False, work, args, kwargs)

    def _in_turn(self, calling: bool, work: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        """`work(...)`, which is a call where `calling`. Few functions deep, since each is a part of what the call of a
        small model takes."""
        if self._holder == get_ident():
            return self._marked(calling or self._calling, work, args, kwargs)
        if not _thread.holds:
            with self._lock:
                return self._marked(calling, work, args, kwargs)
        if not self._lock.acquire(blocking=False):
            raise TileflowError("A model is called from a function that a call of another network calls back, while another thread uses it; "
                                "waiting here could last for ever: call it when that call has returned.")
        try:
            return self._marked(calling, work, args, kwargs)
        finally:
            self._lock.release()

    def _marked(self, calling: bool, work: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        if self._torn:
            raise TileflowError("This process was forked while another thread was in a call of this model, so its memory is half way through "
                                "that call here: load the model anew in the new process (tileflow.load gives one with weights of its own), or "
                                "fork before the threads start.")
        before = self._holder, _thread.holds, self._calling
        try:                                                         # whatever a signal interrupts, the marks are taken back
            self._holder, _thread.holds, self._calling = get_ident(), before[1] + 1, calling
            return work(*args, **kwargs)
        finally:
            self._holder, _thread.holds, self._calling = before

    def _refuse_within(self) -> None:
        if self._holder == get_ident():
            raise TileflowError("A model is called, or its weights are set, from within a call of its own network (by a progress or stop "
                                "function, a loss, or forward()); do that when the call has returned.")

    def _forked(self) -> None:
        """In a forked child the other threads are gone, whatever they were doing."""
        if self._holder not in (None, get_ident()):
            self._lock, self._holder, self._calling, self._torn = threading.Lock(), None, False, True


def _forked() -> None:
    global _compiler_lost
    for turn in list(_turns):
        turn._forked()
    if _building.acquire(blocking=False):
        _building.release()
    else:
        _compiler_lost = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
