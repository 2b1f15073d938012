"""What an elementwise node computes of given values, as a scalar expression."""
from __future__ import annotations

from ..graph.graph import Node, Value
from ..graph.index import Index
from ..kernels.elementwise.expr import Const, Expr, Var, cast, substitute
from ..ops.elementwise import Elementwise


def expression(index: Index, node: Node, order: tuple[Value, ...]) -> Expr | None:
    """What an elementwise node computes of `order` (variable i being its value i) and constants; None where it reads
    anything else."""
    if not isinstance(node.op, Elementwise) or len(node.outputs) != 1:
        return None
    known: dict[int, Expr] = {}
    for i, v in enumerate(node.operands):
        if v in order:
            known[i] = Var(order.index(v), v.dtype)
        elif v.type.size == 1 and v in index.graph.constants:
            known[i] = Const(index.graph.constants[v].reshape(()).item(), v.dtype)
        else:
            return None
    return substitute(node.op.expressions([v.type for v in node.operands])[0], known)


def casts(index: Index, node: Node | None, value: Value) -> bool:
    """Whether a node is a Cast of `value` between 16 bits and float32."""
    if node is None or len(node.outputs) != 1 or value.type.is_half == node.outputs[0].type.is_half:
        return False
    y = node.outputs[0]
    wanted = cast(Var(0, value.dtype), y.dtype)
    return "float32" in (value.dtype, y.dtype) and expression(index, node, (value,)) is wanted
