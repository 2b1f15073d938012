"""A Program in the order it runs, and the memory its values need: one storage per tensor, views and states resolved."""
from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Literal

from ...graph import Branches, Graph, Node, State, Turns, Value
from ...graph.work import Map, Work
from ...program import schedule as order
from ...program.program import Program
from ..hardware.chip import ITEMSIZE, device_dtype
from ..plans.mapping import Mapping

Kind = Literal["weights", "optimizer", "buffers", "constants", "activations"]
KINDS: dict[str, Kind] = {"parameter": "weights", "optimizer": "optimizer", "accumulator": "optimizer", "buffer": "buffers", "scalar": "buffers"}
"""State kinds to categories of memory; gradient accumulators count as optimizer state."""

ALWAYS = -1


@dataclass(eq=False)
class Storage:
    """The memory of one tensor. `birth` and `death` are the first and last step it is needed in; birth ALWAYS: for ever."""

    name: str
    layer: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    birth: int = ALWAYS
    death: int = ALWAYS
    mapping: Mapping | None = None
    state: State | None = None
    off_chip: bool = False
    """Kept in streaming memory, and on the tiles during `stays` only."""
    share: int = 0
    """Of a weight of which each replica keeps a share: its elements. The whole is there during `stays` only."""
    stays: tuple[tuple[int, int], ...] = ()
    """First and last step of each stay on the tiles."""
    loads: tuple[int, ...] = ()
    """Steps before which it comes from streaming memory."""
    stores: tuple[int, ...] = ()
    """Steps after which it goes there."""
    copies: int = 1
    """Micro-batches of it that are there at once."""
    result: bool = False
    """Needed after its part of the program has ended, so nothing may take its memory over."""
    number: int = field(default_factory=itertools.count().__next__, repr=False)
    """Of the tensor: copies with another life time, one for each IPU that holds it, have the same."""

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @property
    def always_live(self) -> bool:
        return self.birth == ALWAYS

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """First and last steps in which it is on the tiles, where it is not always there."""
        return self.stays if self.off_chip or self.share else ((self.birth, self.death),)


@dataclass(frozen=True)
class ScheduledNode:
    """One node in the schedule."""

    part: str
    node: Node


@dataclass
class MemorySchedule:
    """All nodes in order, and the storage of every value."""

    entries: list[ScheduledNode]
    repeats: dict[str, int]
    """How often each part runs per weight update; per micro-batch in inference."""
    often: list[str]
    """The parts that run for every micro-batch."""
    storages: list[Storage] = field(default_factory=list)
    of: dict[Value, Storage] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    """The layer of each parameter."""
    states: list[State] = field(default_factory=list)
    """The states of all graphs; one name may occur in several."""
    inputs: list[Storage] = field(default_factory=list)
    """What the host sends per micro-batch."""
    outputs: list[Storage] = field(default_factory=list)
    """What goes to the host per micro-batch."""
    streamed: dict[Storage, str] = field(default_factory=dict)
    """The part that each of these enters or leaves."""

    def unplaced(self) -> MemorySchedule:
        """The same with tensors of its own, to be given places."""
        held = (*self.storages, *self.of.values(), *self.inputs, *self.outputs, *self.streamed)
        own = {storage: copy(storage) for storage in dict.fromkeys(held)}
        return replace(self, storages=[own[s] for s in self.storages], of={v: own[s] for v, s in self.of.items()},
                       inputs=[own[s] for s in self.inputs], outputs=[own[s] for s in self.outputs],
                       streamed={own[s]: part for s, part in self.streamed.items()})

    def layer(self, node: Node) -> str:
        """The layer (or source node) that a node belongs to; a weight's update belongs to the layer of the weight."""
        return self.owners.get(layer_of(node), layer_of(node))


def repeats_of(program: Program) -> dict[str, int]:
    """How often each part runs in what figures are given for; a part that has run before it, never."""
    return {**dict.fromkeys(program.parts, 0), **order.times(order.period(program.schedule))}


def entries_of(program: Program) -> list[ScheduledNode]:
    """All nodes in order; in place of those with regions, what is in the regions."""
    return [ScheduledNode(part, node) for part, graph in program.running
            for node in graph.walk() if not node.op.regions]


