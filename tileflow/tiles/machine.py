"""analyze(): a Program on a chip. Every operator planned, every tensor placed, cycles and bytes per tile added up.

Cycles are bulk-synchronous: per operator the worst tile decides each phase, and operators follow one another. Streams to and from the
host run beside the compute steps, double buffered; the slower of the two decides the time.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Mapping as Dict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import schedule as order
from ..errors import OutOfTileMemoryError
from ..graph import Node
from ..graph.composite import declares, expanded
from ..program import Program
from ..work import Reduce, Work
from .chip import Chip, device_dtype
from .choose import Chooser
from .layout import NOTHING, Layouts, Rearrangement
from .memory import Memory, holdings, measure
from .plan import OpPlan, Phases, TileOptions, TileStep, node_name
from .planner import PlanCache, by_name
from .recompute import recomputed
from .schedule import Entry, Schedule, Storage, entries_of, schedule
from .spread import on_device


@dataclass(frozen=True)
class Transfer:
    """One stream between host and chip. `repeats` per weight update."""

    name: str
    to_chip: bool
    nbytes: int
    cycles: int
    repeats: int


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
    transfers: host streams; they run beside the steps and are not part of `phases`.
    seconds_per_update: the slower of the steps and the host's streams.
    tflops: useful 1e12 FLOP/s; peak_fraction: of the chip's peak for the program's precision.
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
    memory_schedule: Schedule
    rearranged: list[int]
    _levers: list[Any] | None = field(default=None, repr=False)

    @property
    def flops(self) -> float:
        """Useful FLOPs per weight update."""
        return sum(s.work.flops * s.repeats for s in self.steps)

    @property
    def host_cycles(self) -> int:
        """Cycles of the host's streams per weight update."""
        return sum(t.cycles * t.repeats for t in self.transfers)

    def mapping(self, value: Any) -> Any:
        """The Mapping of a value of any of the program's graphs: which tile holds which interval."""
        return self.memory_schedule.of[value].mapping

    def contributors(self, tile: int | None = None) -> list[Contributor]:
        """What holds memory on a tile (the worst one) at its fullest step, by layer, most bytes first. Code is not a layer's."""
        tile = self.worst_tile if tile is None else tile
        step = int(self.peak_step[tile])
        found: dict[str, dict[str, int]] = {}
        for storage, nbytes in holdings(self.memory_schedule, step, tile):
            kinds = found.setdefault(storage.layer, {})
            kinds[storage.kind] = kinds.get(storage.kind, 0) + nbytes
        running = int(self.categories["temporaries"][tile] + self.categories["exchange"][tile])
        if step >= 0 and running:
            found.setdefault(self.memory_schedule.layer(self.steps[step].node), {})["temporaries"] = running
        ranked = sorted(found.items(), key=lambda item: (-sum(item[1].values()), item[0]))
        return [Contributor(layer, sum(kinds.values()), kinds) for layer, kinds in ranked]

    def levers(self) -> list[Any]:
        """What would make the program fit, tried and measured (`tiles.levers.Lever`), what helps most cheaply first."""
        if self._levers is None:
            from .levers import find_levers
            self._levers = find_levers(self)
        return self._levers

    def require_fit(self) -> TileProgram:
        """This program, where it fits.

        Raises:
            OutOfTileMemoryError: a tile needs more bytes than it has.
        """
        if self.fits:
            return self
        demand, bound = int(self.peak[self.worst_tile]), self.chip.usable_bytes
        contributors = self.contributors()[:5]
        levers = [lever for lever in self.levers() if lever.fits][:3] or self.levers()[:3]
        raise OutOfTileMemoryError(self.worst_tile, demand, bound, [(c.layer, c.nbytes, dict(c.categories)) for c in contributors],
                                   [lever.sentence for lever in levers])


_SHARED: PlanCache = {}
"""Plans and works already made in this process: analyses of one program (a sweep, the levers of an error) share nearly all."""
_SHARED_MOST = 100_000


def analyze(program: Program, chip: Chip, options: TileOptions | None = None, cache: PlanCache | None = None) -> TileProgram:
    """Plan a program for a chip and count its cycles and bytes. Always finishes; `fits` says whether a tile holds it."""
    options = options or TileOptions()
    if len(_SHARED) > _SHARED_MOST:
        _SHARED.clear()
    program = _in_parts(program)
    if options.recompute:
        program = recomputed(program)
    return _Analysis(program, chip, options, _SHARED if cache is None else cache).run()


def _in_parts(program: Program) -> Program:
    """The program with the parts of the operators that do not say what they do."""
    graphs = {name: expanded(graph, lambda node: not declares(node.op, "work")) for name, graph in program.parts.items()}
    return program if graphs == program.parts else program.with_parts(graphs)


