"""A program over two IPUs, its layers cut in two: what each must hold, and what crosses the links. The IPUs run one after the other."""
from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from .links import crossing_cycles
from .memory import Memory, measure
from .plan import OpPlan, Phases, TileStep
from .schedule import Storage
from .tiled import TileProgram

_NOTHING = OpPlan({}, "none", Phases(), 0)


@dataclass(frozen=True)
class Sharding:
    """`layer` is the first on the second IPU. worst: bytes on the fullest tile of each IPU. cycles: per update, links included."""

    layer: str
    worst: tuple[int, int]
    cycles: int

    @property
    def bytes(self) -> int:
        return max(self.worst)


def over_two_ipus(tiled: TileProgram) -> Sharding | None:
    """The cut of the layers that makes the fuller IPU least full; None for a program of one layer."""
    cuts = _Cuts(tiled)
    low, high = 1, len(cuts.layers) - 1
    if high < 1:
        return None
    while low < high:                                        # the first IPU gets fuller with the cut, the second emptier
        middle = (low + high) // 2
        first, second = cuts.at(middle).worst
        low, high = (middle + 1, high) if first < second else (low, middle)
    return min((cuts.at(c) for c in {max(1, low - 1), low}), key=lambda s: (s.bytes, s.cycles))


class _Cuts:
    """Where each step and tensor goes for a given cut."""

    def __init__(self, tiled: TileProgram) -> None:
        self.tiled, self.made = tiled, tiled.memory_schedule
        names = [self.made.layer(s.node) for s in tiled.steps]
        forward = [n for n, s in zip(names, tiled.steps, strict=True) if s.part in self.made.often and s.node.origin.role == "forward"]
        self.layers = list(dict.fromkeys(forward))
        place = {name: i for i, name in enumerate(self.layers)}
        self.step_layer = [place.get(name, 0) for name in names]
        self.users: dict[Storage, list[int]] = {s: [] for s in self.made.storages}
        for i, step in enumerate(tiled.steps):
            for value in (*step.node.outputs, *step.node.operands):
                self.users[self.made.of[value]].append(i)
        self.known: dict[int, Sharding] = {}

    def at(self, cut: int) -> Sharding:
        """Layers before `cut` on the first IPU."""
        if cut not in self.known:
            ipu = [int(layer >= cut) for layer in self.step_layer]
            where = {s: {ipu[i] for i in users} or {0} for s, users in self.users.items()}
            worst = tuple(int(self._memory(k, ipu, where).peak.max(initial=0)) for k in (0, 1))
            cycles = self.tiled.cycles_per_update + sum(self._link_cycles(s) for s, on in where.items() if len(on) > 1)
            self.known[cut] = Sharding(self.layers[cut], (worst[0], worst[1]), cycles)
        return self.known[cut]

    def _memory(self, k: int, ipu: list[int], where: dict[Storage, set[int]]) -> Memory:
        """What IPU k holds: its own steps' tensors, and those that cross, for as long as they live."""
        steps: list[TileStep] = [dataclasses.replace(s, plan=s.plan if on == k else _NOTHING) for s, on in zip(self.tiled.steps, ipu, strict=True)]
        rearranged = [n if on == k else 0 for n, on in zip(self.tiled.rearranged, ipu, strict=True)]
        storages = [s for s in self.made.storages if k in where[s]]
        return measure(dataclasses.replace(self.made, storages=storages), steps, rearranged, self.tiled.chip)

    def _link_cycles(self, storage: Storage) -> int:
        """Cycles per update that a tensor takes from one IPU to the other, once each time it is made."""
        if storage.kind == "constants":
            return 0
        nbytes = math.prod(storage.shape) * storage.itemsize
        repeats = 1 if storage.always_live else self.tiled.steps[storage.birth].repeats
        return repeats * crossing_cycles(nbytes, self.tiled.chip)
