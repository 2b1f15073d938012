"""Operators that the host computes by their parts."""
from __future__ import annotations

from ..graph import Graph
from ..graph.composite import declares, expanded, trimmed
from ..host.form import expands_first


def composites(graph: Graph) -> Graph:
    """Those that have no kernel. It comes first, so that all other passes see the parts; and none makes what nobody reads."""
    return trimmed(expanded(graph, lambda node: not declares(node.op, "kernel") and not node.op.regions))


def expand(graph: Graph) -> Graph:
    """Those that are elementwise work with a little before it, so that fusion sees it."""
    found = expanded(graph, lambda node: expands_first(node.op))
    assert len(found.constants) == len(graph.constants), "numbers belong into expressions: nothing places new constants here"
    return found
