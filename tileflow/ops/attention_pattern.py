"""Where a graph computes attention by products and a softmax, the host computes it by FusedAttention.

    q k^T -> scale -> + masks -> Softmax -> (weights) @ v

and, in a training graph, the gradients that autograd made of it. Any other reader of the scores or weights (dropout between, a
gradient of the mask, an output) leaves the nodes as they are. Transpositions between [batch, positions, heads, size] and
[batch, heads, positions, size] around it go: the operator reads and writes both.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..graph.graph import Node, Origin, Value
from ..graph.op import OPS
from ..graph.rewrite import Replacement, View, node_of, rule
from .arithmetic import Add, Div, Mul
from .attention import FusedAttention, FusedAttentionGrad
from .matmul import FusedMatMul, MatMul, Product
from .reduce import ReduceSum
from .shape import Shape, Transpose, normal_axis
from .softmax import Softmax, SoftmaxGrad

HIDDEN = -1e30
"""A mask's number below which nothing is left of a score: exporters write the smallest float32 for -inf."""
PLAIN, INSIDE = "bhtd", "bthd"
"""The axes of an operand: batch, heads, positions, size."""


@dataclass
class Forward:
    """What was found from a softmax upwards and downwards."""

    scores: Node
    weighted: Node
    chain: list[Node]                      # between them, the softmax last
    masks: list[Value] = field(default_factory=list)
    factor: float = 1.0

    @property
    def nodes(self) -> list[Node]:
        return [self.scores, *self.chain, self.weighted]


@dataclass
class Backward:
    """The nodes of the gradient, the gradient of the result, and the values that are the gradients of q, k and v."""

    nodes: list[Node]
    g: Value
    found: list[Value | None]


@dataclass
class Operand:
    """An operand's value, whether its heads lie inside, and the transpositions that led to it (of a gradient: those that go)."""

    value: Value
    inside: bool = False
    gone: list[Node] = field(default_factory=list)


def _plain_product(node: Node | None) -> bool:
    return node is not None and type(node.op) in (MatMul, FusedMatMul)


def _flags(node: Node) -> tuple[bool, bool, float]:
    assert isinstance(node.op, Product)
    return node.op.flags()


def _number(view: View, value: Value | None) -> float | None:
    """The one element of a constant."""
    array = view.graph.constants.get(value) if value is not None else None
    return float(array.reshape(())) if array is not None and array.size == 1 else None


# ---- forward

def _forward(view: View, softmax: Node) -> Forward | None:
    """The nodes from the product of queries and keys to that with the values, around a softmax along the last axis."""
    weights = softmax.outputs[0]
    rank = weights.type.rank
    readers = view.readers(weights)
    if readers is None or rank not in (3, 4, 5) or normal_axis(softmax.op.attributes()["axis"], rank) != rank - 1:
        return None
    weighted = next((n for n in readers if _plain_product(n) and n.inputs[0] is weights and not _flags(n)[0]), None)
    if weighted is None or _flags(weighted)[2] != 1 or weighted.inputs[1] is weights:
        return None
    found = Forward(softmax, weighted, [softmax])
    value = softmax.inputs[0]
    while True:
        node = None if value is None else view.maker(value)
        if node is None or value is None or view.only_reader(value) is None or value.shape != weights.shape:
            return None
        if _plain_product(node):
            found.scores = node
            found.factor *= _flags(node)[2]
            return found
        value = _step(view, node, found)
        found.chain.insert(0, node)


def _step(view: View, node: Node, found: Forward) -> Value | None:
    """Take a scale or a mask into `found`; returns the scores before it, or None for what is neither."""
    x, y = (*node.inputs, None, None)[:2]
    if isinstance(node.op, Mul) and x is not None and _number(view, x) is not None:
        x, y = y, x
    number = _number(view, y)
    if isinstance(node.op, Mul | Div) and number:
        if found.masks:
            return None                    # the masks are scaled, too
        found.factor *= 1 / number if isinstance(node.op, Div) else number
        return x
    if not isinstance(node.op, Add) or x is None or y is None:
        return None
    if x.shape != node.outputs[0].shape or not _leads_to_product(view, x):
        x, y = y, x
    found.masks.append(y)
    return x


def _leads_to_product(view: View, value: Value) -> bool:
    """Going up through scales and sums along first operands, a product comes."""
    node = view.maker(value)
    while node is not None and isinstance(node.op, Add | Mul | Div) and node.inputs[0] is not None:
        node = view.maker(node.inputs[0])
    return _plain_product(node)


# ---- backward

