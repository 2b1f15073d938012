"""What stages and replicas cost on this computer: the pipelined tutorial beside the same step on one IPU with the same threads, recomputation equal
on both sides, and two replicas beside one with twice the accumulation."""
from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import tileflow
from tileflow import nn
from tileflow.kernels.isa import cpu

from .report import Result

ROWS, ACCUMULATION, ITERATIONS = 40, 10, 10
"""Of the tutorial: rows of a micro-batch, micro-batches of an update, updates of a call."""
STAGES = ("layer1@0", "layer2@1", "layer3@2", "layer4@3")
FOUR = {"strategy": "pipelined", "stages": STAGES}
PAIRS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "pipelined": ("nothing computed again", {**FOUR, "pipeline_recompute": False}, {}),
    "pipelined-again": ("three stages computed again", FOUR, {"gradient_checkpointing": ("layer1", "layer2", "layer3")}),
    "pipelined-1f1b": ("1f1b, nothing computed again", {**FOUR, "pipeline_schedule": "1f1b", "pipeline_recompute": False}, {}),
    "two-replicas": ("2 replicas, accumulation 5, beside accumulation 10", {"replication_factor": 2, "gradient_accumulation": ACCUMULATION // 2}, {})}
"""By row: what it is, the options of our side, and those of the other."""


class Conv(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        self.conv, self.pool = nn.Conv2d(inputs, outputs, 5), nn.MaxPool2d(2)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.pool(self.conv(x)).relu()


class Network(nn.Module):
    """The network of PopTorch's pipelining tutorial (`examples/mnist_pipeline.py`)."""

    def __init__(self) -> None:
        self.layer1, self.layer2 = Conv(1, 10), Conv(10, 20)
        self.layer3, self.layer4 = nn.Linear(320, 256), nn.Linear(256, 10)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.layer4(self.layer3(self.layer2(self.layer1(x)).flatten(1)).relu())


def call(threads: int, options: dict[str, Any]) -> Callable[[], None]:
    """A call of the tutorial's training, compiled and run once."""
    given = {"micro_batch_size": ROWS, "gradient_accumulation": ACCUMULATION, "device_iterations": ITERATIONS, "threads": threads, **options}
    model = tileflow.training_model(Network(), **given)
    rng = np.random.default_rng(0)
    rows = ROWS * ACCUMULATION * ITERATIONS
    x, y = rng.standard_normal((rows, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, rows)

    def once() -> None:
        model(x, y)
    once()
    return once


def paired(ours: Callable[[], None], other: Callable[[], None], turns: int) -> tuple[float, float, float]:
    """Median seconds of both, and the median of the other's over ours, turn by turn, so that both meet the same machine."""
    times = []
    for turn in range(turns):
        pair = []
        for side in ((ours, other) if turn % 2 else (other, ours)):
            began = time.perf_counter()
            side()
            pair.append(time.perf_counter() - began)
        times.append(pair if turn % 2 else pair[::-1])
    ratio = statistics.median(b / a for a, b in times)
    return statistics.median(a for a, _ in times), statistics.median(b for _, b in times), ratio


def run(threads: int | None, runs: int) -> Iterator[Result]:
    """Seconds of a call of ten updates, with one and two threads."""
    for row, (what, ours, other) in PAIRS.items():
        for count in (threads,) if threads else (1, 2):
            a, b, ratio = paired(call(count, ours), call(count, other), max(runs, 3))
            peer = "one IPU" if "strategy" in ours else "one replica"
            yield Result("strategies", peer, count, cpu.current().name, a, b, ratio, row=row, shape=what)
