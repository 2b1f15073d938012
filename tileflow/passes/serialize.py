"""Serialized matmuls by name: the matching products are done in pieces. Run before autograd, so that gradients are, too."""
from __future__ import annotations

from collections.abc import Mapping

from ..graph import Graph, Node, on_named
from ..system.errors import OptionError, TileflowError


def serialize(graph: Graph, wanted: Mapping[str, tuple[str, int]]) -> Graph:
    """Replace operators in place; returns the graph.

    Args:
        wanted: pattern of a source name (a node of the ONNX file, the path of a layer) -> mode and factor of `Op.serialized`.
            The first pattern that matches counts. Matching operators that have no serialized form stay as they are.

    Raises:
        OptionError: a pattern matches no operator that can be serialized.
        ShapeError: a factor does not divide the dimension.
    """
    met: set[str] = set()

    def cut(node: Node, pattern: str) -> None:
        replacement = node.op.serialized(*wanted[pattern])
        if replacement is None:
            return
        met.add(pattern)
        try:
            replacement.infer(*[None if v is None else v.type for v in node.inputs])
        except TileflowError as error:
            raise type(error)(f"serialized_matmul {pattern!r}: {node.op.name} ({node.origin}): {error}") from None
        node.op = replacement
    if wanted:
        on_named(graph, wanted, cut)
    missed = [p for p in wanted if p not in met]
    if missed:
        names = dict.fromkeys(name for node in graph.walk() if _can(node) for name in node.origin.sources)
        raise OptionError(f"serialized_matmul: {missed[0]!r} matches no matmul; the matmuls are "
                          f"{', '.join(names) or 'none'}.")
    return graph


def _can(node: Node) -> bool:
    return node.op.serialized("output_channels", 1) is not None
