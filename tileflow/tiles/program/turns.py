"""How often the operators of branches and loops count when their part runs once: those of the dearer branch, and a body's once for every turn."""
from __future__ import annotations

from collections.abc import Mapping

from ...graph import Branches, Graph, Node, Turns


def turns(op: Turns) -> int:
    """Turns of a loop, at most; one where nobody knows."""
    return op.count if op.count >= 0 else 1


def counted(graph: Graph, cycles: Mapping[Node, int], times: int = 1) -> dict[Node, int]:
    """How often each operator counts, by the cycles that each takes once."""
    found: dict[Node, int] = {}
    for node in graph.nodes:
        if isinstance(node.op, Turns):
            found.update(counted(node.op.body.graph, cycles, times * turns(node.op)))
        elif isinstance(node.op, Branches):
            branches = [region.graph for region in node.op.regions]
            dearer = max(branches, key=lambda branch: taken(branch, cycles))
            for branch in branches:
                found.update(counted(branch, cycles, times if branch is dearer else 0))
        else:
            found[node] = times
    return found


def taken(graph: Graph, cycles: Mapping[Node, int]) -> int:
    """Cycles of one run of a graph."""
    return sum(cycles[node] * times for node, times in counted(graph, cycles).items())
