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
from tileflow.executable.engine import Engine
from tileflow.graph import Graph
from tileflow.kernels.machine import job
from tileflow.kernels.machine.boards import ROW_WORDS
from tileflow.kernels.machine.table import AGAIN, BRANCH, LEAF, REPEAT, Table, Word
from tileflow.passes.cse import cse
from tileflow.passes.fold import fold
from tileflow.program.batching import Batching
from tileflow.program.program import Program
from tileflow.program.schedule import Atomic, Refresh, Repeat, Run
from tileflow.runtime.executable import make_engine
from tileflow.runtime.host import Host
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


JUMPS = {REPEAT: 4, AGAIN: 4, BRANCH: 3}
"""By kind, which word of a row is another row's number."""


class Repeated:
    """The rows of an engine again and again, with the addresses of its last call."""

    def __init__(self, engine: Engine) -> None:
        self._workers, self._turns, self._engine = engine.image.workers, Word(1), engine
        main, *others = engine.table.tasks
        self._counter = counter = Word()
        begin = [REPEAT, counter.address, 0, self._turns.address, len(main.rows) + 2]
        again = [AGAIN, counter.address, 0, self._turns.address, 1]
        rows = np.array([[*row, *[0] * (ROW_WORDS - len(row))] for row in (begin, *main.rows, again)], np.int64)
        for row in rows[1:-1]:
            if (at := JUMPS.get(int(row[0]))) is not None:
                row[at] += 1
        tasks = [(np.array(task.rows, np.int64), task.owners) for task in others]
        self._table = Table.of([(rows, [None, *main.owners, None]), *tasks])

    def run(self, times: int) -> None:
        self._turns.value = times
        assert job.run(self._table, self._workers) is True


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
    tables[0].seal()
    rows = {}
    for task in engine.table.tasks:
        for row, owner in zip(task.rows, task.owners, strict=True):
            if row[0] == LEAF and owner is not None and (owner.stage, owner.part, owner.ahead) == ("step", "micro", 0):
                rows.setdefault(row[2], (row, owner))
    tables += [Table.of([(np.array([row]), [owner])]) for row, owner in rows.values()]
    times: list[list[int]] = [[] for _ in tables]
    for _ in range(PASSES):
        for found, table in zip(times, tables, strict=True):
            began = time.perf_counter_ns()
            job.run(table, engine.image.workers)
            found.append(time.perf_counter_ns() - began)
    empty, *taken = [statistics.median(found) for found in times]
    return [(owner.operator or "copy", f"{_leaf(engine, row[1])}: {owner.origin or 'copy'}", 1e-9 * max(0.0, t - empty))
            for (row, owner), t in zip(rows.values(), taken, strict=True)]


def _leaf(engine: Engine, address: int) -> str:
    """What the leaf at an address is called."""
    return engine.image.kernels[engine.kernels.index(address)].split("-")[0].rpartition(".")[2]
