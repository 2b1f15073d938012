"""The rule that puts FusedAttention in place of the products and the softmax that compute attention, and of their gradients.

Transpositions between [batch, positions, heads, size] and [batch, heads, positions, size] around it go: the operator reads and writes
both. Three dimensions [heads, positions, size], and five where groups of heads share keys, are seen as four.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..graph.graph import Node, Origin, Value
from ..graph.index import Index
from ..ops.arithmetic import Add
from ..ops.attention import FusedAttention, FusedAttentionGrad
from ..ops.shape import Reshape, Shape, Transpose
from ..ops.softmax import Softmax
from .attention_pattern import Backward, Forward, find_backward, find_forward, merged_origin
from .rewrite import Replacement, node_of, rule

HIDDEN, HIDDEN_HALF = -1e30, -6e4
"""A mask's number below which nothing is left of a score: exporters write the smallest float32 or float16 for -inf."""
PLAIN, INSIDE = "bhtd", "bthd"
"""The axes of an operand: batch, heads, positions, size."""


@dataclass(frozen=True)
class Access:
    """Where an operand, a result or a gradient lies; the transpositions between it and the products."""

    value: Value
    inside: bool = False
    path: tuple[Node, ...] = ()


@dataclass(frozen=True)
class AttentionPort:
    """q, k, v or the result: where it lies, where its gradient lies, and the four dimensions that both are seen in."""

    place: Access
    grad: Access | None
    shape: Shape


@rule
def fuse_attention(index: Index, node: Node) -> Replacement | None:
    """Asked about a softmax: its attention and the gradient of it, in two operators."""
    f = find_forward(index, node) if isinstance(node.op, Softmax) else None
    if f is None:
        return None
    trained = len(index.all_readers(node.outputs[0]) or []) > 1 or len(index.all_readers(f.weights) or []) > 1
    if not trained and f.turn is not None and index.only_reader(f.turn.outputs[0]) is None:
        return None
    back = find_backward(index, f) if trained else None
    y = f.weighted.outputs[0]
    if (trained and back is None) or not y.type.is_float or any(x.type.rank != y.type.rank or x.dtype != y.dtype for x in f.operands):
        return None
    ports = _plain_ports(index, f, back) if y.type.rank == 4 else _folded_ports(f, back)
    if ports is None:
        return None
    reach, masks = _reach(index, f.masks)
    origin = merged_origin(f.nodes)
    lead = tuple(y.shape[:-2])
    found = _sum_of_masks(masks, lambda shape: _folded_mask(shape, lead), f.chain[-1].outputs[0].shape[-1], origin)
    return None if found is None else _replacement(index, f, back, ports, reach, found, origin)


# ---- operands

def _perm(node: Node, rank: int) -> Shape:
    assert isinstance(node.op, Transpose)
    return node.op.perm or tuple(range(rank))[::-1]


def _sources(index: Index, value: Value, axes: str) -> list[Access]:
    """The places where an operand can be read, the furthest up first: behind transpositions, heads first or inside."""
    found: list[Access] = []
    path: tuple[Node, ...] = ()
    while True:
        if axes in (PLAIN, INSIDE):
            found.insert(0, Access(value, axes == INSIDE, path))
        node = index.maker(value)
        if node is None or not isinstance(node.op, Transpose) or node.inputs[0] is None:
            return found
        perm = _perm(node, len(axes))
        path, value, axes = (*path, node), node.inputs[0], "".join(axes[perm.index(i)] for i in range(len(axes)))


def _sinks(index: Index, value: Value, axes: str) -> list[Access]:
    """The same for what is written: behind the transpositions that alone read it."""
    found: list[Access] = []
    path: tuple[Node, ...] = ()
    while True:
        if axes in (PLAIN, INSIDE):
            found.insert(0, Access(value, axes == INSIDE, path))
        node = index.only_reader(value)
        if node is None or not isinstance(node.op, Transpose):
            return found
        path, value, axes = (*path, node), node.outputs[0], "".join(axes[a] for a in _perm(node, len(axes)))


def _port(places: list[Access], grads: list[Access] | None) -> AttentionPort | None:
    """The first pair with heads at the same axis."""
    for place in places:
        grad = None if grads is None else next((g for g in grads if g.inside == place.inside), None)
        if grads is None or grad is not None:
            return AttentionPort(place, grad, place.value.shape)
    return None


def _plain_ports(index: Index, f: Forward, back: Backward | None) -> list[AttentionPort] | None:
    """Four dimensions: transpositions around the operator go."""
    q, k, v = f.operands
    if not k.shape[:2] == v.shape[:2] == q.shape[:2]:
        return _folded_ports(f, back)
    ports = []
    for value, turned, grad in zip(f.operands, f.turned, back.found if back else (None, None, None), strict=True):
        axes = "bhdt" if turned else PLAIN
        ports.append(_port(_sources(index, value, axes), None if grad is None else _sinks(index, grad, axes)))
    ports.append(_port(_sinks(index, f.weighted.outputs[0], PLAIN), _sources(index, back.g, PLAIN) if back else None))
    return None if None in ports else [p for p in ports if p is not None]


