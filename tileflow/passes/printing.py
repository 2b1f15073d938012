"""Values within a model that are printed whenever they are computed, with their gradients, by name."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Builder, Graph
from .anchors import anchored


def printed(graph: Graph, patterns: Sequence[str], tensors_first: bool) -> Graph:
    """Let values of a graph be printed, each under its name, by whatever reads them; returns the graph.

    Args:
        patterns, tensors_first: as `anchors.anchored` takes them.

    Raises:
        OptionError: a name or pattern fits nothing.
    """
    b = Builder(graph)
    for name, value in (anchored(graph, patterns, tensors_first, "printed_tensors") if patterns else {}).items():
        maker = value.producer
        with b.scope(source=name) if maker is None else b.at(maker.origin):
            shown = b.PrintTensor(value, title=name)
        node = graph.nodes.pop()
        graph.replace({value: shown})
        node.inputs = [value]
        graph.nodes.insert(0 if maker is None else graph.nodes.index(maker) + 1, node)
    return graph
