"""What worker processes bring a data loader: an epoch over a data set that takes 5 ms for each row, with one worker and with two."""
from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import numpy as np

from tileflow import DataLoader, Options
from tileflow.kernels.isa import cpu

from .report import Result

ROWS, BATCH, SECONDS = 200, 10, 0.005


class Sleeping:
    """Rows of an image's size that take their time, as those that come over a network or are decoded by another program."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        time.sleep(SECONDS)
        return np.full((3, 32, 32), i, np.float32), i % 10


def epoch(workers: int, turns: int) -> float:
    """Median seconds of an epoch once the workers are there."""
    loader = DataLoader(Options(micro_batch_size=BATCH), Sleeping(), num_workers=workers)
    times = []
    try:
        for turn in range(turns + 1):
            began = time.perf_counter()
            rows = sum(len(labels) for _, labels in loader)
            assert rows == ROWS
            if turn:
                times.append(time.perf_counter() - began)
    finally:
        loader.terminate()
    return statistics.median(times)


def run(threads: int | None, runs: int) -> Iterator[Result]:
    """Seconds of two workers beside those of one."""
    turns = min(max(runs, 3), 5)
    one, two = (epoch(workers, turns) for workers in (1, 2))
    yield Result("loading", "one worker", 2, cpu.current().name, two, one, one / two, row="two-loader-workers",
                 shape=f"{ROWS} rows of 5 ms, 2 workers")
