"""Planes: pooling that alone reads a product runs on the product's finished planes, while they are in cache.

The product itself then is never written to memory. Bits never change: kernels run the code of the separate leaves (see
`kernels.pool.planes`).
"""
from __future__ import annotations

from collections.abc import Iterable

from ..graph import Graph, Index, Node, Value
from ..host.form import Pooled, pooling
from ..host.hosted import hosted
from ..kernels.isa.cpu import Cpu


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
    nodes = [joined.get(node, node)
             for node in graph.nodes if node not in joined or joined[node].outputs == node.outputs]
    return graph.with_nodes(nodes)


def _joined(product: Node, reader: Node, cpu: Cpu) -> Node | None:
    """The two as one node; None where one of them has no such form or it does not pay."""
    how = pooling(reader.op, [product.outputs[0].type], [v.type for v in reader.outputs])
    host = hosted(product.op)
    if how is None or not host.pools([v and v.type for v in product.inputs], cpu):
        return None
    op = host.also(pooled=Pooled(reader.op, how))
    return Node(op, product.inputs, reader.outputs, product.origin.merged(reader.origin))
