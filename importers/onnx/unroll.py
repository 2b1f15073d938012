"""Loops whose turns are known, each turn in place of the loop: the number of the turn is known in it, and with it the sizes that follow.

So exporters write bags of embeddings: every turn cuts a bag out of the indices, between offsets that are constants.
"""
from __future__ import annotations

import numpy as np
from onnx import GraphProto

from tileflow.graph import Value

from .functions import renamed_graph
from .inner import Results, Walker
from .join import joined
from .site import Site
from .unfold import every_node

MOST, MOST_NODES = 1 << 12, 1 << 16
"""Turns of a loop, and nodes that they may come to."""


def unrolled(site: Site, importer: Walker) -> Results | None:
    """What a Loop gives, its turns one after the other; None where how many there are is not known, or where they are too many.

    Raises:
        UnsupportedError: as the import of the body does.
        ModelError: the number of turns, or whether there is one, is no single number.
    """
    graph: GraphProto = site.attrs["body"]
    scope, carried = site.scope, site.inputs[2:]
    if any(site.has(i) and site.known(i) is None for i in (0, 1)):
        return None
    most = min(MOST, MOST_NODES // max(sum(1 for _ in every_node(graph.node)), 1))
    turns = min(int(site.scalar(0)), most + 1) if site.has(0) else most + 1
    on = bool(site.scalar(1)) if site.has(1) else True
    slices: list[list[Value]] = [[] for _ in graph.output[1 + len(carried):]]
    turn = 0
    while on and turn < turns:
        if turn == most:
            return None
        at = f"{next(filter(None, site.outputs), '')}/{turn}/"
        number, go_on, *formals = [v.name for v in graph.input]
        made = renamed_graph(graph, dict(zip(formals, carried, strict=True)), at)
        scope.enter(at + number, np.array(turn, np.int64), "the loop")
        scope.enter(at + go_on, np.array(True), "the loop")
        importer.walk(made, site.opsets)
        known = scope.known(made.output[0].name)
        if known is None or known.size != 1:
            return None
        names = [v.name for v in made.output[1:]]
        carried = names[:len(carried)]
        for found, name in zip(slices, names[len(carried):], strict=True):
            found.append(scope.value(name))
        on, turn = bool(known.reshape(-1)[0]), turn + 1
    if slices and not turn:
        return None
    for name, output in zip(carried, site.outputs, strict=False):
        if name in scope.sequences:
            scope.sequences[output] = scope.sequences[name]
    importer.depends(site.node, [*carried, *(part.name for parts in slices for part in parts)])
    kept = [None if name in scope.sequences else scope.result(name) for name in carried]
    return [*kept, *(joined(site, parts, 0, new_axis=True) for parts in slices)]
