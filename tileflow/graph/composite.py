"""Composites: operators taken apart into those that they are made of (`Op.expand`), for whoever needs the parts."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..memory.types import type_of
from .builder import Builder
from .graph import Graph, Node, Value
from .op import Op
from .work import Work


def declares(op: Op, method: str) -> bool:
    """The operator has a method of its own: what it leaves to the base is found in its expansion."""
    return getattr(type(op), method) is not getattr(Op, method)


def expanded(graph: Graph, wanted: Callable[[Node], bool]) -> Graph:
    """A copy of the graph where the expansions of the `wanted` nodes took their places, theirs too; values keep their identity.

    The graph itself where nothing is expanded. Wanted nodes that have no expansion stay.
    """
    if not any(wanted(node) for node in graph.nodes):
        return graph
    copy = Graph(graph.name, graph.inputs, graph.outputs, [], dict(graph.constants), graph.states)
    b = Builder(graph)
    b.graph = copy
    for node in graph.nodes:
        _place(b, node, wanted)
    return copy


def trimmed(graph: Graph) -> Graph:
    """A copy of the graph whose operators do not make what nobody reads (`Op.trimmed`), or the graph itself where all is read."""
    found: dict[Node, Node] = {}
    read = {v for node in graph.nodes for v in node.operands} | set(graph.results())
    for node in graph.nodes:
        if declares(node.op, "trimmed"):
            op = node.op.trimmed([v in read for v in node.outputs])
            if op is not None:
                count = len(op.infer(*[None if v is None else v.type for v in node.inputs]))
                found[node] = Node(op, node.inputs, node.outputs[:count], node.origin)
    return graph.with_nodes(found.get(node, node) for node in graph.nodes) if found else graph


def _place(b: Builder, node: Node, wanted: Callable[[Node], bool]) -> None:
    """Append a node, or what it stands for."""
    nodes = b.graph.nodes
    start = len(nodes)
    with b.at(node.origin):
        made = node.op.expand(b, node.inputs) if wanted(node) else None
        if made is None:
            nodes.append(node)
            return
        own = {v for part in nodes[start:] for v in part.outputs}
        made = [v if v in own and v not in made[:i] else b.Identity(v) for i, v in enumerate(made)]
    assert [v.type for v in made] == [v.type for v in node.outputs], f"{node!r} expands to {made}"
    result = dict(zip(made, node.outputs, strict=True))
    parts = nodes[start:]
    del nodes[start:]
    for part in parts:
        part.inputs = [v if v is None else result.get(v, v) for v in part.inputs]
        part.outputs = [result.get(v, v) for v in part.outputs]
        _place(b, part, wanted)


def alone(op: Op, types: Sequence[object]) -> tuple[Graph, list[Value | None]]:
    """A graph that computes an operator by its parts, and its inputs; raises NotImplementedError where the operator has none."""
    graph = Graph(op.name)
    b = Builder(graph)
    inputs = [None if t is None else b.input(f"x{i}", t) for i, t in enumerate(types)]      # type: ignore[arg-type]
    outputs = op.expand(b, inputs)
    if outputs is None:
        raise NotImplementedError(f"{op} is no composite")
    graph.outputs = list(outputs)
    return graph, inputs


def reference(op: Op, arrays: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
    """An operator's outputs by the references of its parts."""
    graph, inputs = alone(op, [None if a is None else type_of(a) for a in arrays])
    values: dict[Value, np.ndarray] = dict(graph.constants)
    values.update({v: a for v, a in zip(inputs, arrays, strict=True) if v is not None and a is not None})
    for node in graph.nodes:
        values.update(zip(node.outputs, node.op.reference(*[None if v is None else values[v] for v in node.inputs]), strict=True))
    return tuple(np.array(values[v]) for v in graph.outputs)


Op.by_parts = staticmethod(reference)


def works(node: Node) -> list[Work]:
    """What a node does, or what its parts do."""
    types = [None if v is None else v.type for v in node.inputs]
    if declares(node.op, "work"):
        return [node.op.work(types, [v.type for v in node.outputs])]
    return [work for part in alone(node.op, types)[0].nodes for work in works(part)]
