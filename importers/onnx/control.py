"""If, Loop and Scan: known conditions are taken at import, computed ones and loops of static shapes become nodes with regions, others whose
turns are known are unrolled.

Everything else is refused, by a DynamicOperandError where knowing some operand would do.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from onnx import GraphProto, helper

from tileflow.graph import Region, Value
from tileflow.graph.op import plain_domain
from tileflow.graph.region import closed, draws
from tileflow.ops.control import INDEX, If, Loop
from tileflow.ops.shape import normal_axis
from tileflow.system.errors import ModelError, ShapeError, TileflowError, UnsupportedError

from .declared import declare
from .domains.marks import DOMAIN
from .functions import read_names
from .inner import Control, Inner, Results, Walker
from .site import DynamicOperandError, Site
from .unroll import unrolled
from .versions import form

MOST_TURNS = 1 << 40
"""Turns of a loop; more are as good as endless. PyTorch writes the highest number for none."""
SOME_TURNS = "SomeTurns"
"""A Loop that data end, or that gives what it made in every turn, in a model that runs in pieces: it makes as many
turns as there is room for."""
ROOM, MOST_ROOM = 1 << 18, 1 << 8
"""Bytes of what such turns give, and how many they are at most: what is not made is cleared."""
declare(DOMAIN, SOME_TURNS, "turns:L, condition?:B, carried*:V -> found*:V", body=GraphProto)


@form("If")
def branch(site: Site) -> GraphProto | Control:
    """A branch whose condition is known is imported in place."""
    if site.known(0) is None:
        return partial(_branches, site)
    graph = site.attrs["then_branch" if site.scalar(0) else "else_branch"]
    assert isinstance(graph, GraphProto)
    return graph


def _branches(site: Site, importer: Walker) -> Results:
    """Both branches as regions. Whatever stands in the way would be gone, were the condition known."""
    try:
        word = site.value(0)
        graphs = [site.attrs[name] for name in ("then_branch", "else_branch")]
        inner = [importer.fill(importer.opened(), graph, site.opsets) for graph in graphs]
        made = [scope.results([v.name for v in graph.output]) for scope, graph in zip(inner, graphs, strict=True)]
        types = [[v.type for v in values] for values in made]
        if types[0] != types[1]:
            shown = ["(" + ", ".join(map(str, t)) + ")" for t in types]
            raise UnsupportedError(f"its branches give {shown[0]} and {shown[1]}, and which of them is computed while the model runs")
    except TileflowError as error:                      # also where a branch does not fit the sizes at hand, and so is never taken
        raise DynamicOperandError(str(error).rstrip("."), frozenset({site.inputs[0]})) from None
    importer.depends(site.node, {name for scope in inner for name in scope.read})
    captures = _captures(inner)
    then, other = (_region(scope, values, [], captures) for scope, values in zip(inner, made, strict=True))
    return _emitted(site, If(then, other), [word, *captures])


@form("Loop")
def loop(site: Site) -> Control:
    return partial(_loop, site)


def _loop(site: Site, importer: Walker) -> Results:
    """A region for all turns, or where sizes in the body follow from the turn, or it carries a sequence, each turn in place of the loop."""
    graph: GraphProto = site.attrs["body"]
    try:
        turn = _turn(site, importer, graph)
    except UnsupportedError as error:
        return _unrolled(site, importer, error)
    slices = len(turn.made) > len(turn.moving)
    return _looped(site, importer, turn, partial(_turns, site, bool(turn.go_on), slices))


@form(SOME_TURNS, domain=DOMAIN)
def some_turns(site: Site) -> Control:
    return partial(_some_turns, site)


def _some_turns(site: Site, importer: Walker) -> Results:
    """A region for all turns; arrays of the turns that there is room for."""
    try:
        turn = _turn(site, importer, site.attrs["body"])
    except DynamicOperandError as error:
        if error.names.isdisjoint(site.inputs):
            raise
        raise UnsupportedError(str(error)) from None                      # what turns change is not compiled in
    row = sum(v.type.nbytes for v in turn.made[len(turn.moving):])
    room = max(1, min(MOST_ROOM, ROOM // max(row, 1)))
    return _looped(site, importer, turn, lambda: (room, [site.value(0), None]))


def _unrolled(site: Site, importer: Walker, error: UnsupportedError) -> Results:
    """The turns one after the other; `error`: why there is no region for all of them."""
    try:
        results = unrolled(site, importer)
    except UnsupportedError as inner:
        raise (error if isinstance(error, DynamicOperandError) else inner) from None
    if results is None:
        raise error
    return results


@dataclass(frozen=True)
class _Turn:
    """A loop's body as a region: its inputs, whether it goes on (nothing where it always does), what it hands on and its slices.

    moving: which carried values it changes.
    """

    scope: Inner
    formals: Sequence[Value]
    go_on: Sequence[Value]
    made: Sequence[Value]
    moving: Sequence[int]


def _turn(site: Site, importer: Walker, graph: GraphProto) -> _Turn:
    """The body, in which the number of the turn is computed, and whose shapes stay as they are."""
    initial = site.inputs[2:]
    if len(graph.input) != len(initial) + 2 or len(graph.output) < len(initial) + 1:
        raise ModelError(f"{site.title}: its body has {len(graph.input)} inputs and {len(graph.output)} outputs for "
                         f"{len(initial)} carried values; export the model again")
    graph = plain_condition(graph)
    scope = importer.opened()
    turn, word = (v.name for v in graph.input[:2])
    formals = [scope.given(turn, INDEX)]
    scope.enter(word, np.array(True), "the loop")                         # while the body runs it is
    fixed = steady(graph, len(initial))
    for i, (v, name) in enumerate(zip(graph.input[2:], initial, strict=True)):
        if i in fixed:
            scope.same(v.name, name)
        else:
            formals.append(scope.given(v.name, site.scope.type(name)))
    importer.fill(scope, graph, site.opsets)
    on, *names = [v.name for v in graph.output]
    known = scope.known(on)
    go_on = [] if known is not None and known.reshape(-1)[:1].all() else [scope.value(on)]
    moving = [i for i in range(len(initial)) if i not in fixed]
    made = scope.results([*(names[i] for i in moving), *names[len(initial):]])
    for formal, new, i in zip(formals[1:], made, moving, strict=False):
        if formal.type != new.type:
            raise UnsupportedError(f"its body makes {new.type} of '{initial[i]}', which is {formal.type} before the first turn; types must stay")
    return _Turn(scope, formals, go_on, made, moving)


def plain_condition(graph: GraphProto) -> GraphProto:
    """The body or branch with a first output of no dimensions where an If gives it and nothing else reads it: its
    branches may give one truth value in several shapes, which is the same to a loop."""
    name = graph.output[0].name
    at = next((k for k, node in enumerate(graph.node) if name in node.output), -1)
    chosen = at >= 0 and graph.node[at].op_type == "If" and plain_domain(graph.node[at].domain) == ""
    if not chosen or len(graph.node[at].output) != 1 or Counter(read_names(graph))[name] != 1:
        return graph
    copy = GraphProto()
    copy.CopyFrom(graph)
    for attribute in (a for a in copy.node[at].attribute if a.g.output):
        branch = plain_condition(attribute.g)
        given = branch.output[0].name
        branch.node.append(helper.make_node("Squeeze", [given], [f"{given}/one"]))
        branch.output[0].name = f"{given}/one"
        attribute.g.CopyFrom(branch)
    return copy


def _looped(site: Site, importer: Walker, turn: _Turn,
            turns: Callable[[], tuple[int, list[Value | None]]]) -> Results:
    """A Loop of the graph; `turns`: how many it has, and the operands that say so."""
    scope, go_on, made, moving, initial = turn.scope, turn.go_on, turn.made, turn.moving, site.inputs[2:]
    importer.depends(site.node, scope.read)
    captures = _captures([scope])
    region = _drawless(_region(scope, [*go_on, *made], turn.formals, captures))
    count, operands = turns()
    outputs = [site.outputs[i] if i < len(site.outputs) else "" for i in (*moving, *range(len(initial), len(site.outputs)))]
    found = site.builder.emit(Loop(region, len(moving), 0, count, bool(go_on)),
                              *operands, *(site.scope.value(initial[i]) for i in moving), *captures, names=tuple(outputs))
    carried = dict(zip(moving, found, strict=False))
    return [*(carried[i] if i in carried else site.scope.result(initial[i]) for i in range(len(initial))), *found[len(moving):]]


def steady(graph: GraphProto, carried: int) -> set[int]:
    """Which carried values the body hands on as they are."""
    same = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Identity" and plain_domain(node.domain) == "" and node.input}

    def source(name: str) -> str:
        while name in same:
            name = same.pop(name)
        return name
    return {i for i in range(carried) if source(graph.output[1 + i].name) == graph.input[2 + i].name}


def _turns(site: Site, conditional: bool, slices: bool) -> tuple[int, list[Value | None]]:
    """How many turns a loop has, and the operands that say so: turns, condition."""
    limit, word = site.known(0), site.known(1)
    if limit is not None and limit.size != 1:
        raise ModelError(f"{site.title}: its number of turns must be one number and has shape {list(limit.shape)}; export the model again")
    count = max(0, int(limit.reshape(-1)[0])) if limit is not None else -1
    endless = not site.has(0) or count > MOST_TURNS
    if word is not None and not word.reshape(-1)[:1].all():
        return 0, [None, None]
    if endless and not conditional:
        raise site.unsupported("nothing ends it: it has neither a number of turns nor a condition that may become false")
    names = frozenset(site.inputs[i] for i in (0, 1) if site.has(i) and site.known(i) is None)
    if slices and (conditional or names):
        why = "how many slices it gives is computed while the model runs"
        raise UnsupportedError(why) if conditional else DynamicOperandError(why, names)
    condition = site.value(1) if site.has(1) and word is None else None
    if endless:
        return -1, [site.builder.constant(np.array(MOST_TURNS), "turns"), condition]
    return count, [site.value(0) if limit is None else None, condition]


@form("Scan")
def scan(site: Site) -> Control:
    return partial(_scan_batch if site.opset < 9 else _scan, site)


def _scan(site: Site, importer: Walker) -> Results:
    """As a loop over slices; axes are moved to the front, and turned where the direction differs from the loop's."""
    number = int(site.attrs["num_scan_inputs"])
    graph: GraphProto = site.attrs["body"]
    states = len(site.inputs) - number
    outputs = len(graph.output) - states
    _check_scan(site, graph, states, number, outputs)
    backward = [[bool(d) for d in site.attrs.get(f"scan_{kind}_directions") or [0] * n] for kind, n in (("input", number), ("output", outputs))]
    axes = [list(site.attrs.get(f"scan_{kind}_axes") or [0] * n) for kind, n in (("input", number), ("output", outputs))]
    if [len(x) for x in (*backward, *axes)] != [number, outputs] * 2:
        raise ModelError(f"{site.title}: its axes or directions are not as many as what it scans; export the model again")
    reverse = all(backward[0]) and all(backward[1])
    scanned = [_front(site, site.value(states + i), normal_axis(a, site.type(states + i).rank), back != reverse)
               for i, (a, back) in enumerate(zip(axes[0], backward[0], strict=True))]
    found = _scanned(site, importer, [site.value(i) for i in range(states)], scanned, reverse)
    moved = [_back(site, v, normal_axis(a, v.type.rank), back != reverse) for v, a, back in zip(found[states:], axes[1], backward[1], strict=True)]
    return [*found[:states], *moved]


