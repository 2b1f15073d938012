"""Constant folding: a node whose inputs are all constants becomes a constant."""
from __future__ import annotations

import numpy as np

from ..graph import Graph

LARGEST = 1 << 16
"""Results above this many elements stay nodes: a constant that large costs memory and saves little time."""


def fold(graph: Graph) -> Graph:
    """Evaluate constant nodes with their operators' references, in place; returns the graph."""
    kept = []
    for node in graph.nodes:
        constant = all(v in graph.constants for v in node.operands) and not node.op.random
        if not constant or any(v.type.size > LARGEST for v in node.outputs):
            kept.append(node)
            continue
        with np.errstate(all="ignore"):
            arrays = node.op.reference(*[None if v is None else graph.constants[v] for v in node.inputs])
        for value, array in zip(node.outputs, arrays, strict=True):
            value.producer = None
            graph.constants[value] = np.array(array, value.type.numpy, order="C").reshape(value.shape)
    graph.nodes = kept
    graph.prune()
    return graph
