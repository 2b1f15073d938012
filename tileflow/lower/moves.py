"""Moves undone: axes that are moved and, seen in other shapes meanwhile, moved back are the tensor as it was.

Exporters write channels-last networks between transposes, and layouts put turns beside them; each pair is two passes over memory.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..graph import Graph, Node, Value
from ..graph.index import Index
from ..host.form import axis_order
from .layout import Reshaped

FAR = 8
"""Nodes that are looked back at."""
Axes = list[tuple[int, int]]
"""Size and stride, in elements, of each axis of a tensor where it lies."""


def undo_moves(graph: Graph, keep: Iterable[Value] = ()) -> Graph:
    """The graph without moves that lead back to a value that is there already; values keep their identity. `keep`: wanted besides its results."""
    index = Index(graph, keep)
    nodes, changed = [], False
    for node in graph.nodes:
        source = _source(node, index) if _order(node) is not None else None
        changed |= source is not None
        if source is not None:
            node = Node(Reshaped(node.outputs[0].shape), [source], node.outputs, node.origin)
        nodes.append(node)
    if not changed:
        return graph
    wanted, needed = set(index.wanted), []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs):
            wanted.update(node.operands)
            needed.append(node)
    return graph.with_nodes(needed[::-1])


def _order(node: Node) -> tuple[int, ...] | None:
    """The order in which a node puts the axes of its operand, if that is all it does."""
    x = node.inputs[0] if len(node.inputs) == 1 == len(node.outputs) else None
    return None if x is None else axis_order(node.op, x.type)


def _source(last: Node, index: Index) -> Value | None:
    """The value whose elements in their order are those of a move's result; None if there is none."""
    chain, node = [last], last
    while len(chain) < FAR:
        before = index.maker(node.operands[0])
        if before is None or (_order(before) is None and before.op.alias is None):
            return None
        chain.append(before)
        node = before
        if _order(node) is not None and _undone(chain[::-1]):
            return node.operands[0]
    return None


def _undone(chain: list[Node]) -> bool:
    """Whether the last one's result has the first one's operand's elements in their order."""
    axes = _lying(chain[0].operands[0].shape)
    for node in chain:
        order = _order(node)
        if order is not None:
            axes = [axes[i] for i in order]
        else:
            seen = [n for n in node.outputs[0].shape if n != 1]
            if node.op.alias != 0 or len(node.outputs) != 1 or [n for n, _ in _long(axes)] != seen:
                return False                               # a view that cuts or joins axes
            long = iter(_long(axes))
            axes = [(1, 0) if n == 1 else next(long) for n in node.outputs[0].shape]
    return _long(axes) == _long(_lying([n for n, _ in axes]))


def _long(axes: Axes) -> Axes:
    """Those of more than one element: nobody goes along the others."""
    return [axis for axis in axes if axis[0] != 1]


def _lying(shape: Sequence[int]) -> Axes:
    """The axes of a contiguous tensor."""
    axes, stride = [], 1
    for n in reversed(shape):
        axes.append((n, stride))
        stride *= n
    return axes[::-1]
