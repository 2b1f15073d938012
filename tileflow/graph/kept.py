"""What is marked to be kept where a forward pass is computed again for its backward pass (`Hints.kept`)."""
from __future__ import annotations

from collections.abc import Sequence

from .graph import Node, Value


def checkpoints(nodes: Sequence[Node]) -> set[Value]:
    """Results of marked forward nodes. Of an operator that was taken apart the parts have its mark; what they only hand to each other is none."""
    forward = [node for node in nodes if node.origin.role == "forward"]
    marked = {v: node for node in forward if node.origin.hints.kept for v in node.outputs}
    if not marked:
        return set()
    inner: set[Value] = set()
    outer: set[Value] = set()
    for node in forward:
        for v in node.operands:
            if v in marked:
                same = node.origin.hints.kept and node.origin.sources == marked[v].origin.sources
                (inner if same else outer).add(v)
    return marked.keys() - (inner - outer)
