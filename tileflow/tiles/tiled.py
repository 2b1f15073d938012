"""A program on a chip: what `machine.analyze` found, what holds its memory, and levers, where they were looked for."""
from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Mapping as Dict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..program.program import Program
from .hardware.chip import Chip
from .hardware.io import HostIO, Transfer
from .placing.memory import Memory, holdings
from .plans.plan import Phases, TileOptions, TileStep
from .program.schedule import MemorySchedule
from .system.energy import Consumption, consumption
from .system.ipus import Ipu, Links, Streaming, counts, worst_of
from .system.links import Collective
from .system.locations import GROUPS, group_of
from .system.sharding import Shares

Changes = Dict[str, Any]
"""Options of a run, by name, and what they become."""


@dataclass(frozen=True)
class Lever:
    """One thing that was tried.

    changes: the options of a run, by name, with which it is done. bytes: the worst tile's. cycles: per update. slower: cycles per sample over those
    of the program as it is, as a factor. samples_per_second: of all replicas, what tiles wait for the host counted. ipus: how many it takes in all.
    """

    name: str
    changes: Changes
    fits: bool
    bytes: int
    cycles: int
    cycles_per_sample: float
    slower: float
    samples_per_second: float
    ipus: int = 1

    @property
    def sentence(self) -> str:
        """What was tried and what came of it."""
        price = f"{abs(self.slower - 1):.1%} {'more' if self.slower >= 1 else 'fewer'} cycles per sample"
        result = "it fits" if self.fits else "it still does not fit"
        return f"Tried {self.name}: {result}, with {self.bytes:,} bytes on the worst tile and {price}."


@dataclass(frozen=True)
class Contributor:
    """What a layer holds on the worst tile when that is fullest: bytes by category."""

    layer: str
    nbytes: int
    categories: Dict[str, int]


