"""A program as the tiles run it, before a chip is asked how: in parts, recomputed, shared out, in stages, with what
every operator does and how long every tensor lives."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ..graph import Graph, Node, with_inside
from ..graph.composite import declares, expanded, trimmed
from ..graph.work import Map, Work, sized
from ..program.program import Program
from ..strategy.cut import staged
from .hardware.chip import Chip
from .hardware.functions import raised
from .placing.widened import multiplied
from .plans.plan import TileOptions
from .plans.planner import PlanCache, by_name
from .plans.spread import on_device
from .program.order import weight_by_weight
from .program.recompute import recomputed
from .program.schedule import MemorySchedule, entries_of, schedule
from .system.ipus import Places
from .system.locations import GROUPS, OFF_CHIP_FROM, OffChip, offload
from .system.sharding import SHARDED_FROM, Shares, shared_out


@dataclass(frozen=True)
class Prepared:
    """works: of the schedule's entries. made: tensors of it have no places; analyses place copies of them."""

    program: Program
    shares: Shares
    works: list[Work]
    made: MemorySchedule
    places: Places

    @property
    def points(self) -> int:
        """That all operators compute in an update."""
        return sum(w.points * self.made.repeats[e.part] for e, w in zip(self.made.entries, self.works, strict=True))


def prepare(program: Program, chip: Chip, options: TileOptions, cache: PlanCache) -> Prepared:
    """What a program is to the tiles. Of the chip it depends on how bytes are multiplied, of the options on all but
    proportions."""
    program = _in_parts(program)
    if options.recompute or (program.staging is not None and program.staging.recompute):
        program = recomputed(program)
    program, shares = _shared_out(staged(program), options)
    program = weight_by_weight(program)
    known = {v: float(a.item()) for graph in program.graphs for v, a in graph.constants.items()
             if a.size == 1 and a.dtype.kind in "fiu"}                 # numbers before the program runs
    works = []
    for entry in entries_of(program):
        work = multiplied(entry.node, _work(entry.node, options, cache), chip)
        second = entry.node.inputs[1] if len(entry.node.inputs) == 2 and isinstance(work, Map) else None
        if second is not None and second in known:
            functions = raised(work.functions, known[second])
            work = work if functions is work.functions else dataclasses.replace(work, functions=functions)
        works.append(work)
    made = schedule(program, works, options.precision)
    leaving = {g: OffChip(options.min_elements_off_chip.get(g, OFF_CHIP_FROM)) for g in GROUPS
               if getattr(options, f"{g}_off_chip")}
    offload(program, made, leaving, shares={name: shares.elements[name] for name in shares.weights})
    return Prepared(program, shares, works, made, Places(program, made))


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


def _work(node: Node, options: TileOptions, cache: PlanCache) -> Work:
    """What a node does, in the device's element types; a product to be serialized, in pieces (its gradients are
    serialized by the pass that runs before autograd)."""
    op = node.op
    if node.origin.role == "forward" and options.serialized:
        wanted = by_name(options.serialized, node.origin.sources)
        op = (op.serialized(*wanted) if wanted else None) or op
    inputs, outputs = tuple(None if v is None else v.type for v in node.inputs), tuple(v.type for v in node.outputs)
    key = "work", op, inputs, outputs, options.precision
    found: Work | None = cache.get(key)
    if found is None:
        shapes = [None if t is None else t.shape for t in inputs], [t.shape for t in outputs]
        found = cache[key] = on_device(sized(op.work(inputs, outputs), *shapes), options.precision)
    return found
