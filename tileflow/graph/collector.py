"""Python's cyclic garbage collector, paused while graphs are built, and spared what is there while kernels are compiled."""
from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


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
def set_apart() -> Iterator[None]:
    """Context: what lives now is not searched for cycles meanwhile. A compiler leaves many; to go through all modules and graphs for each few of
    them took a tenth of a first run."""
    if gc.get_freeze_count():                                  # somebody else has set things apart, and for longer
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
