"""Matrix products: epilogues on their blocks, B laid out in panels, and results that are turned afterwards."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ..graph.graph import Node
from ..graph.index import Index
from ..graph.op import Types
from ..kernels.gemm import panels
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call
from ..memory.types import TensorType, dtype_of
from ..ops.matmul import Gemm, MatMul, Product
from ..ops.shape import Transpose, present
from .expressions import casts
from .form import Blockwise, HostForm, Packed, blockwise, calls, packed
from .rewrite import Replacement, node_of, rule

LONG, WIDE = 32, ("float32", "float64")
"""Elements of a row that are summed by themselves in less time than the matrix is turned (of 16 in as much), and
their types."""


@blockwise.register(Product)
@blockwise.register(Gemm)
def _(op: Product | Gemm, form: HostForm) -> Blockwise | None:
    return Blockwise(-1)


@packed.register(Product)
@packed.register(Gemm)
def _(op: Product | Gemm, form: HostForm, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Packed | None:
    """B. Serialized products keep their bounded memory: they have no such form."""
    b = present(inputs[1])
    problem = op.problem(present(inputs[0]), b)
    laid = None if op.pieces() else panels(b.code, problem)
    if laid is None:
        return None

    def turned() -> tuple[Call, ...] | None:
        other = panels(b.code, replace(problem, trans_b=not problem.trans_b))
        return other.calls if other is not None and (other.elements,
                                                     other.dtype) == (laid.elements, laid.dtype) else None
    return Packed(1, b, TensorType(dtype_of(laid.dtype), (laid.elements,)), laid.calls,
                  turned=turned if b.rank == 2 else None)


@calls.register(Product)
@calls.register(Gemm)
def _(op: Product | Gemm, form: HostForm, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
    problem = op.problem(present(inputs[0]), present(inputs[1]))
    return op.calls(problem, form.laid(inputs), outputs, form.packed is not None, form.epilogue)


@rule
def turned_product(index: Index, node: Node) -> Replacement | None:
    """(A B)^T of matrices is B^T A^T: what alone reads a product, or what it is cast to, and turns it goes, as that of
    a weight's gradient where a file turns the weight."""
    if not _turns(node):
        return None
    product, between = index.maker(node.operands[0]), list[Node]()
    if product is not None and len(product.operands) == 1 and casts(index, product, product.operands[0]):
        between, product = [product], index.maker(product.operands[0])
    if product is None or type(product.op) is not Gemm or len(product.operands) != 2 or any(
            index.only_reader(above.outputs[0]) is not below for above, below in pairwise([product, *between, node])):
        return None
    op, (a, b), origin = product.op, product.operands, product.origin.merged(node.origin)
    made = Gemm(alpha=op.alpha, transA=1 - op.transB, transB=1 - op.transA)
    nodes = [node_of(made, [b, a], origin, [] if between else node.outputs)]
    nodes += [node_of(n.op, nodes[0].outputs, n.origin, node.outputs) for n in between]
    return Replacement(frozenset([product, *between, node]), ((node, tuple(nodes)),))


@rule
def narrowed_before_turned(index: Index, node: Node) -> Replacement | None:
    """A matrix that is turned and cast to 16 bits, as a weight of mixed precision that a file turns: cast, then turned,
    which a packing does on its way."""
    if len(node.operands) != 1 or not node.outputs[0].type.is_half or not casts(index, node, node.operands[0]):
        return None
    turn = index.maker(node.operands[0])
    if turn is None or not _turns(turn) or index.only_reader(turn.outputs[0]) is not node:
        return None
    cast = node_of(node.op, turn.operands, node.origin)
    return Replacement(frozenset([turn, node]),
                       ((node, (cast, node_of(turn.op, cast.outputs, turn.origin, node.outputs))),))


def _turns(node: Node) -> bool:
    """Whether a node is the transposition of a matrix."""
    return isinstance(node.op, Transpose) and node.outputs[0].type.rank == 2 and node.op.order(2) == (1, 0)


@rule
def turned_operand(index: Index, node: Node) -> Replacement | None:
    """A row times B^T reads B as it lies, a row of it for each sum: 0.3 to 0.7 of the time that it takes to turn it
    first, as a file does with the keys of a decoder at each token."""
    if type(node.op) is not MatMul or any(v.type.rank != 2 or v.dtype not in WIDE for v in node.operands):
        return None
    a, b = node.operands
    turn = index.maker(b)
    if (a.shape[0] != 1 or a.shape[1] < LONG or turn is None or not isinstance(turn.op, Transpose)
            or turn.op.order(2) != (1, 0) or index.only_reader(b) is not node):
        return None
    made = node_of(Gemm(transB=1), [a, turn.operands[0]], turn.origin.merged(node.origin), node.outputs)
    return Replacement(frozenset([turn, node]), ((node, (made,)),))
