"""The order of an update on the tiles: weight by weight, so that what the update of one makes on the way is gone before the next begins."""
from __future__ import annotations

from ..graph import Graph, Node, Value
from ..program import Program


def weight_by_weight(program: Program) -> Program:
    """The program with the nodes of its update in that order; a program without an update, or in that order already, as it is."""
    graph = program.parts.get("update")
    if graph is None:
        return program
    nodes = _ordered(graph)
    return program if nodes == graph.nodes else program.with_parts({"update": graph.with_nodes(nodes)})


def _ordered(graph: Graph) -> list[Node]:
    """For each weight in turn the nodes that its new value, and those of its states, still need, in the order that they had; then all others."""
    place = {id(node): i for i, node in enumerate(graph.nodes)}
    wanted: dict[str, list[Value]] = {}
    for state in graph.states:
        if state.output is not None and (state.owner or state.kind == "parameter"):
            wanted.setdefault(state.owner or state.name, []).append(state.output)
    found: list[Node] = []
    done: set[int] = set()
    for values in wanted.values():
        needed: dict[int, Node] = {}
        stack = [v.producer for v in values]
        while stack:
            node = stack.pop()
            if node is not None and id(node) not in done:
                done.add(id(node))
                needed[place[id(node)]] = node
                stack += [v.producer for v in node.operands]
        found += [node for _, node in sorted(needed.items())]
    return found + [node for node in graph.nodes if id(node) not in done]
