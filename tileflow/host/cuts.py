"""Gradients of cuts: those that fill a tensor together are its parts one after the other."""
from __future__ import annotations

from ..graph.graph import Node
from ..graph.index import Index
from ..ops.arithmetic import Add
from ..ops.index import SliceGrad
from ..ops.shape import Concat
from .rewrite import Replacement, node_of, rule


@rule
def joined_cuts(index: Index, node: Node) -> Replacement | None:
    """A sum of SliceGrads that cut one axis, each element of it once, as those of queries, keys and values that were
    one product's result: a Concat. Each element of the sum is one number and zeros; a -0.0 stays one."""
    nodes = _summed(index, node) if type(node.op) is Add else None
    if nodes is None:
        return None
    shape = node.outputs[0].shape
    cuts = [(n, n.op.uncut(shape), n.op.slices(shape)) for n in nodes if isinstance(n.op, SliceGrad)]
    axes = {axis for _, uncut, _ in cuts for axis, left in enumerate(uncut) if left < 0}
    if len(axes) != 1:
        return None
    axis, = axes
    parts = sorted(((slices[axis], n) for n, _, slices in cuts), key=lambda part: part[0].start)
    starts = [0, *(s.stop for s, _ in parts)]
    if any(s.step != 1 for s, _ in parts) or starts != [*(s.start for s, _ in parts), shape[axis]]:
        return None
    origin = parts[0][1].origin.merged(*(n.origin for _, n in parts[1:]))
    made = node_of(Concat(axis=axis), [n.operands[0] for _, n in parts], origin, node.outputs)
    return Replacement(frozenset(nodes), ((node, (made,)),))


def _summed(index: Index, node: Node) -> list[Node] | None:
    """A sum's nodes down to SliceGrads, which nothing else reads; None where anything else is summed."""
    found = [node]
    for value in node.operands:
        maker = index.maker(value)
        if maker is None or value.shape != node.outputs[0].shape or index.only_reader(value) is not node:
            return None
        below = [maker] if isinstance(maker.op, SliceGrad) else _summed(index, maker) if type(maker.op) is Add else None
        if below is None:
            return None
        found += below
    return found
