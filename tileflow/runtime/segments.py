"""Where the values of a plan lie in virtual memory: a segment for each constant, arena (one for each run of a part that
can be in flight), stash, statistic that waits, and buffer of the session's."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from ..executable.image import Kind, Segment, virtual
from ..executable.memory import layout
from ..graph import Graph, Value
from ..kernels.machine.call import Const
from ..kernels.machine.leaf import Leaf
from ..lower.plan import Plan
from ..lower.row import Place
from ..memory.alignment import aligned, padded_nbytes
from ..state import Session, StateDeclaration, declared
from .binding import Moving, Resolve


def declarations_of(plan: Plan) -> tuple[StateDeclaration, ...]:
    """What the session must have of a plan's states: all of each, or this process's slice."""
    parts, rank = plan.shards.states, plan.shards.rank
    return tuple(replace(s, shape=(parts[s.name][rank].stop - parts[s.name][rank].start,)) if s.name in parts else s
                 for s in declared(plan.program.states.values()))


class Segments:
    """The segments behind a plan's places, on a session that has its states."""

    def __init__(self, plan: Plan, session: Session, slots: dict[str, int]) -> None:
        """`slots`: by name, how many micro-batches of an input or output there is room for in a call."""
        program = plan.program
        self.plan, self.slots = plan, slots
        self.all = [Segment("words")]
        self.constants: list[np.ndarray] = []
        self.leaves: dict[str, Leaf] = {}
        """By what the cache calls their code, those that have a segment."""
        self._kernels: dict[int, int] = {}
        held = _taken_over(graph for part in program.graphs for graph in part.levels())
        self._constants = {v: self._constant(memory) for v, memory in held.items()}
        self._tables: dict[Const, int] = {}
        self._pending = {s.name: self._add("pending", padded_nbytes(s.input.type)) for s in program.statistics()}
        memories = {memory: self._add("arena", nbytes) for memory, nbytes in plan.memory.items()}
        self._arenas = {name: [memories[memory] for memory in own] for name, own in plan.memories.items()}
        exchanged = {*plan.exchanged}
        self._stashes = {v: self._add("common" if v in exchanged else "stash", n * padded_nbytes(v.type))
                         for v, n in plan.stashes.items()}
        self._slots = {s.name: padded_nbytes(s.input.type) for s in program.partial_sums()}
        kind: Kind = "stash" if plan.share is None else "common"
        self._partial = {name: self._add(kind, program.batching.replicas * nbytes) for name,
                         nbytes in self._slots.items()}
        self._bytes = {v.name: v.type.nbytes for v in [*program.inputs, *program.outputs]}
        self.scalars = {s.name: s.role for s in program.states.values() if s.kind == "scalar"}
        self._updates = program.batching.device_iterations
        self._hyper = self._add("hyper", 8 * self._updates * max(1, len(self.scalars)))
        self.states = tuple(sorted(declarations_of(plan), key=lambda s: session.place(s.name)))
        self.layout = layout(session, (s.name for s in self.states))
        buffers = [self._add("state") for _ in {buffer for buffer, _ in self.layout}]
        where = zip(self.states, self.layout, strict=True)
        shards = plan.shards
        before = {s.name: shards.states[s.name][shards.rank].start * s.numpy.itemsize
                  for s in self.states if s.name in shards.states}
        self._states = {s.name: buffers[buffer] + offset - before.get(s.name, 0) for s, (buffer, offset) in where}
        """Where the whole of each would begin."""
        self.common_sums = {s.name: self._add("common", padded_nbytes(s.input.type))
                            for s in program.accumulators() if s.name in plan.common_sums}
        """By the names of accumulators, the addresses of those that all processes have; the session's own memory for
        these stays untouched."""
        self._states |= self.common_sums

    def _add(self, kind: Kind, nbytes: int = 0, name: str = "") -> int:
        """A new segment; returns its first address."""
        self.all.append(Segment(kind, nbytes, name))
        return virtual(len(self.all))

    def _constant(self, memory: np.ndarray) -> int:
        self.constants.append(memory)
        return self._add("constant", memory.nbytes)

    def kernel(self, leaf: Leaf) -> int:
        """The address of a leaf's code."""
        if id(leaf) not in self._kernels:
            name = leaf.stored_name
            self.leaves[name] = leaf
            self._kernels[id(leaf)] = self._add("kernel", name=name)
        return self._kernels[id(leaf)]

    def resolve(self, ahead: int) -> Resolve:
        """What gives a place its address, for a run of the micro-batch that is `ahead` of the counter."""
        found: dict[str, Callable[[Place], int | Moving]] = {
            "constant": lambda p: self._constants[p.region[1]] + p.offset,
            "table": lambda p: self._table(p.region[1]) + p.offset,
            "pending": lambda p: self._pending[self._whose(p, ahead)] + p.offset,
            "state": lambda p: self._state(p, ahead),
            "io": lambda p: Moving("micro-batch", self._bytes[p.region[1]], self.slots[p.region[1]], p.offset,
                                   p.region[1]),
            "stash": self._stash,
            "partial": self._slot,
            "arena": lambda p: self.word(p, ahead)}

        def resolved(place: Place) -> int | Moving:
            at = found[place.region[0]](place)
            for move in place.moves:
                fixed = at if isinstance(at, int) else 0
                at = Moving(move.count, move.stride, move.ring, fixed, "", move.ahead,
                            None if isinstance(at, int) else at)
            return at
        return resolved

    def _stash(self, place: Place) -> int | Moving:
        value, base = place.region[1], self._stashes[place.region[1]] + place.offset
        slots = self.plan.stashes[value]
        return base if slots == 1 else Moving("micro-batch", padded_nbytes(value.type), slots, base)

    def _slot(self, place: Place) -> Moving:
        """A sum of the micro-batch's replica."""
        name = place.region[1]
        return Moving("micro-batch", self._slots[name], self.plan.program.batching.replicas,
                      self._partial[name] + place.offset)

    def _table(self, table: Const) -> int:
        """Constants of calls, one copy for all that want the same."""
        if table not in self._tables:
            self._tables[table] = self._constant(_filled(table.array()))
        return self._tables[table]

    def word(self, place: Place, ahead: int) -> int:
        """The address of a place in the arena of that run, or in the only one."""
        of = self._arenas[place.region[1]]
        return of[ahead % len(of)] + place.offset

    def _whose(self, place: Place, ahead: int) -> str:
        """What the state of a place is called that the run's replica has."""
        name: str = place.region[1]
        own = self.plan.program.own
        return own[name][ahead % len(own[name])] if name in own else name

    def _state(self, place: Place, ahead: int) -> int | Moving:
        name = self._whose(place, ahead)
        if name in self.scalars:
            first = self._hyper + 8 * list(self.scalars).index(name)
            return Moving("update", 8 * max(1, len(self.scalars)), self._updates, first)
        return self._states[name] + place.offset

    def settled(self, part: str) -> Callable[[Place], bool]:
        """Of a place, as a part sees it: no other tensor ever lies there or in the padding after it, which so is always
        zero. True of states, and of what other parts leave."""
        def is_settled(place: Place) -> bool:
            kind, name = place.region
            return kind in ("state", "pending") or (kind == "arena" and name != part
                                                    and place.offset < self.plan.lowered[name].kept_bytes)
        return is_settled


def _taken_over(graphs: Iterable[Graph]) -> dict[Value, np.ndarray]:
    """Memory that holds the constants of graphs; the graphs' own arrays are views of it from now on, so that none is
    there twice."""
    memories: dict[Value, np.ndarray] = {}
    for graph in graphs:
        for value, array in graph.constants.items():
            memory = memories[value] if value in memories else memories.setdefault(value, _filled(array))
            own = memory[:array.nbytes].view(array.dtype).reshape(array.shape)
            own.flags.writeable = False
            graph.constants[value] = own
    return memories


def _filled(array: np.ndarray) -> np.ndarray:
    memory = aligned(array.nbytes)
    memory[:array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memory
