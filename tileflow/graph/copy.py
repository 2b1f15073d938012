"""Graphs twice: compiling changes a graph in place, and who keeps one for another use gives a copy away."""
from __future__ import annotations

from dataclasses import replace

from .graph import Graph, Node, Value


def copied(graph: Graph) -> Graph:
    """The same graph with values, nodes and states of its own; operators, origins and the constants' elements are shared."""
    new: dict[Value, Value] = {}

    def value(v: Value) -> Value:
        if v not in new:
            new[v] = Value(v.name, v.type)
        return new[v]
    nodes = []
    for node in graph.nodes:
        made = Node(node.op, [None if v is None else value(v) for v in node.inputs], [value(v) for v in node.outputs], node.origin)
        for v in made.outputs:
            v.producer = made
        if node.is_inferred():
            made.set_inferred()
        nodes.append(made)
    states = [replace(s, input=value(s.input), output=None if s.output is None else value(s.output)) for s in graph.states]
    return Graph(graph.name, [value(v) for v in graph.inputs], [value(v) for v in graph.outputs], nodes,
                 {value(v): a for v, a in graph.constants.items()}, states)
