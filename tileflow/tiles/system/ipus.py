"""A program over IPUs: which of them does what; in stages, what each holds and does and what crosses the links between them.

Each IPU has its own stages' operators, weights and activations. What a stage hands to another waits in a stash of as many micro-batches as the
schedule says; what goes to another IPU is there a second time, from the cycle's end on, when all that was made crosses the links at once.
Replicas are as many copies of all that; one is looked at, as they are alike, and what they do together is priced (`links.collective`).
"""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...program import schedule as order
from ...program.program import Program
from ...strategy.rules import reserved
from ..hardware.chip import ITEMSIZE, Chip
from ..placing.memory import Memory, measure
from ..plans.plan import OpPlan, Phases, TileStep
from ..plans.planner import by_name
from ..program.schedule import MemorySchedule, ScheduledNode, Storage, layer_of
from .away import Away
from .links import Collective, Kind, collective, crossing_cycles
from .sharding import Shares
from .streaming import streaming_cycles

_NOTHING = OpPlan({}, "none", Phases(), 0)


@dataclass(frozen=True)
class Ipu:
    """One IPU of a program in stages. busy: cycles that it works in an update. stashed: bytes of micro-batches that wait, on all of its tiles.
    sent: bytes that it gives to other IPUs in an update. streamed: bytes that pass between it and streaming memory in an update, as phases end and
    begin."""

    number: int
    memory: Memory
    busy: int
    stashed: int
    sent: int
    streamed: int

    @property
    def worst(self) -> int:
        """Bytes on its fullest tile."""
        return int(self.memory.peak.max(initial=0))


@dataclass(frozen=True)
class Links:
    """What crosses from one IPU to others. cycles: after a run of a part, those in which its results cross. bytes: by part."""

    cycles: Mapping[str, int]
    bytes: Mapping[str, int]


@dataclass(frozen=True)
class Streaming:
    """What passes between IPUs and streaming memory once each time, by the stream's `schedule.key`."""

    cycles: Mapping[str, int]
    bytes: Mapping[str, int]


class Places:
    """On which IPU the nodes of a schedule run; of a program without stages, all on IPU 0."""

    def __init__(self, program: Program, made: MemorySchedule) -> None:
        self.program, self.made = program, made
        self.of_part = {v.step.part: v.step.ipu for v in order.visits(program.schedule)}
        self.often = [name for name in made.often if name in self.of_part]
        self.owner = self._owners()
        self.ipu = [self._ipu_of(entry) for entry in made.entries]
        self.of_node = {entry.node: ipu for entry, ipu in zip(made.entries, self.ipu, strict=True)}
        self.numbers = sorted({*self.of_part.values()})
        """The IPUs that work."""

    def _owners(self) -> dict[str, int]:
        """The IPU of each parameter, and of what its name begins: that of the stage that reads it."""
        found: dict[str, int] = {}
        for name in self.often:
            graph = self.program.parts[name]
            read = {v for node in graph.nodes for v in node.operands}
            for state in graph.states:
                if state.input in read:
                    found.setdefault(state.owner or state.name, self.of_part[name])
            for v in graph.inputs:                                       # of what the prologue made of a weight
                source = self.program.links.get(v)
                if source is not None and v in read:
                    found.setdefault(source.name, self.of_part[name])
        return found

    def _ipu_of(self, entry: ScheduledNode) -> int:
        """A stage's and a fold's is the schedule's; an update's is that of its weight."""
        if entry.part in self.often:
            return self.of_part[entry.part]
        names = (*entry.node.origin.sources, layer_of(entry.node), *(v.name for v in entry.node.outputs))
        return next((self.owner[n] for n in names if n in self.owner), 0)

    def summed(self, shares: Shares, shared_by: Mapping[str, int]) -> dict[int, dict[tuple[Kind, str, int], int]]:
        """Bytes of what replicas bring together for an update, by IPU, by what is done, by element type and by how many do it: of each trained
        weight what its micro-batches are added up in, or, where an update is one micro-batch, its gradient, which is as large as the weight; and
        weights of which each replica has updated its share."""
        sums = {s.owner: s for s in self.program.accumulators()}
        found: dict[int, dict[tuple[Kind, str, int], int]] = {ipu: {} for ipu in self.numbers}
        for parameter in self.program.parts["update"].parameters:
            name = parameter.owner or parameter.name
            weight, held = self.made.of[parameter.input], self.made.of[sums.get(name, parameter).input]
            own = found[self.owner.get(name, self.numbers[0])]
            kind: Kind = "reduce-scatter" if name in shares.elements else "all-reduce"
            elements = shares.padded(name) if name in shares.elements else math.prod(held.shape)
            together = by_name(shared_by, (name,), shares.replicas)
            own[kind, held.dtype, together] = own.get((kind, held.dtype, together), 0) + elements * held.itemsize
            if name in shares.elements and name not in shares.weights:
                key: tuple[Kind, str, int] = "all-gather", weight.dtype, together
                own[key] = own.get(key, 0) + elements * weight.itemsize
        return found

    def collectives(self, chip: Chip, shares: Shares, shared_by: Mapping[str, int]) -> list[Collective]:
        """What replicas do together for an update: the sum of the gradients, or of each one's share, before weights are changed, and the weights of
        which each has a share after it. Tensors of one type that as many replicas share (`shared_by`, by pattern of the weight's name)
        go as one; sums over shares (norms) are added up, too."""
        if shares.replicas < 2 or not self.program.training:
            return []
        each = len(self.numbers)
        found = [collective(kind, nbytes, many, chip, dtype=dtype, ipus=each, ipu=ipu, when="after" if kind == "all-gather" else "before")
                 for ipu, of_type in self.summed(shares, shared_by).items() for (kind, dtype, many), nbytes in of_type.items() if many > 1]
        if shares.norms:
            found += [collective("all-reduce", shares.norms * ITEMSIZE["float32"], shares.replicas, chip, ipus=each, ipu=ipu) for ipu in self.numbers]
        return found


