"""From a graph to rows: places for all values, leaf calls over them, those of branches and bodies where they belong."""
from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..graph import Graph, Node, State, Value
from ..kernels.dtypes import ELEMENTS
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Address, Call, Const, In, Micro, Out, Position, Seed, Work
from ..kernels.machine.leaf import Numbers
from ..memory.alignment import padded_nbytes
from ..memory.arena import Arena, Interval
from .memory import MOST_ROOM, side_by_side
from .nested import NestedRows
from .row import ArrayOperand, HostRow, Item, Lowered, Place, Row, copy_row

PlaceOf = Callable[[Value], Place | None]


def lower(graph: Graph, arena: str, outside: PlaceOf, *, keep: list[Value], direct: dict[Value, Place], workers: int,
          cpu: Cpu, together: bool = False, stash: dict[Value, Place] | None = None) -> Lowered:
    """Turn a graph into rows.

    Args:
        arena: name of the arena for values that live only here.
        outside: where values lie that this graph does not make (inputs, constants, states).
        keep: values to hold at the start of the arena, in this order, until the end.
        direct: values to write straight to a place outside the arena.
        workers: rows of per-worker scratch.
        cpu: the features that kernels may use.
        stash: values to write to a place outside the arena from which other parts read them, whatever else is written of them.
        together: neighbours that run the same leaves share no memory that one of them writes, so that they may be one row.
    """
    return _Lowering(graph, arena, outside, keep, direct, workers, cpu, together, stash or {}).run()


