"""The recording of a network: the graph so far, and which one is under way."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from .. import ops  # noqa: F401  (fills the registry)
from ..graph import Builder, Graph, State
from ..system.errors import TileflowError


@dataclass
class Trace:
    """One recording of a network: the graph so far and the states its parameters became."""

    graph: Graph
    training: bool
    dtype: str
    builder: Builder = field(default=None)          # type: ignore[assignment]
    """Of the graph; by default a new one."""
    states: dict[int, State] = field(default_factory=dict)
    """By the identity of the parameter."""
    streams: int = 0
    multi_conv: bool = False
    """A MultiConv block is open."""
    groups: int = 0
    """MultiConv blocks so far."""
    writes: list[Any] = field(default_factory=list)
    """What `forward` wrote into buffers so far (`in_place.Write`)."""
    prefix: str = ""
    """What names of layers begin with (`NameScope`)."""
    unnamed: int = 0
    """Blocks that were named by counting."""

    def __post_init__(self) -> None:
        self.builder = self.builder or Builder(self.graph)

    def state(self, parameter: object) -> State:
        """The state of a parameter or buffer.

        Raises:
            TileflowError: no module of the network has it.
        """
        if id(parameter) not in self.states:
            raise TileflowError(f"forward() used {parameter!r}, which is not an attribute of any module of the network; assign it to one in "
                                "__init__ (lists and dicts will do), so that it is found, trained and saved.")
        return self.states[id(parameter)]

    def stream(self) -> int:
        """The next random stream's number: fixed by position in the network."""
        self.streams += 1
        return self.streams


_current: ContextVar[Trace | None] = ContextVar("trace", default=None)


@contextmanager
def recording(trace: Trace) -> Iterator[None]:
    """Within the block `current_trace()` is `trace`."""
    token = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(token)


def trace_under_way() -> Trace | None:
    """The recording under way, if there is one."""
    return _current.get()


def current_trace(what: str) -> Trace:
    """The recording under way; `what` needs one.

    Raises:
        TileflowError: no network is being recorded.
    """
    trace = _current.get()
    if trace is None:
        raise TileflowError(f"{what} belongs into a module's forward(), which runs while the network is recorded.")
    return trace
