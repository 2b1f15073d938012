"""Records: what a forward operator has found out is written down for its gradient, which then neither looks again nor keeps the input alive.

The winners of a max pooling are such a record: a byte each, where the gradient would read the whole image to find them.
"""
from __future__ import annotations

from ..graph import Graph, Node, Op, Value
from ..host.form import Record, recorded


def record(graph: Graph) -> Graph:
    """A copy of the graph in which operators hand records to those that ask for one (`host.form.recorded`); other nodes stay as they are.

    A maker keeps one record: the readers that follow the first one get it if their forms are the same, else they stay as they are.
    """
    makers: dict[Value, dict[Op, Node]] = {}        # of the nodes so far, the first of each operator that has the value as its input 0
    made: dict[Node, tuple[Record, Value]] = {}
    replaced: dict[Node, Node] = {}
    for node in graph.nodes:
        found = _maker(node, makers)
        if node.inputs and node.inputs[0] is not None:
            makers.setdefault(node.inputs[0], {}).setdefault(node.op, node)
        if found is None:
            continue
        maker, wanted = found
        if maker not in made:
            value = Value(f"{maker.outputs[0].name} record", wanted.maker.infer(*[None if v is None else v.type for v in maker.inputs])[-1])
            made[maker] = wanted, value
            replaced[maker] = Node(wanted.maker, maker.inputs, [*maker.outputs, value], maker.origin)
        kept, value = made[maker]
        if kept == wanted:
            replaced[node] = Node(wanted.reader, [*(node.inputs[i] for i in wanted.keeps), value], node.outputs, node.origin)
    nodes = [replaced.get(node, node) for node in graph.nodes]
    return graph.with_nodes(nodes)


def _maker(node: Node, makers: dict[Value, dict[Op, Node]]) -> tuple[Node, Record] | None:
    """The earlier node whose record this one wants."""
    for index, value in enumerate(node.inputs):
        for op, other in makers.get(value, {}).items() if value is not None else ():
            wanted = recorded(node.op, index, op, [None if v is None else v.type for v in node.inputs])
            if wanted is not None:
                return other, wanted
    return None
