"""analyze(): a Program on a chip. Every operator planned, every tensor placed, cycles and bytes per tile added up.

Cycles are bulk-synchronous: per operator the worst tile decides each phase, and operators follow one another. The tiles wait for streams to and from
the host, unless I/O tiles let them pass meanwhile (`tiles.hardware.io`).
"""
from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping as Dict

from ..graph import Graph, Node, with_inside
from ..graph.composite import declares, expanded, trimmed
from ..graph.work import Contraction, Map, Staged, Work, sized
from ..program import schedule as order
from ..program.program import Program
from ..strategy.cut import staged
from ..system.errors import OptionError
from .hardware.chip import Chip, device_dtype
from .hardware.functions import raised
from .hardware.io import Transfer, buffers, computing, hand_over, host_io
from .placing.choose import Chooser
from .placing.layout import NOTHING, Layouts, Rearrangement
from .placing.memory import Memory, measure
from .placing.widened import multiplied, widening
from .plans.plan import OpPlan, Phases, TileOptions, TileStep, node_name
from .plans.planner import PlanCache, by_name
from .plans.spread import on_device
from .program.order import weight_by_weight
from .program.recompute import recomputed
from .program.schedule import ScheduledNode, Storage, entries_of, schedule
from .program.turns import counted
from .system.ipus import Ipu, Links, Placed, Places, Streaming, worst_of
from .system.links import collective, waits
from .system.locations import GROUPS, OFF_CHIP_FROM, OffChip, group_of, offload
from .system.sharding import SHARDED_FROM, Shares, shared_out
from .system.streaming import streaming_cycles
from .tiled import Contributor, TileProgram

_SHARED: PlanCache = {}
"""Plans and works already made in this process: analyses of one program (a sweep, the levers of an error) share nearly all."""
_SHARED_MOST = 100_000

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
    options = options or TileOptions()
    if len(_SHARED) > _SHARED_MOST:
        _SHARED.clear()
    program = _in_parts(program)
    if options.recompute or (program.staging is not None and program.staging.recompute):
        program = recomputed(program)
    program, shares = _shared_out(staged(program), options)
    program, cache = weight_by_weight(program), _SHARED if cache is None else cache
    whole = _Analysis(program, chip, options, cache, shares)
    best, tiles = whole.run(), chip.tiles // 2
    while whole.points <= FEW_POINTS and tiles > options.num_io_tiles:
        try:
            fewer = _Analysis(program, chip, options, cache, shares, tiles).run()
        except OptionError:                                    # a pinned plan takes more tiles
            break
        best, tiles = min(best, fewer, key=order_of), tiles // 2
    return best


def order_of(tiled: TileProgram) -> tuple[bool, int, int]:
    """What makes one plan of a program better than another, the less the better: that it fits, operators within their
    bounds, cycles."""
    return not tiled.fits, len(tiled.infeasible), tiled.cycles_per_update


def _shared_out(program: Program, options: TileOptions) -> tuple[Program, Shares]:
    """The program as one of the replicas runs it, where they keep shares of states."""
    if not options.optimizer_sharded:
        return program, Shares(options.replicas)
    least = options.min_elements_sharded
    of_weights = least.get("weights", SHARDED_FROM) if options.weights_sharded else None
    return shared_out(program, options.replicas, least.get("optimizer", SHARDED_FROM), of_weights)


def _in_parts(program: Program) -> Program:
    """The program with the parts of the operators that do not say what they do."""
    def parts(graph: Graph) -> Graph:
        found = expanded(graph, lambda node: not declares(node.op, "work") and not node.op.regions)
        return with_inside(trimmed(found), parts)
    graphs = {name: parts(graph) for name, graph in program.parts.items()}
    return program if graphs == program.parts else program.with_parts(graphs)