def _backward(view: View, f: Forward) -> Backward | None:
    """The gradient's nodes, or None where the weights have other readers than they."""
    softmax, weights = f.chain[-1], f.chain[-1].outputs[0]
    readers = [n for n in view.readers(weights) or [] if n is not f.weighted]
    pull = next((n for n in readers if isinstance(n.op, SoftmaxGrad) and n.inputs[1] is weights and n.inputs[0] is not weights), None)
    if pull is None or pull.inputs[0] is None or pull.op.attributes()["axis"] != softmax.op.attributes()["axis"]:
        return None
    through = view.maker(pull.inputs[0])
    if through is None or not _plain_product(through) or view.only_reader(pull.inputs[0]) is not pull:
        return None
    g, v = through.inputs[0], f.weighted.inputs[1]
    turned = _flags(f.weighted)[1]
    if g is None or v is None or through.inputs[1] is not v or _flags(through) != (False, not turned, 1.0):
        return None
    of_values = [n for n in readers if n is not pull]
    if any(not _plain_product(n) or {n.inputs[0], n.inputs[1]} != {weights, g} for n in of_values) or len(of_values) > 1:
        return None
    nodes, scores = [through, pull, *of_values], _down(view, pull.outputs[0], f)
    if scores is None:
        return None
    nodes += scores[1]
    q, k = f.scores.inputs[:2]
    found: list[Value | None] = [None, None, _summed(view, of_values[0], v, nodes) if of_values else None]
    for node in view.readers(scores[0]) or []:
        other = [x for x in node.inputs if x is not scores[0]]
        if not _plain_product(node) or len(other) != 1 or q is k or q is None or k is None or _flags(node)[2] != _flags(f.scores)[2]:
            return None
        i = 0 if other[0] is k else 1
        if other[0] not in (q, k) or found[i] is not None:
            return None
        nodes.append(node)
        found[i] = _summed(view, node, (q, k)[i], nodes)
        if found[i] is None:
            return None
    return None if view.readers(scores[0]) is None or (of_values and found[2] is None) else Backward(nodes, g, found)


def _down(view: View, value: Value, f: Forward) -> tuple[Value, list[Node]] | None:
    """From the gradient of the softmax's input through the gradients of scales to that of the product, with the nodes between."""
    nodes: list[Node] = []
    for forward in reversed(f.chain[:-1]):
        if isinstance(forward.op, Add):
            continue                       # its gradient is the same value
        node = view.only_reader(value)
        scale = next(x for x in forward.inputs if _number(view, x) is not None)
        if node is None or type(node.op) is not type(forward.op) or _number(view, scale) not in [_number(view, x) for x in node.inputs]:
            return None
        nodes.append(node)
        value = node.outputs[0]
    return value, nodes


def _summed(view: View, node: Node, like: Value, nodes: list[Node]) -> Value | None:
    """What a gradient's product makes for `like`: summed first where `like` was broadcast."""
    value = node.outputs[0]
    if value.shape == like.shape:
        return value
    total = view.only_reader(value)
    if total is None or not isinstance(total.op, ReduceSum) or total.outputs[0].shape != like.shape:
        return None
    nodes.append(total)
    return total.outputs[0]


# ---- operands

def _order(axes: str, node: Node) -> str:
    """The order of the axes of a transposition's input, from that of its output."""
    perm = node.op.attributes()["perm"] or tuple(range(len(axes)))[::-1]
    return "".join(axes[perm.index(i)] for i in range(len(axes)))


def _sources(view: View, value: Value, axes: str) -> list[Operand]:
    """The operand as it can be read, the furthest up first: behind transpositions, heads first or inside."""
    found: list[Operand] = []
    path: list[Node] = []
    while True:
        if axes in (PLAIN, INSIDE):
            found.insert(0, Operand(value, axes == INSIDE, list(path)))
        node = view.maker(value)
        if node is None or not isinstance(node.op, Transpose) or node.inputs[0] is None:
            return found
        path.append(node)
        axes, value = _order(axes, node), node.inputs[0]


def _sinks(view: View, value: Value, axes: str) -> list[Operand]:
    """The same for a result or gradient: it can be written behind the transpositions that alone read it."""
    found: list[Operand] = []
    path: list[Node] = []
    while True:
        if axes in (PLAIN, INSIDE):
            found.insert(0, Operand(value, axes == INSIDE, list(path)))
        node = view.only_reader(value)
        if node is None or not isinstance(node.op, Transpose):
            return found
        perm = node.op.attributes()["perm"] or tuple(range(len(axes)))[::-1]
        path.append(node)
        axes, value = "".join(axes[a] for a in perm), node.outputs[0]


