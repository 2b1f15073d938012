"""Many turns of a Loop as one node, where a Loop itself has no program: what a loop gives in every turn, and what it
only appends to, is collected in arrays that have room for so many turns (`control.SOME_TURNS`), which Python joins."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

from tileflow.graph.op import plain_domain

from ..control import SOME_TURNS, plain_condition, steady
from ..domains.marks import DOMAIN
from ..functions import read_names
from ..hosted import Datum
from ..model import label
from ..rows import MOST as MOST_IN_A_ROW
from ..rows import ROW_OF_TURNS
from ..unfold import every_node

ALONE = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial", "Loop",
         "Scan", "SequenceMap")
"""What draws, or may go on for long: no turn that does so is made for nothing."""
FIRST = 4
"""Turns with which a row of turns begins: a loop that ends soon shall not be compiled for many."""


@dataclass(frozen=True)
class Grown:
    """A carried value that the body only appends to.

    added: the names appended in a turn. kept: the nodes that do so. axis: None for a sequence. before: for each node
    that asks for a sequence's length its place, and how many were appended before it in its turn. read: the body also
    reads it, so that every turn has shapes of its own.
    """

    added: tuple[str, ...]
    kept: tuple[int, ...]
    axis: int | None = None
    before: tuple[tuple[int, int], ...] = ()
    read: bool = False

    def joined(self, start: Datum, rows: Sequence[np.ndarray]) -> Datum:
        """The value after turns in which these rows were appended, an array [turns, ...] for each name."""
        if self.axis is None:
            return [*start, *(np.array(part) for turn in zip(*rows, strict=True) for part in turn)]
        axis = self.axis % start.ndim
        turns = rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1 + axis)
        return np.concatenate([start, in_a_row(turns, axis)], axis=axis)


def in_a_row(turns: np.ndarray, axis: int) -> np.ndarray:
    """An array [turns, ...] without its first axis: what turns have along `axis`, one after the other."""
    moved = np.moveaxis(turns, 0, axis) if axis else turns
    sizes = moved.shape
    return moved.reshape(*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2:])


TurnsMade = tuple[int, bool, list[Datum], list[list[np.ndarray]]]
"""The number of the next turn, whether there shall be one, what is carried then, and the rows of each other output."""


@dataclass(frozen=True)
class ManyTurns:
    """A Loop's turns as a node.

    node: (turns, carried values that keep their shapes..., lengths of sequences, the number of the first turn, true) ->
    the same after the turns, then what the Loop gives in each and what was appended in each. carried: how many values
    the Loop carries. grown: those that it only appends to, by place. counted: the places of sequences whose lengths the
    body asks for.
    """

    node: NodeProto
    inputs: tuple[str, ...]
    carried: int
    grown: dict[int, Grown]
    counted: tuple[int, ...]
    guessed: ClassVar[bool] = False
    """Turns are made that may never be: an error may be theirs."""

    def given(self, most: int, turn: int, state: Sequence[Datum]) -> list[Datum]:
        """The data of the node's inputs: at most so many turns from this one on, with this carried state."""
        return [np.array(most, np.int64), *self._before(turn, state), np.array(True)]

    def _before(self, turn: int, state: Sequence[Datum]) -> list[Datum]:
        steady = [x for i, x in enumerate(state) if i not in self.grown]
        return [*steady, *(np.array(len(state[i]), np.int64) for i in self.counted), np.array(turn, np.int64)]

    def found(self, turn: int, state: Sequence[Datum], made: Sequence[np.ndarray]) -> TurnsMade:
        """What the turns since this one came to, for the state before them and what the node made."""
        number = self.carried - len(self.grown) + len(self.counted)
        after, on = int(made[number]), bool(made[number + 1])
        return self._joined(after, on, state, made, [a[:after - turn] for a in made[number + 2:]])

    def _joined(self, after: int, on: bool, state: Sequence[Datum], steady: Iterable[np.ndarray],
                rows: Sequence[np.ndarray]) -> TurnsMade:
        """steady: what keeps its shape, in order. rows: of each slice and of what was appended."""
        kept = iter(steady)
        appended, places = len(rows), {}
        collected = {i: grown for i, grown in self.grown.items() if not grown.read}
        for i, grown in reversed(collected.items()):
            places[i] = rows[appended - len(grown.added):appended]
            appended -= len(grown.added)
        new = [collected[i].joined(x, places[i]) if i in collected else next(kept) for i, x in enumerate(state)]
        return after, on, new, [list(a) for a in rows[:appended]]


