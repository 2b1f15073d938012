"""16-bit memory of operators that compute in float32: casts at their borders go, and the kernel converts as it reads and writes.

`widen` puts casts around operators that have no 16-bit kernels, and mixed precision asks for others. Where the kernel can widen what it reads, or
round what it writes, a few rows at a time, the cast is a part of it: the same bits, without a float32 copy of the tensor in memory.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..graph import Graph, Index, Node, Value, needed_for
from ..graph.composite import declares
from ..graph.op import Types
from ..host.hosted import hosted, over_narrow
from ..kernels.elementwise.expr import Var, cast
from ..kernels.isa.cpu import Cpu


def narrow(graph: Graph, cpu: Cpu, keep: Iterable[Value] = ()) -> Graph:
    """A copy of the graph in which kernels read and write 16-bit memory in place of casts; values that remain keep their identity.

    `keep` names values that are wanted besides the graph's results. A result is rounded by its kernel where only the cast reads it.
    """
    if not any(v.type.is_half for node in graph.walk() for v in [*node.operands, *node.outputs]):
        return graph
    index = Index(graph, keep)
    nodes: list[Node | None] = list(graph.nodes)
    for position, node in enumerate(graph.nodes):
        made = _narrowed(index, node, cpu)
        if made is not None:
            nodes[position] = made[0]
            for cast_node in made[1]:
                nodes[index.position[cast_node]] = None
    kept, _ = needed_for(index.wanted, [n for n in nodes if n is not None])
    return graph.with_nodes(kept)


def _narrowed(index: Index, node: Node, cpu: Cpu) -> tuple[Node, list[Node]] | None:
    """The node over 16-bit memory and the casts of its results, which it makes itself; None where there is nothing to gain."""
    inputs: Types = [None if v is None else v.type for v in node.inputs]
    types = [v.type for v in node.outputs]
    if node.op.regions or node.op.alias is not None or declares(node.op, "host"):
        return None
    if node.op.expression(inputs, types) is not None:
        return None
    sources = {i: made for i, v in enumerate(node.inputs) if v is not None and (made := _cast(index.maker(v), True)) is not None}
    casts = {i: made for i, v in enumerate(node.outputs) if (made := _cast(index.only_reader(v), False)) is not None}
    if not (sources or casts):
        return None
    calls = node.op.kernel(inputs, types, cpu)

    def fits(into: Mapping[int, str], out: Mapping[int, str]) -> bool:
        return over_narrow(calls, into, out) is not None

    into = {i: made.operands[0].dtype for i, made in sources.items() if fits({i: made.operands[0].dtype}, {})}
    out = {i: made.outputs[0].dtype for i, made in casts.items() if fits({}, {i: made.outputs[0].dtype})}
    if not (into or out) or not fits(into, out):
        return None
    operands = [sources[i].operands[0] if i in into else v for i, v in enumerate(node.inputs)]
    results = [casts[i].outputs[0] if i in out else v for i, v in enumerate(node.outputs)]
    op = hosted(node.op).also(narrow_inputs=into, narrow_outputs=out)
    return Node(op, operands, results, node.origin), [casts[i] for i in out]


def _cast(node: Node | None, widens: bool) -> Node | None:
    """The node if it is a cast of a 16-bit value to float32, or (`widens` is false) the other way."""
    if node is None or len(node.inputs) != 1 or len(node.outputs) != 1 or node.inputs[0] is None:
        return None
    x, y = node.inputs[0].type, node.outputs[0].type
    low, wide = (x, y) if widens else (y, x)
    return node if low.is_half and wide.dtype == "float32" and node.op.expression([x], [y]) is cast(Var(0, x.dtype), y.dtype) else None
