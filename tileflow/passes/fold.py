"""Constant folding: a node whose inputs are all constants becomes a constant."""
from __future__ import annotations

import numpy as np

from ..graph import HALVES, Graph, Node

LARGEST = 1 << 16
"""Results above this many elements stay nodes: a constant that large costs memory and saves little time."""
MOST_BYTES = 1 << 30
"""Bytes of all results of one pass: those that only other constants read are dropped at its end."""


def fold(graph: Graph) -> Graph:
    """Evaluate constant nodes with their operators' references, in place; returns the graph."""
    kept = []
    left = MOST_BYTES
    for node in graph.nodes:
        constant = all(v in graph.constants for v in node.operands) and not node.op.random
        nbytes = sum(v.type.nbytes for v in node.outputs) if constant else 0
        if not constant or any(v.type.size > LARGEST for v in node.outputs) or nbytes > left:
            kept.append(node)
            continue
        left -= nbytes
        with np.errstate(all="ignore"):
            arrays = _reference(node, [None if v is None else graph.constants[v] for v in node.inputs])
        for value, array in zip(node.outputs, arrays, strict=True):
            value.producer = None
            graph.constants[value] = np.array(array, value.type.numpy, order="C").reshape(value.shape)
    graph.nodes = kept
    graph.prune()
    return graph


def _reference(node: Node, arrays: list[np.ndarray | None]) -> tuple[np.ndarray, ...]:
    """What the host would compute: 16-bit floats in float32, rounded once, unless the operator takes them itself."""
    if node.op.halves or not any(a is not None and a.dtype.name in HALVES for a in arrays):
        return node.op.reference(*arrays)
    wide = [a.astype(np.float32) if a is not None and a.dtype.name in HALVES else a for a in arrays]
    return node.op.reference(*wide)
