"""The index of a graph: who makes and who reads each value. All passes look it up here."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from .graph import Graph, Node, Value


class Index:
    """Makers and readers of the values of a graph, as it is now; `join` keeps it true where a pass puts nodes together.

    wanted: values that are read by what is no node of the graph: its results and what else is to be kept.
    position: of each node in the graph.
    constants: the graph's, and those given that nodes from `outside` read, which make inputs of the graph.
    """

    def __init__(self, graph: Graph, keep: Iterable[Value] = (), outside: Iterable[Node] = (),
                 constants: Mapping[Value, np.ndarray] | None = None) -> None:
        self.graph = graph
        self.constants = {**graph.constants, **(constants or {})}
        self.wanted = {*graph.results(), *keep}
        self.position = {node: i for i, node in enumerate(graph.nodes)}
        self._maker = {v: node for node in (*outside, *graph.nodes) for v in node.outputs}
        self._readers: dict[Value, dict[Node, None]] = {}
        for node in graph.nodes:
            for v in node.operands:
                self._readers.setdefault(v, {})[node] = None

    def maker(self, value: Value) -> Node | None:
        """The node that makes a value; None for inputs, constants and states."""
        return self._maker.get(value)

    def readers(self, value: Value) -> list[Node]:
        """The nodes that read a value, each once, in order."""
        return list(self._readers.get(value, ()))

    def all_readers(self, value: Value) -> list[Node] | None:
        """The nodes that read a value; None where something outside of the graph wants it, too."""
        return None if value in self.wanted else self.readers(value)

    def only_reader(self, value: Value) -> Node | None:
        """The one node that reads a value, if nothing else does."""
        readers = self.all_readers(value)
        return readers[0] if readers is not None and len(readers) == 1 else None

    def join(self, gone: Sequence[Node], node: Node, position: int) -> None:
        """`node` stands at `position` in place of the nodes that are `gone`."""
        for old in gone:
            for v in old.operands:
                self._readers[v].pop(old, None)
            for v in old.outputs:
                self._maker.pop(v, None)
        for v in node.operands:
            self._readers[v][node] = None
        self._maker |= dict.fromkeys(node.outputs, node)
        self.position[node] = position
