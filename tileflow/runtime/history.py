"""What training measures: the sums of an unfinished epoch and the figures of finished ones."""
from __future__ import annotations

from dataclasses import dataclass, field


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

    def record(self, epoch: int) -> Epoch:
        accuracy = self.correct / self.predictions if self.predictions else None
        return Epoch(epoch, self.loss / max(1, self.samples), accuracy, samples=self.samples, seconds=self.seconds)
