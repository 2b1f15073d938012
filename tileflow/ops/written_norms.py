"""Group and instance normalisation as it is written where a file has no operator for it: rules that find it.

Exporters write groups as Reshape, InstanceNormalization by ones and zeros, Reshape back, and a product and a sum per channel; people write means,
differences and squares. A rule is a proof: over which elements the statistics are, that the constants are what they must be, that nobody else reads
what goes, and that nothing was asked of one of the nodes alone.
"""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..graph.graph import Node, Origin, Value
from ..graph.index import Index
from ..graph.op import Op
from ..graph.rules import Replacement, found, node_of
from ..memory.types import type_of
from .arithmetic import Add, Div, Mul, Pow, Reciprocal, Sqrt, Sub
from .groups import GroupNormalization, InstanceNormalization
from .reduce import ReduceMean
from .shape import Expand, Reshape


@found
def groups_by_instances(index: Index, node: Node) -> Replacement | None:
    """InstanceNormalization by ones and zeros over channels in groups, which a view has put side by side."""
    if not isinstance(node.op, InstanceNormalization):
        return None
    rows, scale, shift = node.inputs
    assert rows is not None
    if not _is(index, scale, 1.0) or not _is(index, shift, 0.0):
        return None
    source = _viewed(index, rows)
    return None if source is None else _finished(index, source, [node], node.op.epsilon)


@found
def groups_by_means(index: Index, node: Node) -> Replacement | None:
    """(v - mean(v)) / sqrt(mean((v - mean(v))^2) + epsilon) over all but the first two axes of v, which is x or a view of it."""
    if not isinstance(node.op, (Div, Mul)):
        return None
    for centred, other in (node.inputs, node.inputs[::-1]) if isinstance(node.op, Mul) else (node.inputs,):
        parts = _standardised(index, node, centred, other)
        if parts is not None:
            rows, nodes, epsilon = parts
            source = _viewed(index, rows)
            made = _finished(index, source, nodes, epsilon) if source is not None else None
            return made or _finished(index, rows, nodes, epsilon)
    return None


def _standardised(index: Index, node: Node, centred: Value | None, deviation: Value | None) -> tuple[Value, list[Node], float] | None:
    """v, the nodes up to the quotient, and epsilon."""
    root = _maker(index, deviation, Sqrt)
    nodes: list[Node] = [node]
    if isinstance(node.op, Mul):
        inverse = _maker(index, deviation, Reciprocal)
        if inverse is None or index.only_reader(inverse.outputs[0]) is not node:
            return None
        nodes.append(inverse)
        root = _maker(index, inverse.inputs[0], Sqrt)
    if root is None or index.only_reader(root.outputs[0]) is not nodes[-1]:
        return None
    plus = _maker(index, root.inputs[0], Add)
    if plus is None or index.only_reader(plus.outputs[0]) is not root:
        return None
    variance, epsilon = next(((v, e) for v, w in (plus.inputs, plus.inputs[::-1]) if (e := _number(index, w)) is not None), (None, None))
    mean = _maker(index, variance, ReduceMean)
    if mean is None or epsilon is None or index.only_reader(mean.outputs[0]) is not plus:
        return None
    square = index.maker(mean.inputs[0]) if mean.inputs[0] is not None else None
    if square is None or not _squares(index, square, centred) or index.only_reader(square.outputs[0]) is not mean:
        return None
    less = _maker(index, centred, Sub)
    readers = None if less is None else index.all_readers(less.outputs[0])
    if less is None or readers is None or {*readers} != {square, node}:
        return None
    rows, level = less.inputs
    first = _maker(index, level, ReduceMean)
    if rows is None or first is None or first.inputs[0] is not rows or index.only_reader(first.outputs[0]) is not less:
        return None
    if not all(_over_groups(m, rows) for m in (first, mean)):
        return None
    return rows, [*nodes, root, plus, mean, square, less, first], epsilon


def _squares(index: Index, node: Node, x: Value | None) -> bool:
    """The node is x * x or x ^ 2."""
    if isinstance(node.op, Mul):
        return node.inputs[0] is node.inputs[1] is x
    return isinstance(node.op, Pow) and node.inputs[0] is x and _number(index, node.inputs[1]) == 2.0


def _over_groups(mean: Node, rows: Value) -> bool:
    """A mean over all axes but the first two, which stay in their places."""
    op, rank = mean.op, rows.type.rank
    assert isinstance(op, ReduceMean)
    axes = {a % rank for a in op.axes or ()}
    return rank > 2 and axes == {*range(2, rank)} and bool(op.keepdims)


# ---- what both end with ----------------------------------------------------------------------------------------------------

