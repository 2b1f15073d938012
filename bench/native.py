"""One operator as the engine calls it: a graph through the ordinary compile path, its table repeated in the native driver.

Nothing is special about a benchmark's operator: `compiler.inference` and `make_engine` make the rows that a network
with this operator would have. Only a REPEAT around its rows is more: so it runs without Python in between.
"""
from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

import numpy as np

from tileflow import compiler
from tileflow.graph import Graph
from tileflow.kernels.machine import job
from tileflow.kernels.machine.table import Table, Word
from tileflow.lower.rows import Row
from tileflow.passes.cse import cse
from tileflow.passes.fold import fold
from tileflow.program.program import Batching, Program
from tileflow.program.schedule import Atomic, Refresh, Repeat, Run
from tileflow.runtime.binding import every_bound
from tileflow.runtime.engine import Engine
from tileflow.runtime.executable import Host, make_engine
from tileflow.runtime.tables import Owner, Tables
from tileflow.state import Session


class Native:
    """A forward graph bound to arrays; `run(times)` repeats one call, `outputs` are what it computed."""

    def __init__(self, graph: Graph, inputs: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray], *, micro_batches: int = 1,
                 prologue: bool = False, threads: int = 1) -> None:
        """Args:
            inputs: for each input of the graph, `micro_batches` times its rows.
            weights: arrays of the graph's states.
            prologue: a call begins with what depends on weights only, as after an update.
        """
        program = compiler.inference(graph, Batching(1, 1, micro_batches)).program
        if prologue:
            program.schedule = tuple(other for step in program.schedule for other in (step.steps if isinstance(step, Refresh) else (step,)))
        self._engine = make_engine(program, Session(), weights, Host(threads))
        self._inputs = dict(inputs)
        results = self._engine.run(self._inputs)               # binds the arrays and runs the prologue once
        self._results = results
        self.outputs = [results[v.name] for v in self._engine.outputs]
        """[micro-batches, *shape] each."""
        self._repeat = Repeated(self._engine)

    def run(self, times: int) -> None:
        """Compute everything `times` times."""
        self._repeat.run(times)


class Repeated:
    """The rows of an engine again and again, with the addresses of its last call."""

    def __init__(self, engine: Engine) -> None:
        self._workers, self._turns = engine.plan.workers, Word(1)
        self._tables = Tables(engine.plan, engine.arenas, engine.seed, self._turns)
        self._tables.words[:] = engine.tables.words

    def run(self, times: int) -> None:
        self._turns.value = times
        assert job.run(self._tables.table, self._workers) is True


class NativeUpdate:
    """The rows of an update graph (an optimizer's step), and of what refuses it, over a session's states, with fixed hyper-parameters."""

    def __init__(self, update: Graph, initial: Mapping[str, np.ndarray], hyper: Mapping[str, float], threads: int) -> None:
        steps = (Repeat(1, (Atomic((Run("update"),)),), "update"),)
        program = Program.of(Graph("micro"), Batching(1)).with_parts({"update": cse(fold(update))}, schedule=steps)
        engine = make_engine(program, Session(), initial, Host(threads))
        self.session = engine.session
        before = self.session.snapshot("parameter", "buffer", "optimizer", "accumulator")
        engine.run({}, scalars=lambda _: hyper)                                          # binds everything
        self.session.put(before)
        self._repeat = Repeated(engine)

    def run(self, times: int) -> None:
        """Do `times` updates."""
        self._repeat.run(times)


PASSES = 20
"""Runs that a profile takes the medians of."""


def profile(engine: Engine) -> list[tuple[str, str, float]]:
    """Operator, leaf and origin, seconds of every row of an engine's micro-step, run one by one, in order, with the last call's arrays,
    which somebody must hold: its results are written again.

    What Python and the driver take for a row is measured on a table without rows, and subtracted. A product's row with an epilogue counts as
    the product; rows of all branches, and of one turn of a loop, count once.
    """
    tables = [Table()]
    group = engine.tables.group("micro")
    rows = list(every_bound(group.items))
    for bound in rows:
        tables.append(Table())
        engine.tables.leaf(tables[-1].main, bound, group.block[id(bound)], Owner("step", "micro", bound.row.node, 0))
    for table in tables:
        table.seal()
    times: list[list[int]] = [[] for _ in tables]
    for _ in range(PASSES):
        for found, table in zip(times, tables, strict=True):
            began = time.perf_counter_ns()
            job.run(table, engine.plan.workers)
            found.append(time.perf_counter_ns() - began)
    empty, *taken = [statistics.median(found) for found in times]
    return [(_operator(bound.row), f"{bound.row.name}: {bound.row.node.origin if bound.row.node else 'copy'}",
             1e-9 * max(0.0, t - empty))
            for bound, t in zip(rows, taken, strict=True)]


def _operator(row: Row) -> str:
    return "copy" if row.node is None else str(getattr(row.node.op, "op", row.node.op).name)
