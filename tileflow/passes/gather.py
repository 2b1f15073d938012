"""Operators in place of the several that a file or a network wrote for them: the first step of a compilation, by the rules of the operators made."""
from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..graph import Graph, inside
from ..graph.rules import FOUND, Rule, apply_rules


def gather(graph: Graph, rules: Sequence[Rule] = FOUND) -> Graph:
    """Apply rules about what a program means (`graph/rules.py`), in place; returns the graph."""
    inside(graph, partial(gather, rules=rules))
    made = apply_rules(graph, rules)
    if made is not graph:
        graph.nodes, graph.constants = made.nodes, made.constants
        for node in graph.nodes:
            for value in node.outputs:
                value.producer = node
        graph.prune()
    return graph
