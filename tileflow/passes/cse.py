"""Common subexpressions: equal operators over equal inputs are computed once; equal small constants are one."""
from __future__ import annotations

from typing import Any

from ..graph import Graph, Node, Origin, Value, inside

LARGEST_CONSTANT = 1 << 10


def cse(graph: Graph) -> Graph:
    """Merge equal nodes in place, keeping the first; returns the graph. Random nodes are never equal."""
    inside(graph, cse)
    canonical: dict[Value, Value] = {}
    seen: dict[Any, Any] = {}
    for value, array in graph.constants.items():
        if array.size <= LARGEST_CONSTANT:
            first = seen.setdefault((value.type, array.tobytes()), value)
            if first is not value:
                canonical[value] = first
    protected = set(graph.outputs)
    kept: list[Node] = []
    twins: dict[Node, list[Origin]] = {}
    for node in graph.nodes:
        node.inputs = [v if v is None else canonical.get(v, v) for v in node.inputs]
        key = (node.op, tuple(node.inputs), node.origin.hints.recomputed)
        twin = None if node.op.random else seen.get(key)
        if twin is None or any(v in protected for v in node.outputs):
            seen.setdefault(key, node)
            kept.append(node)
            continue
        twins.setdefault(twin, []).append(node.origin)
        canonical.update(zip(node.outputs, twin.outputs, strict=True))
    for twin, origins in twins.items():
        twin.origin = twin.origin.merged(*origins)
    graph.nodes = kept
    for state in graph.states:
        if state.output is not None:
            state.output = canonical.get(state.output, state.output)
    graph.prune()
    return graph
