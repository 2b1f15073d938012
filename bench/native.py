"""One operator as the engine calls it: a graph through the ordinary compile path, its table repeated in the native driver.

Nothing is special about a benchmark's operator: `compiler.inference` and `make_engine` make the rows that a network
with this operator would have. Only the table's end differs: a LOOP row repeats it without Python in between.
"""
from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

import numpy as np

from tileflow import compiler
from tileflow.graph import Graph
from tileflow.kernels.machine import driver
from tileflow.passes.cse import cse
from tileflow.passes.fold import fold
from tileflow.program import Batching, Program
from tileflow.runtime.binding import Blocks, Patches, call_row
from tileflow.runtime.engine import HYPER, Engine
from tileflow.runtime.executable import Host, make_engine
from tileflow.runtime.session import Session


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
        self._engine = make_engine(program, Session(), weights, Host(threads))
        self._inputs = dict(inputs)
        results = self._engine.run(self._inputs)               # binds the arrays and runs the prologue once
        self._results = results
        self.outputs = [results[v.name] for v in self._engine.outputs]
        """[micro-batches, *shape] each."""
        first = self._engine.prologue_table if prologue else self._engine.table[:0]
        self._repeat = Repeat(self._engine, [first, self._engine.table])

    def run(self, times: int) -> None:
        """Compute everything `times` times."""
        self._repeat.run(times)


class Repeat:
    """Tables of an engine, one after the other, again and again."""

    def __init__(self, engine: Engine, tables: Sequence[np.ndarray]) -> None:
        self._engine = engine
        self._count = np.ones(1, np.int64)
        rows, start = [], 0
        for table in tables:
            moved = table.copy()
            moved[moved[:, 0] == driver.LOOP, 5] += start      # jumps are to rows of the whole table
            rows.append(moved)
            start += len(table)
        again = [driver.LOOP, 0, int(self._count.ctypes.data), 1, 0, 0, 0, 0]
        self._table = np.ascontiguousarray(np.concatenate([*rows, np.array([again], np.int64)]))

    def run(self, times: int) -> None:
        self._count[0] = self._table[-1, 3] = times
        self._engine.drive(self._table)


class NativeUpdate:
    """The rows of an update graph (an optimizer's step) over a session's states, with fixed hyper-parameters."""

    def __init__(self, update: Graph, initial: Mapping[str, np.ndarray], hyper: Mapping[str, float], threads: int) -> None:
        program = Program(Graph("micro"), Batching(1), update=cse(fold(update)))         # as the compiler does it
        engine = make_engine(program, Session(), initial, Host(threads))
        plan = engine.plan
        self._engine, self.session = engine, engine.session
        blocks = Blocks()
        bound = engine.bind(plan.update.rows, np.zeros(0, np.uint8))
        starts = [blocks.add(b) for b in bound]
        blocks.seal()
        engine.set_scalars(0, hyper)
        self._patches = Patches(blocks, blocks.moving)
        self._patches.set_bases({HYPER: engine.scalars_address}, 0)
        self._blocks = blocks
        patch = [driver.PATCH, 0, self._patches.address, self._patches.count, driver.MICRO, 0, 0, 0]
        calls = [call_row(b, blocks.address(s), plan.workers > 1) for b, s in zip(bound, starts, strict=True)]
        self._repeat = Repeat(engine, [np.array([patch, *calls], np.int64)])

    def run(self, times: int) -> None:
        """Do `times` updates."""
        self._repeat.run(times)


PASSES = 20
"""Runs that a profile takes the medians of."""


def profile(engine: Engine) -> list[tuple[str, str, float]]:
    """Operator, leaf and origin, seconds of every row of an engine's call, run one by one, in order, with the last call's arrays.

    What Python and the driver take for a row is measured on a row that does nothing, and subtracted. A product's row with an epilogue counts as
    the product.
    """
    names = {leaf.address: leaf.name for leaf in engine.plan.leaves()}
    rows = [(engine.table[i:i + 1].copy(), node) for i, (node, _) in enumerate(engine._owners[:len(engine.table)]) if node is not None]
    nothing = np.array([[driver.PATCH, *[0] * (driver.ROW_WORDS - 1)]], np.int64)
    times: list[list[int]] = [[] for _ in range(len(rows) + 1)]
    for _ in range(PASSES):
        for found, table in zip(times, [nothing, *(table for table, _ in rows)], strict=True):
            began = time.perf_counter_ns()
            engine.drive(table)
            found.append(time.perf_counter_ns() - began)
    empty, *taken = [statistics.median(found) for found in times]
    return [(getattr(node.op, "op", node.op).name, f"{names.get(int(table[0, 1]), 'rows')}: {node.origin}", 1e-9 * max(0.0, t - empty))
            for (table, node), t in zip(rows, taken, strict=True)]
