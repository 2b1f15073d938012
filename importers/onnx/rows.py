"""Turns of a Loop one after the other in one program, where a tensor that each of them reads grows: every turn has
shapes of its own, so that a program for one size is made of many sizes."""
from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from onnx import GraphProto

from tileflow.graph import Node, Turns, Value
from tileflow.graph.region import draws
from tileflow.system.errors import ModelError, UnsupportedError

from .declared import declare
from .domains.marks import DOMAIN
from .functions import renamed_graph
from .inner import Control, Results, Walker
from .site import DynamicOperandError, Site
from .unfold import every_node
from .versions import form

ROW_OF_TURNS = "RowOfTurns"
"""A Loop in a model that runs in pieces: some of its turns, whether it ends among them or not. (number of turns,
carried...) -> what the body carries on and gives, a row a turn; of the last `growing` carried values the last only."""
MOST, MOST_NODES, MOST_WORK, ROOM = 1 << 4, 1 << 10, 1 << 23, 1 << 22
"""Turns of a program; the nodes of the file that they may come to, their FLOPs, and the bytes of what they give. Turns
after the end are for nothing, so all together must not take longer than a few calls."""
declare(DOMAIN, ROW_OF_TURNS, "turns:L, carried*:V -> found*:V", body=GraphProto, growing=int)


@form(ROW_OF_TURNS, domain=DOMAIN)
def row_of_turns(site: Site) -> Control:
    return partial(_row_of_turns, site)


def _row_of_turns(site: Site, importer: Walker) -> Results:
    """The turns in place of the node. Nothing asks whether one of them shall be: where the loop ends is for who reads
    the rows, so a turn must come to an end whatever it is given, and leave nothing but what it gives."""
    graph: GraphProto = site.attrs["body"]
    carried, growing = site.inputs[1:], site.attrs["growing"]
    if len(graph.input) != len(carried) or len(graph.output) <= len(carried) or not 0 < growing <= len(carried):
        raise ModelError(f"{site.title}: its body has {len(graph.input)} inputs and {len(graph.output)} outputs for "
                         f"{len(carried)} carried values, {growing} of which grow; export the model again")
    grown = range(len(carried) - growing, len(carried))
    most, rows, steps = _most(graph), [], []
    limit = min(int(site.scalar(0)), most)
    while len(rows) < limit:
        before = [site.scope.type(carried[i]).shape for i in grown]
        made = renamed_graph(graph, dict(zip((v.name for v in graph.input), carried, strict=True)), f"{site.outputs[-1]}/{len(rows)}/")
        try:
            importer.walk(made, site.opsets)
        except DynamicOperandError as error:
            if error.names.isdisjoint(site.inputs):
                raise
            raise UnsupportedError(str(error)) from None                      # what turns change is not compiled in
        names = [v.name for v in made.output]
        carried = names[:len(carried)]
        added = [np.subtract(site.scope.type(carried[i]).shape, shape) for i, shape in zip(grown, before, strict=True)]
        rows.append([site.scope.value(name) for i, name in enumerate(names) if site.wants(i) and i not in grown])
        if len(rows) == 1:
            work, room = sum(map(_work, site.builder.graph.walk())), sum(v.type.nbytes for v in rows[0])
            most = min(most, _power(min(ROOM // max(1, room), int(MOST_WORK / work))))
            limit, steps = min(limit, most - _turns_before(before[0], added[0]) % most), added
        if any((a != b).any() for a, b in zip(added, steps, strict=True)):
            raise UnsupportedError("it appends more in one turn than in another")
        on = site.scope.known(names[-1])
        if on is not None and not on.all():
            break
    _check(site, rows)
    found = iter([_stacked(site, parts) for parts in zip(*rows, strict=True)])
    return [site.scope.value(carried[i]) if i in grown else next(found) if site.wants(i) else None
            for i in range(len(site.outputs))]


def _most(graph: GraphProto) -> int:
    """How many turns of a body a program has."""
    most = _power(min(MOST, MOST_NODES // max(1, sum(1 for _ in every_node(graph.node)))))
    if most == 1:
        raise UnsupportedError(f"two turns of its body have more than {MOST_NODES} nodes")
    return most


def _power(most: int) -> int:
    """The highest power of two that is no more: programs of other sizes then end where these do, and the next are the
    same."""
    return 1 << max(most, 1).bit_length() - 1


def _work(node: Node) -> float:
    """FLOPs of an operator, or how many elements it reads and makes, where these are more."""
    inputs, outputs = [v and v.type for v in node.inputs], [v.type for v in node.outputs]
    elements = sum(t.size for t in (*inputs, *outputs) if t is not None)
    try:
        return max(elements, node.op.work(inputs, outputs).flops)
    except NotImplementedError:                                                # what its parts do
        return elements


def _turns_before(sizes: Sequence[int], added: np.ndarray) -> int:
    """How many turns have grown a tensor to these sizes, if all appended as much as the next."""
    return next((n // int(more) for n, more in zip(sizes, added, strict=True) if more > 0), 0)


def _check(site: Site, rows: Sequence[Sequence[Value]]) -> None:
    """Raise UnsupportedError where rows are of several types, or a turn does more than to give them."""
    if any(v.type != first.type for row in rows for v, first in zip(row, rows[0], strict=True)):
        raise UnsupportedError("what a turn gives has another type in the next")
    for node in site.builder.graph.walk():
        if draws(node.op):
            raise UnsupportedError(f"its body draws random numbers ({node.op.name})")
        if isinstance(node.op, Turns):
            raise UnsupportedError("a loop in its body may go on for long")
        if node.op.code is not None or node.op.host([v and v.type for v in node.inputs], [v.type for v in node.outputs]):
            raise UnsupportedError(f"its body calls a function of the user's or of Python's ({node.op.name})")


def _stacked(site: Site, parts: Sequence[Value]) -> Value:
    """The values along a new first axis."""
    rows = [site.emit("Unsqueeze", part, axes=(0,)) for part in parts]
    return rows[0] if len(rows) == 1 else site.emit("Concat", *rows, axis=0)