class Placed:
    """Where the steps and tensors of a program in stages are."""

    def __init__(self, places: Places, made: MemorySchedule, steps: list[TileStep], chip: Chip) -> None:
        """made: the schedule of the places, with that of every tensor."""
        self.program, self.made, self.steps, self.chip = places.program, made, steps, chip
        self.order = order.period(places.program.schedule)                      # what figures are given for
        self.depths = order.depths(places.program.schedule)                     # what waits, in all that runs
        self.of_part, self.often, self.ipu, self.numbers = places.of_part, places.often, places.ipu, places.numbers
        self.users: dict[Storage, list[int]] = {s: [] for s in made.storages}
        for i, step in enumerate(steps):
            for value in (*step.node.outputs, *step.node.operands):
                self.users[made.of[value]].append(i)
        self.span: dict[str, tuple[int, int]] = {}
        for i, step in enumerate(steps):
            first, _ = self.span.get(step.part, (i, i))
            self.span[step.part] = (first, i)
        self.away = Away(self.order, self.span)

    def links(self) -> Links:
        """What crosses, by the part that makes it; each value once for every other IPU that reads it."""
        cycles: dict[str, int] = {}
        nbytes: dict[str, int] = {}
        for storage, users in self.users.items():
            if not users or storage.always_live:
                continue
            first = self.steps[users[0]].part
            others = {self.ipu[i] for i in users} - {self.ipu[users[0]]}
            if first in self.often and others:
                nbytes[first] = nbytes.get(first, 0) + len(others) * math.prod(storage.shape) * storage.itemsize
        for part, n in nbytes.items():
            cycles[part] = crossing_cycles(n, self.chip)
        return Links(cycles, nbytes)

    def ipus(self, rearranged: list[int], once: Mapping[str, int], links: Links) -> list[Ipu]:
        """Memory and work of each IPU."""
        busy = self._busy(once)
        times = order.times(self.order)
        found = []
        for k in self.numbers:
            storages, stashed = [], 0
            for storage in self.made.storages:
                held = self._held(storage, k)
                if held is not None:
                    storages.append(held)
                    stashed += (held.copies - 1) * held.nbytes
            streamed = sum(self.away.bytes.get(order.key(s), 0) * times[s.part] for s in self.away.streams if s.ipu == k)
            steps = [dataclasses.replace(s, plan=s.plan if on == k else _NOTHING) for s, on in zip(self.steps, self.ipu, strict=True)]
            moved = [n if on == k else 0 for n, on in zip(rearranged, self.ipu, strict=True)]
            memory = measure(dataclasses.replace(self.made, storages=storages), steps, moved, self.chip)
            sent = sum(n * times[part] for part, n in links.bytes.items() if self.of_part[part] == k)
            found.append(Ipu(k, memory, busy.get(k, 0), stashed, sent, streamed))
        return found

    def streaming(self) -> Streaming:
        """What passes to and from streaming memory as phases end and begin; of `ipus` once it has found what leaves."""
        return Streaming({name: streaming_cycles(n, self.chip) for name, n in self.away.bytes.items()}, self.away.bytes)

    def streamed_cycles(self, away: Streaming) -> int:
        """Cycles of an update in which that passes, whatever runs beside it."""
        times = order.times(self.order)
        return sum(away.cycles.get(order.key(s), 0) * times[s.part] for s in self.away.streams)

    def _held(self, storage: Storage, k: int) -> Storage | None:
        """What of a tensor is on an IPU, None where nothing is: how long, and for how many micro-batches."""
        users = [i for i in self.users[storage] if self.ipu[i] == k]
        if not users:
            return None if self.users[storage] or k != self.numbers[0] else storage
        if storage.always_live or storage.state is not None:
            return storage
        users = [i for i in users if i <= storage.death or storage.off_chip] or users  # folds add what is made at once
        parts = [p for p in dict.fromkeys(self.steps[i].part for i in users) if p in self.often]
        if not parts:
            return storage
        if storage.off_chip:
            return dataclasses.replace(storage, stays=self._stays(storage, users))
        copies = max((self.depths.get((parts[0], p), 1) for p in parts), default=1)
        if copies > 1:                                                  # micro-batches are under way all the time
            return dataclasses.replace(storage, birth=0, death=len(self.steps) - 1, copies=copies)
        own = self.ipu[self.users[storage][0]] == k
        crossing = len({self.ipu[i] for i in self.users[storage]}) > 1
        first = storage.birth if own else self.span[parts[0]][0]
        last = max(users[-1], self.span[parts[-1]][1] if crossing or storage.result else 0)
        stays = self.away.stays(parts, min(first, users[0]), last, storage.nbytes)
        return dataclasses.replace(storage, birth=stays[0][0], death=stays[-1][1], off_chip=len(stays) > 1, stays=tuple(stays))

    def _stays(self, storage: Storage, users: list[int]) -> tuple[tuple[int, int], ...]:
        """The stays on the IPU whose steps use a tensor of streaming memory; what crosses the links is there until its part ends."""
        own = [stay for stay in storage.stays if any(stay[0] <= i <= stay[1] for i in users)]
        if len({self.ipu[i] for i in self.users[storage]}) == 1:
            return tuple(own)
        found: list[tuple[int, int]] = []
        for a, b in own:
            first = a if a == storage.birth else self.span[self.steps[a].part][0]
            last = max(b, self.span[self.steps[b].part][1])
            joined = bool(found) and first <= found[-1][1] + 1
            found[-1 if joined else len(found):] = [(found[-1][0] if joined else first, last)]
        return tuple(found)

    def _busy(self, once: Mapping[str, int]) -> dict[int, int]:
        """Cycles of an update in which each IPU computes."""
        times, found = order.times(self.order), dict.fromkeys(self.numbers, 0)
        for part, n in times.items():
            if part in self.often:
                found[self.of_part[part]] += n * once.get(part, 0)
        for step, on in zip(self.steps, self.ipu, strict=True):
            if step.part not in self.often:
                found[on] += step.phases.total * step.repeats
        return found


def counts(ipus: Sequence[Ipu], replicas: int, any_number: bool = False) -> dict[str, int]:
    """How many replicas there are (count), IPUs of each, all of them together, and IPUs that are reserved for them: the
    vendor's in powers of two, those with links of their own in `any_number`."""
    each = 1 + max((i.number for i in ipus), default=0)
    return {"count": replicas, "ipus": each, "all": replicas * each,
            "reserved": replicas * each if any_number else reserved(replicas * each)}


def worst_of(ipus: list[Ipu]) -> Ipu:
    """The IPU with the fullest tile."""
    return max(ipus, key=lambda i: (i.worst, -i.number))


def always_live(ipu: Ipu) -> int:
    """Bytes on its fullest tile of what is there all the time."""
    return int(np.max(ipu.memory.always_live, initial=0))
