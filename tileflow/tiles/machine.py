"""analyze(): a Program on a chip. Every operator planned, every tensor placed, cycles and bytes per tile added up.

Cycles are bulk-synchronous: per operator the worst tile decides each phase, and operators follow one another. The tiles wait for streams to and from
the host, unless I/O tiles let them pass meanwhile (`tiles.hardware.io`).
"""
from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping as Dict
from typing import Any

from ..graph.work import Contraction
from ..program import schedule as order
from ..program.program import Program
from ..system.errors import OptionError
from .hardware.chip import EIGHT_BIT_UNIT, Chip, device_dtype
from .hardware.io import Transfer, buffers, computing, hand_over, host_io
from .placing.choose import Chooser
from .placing.memory import Memory, measure
from .placing.place import Placement, placed
from .plans.plan import OpPlan, Phases, TileOptions, TileStep, node_name
from .plans.planner import PlanCache
from .prepared import Prepared, prepare
from .program.schedule import Storage
from .program.turns import counted
from .system.ipus import Ipu, Links, Placed, Streaming, worst_of
from .system.links import collective, waits
from .system.locations import group_of
from .system.streaming import streaming_cycles
from .tiled import Contributor, TileProgram

_SHARED: PlanCache = {}
"""Plans and works already made in this process: analyses of one program (a sweep, the levers of an error) share nearly all."""
_SHARED_MOST = 100_000

MOST_PLACED = 12
"""Placements that analyses of a program keep: of a small one, all numbers of tiles of a chip."""
FEW_POINTS = 1 << 20
"""Computed by all operators in an update: of programs of up to so many, plans on a part of the tiles are candidates. It
says nothing of the chip, so that a chip of twice the tiles has all candidates of the other. Larger programs are planned
once: their tiles have more to compute than to wait for, and planning them takes longer."""


def analyze(program: Program, chip: Chip, options: TileOptions | None = None, cache: PlanCache | None = None) -> TileProgram:
    """Plan a program for a chip and count its cycles and bytes. Always finishes; `fits` says whether a tile holds it.

    Operators are planned one after the other, so on more tiles what met on one of fewer may lie apart. A small program
    (FEW_POINTS) is planned for a half, a quarter ... of the tiles as well, so that a chip of twice the tiles never
    takes more cycles; the quickest plan is given.
    """
    return Analyses(program, cache).on(chip, options)


class Analyses:
    """A program, to be analysed on chip after chip, with these options or those: what does not depend on what has
    changed is kept. Each analysis gives what it would give alone; the TilePrograms share tensors and places.

    cache: plans already made; None: those of the process.
    """

    def __init__(self, program: Program, cache: PlanCache | None = None) -> None:
        self.program, self.cache = program, _SHARED if cache is None else cache
        self._prepared: dict[str, Prepared] = {}
        self._placements: list[tuple[tuple[Any, ...], tuple[Any, ...], Placement, list[OpPlan]]] = []
        """The latest, newest first: what it holds for, what it may hold for with other bounds, and its plans."""

    def on(self, chip: Chip, options: TileOptions | None = None) -> TileProgram:
        """As `analyze` does."""
        options = options or TileOptions()
        if len(_SHARED) > _SHARED_MOST:
            _SHARED.clear()
        prepared = self._prepare(chip, options)
        best, tiles = _Analysis(prepared, chip, options, self).run(), chip.tiles // 2
        while prepared.points <= FEW_POINTS and tiles > options.num_io_tiles:
            try:
                fewer = _Analysis(prepared, chip, options, self, tiles).run()
            except OptionError:                                    # a pinned plan takes more tiles
                break
            best, tiles = min(best, fewer, key=order_of), tiles // 2
        return best

    def _prepare(self, chip: Chip, options: TileOptions) -> Prepared:
        key = repr((_unbounded(options), EIGHT_BIT_UNIT in chip.matrix, chip.eight_bit_products))
        found = self._prepared.get(key)
        if found is None:                                          # one at a time is held
            self._prepared = {key: (found := prepare(self.program, chip, options, self.cache))}
        return found

    def placed(self, prepared: Prepared, chip: Chip, options: TileOptions) -> tuple[Placement, list[OpPlan]]:
        """Where everything lies, and the plan of each step."""
        # Placements hold the works, so that others cannot have their number.
        exact = id(prepared.works), chip.key, repr(options)
        likely = id(prepared.works), chip.key_of_cycles, repr(_unbounded(options))
        for key, _, placement, plans in self._placements:
            if key == exact:
                return placement, plans
        chooser = Chooser(prepared.made, prepared.works, chip, options, self.cache, prepared.places.of_node)
        for _, key, placement, _ in self._placements:
            again = placement.again(chooser) if key == likely else None
            if again is not None:
                self._placements = [(exact, likely, placement, again), *self._placements[:MOST_PLACED - 1]]
                return placement, again
        made = placed(prepared.made.unplaced(), prepared.works, chip, chooser, prepared.shares.alike.values())
        self._placements = [(exact, likely, made, made.plans), *self._placements[:MOST_PLACED - 1]]
        return made, made.plans


