"""What training measures: the sums of an unfinished epoch and the figures of finished ones."""
from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Epoch:
    """One epoch's figures. Losses are means over the rows of micro-batches, accuracies shares in 0..1 (None where there are no classes)."""

    epoch: int
    loss: float
    accuracy: float | None
    test_loss: float | None = None
    test_accuracy: float | None = None
    samples: int = 0
    seconds: float = 0.0
    unit: str = "samples"
    learning_rate: float | None = None
    """That of its last update."""
    skipped: int = 0
    """Updates that were skipped, since loss or gradients were not finite; losses that are not finite are left out of the mean."""
    loss_scale: float | None = None
    """The loss scale after its last update, where it adapts."""
    test_metrics: dict[str, float | None] = field(default_factory=dict)
    """What else was measured on the test data, by name; None where it is not defined."""

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds if self.seconds else 0.0


@dataclass
class Running:
    """Sums of an unfinished epoch."""

    loss: float = 0.0
    """Of each micro-batch, times its rows."""
    correct: int = 0
    predictions: int = 0
    samples: int = 0
    seconds: float = 0.0
    skipped: int = 0
    """Updates."""
    unmeasured: int = 0
    """Samples of micro-batches whose loss was not finite and whose updates were skipped."""

    def add(self, losses: np.ndarray, rows: int, skips: bool) -> np.ndarray:
        """Add losses of micro-batches of so many rows; those that count (`skips`: of finite ones alone)."""
        if skips:
            self.unmeasured += rows * int(np.count_nonzero(~np.isfinite(losses)))
            losses = losses[np.isfinite(losses)]
        # one by one, wherever a call ends
        self.loss = float(np.add.accumulate(np.append(self.loss, losses.astype(np.float64) * rows))[-1])
        return losses

    def record(self, epoch: int) -> Epoch:
        accuracy = self.correct / self.predictions if self.predictions else None
        measured = self.samples - self.unmeasured
        loss = math.nan if self.samples and not measured else self.loss / max(1, measured)
        return Epoch(epoch, loss, accuracy, samples=self.samples, seconds=self.seconds, skipped=self.skipped)


def runs(numbers: Iterable[float]) -> list[tuple[float | None, int]]:
    """Numbers in a row as (number, how often), NaN as None: what changes rarely is short."""
    found: list[tuple[float | None, int]] = []
    for number in numbers:
        rate = None if math.isnan(number) else number
        if found and found[-1][0] == rate:
            found[-1] = rate, found[-1][1] + 1
        else:
            found.append((rate, 1))
    return found
