"""The schedule with a state: it looks at how a metric comes on."""
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .base import Run, Schedule, check, check_numbers, is_count


@dataclass
class plateau(Schedule):
    """The rate falls by `factor` when a metric has not become better for more than `patience` epochs (torch ReduceLROnPlateau).

    A training run tells it the metric of that name (loss, accuracy, or another that the run measures) on the test data after each epoch, of the
    training data where there are no others; else call `observe(metric)`. threshold: what counts as better, as a share of the best so far, or
    with `relative` off as a difference. cooldown: epochs after a fall that do not count. least: it falls no lower. mode: whether lower (min) or
    higher (max) is better.
    """

    lr: float
    factor: float = 0.1
    patience: int = 10
    threshold: float = 1e-4
    relative: bool = True
    cooldown: int = 0
    least: float = 0.0
    mode: str = "min"
    metric: str = "loss"
    eps: float = 1e-8
    rate: float = field(init=False, repr=False, compare=False)
    best: float = field(init=False, repr=False, compare=False)
    bad_epochs: int = field(init=False, repr=False, compare=False, default=0)
    cooling: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        check_numbers(self, "lr", "factor", "threshold", "least", "eps")
        check(self, "factor", self.factor < 1, "a share below 1")
        for name in ("patience", "cooldown"):
            check(self, name, is_count(getattr(self, name), 0), "a number of epochs >= 0")
        check(self, "mode", self.mode in ("min", "max"), "'min' or 'max'")
        self.rate, self.best = float(self.lr), math.inf if self.mode == "min" else -math.inf

    def at(self, update: int, run: Run) -> float:
        return self.rate

    def observe(self, metric: float) -> None:
        """An epoch is over, and this is its metric. NaN is not better than anything."""
        if self._is_better(float(metric)):
            self.best, self.bad_epochs = float(metric), 0
        else:
            self.bad_epochs += 1
        if self.cooling > 0:
            self.cooling, self.bad_epochs = self.cooling - 1, 0
        if self.bad_epochs > self.patience:
            lower = max(self.rate * self.factor, self.least)
            if self.rate - lower > self.eps:
                self.rate = lower
            self.cooling, self.bad_epochs = self.cooldown, 0

    def _is_better(self, metric: float) -> bool:
        if self.mode == "min":
            return metric < (self.best * (1.0 - self.threshold) if self.relative else self.best - self.threshold)
        return metric > (self.best * (1.0 + self.threshold) if self.relative else self.best + self.threshold)

    def state(self) -> np.ndarray:
        """What it has come to: rate, best, bad epochs, cooling, as float64."""
        return np.array([self.rate, self.best, self.bad_epochs, self.cooling], np.float64)

    def restore(self, state: np.ndarray) -> None:
        """Go on from what `state()` gave. The caller has checked it by `is_state`."""
        rate, best, bad, cooling = map(float, state)
        self.rate, self.best, self.bad_epochs, self.cooling = rate, best, int(bad), int(cooling)


def is_state(state: Any) -> bool:
    """An array is what `plateau.state` gives."""
    array = np.asarray(state)
    return array.shape == (4,) and array.dtype == np.float64 and math.isfinite(array[0]) and array[0] >= 0 and not math.isnan(array[1]) \
        and all(math.isfinite(x) and x >= 0 and x == int(x) for x in array[2:])


def plateaus(numbers: Mapping[str, Any]) -> dict[str, plateau]:
    """The schedules with a state among an optimizer's attributes, each once, by attribute (numbered where one has several)."""
    found: dict[str, plateau] = {}
    for name, number in numbers.items():
        own = [p for n in (number if isinstance(number, tuple) else (number,)) if isinstance(n, Schedule)
               for p in n.parts() if isinstance(p, plateau)]
        for i, p in enumerate(own):
            if not any(p is other for other in found.values()):
                found[name if i == 0 else f"{name}.{i}"] = p
    return found
