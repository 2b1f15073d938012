"""Casts that cancel: a value that was cast to a type that holds all of its numbers, and back, is the value."""
from __future__ import annotations

from ..graph import Builder, Graph, Node, Value, inside

HOLDS = {"float16": ("float32", "float64"), "bfloat16": ("float32", "float64"), "float32": ("float64",)}
"""Types that hold every number of a type, so that casting to them loses nothing."""


def shorten_casts(graph: Graph) -> Graph:
    """Let the second of two casts read what the first one reads, where the first is exact; in place, returns the graph.

    float16 -> float32 -> float16 then is the value itself, and float16 -> float32 -> bfloat16 one cast, with the same rounding. Where the first
    cast rounds (float32 -> float16 -> float32) both stay: they are what somebody asked for. A cast is known by its scalar expression, so that those
    that differentiation made count as well. Results keep the nodes that make them.
    """
    inside(graph, shorten_casts)
    kept, results = [], set(graph.results())
    sources: dict[Value, Value] = {}
    """What exact casts read, by their outputs."""
    same: dict[Value, Value] = {}
    b = Builder(graph)
    nodes, graph.nodes = graph.nodes, []
    for node in nodes:
        node.inputs = [v if v is None else same.get(v, v) for v in node.inputs]
        x = cast_of(node)
        if x is not None:
            y, source = node.outputs[0], sources.get(x, x)
            if source.dtype == y.dtype and y not in results:
                same[y] = source
                continue
            if source is not x and source.dtype != y.dtype and y.type.is_float:
                with b.at(node.origin):
                    shorter = b.Cast(source, to=y.dtype)
                made = graph.nodes.pop()
                node.op, node.inputs = made.op, made.inputs
                assert shorter.type == y.type
                node.set_inferred()
            if y.dtype in HOLDS.get(source.dtype, ()):
                sources[y] = source
        kept.append(node)
    graph.nodes = kept
    graph.prune()
    return graph


def cast_of(node: Node) -> Value | None:
    """The value that a node casts; None: it does something else."""
    if len(node.outputs) != 1 or len(node.inputs) != 1 or node.inputs[0] is None:
        return None
    found = node.op.expression([node.inputs[0].type], [node.outputs[0].type])
    if found is None:
        return None
    return node.inputs[0] if found.op == "var" or (found.op == "cast" and found.args[0].op == "var") else None
