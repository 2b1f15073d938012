"""Epilogues: elementwise work that alone reads a product's result moves into the product's kernel, block by block in cache.

Bits never change: kernels run the elementwise leaves' code over finished elements (see `kernels.elementwise.epilogue`).
"""
from __future__ import annotations

import math
from collections.abc import Iterable

from ..graph import Graph, Index, Node, Value
from ..host.form import Blockwise
from ..host.hosted import hosted
from ..kernels.elementwise.expr import Expr, Var, substitute, variables
from .groups import waits


def fuse_epilogues(graph: Graph, keep: Iterable[Value] = ()) -> Graph:
    """A copy of the graph with elementwise nodes appended to products; values keep their identity.

    `keep` names values that are wanted besides the graph's results. The two run where the product stood or, where an operand is not
    made by then, where the elementwise node stood.
    """
    index = Index(graph, keep)
    nodes: list[Node | None] = list(graph.nodes)
    for position, node in enumerate(graph.nodes):
        exprs = _expressions(node)
        for source in sorted({index.position[made] for v in node.operands if (made := index.maker(v))}, reverse=True):
            product = nodes[source]
            how = None if exprs is None or product is None else hosted(product.op).blockwise
            if exprs is None or product is None or how is None or not _may_join(product, node):
                continue
            result = product.outputs[0]
            makers = [index.maker(v) for v in node.operands if v is not result]
            early = all(index.position[made] < source for made in makers if made is not None)
            late = early or all(index.position[reader] >= position for v in product.outputs for reader in index.readers(v))
            joined = _joined(product, how, node, exprs, index) if late else None
            if joined is not None:
                nodes[source] = nodes[position] = None
                nodes[source if early else position] = joined
                index.join([product, node], joined, source if early else position)
                break
    return graph.with_nodes(n for n in nodes if n is not None)


def _expressions(node: Node) -> tuple[Expr, ...] | None:
    """What it computes for one element; None where it is not elementwise, or draws random numbers, which blocks do not count."""
    if node.op.position is not None:
        return None
    found = node.op.expression([None if v is None else v.type for v in node.inputs], [v.type for v in node.outputs])
    return found if found is None or isinstance(found, tuple) else (found,)


def _may_join(product: Node, node: Node) -> bool:
    """`node` reads the product, and nothing else that is made with it; its results look like it."""
    if waits(product, node):
        return False
    result, *others = product.outputs
    return (result in node.operands and not any(v in node.operands for v in others) and result.type.size > 0
            and all(v.shape == result.shape for v in node.outputs))


def _joined(product: Node, how: Blockwise, node: Node, exprs: tuple[Expr, ...], index: Index) -> Node | None:
    """The product with `node` as its epilogue; None where its outputs or operands do not fit."""
    result = product.outputs[0]
    outputs: list[tuple[Value, Expr | None]] = list(zip(node.outputs, exprs, strict=True))
    if result in index.wanted or len(index.readers(result)) > 1:
        outputs.insert(0, (result, None))
    else:
        outputs.sort(key=lambda output: output[0].dtype != result.dtype)         # one takes the product's own memory
    fits = outputs[0][0].dtype == result.dtype if not how.retypes else len(outputs) == 1 and len(product.outputs) == 1
    return _merged(product, how, node, outputs) if fits else None


def _merged(product: Node, how: Blockwise, node: Node, outputs: list[tuple[Value, Expr | None]]) -> Node | None:
    """The product with these outputs; an expression of None is the product itself."""
    result = product.outputs[0]
    inputs: list[Value] = []
    kinds: list[str] = []
    number: dict[int, Expr] = {}
    for i, variable in variables(*(e for _, e in outputs if e is not None)).items():
        value = node.inputs[i]
        assert value is not None
        if value is not result and value not in inputs:
            kind = _kind(value.shape, result.shape, how.channels % len(result.shape))
            if kind is None:
                return None
            inputs.append(value)
            kinds.append(kind)
        number[i] = Var(0 if value is result else 1 + inputs.index(value), variable.dtype)
    done = tuple(Var(0, result.dtype) if e is None else substitute(e, number) for _, e in outputs)
    if 0 not in variables(*done):
        return None
    operands = [(v.type, kind) for v, kind in zip(inputs, kinds, strict=True)]
    op = hosted(product.op).then(done, len(product.inputs), [v.type for v in product.outputs], operands)
    first, *more = [v for v, _ in outputs]
    return Node(op, [*product.inputs, *inputs], [first, *product.outputs[1:], *more], product.origin.merged(node.origin))


def _kind(shape: tuple[int, ...], whole: tuple[int, ...], axis: int) -> str | None:
    """How an operand of this shape lies along a product of shape `whole`; None: in another way than an epilogue knows."""
    if math.prod(shape) == 1:
        return "scalar"
    padded = (1,) * (len(whole) - len(shape)) + shape
    if padded == whole:
        return "full"
    per_channel = tuple(n if i == axis else 1 for i, n in enumerate(whole))
    return "channel" if padded == per_channel else None
