"""The order of an update on the tiles: weight by weight, so that what the update of one makes on the way is gone before the next begins."""
from __future__ import annotations

from ...graph import Graph, Node, Value
from ...program.program import Program


def weight_by_weight(program: Program) -> Program:
    """The program with the nodes of its update in that order; a program without an update, or in that order already, as it is."""
    graph = program.parts.get("update")
    if graph is None:
        return program
    nodes = _ordered(graph)
    return program if nodes == graph.nodes else program.with_parts({"update": graph.with_nodes(nodes)})


def _ordered(graph: Graph) -> list[Node]:
    """For each weight in turn the nodes that its new value, and those of its states, still need, in the order that they had; then all others."""
    place = {v: i for i, node in enumerate(graph.nodes) for v in node.outputs}
    wanted: dict[str, list[Value]] = {}
    for state in graph.states:
        if state.output is not None and (state.owner or state.kind == "parameter"):
            wanted.setdefault(state.owner or state.name, []).append(state.output)
    found: list[Node] = []
    done: set[int] = set()
    for values in wanted.values():
        needed: set[int] = set()
        stack = list(values)
        while stack:
            at = place.get(stack.pop())
            if at is not None and at not in done:
                done.add(at)
                needed.add(at)
                stack += graph.nodes[at].operands
        found += [graph.nodes[i] for i in sorted(needed)]
    return found + [node for i, node in enumerate(graph.nodes) if i not in done]