def _scan_batch(site: Site, importer: Walker) -> Results:
    """Opset 8: a scan for each row of a batch, which is a loop over rows around the loop over slices."""
    number = int(site.attrs["num_scan_inputs"])
    graph: GraphProto = site.attrs["body"]
    states = len(site.inputs) - 1 - number
    _check_scan(site, graph, states, number, len(graph.output) - states)
    if site.has(0):
        raise site.unsupported("sequences of different lengths (sequence_lens)")
    backward = [bool(d) for d in site.attrs.get("directions") or [0] * number]
    given = [site.value(i) for i in range(1, len(site.inputs))]
    if any(v.type.rank < 1 + (i >= states) for i, v in enumerate(given)):
        raise ShapeError(f"{site.title} scans ({', '.join(str(v.type) for v in given)}), which lack a batch or a sequence; export the model again")
    reverse = bool(backward) and all(backward)
    turned = [_turned(site, v, 1) if i >= states and backward[i - states] != reverse else v for i, v in enumerate(given)]
    batch = turned[0].shape[0]
    scope = importer.opened()
    with importer.around(scope):
        formals = [scope.given("", INDEX), *(scope.given("", v.type.with_shape(v.shape[1:])) for v in turned)]
        inner = Site(scope, site.node, site.opsets)
        found = _scanned(inner, importer, formals[1:1 + states], formals[1 + states:], reverse)
    captures = _captures([scope])
    return _emitted(site, Loop(_region(scope, found, formals, captures), 0, len(turned), batch), [None, None, *turned, *captures])


