"""Products whose operands are scaled, as PyTorch's exporters write attention: s q by s k^T, where k is seen without its
heads while it is turned.

Both numbers become the product's one factor, which takes no pass over memory, forwards or backwards, and of which the
host's rule for attention knows. A rule is a proof: that the numbers are constants, that the turn moves the last two
axes and nothing else, and that nobody else reads what goes.
"""
from __future__ import annotations

from ..graph.graph import Node, Value
from ..graph.index import Index
from ..graph.rules import Replacement, folded, node_of
from .arithmetic import Mul
from .matmul import FusedMatMul, MatMul
from .shape import Reshape, Transpose

SPAN = 256.0
"""How large a factor may be, and one over it how small: then only numbers at the ends of a type's range see which is
multiplied first."""


@folded
def product_of_scaled(index: Index, node: Node) -> Replacement | None:
    """MatMul of operands of which one or both are multiplied by a constant number: FusedMatMul of what they were.

    float16 stays: an unscaled product need not fit the type.
    """
    if type(node.op) is not MatMul or node.outputs[0].dtype == "float16":
        return None
    alpha, nodes, operands, turned = 1.0, [node], list[Value](), list[bool]()
    for value in node.operands:
        if value.type.rank < 3:
            return None
        scale, turn, source, path = _scaled(index, value, node)
        alpha *= scale
        nodes += path
        operands.append(source)
        turned.append(turn)
    if len(operands) != 2 or alpha == 1 or not all(n.origin.hints == node.origin.hints for n in nodes):
        return None
    ordered = sorted(nodes, key=index.position.__getitem__)
    origin = ordered[0].origin.merged(*(n.origin for n in ordered[1:]))
    op = FusedMatMul(alpha=alpha, transA=int(turned[0]), transB=int(turned[1]))
    return Replacement(frozenset(nodes), ((node, (node_of(op, operands, origin, node.outputs),)),))


def _scaled(index: Index, value: Value, reader: Node) -> tuple[float, bool, Value, list[Node]]:
    """By what an operand is multiplied, whether the last two axes are turned before, of what, and the nodes that do it;
    1.0 where none is."""
    product = index.maker(value)
    is_read = product is not None and index.only_reader(value) is reader
    number, source = _multiple(index, product) if product is not None and is_read else (None, value)
    if number is None or product is None:
        return 1.0, False, value, []
    path, place = _turn(index, source, product)
    return number, bool(path), place, [product, *path]


def _multiple(index: Index, node: Node) -> tuple[float | None, Value]:
    """The constant number by which a node multiplies a value, and the value; None where it does anything else."""
    result = node.outputs[0]
    if isinstance(node.op, Mul):
        for value, other in (node.operands, node.operands[::-1]):
            array = index.constants.get(other)
            is_number = array is not None and array.size == 1 and value.type == result.type
            number = float(array.reshape(-1)[0]) if array is not None and is_number else 0.0
            if 1 / SPAN <= abs(number) <= SPAN:
                return number, value
    return None, result


def _turn(index: Index, value: Value, reader: Node) -> tuple[list[Node], Value]:
    """The nodes that exchange the last two axes of a value, alone or between views in which the others are one axis,
    and that value; none where nothing does."""
    nodes: list[Node] = []
    node, shape = index.maker(value), value.shape
    views = node is not None and isinstance(node.op, Reshape)
    for kind in (Reshape, Transpose, Reshape) if views else (Transpose,):
        after = nodes[-1] if nodes else reader
        if node is None or not isinstance(node.op, kind) or index.only_reader(node.outputs[0]) is not after:
            return [], value
        nodes.append(node)
        node = index.maker(node.operands[0])
    turn, source = nodes[len(nodes) // 2], nodes[-1].operands[0]
    rank = turn.outputs[0].type.rank
    if not isinstance(turn.op, Transpose) or rank < 2 or turn.op.order(rank) != (*range(rank - 2), rank - 1, rank - 2):
        return [], value
    same = turn.outputs[0].shape[-2:] == shape[-2:] and source.shape == (*shape[:-2], shape[-1], shape[-2])
    return (nodes, source) if same else ([], value)
