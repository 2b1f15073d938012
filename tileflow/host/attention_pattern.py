"""Finds attention in a graph of simpler operators:

    q k^T -> scale -> softcap -> + masks -> Softmax -> (weights) @ v

and, in a training graph, the gradients that autograd made of it. Any other reader of the scores or weights (dropout between, a
gradient of the mask, an output) means that it is none. The softcap is a Tanh between two scales.

With products in 16 bits and the softmax in float32 there are Casts: the scores' after the product, the weights' before the other one, and those
of their gradients. They go: the operator keeps scores and weights in float32.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..graph.graph import Node, Origin, Value
from ..graph.index import Index
from ..kernels.elementwise.expr import Var, cast
from ..ops.activation import Tanh
from ..ops.arithmetic import Add
from ..ops.elementwise import Elementwise
from ..ops.matmul import FusedMatMul, MatMul, Product
from ..ops.reduce import ReduceSum
from ..ops.shape import normal_axis
from ..ops.softmax import SoftmaxGrad
from .expressions import casts, expression
from .linear import is_moderate, linear_factor


@dataclass
class Forward:
    """What was found from a softmax upwards and downwards."""

    scores: Node
    weighted: Node
    chain: list[Node]                      # between them, the softmax last
    weights: Value                         # as the products read them: what the softmax makes, or a Cast of it
    rounded: Node | None = None            # that Cast
    masks: list[Value] = field(default_factory=list)
    factor: float = 1.0                    # of the product, all scales together; with a softcap, of what the Tanh reads
    softcap: float = 0.0
    turn: Node | None = None               # the softcap's Tanh

    @property
    def scale(self) -> float:
        """What the operator takes: s becomes softcap * tanh(scale * s / softcap)."""
        return self.factor * self.softcap if self.softcap else self.factor

    @property
    def nodes(self) -> list[Node]:
        return [self.scores, *self.chain, *([self.rounded] if self.rounded else []), self.weighted]

    @property
    def operands(self) -> tuple[Value, Value, Value]:
        """q, k and v as the products read them."""
        q, k, v = self.scores.inputs[0], self.scores.inputs[1], self.weighted.inputs[1]
        assert q is not None
        assert k is not None
        assert v is not None
        return q, k, v

    @property
    def turned(self) -> tuple[bool, bool, bool]:
        """Whether the last two axes of q, k and v are (size, positions)."""
        turned_q, turned_k, _ = product_flags(self.scores)
        return turned_q, not turned_k, product_flags(self.weighted)[1]


@dataclass
class Backward:
    """The nodes of the gradient, the gradient of the result, and the values that are the gradients of q, k and v."""

    nodes: list[Node]
    g: Value
    found: list[Value | None]


def _plain_product(node: Node | None) -> bool:
    return node is not None and type(node.op) in (MatMul, FusedMatMul)


def product_flags(node: Node) -> tuple[bool, bool, float]:
    """Whether the operands of a product enter transposed, and its factor."""
    assert isinstance(node.op, Product)
    return node.op.flags()


def _factor(index: Index, node: Node, value: Value) -> float | None:
    """The number by which an elementwise node with constants multiplies `value`; None where it does something else."""
    expr = expression(index, node, (value,)) if node.outputs[0].type == value.type else None
    return None if expr is None else linear_factor(expr)


# ---- forward

def find_forward(index: Index, softmax: Node) -> Forward | None:
    """The nodes from the product of queries and keys to that with the values, around a softmax along the last axis."""
    weights = softmax.outputs[0]
    rank = weights.type.rank
    rounded = next((n for n in index.all_readers(weights) or [] if n.outputs[0].type.is_half and casts(index, n, weights)), None)
    weights = rounded.outputs[0] if rounded else weights
    readers = index.all_readers(weights)
    if readers is None or rank not in (3, 4, 5) or normal_axis(softmax.op.attributes()["axis"], rank) != rank - 1:
        return None
    weighted = next((n for n in readers if _plain_product(n) and n.inputs[0] is weights and not product_flags(n)[0]), None)
    if weighted is None or product_flags(weighted)[2] != 1 or weighted.inputs[1] is weights:
        return None
    found = Forward(softmax, weighted, [softmax], weights, rounded)
    value = softmax.inputs[0]
    while True:
        node = None if value is None else index.maker(value)
        if node is None or value is None or not _leads_on(index, node, found) or value.shape != weights.shape:
            return None
        if _plain_product(node):
            found.scores = node
            found.factor *= product_flags(node)[2]
            return found if is_moderate(found.factor, value.dtype) else None
        value = _step(index, node, found)
        found.chain.insert(0, node)


def _leads_on(index: Index, node: Node, found: Forward) -> bool:
    """Nothing but the chain reads what a node makes; a Tanh's result is read by its gradient, too, which `find_backward` looks for."""
    readers = index.all_readers(node.outputs[0])
    return readers is not None and (len(readers) == 1 or (found.chain[0] in readers and isinstance(node.op, Tanh)))


def _step(index: Index, node: Node, found: Forward) -> Value | None:
    """Take a scale, a softcap or a mask into `found`; returns the scores before it, or None for what is neither."""
    if isinstance(node.op, Tanh) and not found.softcap and found.factor > 0:
        found.softcap, found.factor, found.turn = found.factor, 1.0, node
        return node.inputs[0]
    whole = [v for v in node.operands if v.shape == node.outputs[0].shape]
    if len(whole) == 1 and whole[0].type.is_half and casts(index, node, whole[0]):
        return whole[0]
    for value in whole:
        factor = _factor(index, node, value)
        if factor is not None and is_moderate(found.factor * factor, value.dtype):
            found.factor *= factor
            return value
    if not isinstance(node.op, Add) or len(node.operands) != 2 or found.factor != 1 or found.softcap:
        return None                        # a scale or softcap between mask and softmax changes the mask, too
    scores = next((v for v in whole if _leads_to_product(index, v)), None)
    if scores is not None:
        found.masks.append(next(v for v in node.operands if v is not scores))
    return scores


