"""Many turns of a Loop as one node, where a Loop itself has no program: what a loop gives in every turn, and what it
only appends to, is collected in arrays that have room for so many turns (`control.SOME_TURNS`), which Python joins."""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

from ..control import SOME_TURNS, plain_condition
from ..domains.marks import DOMAIN
from ..functions import read_names
from ..hosted import Datum
from ..model import label

PLAIN = ("", "ai.onnx")


@dataclass(frozen=True)
class Grown:
    """A carried value that the body only appends to.

    added: the names appended in a turn. kept: the nodes that do so. axis: None for a sequence. before: for each node
    that asks for a sequence's length its place, and how many were appended before it in its turn.
    """

    added: tuple[str, ...]
    kept: tuple[int, ...]
    axis: int | None = None
    before: tuple[tuple[int, int], ...] = ()

    def joined(self, start: Datum, rows: Sequence[np.ndarray]) -> Datum:
        """The value after turns in which these rows were appended, an array [turns, ...] for each name."""
        parts = [row for turn in zip(*rows, strict=True) for row in turn]
        if self.axis is None:
            return [*start, *(np.array(part) for part in parts)]
        return np.concatenate([start, *parts], axis=self.axis)


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

    def given(self, most: int, turn: int, state: Sequence[Datum]) -> list[Datum]:
        """The data of the node's inputs: at most so many turns from this one on, with this carried state."""
        steady = [x for i, x in enumerate(state) if i not in self.grown]
        lengths = [np.array(len(state[i]), np.int64) for i in self.counted]
        return [np.array(most, np.int64), *steady, *lengths, np.array(turn, np.int64), np.array(True)]

    def found(self, turn: int, state: Sequence[Datum], made: Sequence[np.ndarray]) -> TurnsMade:
        """What the turns since this one came to, for the state before them and what the node made."""
        steady = iter(made[:self.carried - len(self.grown)])
        number = self.carried - len(self.grown) + len(self.counted)
        after, on = int(made[number]), bool(made[number + 1])
        rows = [a[:after - turn] for a in made[number + 2:]]
        appended, places = len(rows), {}
        for i, grown in reversed(self.grown.items()):
            places[i] = rows[appended - len(grown.added):appended]
            appended -= len(grown.added)
        new = [self.grown[i].joined(x, places[i]) if i in self.grown else next(steady) for i, x in enumerate(state)]
        return after, on, new, [list(a) for a in rows[:appended]]


def many_turns(node: NodeProto) -> ManyTurns | None:
    """A Loop's turns as one node; None where the file's Loop is not as ONNX has it."""
    graph = plain_condition(next(a.g for a in node.attribute if a.name == "body"))
    carried = len(node.input) - 2
    if len(graph.input) != carried + 2 or len(graph.output) < carried + 1 or graph.sparse_initializer:
        return None
    prefix = f"{next(filter(None, node.output), '')}/turns/"
    reads = Counter(read_names(graph))
    found = {i: _grown(graph, v.name, graph.output[1 + i].name, reads) for i, v in enumerate(graph.input[2:])}
    grown = {i: g for i, g in found.items() if g is not None}
    counted = tuple(i for i, g in grown.items() if g.before)
    body, number, on = GraphProto(), graph.input[0].name, prefix + "on"
    lengths = {i: f"{prefix}length {i}" for i in counted}
    gone = {k for g in grown.values() for k in (*g.kept, *(at for at, _ in g.before))}
    body.initializer.extend(graph.initializer)
    first, last = [], []
    following = [graph.output[1 + i].name for i in range(carried) if i not in grown]
    for i, name in lengths.items():
        for at, before in grown[i].before:
            first.append(helper.make_node("Add", [name, _constant(body, prefix, before)], [graph.node[at].output[0]]))
        following.append(f"{name} after")
        last.append(helper.make_node("Add", [name, _constant(body, prefix, len(grown[i].added))], [following[-1]]))
    following += [f"{prefix}next", f"{on} after"]
    last.append(helper.make_node("Add", [number, _constant(body, prefix, 1)], [following[-2]]))
    last.append(helper.make_node("Squeeze", [graph.output[0].name], [following[-1]]))
    body.node.extend([*first, *(n for k, n in enumerate(graph.node) if k not in gone), *last])
    formals = [*(v.name for i, v in enumerate(graph.input[2:]) if i not in grown), *lengths.values(), number, on]
    body.name = graph.name
    for name in (prefix + "turn", graph.input[1].name, *formals):
        body.input.add(name=name)
    slices = [*(v.name for v in graph.output[1 + carried:]), *(name for g in grown.values() for name in g.added)]
    for name in (graph.output[0].name, *following, *slices):
        body.output.add(name=name)
    names = [prefix + "most", *(f"{prefix}given {i}" for i in range(len(formals)))]
    outputs = [f"{prefix}made {i}" for i in range(len(following) + len(slices))]
    made = helper.make_node(SOME_TURNS, [names[0], "", *names[1:]], outputs, label(node), domain=DOMAIN, body=body)
    return ManyTurns(made, tuple(names), carried, grown, counted)


def _grown(graph: GraphProto, start: str, end: str, reads: Counter[str]) -> Grown | None:
    """How the body makes the carried value `end` of `start`, where all that it does is to append; sequences may be
    asked for their length."""
    makers = {name: k for k, n in enumerate(graph.node) for name in n.output}
    lengths = [(k, n.input[0]) for k, n in enumerate(graph.node) if n.op_type == "SequenceLength" and n.domain in PLAIN]
    added: list[str] = []
    kept: list[int] = []
    sizes: dict[str, int] = {}
    axis: int | None = None
    name = end
    while True:
        sizes[name] = len(added)
        if reads[name] != 1 + sum(read == name for _, read in lengths):
            return None
        if name == start:
            break
        node = graph.node[makers[name]] if name in makers else None
        if node is None or node.domain not in PLAIN or axis is not None:
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
    before = tuple((k, len(added) - sizes[read]) for k, read in lengths if read in sizes)
    return Grown(tuple(reversed(added)), tuple(kept), axis, before) if added and (axis is None or not before) else None


def _constant(graph: GraphProto, prefix: str, number: int) -> str:
    """The name of a whole number in the graph."""
    name = f"{prefix}{number}"
    if all(t.name != name for t in graph.initializer):
        graph.initializer.append(numpy_helper.from_array(np.array(number, np.int64), name))
    return name
