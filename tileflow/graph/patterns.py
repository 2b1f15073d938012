"""Nodes that patterns of names select: names are those of the layers, or of the file's nodes, that a node stands for
(`Origin.sources`)."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from ..system.errors import OptionError
from .graph import Graph, Node
from .region import inside

LISTED = 20
"""Names that a message lists."""


def first_fitting(patterns: Iterable[str], names: Sequence[str]) -> str | None:
    """The first of the patterns that fits one of the names as a whole; None: none does."""
    return next((p for p in patterns if any(fnmatchcase(name, p) for name in names)), None)


def on_named(graph: Graph, patterns: Iterable[str], change: Callable[[Node, str], None]) -> None:
    """Change, in place, all nodes that one of the patterns fits, those in regions as well: `change` is given each with
    its first pattern."""
    inside(graph, lambda region: on_named(region, patterns, change))
    for node in graph.nodes:
        pattern = first_fitting(patterns, node.origin.sources)
        if pattern is not None:
            change(node, pattern)


def selected(nodes: Sequence[Node], patterns: Sequence[str], option: str) -> dict[Node, str]:
    """The nodes of which a pattern fits the name or the beginning of its path, in order, each with the shortest such
    beginning: `layer*` selects `layer1.0.conv1` as a part of `layer1`, and `/layer1/relu/Relu` of an ONNX file as well.

    Args:
        option: what the patterns come from, for the message.

    Raises:
        OptionError: a pattern selects nothing.
    """
    found: dict[Node, str] = {}
    met: set[str] = set()
    for node in nodes:
        parts = [part for name in node.origin.sources for part in _beginnings(name)]
        fitting = [(part, p) for part in parts for p in patterns if fnmatchcase(part, p)]
        if fitting:
            found[node], pattern = min(fitting, key=lambda fit: len(fit[0]))
            met.add(pattern)
    missed = next((p for p in patterns if p not in met), None)
    if missed is not None:
        names = list(dict.fromkeys(name for node in nodes for name in node.origin.sources))
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        raise OptionError(f"Option {option}: the pattern {missed!r} fits no layer or node; their names are "
                          f"{', '.join(names[:LISTED])}{more}.")
    return found


def _beginnings(name: str) -> Iterator[str]:
    """A path's beginnings, which end before dots and slashes; a slash in front may be left out in a pattern."""
    for path in dict.fromkeys((name, name.lstrip("/"))):
        for end in (*(m.start() for m in re.finditer(r"[./]", path)), len(path)):
            if end:
                yield path[:end]
