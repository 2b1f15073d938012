"""Sums in float16: operators of which that was asked (`Hints.partials`) compute with such sums, where their operands are float16."""
from __future__ import annotations

from ..graph import Builder, Graph, Node
from ..host import form


def coarsen(graph: Graph) -> Graph:
    """A copy of the graph with those operators in their coarse forms; values keep their identity. The graph itself where there are none."""
    if not any(map(_wants, graph.nodes)):
        return graph
    copy = graph.with_nodes([])
    b = Builder(copy)
    for node in graph.nodes:
        made = None
        if _wants(node):
            with b.at(node.origin):
                made = form.coarse(node.op, b, node.inputs)
        if made is None:
            copy.nodes.append(node)
            continue
        for old, new in zip(node.outputs, made, strict=True):
            assert new.producer is not None
            new.producer.outputs[new.producer.outputs.index(new)] = old
    return copy


def _wants(node: Node) -> bool:
    """Float16 sums were asked for, and the operands are float16."""
    floats = [v for v in node.operands if v.type.is_float]
    return node.origin.hints.partials == "float16" and bool(floats) and all(v.dtype == "float16" for v in floats)
