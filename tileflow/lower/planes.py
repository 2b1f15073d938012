"""Planes: pooling that alone reads a product runs on the product's finished planes, while they are in cache.

The product itself then is never written to memory. Bits never change: kernels run the code of the separate leaves (see `kernels.planes`).
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ..graph import Graph, Node, Op, TensorType, Value
from ..graph.op import Types
from ..kernels.elementwise.epilogue import Epilogue
from ..kernels.isa.cpu import Cpu, current
from ..kernels.machine.call import Call
from ..kernels.pool.planes import Pooling
from ..work import Work


class Pooled(Op):
    """The operator `reader` over the planes of `product`, of type `whole`. Made by `pool_planes` only, after the fork of the street.

    Inputs: those of the product. Outputs: those of the reader.
    """

    name: ClassVar[str] = "Pooled"
    epilogues: ClassVar[int | None] = 1

    def __init__(self, product: Op, reader: Op, whole: TensorType, inputs: int, how: Pooling) -> None:
        self.product, self.reader, self.whole, self.inputs, self.how = product, reader, whole, inputs, how

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return self.reader.infer(self.whole)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        raise AssertionError("a product that is pooled has no work of its own: cost is counted before the host lowering")

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, epilogue: Epilogue | None = None) -> list[Call]:
        kernel: Any = self.product.kernel
        calls: list[Call] = kernel(inputs[:self.inputs], (self.whole,), cpu, pooling=replace(self.how, then=epilogue))
        return calls

    def __str__(self) -> str:
        return f"{self.product} then {self.reader}"


def pool_planes(graph: Graph, keep: Iterable[Value] = ()) -> Graph:
    """A copy of the graph in which pooling joins the products it alone reads; the graph itself where there are none.

    `keep` names values that are wanted besides the graph's results. The two run where the pooling stood.
    """
    readers: dict[Value, int] = {}
    for node in graph.nodes:
        for v in node.operands:
            readers[v] = readers.get(v, 0) + 1
    wanted = {*graph.results(), *keep}
    makers = {node.outputs[0]: node for node in graph.nodes if len(node.outputs) == 1}
    joined: dict[Node, Node] = {}
    for node in graph.nodes:
        whole = node.inputs[0] if len(node.inputs) == 1 else None
        if whole is not None and whole in makers and readers[whole] == 1 and whole not in wanted:
            found = _joined(makers[whole], node)
            if found is not None:
                joined[node] = found
                joined[makers[whole]] = found
    if not joined:
        return graph
    nodes = [joined.get(node, node) for node in graph.nodes if node not in joined or joined[node].outputs == node.outputs]
    return Graph(graph.name, graph.inputs, graph.outputs, nodes, graph.constants, graph.states)


def _joined(product: Node, reader: Node) -> Node | None:
    """The two as one node; None where one of them has no such form or it does not pay."""
    whole = product.outputs[0]
    pooling = reader.op.pooling([whole.type], [v.type for v in reader.outputs])
    if pooling is None or not product.op.pools([None if v is None else v.type for v in product.inputs], [whole.type], current()):
        return None
    op = Pooled(product.op, reader.op, whole.type, len(product.inputs), pooling)
    return Node(op, product.inputs, reader.outputs, product.origin.merged(reader.origin))
