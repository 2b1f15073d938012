"""Data: what worker processes bring a loader, an epoch over a data set that takes 5 ms for each row, with one worker
and with two; how long a wide table takes to be opened; and how fast a network trains on image files beside arrays of
the same images."""
from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tileflow
from tileflow import DataLoader, Options
from tileflow.kernels.isa import cpu
from tileflow.runtime.data.sources import open_data

from . import files
from .report import Result

ROWS, BATCH, SECONDS = 200, 10, 0.005
WIDE_COLUMNS, WIDE_ROWS = 20_000, 100
IMAGES, CLASSES, PIXELS = 10_000, 10, 64
FEW_RUNS = 3
"""With so many runs or fewer a tenth of the images is enough."""


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


class Clock(tileflow.callbacks.Callback):
    """Seconds of each epoch, from the moment its rows are asked for."""

    def __init__(self) -> None:
        self.epochs: list[float] = []
        self._began = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any) -> None:
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any) -> None:
        self.epochs.append(time.perf_counter() - self._began)

    def state(self) -> dict[str, Any]:
        return {}


def write_images(folder: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    """PNGs of noise about a colour and a slope, in a folder for each class; the same as arrays."""
    from PIL import Image
    rng, slope = np.random.default_rng(0), np.linspace(0, 100, PIXELS)
    x, y = np.empty((count, 3, PIXELS, PIXELS), np.uint8), np.arange(count) % CLASSES
    for i in range(count):
        made = slope[:, None, None] + rng.integers(0, 60, (PIXELS, PIXELS, 3)) + 9 * y[i]
        x[i] = made.astype(np.uint8).transpose(2, 0, 1)
        (folder / f"{y[i]}").mkdir(exist_ok=True)
        Image.fromarray(made.astype(np.uint8)).save(folder / f"{y[i]}" / f"{i:05}.png")
    return x, y


def images(count: int) -> tuple[list[float], list[float]]:
    """Seconds of two epochs of ResNet-18 on arrays, and on PNGs by two workers: the second is of decoded images that
    were kept."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "images").mkdir()
        x, y = write_images(root / "images", count)
        (root / "resnet18.onnx").write_bytes(files.resnet18(CLASSES, PIXELS).SerializeToString())
        found = []
        for data, more in (((x, y), {}), (str(root / "images"), {"num_workers": 2})):
            clock = Clock()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", tileflow.TileflowWarning)
                tileflow.train(root / "resnet18.onnx", data=data, epochs=2, micro_batch_size=20, learning_rate=1e-3,
                               callbacks=[clock],
                               out=root / f"run{len(found)}", **more)
            found.append(clock.epochs)
    return found[0], found[1]


def run(threads: int | None, runs: int) -> Iterator[Result]:
    """Seconds of two workers beside those of one, of a wide table beside those of NumPy's parser, and of image files
    beside arrays."""
    turns = min(max(runs, 3), 5)
    one, two = (epoch(workers, turns) for workers in (1, 2))
    yield Result("loading", "one worker", 2, cpu.current().name, two, one, one / two, row="two-loader-workers",
                 shape=f"{ROWS} rows of 5 ms, 2 workers")
    ours, numpy = opening(turns)
    yield Result("loading", "NumPy's parser", 1, cpu.current().name, ours, numpy, numpy / ours, row="wide-table",
                 shape=f"a CSV file of {WIDE_COLUMNS:,} columns x {WIDE_ROWS} rows")
    arrays, decoded = images(IMAGES if runs > FEW_RUNS else IMAGES // 10)
    usual = min(arrays)                                 # both of its epochs do the same
    for which, mine in zip(("first", "second"), decoded, strict=True):
        yield Result("loading", "arrays", 2, cpu.current().name, mine, usual, usual / mine, row=f"images-{which}-epoch",
                     shape=f"{which} epoch of ResNet-18 on PNGs of {PIXELS} x {PIXELS}, 2 workers")
