"""How many nodes a file unfolds into, counted on its graph of calls before anything is unfolded: functions that call functions grow endlessly."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from tileflow.system.errors import ModelError

FREE, FACTOR = 20_000, 100
"""Nodes that any file may unfold into, and for each node that it holds."""
MOST = 10**18
"""Where counting stops."""

Name = tuple[str, str]


def check_unfolding(model: ModelProto, where: str) -> None:
    """Raise ModelError where the functions of a model call themselves, or unfold into far more nodes than the file holds."""
    functions = {(f.domain, f.name): f for f in model.functions}
    if not functions:
        return
    sizes: dict[Name, int] = {}
    for name in functions:
        _measure(name, functions, sizes, where)
    unfolded = _count(model.graph.node, sizes)
    held = sum(1 for nodes in (model.graph.node, *(f.node for f in model.functions)) for _ in every_node(nodes))
    if unfolded > FREE + FACTOR * held:
        shown = f"{unfolded:,}" if unfolded < MOST else "endlessly many"
        raise ModelError(f"{where}: its functions unfold into {shown} nodes, and the file holds {held:,}; tileflow takes up to "
                         f"{FREE + FACTOR * held:,} of such a file: let functions call fewer functions.")


def _measure(first: Name, functions: Mapping[Name, FunctionProto], sizes: dict[Name, int], where: str) -> None:
    """Fill in how many nodes a function and those it calls unfold into. Depth first without recursion: calls can be deep."""
    path: dict[Name, list[Name]] = {first: _calls(functions[first], functions)}
    stack = [first] if first not in sizes else []
    while stack:
        name = stack[-1]
        waiting = path[name]
        while waiting and waiting[-1] in sizes:
            waiting.pop()
        if not waiting:
            sizes[name] = _count(functions[name].node, sizes)
            del path[stack.pop()]
            continue
        callee = waiting[-1]
        if callee in path:
            raise ModelError(f"{where}: its function '{callee[1]}' calls itself, directly or through others, so it never ends; "
                             f"export the model again.")
        path[callee] = _calls(functions[callee], functions)
        stack.append(callee)


def _calls(function: FunctionProto, functions: Mapping[Name, FunctionProto]) -> list[Name]:
    """The functions that a function's nodes call."""
    return list(dict.fromkeys(name for node in every_node(function.node) if (name := (node.domain, node.op_type)) in functions))


def _count(nodes: Sequence[NodeProto], sizes: Mapping[Name, int]) -> int:
    """Nodes that these become; of several branches the largest counts."""
    total = 0
    for node in nodes:
        branches = max((_count(graph.node, sizes) for graph in graphs_of(node)), default=0)
        total += 1 + sizes.get((node.domain, node.op_type), 0) + branches
    return min(total, MOST)


def every_node(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """These nodes and those in their branches."""
    for node in nodes:
        yield node
        for graph in graphs_of(node):
            yield from every_node(graph.node)


def graphs_of(node: NodeProto) -> Iterator[GraphProto]:
    """A node's branches."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH or attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
