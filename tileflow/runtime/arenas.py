"""Where the values of one engine lie: constants, arenas (one for each run of a part that can be in flight), statistics that wait."""
from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ..graph import Graph, Value
from ..kernels.machine.call import Const
from ..lower.plan import Plan
from ..lower.row import Place
from ..memory.alignment import aligned, padded, room
from ..state import Session
from .binding import Moving, Resolve


class Arenas:
    """The memory behind a plan's places, taken when it is made."""

    def __init__(self, plan: Plan, session: Session, slots: dict[str, int]) -> None:
        """`slots`: by name, how many micro-batches of an input or output there is room for in a call."""
        program = plan.program
        self.plan, self.session, self.slots = plan, session, slots
        self.constants = _taken_over(graph for part in program.graphs for graph in part.levels())
        self.tables: dict[Const, np.ndarray] = {}
        """Constants of calls, one copy for all that want the same."""
        self.pending = {s.name: aligned(room(s.input.type)) for s in program.statistics()}
        memories = {memory: aligned(nbytes) for memory, nbytes in plan.memory.items()}
        self.of = {name: [memories[memory][:padded(plan.lowered[name].arena_bytes)] for memory in own] for name, own in plan.memories.items()}
        """Arenas by the names of parts and checks."""
        self.stashes = {v: aligned(n * room(v.type)) for v, n in plan.stashes.items()}
        """What waits for other parts, a slot for each micro-batch on its way."""
        self._bytes = {v.name: v.type.nbytes for v in [*program.inputs, *program.outputs]}
        self.scalars = {s.name: s.role for s in program.states.values() if s.kind == "scalar"}
        """The optimizer's variable hyper-parameters in their order in memory: state -> what the optimizer calls it."""
        self.hyper = np.zeros((program.batching.device_iterations, max(1, len(self.scalars))), np.float64)
        """[updates of a call, hyper-parameters]."""

    def resolve(self, ahead: int) -> Resolve:
        """What gives a place its address, for a run of the micro-batch that is `ahead` of the counter."""
        found: dict[str, Callable[[Place], int | Moving]] = {
            "constant": lambda p: _at(self.constants[p.region[1]], p),
            "table": lambda p: _at(self._table(p.region[1]), p),
            "pending": lambda p: _at(self.pending[self._whose(p, ahead)], p),
            "state": lambda p: self._state(p, ahead),
            "io": lambda p: Moving("micro-batch", self._bytes[p.region[1]], self.slots[p.region[1]], p.offset, p.region[1]),
            "stash": self._stash,
            "arena": lambda p: _at(self._arena(p.region[1], ahead), p)}

        def resolved(place: Place) -> int | Moving:
            at = found[place.region[0]](place)
            for move in place.moves:
                fixed = at if isinstance(at, int) else 0
                at = Moving(move.count, move.stride, move.ring, fixed, "", move.ahead, None if isinstance(at, int) else at)
            return at
        return resolved

    def _stash(self, place: Place) -> int | Moving:
        value, base = place.region[1], _at(self.stashes[place.region[1]], place)
        slots = self.plan.stashes[value]
        return base if slots == 1 else Moving("micro-batch", room(value.type), slots, base)

    def _table(self, table: Const) -> np.ndarray:
        if table not in self.tables:
            self.tables[table] = _filled(table.array())
        return self.tables[table]

    def _arena(self, name: str, ahead: int) -> np.ndarray:
        """The arena of that run, or the only one."""
        of = self.of[name]
        return of[ahead if len(of) > 1 else 0]

    def _whose(self, place: Place, ahead: int) -> str:
        """What the state of a place is called that the run's replica has."""
        name: str = place.region[1]
        own = self.plan.program.own
        return own[name][ahead % len(own[name])] if name in own else name

    def _state(self, place: Place, ahead: int) -> int | Moving:
        name = self._whose(place, ahead)
        if name in self.scalars:
            first = int(self.hyper.ctypes.data) + 8 * list(self.scalars).index(name)
            return Moving("update", 8 * self.hyper.shape[1], len(self.hyper), first)
        return _at(self.session[name], place)

    def word(self, place: Place, ahead: int) -> np.ndarray:
        """The int64 at a place of an arena."""
        return self._arena(place.region[1], ahead)[place.offset:place.offset + 8].view(np.int64)

    def settled(self, part: str) -> Callable[[Place], bool]:
        """Of a place, as a part sees it: no other tensor ever lies there or in the padding after it, which so is always zero. True of states, and
        of what other parts leave."""
        def is_settled(place: Place) -> bool:
            kind, name = place.region
            return kind in ("state", "pending") or (kind == "arena" and name != part and place.offset < self.plan.lowered[name].kept_bytes)
        return is_settled


def _taken_over(graphs: Iterable[Graph]) -> dict[Value, np.ndarray]:
    """Memory that holds the constants of graphs; the graphs' own arrays are views of it from now on, so that none is there twice."""
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


def _at(memory: np.ndarray, place: Place) -> int:
    return int(memory.ctypes.data) + place.offset
