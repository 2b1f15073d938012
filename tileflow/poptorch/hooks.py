"""Functions of a user's that are called before and after each compilation."""
from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

_hooks: dict[str, OrderedDict[int, Callable[..., Any]]] = {"Pre": OrderedDict(), "Post": OrderedDict()}
_numbers = itertools.count()


class HookHandle:
    """What takes a hook away again: `remove()`."""

    def __init__(self, hooks: OrderedDict[int, Callable[..., Any]], number: int) -> None:
        self._hooks, self._number = hooks, number

    def remove(self) -> None:
        """Call it no more."""
        self._hooks.pop(self._number, None)


def _register(when: str, hook: Callable[..., Any]) -> HookHandle:
    if not callable(hook):
        raise RuntimeError(f"{when}-compile hook must be callable")
    number = next(_numbers)
    _hooks[when][number] = hook
    return HookHandle(_hooks[when], number)


def call_hooks(when: str) -> None:
    """Call what is registered for before ("Pre") or after ("Post") a compilation."""
    for hook in list(_hooks[when].values()):
        hook()


def registerPreCompileHook(hook: Callable[[], Any]) -> HookHandle:
    """Call `hook()` before each compilation (RuntimeError: it cannot be called)."""
    return _register("Pre", hook)


def registerPostCompileHook(hook: Callable[[], Any]) -> HookHandle:
    """Call `hook()` after each compilation (RuntimeError: it cannot be called)."""
    return _register("Post", hook)
