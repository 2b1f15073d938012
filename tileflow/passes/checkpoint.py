"""Gradient checkpoints: forward nodes computed again for the backward pass instead of kept (arXiv:1604.06174).

They are asked by hints (`Hints.recomputed`). Nothing changes in the graph: the host chooses kernels, layouts and rules
as without, and computes such nodes twice after that (`lower/rematerialise.py`), so every bit stays.
"""
from __future__ import annotations

from collections.abc import Sequence

from ..graph import Graph, Hints, Node, Value, selected


def recompute(graph: Graph, patterns: Sequence[str]) -> None:
    """Let the forward nodes that patterns select be computed again, those of one layer or path together.

    Raises:
        OptionError: a pattern selects nothing.
    """
    for node, layer in selected(_forward(graph), patterns, "gradient_checkpointing").items():
        node.ask(Hints(recomputed=layer))


def keep_results(graph: Graph, patterns: Sequence[str]) -> None:
    """Let forward nodes be checkpoints (`Hints.kept`): those whose results leave the layers or nodes that patterns
    select.

    Raises:
        OptionError: a pattern selects nothing.
    """
    forward = _forward(graph)
    layers = selected(forward, patterns, "recomputation_checkpoints")
    readers: dict[Value, list[Node]] = {}
    for node in forward:
        for v in node.operands:
            readers.setdefault(v, []).append(node)
    for node, layer in layers.items():
        read = [reader for v in node.outputs for reader in readers.get(v, [])]
        if not read or any(layers.get(reader) != layer for reader in read):
            node.ask(Hints(kept=True))


def _forward(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.origin.role == "forward"]
