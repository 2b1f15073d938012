"""How long a node takes, about: enough to compare nodes, without planning them."""
from __future__ import annotations

from ..graph import Node
from ..graph.composite import works
from ..graph.work import Contraction, Work

TILES = 1472
"""Of an IPU (Graphcore Mk2)."""
CALL_CYCLES = 600.0
"""Of any operator: barriers and the start of its vertices."""
FLOPS_PER_CYCLE = 32.0
"""Of a tile in products of float32."""
BYTES_PER_CYCLE = 8.0
"""That a tile reads or writes."""


def cycles(node: Node) -> float:
    """Cycles of an IPU for the node's work, its regions' included."""
    inside = sum(cycles(n) for region in node.op.regions for n in region.graph.nodes)
    if node.op.regions or node.op.alias is not None:
        return inside
    moved = sum(v.type.nbytes for v in (*node.operands, *node.outputs)) / BYTES_PER_CYCLE
    found: list[Work] = works(node)
    return CALL_CYCLES + (moved + sum(w.flops for w in found if isinstance(w, Contraction)) / FLOPS_PER_CYCLE) / TILES
