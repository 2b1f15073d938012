"""Finds attention in a graph of simpler operators:

    q k^T -> scale -> + masks -> Softmax -> (weights) @ v

and, in a training graph, the gradients that autograd made of it. Any other reader of the scores or weights (dropout between, a
gradient of the mask, an output) means that it is none.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from ..graph.graph import Node, Origin, Value
from ..graph.rewrite import View
from .arithmetic import Add, Div, Mul
from .matmul import FusedMatMul, MatMul, Product
from .reduce import ReduceSum
from .shape import normal_axis
from .softmax import SoftmaxGrad


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


def _number(view: View, value: Value | None) -> float | None:
    """The one element of a constant."""
    array = view.graph.constants.get(value) if value is not None else None
    return float(array.reshape(())) if array is not None and array.size == 1 else None


# ---- forward

def find_forward(view: View, softmax: Node) -> Forward | None:
    """The nodes from the product of queries and keys to that with the values, around a softmax along the last axis."""
    weights = softmax.outputs[0]
    rank = weights.type.rank
    readers = view.readers(weights)
    if readers is None or rank not in (3, 4, 5) or normal_axis(softmax.op.attributes()["axis"], rank) != rank - 1:
        return None
    weighted = next((n for n in readers if _plain_product(n) and n.inputs[0] is weights and not product_flags(n)[0]), None)
    if weighted is None or product_flags(weighted)[2] != 1 or weighted.inputs[1] is weights:
        return None
    found = Forward(softmax, weighted, [softmax])
    value = softmax.inputs[0]
    while True:
        node = None if value is None else view.maker(value)
        if node is None or value is None or view.only_reader(value) is None or value.shape != weights.shape:
            return None
        if _plain_product(node):
            found.scores = node
            found.factor *= product_flags(node)[2]
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

def find_backward(view: View, f: Forward) -> Backward | None:
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
    turned = product_flags(f.weighted)[1]
    if g is None or v is None or through.inputs[1] is not v or product_flags(through) != (False, not turned, 1.0):
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
        if not _plain_product(node) or len(other) != 1 or q is k or q is None or k is None or product_flags(node)[2] != product_flags(f.scores)[2]:
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


def merged_origin(nodes: list[Node]) -> Origin:
    """The origin of a node in place of several."""
    origin = nodes[0].origin
    for node in nodes[1:]:
        origin = origin.merged(node.origin)
    return origin
