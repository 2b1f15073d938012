"""Epilogues: elementwise work that alone reads a product's result moves into the product's kernel, block by block in cache.

Bits never change: kernels run the elementwise leaves' code over finished elements (see `kernels.epilogue`).
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..graph import Graph, Node, Op, TensorType, Value
from ..graph.op import Types
from ..kernels.call import Call, In
from ..kernels.cpu import Cpu
from ..kernels.epilogue import Along, Epilogue
from ..kernels.expr import Expr, Var, substitute, variables
from ..work import Work


class Finished(Op):
    """An operator with elementwise work appended. Made by `attach` only, after the fork of the street.

    Inputs: the operator's own, then the epilogue's operands, of these `kinds`. Outputs: one per expression.
    """

    name: ClassVar[str] = "Finished"

    def __init__(self, op: Op, own: int, product: TensorType, exprs: tuple[Expr, ...], kinds: tuple[str, ...]) -> None:
        self.op, self.own, self.product, self.exprs, self.kinds = op, own, product, exprs, kinds

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return tuple(TensorType(e.dtype, self.product.shape) for e in self.exprs)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        raise AssertionError("a product with an epilogue has no work of its own: cost is counted before the host lowering")

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        along = [Along(In(self.own + i, t.shape), kind) for i, (t, kind) in enumerate(zip(inputs[self.own:], self.kinds, strict=True)) if t]
        kernel: Any = self.op.kernel
        calls: list[Call] = kernel(inputs[:self.own], [self.product], cpu, epilogue=Epilogue(self.exprs, tuple(along), self.product.size))
        return calls

    def __str__(self) -> str:
        return f"{self.op} then {', '.join(map(str, self.exprs))}"


@dataclass
class _Uses:
    """Who makes and who reads each value, as positions in the graph; `wanted` are read by what is no node."""

    graph: Graph
    wanted: set[Value]

    def __post_init__(self) -> None:
        self.maker = {v: i for i, node in enumerate(self.graph.nodes) for v in node.outputs}
        self.readers: dict[Value, list[int]] = {}
        for i, node in enumerate(self.graph.nodes):
            for v in dict.fromkeys(node.operands):
                self.readers.setdefault(v, []).append(i)


def attach(graph: Graph, keep: Iterable[Value] = ()) -> Graph:
    """A copy of the graph with elementwise nodes appended to products; values keep their identity.

    `keep` names values that are wanted besides the graph's results. A product runs where its epilogue stood.
    """
    uses = _Uses(graph, {*graph.results(), *keep})
    gone: dict[int, Node | None] = {}
    for position, node in enumerate(graph.nodes):
        exprs = _expressions(node)
        if exprs is None:
            continue
        for source in sorted({uses.maker[v] for v in node.operands if v in uses.maker}, reverse=True):
            joined = None if source in gone else _join(graph.nodes[source], node, position, exprs, uses)
            if joined is not None:
                gone |= {source: None, position: joined}
                break
    nodes = [gone.get(i, node) for i, node in enumerate(graph.nodes)]
    return Graph(graph.name, graph.inputs, graph.outputs, [n for n in nodes if n is not None], graph.constants, graph.states)


def _expressions(node: Node) -> tuple[Expr, ...] | None:
    found = node.op.expression([None if v is None else v.type for v in node.inputs], [v.type for v in node.outputs])
    return found if found is None or isinstance(found, tuple) else (found,)


def _join(product: Node, node: Node, position: int, exprs: tuple[Expr, ...], uses: _Uses) -> Node | None:
    """The product with `node` as its epilogue; None where that cannot be."""
    if product.op.epilogues is None or len(product.outputs) != 1:
        return None
    result, = product.outputs
    if result.type.size == 0 or any(v.shape != result.shape for v in node.outputs):
        return None
    if any(reader < position for reader in uses.readers[result]):
        return None                                     # something needs the product before its epilogue can run
    outputs: list[tuple[Value, Expr | None]] = list(zip(node.outputs, exprs, strict=True))
    if result in uses.wanted or len(uses.readers[result]) > 1:
        outputs.insert(0, (result, None))
    else:
        outputs.sort(key=lambda output: output[0].dtype != result.dtype)         # one takes the product's own memory
    return _merged(product, node, outputs) if outputs[0][0].dtype == result.dtype else None


def _merged(product: Node, node: Node, outputs: list[tuple[Value, Expr | None]]) -> Node | None:
    """The product with these outputs; an expression of None is the product itself."""
    result, = product.outputs
    inputs: list[Value] = []
    kinds: list[str] = []
    number: dict[int, Expr] = {}
    for i, variable in variables(*(e for _, e in outputs if e is not None)).items():
        value = node.inputs[i]
        assert value is not None
        if value is not result and value not in inputs:
            kind = _kind(value.shape, result.shape, (product.op.epilogues or 0) % len(result.shape))
            if kind is None:
                return None
            inputs.append(value)
            kinds.append(kind)
        number[i] = Var(0 if value is result else 1 + inputs.index(value), variable.dtype)
    done = tuple(Var(0, result.dtype) if e is None else substitute(e, number) for _, e in outputs)
    if 0 not in variables(*done):
        return None
    op = Finished(product.op, len(product.inputs), result.type, done, tuple(kinds))
    return Node(op, [*product.inputs, *inputs], [v for v, _ in outputs], product.origin.merged(node.origin))


def _kind(shape: tuple[int, ...], whole: tuple[int, ...], axis: int) -> str | None:
    """How an operand of this shape lies along a product of shape `whole`; None: in another way than an epilogue knows."""
    if math.prod(shape) == 1:
        return "scalar"
    padded = (1,) * (len(whole) - len(shape)) + shape
    if padded == whole:
        return "full"
    per_channel = tuple(n if i == axis else 1 for i, n in enumerate(whole))
    return "channel" if padded == per_channel else None
