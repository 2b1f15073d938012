"""Gradient checkpoints: marks on forward nodes computed again for the backward pass instead of kept (arXiv:1604.06174).

A mark is the name of a block (`Origin.block`), such as one layer of many. Nothing changes in the graph: the host chooses kernels, layouts and rules
as without marks, and computes a marked block's nodes twice after that (`lower/rematerialise.py`), so every bit stays.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from ..graph import Graph, Node, Value
from ..system.errors import OptionError

LISTED = 20
"""Names that a message lists."""


def mark_checkpoints(graph: Graph, patterns: Sequence[str]) -> None:
    """Mark the forward nodes whose name, or the beginning of whose path, fits a pattern: `layer*` marks `layer1.0.conv1` as a part of the block
    `layer1`, and `/layer1/relu/Relu` of an ONNX file as well.

    Raises:
        OptionError: a pattern fits nothing.
    """
    met: set[str] = set()
    for node in graph.nodes:
        found = _block(node, patterns) if node.origin.role == "forward" else None
        if found is not None:
            block, pattern = found
            met.add(pattern)
            node.origin = replace(node.origin, block=block)
    _check(graph, patterns, met, "gradient_checkpointing")


def keep_results(graph: Graph, patterns: Sequence[str]) -> None:
    """Mark forward nodes as checkpoints (`Origin.kept`): those whose results leave the layers or nodes that fit a pattern.

    Raises:
        OptionError: a pattern fits nothing.
    """
    forward = [node for node in graph.nodes if node.origin.role == "forward"]
    blocks = {node: found for node in forward if (found := _block(node, patterns)) is not None}
    _check(graph, patterns, {pattern for _, pattern in blocks.values()}, "recomputation_checkpoints")
    readers: dict[Value, list[Node]] = {}
    for node in forward:
        for v in node.operands:
            readers.setdefault(v, []).append(node)
    for node, (block, _) in blocks.items():
        read = [reader for v in node.outputs for reader in readers.get(v, [])]
        if not read or any(blocks.get(reader, ("", ""))[0] != block for reader in read):
            node.origin = replace(node.origin, kept=True)


def _check(graph: Graph, patterns: Sequence[str], met: set[str], option: str) -> None:
    missed = next((p for p in patterns if p not in met), None)
    if missed is not None:
        names = list(dict.fromkeys(name for node in graph.nodes if node.origin.role == "forward" for name in node.origin.sources))
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        raise OptionError(f"Option {option}: the pattern {missed!r} fits no layer or node; their names are {', '.join(names[:LISTED])}{more}.")


def _block(node: Node, patterns: Sequence[str]) -> tuple[str, str] | None:
    """The shortest beginning of a path of the node that a pattern fits, and the pattern."""
    fitting = [(part, p) for name in node.origin.sources for part in beginnings(name) for p in patterns if fnmatchcase(part, p)]
    return min(fitting, key=lambda found: len(found[0]), default=None)


def beginnings(name: str) -> Iterator[str]:
    """A path's beginnings, which end before dots and slashes; a slash in front may be left out in a pattern."""
    for path in dict.fromkeys((name, name.lstrip("/"))):
        for end in (*(m.start() for m in re.finditer(r"[./]", path)), len(path)):
            if end:
                yield path[:end]