def schedule(program: Program, works: Sequence[Work], precision: str) -> MemorySchedule:
    """Storages and their life times; `works` are those of `entries_of(program)`."""
    made = MemorySchedule(entries_of(program), repeats_of(program), order.per("micro-batch", program.schedule))
    _Builder(program, made, works, precision).run()
    return made


class _Builder:
    """Walks the program once."""

    def __init__(self, program: Program, made: MemorySchedule, works: Sequence[Work], precision: str) -> None:
        self.program, self.made, self.works, self.precision = program, made, works, precision
        self.states: dict[str, Storage] = {}
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}
        for i, entry in enumerate(made.entries):
            self.first.setdefault(entry.part, i)
            self.last[entry.part] = i
        self.fed, self.given = set(program.inputs), set(program.outputs)

    def run(self) -> None:
        layers = self._layers()
        self.made.owners = {s.name: layers[s.input] for _, graph in reversed(self.program.running) for s in graph.states if s.input in layers}
        at = 0
        for part, graph in self.program.running:
            for state in graph.states:
                self._state(state)
                self.made.states.append(state)
            for value in graph.constants:
                if value not in self.made.of:
                    self._new(value, "constants", value.name, layers.get(value, value.name))
            for value in graph.inputs:
                self._input(value, part)
            at = self._nodes(graph, at)
            self._results(graph, part)
        self._reads()
        self._merge_states()

    def _layers(self) -> dict[Value, str]:
        """The layer that first reads each constant."""
        found: dict[Value, str] = {}
        for entry in self.made.entries:
            for v in entry.node.operands:
                if v.producer is None:
                    found.setdefault(v, layer_of(entry.node))
        return found

    def _new(self, value: Value, kind: Kind, name: str, layer: str, keep: bool = False) -> Storage:
        dtype = device_dtype(value.dtype, "32.32" if keep else self.precision)
        storage = Storage(name, layer, kind, value.shape, dtype)
        self.made.storages.append(storage)
        self.made.of[value] = storage
        return storage

    def _state(self, state: State) -> None:
        """States are known by name in all graphs. Optimizer moments keep 32 bits in every precision. An accumulator that begins as a state is
        that state: tiles have no calls that end early."""
        name = state.start or state.name
        if name not in self.states:
            keep = state.kind == "optimizer" or bool(state.start)
            storage = self._new(state.input, KINDS[state.kind], name, self._layer_of(state), keep)
            storage.state = state
            self.states[name] = storage
        self.made.of[state.input] = self.states[name]

    def _layer_of(self, state: State) -> str:
        """The layer that reads a parameter or buffer; a moment or an accumulator is its parameter's layer's."""
        owner = state.owner or state.name
        return self.made.owners.get(owner, owner)

    def _input(self, value: Value, part: str) -> None:
        source = self.program.links.get(value)
        if source is not None:
            self.made.of[value] = self.made.of[source]
            return
        if value in self.made.of:                              # several stages read an input: it is sent to the first
            return
        storage = self._new(value, "activations", value.name, "input")
        storage.birth = storage.death = self.first.get(part, 0)
        if value in self.fed:
            self.made.inputs.append(storage)
            self.made.streamed[storage] = part

    def _nodes(self, graph: Graph, at: int) -> int:
        """The nodes of a graph, the first of which is step `at`; gives the step after them."""
        for node in graph.nodes:
            if node.op.regions:
                at = self._regions(node, at)
            else:
                self._node(node, at)
                at += 1
        return at

    def _regions(self, node: Node, at: int) -> int:
        """What regions are given lies where it lay, but for slices and carried values, which have memory of their own throughout a loop; results of
        branches have theirs from the first branch on, so that both may leave them there."""
        op, first = node.op, at
        for value in node.outputs:
            self._activation(value, node, at)
        for region in op.regions:
            given = [v for v in node.inputs[isinstance(op, Branches):] if v is not None]
            if isinstance(op, Turns):
                given = [v for v in node.inputs[2:] if v is not None]
                own = region.graph.inputs[:1 + op.carried + op.scanned]
                for value in own:
                    self._activation(value, node, at)
                shared = zip(region.graph.inputs[len(own):], given[op.carried + op.scanned:], strict=True)
            else:
                shared = zip(region.graph.inputs, given, strict=True)
            self.made.of.update({inner: self.made.of[outer] for inner, outer in shared})
            for value in region.graph.constants:
                self._new(value, "constants", value.name, self.made.layer(node))
            at = self._nodes(region.graph, at)
            if isinstance(op, Turns):
                self._throughout(region.graph, at - 1)
        for value in (*node.operands, *node.outputs):
            self._until(self.made.of[value], max(first, at - 1))
        return at

    def _throughout(self, graph: Graph, last: int) -> None:
        """What a loop's body is given, and what it gives, lives to the end of the loop."""
        for value in (*graph.inputs, *graph.outputs):
            self._until(self.made.of[value], last)

    def _activation(self, value: Value, node: Node, at: int) -> None:
        storage = self._new(value, "activations", value.name, self.made.layer(node))
        storage.birth = storage.death = at

    def _node(self, node: Node, at: int) -> None:
        alias = node.op.alias
        for i, value in enumerate(node.outputs):
            source = node.inputs[alias] if alias is not None and i == 0 else None
            if source is not None:
                self.made.of[value] = self.made.of[source]
                continue
            self._activation(value, node, at)

    def _results(self, graph: Graph, part: str) -> None:
        """Outputs stay until their part ends; what is read again and again, until the last time."""
        linked = set(self.program.links.values())
        again = self._again(part)
        for value in graph.outputs:
            storage = self.made.of[value]
            if value in self.given and value not in linked:
                self.made.outputs.append(storage)
                self.made.streamed[storage] = part
            if again or value not in linked:
                storage.result = True
                self._until(storage, again or self.last.get(part, 0))
        for state in graph.states:
            if state.output is not None:
                self.made.of[state.output].result = True
                self._until(self.made.of[state.output], self.last.get(part, 0))

    def _again(self, part: str) -> int:
        """The last step of the parts that run more often than this one, and after it; 0 where there are none."""
        inside = {v.step.part: {id(repeat) for repeat in v.inside} for v in order.visits(self.program.schedule)}
        return max((self.last[p] for p, around in inside.items() if around - inside[part] and self.last.get(p, -1) > self.last.get(part, -1)),
                   default=0)

    def _reads(self) -> None:
        """Values live until they are read for the last time. What a micro-batch gives to its fold (gradients above all)
        does not wait for that: tiles add it as soon as it is made, as PopART does, whose AccumulateOp stands among the
        operators of a micro-batch (willow/src/patterns/optimizerdecompose.cpp, gradAccum)."""
        folds = set(order.folded(self.program.schedule))
        for i, entry in enumerate(self.made.entries):
            for v in entry.node.operands:
                if entry.part not in folds or v not in self.program.links:
                    self._until(self.made.of[v], i)

    @staticmethod
    def _until(storage: Storage, step: int) -> None:
        if not storage.always_live:
            storage.death = max(storage.death, step)

    def _merge_states(self) -> None:
        """A state's new value takes the old one's memory where an element-wise step makes it and nobody reads the old one later."""
        made = self.made
        where = {v: i for i, e in enumerate(made.entries) for v in e.node.outputs}
        last_read = {made.of[v]: i for i, e in enumerate(made.entries) for v in e.node.operands}
        taken: dict[Storage, Storage] = {}
        for _, graph in self.program.running:
            for state in graph.states:
                if state.output not in where:
                    continue
                own, fresh, at = self.states[state.start or state.name], made.of[state.output], where[state.output]
                if fresh.state is None and isinstance(self.works[at], Map) and last_read.get(own, ALWAYS) <= at:
                    taken[fresh] = own
        made.of = {v: taken.get(storage, storage) for v, storage in made.of.items()}
        made.storages = [s for s in made.storages if s not in taken]


def layer_of(node: Node) -> str:
    """The layer (or source node) that a node came from."""
    return node.origin.sources[0] if node.origin.sources else node.op.name
