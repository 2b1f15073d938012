"""Small constants that expansions and rules leave to be computed: scales and zero points, once and not in every call."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..graph import Graph, Value
from ..graph.region import computed

LARGEST = 1 << 12
"""Elements of a result; larger ones are the prologue's."""


def settle(graph: Graph, keep: Iterable[Value] = ()) -> Graph:
    """A copy of the graph in which nodes of constants alone are constants, or the graph itself where there is none.

    `keep` names values that nodes must make, besides the graph's results.
    """
    constants, kept = dict(graph.constants), []
    results = {*graph.results(), *keep}
    for node in graph.nodes:
        fixed = node.operands and all(v in constants for v in node.operands) and results.isdisjoint(node.outputs)
        if not fixed or node.op.random or node.op.regions or any(v.type.size > LARGEST for v in (*node.operands, *node.outputs)):
            kept.append(node)
            continue
        for value, array in zip(node.outputs, computed(node, [None if v is None else constants[v] for v in node.inputs]), strict=True):
            constants[value] = array
    if len(kept) == len(graph.nodes):
        return graph
    read = {v for node in kept for v in node.operands} | results
    return replace(graph, nodes=kept, constants={v: a for v, a in constants.items() if v in read})