def _unbounded(options: TileOptions) -> TileOptions:
    """The options without proportions."""
    return dataclasses.replace(options, available_memory_proportion=0.0, per_op={}, per_ipu={})


def order_of(tiled: TileProgram) -> tuple[bool, int, int]:
    """What makes one plan of a program better than another, the less the better: that it fits, operators within their
    bounds, cycles."""
    return not tiled.fits, len(tiled.infeasible), tiled.cycles_per_update


class _Analysis:
    """A program on one number of tiles of a chip."""

    def __init__(self, prepared: Prepared, chip: Chip, options: TileOptions, analyses: Analyses,
                 tiles: int | None = None) -> None:
        """tiles: of the chip that are used; None: all."""
        self.program, self.options = prepared.program, options
        self.shares, self.places = prepared.shares, prepared.places
        self.machine, self.idle = chip, 0 if tiles is None else chip.tiles - tiles
        self.chip = chip = computing(dataclasses.replace(chip, tiles=chip.tiles - self.idle) if self.idle else chip,
                                     options.num_io_tiles)
        self.placement, self.plans = analyses.placed(prepared, chip, options)
        self.made, self.works = self.placement.made, self.placement.works
        self.collectives = self.places.collectives(chip, self.shares, options.shared_by)
        self.infeasible: list[str] = []

    def run(self) -> TileProgram:
        fetched = {i: streaming_cycles(n, self.chip) for i, n in self._moved(by_io_tiles=False).items()}
        gathered, beside = self._gathers(), self._moved(by_io_tiles=True)
        steps = []
        entries = zip(self.made.entries, self.works, self.plans, self.placement.brought, strict=True)
        for i, (entry, work, plan, extra) in enumerate(entries):
            phases, waited = plan.phases + extra.phases, fetched.get(i, 0) + gathered.get(i, 0)
            if waited:
                phases = phases + Phases(exchange=waited)
            if not plan.fits:
                self.infeasible.append(f"{node_name(entry.node)}: no plan keeps its temporaries within {plan.bound_bytes:,} bytes a tile; the "
                                       f"least-memory plan takes {plan.temp_bytes:,}.")
            steps.append(TileStep(i, entry.part, entry.node, work, plan, phases, self.made.repeats[entry.part]))
        rearranged = [extra.nbytes for extra in self.placement.brought]
        self._count(steps)
        self.streaming, self.gathering = (sum(n * steps[i].times * steps[i].repeats for i, n in found.items()) for found in (fetched, gathered))
        self._wait_for(beside, fetched, steps)
        self.buffered = buffers([max(beside.values(), default=0)], self.options.num_io_tiles)
        if self.program.caller is None:
            return self._result(steps, self._measured(steps, rearranged), rearranged, self._cycles(steps, {}, {}), [])
        placed = Placed(self.places, self.made, steps, self.chip)
        links = placed.links()
        ipus = placed.ipus(rearranged, _once(steps), links)
        away = placed.streaming()
        self.streaming += placed.streamed_cycles(away)
        memory = worst_of(ipus).memory
        for i, step in enumerate(steps):
            step.ipu = placed.ipu[i]
            step.live_bytes = int(memory.liveness[i] - memory.always_live.max(initial=0))
        return self._result(steps, memory, rearranged, self._cycles(steps, links.cycles, away.cycles), ipus, links, away)

    def _measured(self, steps: list[TileStep], rearranged: list[int]) -> Memory:
        """Bytes per tile, which neither bounds nor rates change."""
        if "memory" not in self.placement.facts:
            memory = measure(self.made, steps, rearranged, self.chip)
            self.placement.facts["memory"] = memory, [step.live_bytes for step in steps]
        found: tuple[Memory, list[int]] = self.placement.facts["memory"]
        for step, live in zip(steps, found[1], strict=True):
            step.live_bytes = live
        return found[0]

    def _count(self, steps: list[TileStep]) -> None:
        """Let the steps of branches and loops take what they take each time that their part runs."""
        cycles = {step.node: step.phases.total for step in steps}
        times = {node: n for graph in self.program.graphs for node, n in counted(graph, cycles).items()}
        for step in steps:
            step.times = times[step.node]
            if step.times != 1:
                step.phases = step.phases.times(step.times)

    def _moved(self, by_io_tiles: bool) -> dict[int, int]:
        """Bytes by step that come from streaming memory before it and go there after it: those that I/O tiles move while the others compute, or those
        that the tiles wait for."""
        nbytes: dict[int, int] = {}
        for storage in self.made.storages:
            for i in self._moves(storage, by_io_tiles) if storage.off_chip else ():
                nbytes[i] = nbytes.get(i, 0) + (storage.share * storage.itemsize or storage.nbytes)
        return nbytes

    def _moves(self, storage: Storage, by_io_tiles: bool) -> tuple[int, ...]:
        """The steps at which a tensor comes or goes by what I/O tiles do, or without them."""
        does = self.options.io_tiles_for.get(str(group_of(storage)), "") if self.options.num_io_tiles else ""
        loads = storage.loads if (does in ("load", "both")) == by_io_tiles else ()
        stores = storage.stores if (does in ("store", "both")) == by_io_tiles else ()
        return *loads, *stores

    def _wait_for(self, beside: dict[int, int], fetched: dict[int, int], steps: list[TileStep]) -> None:
        """Let steps take what I/O tiles hand to them, and the last of each part what these need longer than the part does anything else than
        waiting for streaming memory itself."""
        last = {step.part: step for step in steps}
        slower: dict[str, int] = {}
        for i, nbytes in beside.items():
            step = steps[i]
            cycles = streaming_cycles(nbytes, self.chip) * step.times
            self.streaming += cycles * step.repeats
            slower[step.part] = slower.get(step.part, 0) + cycles
            step.phases = step.phases + Phases(exchange=hand_over(nbytes, self.options.num_io_tiles, self.chip) * step.times)
        once = _once(steps)
        for i, cycles in fetched.items():
            once[steps[i].part] -= cycles * steps[i].times
        for part, cycles in slower.items():
            last[part].phases = last[part].phases + Phases(exchange=max(0, cycles - once[part]))

    def _gathers(self) -> dict[int, int]:
        """Cycles by step in which replicas put weights together of which each has a share."""
        nbytes: dict[int, int] = {}
        for storage in self.made.storages:
            for i in storage.loads if storage.share else ():
                nbytes[i] = nbytes.get(i, 0) + storage.share * self.shares.replicas * storage.itemsize
        ipus = len(self.places.numbers)
        return {i: collective("all-gather", n, self.shares.replicas, self.chip, ipus=ipus).cycles for i, n in nbytes.items()}

    # ---- totals ---------------------------------------------------------------------------------------------------------

    def _transfers(self) -> list[Transfer]:
        def stream(storage: Storage, to_chip: bool) -> Transfer:
            nbytes = math.prod(storage.shape) * storage.itemsize
            cycles = math.ceil(nbytes / self.chip.host_bytes_per_second * self.chip.clock_hz)
            last_only = self.program.training and not to_chip                     # training returns its last micro-batch's outputs
            part = self.made.streamed[storage]
            return Transfer(storage.name, to_chip, nbytes, cycles, 1 if last_only else self.made.repeats[part], part)
        return [stream(s, True) for s in self.made.inputs] + [stream(s, False) for s in self.made.outputs]

    def _cycles(self, steps: list[TileStep], crossing: Dict[str, int], streams: Dict[str, int]) -> int:
        """Of one weight update: its schedule with what each part takes once, what its results take from IPU to IPU, what passes to and
        from streaming memory, and what replicas do together."""
        period = order.period(self.program.schedule)
        times = order.times(period)
        together = sum(times[part] * cycles for (part, _), cycles in waits(self.collectives).items())
        return order.elapsed(period, {**_once(steps), **streams}, crossing) + together

    def _result(self, steps: list[TileStep], memory: Memory, rearranged: list[int], cycles: int, ipus: list[Ipu],
                links: Links | None = None, away: Streaming | None = None) -> TileProgram:
        phases = functools.reduce(Phases.__add__, (s.phases.times(s.repeats) for s in steps), Phases())
        transfers = self._transfers()
        modes = self.options.overlap_inputs, self.options.overlap_outputs
        io = host_io(transfers, cycles, self.program.batching, self.program.training, modes, self.options.num_io_tiles, self.chip)
        io = dataclasses.replace(io, tile_bytes=io.tile_bytes + self.buffered)
        seconds = max(cycles + io.waits, 1) / self.chip.clock_hz
        replicas = self.options.replicas
        samples = self.program.rows_per_period * replicas // self.options.same_rows
        flops = sum(s.flops for s in steps)
        worst = int(memory.peak.argmax())
        fits = bool(memory.peak[worst] <= self.chip.usable_bytes)
        if not fits:
            where = f"Tile {worst} of IPU {worst_of(ipus).number}" if ipus else f"Tile {worst}"
            self.infeasible.append(f"{where} needs {int(memory.peak[worst]):,} bytes and has {self.chip.usable_bytes:,}.")
        if io.tile_bytes > self.chip.usable_bytes:
            fits = False
            self.infeasible.append(f"Each of the {self.options.num_io_tiles} I/O tiles needs {io.tile_bytes:,} bytes for what passes through it and "
                                   f"has {self.chip.usable_bytes:,}; set aside more of them (num_io_tiles).")
        halves = any(isinstance(w, Contraction) and w.inputs[0] is not None and w.inputs[0].dtype == "float16" for w in self.works)
        peak_flops = self.machine.peak_flops("float16" if halves else device_dtype("float32", self.options.precision))
        return TileProgram(self.program, self.chip, self.options, steps, memory.always_live, memory.peak, memory.categories, memory.liveness,
                           phases, cycles, seconds, samples / seconds, flops * replicas / seconds / 1e12,
                           flops / seconds / peak_flops / max(1, len(ipus)), worst, fits,
                           self.infeasible, transfers, self.streaming, memory.peak_step, self.made, rearranged, ipus,
                           links, away, memory, self.collectives, self.shares, self.gathering, io, self.idle,
                           self.placement.facts)


def _once(steps: list[TileStep]) -> dict[str, int]:
    """Cycles of one run of each part."""
    once: dict[str, int] = {}
    for step in steps:
        once[step.part] = once.get(step.part, 0) + step.phases.total
    return once


__all__ = ["Analyses", "Contributor", "TileProgram", "Transfer", "analyze", "order_of"]
