"""Blocks of the forward pass that are marked (`passes/checkpoint.py`) run again in the backward pass, instead of keeping their values.

The last thing before fusion: kernels, layouts and rules are chosen by then, so a copy is the same call as the first one. Random operators draw the
same numbers, which are counted by operator and micro-batch.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..graph import Graph, Node, Value, checkpoints


def rematerialise(graph: Graph, keep: Iterable[Value] = ()) -> Graph:
    """A copy of the graph in which backward nodes read copies of what marked nodes make, which run just before they are first needed.

    Of a block only what other forward nodes read is kept, and what is a result, a checkpoint (`Hints.kept`) or in
    `keep`. Values keep their identity.
    """
    if not any(_is_marked(node) for node in graph.nodes):
        return graph
    return graph.with_nodes(_Rematerialised(graph, keep).nodes())


def _is_marked(node: Node) -> bool:
    return node.origin.hints.recomputed is not None and node.origin.role == "forward"


class _Rematerialised:
    def __init__(self, graph: Graph, keep: Iterable[Value]) -> None:
        self.graph = graph
        marked = [(i, n) for i, n in enumerate(graph.nodes) if _is_marked(n)]
        self.maker = {v: (i, n) for i, n in marked for v in n.outputs}
        self.kept = {*graph.results(), *keep, *checkpoints(graph.nodes)}
        for node in graph.nodes:
            if node.origin.role == "forward":
                makers = ((v, self.maker[v][1]) for v in node.operands if v in self.maker)
                self.kept.update(v for v, m in makers if m.origin.hints.recomputed != node.origin.hints.recomputed)
        self.twin: dict[Value, Value] = {}
        """Copies of values that were made again."""

    def nodes(self) -> list[Node]:
        made: list[Node] = []
        for node in self.graph.nodes:
            if node.origin.role != "backward":
                made.append(node)
                continue
            for v in node.operands:
                made += self._remade(v)
            inputs = [v if v is None else self.twin.get(v, v) for v in node.inputs]
            made.append(node if inputs == node.inputs else Node(node.op, inputs, node.outputs, node.origin))
        return made

    def _remade(self, value: Value) -> list[Node]:
        """Copies of the nodes that make a value from what is there, in order; none where it is there."""
        needed: dict[int, Node] = {}
        stack = [value]
        while stack:
            v = stack.pop()
            if v in self.maker and v not in self.kept and v not in self.twin:
                place, node = self.maker[v]
                if place not in needed:
                    needed[place] = node
                    stack += node.operands
        made = []
        for _, node in sorted(needed.items()):
            inputs = [v if v is None else self.twin.get(v, v) for v in node.inputs]
            copy = Node(node.op, inputs, [], replace(node.origin, role="recompute"))
            copy.outputs = [Value(f"{v.name}.again", v.type, copy) for v in node.outputs]
            self.twin.update((v, twin) for v, twin in zip(node.outputs, copy.outputs, strict=True) if v not in self.kept)
            made.append(copy)
        return made