class _Lowering:
    def __init__(self, graph: Graph, arena: str, outside: PlaceOf, keep: list[Value], direct: dict[Value, Place], workers: int,
                 cpu: Cpu, together: bool, stash: dict[Value, Place]) -> None:
        self.graph, self.arena_name, self.outside, self.workers, self.cpu = graph, arena, outside, workers, cpu
        self.keep, self.direct, self.together, self.stash = keep, direct, together, stash
        self.root: dict[Value, Value] = {}
        self.rows: list[tuple[Node, list[Call]]] = []
        self.nested: dict[int, NestedRows] = {}
        """Of nodes with regions, by their place among the rows."""

    def run(self) -> Lowered:
        for node in self.graph.nodes:
            if node.op.alias is not None and node.inputs[node.op.alias] is not None and len(node.outputs) == 1:
                viewed = node.inputs[node.op.alias]
                assert viewed is not None
                self.root[node.outputs[0]] = self.root.get(viewed, viewed)
            elif node.op.regions:
                name = f"{self.arena_name}/{len(self.rows)}"
                self.nested[len(self.rows)] = NestedRows(node, name, self._region, self.cpu)
                self.rows.append((node, []))
            else:
                calls = node.op.kernel([None if v is None else v.type for v in node.inputs], [v.type for v in node.outputs], self.cpu)
                self.rows.append((node, calls))
        pinned, copies = self._destinations()
        places, scratch, size = self._allocate(pinned)
        rows: list[Item] = []
        for i, (node, calls) in enumerate(self.rows):
            rows += [self._row(i, call, places, scratch) for call in calls if call.n > 0]
            rows += self._host(node, places)
            if i in self.nested:
                operands = [None if v is None else places[self._root(v)] for v in node.inputs]
                own = {name: at for (row, name), at in scratch.items() if row == i}
                rows += self.nested[i].items(operands, [places[self._root(v)] for v in node.outputs], own)
        rows += [copy_row(*move) for move in _in_order([(places[self._root(v)], to, v) for v, to in copies if v.type.nbytes])]
        for value, root in self.root.items():
            places[value] = places[root] if root in places else self._outside(root)
        return Lowered(rows, self.arena_name, size, places, self.kept_bytes)

    def _region(self, graph: Graph, arena: str, outside: PlaceOf, direct: dict[Value, Place]) -> Lowered:
        """A branch or a body: rows with an arena of their own, which lies in this one's."""
        return lower(graph, arena, outside, keep=[], direct=direct, workers=self.workers, cpu=self.cpu)

    def _root(self, value: Value) -> Value:
        return self.root.get(value, value)

    def _outside(self, value: Value) -> Place:
        place = self.outside(value)
        assert place is not None, f"{self.graph.name}: nothing provides {value!r}"
        return place

    def _destinations(self) -> tuple[dict[Value, Place], list[tuple[Value, Place]]]:
        """Which roots are computed in place at their destination, and which results are copied there at the end."""
        made = {v for node, _ in self.rows for v in node.outputs}
        pinned: dict[Value, Place] = {}
        copies: list[tuple[Value, Place]] = []
        offsets, self.kept_bytes = side_by_side(self.keep)
        for value, offset in offsets.items():
            self._pin(value, Place(("arena", self.arena_name), offset), made, pinned, copies)
        for value, place in (*self.stash.items(), *self.direct.items()):
            self._pin(value, place, made, pinned, copies)
        written = [s for s in self.graph.states if s.output is not None and s.output is not s.input]
        if written:
            self._write_states(written, pinned, copies)
        return pinned, copies

    def _pin(self, value: Value, place: Place, made: set[Value], pinned: dict[Value, Place], copies: list[tuple[Value, Place]]) -> None:
        root = self._root(value)
        if root in made and root not in pinned:
            pinned[root] = place
        elif pinned.get(root) != place:
            copies.append((value, place))

    def _write_states(self, states: Sequence[State], pinned: dict[Value, Place], copies: list[tuple[Value, Place]]) -> None:
        """A new state goes straight to the state's memory when nobody reads the old one after (or, elementwise, while) it is made."""
        last = {self._root(v) for v in [*self.graph.results(), *self.keep, *self.stash, *self.direct]}
        maker = {v: i for i, (node, _) in enumerate(self.rows) for v in node.outputs}
        reader = {self._root(v): i for i, (node, _) in enumerate(self.rows) for v in node.operands}          # the last one
        for state in states:
            assert state.output is not None
            place, root = self._outside(state.input), self._root(state.output)
            if root in maker and root not in pinned and state.input not in last:
                node, made, read = self.rows[maker[root]][0], maker[root], reader.get(state.input, -1)
                if read < made or (read == made and _is_elementwise(node)):
                    pinned[root] = place
                    continue
            copies.append((state.output, place))

    def _allocate(self, pinned: dict[Value, Place]) -> tuple[dict[Value, Place], dict[tuple[int, str], Place], int]:
        """Places for all roots and for the nodes' scratch."""
        last: dict[Value, int] = {}
        first: dict[Value, int] = {}
        for i, (node, _) in enumerate(self.rows):
            for v in node.outputs:
                first[v] = last[v] = i
            for v in node.operands:
                last[self._root(v)] = i
        end = len(self.rows)
        for v in [*self.graph.results(), *self.keep, *self.stash, *self.direct]:
            last[self._root(v)] = end
        dying = self._dying(first, last)
        self._pin_operands(pinned, dying)
        places = dict(pinned)
        home = self._in_place(pinned, dying)
        ends: dict[Value, int] = {}
        for v in first:
            ends[home.get(v, v)] = last[v]                 # in the order of making: the last one to live there says how long
        steps = self._steps()
        intervals = [Interval(v, padded_nbytes(v.type), steps[first[v]], steps[end])
                     for v, end in ends.items() if v not in pinned]
        for i, (_, calls) in enumerate(self.rows):
            for name, size in (self.nested[i].scratch if i in self.nested else self._scratch(calls)).items():
                intervals.append(Interval((i, name), -(-size // MOST_ROOM) * MOST_ROOM, steps[i], steps[i]))
        arena = Arena(self.kept_bytes)
        offsets = arena.place(intervals)
        scratch: dict[tuple[int, str], Place] = {}
        for key, offset in offsets.items():
            place = Place(("arena", self.arena_name), offset)
            if isinstance(key, Value):
                places[key] = place
            else:
                scratch[key] = place
        places.update({v: places[at] for v, at in home.items()})
        for node, _ in self.rows:
            for v in node.operands:
                root = self._root(v)
                if root not in places:
                    places[root] = self._outside(root)
        for v in [*self.graph.results(), *self.keep, *self.stash, *self.direct]:
            if self._root(v) not in places:
                places[self._root(v)] = self._outside(self._root(v))
        return places, scratch, arena.size

    def _steps(self) -> list[int]:
        """When each row runs, and at the end of the list what comes after all: neighbours that may be one row at the same time."""
        steps, leaves = [0], [tuple(call.leaf for call in calls) for _, calls in self.rows]
        for before, after in itertools.pairwise(leaves):
            steps.append(steps[-1] + (not self.together or before != after))
        return [*steps, steps[-1] + 1]

    def _dying(self, first: dict[Value, int], last: dict[Value, int]) -> list[list[Value]]:
        """Of each elementwise row: operands of its result's shape that were made here and that nobody reads afterwards, nor another row meanwhile."""
        steps = self._steps()
        at_once: Counter[tuple[Value, int]] = Counter((u, steps[i]) for i, (node, _) in enumerate(self.rows)
                                                      for u in {self._root(v) for v in node.operands})
        found: list[list[Value]] = []
        for i, (node, _) in enumerate(self.rows):
            read = dict.fromkeys(self._root(v) for v in node.operands if _is_elementwise(node) and v.shape == node.outputs[0].shape)
            found.append([u for u in read if u in first and last[u] == i and at_once[u, steps[i]] == 1])
        return found

    def _pin_operands(self, pinned: dict[Value, Place], dying: list[list[Value]]) -> None:
        """An operand that an elementwise row turns into a stash's value lies in the stash from the start: nobody else looks at its micro-batch's
        slot before the part has run, and memory that waits for long is fetched once, by the row that takes longer."""
        often = Counter(pinned.values())
        for (node, _), operands in zip(reversed(self.rows), reversed(dying), strict=True):
            place = pinned.get(node.outputs[0]) if operands and len(node.outputs) == 1 else None
            if place is not None and place.region[0] == "stash" and often[place] == 1:
                taken = next((u for u in operands if u not in pinned and u.type.itemsize == node.outputs[0].type.itemsize), None)
                if taken is not None:
                    pinned[taken] = place

    def _in_place(self, pinned: dict[Value, Place], dying: list[list[Value]]) -> dict[Value, Value]:
        """Results of elementwise rows to the root whose memory they take over: an operand of their shape that nobody reads afterwards.

        Memory that was just read needs no second fetch to be written.
        """
        home: dict[Value, Value] = {}
        for (node, _), operands in zip(self.rows, dying, strict=True):
            free = [u for u in operands if u not in pinned]
            for v in node.outputs if free else ():
                taken = next((u for u in free if u.type.itemsize == v.type.itemsize), None)
                if taken is not None and v not in pinned:
                    free.remove(taken)
                    home[v] = home.get(taken, taken)
        return home

    def _scratch(self, calls: list[Call]) -> dict[str, int]:
        """Bytes of each named scratch buffer of a node."""
        sizes: dict[str, int] = {}
        for call in calls:
            for p, arg in _pairs(call):
                if isinstance(arg, Work):
                    rows = self.workers if p.cut == "w" else 1
                    sizes[arg.name] = max(sizes.get(arg.name, 0), (arg.offset + rows * math.prod(arg.shape)) * ELEMENTS[arg.dtype].bytes)
        return sizes

    def _host(self, node: Node, places: dict[Value, Place]) -> list[Item]:
        """What Python does for a node."""
        inputs, outputs = [None if v is None else v.type for v in node.inputs], [v.type for v in node.outputs]
        call = node.op.host(inputs, outputs)
        if call is None:
            return []
        args, types = [], []
        for arg in call.args:
            value = node.inputs[arg.index] if isinstance(arg, In) else node.outputs[arg.index]
            assert value is not None
            args.append(ArrayOperand(places[self._root(value)], value.shape, value.type.itemsize, isinstance(arg, Out)))
            types.append(value.type)
        return [HostRow(call, args, types, node)]

    def _row(self, index: int, call: Call, places: dict[Value, Place], scratch: dict[tuple[int, str], Place]) -> Row:
        node = self.rows[index][0]
        args: list[Any] = []
        for p, arg in _pairs(call):
            if isinstance(arg, In):
                value = node.inputs[arg.index]
                assert value is not None
                args.append(ArrayOperand(places[self._root(value)], arg.shape, value.type.itemsize, False))
            elif isinstance(arg, Out):
                value = node.outputs[arg.index]
                args.append(ArrayOperand(places[self._root(value)], arg.shape, value.type.itemsize))
            elif isinstance(arg, Work):
                shape = (self.workers, *arg.shape) if p.cut == "w" else arg.shape
                size = ELEMENTS[arg.dtype].bytes
                args.append(ArrayOperand(scratch[index, arg.name].at(arg.offset * size), shape, size))
            elif isinstance(arg, Const):
                args.append(ArrayOperand(Place(("table", arg)), arg.shape, ELEMENTS[arg.dtype].bytes, False))
            else:
                assert isinstance(arg, (Micro, Seed, Position, Numbers, Address, int, float, bool, np.number)), arg
                args.append(arg)
        return Row(call.leaf, args, call.n, call.grain, call.cost, call.flat, node)


def _is_elementwise(node: Node) -> bool:
    return node.op.expression([None if v is None else v.type for v in node.inputs], [v.type for v in node.outputs]) is not None


def _in_order(moves: list[tuple[Place, Place, Value]]) -> list[tuple[Place, Place, Value]]:
    """Moves (from, to, value) in an order in which none overwrites what a later one reads; else as they are."""
    readers: dict[Place, int] = {}
    writers: dict[Place, list[int]] = {}
    for i, (start, to, _) in enumerate(moves):
        if start != to:
            readers[start] = readers.get(start, 0) + 1
        writers.setdefault(to, []).append(i)
    free = [i for to, waiting in writers.items() if not readers.get(to) for i in waiting]
    heapq.heapify(free)
    order = []
    while free:
        start, to, _ = move = moves[heapq.heappop(free)]
        order.append(move)
        if start != to:
            readers[start] -= 1
            if not readers[start]:
                for i in writers.get(start, ()):
                    heapq.heappush(free, i)
    assert len(order) == len(moves), "states exchange their values in a circle"
    return order


def _pairs(call: Call) -> list[tuple[Any, Any]]:
    parameters = call.leaf.takes(call.args)
    assert len(parameters) == len(call.args), f"{call.leaf.name}({call.leaf.signature}) got {len(call.args)} arguments"
    return list(zip(parameters, call.args, strict=True))