def _check_scan(site: Site, graph: GraphProto, states: int, number: int, outputs: int) -> None:
    if states < 0 or number < 1 or outputs < 0 or len(graph.input) != states + number:
        raise ModelError(f"{site.title}: its body has {len(graph.input)} inputs and {len(graph.output)} outputs for {states} states and "
                         f"{number} scanned tensors; export the model again")


def _scanned(site: Site, importer: Walker, states: Sequence[Value], scanned: Sequence[Value], reverse: bool) -> Sequence[Value]:
    """The loop of a Scan, over first axes."""
    graph: GraphProto = site.attrs["body"]
    count = {v.shape[0] for v in scanned}
    if len(count) != 1:
        raise ShapeError(f"{site.title} scans {', '.join(map(str, sorted(count)))} slices side by side, which must be equally many")
    scope = importer.opened()
    formals = [scope.given("", INDEX)]
    types = [*(v.type for v in states), *(v.type.with_shape(v.shape[1:]) for v in scanned)]
    formals += [scope.given(v.name, t) for v, t in zip(graph.input, types, strict=True)]
    importer.fill(scope, graph, site.opsets)
    made = scope.results([v.name for v in graph.output])
    for before, new in zip(states, made, strict=False):
        if before.type != new.type:
            raise UnsupportedError(f"its body makes {new.type} of a state that is {before.type}; types must stay")
    captures = _captures([scope])
    region = _drawless(_region(scope, made, formals, captures))
    return _emitted(site, Loop(region, len(states), len(scanned), count.pop(), False, reverse), [None, None, *states, *scanned, *captures])


