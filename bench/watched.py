"""What callbacks and logs cost: their seconds within a run of the tutorial's network on rows of MNIST's size and
number, the files that they ask for included, beside those of the whole run once it is compiled."""
from __future__ import annotations

import importlib.util
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx

import tileflow
from tileflow import callbacks
from tileflow.runtime.callbacks.several import Callbacks
from tileflow.runtime.trainer import Trainer

from .models import initial_weights, tutorial_cnn
from .report import Figures

MOST = 0.01
"""Of a run's time, for all callbacks and logs."""
ROWS, TEST_ROWS, FEW_RUNS = 60_000, 10_000, 3
"""With so many runs or fewer a tenth of the rows is enough."""
SETTINGS: dict[str, Any] = {"micro_batch_size": 40, "gradient_accumulation": 10, "learning_rate": 1e-3, "epochs": 3}


@dataclass
class Watched(Figures):
    """One run: which callbacks, how many updates a call, seconds within them and of the epochs after the first."""

    case: str
    seconds: float
    of_run: float
    share: float
    most: float = MOST

    def to_text(self) -> str:
        return (f"{self.case:<72} {1e3 * self.seconds:9.1f} of {1e3 * self.of_run:9.1f} ms, {self.share:.2%} (at most "
                f"{self.most:.0%})")


class Watch(callbacks.Callback):
    """Seconds within callbacks, from the end of the first epoch on."""

    def __init__(self) -> None:
        self.began = self.ended = self.within = 0.0

    def on_epoch_end(self, epoch: int, logs: Any) -> None:
        self.ended = time.perf_counter()
        if epoch == 0:
            self.began, self.within = self.ended, 0.0

    def state(self) -> dict[str, Any]:
        return {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs within are looked at."""
        def timed(of: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                start = time.perf_counter()
                try:
                    return of(*args)
                finally:
                    self.within += time.perf_counter() - max(start, self.began)
            return call
        with mock.patch.object(Callbacks, "call", timed(Callbacks.call)), \
                mock.patch.object(Trainer, "_keep", timed(Trainer._keep)):
            yield


def everything() -> list[callbacks.Callback]:
    """A callback of each kind that asks for nothing to be installed, and TensorBoard's where its package is."""
    found = [callbacks.EarlyStopping("val_loss", patience=9), callbacks.ReduceLROnPlateau("val_loss", patience=9),
             callbacks.ModelCheckpoint("val_accuracy"), callbacks.CSVLogger(), callbacks.LambdaCallback()]
    if importlib.util.find_spec("tensorboardX"):
        found.append(callbacks.TensorBoardLogger())
    return found


def watched(name: str, chosen: list[callbacks.Callback], iterations: int, rows: int, threads: int) -> Watched:
    """A run with these callbacks, beside those that every run has."""
    rng, tests = np.random.default_rng(0), max(1, rows * TEST_ROWS // ROWS)
    images, labels = rng.random((rows + tests, 28, 28), np.float32), rng.integers(0, 10, rows + tests)
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), watch.running():
        warnings.simplefilter("ignore")
        onnx.save(tutorial_cnn(initial_weights(0)), Path(folder, "model.onnx"))
        tileflow.train(Path(folder, "model.onnx"), data=(images[:rows], labels[:rows]),
                       test_data=(images[rows:], labels[rows:]), out=Path(folder, "run"), threads=threads,
                       device_iterations=iterations, callbacks=[*chosen, watch], **SETTINGS)
    whole = watch.ended - watch.began
    return Watched(f"{name}, {iterations} update{'s' if iterations > 1 else ''} a call", watch.within, whole,
                   watch.within / whole)


def run(threads: int | None, runs: int) -> Iterator[Watched]:
    """Logs that every run has, and with a callback of each kind."""
    rows = ROWS if runs > FEW_RUNS else ROWS // 10
    for iterations in (10, 1):
        for name, chosen in (("what every run has", []), ("a callback of each kind", everything())):
            yield watched(name, chosen, iterations, rows, threads or 2)