class _Analysis:
    """One run of analyze()."""

    def __init__(self, program: Program, chip: Chip, options: TileOptions, cache: PlanCache, shares: Shares,
                 tiles: int | None = None) -> None:
        """tiles: of the chip that are used; None: all."""
        self.program, self.options, self.cache, self.shares, self.machine = program, options, cache, shares, chip
        self.idle = 0 if tiles is None else chip.tiles - tiles
        self.chip = chip = computing(dataclasses.replace(chip, tiles=chip.tiles - self.idle) if self.idle else chip,
                                     options.num_io_tiles)
        self.known = {v: float(a.item()) for graph in program.graphs for v, a in graph.constants.items() if a.size == 1 and a.dtype.kind in "fiu"}
        """Numbers that are known before the program runs."""
        self.entries: list[ScheduledNode] = entries_of(program)
        self.works = [self.work(e.node) for e in self.entries]
        self.made = schedule(program, self.works, options.precision)
        offload(program, self.made, {g: OffChip(options.min_elements_off_chip.get(g, OFF_CHIP_FROM)) for g in GROUPS
                                     if getattr(options, f"{g}_off_chip")}, shares={name: shares.elements[name] for name in shares.weights})
        self.layouts = Layouts(self.made, chip)
        self._lay_shares()
        self.places = Places(program, self.made)
        self.chooser = Chooser(self.made, self.works, chip, options, cache, self.places.of_node)
        self.collectives = self.places.collectives(chip, shares, options.shared_by)
        self.infeasible: list[str] = []

    @property
    def points(self) -> int:
        """That all operators compute in an update."""
        return sum(w.points * self.made.repeats[e.part] for e, w in zip(self.entries, self.works, strict=True))

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
            work = sized(op.work(inputs, outputs), [None if t is None else t.shape for t in inputs], [t.shape for t in outputs])
            found = self.cache[key] = on_device(work, self.options.precision)
        found = multiplied(node, found, self.chip)
        second = node.inputs[1] if len(node.inputs) == 2 and isinstance(found, Map) else None
        functions = found.functions if second is None or second not in self.known else raised(found.functions, self.known[second])
        return found if functions is found.functions else dataclasses.replace(found, functions=functions)

    def run(self) -> TileProgram:
        steps, rearranged = [], []
        fetched = {i: streaming_cycles(n, self.chip) for i, n in self._moved(by_io_tiles=False).items()}
        gathered, beside = self._gathers(), self._moved(by_io_tiles=True)
        for i, (entry, work) in enumerate(zip(self.entries, self.works, strict=True)):
            plan, extra = self.place(entry.node, work)
            phases = plan.phases + extra.phases + Phases(exchange=fetched.get(i, 0) + gathered.get(i, 0))
            if not plan.fits:
                self.infeasible.append(f"{node_name(entry.node)}: no plan keeps its temporaries within {plan.bound_bytes:,} bytes a tile; the "
                                       f"least-memory plan takes {plan.temp_bytes:,}.")
            steps.append(TileStep(i, entry.part, entry.node, work, plan, phases, self.made.repeats[entry.part]))
            rearranged.append(extra.nbytes)
        for storage in self.made.storages:
            if storage.mapping is None:
                storage.mapping = self.layouts.linear(storage)
        self._count(steps)
        self.streaming, self.gathering = (sum(n * steps[i].times * steps[i].repeats for i, n in found.items()) for found in (fetched, gathered))
        self._wait_for(beside, fetched, steps)
        self.buffered = buffers([max(beside.values(), default=0)], self.options.num_io_tiles)
        if self.program.caller is None:
            return self._result(steps, measure(self.made, steps, rearranged, self.chip), rearranged, self._cycles(steps, {}, {}), [])
        placed = Placed(self.places, steps, self.chip)
        links = placed.links()
        ipus = placed.ipus(rearranged, _once(steps), links)
        away = placed.streaming()
        self.streaming += placed.streamed_cycles(away)
        memory = worst_of(ipus).memory
        for i, step in enumerate(steps):
            step.ipu = placed.ipu[i]
            step.live_bytes = int(memory.liveness[i] - memory.always_live.max(initial=0))
        return self._result(steps, memory, rearranged, self._cycles(steps, links.cycles, away.cycles), ipus, links, away)

    def _count(self, steps: list[TileStep]) -> None:
        """Let the steps of branches and loops take what they take each time that their part runs."""
        cycles = {step.node: step.phases.total for step in steps}
        times = {node: n for graph in self.program.graphs for node, n in counted(graph, cycles).items()}
        for step in steps:
            step.times = times[step.node]
            if step.times != 1:
                step.phases = step.phases.times(step.times)

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
        extra = self.layouts.arrange(node, work, plan) + widening(node, work, plan, self.chip)
        self.layouts.produce(node, work, plan)
        return plan, extra

    def _plan(self, node: Node, work: Work) -> OpPlan:
        """Where an input lies, or as is best without regard to that, whichever takes fewer cycles with what must be brought; element-wise operators
        stay where their input lies, unless that is few tiles."""
        along = self.layouts.follow(node, work)
        follows = isinstance(work, Map) and not isinstance(work, Staged)
        if along is not None and follows and not self.layouts.crowded(node, along):
            return along
        own, others = self.chooser.plan(node, work), self.chooser.others(node, work)
        if along is None and not others:
            return own

        def cost(plan: OpPlan) -> tuple[bool, int, int]:
            extra = self.layouts.arrange(node, work, plan, settle=False)
            beyond = own.bound_bytes is not None and plan.temp_bytes > own.bound_bytes
            return beyond, plan.phases.total + extra.phases.total, plan.temp_bytes + extra.nbytes
        return min((*([] if along is None else [along]), own, *others), key=cost)

    def _lay_shares(self) -> None:
        """What an update is given of one weight as shares lies alike, so that nothing travels within it."""
        for values in self.shares.alike.values():
            mapping = self.layouts.linear(self.made.of[values[0]]) if values else None
            for value in values:
                self.made.of[value].mapping = mapping

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
                           links, away, memory, self.collectives, self.shares, self.gathering, io, self.idle)


def _once(steps: list[TileStep]) -> dict[str, int]:
    """Cycles of one run of each part."""
    once: dict[str, int] = {}
    for step in steps:
        once[step.part] = once.get(step.part, 0) + step.phases.total
    return once


__all__ = ["Contributor", "TileProgram", "Transfer", "analyze", "order_of"]
