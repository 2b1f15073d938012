"""Averages of weights (an optimizer's `average`): how much of the average stays at each update; and rates of layers
that wait."""
from __future__ import annotations

import math
from dataclasses import dataclass

from ...system.errors import OptionError
from .base import Number, Run, Schedule, check, check_inner, is_count, is_number, value_at


@dataclass(frozen=True)
class ema(Schedule):
    """The exponential moving average, average = decay * average + (1 - decay) * weight after every update from `start`
    on (torch's `get_ema_multi_avg_fn`); before, and after the first update, it is the weight itself.

    warmup: of n updates from `start` on no more than (1 + n) / (10 + n) stays (TensorFlow's `num_updates`), so that the
    average of a short run is one of its later weights.
    """

    decay: float = 0.999
    start: int = 0
    warmup: bool = False

    def __post_init__(self) -> None:
        check(self, "decay", is_number(self.decay, 0) and self.decay < 1, "a share below 1")
        check(self, "start", is_count(self.start, 0), "a number of updates >= 0")
        check(self, "warmup", isinstance(self.warmup, bool), "true or false")

    def at(self, update: int, run: Run) -> float:
        since = update - self.start
        if since <= 0:
            return 0.0
        return float(min(self.decay, (1 + since) / (10 + since)) if self.warmup else self.decay)


@dataclass(frozen=True)
class swa(Schedule):
    """Stochastic weight averaging: the mean of the weights at the end of each epoch (or of every so many updates) from
    `start` on (torch's `AveragedModel`); before, it is the weight itself.

    start: a number of updates, or below 1 a share of the run. every: by default those of an epoch, where they are
    known, else 1.
    """

    start: float = 0.75
    every: int | None = None

    def __post_init__(self) -> None:
        check(self, "start", is_number(self.start, 0) and (self.start < 1 or self.start == int(self.start)),
              "a whole number of updates >= 0, or a share of the run below 1")
        check(self, "every", self.every is None or is_count(self.every),
              "a number of updates >= 1, or None for an epoch's")

    def _follows_run(self) -> bool:
        return 0 < self.start < 1

    def at(self, update: int, run: Run) -> float:
        start = int(self.start)
        if 0 < self.start < 1:
            if run.updates is None:
                raise OptionError(f"Schedule swa: {self.start:g} is a share of the run, and neither a model that is "
                                  "called nor data without a length say how long that is: "
                                  "give a number of updates, or train with max_batches.")
            start = int(self.start * run.updates)
        every = self.every or run.per_epoch or 1
        first = max(1, math.ceil(start / every)) * every
        done, between = divmod(update + 1 - first, every)
        if update + 1 < first:
            return 0.0
        return 1.0 if between else done / (done + 1)


@dataclass(frozen=True)
class unfreeze(Schedule):
    """0 before an update, then a rate from its own start: for groups of layers that are trained one after the other.

        AdamW(lr=1e-3, groups=[{"params": "layer1.*", "lr": schedules.per_epoch(schedules.unfreeze(1e-4, 2))}])

    trains layer1 from the third epoch on.
    """

    lr: Number
    after: int

    def __post_init__(self) -> None:
        check_inner(self, "lr")
        check(self, "after", is_count(self.after, 0), "a number of updates >= 0")

    def at(self, update: int, run: Run) -> float:
        return 0.0 if update < self.after else value_at(self.lr, update - self.after, run.shorter(self.after))
