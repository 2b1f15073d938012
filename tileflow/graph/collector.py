"""Python's cyclic garbage collector, paused while graphs are built, and called seldom while kernels are compiled."""
from __future__ import annotations

import contextlib
import functools
import gc
import threading
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
YOUNG = 10_000
"""New objects between two searches while kernels are compiled."""
_lock = threading.Lock()
_usual: list[tuple[int, int, int]] = []                        # the process' own, once for each that compiles


def without_collector(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: no search for cycles meanwhile. Graphs only grow while they are built, and their nodes and values are cycles that live on: of
    100,000 nodes every search is in vain and takes long, and all together took a third of an import."""
    @functools.wraps(function)
    def inner(*args: P.args, **named: P.kwargs) -> R:
        if not gc.isenabled():
            return function(*args, **named)
        gc.disable()
        try:
            return function(*args, **named)
        finally:
            gc.enable()
    return inner


@contextlib.contextmanager
def seldom() -> Iterator[None]:
    """Context: cycles are searched for after tens of thousands of new objects, not hundreds. A compiler leaves many, and to go through all modules
    and graphs for each few of them took a tenth of a first run. (`gc.freeze` would spare those, too, but whether a process has frozen objects of its
    own is known by counting them all, and a worker of a server has millions.)"""
    with _lock:
        _usual.append(_usual[0] if _usual else gc.get_threshold())
        young, *older = _usual[0]
        if young:                                              # zero: none at all
            gc.set_threshold(max(young, YOUNG), *older)
    try:
        yield
    finally:
        with _lock:
            usual = _usual.pop()
            if not _usual:                                     # no other thread still compiles
                gc.set_threshold(*usual)
