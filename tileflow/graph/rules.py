"""Rules: what puts one operator in place of several that amount to it, found by the structure of a graph and never by samples of it.

A rule is asked about each node and answers with a Replacement or None; `apply_rules` makes a graph of the answers. Rules about what a program means
are declared beside the operators they make (`FOUND`) and run at the head of a compilation; those for the host are `host/rewrite.py`'s.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from .graph import Graph, Node, Origin, Value, needed_for
from .index import Index
from .op import Op


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


Rule = Callable[[Index, Node], "Replacement | None"]


FOUND: list[Rule] = []
"""Rules about what a program means, whoever runs it; the operator files register theirs when imported."""


def found(function: Rule) -> Rule:
    """Decorator: register such a rule."""
    FOUND.append(function)
    return function


FOLDED: list[Rule] = []
"""Likewise rules that ask which types automatic casts have chosen, and what constants amount to."""


def folded(function: Rule) -> Rule:
    """Decorator: register such a rule."""
    FOLDED.append(function)
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


def apply_rules(graph: Graph, rules: Sequence[Rule], keep: Iterable[Value] = (), outside: Outside | None = None) -> Graph:
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
            answer = None if node in removed else apply(index, node)
            if answer is not None and removed.isdisjoint(answer.removed):
                removed |= answer.removed
                constants |= answer.constants
                for place, made in answer.added:
                    added.setdefault(place, []).extend(made)
    if not removed:
        return graph
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += added.get(node, [])
        if node not in removed:
            nodes.append(node)
    nodes, _ = needed_for(index.wanted, nodes)
    _name([*constants, *(v for node in nodes for v in node.outputs)],
          {v.name for v in (*graph.inputs, *graph.constants, *(s.input for s in graph.states), *(v for node in graph.nodes for v in node.outputs))})
    read = {v for node in nodes for v in node.operands}
    constants = {v: a for v, a in {**outside.constants, **constants}.items() if v in read and v not in graph.constants}
    return replace(graph, nodes=nodes, constants={**graph.constants, **constants}) if constants else graph.with_nodes(nodes)


def _name(values: Iterable[Value], taken: set[str]) -> None:
    """Give the new values, which have no name yet, names of their own."""
    count = 0
    for value in values:
        if value.name:
            continue
        stem = "constant" if value.producer is None else value.producer.op.name.lower()
        while not value.name or value.name in taken:
            count += 1
            value.name = f"{stem}.{count}"
        taken.add(value.name)
