"""One pass after the other, each from a graph to a graph."""
from __future__ import annotations

from collections.abc import Callable

from ..graph import Graph, verify

VERIFIED = False
"""Whether every pass must leave what `verify` accepts: the tests say so, a user's time is not spent on it."""


def through(graph: Graph, *passes: Callable[[Graph], Graph]) -> Graph:
    """The graph after the passes; the given one is not changed."""
    for step in passes:
        graph = verified(step(graph))
    return graph


def verified(graph: Graph) -> Graph:
    """The graph, verified where that is wanted."""
    return verify(graph, lowered=True) if VERIFIED else graph
