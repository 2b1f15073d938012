"""Rewrites for the host: rules, declared beside the operators they make, that put one operator in place of several.

They run after the fork of the street, on the micro-step's forward and backward nodes together, so that the Program stays what both
consumers share.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..graph.graph import Graph, Node, Origin, Value, needed_for
from ..graph.index import Index
from ..graph.op import Op


@dataclass(frozen=True)
class Replacement:
    """Nodes that go, and nodes that take their place: each new group stands where the given old node stood."""

    removed: frozenset[Node]
    added: tuple[tuple[Node, tuple[Node, ...]], ...]


Rule = Callable[[Index, Node], "Replacement | None"]
RULES: list[Rule] = []
"""Every rule; the operator files register theirs when imported. A rule is asked about each node, and changes nothing of what it sees."""


COMPOSITES: list[Rule] = []
"""Likewise those about composites, which are asked before these are taken apart."""


def rule(function: Rule) -> Rule:
    """Decorator: register a rule."""
    RULES.append(function)
    return function


def composite_rule(function: Rule) -> Rule:
    """Decorator: register a rule about composites."""
    COMPOSITES.append(function)
    return function


def node_of(op: Op, inputs: Sequence[Value | None], origin: Origin, outputs: Sequence[Value | None] = ()) -> Node:
    """A node that makes the given values (None or missing: new ones)."""
    types = op.infer(*[None if v is None else v.type for v in inputs])
    node = Node(op, list(inputs), [], origin)
    for i, t in enumerate(types):
        value = outputs[i] if i < len(outputs) else None
        assert value is None or value.type == t, f"{op} makes {t} in place of {value!r}"
        node.outputs.append(Value("", t, node) if value is None else value)
    return node


def rewrite(graph: Graph, keep: Iterable[Value] = (), rules: Sequence[Rule] = RULES) -> Graph:
    """The graph with every rule applied once to every node, or the graph itself where none applies; it is not changed.

    Values that remain keep their identity. `keep` names values that are wanted besides the graph's results.
    """
    index = Index(graph, keep)
    removed: set[Node] = set()
    added: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for apply in rules:
            found = None if node in removed else apply(index, node)
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
    nodes, _ = needed_for(index.wanted, nodes)
    _name(nodes, {v.name for node in graph.nodes for v in node.outputs})
    return graph.with_nodes(nodes)


def _name(nodes: list[Node], taken: set[str]) -> None:
    """Give the values of new nodes, which have no name yet, names of their own."""
    count = 0
    for value in [v for node in nodes for v in node.outputs if not v.name]:
        assert value.producer is not None
        while not value.name or value.name in taken:
            count += 1
            value.name = f"{value.producer.op.name.lower()}.{count}"
        taken.add(value.name)
