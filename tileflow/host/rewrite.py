"""Rewrites for the host: rules, declared beside the operators they make, that put one operator in place of several.

They run after the fork of the street, on the micro-step's forward and backward nodes together, so that the Program stays what both
consumers share.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..graph.graph import Graph, Node, Origin, Value, needed_for
from ..graph.index import Index
from ..graph.op import Op


@dataclass(frozen=True)
class Replacement:
    """Nodes that go, and nodes that take their place: each new group stands where the given old node stood. `constants` are new ones."""

    removed: frozenset[Node]
    added: tuple[tuple[Node, tuple[Node, ...]], ...]
    constants: Mapping[Value, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Outside:
    """What a rule may look up beyond the graph: the nodes that make its inputs from constants alone, and those constants."""

    makers: Sequence[Node] = ()
    constants: Mapping[Value, np.ndarray] = field(default_factory=dict)


def made_outside(graph: Graph, source: Graph, links: Mapping[Value, Value]) -> Outside:
    """What makes those of a graph's inputs that another graph, `source`, computes by one operator from constants; copies, which make the inputs."""
    own = {v: node for node in source.nodes for v in node.outputs}
    made = [(v, own[links[v]]) for v in graph.inputs if v in links and links[v] in own]
    found = [(v, node) for v, node in made if len(node.outputs) == 1 and all(x in source.constants for x in node.operands)]
    return Outside([Node(node.op, node.inputs, [v], node.origin) for v, node in found],
                   {x: source.constants[x] for _, node in found for x in node.operands})


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


def rewrite(graph: Graph, keep: Iterable[Value] = (), rules: Sequence[Rule] = RULES, outside: Outside | None = None) -> Graph:
    """The graph with every rule applied once to every node, or the graph itself where none applies; it is not changed.

    Values that remain keep their identity. `keep` names values that are wanted besides the graph's results.
    """
    outside = outside or Outside()
    index = Index(graph, keep, outside.makers, outside.constants)
    constants: dict[Value, np.ndarray] = {}
    removed: set[Node] = set()
    added: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for apply in rules:
            found = None if node in removed else apply(index, node)
            if found is not None and removed.isdisjoint(found.removed):
                removed |= found.removed
                constants |= found.constants
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
    read = {v for node in nodes for v in node.operands}
    constants = {v: a for v, a in {**outside.constants, **constants}.items() if v in read and v not in graph.constants}
    return replace(graph, nodes=nodes, constants={**graph.constants, **constants}) if constants else graph.with_nodes(nodes)


def _name(nodes: list[Node], taken: set[str]) -> None:
    """Give the values of new nodes, which have no name yet, names of their own."""
    count = 0
    for value in [v for node in nodes for v in node.outputs if not v.name]:
        assert value.producer is not None
        while not value.name or value.name in taken:
            count += 1
            value.name = f"{value.producer.op.name.lower()}.{count}"
        taken.add(value.name)
