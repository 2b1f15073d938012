"""Data: what worker processes bring a loader, an epoch over a data set that takes 5 ms for each row, with one worker and with two; and how long a
wide table takes to be opened."""
from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tileflow import DataLoader, Options
from tileflow.kernels.isa import cpu
from tileflow.runtime.data.sources import open_data

from .report import Result

ROWS, BATCH, SECONDS = 200, 10, 0.005
WIDE_COLUMNS, WIDE_ROWS = 20_000, 100


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


def wide_table(path: Path) -> None:
    """Write a CSV file of many columns with names, the last of them the label."""
    rows = np.random.default_rng(0).random((WIDE_ROWS, WIDE_COLUMNS)).round(4)
    rows[:, -1] = np.arange(WIDE_ROWS) % 10
    names = ",".join([*(f"feature_{i}" for i in range(WIDE_COLUMNS - 1)), "label"])
    path.write_text("\n".join([names, *(",".join(f"{x:g}" for x in row) for row in rows)]) + "\n", encoding="utf-8")


def opening(turns: int) -> tuple[float, float]:
    """Median seconds in which we open that table, and in which NumPy's parser alone reads its numbers."""
    def seconds(work: Callable[[], Any]) -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "wide.csv"
        wide_table(path)
        both = [(seconds(lambda: open_data(path)), seconds(lambda: np.loadtxt(path, delimiter=",", skiprows=1))) for _ in range(turns)]
    ours, numpy = zip(*both, strict=True)
    return statistics.median(ours), statistics.median(numpy)


def run(threads: int | None, runs: int) -> Iterator[Result]:
    """Seconds of two workers beside those of one, and of a wide table beside those of NumPy's parser."""
    turns = min(max(runs, 3), 5)
    one, two = (epoch(workers, turns) for workers in (1, 2))
    yield Result("loading", "one worker", 2, cpu.current().name, two, one, one / two, row="two-loader-workers",
                 shape=f"{ROWS} rows of 5 ms, 2 workers")
    ours, numpy = opening(turns)
    yield Result("loading", "NumPy's parser", 1, cpu.current().name, ours, numpy, numpy / ours, row="wide-table",
                 shape=f"a CSV file of {WIDE_COLUMNS:,} columns x {WIDE_ROWS} rows")
