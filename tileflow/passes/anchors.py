"""Values within a model that a caller asked for by name: tensors of the file, or what layers and nodes give."""
from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from ..graph import Graph, Value
from ..system.errors import OptionError
from ..system.text import one_line

LISTED = 40
"""Names that a sentence lists."""


def anchored(graph: Graph, patterns: Sequence[str], tensors_first: bool,
             option: str = "anchored_tensors") -> dict[str, Value]:
    """The values of a graph that are wanted, by name, in the order of the graph.

    A name is that of a tensor, or of a layer or node of the source, which stands for the first output of the last operator that was made of it.

    Args:
        patterns: names, or patterns with * and ?, which stand for all layers and nodes that fit.
        tensors_first: a name that both have is the tensor's (ONNX); else the layer's.
        option: by which they are asked for.

    Raises:
        OptionError: a name or pattern fits nothing.
    """
    tensors = {v.name: v for v in [*graph.inputs, *(v for n in graph.nodes for v in n.outputs)]}
    sources: dict[str, Value] = {}
    for node in graph.nodes:
        for name in node.origin.sources:
            parts = name.split(".")
            for i in range(1, len(parts) + 1):          # a block of layers ends with its last one
                sources[".".join(parts[:i])] = node.outputs[0]
    known = {**sources, **tensors} if tensors_first else {**tensors, **sources}
    found: dict[str, Value] = {}
    for pattern in patterns:
        if pattern in known:
            found[pattern] = known[pattern]
            continue
        fitting = [name for name in sources if fnmatchcase(name, pattern)]
        if not fitting:
            near = difflib.get_close_matches(pattern, known, n=3) or list(sources)[:LISTED]
            raise OptionError(f"Option {option}: {one_line(pattern)!r} is no tensor, layer or node of the model; "
                              f"there are {one_line(', '.join(near), 1000)}.")
        found.update((name, known[name]) for name in fitting)
    order = {id(v): i for i, v in enumerate(tensors.values())}
    return dict(sorted(found.items(), key=lambda item: order[id(item[1])]))
