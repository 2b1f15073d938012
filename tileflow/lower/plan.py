"""The Plan: all graphs of a Program as rows over named regions, still without addresses, so that sessions can share it."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..graph import Graph, Value
from ..graph.collector import without_collector
from ..graph.rewrite import rewrite
from ..kernels.isa import cpu
from ..kernels.machine import limits
from ..kernels.machine.leaf import Leaf
from ..program import Program
from .attach import attach
from .expand import composites, expand
from .fuse import fuse
from .guard import check_part, join, watch
from .layout import arrange
from .memory import side_by_side
from .pack import pack
from .planes import pool_planes
from .record import record
from .rows import Lowered, Place, lower
from .widen import widen

LANE_MEMORY_SHARE = 0.25
"""Lanes side by side may take this share of the memory that can be had; a larger model runs one micro-batch over all workers."""


@dataclass
class Plan:
    """Rows per part, and how micro-batches run: `lanes` side by side, or (lanes = 1) one at a time over all workers.

    `check` runs before `update` and refuses what must not be written (see `lower.guard`).
    """

    program: Program
    prologue: Lowered
    micro: Lowered
    fold: Lowered
    check: Lowered
    update: Lowered
    lanes: int
    workers: int

    @property
    def parts(self) -> tuple[Lowered, ...]:
        return self.prologue, self.micro, self.fold, self.check, self.update

    def leaves(self) -> list[Leaf]:
        """Every distinct leaf the plan calls, in order of first use."""
        return list(dict.fromkeys(row.leaf for part in self.parts for row in part.rows))

    def to_text(self) -> str:
        """Rows by part."""
        lines = [f"{self.lanes} lanes, {self.workers} workers"]
        for name, part in zip(("prologue", "micro", "fold", "check", "update"), self.parts, strict=True):
            lines.append(f"{name}: {part.arena_bytes} bytes")
            lines += [f"  {row.leaf.name:<24} n={row.n} cost={row.cost / 1e3:.1f} us  {row.node.origin if row.node else 'copy'}"
                      for row in part.rows]
        return "\n".join(lines)


@without_collector
def make_plan(program: Program, workers: int, precision: str = "highest") -> Plan:
    """Lower a program for `workers` threads, with float32 products of that precision (`kernels.cpu.precision`)."""
    with cpu.precision(precision):
        return _choose(pack(host_form(program)), workers)


def _choose(program: Program, workers: int) -> Plan:
    """With lanes for micro-batches side by side, if there is memory for them."""
    together = program.batching.gradient_accumulation if program.training else program.batching.micro_batches
    lanes = min(workers, together)
    if lanes > 1:
        plan = _lower(program, lanes, workers)
        if lanes * plan.micro.arena_bytes <= LANE_MEMORY_SHARE * _memory():
            return plan
    return _lower(program, 1, workers)


def host_form(program: Program) -> Program:
    """The program as the host likes to compute it: other operators, other layouts, the same results. The given one stays as it is."""
    wanted = [*program.links.values(), *([program.loss] if program.loss else [])]
    prologue, micro, fold, update = (arrange(expand(widen(rewrite(record(composites(graph)), wanted))), wanted) for graph in program.graphs)
    return replace(program, prologue=prologue, micro=micro, fold=fold, update=update)


def _lower(program: Program, lanes: int, workers: int) -> Plan:
    """Rows of all parts. A lane runs its micro-batch alone; everything else may run over all workers and needs their scratch."""
    places: dict[Value, Place] = {}

    def outside(graph: Graph) -> dict[Value, Place]:
        found: dict[Value, Place] = {v: Place(("constant", v)) for v in graph.constants}
        region = "pending" if graph is program.fold else "state"
        for s in graph.states:
            buffered = region if s.kind == "buffer" and s.output is not None else "state"
            found[s.input] = Place((buffered, s.name))
        for v in graph.inputs:
            found[v] = places[program.links[v]] if v in program.links else Place(("io", v.name))
        return found

    def part(graph: Graph, arena: str, keep: list[Value], rows: int) -> Lowered:
        user = program.micro.outputs[:user_outputs(program)] if graph is program.micro else []
        direct = {v: Place(("io", v.name)) for v in user}
        wanted = [*keep, *user]
        joined = attach(join(fuse(graph, wanted)), wanted)
        pooled = pool_planes(joined, wanted)
        lowered = lower(joined if pooled is joined else attach(pooled, wanted), arena, outside(graph).get, keep=keep, direct=direct, workers=rows)
        places.update(lowered.places)
        places.update({v: Place(("arena", arena), at) for v, at in side_by_side(keep)[0].items()})
        return lowered

    prologue = part(program.prologue, "packed", list(program.prologue.outputs), workers)
    linked = {v for v in program.links.values()}
    made = [v for node in program.micro.nodes for v in node.outputs]
    carried = program.micro.outputs[user_outputs(program):]
    present = set(carried)
    keep = carried + [v for v in made if v in linked and v not in present]
    if program.loss is not None and program.training and program.loss not in keep:
        keep.append(program.loss)
    micro = part(program.micro, "micro", keep, workers if lanes == 1 else 1)
    fold = part(program.fold, "fold", [], workers)
    check = part(check_part(program.update), "check", [], workers)
    update = part(watch(program.update), "update", [], workers)
    return Plan(program, prologue, micro, fold, check, update, lanes, workers)


def user_outputs(program: Program) -> int:
    """How many of the micro-step's outputs the caller gets: all but the gradients that follow the loss."""
    if program.loss is None:
        return len(program.micro.outputs)
    return next(i for i, v in enumerate(program.micro.outputs) if v is program.loss) + 1


def _memory() -> float:
    room = limits.memory()
    return math.inf if room is None else room.nbytes
