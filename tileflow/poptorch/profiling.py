"""Marks in traces under the reference's names: `with tileflow.trace(...)`, or the environment variable TILEFLOW_TRACE,
writes them."""
from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from ..system.spans import span

T = TypeVar("T")


class Channel:
    """A name before the marks that it makes.

        channel = poptorch.profiling.Channel("data")
        with channel.tracepoint("augment"):
            ...
        channel.instrument(reader, "read")
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def tracepoint(self, name: str) -> AbstractContextManager[None]:
        """A block of code that a trace shows as this channel's."""
        return span(f"{self.name}.{name}")

    def instrument(self, obj: T, *methods: str) -> T:
        """Let calls of an object's methods be shown so; returns the object."""
        for name in methods:
            setattr(obj, name, self._marked(getattr(obj, name), name))
        return obj

    def _marked(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def marked(*args: Any, **kwargs: Any) -> Any:
            with self.tracepoint(name):
                return function(*args, **kwargs)
        return marked