class _Analysis:
    """One run of analyze()."""

    def __init__(self, program: Program, chip: Chip, options: TileOptions, cache: PlanCache) -> None:
        self.program, self.chip, self.options, self.cache = program, chip, options, cache
        self.entries: list[Entry] = entries_of(program)
        self.works = [self.work(e.node) for e in self.entries]
        self.made = schedule(program, self.works, options.precision, options.optimizer_off_chip)
        self.layouts = Layouts(self.made, chip)
        self.chooser = Chooser(self.made, self.works, chip, options, cache)
        self.infeasible: list[str] = []
        self.streaming = 0

    def work(self, node: Node) -> Work:
        """What a node does, in the device's element types; a product to be serialized, in pieces (its gradients are serialized by
        the pass that runs before autograd)."""
        op = node.op
        if node.origin.role == "forward" and self.options.serialized:
            wanted = by_name(self.options.serialized, node.origin.sources)
            op = (op.serialized(*wanted) if wanted else None) or op
        inputs, outputs = tuple(None if v is None else v.type for v in node.inputs), tuple(v.type for v in node.outputs)
        key = "work", op, inputs, outputs, self.options.precision
        found = self.cache.get(key)
        if found is None:
            found = self.cache[key] = on_device(op.work(inputs, outputs), self.options.precision)
        return found

    def run(self) -> TileProgram:
        steps, rearranged = [], []
        fetched = self._fetches()
        for i, (entry, work) in enumerate(zip(self.entries, self.works, strict=True)):
            plan, extra = self.place(entry.node, work)
            phases = plan.phases + extra.phases + Phases(exchange=fetched.get(i, 0))
            if not plan.fits:
                self.infeasible.append(f"{node_name(entry.node)}: no plan keeps its temporaries within {plan.bound_bytes:,} bytes a tile; the "
                                       f"least-memory plan takes {plan.temp_bytes:,}.")
            steps.append(TileStep(i, entry.part, entry.node, work, plan, phases, self.made.repeats[entry.part]))
            rearranged.append(extra.nbytes)
        for storage in self.made.storages:
            if storage.mapping is None:
                storage.mapping = self.layouts.linear(storage)
        memory = measure(self.made, steps, rearranged, self.chip)
        return self._result(steps, memory, rearranged)

    # ---- one operator ---------------------------------------------------------------------------------------------------

    def place(self, node: Node, work: Work) -> tuple[OpPlan, Rearrangement]:
        """Plan a node where its inputs are, and fix the places of its outputs."""
        if node.op.alias is not None or not work.points:
            plan: OpPlan = OpPlan({}, "none", Phases(), 0)
            for value in node.operands:
                self.layouts.settle(value, None) if self.made.of[value].kind == "activations" else None
            self.layouts.produce(node, work, plan)
            return plan, NOTHING
        plan = self._plan(node, work)
        extra = self.layouts.arrange(node, work, plan)
        self.layouts.produce(node, work, plan)
        return plan, extra

    def _plan(self, node: Node, work: Work) -> OpPlan:
        along = self.layouts.follow(node, work)
        if along is not None and not isinstance(work, Reduce):
            return along
        own = self.chooser.plan(node, work)
        if along is None:
            return own

        def cost(plan: OpPlan) -> tuple[int, int]:
            extra = self.layouts.arrange(node, work, plan, settle=False)
            return plan.phases.total + extra.phases.total, plan.temp_bytes + extra.nbytes
        return min((along, own), key=cost)

    def _fetches(self) -> dict[int, int]:
        """Cycles to bring off-chip states in before the step that first reads them and to write them back after the last."""
        found: dict[int, int] = {}
        for storage in self.made.storages:
            if storage.off_chip:
                cycles = math.ceil(2 * math.prod(storage.shape) * storage.itemsize / self.chip.streaming_bytes_per_second * self.chip.clock_hz)
                found[storage.birth] = found.get(storage.birth, 0) + cycles
                self.streaming += cycles
        return found

    # ---- totals ---------------------------------------------------------------------------------------------------------

    def _transfers(self) -> list[Transfer]:
        def stream(storage: Storage, to_chip: bool) -> Transfer:
            nbytes = math.prod(storage.shape) * storage.itemsize
            cycles = math.ceil(nbytes / self.chip.host_bytes_per_second * self.chip.clock_hz)
            return Transfer(storage.name, to_chip, nbytes, cycles, self.made.repeats[self.made.streamed[storage]])
        return [stream(s, True) for s in self.made.inputs] + [stream(s, False) for s in self.made.outputs]

    def _cycles(self, steps: list[TileStep]) -> int:
        """Of one weight update: its schedule with what each part takes once."""
        once: dict[str, int] = {}
        for step in steps:
            once[step.part] = once.get(step.part, 0) + step.phases.total
        return order.elapsed(order.period(self.program.schedule), once)

    def _result(self, steps: list[TileStep], memory: Memory, rearranged: list[int]) -> TileProgram:
        phases = functools.reduce(Phases.__add__, (s.phases.times(s.repeats) for s in steps), Phases())
        transfers = self._transfers()
        host = sum(t.cycles * t.repeats for t in transfers)
        cycles = self._cycles(steps)
        seconds = max(cycles, host, 1) / self.chip.clock_hz
        samples = self.program.batching.rows_per_update if self.program.training else self.program.batching.micro_batch
        flops = sum(s.work.flops * s.repeats for s in steps)
        worst = int(memory.peak.argmax())
        fits = bool(memory.peak[worst] <= self.chip.usable_bytes)
        if not fits:
            self.infeasible.append(f"Tile {worst} needs {int(memory.peak[worst]):,} bytes and has {self.chip.usable_bytes:,}.")
        peak_flops = self.chip.peak_flops(device_dtype("float32", self.options.precision))
        return TileProgram(self.program, self.chip, self.options, steps, memory.always_live, memory.peak, memory.categories, memory.liveness,
                           phases, cycles, seconds, samples / seconds, flops / seconds / 1e12, flops / seconds / peak_flops, worst, fits,
                           self.infeasible, transfers, self.streaming, memory.peak_step, self.made, rearranged)


__all__ = ["Contributor", "TileProgram", "Transfer", "analyze"]