def _viewed(index: Index, rows: Value) -> Value | None:
    """x [N, C, …] of which `rows` is the view [N, groups, …]; None: it is none."""
    view = _maker(index, rows, Reshape)
    x = view.inputs[0] if view is not None else None
    if x is None or x.type.rank < 2 or rows.type.rank < 3 or not x.type.size:
        return None
    groups = rows.shape[1]
    return x if rows.shape[0] == x.shape[0] and x.shape[1] % groups == 0 else None


def _finished(index: Index, x: Value, nodes: list[Node], epsilon: float) -> Replacement | None:
    """The operator in place of `nodes`, the first of which makes the normalised values, and of the view back and what follows per channel."""
    normal = nodes[0].outputs[0]
    groups, last = normal.shape[1], nodes[0]
    if normal.shape != x.shape:
        back = index.only_reader(normal)
        if back is None or not isinstance(back.op, Reshape) or back.outputs[0].shape != x.shape:
            return None
        nodes, last = [*nodes, back], back
    elif isinstance(nodes[0].op, InstanceNormalization):
        return None                                             # it is what it is
    scale = shift = None
    product = index.only_reader(last.outputs[0])
    if product is not None and (scale := _per_channel(index, product, Mul, last)) is not None:
        nodes, last = [*nodes, product], product
    total = index.only_reader(last.outputs[0])
    if total is not None and (shift := _per_channel(index, total, Add, last)) is not None:
        nodes, last = [*nodes, total], total
    if not all(_asked_alike(n, last) for n in nodes):
        return None
    ordered = sorted(nodes, key=lambda n: index.position[n])
    origin = ordered[0].origin.merged(*(n.origin for n in ordered[1:]))
    views: list[Node] = []
    constants: dict[Value, np.ndarray] = {}
    operands = [_column(index, v, n, x, origin, views, constants) for v, n in ((scale, 1), (shift, 0))]
    op = GroupNormalization(num_groups=groups, epsilon=epsilon)
    made = node_of(op, [x, *operands], origin, last.outputs)
    return Replacement(frozenset(nodes), ((last, (*views, made)),), constants)


def _asked_alike(a: Node, b: Node) -> bool:
    """Nothing was asked of one of two nodes alone."""
    return a.origin.hints == b.origin.hints


def _per_channel(index: Index, node: Node, kind: type[Op], before: Node) -> Value | None:
    """The other operand of a product or sum of what `before` makes, where it is one number for each channel, or a constant number for all."""
    normal = before.outputs[0]
    if not isinstance(node.op, kind) or not _asked_alike(node, before):
        return None
    others = [v for v in node.inputs if v is not normal]
    if len(node.inputs) != 2 or len(others) != 1 or others[0] is None or node.outputs[0].shape != normal.shape:
        return None
    shape, rank = others[0].shape, normal.type.rank
    column = (1,) * (rank - len(shape)) + shape
    fits = column == (1, normal.shape[1], *[1] * (rank - 2)) or _number(index, others[0]) is not None
    return others[0] if fits and others[0].dtype == normal.dtype else None


def _column(index: Index, v: Value | None, default: float, x: Value, origin: Origin, views: list[Node], constants: dict[Value, np.ndarray]) -> Value:
    """A factor per channel as [C]: what it is a view of where that is so, else a view of it; where there is none, a constant."""
    shape = (x.shape[1],)
    number = default if v is None else _number(index, v)
    if v is None or (number is not None and v.shape != shape):
        array = np.full(shape, number).astype(x.type.numpy)
        value = Value("", type_of(array))
        constants[value] = array
        return value
    seen: Value | None = v
    while seen is not None and seen.shape != shape:
        maker = index.maker(seen)
        seen = maker.inputs[maker.op.alias] if maker is not None and maker.op.alias is not None else None
    if seen is not None:
        return seen
    views.append(node_of(Reshape(shape=shape, allowzero=1), [v], origin))
    return views[-1].outputs[0]


# ---- small questions -------------------------------------------------------------------------------------------------------

def _maker(index: Index, value: Value | None, kind: type[Op] | Sequence[type[Op]]) -> Node | None:
    """The node that makes a value, if it is of that kind."""
    node = index.maker(value) if value is not None else None
    return node if node is not None and isinstance(node.op, kind) else None           # type: ignore[arg-type]


def _is(index: Index, value: Value | None, number: float) -> bool:
    """A constant whose elements all are that number, or one that is expanded."""
    wide = _maker(index, value, Expand)
    array = index.constants.get(value if wide is None else wide.inputs[0])            # type: ignore[arg-type]
    return array is not None and bool((array == number).all())


def _number(index: Index, value: Value | None) -> float | None:
    """The one finite number that a constant holds."""
    array = index.constants.get(value) if value is not None else None
    if array is None or array.size != 1 or not math.isfinite(float(array.reshape(-1)[0])):
        return None
    return float(array.reshape(-1)[0])
