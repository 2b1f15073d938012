"""What a metric is: each batch says something, which is added up in the batches' order."""
from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

Part = tuple[np.ndarray, ...]
"""What one batch says: a few arrays, whose number is the metric's."""


class Metric(ABC):
    """Takes the data batch by batch. `part` looks at nothing but its batch, so that several processes may each have
    some; `add` in one order gives the same bits wherever parts come from."""

    @abstractmethod
    def part(self, output: np.ndarray, labels: np.ndarray) -> Part:
        """What a batch says: the model's first output, and labels."""

    @abstractmethod
    def add(self, *part: np.ndarray) -> None:
        """The next batch has said this."""

    @abstractmethod
    def value(self) -> float:
        """The metric of all batches; NaN where it is not defined."""

    def update(self, output: np.ndarray, labels: np.ndarray) -> None:
        """The next batch."""
        self.add(*self.part(output, labels))