def _folded_ports(f: Forward, back: Backward | None) -> list[AttentionPort] | None:
    """Other ranks, or fewer key heads than heads: views of four dimensions."""
    (q, k, v), y = f.operands, f.weighted.outputs[0]
    lead, shared = q.shape[:-2], k.shape[:-2]
    grouped = shared == lead or (shared[:-1] == lead[:-1] and shared[-1] == 1)
    if any(f.turned) or v.shape[:-2] != shared or y.shape[:-2] != lead or not grouped or (len(lead) == 1 and shared != lead):
        return None

    def seen(value: Value) -> Shape:
        first = value.shape[:-2]
        return (*((first[0], 1) if len(first) == 1 else (first[0], first[1] * first[2]) if len(first) == 3 else first), *value.shape[-2:])
    grads = [*back.found, back.g] if back else [None] * 4
    return [AttentionPort(Access(x), None if g is None else Access(g), seen(x))
            for x, g in zip((q, k, v, y), grads, strict=True)]


# ---- masks

def _reach(index: Index, masks: list[Value]) -> tuple[int | None, list[Value]]:
    """How far queries reach, if a constant mask says that alone; the masks that are left."""
    reach, left = None, []
    for mask in masks:
        found = causal_reach(index.graph.constants.get(mask))
        if found is None or reach is not None:
            left.append(mask)
        else:
            reach = found
    return reach, left


def causal_reach(mask: np.ndarray | None) -> int | None:
    """The reach that a constant mask stands for: 0 at keys up to i + reach, hidden after; None for another mask."""
    if mask is None or mask.ndim < 2 or mask.size != mask.shape[-1] * mask.shape[-2] or mask.size == 0:
        return None
    limit = HIDDEN_HALF if mask.dtype == np.float16 else HIDDEN
    mask = mask.reshape(mask.shape[-2:]).astype(np.float64)
    reach = int(np.count_nonzero(mask[0] == 0)) - 1
    hidden = np.arange(mask.shape[1])[None, :] > np.arange(mask.shape[0])[:, None] + reach
    return reach if reach >= 0 and np.array_equal(mask == 0, ~hidden) and bool((mask[hidden] <= limit).all()) else None


def _folded_mask(shape: Shape, lead: Shape) -> Shape | None:
    """A mask's shape among four dimensions, as `_folded_ports` sees the scores."""
    if len(shape) > len(lead) + 2:
        return None
    shape = (1,) * (len(lead) + 2 - len(shape)) + shape
    if len(lead) == 1:
        return (shape[0], 1, *shape[1:])
    if len(lead) == 2:
        return shape
    return (shape[0], shape[1] * shape[2], *shape[3:]) if shape[1:3] in ((1, 1), lead[1:]) else None


def _sum_of_masks(masks: list[Value], fold: Callable[[Shape], Shape | None], keys: int, origin: Origin) -> tuple[list[Node], Value | None] | None:
    """The nodes that make the sum of the masks in four dimensions; None where a mask does not fit."""
    nodes: list[Node] = []
    total: Value | None = None
    for value in masks:
        shape = fold(value.shape)
        if shape is None or shape[3] != keys:
            return None
        value = _seen(value, shape, nodes, origin)
        if total is not None and total.dtype != value.dtype:
            return None
        if total is not None:
            nodes.append(node_of(Add(), [total, value], origin))
            value = nodes[-1].outputs[0]
        total = value
    return nodes, total


# ---- nodes

def _seen(value: Value, shape: Shape, nodes: list[Node], origin: Origin) -> Value:
    """The value in another shape; `nodes` gains what makes it."""
    if value.shape == shape:
        return value
    nodes.append(node_of(Reshape(shape=shape, allowzero=1), [value], origin))
    return nodes[-1].outputs[0]


def _write(node: Node, values: list[Value | None], nodes: list[Node]) -> None:
    """Let the outputs of `node` be these values, through a view where the shape is another."""
    nodes.append(node)
    for i, value in enumerate(values):
        if value is not None and value.type == node.outputs[i].type:
            node.outputs[i] = value
        elif value is not None:
            nodes.append(node_of(Reshape(shape=value.shape, allowzero=1), [node.outputs[i]], node.origin, [value]))


def _replacement(index: Index, f: Forward, back: Backward | None, ports: list[AttentionPort], reach: int | None,
                 masks: tuple[list[Node], Value | None], origin: Origin) -> Replacement:
    q, k, v, y = ports
    inside = (q.place.inside, k.place.inside, v.place.inside, y.place.inside)
    before, mask = list(masks[0]), masks[1]
    operands = [_seen(p.place.value, p.shape, before, origin) for p in (q, k, v)]
    fused = FusedAttention(scale=f.scale, softcap=f.softcap, reach=reach, inside=inside)
    forward = node_of(fused, [*operands, *([] if mask is None else [mask])], origin)
    _write(forward, [y.place.value], before)
    removed = {*f.nodes, *y.place.path}
    added = [(f.weighted, tuple(before))]
    if back and y.grad:
        origin, made = merged_origin(back.nodes), list[Node]()
        g, result = (_seen(x, y.shape, made, origin) for x in (y.grad.value, forward.outputs[0]))
        pulled = node_of(FusedAttentionGrad(**fused.attributes()), [g, *operands, mask, result, forward.outputs[1]], origin)
        grads = [p.grad for p in (q, k, v)]
        _write(pulled, [None if p is None else p.value for p in grads], made)
        removed |= {*back.nodes, *(node for p in grads if p is not None for node in p.path)}
        added.append((min(back.nodes, key=index.position.__getitem__), tuple(made)))
    return Replacement(frozenset(removed), tuple(added))
