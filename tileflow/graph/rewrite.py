"""Rewrites for the host: rules, declared beside the operators they make, that put one operator in place of several.

They run after the fork of the street, on the micro-step's forward and backward nodes together, so that the Program stays what both
consumers share.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .graph import Graph, Node, Origin, Value
from .op import Op


@dataclass(frozen=True)
class Replacement:
    """Nodes that go, and nodes that take their place: each new group stands where the given old node stood."""

    removed: frozenset[Node]
    added: tuple[tuple[Node, tuple[Node, ...]], ...]


class View:
    """A graph as a rule sees it: who makes and who reads each value. Nothing of it may be changed."""

    def __init__(self, graph: Graph, kept: Iterable[Value]) -> None:
        self.graph = graph
        self.kept = {*graph.results(), *kept}
        self._maker = {v: node for node in graph.nodes for v in node.outputs}
        self._readers: dict[Value, list[Node]] = {}
        for node in graph.nodes:
            for v in dict.fromkeys(node.operands):
                self._readers.setdefault(v, []).append(node)
        self.position = {node: i for i, node in enumerate(graph.nodes)}

    def maker(self, value: Value) -> Node | None:
        """The node that makes a value; None for inputs, constants and states."""
        return self._maker.get(value)

    def readers(self, value: Value) -> list[Node] | None:
        """The nodes that read a value; None where something outside of the graph wants it, too."""
        return None if value in self.kept else self._readers.get(value, [])

    def only_reader(self, value: Value) -> Node | None:
        """The one node that reads a value, if nothing else does."""
        readers = self.readers(value)
        return readers[0] if readers is not None and len(readers) == 1 else None


Rule = Callable[[View, Node], "Replacement | None"]
RULES: list[Rule] = []
"""Every rule; the operator files register theirs when imported. A rule is asked about each node."""


def rule(function: Rule) -> Rule:
    """Decorator: register a rule."""
    RULES.append(function)
    return function


def node_of(op: Op, inputs: Sequence[Value | None], origin: Origin, outputs: Sequence[Value | None] = ()) -> Node:
    """A node that makes the given values (None or missing: new ones)."""
    types = op.infer(*[None if v is None else v.type for v in inputs])
    node = Node(op, list(inputs), [], origin)
    for i, t in enumerate(types):
        value = outputs[i] if i < len(outputs) else None
        assert value is None or value.type == t, f"{op} makes {t} in place of {value!r}"
        node.outputs.append(Value(op.name.lower(), t, node) if value is None else value)
    return node


def rewrite(graph: Graph, keep: Iterable[Value] = ()) -> Graph:
    """The graph with every rule applied once to every node, or the graph itself where none applies; it is not changed.

    Values that remain keep their identity. `keep` names values that are wanted besides the graph's results.
    """
    view = View(graph, keep)
    removed: set[Node] = set()
    added: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for apply in RULES:
            found = None if node in removed else apply(view, node)
            if found is not None and removed.isdisjoint(found.removed):
                removed |= found.removed
                for place, made in found.added:
                    added.setdefault(place, []).extend(made)
    if not removed:
        return graph
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += added.get(node, [])
        if node not in removed:
            nodes.append(node)
    return Graph(graph.name, graph.inputs, graph.outputs, _needed(nodes, view.kept), graph.constants, graph.states)


def _needed(nodes: list[Node], wanted: set[Value]) -> list[Node]:
    """The nodes on which a wanted value depends."""
    wanted, kept = set(wanted), []
    for node in reversed(nodes):
        if any(v in wanted for v in node.outputs):
            kept.append(node)
            wanted.update(node.operands)
    return kept[::-1]