def _agreed(first: Sequence[Operand], second: Sequence[Operand] | None) -> tuple[Operand, Operand | None] | None:
    """The first pair with heads at the same place."""
    if second is None:
        return (first[0], None) if first else None
    return next(((a, b) for a in first for b in second if a.inside == b.inside), None)


# ---- the rule

@rule
def fuse_attention(view: View, node: Node) -> Replacement | None:
    """Asked about a softmax: its attention and the gradient of it, in two operators."""
    if not isinstance(node.op, Softmax):
        return None
    f = _forward(view, node)
    if f is None:
        return None
    others = [n for n in view.readers(node.outputs[0]) or [] if n is not f.weighted]
    back = _backward(view, f) if others else None
    if others and back is None:
        return None
    return _Fusion(view, f, back).replacement()


class _Fusion:
    """Chooses the layout of the operands and makes the nodes."""

    def __init__(self, view: View, f: Forward, back: Backward | None) -> None:
        self.view, self.f, self.back = view, f, back
        self.origin = f.scores.origin
        for n in f.nodes[1:]:
            self.origin = self.origin.merged(n.origin)

    def replacement(self) -> Replacement | None:
        """None where the shapes are not those of attention."""
        f, back, view = self.f, self.back, self.view
        q, k, v = f.scores.inputs[0], f.scores.inputs[1], f.weighted.inputs[1]
        assert q is not None and k is not None and v is not None
        y = f.weighted.outputs[0]
        if not q.type.rank == k.type.rank == v.type.rank == y.type.rank or y.type.size == 0 or q.dtype not in ("float32", "float64"):
            return None
        (turned_q, turned_k, _), turned_v = _flags(f.scores), _flags(f.weighted)[1]
        turned = (turned_q, not turned_k, turned_v)
        if y.type.rank == 4 and k.shape[:2] == v.shape[:2] == q.shape[:2]:
            return self._in_place((q, k, v), turned, y)
        return None if any(turned) else self._reshaped((q, k, v), y, back)

    def _in_place(self, operands: tuple[Value, Value, Value], turned: tuple[bool, bool, bool], y: Value) -> Replacement | None:
        """Four dimensions: transpositions around the operator go."""
        view, back = self.view, self.back
        pairs = []
        for i, (value, t) in enumerate(zip(operands, turned, strict=True)):
            axes = "bhdt" if t else PLAIN
            grad = back.found[i] if back else None
            pairs.append(_agreed(_sources(view, value, axes), None if grad is None else _sinks(view, grad, axes)))
        pairs.append(_agreed(_sinks(view, y, PLAIN), _sources(view, back.g, PLAIN) if back else None))
        if any(p is None for p in pairs):
            return None
        chosen = [p for p in pairs if p is not None]
        reach, masks = self._masks()
        extra, mask = self._mask(masks, lambda shape: (1,) * (4 - len(shape)) + shape)
        if extra is None:
            return None
        attributes = dict(scale=self.f.factor, reach=reach, inside=tuple(p[0].inside for p in chosen))
        forward = node_of(FusedAttention(**attributes), [p[0].value for p in chosen[:3]] + [mask] * (mask is not None), self.origin,     # type: ignore[arg-type]
                          [chosen[3][0].value])
        made = (*extra, forward)
        removed = {*self.f.nodes, *chosen[3][0].gone}
        added = [(self.f.weighted, made)]
        if back:
            g = chosen[3][1]
            assert g is not None
            role = self._backward_origin(back)
            grads = [None if p[1] is None else p[1].value for p in chosen[:3]]
            pulled = node_of(FusedAttentionGrad(**attributes), [g.value, *(p[0].value for p in chosen[:3]), mask, *forward.outputs], role, grads)   # type: ignore[arg-type]
            added.append((self._first(back), (pulled,)))
            removed |= {*back.nodes, *(n for p in chosen[:3] if p[1] for n in p[1].gone)}
        return Replacement(frozenset(removed), tuple(added))

    def _first(self, back: Backward) -> Node:
        return min(back.nodes, key=self.view.position.__getitem__)

    def _backward_origin(self, back: Backward) -> Origin:
        origin = back.nodes[0].origin
        for n in back.nodes[1:]:
            origin = origin.merged(n.origin)
        return origin

    def _reshaped(self, operands: tuple[Value, Value, Value], y: Value, back: Backward | None) -> Replacement | None:
        """Three dimensions [heads, positions, size], or five where groups of heads share keys: seen as four."""
        q, k, v = operands
        lead, shared = q.shape[:-2], k.shape[:-2]
        if v.shape[:-2] != shared or y.shape[:-2] != lead:
            return None
        if len(lead) == 3 and shared[:2] == lead[:2] and shared[2] in (1, lead[2]):
            views = [(s[0], s[1] * s[2]) for s in (lead, shared, shared, lead)]
        elif len(lead) == 2 and shared[0] == lead[0] and shared[1] == 1:
            views = [lead, shared, shared, lead]
        elif len(lead) == 1 and shared == lead:
            views = [(s[0], 1) for s in (lead, shared, shared, lead)]
        else:
            return None

        def fold(shape: Shape) -> Shape | None:
            """A mask's shape among four dimensions."""
            shape = (1,) * (len(lead) + 2 - len(shape)) + shape
            if len(lead) == 2:
                return shape
            if len(lead) == 1:
                return (shape[0], 1, *shape[1:])
            return (shape[0], shape[1] * shape[2], *shape[3:]) if shape[1:3] in ((1, 1), lead[1:]) else None
        reach, masks = self._masks()
        extra, mask = self._mask(masks, fold)
        if extra is None:
            return None

        def seen(value: Value, i: int, nodes: list[Node], origin: Origin) -> Value:
            shape = (*views[i], *value.shape[-2:])
            if value.shape == shape:
                return value
            nodes.append(node_of(OPS["Reshape"](shape=shape, allowzero=1), [value], origin))
            return nodes[-1].outputs[0]
        before = list(extra)
        inputs = [seen(x, i, before, self.origin) for i, x in enumerate(operands)]
        attributes = dict(scale=self.f.factor, reach=reach)
        forward = node_of(FusedAttention(**attributes), [*inputs, *[mask] * (mask is not None)], self.origin)     # type: ignore[arg-type]
        result = node_of(OPS["Reshape"](shape=y.shape, allowzero=1), [forward.outputs[0]], self.origin, [y])
        removed, added = {*self.f.nodes}, [(self.f.weighted, (*before, forward, result))]
        if back:
            origin, made = self._backward_origin(back), list[Node]()
            g = seen(back.g, 3, made, origin)
            pulled = node_of(FusedAttentionGrad(**attributes), [g, *inputs, mask, *forward.outputs], origin)     # type: ignore[arg-type]
            made.append(pulled)
            for value, grad in zip(back.found, pulled.outputs, strict=True):
                if value is not None:
                    made.append(node_of(OPS["Reshape"](shape=value.shape, allowzero=1), [grad], origin, [value]))
            added.append((self._first(back), tuple(made)))
            removed |= {*back.nodes}
        return Replacement(frozenset(removed), tuple(added))

    # ---- masks

    def _masks(self) -> tuple[int | None, list[Value]]:
        """How far queries reach, if a constant mask says that alone; the masks that are left."""
        reach, left = None, []
        for mask in self.f.masks:
            found = _causal(self.view.graph.constants.get(mask))
            if found is None or reach is not None:
                left.append(mask)
            else:
                reach = found
        return reach, left

    def _mask(self, masks: list[Value], fold: object) -> tuple[list[Node] | None, Value | None]:
        """The sum of the masks in four dimensions, and the nodes that make it; no list where a mask does not fit."""
        assert callable(fold)
        nodes: list[Node] = []
        total: Value | None = None
        keys = self.f.chain[-1].outputs[0].shape[-1]
        for value in masks:
            shape = fold(value.shape)
            if shape is None or len(value.shape) > 5 or value.shape[-1:] != (keys,):
                return None, None
            if value.shape != shape:
                nodes.append(node_of(OPS["Reshape"](shape=shape, allowzero=1), [value], self.origin))
                value = nodes[-1].outputs[0]
            if total is not None:
                nodes.append(node_of(Add(), [total, value], self.origin))
                value = nodes[-1].outputs[0]
            total = value
        return nodes, total


def _causal(mask: np.ndarray | None) -> int | None:
    """The reach that a constant mask stands for: 0 at keys up to i + reach, hidden after; None for another mask."""
    if mask is None or mask.ndim < 2 or mask.size != mask.shape[-1] * mask.shape[-2] or mask.size == 0:
        return None
    mask = mask.reshape(mask.shape[-2:])
    reach = int(np.count_nonzero(mask[0] == 0)) - 1
    hidden = np.arange(mask.shape[1])[None, :] > np.arange(mask.shape[0])[:, None] + reach
    return reach if reach >= 0 and np.array_equal(mask == 0, ~hidden) and bool((mask[hidden] <= HIDDEN).all()) else None