@dataclass(frozen=True)
class RowOfTurns(ManyTurns):
    """The same where the body reads a tensor that it appends to, so that every turn has shapes of its own.

    node: (turns, carried values that keep their shapes..., lengths of sequences, the number of the first turn, tensors
    that grow and are read...) -> after each turn: carried values that keep their shapes and do not stay; after the last
    one: the tensors that grow; then of each what the Loop gives, what was appended to others, and whether it goes on.
    Turns after its end are made, too. growing: the places of what grows and is read. moving: the places of what keeps
    its shape and does not stay.
    """

    growing: tuple[int, ...]
    moving: tuple[int, ...]
    guessed: ClassVar[bool] = True

    def given(self, most: int, turn: int, state: Sequence[Datum]) -> list[Datum]:
        most = min(most, MOST_IN_A_ROW if turn else FIRST)
        return [np.array(most, np.int64), *self._before(turn, state), *(state[i] for i in self.growing)]

    def found(self, turn: int, state: Sequence[Datum], made: Sequence[np.ndarray]) -> TurnsMade:
        *given, on = made
        last = int(on.argmin())                                 # the first that is false
        going = bool(on[last])
        turns = len(on) if going else last + 1
        new = {i: np.array(a[turns - 1]) for i, a in zip(self.moving, given, strict=False)}
        rest = given[len(self.moving):]
        for i, whole in zip(self.growing, rest, strict=False):
            new[i] = whole if turns == len(on) else self._cut(i, state[i], whole, turns, len(on))
        steady = [new.get(i, x) for i, x in enumerate(state) if i in self.growing or i not in self.grown]
        return self._joined(turn + turns, going, state, steady, [a[:turns] for a in rest[len(self.growing):]])

    def _cut(self, i: int, start: np.ndarray, whole: np.ndarray, turns: int, made: int) -> np.ndarray:
        """What carried value i was after some of the turns that were made."""
        axis = self.grown[i].axis
        assert axis is not None
        sizes = [slice(None)] * whole.ndim
        before = start.shape[axis]
        sizes[axis] = slice(before + (whole.shape[axis] - before) // made * turns)
        return whole[tuple(sizes)]


def many_turns(node: NodeProto) -> ManyTurns | None:
    """A Loop's turns as one node; None where the file's Loop is not as ONNX has it, or no turn may be made for
    nothing."""
    graph = plain_condition(next(a.g for a in node.attribute if a.name == "body"))
    carried = len(node.input) - 2
    if len(graph.input) != carried + 2 or len(graph.output) < carried + 1 or graph.sparse_initializer:
        return None
    prefix = f"{next(filter(None, node.output), '')}/turns/"
    reads = Counter(read_names(graph))
    found = {i: _grown(graph, v.name, graph.output[1 + i].name, reads) for i, v in enumerate(graph.input[2:])}
    grown = {i: g for i, g in found.items() if g is not None}
    kept = [i for i in range(carried) if i not in grown]
    counted = tuple(i for i, g in grown.items() if g.before)
    growing = tuple(i for i, g in grown.items() if g.read)
    if growing and any(n.op_type in ALONE and plain_domain(n.domain) == "" for n in every_node(graph.node)):
        return None
    body, number, on = GraphProto(), graph.input[0].name, prefix + "on"
    lengths = {i: f"{prefix}length {i}" for i in counted}
    gone = {k for g in grown.values() if not g.read for k in (*g.kept, *(at for at, _ in g.before))}
    body.initializer.extend(graph.initializer)
    first, last = [], []
    following = [graph.output[1 + i].name for i in kept]
    for i, name in lengths.items():
        for at, before in grown[i].before:
            first.append(helper.make_node("Add", [name, _constant(body, prefix, before)], [graph.node[at].output[0]]))
        following.append(f"{name} after")
        last.append(helper.make_node("Add", [name, _constant(body, prefix, len(grown[i].added))], [following[-1]]))
    following.append(f"{prefix}next")
    last.append(helper.make_node("Add", [number, _constant(body, prefix, 1)], [following[-1]]))
    last.append(helper.make_node("Squeeze", [graph.output[0].name], [f"{on} after"]))
    body.node.extend([*first, *(n for k, n in enumerate(graph.node) if k not in gone), *last])
    body.name = graph.name
    formals = [*(graph.input[2 + i].name for i in kept), *lengths.values(), number]
    slices = [*(v.name for v in graph.output[1 + carried:]),
              *(name for g in grown.values() if not g.read for name in g.added)]
    if not growing:
        formals, following = [*formals, on], [*following, f"{on} after"]
        _ports(body, [prefix + "turn", graph.input[1].name, *formals], [graph.output[0].name, *following, *slices])
        names, outputs = _outside(prefix, len(formals), len(following) + len(slices))
        made = helper.make_node(SOME_TURNS, [names[0], "", *names[1:]], outputs, label(node), domain=DOMAIN, body=body)
        return ManyTurns(made, names, carried, grown, counted)
    body.initializer.append(numpy_helper.from_array(np.array(True), graph.input[1].name))
    formals += [graph.input[2 + i].name for i in growing]
    _ports(body, formals, [*following, *(graph.output[1 + i].name for i in growing), *slices, f"{on} after"])
    names, outputs = _outside(prefix, len(formals), len(body.output))
    fixed = steady(graph, carried)
    for k in (*(k for k, i in enumerate(kept) if i in fixed), *range(len(kept), len(following))):
        outputs[k] = ""                                         # who reads the rows knows it
    made = helper.make_node(ROW_OF_TURNS, names, outputs, label(node), domain=DOMAIN, body=body, growing=len(growing))
    return RowOfTurns(made, names, carried, grown, counted, growing, tuple(i for i in kept if i not in fixed))


def _ports(body: GraphProto, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Name what a body takes and gives."""
    for name in inputs:
        body.input.add(name=name)
    for name in outputs:
        body.output.add(name=name)


def _outside(prefix: str, given: int, made: int) -> tuple[tuple[str, ...], list[str]]:
    """The names of a node's inputs, the number of turns first, and of its outputs."""
    return (prefix + "most", *(f"{prefix}given {i}" for i in range(given))), [f"{prefix}made {i}" for i in range(made)]


def _grown(graph: GraphProto, start: str, end: str, reads: Counter[str]) -> Grown | None:
    """How the body makes the carried value `end` of `start`, where all that it does is to append; sequences may be
    asked for their length, and tensors be read."""
    makers = {name: k for k, n in enumerate(graph.node) for name in n.output}
    lengths = [(k, n.input[0]) for k, n in enumerate(graph.node)
               if n.op_type == "SequenceLength" and plain_domain(n.domain) == ""]
    added: list[str] = []
    kept: list[int] = []
    sizes: dict[str, int] = {}
    axis: int | None = None
    read = False
    name = end
    while True:
        sizes[name] = len(added)
        read = read or reads[name] != 1 + sum(asked == name for _, asked in lengths)
        if name == start:
            break
        node = graph.node[makers[name]] if name in makers else None
        if node is None or plain_domain(node.domain) != "" or axis is not None:
            return None
        kept.append(makers[name])
        if node.op_type == "SequenceInsert" and len(node.input) == 2:
            added.append(node.input[1])
        elif node.op_type == "Concat" and len(node.input) > 1 and not added and node.input[0] == start:
            axis = next(a.i for a in node.attribute if a.name == "axis")
            added = [*reversed(node.input[1:])]
        elif node.op_type != "Identity":
            return None
        name = node.input[0]
    if not added or (axis is None and read):
        return None
    before = tuple((k, len(added) - sizes[asked]) for k, asked in lengths if asked in sizes)
    return Grown(tuple(reversed(added)), tuple(kept), axis, before, read) if axis is None or not before else None


def _constant(graph: GraphProto, prefix: str, number: int) -> str:
    """The name of a whole number in the graph."""
    name = f"{prefix}{number}"
    if all(t.name != name for t in graph.initializer):
        graph.initializer.append(numpy_helper.from_array(np.array(number, np.int64), name))
    return name
