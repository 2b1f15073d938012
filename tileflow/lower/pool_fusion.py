"""Planes: pooling that alone reads a product runs on the product's finished planes, while they are in cache.

The product itself then is never written to memory. Bits never change: kernels run the code of the separate leaves (see
`kernels.pool.planes`).
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ..graph import Graph, Index, Node, Op, TensorType, Value
from ..graph.op import Types
from ..host.form import Blockwise, Finish, blockwise, pooling
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call
from ..kernels.pool.planes import Pooling


class Pooled(Blockwise):
    """The operator `reader` over the planes of `product`, of type `whole`. Made by `fuse_pools` only, after the fork of the street.

    Inputs: those of the product. Outputs: those of the reader.
    """

    name: ClassVar[str] = "Pooled"
    epilogue: ClassVar[int | None] = 1

    def __init__(self, product: Blockwise, reader: Op, whole: TensorType, inputs: int, how: Pooling) -> None:
        self.product, self.reader, self.whole, self.inputs, self.how = product, reader, whole, inputs, how

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return self.reader.infer(*self.product.infer(*types[:self.inputs]))

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return self.reader.reference(*self.product.reference(*inputs[:self.inputs]))

    def calls(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, finish: Finish) -> list[Call]:
        how = replace(self.how, then=finish.epilogue)
        return self.product.calls(inputs[:self.inputs], (self.whole,), cpu, replace(finish, epilogue=None, pooling=how))

    def __str__(self) -> str:
        return f"{self.product} then {self.reader}"


def fuse_pools(graph: Graph, cpu: Cpu, keep: Iterable[Value] = ()) -> Graph:
    """A copy of the graph in which pooling joins the products it alone reads; the graph itself where there are none.

    `keep` names values that are wanted besides the graph's results. The two run where the pooling stood.
    """
    index = Index(graph, keep)
    joined: dict[Node, Node] = {}
    for node in graph.nodes:
        whole = node.inputs[0] if len(node.inputs) == 1 else None
        product = None if whole is None or index.only_reader(whole) is not node else index.maker(whole)
        if product is not None and len(product.outputs) == 1:
            found = _joined(product, node, cpu)
            if found is not None:
                joined[node] = joined[product] = found
    if not joined:
        return graph
    nodes = [joined.get(node, node) for node in graph.nodes if node not in joined or joined[node].outputs == node.outputs]
    return graph.with_nodes(nodes)


def _joined(product: Node, reader: Node, cpu: Cpu) -> Node | None:
    """The two as one node; None where one of them has no such form or it does not pay."""
    whole = product.outputs[0]
    how = pooling(reader.op, [whole.type], [v.type for v in reader.outputs])
    form = None if how is None else blockwise(product.op)
    if how is None or form is None or not form.pools([None if v is None else v.type for v in product.inputs], [whole.type], cpu):
        return None
    op = Pooled(form, reader.op, whole.type, len(product.inputs), how)
    return Node(op, product.inputs, reader.outputs, product.origin.merged(reader.origin))