def _front(site: Site, v: Value, axis: int, turned: bool) -> Value:
    """The value with that axis first."""
    if axis:
        v = site.emit("Transpose", v, perm=(axis, *(i for i in range(v.type.rank) if i != axis)))
    return _turned(site, v, 0) if turned else v


def _back(site: Site, v: Value, axis: int, turned: bool) -> Value:
    """The value with its first axis there."""
    v = _turned(site, v, 0) if turned else v
    order = list(range(1, v.type.rank))
    order.insert(axis, 0)
    return site.emit("Transpose", v, perm=tuple(order)) if axis else v


def _turned(site: Site, v: Value, axis: int) -> Value:
    """The value with that axis in reverse."""
    return site.emit("Slice", v, starts=(v.shape[axis] - 1,), ends=(-v.shape[axis] - 1,), axes=(axis,), steps=(-1,)) if v.shape[axis] else v


def _captures(inner: Iterable[Inner]) -> list[Value]:
    """What regions capture, together."""
    return list(dict.fromkeys(v for scope in inner for v in scope.captured))


def _region(scope: Inner, outputs: Sequence[Value], formals: Sequence[Value], captures: Sequence[Value]) -> Region:
    """The region with inputs in order: the formals, then all captures."""
    scope.graph.inputs = [*formals, *(scope.capture(v) for v in captures)]
    with scope.builder.at(scope.outer.builder.origin):
        return closed(scope.builder, outputs)


def _drawless(region: Region) -> Region:
    """Raise UnsupportedError where the body of a loop draws random numbers: every turn would draw the same."""
    found = next((node for node in region.graph.walk() if draws(node.op)), None)
    if found is not None:
        raise UnsupportedError(f"its body draws random numbers ({found.op.name}), which would be the same in every turn; take that out of the loop")
    return region


def _emitted(site: Site, op: Any, operands: Sequence[Value | None]) -> Sequence[Value]:
    return site.builder.emit(op, *operands, names=tuple(site.outputs))
