"""Schedules of schedules."""
from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...system.errors import OptionError
from .base import Number, Run, Schedule, check, check_inner, check_length, check_numbers, is_count, is_number, value_at


@dataclass(frozen=True)
class warmup(Schedule):
    """A linear rise over the first `updates` updates to where `schedule` begins; it then runs as if the run began there.

    At update t of the rise the rate is start + (1 - start) * t / updates of the schedule's first (torch LinearLR before a SequentialLR). `start` is
    by default 1 / (updates + 1), so that no update is for nothing. `updates` below 1 is a share of the run.
    """

    schedule: Number
    updates: float
    start: float | None = None

    def __post_init__(self) -> None:
        check_inner(self, "schedule")
        check(self, "updates", is_number(self.updates, 0) and (self.updates < 1 or self.updates == int(self.updates)),
               "a whole number of updates >= 0, or a share of the run below 1")
        check(self, "start", self.start is None or (is_number(self.start, 0) and self.start <= 1), "a share between 0 and 1")

    def _follows_run(self) -> bool:
        return 0 < self.updates < 1

    def at(self, update: int, run: Run) -> float:
        length = int(self.updates)
        if 0 < self.updates < 1:
            if run.updates is None:
                raise OptionError(f"Schedule warmup: {self.updates:g} is a share of the run, and neither a model that is called nor data without a "
                                  "length say how long that is: give a number of updates, or train with max_batches.")
            length = round(self.updates * run.updates)
        rest = run.shorter(length)
        if update >= length:
            return value_at(self.schedule, update - length, rest)
        start = 1 / (length + 1) if self.start is None else self.start
        return value_at(self.schedule, 0, rest) * (start + (1 - start) * update / length)


@dataclass(frozen=True)
class sequential(Schedule):
    """One schedule after the other; the next begins, from its own start, at each milestone (torch SequentialLR)."""

    schedules: Sequence[Number]
    milestones: Sequence[int]

    def __post_init__(self) -> None:
        listed = isinstance(self.schedules, Sequence) and isinstance(self.milestones, Sequence)
        check(self, "milestones", listed and all(map(is_count, self.milestones)) and list(self.milestones) == sorted(self.milestones),
               "numbers of updates >= 1 that do not fall")
        check(self, "schedules", listed and len(self.schedules) == len(self.milestones) + 1, f"one more than its {len(self.milestones)} milestones")
        check(self, "schedules", all(callable(s) or is_number(s, 0) for s in self.schedules), "schedules, functions or numbers >= 0")
        object.__setattr__(self, "schedules", tuple(self.schedules))
        object.__setattr__(self, "milestones", tuple(self.milestones))

    def at(self, update: int, run: Run) -> float:
        i = bisect.bisect_right(self.milestones, update)
        begin = self.milestones[i - 1] if i else 0
        until = self.milestones[i] if i < len(self.milestones) else None
        return value_at(self.schedules[i], update - begin, run.shorter(begin, until))


class chained(Schedule):
    """`lr` times every factor: schedules that begin at 1, such as `step(1, 30)` (torch ChainedScheduler)."""

    def __init__(self, lr: float, *factors: Number) -> None:
        self.lr, self.factors = lr, factors
        check_numbers(self, "lr")
        check(self, "factors", bool(factors) and all(callable(f) or is_number(f, 0) for f in factors), "schedules, functions or numbers >= 0")

    def at(self, update: int, run: Run) -> float:
        return self.lr * math.prod(value_at(f, update, run) for f in self.factors)

    def parts(self) -> Iterator[Schedule]:
        yield self
        for f in self.factors:
            if isinstance(f, Schedule):
                yield from f.parts()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, chained) and (self.lr, self.factors) == (other.lr, other.factors)

    def __hash__(self) -> int:
        return hash((self.lr, self.factors))

    def __repr__(self) -> str:
        return f"chained({self.lr!r}, {', '.join(map(repr, self.factors))})"


@dataclass(frozen=True)
class per_epoch(Schedule):
    """A schedule whose lengths are epochs. `updates` of an epoch are the run's, by default. smooth: parts of epochs count (a schedule in closed
    form takes them); else its value changes with the epoch only."""

    schedule: Number
    updates: int | None = None
    smooth: bool = False

    def __post_init__(self) -> None:
        check_inner(self, "schedule")
        check_length(self, "updates")

    def at(self, update: int, run: Run) -> float:
        length = run.per_epoch if self.updates is None else self.updates
        if length is None:
            raise OptionError("Schedule per_epoch counts in epochs, and a model that is called does not know how many updates these have: "
                              "give per_epoch(..., updates=updates of an epoch).")
        epochs = None if run.updates is None else math.ceil(run.updates / length)
        at = update / length if self.smooth else update // length
        return value_at(self.schedule, at, Run(epochs, 1))                       # type: ignore[arg-type]
