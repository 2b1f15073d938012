"""How long the tile machine takes to plan a training program, warm: the goals are 2 s for ResNet-50, 4 s for BERT-Base, 50 ms for a small CNN."""
from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import tileflow
from tileflow import nn
from tileflow.graph import TensorType
from tileflow.program import Batching, Program
from tileflow.tiles.chip import chip
from tileflow.tiles.machine import analyze
from tileflow.tiles.plan import TileOptions
from tileflow.tiles.planner import PlanCache

from .networks import bert_program, resnet_program, training_program

CHIP = "gc200"
OPTIONS = TileOptions(available_memory_proportion=0.3, precision="16.16")
LONGER = 10


@dataclass
class Planning:
    """Seconds to analyse a program: median and best of `runs` with nothing planned before, and `again` with its plans at hand."""

    case: str
    operators: int
    seconds: float
    best: float
    again: float
    goal: float | None
    runs: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        goal = "" if self.goal is None else f", goal {1e3 * self.goal:,.0f} ms: {'met' if self.seconds <= self.goal else 'missed'}"
        return (f"{self.case:<34} {self.operators:>7,} operators {1e3 * self.seconds:9.1f} ms (best {1e3 * self.best:.1f},"
                f" again {1e3 * self.again:.1f}) {1e6 * self.seconds / self.operators:7.1f} us each{goal}")


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


def run(threads: int | None = None, runs: int = 9) -> list[Planning]:
    """All cases; planning uses one thread."""
    count = max(1, min(runs, 5))
    layers = 4
    return [measure("small CNN training", small_cnn(), 0.05, runs),
            measure("ResNet-50 training", resnet_program(50, 20, 6), 2.0, count),
            measure("BERT-Base training", bert_program("base", 32, 512), 4.0, count),
            measure(f"BERT-mini, {layers} layers", bert_program("mini", 8, layers=layers), None, count),
            measure(f"BERT-mini, {LONGER * layers} layers", bert_program("mini", 8, layers=LONGER * layers), None, count)]
