"""The Plan: all graphs of a Program as rows over named regions, still without addresses, so that sessions can share it."""
from __future__ import annotations

import math
from dataclasses import dataclass

from ..graph import Graph, Value, with_inside
from ..graph.collector import without_collector
from ..host.rewrite import rewrite
from ..kernels.isa import cpu
from ..kernels.machine import limits
from ..kernels.machine.leaf import Leaf
from ..program import Program
from ..schedule import Steps, atomic, folded, in_flight, in_waves, to_text, widest
from .again import again
from .alike import alike
from .anomaly import judged
from .attach import attach
from .coarse import coarsen
from .expand import composites, expand
from .fuse import fuse
from .guard import check_part, join, watch
from .layout import arrange
from .memory import side_by_side
from .moves import undo_moves
from .narrow import narrow
from .pack import pack
from .planes import pool_planes
from .record import record
from .row import Lowered, Place
from .rows import lower
from .through import through
from .widen import widen

LANE_MEMORY_SHARE = 0.25
"""Lanes side by side may take this share of the memory that can be had; a larger model runs one micro-batch over all workers."""


@dataclass
class Plan:
    """Rows by part, and the program's schedule as the host runs it: `lanes` micro-batches side by side, or (lanes = 1) one at a time over all
    workers.

    checks: by part, the rows that refuse what an atomic part must not write (see `lower.guard`). Arenas are called as parts and checks are.
    """

    program: Program
    schedule: Steps
    parts: dict[str, Lowered]
    checks: dict[str, Lowered]
    lanes: int
    workers: int

    @property
    def micro(self) -> Lowered:
        """The model's own step."""
        return self.parts["micro"]

    @property
    def lowered(self) -> dict[str, Lowered]:
        """Parts and checks by the names of their arenas."""
        return {part.arena: part for part in (*self.parts.values(), *self.checks.values())}

    @property
    def in_flight(self) -> dict[str, int]:
        """How many arenas there are of each part and check."""
        return {**dict.fromkeys(self.lowered, 1), **in_flight(self.schedule)}

    def leaves(self) -> list[Leaf]:
        """Every distinct leaf the plan calls, in order of first use."""
        return list(dict.fromkeys(row.leaf for part in self.lowered.values() for row in part.every_row()))

    def to_text(self) -> str:
        """The schedule, then rows by part."""
        lines = [f"{self.lanes} lanes, {self.workers} workers", to_text(self.schedule)]
        for name, part in self.lowered.items():
            lines.append(f"{name}: {part.arena_bytes} bytes")
            lines += [f"  {row.leaf.name:<24} n={row.n} cost={row.cost / 1e3:.1f} us  {row.node.origin if row.node else 'copy'}"
                      for row in part.every_row()]
        return "\n".join(lines)


@without_collector
def make_plan(program: Program, workers: int, precision: str = "highest", detect_anomaly: bool = False) -> Plan:
    """Lower a program for `workers` threads, with float32 products of that precision (`kernels.cpu.precision`). detect_anomaly: the first operator
    that makes NaN or an infinity fails (see `lower.anomaly`)."""
    with cpu.precision(precision):
        path = cpu.current()
        return _choose(with_blocks_again(pack(host_form(program, path), path)), workers, path, detect_anomaly)


def _choose(program: Program, workers: int, path: cpu.Cpu, watchful: bool) -> Plan:
    """With lanes for micro-batches side by side, if there is memory for them."""
    lanes = min(workers, widest(program.schedule))
    if lanes > 1:
        plan = _lower(program, lanes, workers, path, watchful)
        if sum(n * plan.lowered[part].arena_bytes for part, n in plan.in_flight.items() if n > 1) <= LANE_MEMORY_SHARE * _memory():
            return plan
    return _lower(program, 1, workers, path, watchful)


def host_form(program: Program, path: cpu.Cpu) -> Program:
    """The program as the host likes to compute it: other operators, other layouts, the same results. The given one stays as it is."""
    wanted = [*program.links.values(), *([program.loss] if program.loss else [])]

    def form(graph: Graph) -> Graph:
        return with_inside(through(graph, composites, coarsen, record, lambda g: rewrite(g, wanted), lambda g: widen(g, path), expand,
                       lambda g: arrange(g, path, wanted), lambda g: undo_moves(g, wanted), lambda g: narrow(g, path, wanted)), form)

    return program.with_parts({name: form(graph) for name, graph in program.parts.items()})


def with_blocks_again(program: Program) -> Program:
    """The program with the marked blocks of its parts computed again for their backward passes."""
    linked = set(program.links.values())
    return program.with_parts({name: through(graph, lambda g, name=name: again(g, {*linked, *program.kept(name)}))       # type: ignore[misc]
                               for name, graph in program.parts.items()})


def _lower(program: Program, lanes: int, workers: int, path: cpu.Cpu, watchful: bool) -> Plan:
    """Rows of all parts. A lane runs its micro-batch alone; everything else may run over all workers and needs their scratch."""
    steps = in_waves(program.schedule, lanes)
    folds, guarded, flying = folded(steps), atomic(steps), in_flight(steps)
    given = set(program.outputs)
    places: dict[Value, Place] = {}

    def outside(graph: Graph, region: str) -> dict[Value, Place]:
        found: dict[Value, Place] = {v: Place(("constant", v)) for v in graph.constants}
        for s in graph.states:
            buffered = region if s.kind == "buffer" and s.output is not None else "state"
            found[s.input] = Place((buffered, s.name))
        for v in graph.inputs:
            found[v] = places[program.links[v]] if v in program.links else Place(("io", v.name))
        return found

    def inner(graph: Graph) -> Graph:
        graph = with_inside(graph, inner)
        return graph if watchful else joined(graph, [], False)

    def joined(graph: Graph, wanted: list[Value], together: bool) -> Graph:
        """Elementwise work put together, and onto the products that it alone reads."""
        found = through(graph, lambda g: fuse(g, wanted, together), join, lambda g: attach(g, wanted))
        pooled = through(found, lambda g: pool_planes(g, path, wanted))
        return found if pooled is found else through(pooled, lambda g: attach(g, wanted))

    def lowered(graph: Graph, arena: str, keep: list[Value], region: str = "state", threads: int = workers, together: bool = False) -> Lowered:
        direct = {v: Place(("io", v.name)) for v in graph.outputs if v in given}
        wanted = [*keep, *direct]
        graph = with_inside(graph, inner)
        if watchful and not together:
            found = lower(through(graph, judged), arena, outside(graph, region).get, keep=keep, direct=direct, workers=threads, cpu=path)
            return placed(found, keep)
        form = joined(graph, wanted, together)
        form = through(form, lambda g: alike(g, path)) if together else form
        found = lower(form, arena, outside(graph, region).get, keep=keep, direct=direct, workers=threads, cpu=path,
                      together=together)
        return placed(found, keep)

    def placed(found: Lowered, keep: list[Value]) -> Lowered:
        places.update(found.places)
        places.update({v: Place(("arena", found.arena), at) for v, at in side_by_side(keep)[0].items()})
        return found

    parts, checks = {}, {}
    for name, graph in program.running:
        check = check_part(graph) if name in guarded else None
        if check is not None and check.nodes:
            checks[name] = lowered(check, f"{name}.check", [], together=True)
        parts[name] = lowered(watch(graph) if name in guarded else graph, name, program.kept(name), "pending" if name in folds else "state",
                              workers if flying[name] == 1 else 1, name in guarded)
    return Plan(program, steps, parts, checks, lanes, workers)


def _memory() -> float:
    room = limits.memory()
    return math.inf if room is None else room.nbytes