@dataclass
class TileProgram:
    """A program on a chip.

    steps: the operators in the order in which they first run; their phases times repeats add up to `phases`, which on one IPU are the cycles
        of an update. Inference has no updates: there an update is a micro-batch.
    always_live, peak: bytes per tile, int64[tiles]; peak is each tile's worst step, everything included.
    categories: name -> int64[tiles]; they add up to `peak`.
    liveness: bytes on the worst tile during each step, everything included; int64[steps].
    infeasible: sentences on what does not fit: operators over their bound, the program over the tile.
    rearranged: per step the bytes that bring its inputs where it wants them, on the worst tile.
    transfers: host streams, which are not part of `phases`.
    cycles_per_update: of all replicas, as they work side by side; all but samples_per_second and tflops is of one of them.
    seconds_per_update: of the steps and of what tiles wait for the host's streams.
    tflops: useful 1e12 FLOP/s of all replicas; peak_fraction: of the chips' peak for the program's precision.
    """

    program: Program
    chip: Chip
    options: TileOptions
    steps: list[TileStep]
    always_live: np.ndarray
    peak: np.ndarray
    categories: dict[str, np.ndarray]
    liveness: np.ndarray
    phases: Phases
    cycles_per_update: int
    seconds_per_update: float
    samples_per_second: float
    tflops: float
    peak_fraction: float
    worst_tile: int
    fits: bool
    infeasible: list[str]
    transfers: list[Transfer]
    streaming_cycles: int
    peak_step: np.ndarray
    memory_schedule: MemorySchedule
    rearranged: list[int]
    ipus: list[Ipu] = field(default_factory=list)
    """Of a program in stages: each IPU; memory above is the worst one's."""
    links: Links | None = None
    away: Streaming | None = None
    """Of a program in phases: what passes to and from streaming memory as they end and begin."""
    measured: Memory | None = None
    """What memory was counted from: the tensors, and by category what the worst tile of each step holds."""
    collectives: list[Collective] = field(default_factory=list)
    """What replicas do together, per update."""
    shares: Shares = field(default_factory=Shares)
    """What replicas share out among them."""
    gather_cycles: int = 0
    """Per update, in which replicas put weights together of which each has a share: exchange of the steps before which they do."""
    io: HostIO = field(default_factory=HostIO)
    """What streams of the host take; `chip` is that of the tiles that compute."""
    idle_tiles: int = 0
    """Of the machine, beside those: a small program may be quicker without them."""
    facts: dict[str, Any] = field(default_factory=dict, repr=False)
    """What follows from plans and places alone and was counted already: programs that have these in common share it."""
    find: Callable[[TileProgram], list[Lever]] | None = field(default=None, repr=False)
    """What looks for levers; None where it is not known what model the program is of."""
    _levers: list[Lever] | None = field(default=None, repr=False)

    @property
    def whole(self) -> Chip:
        """The chip with its idle tiles."""
        return dataclasses.replace(self.chip, tiles=self.chip.tiles + self.idle_tiles) if self.idle_tiles else self.chip

    @property
    def flops(self) -> float:
        """Useful FLOPs per weight update."""
        return sum(s.flops for s in self.steps)

    @property
    def samples_per_update(self) -> int:
        """Samples of one weight update of all replicas, those that several get counted once; inference has no updates, so there it is one
        micro-batch of each."""
        return self.program.rows_per_period * self.options.replicas // self.options.same_rows

    @property
    def cycles_per_sample(self) -> float:
        """Cycles of an update over its samples."""
        return self.cycles_per_update / max(1, self.samples_per_update)

    @property
    def host_cycles(self) -> int:
        """Cycles of the host's streams per weight update."""
        return sum(t.cycles * t.repeats for t in self.transfers)

    @property
    def off_chip(self) -> dict[str, int]:
        """Bytes that are kept in streaming memory, by group of tensors; a group that is to leave the chip and has nothing that can, with 0."""
        found = {group: 0 for group in GROUPS if getattr(self.options, f"{group}_off_chip")}
        for storage in self.memory_schedule.storages:
            if storage.off_chip and not storage.share:
                found[str(group_of(storage))] += storage.nbytes
        return found

    @functools.cached_property
    def energy(self) -> Consumption:
        """What an update takes in energy, by operator and category."""
        return consumption(self, counts(self.ipus, self.options.replicas)["all"])

    @property
    def samples_per_second_per_mm2(self) -> float | None:
        """Over the silicon of all IPUs; None where the chip does not say how large it is."""
        return self._over(self.chip.area_mm2)

    @property
    def samples_per_second_per_cost(self) -> float | None:
        """Over what all IPUs cost; None where the chip does not say."""
        return self._over(self.chip.cost)

    def _over(self, of_an_ipu: float | None) -> float | None:
        ipus = counts(self.ipus, self.options.replicas)["all"]
        return None if of_an_ipu is None else float(self.samples_per_second) / (of_an_ipu * ipus)

    def mapping(self, value: Any) -> Any:
        """The Mapping of a value of any of the program's graphs: which tile holds which interval."""
        return self.memory_schedule.of[value].mapping

    def contributors(self, tile: int | None = None) -> list[Contributor]:
        """What holds memory on a tile (the worst one) at its fullest step, by layer, most bytes first. Code is not a layer's."""
        tile = self.worst_tile if tile is None else tile
        step = int(self.peak_step[tile])
        found: dict[str, dict[str, int]] = {}
        made = self.memory_schedule
        if self.ipus:
            made = dataclasses.replace(made, storages=list(worst_of(self.ipus).memory.storages))
        for storage, nbytes in holdings(made, step, tile):
            kinds = found.setdefault(storage.layer, {})
            kinds[storage.kind] = kinds.get(storage.kind, 0) + nbytes
        running = int(self.categories["temporaries"][tile] + self.categories["exchange"][tile])
        if step >= 0 and running:
            found.setdefault(self.memory_schedule.layer(self.steps[step].node), {})["temporaries"] = running
        ranked = sorted(found.items(), key=lambda item: (-sum(item[1].values()), item[0]))
        return [Contributor(layer, sum(kinds.values()), kinds) for layer, kinds in ranked]

    def levers(self) -> list[Lever]:
        """What would make the program fit, tried and measured, what helps most cheaply first. Of a program that fits: what would make it faster or
        smaller. None where nothing looks for them (`find`)."""
        if self._levers is None and self.find is not None:
            self._levers = self.find(self)
        return self._levers or []

    @property
    def tried(self) -> list[Lever] | None:
        """The levers, where they have been looked for; None where not."""
        return self._levers
