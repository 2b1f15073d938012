"""Operators that are elementwise work with a little before it become that, so that fusion sees it."""
from __future__ import annotations

from ..graph import Builder, Graph


def expand(graph: Graph) -> Graph:
    """A copy of the graph where `Op.elementwise` replaced what has such a form; values keep their identity."""
    copy = Graph(graph.name, graph.inputs, graph.outputs, [], dict(graph.constants), graph.states)
    b = Builder(graph)
    b.graph = copy
    for node in graph.nodes:
        b.origin, start = node.origin, len(copy.nodes)
        made = node.op.elementwise(b, node.inputs)
        if made is None:
            copy.nodes.append(node)
            continue
        result = dict(zip(made, node.outputs, strict=True))
        for part in copy.nodes[start:]:
            part.outputs = [result.get(v, v) for v in part.outputs]
    assert len(copy.constants) == len(graph.constants), "numbers belong into expressions: nothing places new constants here"
    return copy
