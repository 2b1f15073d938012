"""How long the tile machine takes to plan a training program: CPU seconds in a fresh process, best of five (goals: imports 1, building 0.5 for
ResNet-50 and 1 for BERT-Base, planning 1), and warm (goals: 2 s for ResNet-50, 4 s for BERT-Base, 50 ms for a small CNN)."""
from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tileflow
from tileflow import nn
from tileflow.graph import TensorType
from tileflow.program.batching import Batching
from tileflow.program.program import Program
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.machine import analyze
from tileflow.tiles.plans.plan import TileOptions
from tileflow.tiles.plans.planner import PlanCache

from .networks import bert_program, resnet_program, training_program
from .report import Figures

CHIP = "gc200"
OPTIONS = TileOptions(available_memory_proportion=0.3, precision="16.16")
LONGER = 10


@dataclass
class Planning(Figures):
    """Seconds to analyse a program: median and best of `runs` with nothing planned before, and `again` with its plans at hand."""

    case: str
    operators: int
    seconds: float
    best: float
    again: float
    goal: float | None
    runs: int

    def to_text(self) -> str:
        goal = "" if self.goal is None else f", goal {1e3 * self.goal:,.0f} ms: {'met' if self.seconds <= self.goal else 'missed'}"
        return (f"{self.case:<34} {self.operators:>7,} operators {1e3 * self.seconds:9.1f} ms (best {1e3 * self.best:.1f},"
                f" again {1e3 * self.again:.1f}) {1e6 * self.seconds / self.operators:7.1f} us each{goal}")


@dataclass
class Fresh(Figures):
    """CPU seconds of a process that does nothing else: the best of `runs` for each part, and their goals."""

    case: str
    imports: float
    build: float
    plan: float
    goals: tuple[float, float, float]
    runs: int

    def to_text(self) -> str:
        parts = zip(("imports", "build", "plan"), (self.imports, self.build, self.plan), self.goals, strict=True)
        shown = ", ".join(f"{name} {seconds:.2f} (goal {goal:g}: {'met' if seconds <= goal else 'missed'})" for name, seconds, goal in parts)
        return f"{self.case:<34} in a fresh process, CPU s: {shown}"


SCRIPT = """
import time
began = time.process_time()
from bench.planning import CHIP, OPTIONS, analyze, bert_program, chip, resnet_program, small_cnn
imported = time.process_time()
program = {call}
built = time.process_time()
analyze(program, chip(CHIP), OPTIONS)
print(imported - began, built - imported, time.process_time() - built)
"""
FRESH = (("ResNet-50 training", "resnet_program(50, 20, 6)", (1.0, 0.5, 1.0)),
         ("BERT-Base training", 'bert_program("base", 32, 512)', (1.0, 1.0, 1.0)))
ROOT = Path(__file__).parent.parent


def fresh(case: str, call: str, goals: tuple[float, float, float], runs: int, bytecode: str) -> Fresh:
    """Time processes of their own, after one that is not counted and leaves its bytecode, as an installed package has it.

    Raises:
        RuntimeError: one failed; the message holds its own.
    """
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    times = []
    for _ in range(1 + runs):
        done = subprocess.run([sys.executable, "-c", SCRIPT.format(call=call)], cwd=ROOT, env=environment, capture_output=True, text=True,
                              check=False)
        if done.returncode:
            raise RuntimeError(f"planning {case} in a process of its own failed: {done.stderr.strip()[-300:]}")
        times.append(tuple(map(float, done.stdout.split())))
    imports, build, plan = (min(column) for column in zip(*times[1:], strict=True))
    return Fresh(case, imports, build, plan, goals, runs)


def small_cnn() -> Program:
    """The tutorial's network, in training."""
    from tileflow.loss import find
    net = nn.Sequential(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
                        nn.Linear(320, 256), nn.ReLU(), nn.Linear(256, 10))
    return training_program(net, [("image", TensorType("float32", (40, 1, 28, 28)))], find("cross_entropy"), tileflow.optim.AdamW(lr=1e-3),
                            Batching(40, 10))


def measure(case: str, program: Program, goal: float | None, runs: int) -> Planning:
    """Time analyses with an empty cache each, after one that is not counted, then some with the plans of the last."""
    machine = chip(CHIP)

    def timed(cache: PlanCache) -> float:
        began = time.perf_counter()
        analyze(program, machine, OPTIONS, cache)
        return time.perf_counter() - began
    cache: PlanCache = {}
    operators = len(analyze(program, machine, OPTIONS, cache).steps)
    times, again = [timed({}) for _ in range(runs)], [timed(cache) for _ in range(runs)]
    return Planning(case, operators, statistics.median(times), min(times), statistics.median(again), goal, runs)


def run(threads: int | None = None, runs: int = 9) -> Iterator[Planning | Fresh]:
    """All cases; planning uses one thread."""
    count = max(1, min(runs, 5))
    layers = 4
    with tempfile.TemporaryDirectory() as bytecode:
        for case, call, goals in FRESH:
            yield fresh(case, call, goals, count, bytecode)
    yield measure("small CNN training", small_cnn(), 0.05, runs)
    yield measure("ResNet-50 training", resnet_program(50, 20, 6), 2.0, count)
    yield measure("BERT-Base training", bert_program("base", 32, 512), 4.0, count)
    yield measure(f"BERT-mini, {layers} layers", bert_program("mini", 8, layers=layers), None, count)
    yield measure(f"BERT-mini, {LONGER * layers} layers", bert_program("mini", 8, layers=LONGER * layers), None, count)