def _leads_to_product(index: Index, value: Value) -> bool:
    """Going up through scales and sums a product comes."""
    node = index.maker(value)
    while node is not None and isinstance(node.op, Elementwise):
        above = [v for v in node.operands if v.shape == value.shape]
        if not above:
            return False
        node = index.maker(above[0]) if len(above) == 1 or not _plain_product(index.maker(above[-1])) else index.maker(above[-1])
    return _plain_product(node)


# ---- backward

def find_backward(index: Index, f: Forward) -> Backward | None:
    """The gradient's nodes, or None where the weights have other readers than they."""
    softmax, weights = f.chain[-1], f.chain[-1].outputs[0]
    readers = [n for n in index.all_readers(weights) or [] if n not in (f.weighted, f.rounded)]
    pull = next((n for n in readers if isinstance(n.op, SoftmaxGrad) and n.inputs[1] is weights and n.inputs[0] is not weights), None)
    if pull is None or pull.inputs[0] is None or pull.op.attributes()["axis"] != softmax.op.attributes()["axis"]:
        return None
    arriving, widened = pull.inputs[0], index.maker(pull.inputs[0])
    if widened is not None and f.rounded and widened.inputs[0] is not None and casts(index, widened, widened.inputs[0]):
        if index.only_reader(arriving) is not pull:
            return None
        arriving = widened.inputs[0]
    else:
        widened = None
    through = index.maker(arriving)
    if through is None or not _plain_product(through) or index.only_reader(arriving) is not (widened or pull):
        return None
    g, v = through.inputs[0], f.weighted.inputs[1]
    turned = product_flags(f.weighted)[1]
    if g is None or v is None or through.inputs[1] is not v or product_flags(through) != (False, not turned, 1.0):
        return None
    if f.rounded:
        readers += [n for n in index.all_readers(f.weights) or [] if n is not f.weighted]
    of_values = [n for n in readers if n is not pull]
    if any(not _plain_product(n) or {n.inputs[0], n.inputs[1]} != {f.weights, g} for n in of_values) or len(of_values) > 1:
        return None
    nodes, scores = [through, *([widened] if widened else []), pull, *of_values], _down(index, pull.outputs[0], f)
    if scores is None:
        return None
    nodes += scores[1]
    q, k = f.scores.inputs[:2]
    found: list[Value | None] = [None, None, _summed(index, of_values[0], v, nodes) if of_values else None]
    for node in index.all_readers(scores[0]) or []:
        other = [x for x in node.inputs if x is not scores[0]]
        if not _plain_product(node) or len(other) != 1 or q is k or q is None or k is None or product_flags(node)[2] != product_flags(f.scores)[2]:
            return None
        i = 0 if other[0] is k else 1
        if other[0] not in (q, k) or found[i] is not None:
            return None
        nodes.append(node)
        found[i] = _summed(index, node, (q, k)[i], nodes)
        if found[i] is None:
            return None
    return None if index.all_readers(scores[0]) is None or (of_values and found[2] is None) else Backward(nodes, g, found)


def _down(index: Index, value: Value, f: Forward) -> tuple[Value, list[Node]] | None:
    """From the gradient of the softmax's input through the gradients of scales and softcap to that of the product, and the nodes between."""
    nodes: list[Node] = []
    factors = [1.0, product_flags(f.scores)[2]]
    before = f.turn is not None
    while (node := index.only_reader(value)) is not None:
        scale = 1.0 if casts(index, node, value) else _factor(index, node, value)
        if scale is not None:
            factors[0 if before else 1] *= scale
        elif before and f.turn is not None and _is_turn_gradient(index, node, value, f.turn.outputs[0]):
            before = False
        else:
            break
        nodes.append(node)
        value = node.outputs[0]
    wanted = (f.softcap or 1.0, f.factor)
    rounding = {"float16": 2e-3, "bfloat16": 1e-2}.get(value.dtype, 1e-6)
    if before or not all(math.isclose(a, b, rel_tol=rounding) for a, b in zip(factors, wanted, strict=True)):
        return None
    inside = f.turn is None or {*(index.all_readers(f.turn.outputs[0]) or [])} <= {*nodes, *f.chain}
    return (value, nodes) if inside else None


def _is_turn_gradient(index: Index, node: Node, g: Value, y: Value) -> bool:
    """Whether an elementwise node makes of g what Tanh's own gradient makes of it, with the very same expression."""
    if g.dtype != y.dtype:
        return False
    pulled = cast(Tanh().gradient(0, (), [Var(1, y.dtype)], [Var(0, g.dtype)]), y.dtype)
    return expression(index, node, (g, y)) is pulled


def _summed(index: Index, node: Node, like: Value, nodes: list[Node]) -> Value | None:
    """What a gradient's product makes for `like`: summed first where `like` was broadcast."""
    value = node.outputs[0]
    if value.shape == like.shape:
        return value
    total = index.only_reader(value)
    if total is None or not isinstance(total.op, ReduceSum) or total.outputs[0].shape != like.shape:
        return None
    nodes.append(total)
    return total.outputs[0]


def merged_origin(nodes: list[Node]) -> Origin:
    """The origin of a node in place of several."""
    origin = nodes[0].origin
    for node in nodes[1:]:
        origin = origin.merged(node.origin)
    return origin
