"""The passes of the host lowering, named and in order: one list for the product and for its tests.

A part of a program goes through `FORM`, the program through `PROGRAM`, and each part of what that leaves through
`FUSION` (or `WATCHED`, where every operator is looked at), after which it becomes rows. Passes over a graph are also
done in the regions of its operators.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ..graph import Graph, Value, verify, with_inside
from ..host.rewrite import COMPOSITES, Outside, made_outside, rewrite
from ..kernels.isa.cpu import Cpu
from ..program.program import Program
from ..program.schedule import atomic
from ..strategy.cut import staged
from .anomaly import judged
from .batched_updates import batch_updates
from .coarse import coarsen
from .constants import settle
from .epilogues import fuse_epilogues
from .expand import composites, expand
from .fuse import fuse
from .guard import check_part, join, watch
from .layout import arrange
from .moves import undo_moves
from .narrow import narrow
from .pack import pack
from .pool_fusion import fuse_pools
from .prologue import hoist
from .record import record
from .rematerialise import rematerialise
from .widen import widen

VERIFIED = False
"""Whether every pass must leave what `verify` accepts: the tests say so, a user's time is not spent on it."""


@dataclass(frozen=True)
class PassSetting:
    """What passes may ask.

    cpu: the path that kernels are chosen for.
    wanted: values that are needed besides a graph's results.
    outside: of values that the graph reads, the nodes in the prologue that make them.
    writes: the part writes weights, or checks what would be written.
    seconds: by pass, the time it took so far.
    """

    cpu: Cpu
    wanted: Sequence[Value] = ()
    outside: Outside | None = None
    writes: bool = False
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Pass:
    """From a graph to a graph; the given one stays as it is, and is given back where nothing is to be done."""

    name: str
    run: Callable[[Graph, PassSetting], Graph]


@dataclass(frozen=True)
class ProgramPass:
    """From a program to a program."""

    name: str
    run: Callable[[Program, PassSetting], Program]


def _pools(graph: Graph, setting: PassSetting) -> Graph:
    pooled = fuse_pools(graph, setting.cpu, setting.wanted)
    return graph if pooled is graph else fuse_epilogues(pooled, setting.wanted)


FORM: tuple[Pass, ...] = (
    Pass("rules for composites", lambda g, s: rewrite(g, s.wanted, COMPOSITES, s.outside)),
    Pass("expand composites", lambda g, s: composites(g)),
    Pass("constants", lambda g, s: settle(g, s.wanted)),
    Pass("coarsen", lambda g, s: coarsen(g)),
    Pass("record", lambda g, s: record(g)),
    Pass("rules", lambda g, s: rewrite(g, s.wanted)),
    Pass("widen", lambda g, s: widen(g, s.cpu)),
    Pass("expand", lambda g, s: expand(g)),
    Pass("layout", lambda g, s: arrange(g, s.cpu, s.wanted)),
    Pass("moves", lambda g, s: undo_moves(g, s.wanted)),
    Pass("narrow", lambda g, s: narrow(g, s.cpu, s.wanted)))
"""Other operators, other layouts, the same results."""

PROGRAM: tuple[ProgramPass, ...] = (
    ProgramPass("hoist", lambda p, s: hoist(p)),
    ProgramPass("pack", lambda p, s: pack(p, s.cpu)),
    ProgramPass("rematerialise", lambda p, s: _rematerialised(p)),
    ProgramPass("stages", lambda p, s: staged(p)))
"""What moves between parts, what is computed twice, what is cut."""

FUSION: tuple[Pass, ...] = (
    Pass("fuse", lambda g, s: fuse(g, s.wanted, s.writes)),
    Pass("guards", lambda g, s: join(g)),
    Pass("epilogues", lambda g, s: fuse_epilogues(g, s.wanted)),
    Pass("pools", _pools),
    Pass("batch updates", lambda g, s: batch_updates(g, s.cpu) if s.writes else g))
"""Operators that run as one, and equal work side by side."""

WATCHED: tuple[Pass, ...] = (Pass("judge", lambda g, s: judged(g)),)
"""In place of `FUSION` where the first operator that makes NaN or an infinity is wanted; parts that write are fused as
ever."""


def run_passes(graph: Graph, passes: Iterable[Pass], setting: PassSetting) -> Graph:
    """The graph after the passes; the given one is not changed, and regions are left alone."""
    for step in passes:
        began = time.perf_counter()
        done = step.run(graph, setting)
        _count(setting, step.name, began)
        graph = _verified(done) if done is not graph else graph
    return graph


def host_program(program: Program, setting: PassSetting, passes: Sequence[ProgramPass] = PROGRAM) -> Program:
    """The program as the host likes to compute it: all but the fusion of its parts. The given one stays as it is."""
    program = host_form(program, setting)
    for step in passes:
        began, before = time.perf_counter(), set(map(id, program.graphs))
        program = step.run(program, setting)
        _count(setting, step.name, began)
        for graph in program.graphs:
            if id(graph) not in before:
                _verified(graph)
    return program


def host_form(program: Program, setting: PassSetting) -> Program:
    """The program with every part in its `FORM`."""
    setting = replace(setting, wanted=[*program.links.values(), *([program.loss] if program.loss else [])])
    prologue = program.parts["prologue"]
    return program.with_parts({name: formed(graph,
                                            replace(setting, outside=made_outside(graph, prologue, program.links)))
                               for name, graph in program.parts.items()})


def formed(graph: Graph, setting: PassSetting) -> Graph:
    """The graph, and what is in its regions, in the host's form."""
    return with_inside(run_passes(graph, FORM, setting), partial(formed, setting=replace(setting, outside=None)))


def part_forms(program: Program, setting: PassSetting,
               watched: bool = False) -> tuple[dict[str, Graph], dict[str, Graph]]:
    """By part of the host's program, the graph that becomes rows; and by part that is done whole or not at all, the
    check that may refuse it."""
    whole, given = atomic(program.schedule), set(program.outputs)
    forms, checks = {}, {}
    for name, graph in program.running:
        writes = name in whole
        check = check_part(graph) if writes else None
        if check is not None and check.nodes:
            checks[name] = fused(check, replace(setting, writes=True), watched)
        wanted = [*program.kept(name), *(v for v in graph.outputs if v in given)]
        forms[name] = fused(watch(graph) if writes else graph, replace(setting, wanted=wanted, writes=writes), watched)
    return forms, checks


def fused(graph: Graph, setting: PassSetting, watched: bool = False) -> Graph:
    """The graph with operators put together that run as one, in its regions first.

    watched: every operator is looked at, so none is put together but in a part that writes, and regions stay as they
    are.
    """
    if not watched:
        graph = with_inside(graph, partial(fused, setting=replace(setting, wanted=(), writes=False)))
    return run_passes(graph, WATCHED if watched and not setting.writes else FUSION, setting)


def _rematerialised(program: Program) -> Program:
    """The program with the marked blocks of its parts computed again for their backward passes."""
    linked = set(program.links.values())
    return program.with_parts({name: rematerialise(graph, {*linked, *program.kept(name)})
                               for name, graph in program.parts.items()})


def _count(setting: PassSetting, name: str, began: float) -> None:
    setting.seconds[name] = setting.seconds.get(name, 0.0) + time.perf_counter() - began


def _verified(graph: Graph) -> Graph:
    return verify(graph, lowered=True) if VERIFIED else graph
