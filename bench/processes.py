"""What several processes cost on this computer: two with a thread each beside one with two threads, the same replicas
and the same bits; and what two hosts exchange."""
from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tileflow import nn

from . import exchange
from .report import Figures

PROCESSES, CALLS = 2, 12
LEAST = 0.9
"""The promise: one process's time over that of several."""


@dataclass
class Processes(Figures):
    """One network: seconds of a call of `processes` with a thread each, and of one process with as many threads."""

    case: str
    processes: int
    together: float
    alone: float
    ratio: float

    def to_text(self) -> str:
        return (f"{self.case:<40} {self.processes} processes: {1e3 * self.together:.2f} ms beside "
                f"{1e3 * self.alone:.2f} ms of one, {self.ratio:.2f} times its speed (at least {LEAST})")


class Encoder(nn.Module):
    """BERT-mini's layers over 128 tokens."""

    def __init__(self) -> None:
        self.embedding, self.head = nn.Embedding(1000, 256), nn.Linear(256, 10)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(4)])

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        y = self.embedding(x)
        for layer in self.layers:
            y = layer(y)
        return self.head(y.mean(1))


def _mnist(rng: np.random.Generator, rows: int) -> tuple[nn.Module, np.ndarray]:
    net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                        nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))
    return net, rng.standard_normal((rows, 1, 28, 28)).astype(np.float32)


def _mini(rng: np.random.Generator, rows: int) -> tuple[nn.Module, np.ndarray]:
    return Encoder(), rng.integers(0, 1000, (rows, 128))


CASES = {"MNIST CNN, micro-batch 40": (40, _mnist), "BERT-mini, micro-batch 4": (4, _mini)}


def run(threads: int | None, runs: int) -> list[Processes | exchange.Exchange]:
    """All networks; `runs` starts of either side, in turns."""
    found: list[Processes | exchange.Exchange] = []
    for case in CASES:
        pairs = [(_seconds(case, PROCESSES), _seconds(case, 1)) for _ in range(max(1, runs // 3))]
        together, alone = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
        found.append(Processes(case, PROCESSES, together, alone, statistics.median(b / a for a, b in pairs)))
    return found + exchange.run()


def _seconds(case: str, processes: int) -> float:
    """The median of a call's seconds in processes of their own."""
    from tileflow.collective import launch
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "seconds.json"
        end = launch.run([sys.executable, "-m", __name__, case, str(told)], processes, PROCESSES // processes)
        if end.code:
            raise RuntimeError(end.cause)
        return statistics.median(json.loads(told.read_text()))


def _child(case: str, told: Path) -> None:
    import tileflow
    from tileflow import collective
    micro_batch, make = CASES[case]
    rows, rng = micro_batch * PROCESSES * 4, np.random.default_rng(0)
    nn.manual_seed(0)
    net, x = make(rng, rows)
    y = rng.integers(0, 10, rows)
    model = tileflow.training_model(net, optimizer="adamw", learning_rate=1e-4, micro_batch_size=micro_batch,
                                    replication_factor=PROCESSES,
                                    device_iterations=4, threads=int(os.environ["NUMBA_NUM_THREADS"]))
    seconds = []
    for _ in range(CALLS + 2):
        began = time.perf_counter()
        model(x, y)
        seconds.append(time.perf_counter() - began)
    if (group := collective.current()) is None or group.is_first:
        told.write_text(json.dumps(seconds[2:]))


if __name__ == "__main__":
    _child(sys.argv[1], Path(sys.argv[2]))
