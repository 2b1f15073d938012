"""Where tensors are kept, by group: on the tiles, or in streaming memory but for the steps that use them.

The groups are those of PopTorch's TensorLocations: activations (and gradients), weights, optimizer state, and accumulators of gradients. A tensor
that is both accumulator and optimizer state is an accumulator while gradients are accumulated.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...graph import Node, Value
from ...program import schedule as order
from ...program.program import Program
from ..program.schedule import MemorySchedule, Storage

GROUPS = ("activations", "weights", "optimizer", "accumulators")
OFF_CHIP_FROM = 2
"""Elements from which on a tensor leaves the chip where nothing else is said (PopART, `minElementsForOffChip`)."""
OF_STATE = {"parameter": "weights", "optimizer": "optimizer", "accumulator": "accumulators"}
Together = Callable[[str, str], bool]
"""Whether an activation stays on the tiles between two parts of a program, by name."""


@dataclass(frozen=True)
class OffChip:
    """Of a group: kept in streaming memory, from so many elements on."""

    elements: int = OFF_CHIP_FROM

    def takes(self, storage: Storage) -> bool:
        """A tensor of the group is large enough."""
        return math.prod(storage.shape) >= self.elements


def group_of(storage: Storage) -> str | None:
    """The group of a tensor; None for buffers and constants, which are in none."""
    if storage.state is not None:
        return "accumulators" if storage.state.start else OF_STATE.get(storage.state.kind)
    return "activations" if storage.kind == "activations" else None


def offload(program: Program, made: MemorySchedule, groups: Mapping[str, OffChip], together: Together | None = None,
            shares: Mapping[str, int] | None = None) -> None:
    """Let the tensors of some groups be on the tiles only around the steps that use them.

    A tensor comes once for each pass (forward or backward) of each part that uses it, before the first step, and goes after the last. It goes back
    where it was written: a state each time, an activation once. An activation that one pass of one part uses has no reason to leave.

    Args:
        groups: which groups; what is in no group, and what is streamed to the host, stays.
        together: parts between which activations stay on the tiles.
        shares: weights, by name, of which each replica keeps so many elements: the whole comes as from streaming memory.
    """
    if groups or shares:
        _Offload(program, made, groups, together or (lambda one, other: False), shares or {}).run()


class _Offload:
    def __init__(self, program: Program, made: MemorySchedule, groups: Mapping[str, OffChip], together: Together,
                 shares: Mapping[str, int]) -> None:
        self.program, self.made, self.groups, self.together, self.shares = program, made, groups, together, shares
        self.ipus = {v.step.part: v.step.ipu for v in order.visits(program.schedule)}
        self.uses: dict[Storage, list[int]] = {}
        self.reads: set[tuple[Storage, int]] = set()
        self.writes: set[tuple[Storage, int]] = set()
        where: dict[Value, int] = {}
        for i, entry in enumerate(made.entries):
            for v in entry.node.operands:
                self.reads.add((made.of[v], i))
            for v in entry.node.outputs:
                self.writes.add((made.of[v], i))
                where[v] = i
            for storage in dict.fromkeys(made.of[v] for v in (*entry.node.operands, *entry.node.outputs)):
                self.uses.setdefault(storage, []).append(i)
        for part, graph in program.running:
            for state in graph.states:
                if state.output is not None and state.output in where:
                    self._written(made.of[state.input], where[state.output], part)
        self.looped = {made.of[v] for _, graph in program.running for v in _in_regions(graph.nodes)}

    def _written(self, storage: Storage, at: int, part: str) -> None:
        """A state's new value is made at a step: by then, or at the last use in its part, it goes where the state is."""
        uses = self.uses.setdefault(storage, [])
        last = max([at, *(i for i in uses if self.made.entries[i].part == part)])
        self.writes.add((storage, last))
        if last not in uses:
            uses.append(last)
            uses.sort()

    def run(self) -> None:
        for storage in self.made.storages:
            group = group_of(storage)
            leaves = group is not None and group in self.groups and self.groups[group].takes(storage)
            if group == "weights":
                storage.share = self.shares.get(storage.name, 0)
            if leaves or storage.share:
                if storage.state is not None:
                    self._state(storage)
                    storage.off_chip = leaves
                elif storage not in self.made.outputs and storage not in self.looped:
                    self._activation(storage)

    def _stays(self, storage: Storage) -> list[tuple[int, int]]:
        """First and last step of each stay on the tiles."""
        found: list[tuple[int, int]] = []
        last: tuple[object, ...] | None = None
        for i in self.uses.get(storage, ()):
            entry = self.made.entries[i]
            key = entry.part, entry.node.origin.role in ("backward", "recompute")
            if found and (key == last or i - found[-1][1] <= 1 or self._remains(storage, found[-1][1], i)):
                found[-1] = found[-1][0], i
            else:
                found.append((i, i))
            last = key
        return found

    def _remains(self, storage: Storage, before: int, then: int) -> bool:
        one, other = self.made.entries[before].part, self.made.entries[then].part
        return storage.state is None and one != other and self.together(one, other)

    def _state(self, storage: Storage) -> None:
        stays = self._stays(storage)
        inside = [[i for i in self.uses[storage] if first <= i <= last] for first, last in stays]
        storage.stays = tuple(stays)
        storage.birth, storage.death = (stays[0][0], stays[-1][1]) if stays else (0, 0)
        storage.loads = tuple(first for (first, _), steps in zip(stays, inside, strict=True) if any((storage, i) in self.reads for i in steps))
        storage.stores = tuple(last for (_, last), steps in zip(stays, inside, strict=True) if any((storage, i) in self.writes for i in steps))

    def _activation(self, storage: Storage) -> None:
        """On each IPU: what is made there, or came there, goes after its first stay and comes for each later one."""
        stays = self._stays(storage)
        by_ipu: dict[int, list[tuple[int, int]]] = {}
        at = 0
        for stay in stays:
            at = self.ipus[self.made.entries[stay[0]].part] if self.made.entries[stay[0]].part in self.made.often else at
            by_ipu.setdefault(at, []).append(stay)
        if all(len(found) == 1 for found in by_ipu.values()):
            return
        storage.off_chip, storage.stays = True, tuple(stays)
        storage.loads = tuple(first for found in by_ipu.values() for first, _ in found[1:])
        storage.stores = tuple(found[0][1] for found in by_ipu.values() if len(found) > 1)


def _in_regions(nodes: list[Node]) -> list[Value]:
    """What nodes with branches or bodies, and what is inside, read and make."""
    found: list[Value] = []
    for node in nodes:
        if node.op.regions:
            found += [*node.operands, *node.outputs]
            for region in node.op.regions:
                found += [*region.graph.inputs, *_all_of(region.graph.nodes)]
    return found


def _all_of(nodes: list[Node]) -> list[Value]:
    found: list[Value] = []
    for node in nodes:
        found += [*node.operands, *node.outputs]
        for region in node.op.regions:
            found += [*region.graph.inputs, *_all_of(region.graph.nodes)]
    return found
