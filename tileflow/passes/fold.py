"""Constant folding: a node whose inputs are all constants becomes a constant."""
from __future__ import annotations

from collections.abc import Iterator

from ..graph import Graph, Node, inside
from ..graph.region import computed, steps

LARGEST = 1 << 16
"""Results above this many elements stay nodes: a constant that large costs memory and saves little time."""
MOST_BYTES = 1 << 30
"""Bytes of all results of one pass: those that only other constants read are dropped at its end."""
MOST_STEPS = 1 << 12
"""Operators that run when a node with regions is evaluated: longer loops stay."""


def fold(graph: Graph, within: bool = False) -> Graph:
    """Evaluate constant nodes with their operators' references, in place; returns the graph.

    What an operator wants to stay (`Op.stays`) stays, but for graphs `within` nodes: there nothing else would compute it once.
    """
    inside(graph, lambda g: fold(g, True))
    kept = []
    left = MOST_BYTES
    for node in graph.nodes:
        constant = all(v in graph.constants for v in node.operands) and not node.op.random and steps(node.op) <= MOST_STEPS
        constant &= within or not node.op.stays
        nbytes = sum(v.type.nbytes for v in node.outputs) if constant else 0
        large = constant and any(v.type.size > LARGEST for v in (*node.outputs, *(v for inner in _inner(node) for v in inner.outputs)))
        if not constant or large or nbytes > left:
            kept.append(node)
            continue
        left -= nbytes
        arrays = computed(node, [None if v is None else graph.constants[v] for v in node.inputs])
        for value, array in zip(node.outputs, arrays, strict=True):
            value.producer = None
            graph.constants[value] = array
    graph.nodes = kept
    graph.prune()
    return graph


def _inner(node: Node) -> Iterator[Node]:
    """The nodes of its regions."""
    for region in node.op.regions:
        yield from region.graph.walk()
