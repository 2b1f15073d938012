"""Rewrites for the host: rules, declared beside the operators they make, that put one operator in place of several.

They run after the fork of the street, on the micro-step's forward and backward nodes together, so that the Program stays what both
consumers share.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..graph.graph import Graph, Node, Value
from ..graph.rules import Outside, Replacement, Rule, apply_rules, node_of


def made_outside(graph: Graph, source: Graph, links: Mapping[Value, Value]) -> Outside:
    """What makes those of a graph's inputs that another graph, `source`, computes by one operator from constants; copies, which make the inputs."""
    own = {v: node for node in source.nodes for v in node.outputs}
    made = [(v, own[links[v]]) for v in graph.inputs if v in links and links[v] in own]
    found = [(v, node) for v, node in made if len(node.outputs) == 1 and all(x in source.constants for x in node.operands)]
    return Outside([Node(node.op, node.inputs, [v], node.origin) for v, node in found],
                   {x: source.constants[x] for _, node in found for x in node.operands})


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


def rewrite(graph: Graph, keep: Iterable[Value] = (), rules: Sequence[Rule] = RULES, outside: Outside | None = None) -> Graph:
    """The graph with every rule applied once to every node, or the graph itself where none applies; it is not changed."""
    return apply_rules(graph, rules, keep, outside)


__all__ = ["COMPOSITES", "RULES", "Outside", "Replacement", "composite_rule", "made_outside", "node_of", "rewrite", "rule"]
