"""Equal work side by side: nodes that run the same leaves follow one another, so that binding makes one row of many weights' updates.

An update's weights do not depend on each other, but for a norm over all of them. So nodes are scheduled kind by kind
(of one kind are nodes that run the same leaves), each kind as completely as its operands allow. Where weights are gone
over twice (LAMB computes norms between the two passes) that would fetch all of them from memory again: such weights are
divided into parts of at most `PART` elements, scheduled one after the other. What is computed stays as it was.
"""
from __future__ import annotations

import heapq
from collections.abc import Hashable

from ..graph import Graph, Index, Node
from ..kernels.isa.cpu import Cpu

PART = 1 << 19
"""Elements of weights that are gone over twice and scheduled together, few enough to stay in cache between the two
passes."""


def batch_updates(graph: Graph, cpu: Cpu) -> Graph:
    """A copy of the graph with its nodes in that order; the graph itself where that is the order already."""
    nodes = _Order(graph, cpu).run()
    return graph if nodes == graph.nodes else graph.with_nodes(nodes)


class _Order:
    """List scheduling by kind. A node is ready when all nodes that it reads are scheduled. Again and again one kind is
    chosen, and all its ready nodes follow one another.

    Chosen is, among the kinds with ready nodes in the earliest part, the one with the fewest nodes that are not ready
    yet, so that a kind is not begun long before it can be completed; among equals the one whose first ready node stands
    first in the graph.
    """

    def __init__(self, graph: Graph, cpu: Cpu) -> None:
        self.graph, index = graph, Index(graph)
        parts = _parts(index)
        self.kind: list[tuple[int, Hashable]] = [(part, _kind(node, cpu)) for part, node in zip(parts, graph.nodes, strict=True)]
        sources = [{index.position[m] for v in node.operands if (m := index.maker(v)) is not None} for node in graph.nodes]
        self.left = [len(s) for s in sources]
        self.readers: list[list[int]] = [[] for _ in graph.nodes]
        for i, found in enumerate(sources):
            for s in found:
                self.readers[s].append(i)
        self.waiting: dict[tuple[int, Hashable], int] = {}
        self.ready: dict[tuple[int, Hashable], list[int]] = {}

    def run(self) -> list[Node]:
        for i, kind in enumerate(self.kind):
            self.waiting[kind] = self.waiting.get(kind, 0) + 1
            if not self.left[i]:
                self._free(i)
        order: list[Node] = []
        while self.ready:
            kind = min(self.ready, key=lambda k: (k[0], self.waiting[k], self.ready[k][0]))
            while heap := self.ready.get(kind):
                i = heapq.heappop(heap)
                if not heap:
                    del self.ready[kind]
                order.append(self.graph.nodes[i])
                for reader in self.readers[i]:
                    self.left[reader] -= 1
                    if not self.left[reader]:
                        self._free(reader)
        assert len(order) == len(self.graph.nodes), "nodes lie in a circle"
        return order

    def _free(self, i: int) -> None:
        """Node i becomes ready: all that it reads is scheduled."""
        self.waiting[self.kind[i]] -= 1
        heapq.heappush(self.ready.setdefault(self.kind[i], []), i)


def _parts(index: Index) -> list[int]:
    """The number of the part of each node, int per node. Nodes are connected, and share a part, where one reads an
    array of the other, or a number that nobody else reads; parts are filled with connected nodes in graph order up to
    `PART` elements."""
    nodes = index.graph.nodes
    root = list(range(len(nodes)))

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = i = root[root[i]]
        return i

    twice = [False] * len(nodes)
    for i, node in enumerate(nodes):
        for v in node.outputs:
            readers = index.readers(v)
            if v.type.size > 1 or len(readers) == 1:
                for reader in readers:
                    a, b = find(i), find(index.position[reader])
                    root[max(a, b)] = min(a, b)
                    twice[i] = twice[i] or v.type.size > 1
    elements: dict[int, int] = {}
    for i, node in enumerate(nodes):
        if twice[i]:
            elements[find(i)] = max(elements.get(find(i), 0), *(v.type.size for v in node.outputs))
    part, total, parts = 0, 0, {}
    for i in range(len(nodes)):
        if find(i) == i:
            if total and total + elements.get(i, 0) > PART:
                part, total = part + 1, 0
            total += elements.get(i, 0)
            parts[i] = part
    return [parts[find(i)] for i in range(len(nodes))]


def _kind(node: Node, cpu: Cpu) -> Hashable:
    """The kind of a node: the leaves that it runs, in order; None for views and for nodes with regions."""
    if node.op.alias is not None or node.op.regions:
        return None
    calls = node.op.kernel([None if v is None else v.type for v in node.inputs], [v.type for v in node.outputs], cpu)
    return tuple(call.leaf for call in calls)
