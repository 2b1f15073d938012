"""What a schedule is, what it may know of the run, and how its settings are checked."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ...system.errors import OptionError


@dataclass(frozen=True)
class Run:
    """What schedules may know of the run: its updates, and how many of them are an epoch. None: not known."""

    updates: int | None = None
    per_epoch: int | None = None

    def shorter(self, updates: int, until: int | None = None) -> Run:
        """The run from `updates` on, and only up to `until` where that is given."""
        end = self.updates if until is None else until
        return Run(None if end is None else max(0, end - updates), self.per_epoch)


UNKNOWN = Run()
"""A run of which nothing is known: neither its updates nor those of an epoch."""


class Schedule:
    """A number that depends on the update. `schedule(update)` is for runs of unknown length."""

    def at(self, update: int, run: Run) -> float:
        """The value at an update index.

        Raises:
            OptionError: it depends on a length of the run that is not known.
        """
        raise NotImplementedError

    def __call__(self, update: int) -> float:
        return self.at(update, Run())

    @property
    def follows_run(self) -> bool:
        """It would be another one if the run were longer."""
        return any(p._follows_run() for p in self.parts())

    def _follows_run(self) -> bool:
        return getattr(self, "total", 0) is None

    def parts(self) -> Iterator[Schedule]:
        """The schedules that this one is made of, itself first."""
        yield self
        for f in fields(self):                                     # type: ignore[arg-type]
            value = getattr(self, f.name)
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, Schedule):
                    yield from item.parts()


Number = float | Callable[[int], float]
"""A number, a schedule, or any function of the update index."""


def value_at(number: Number, update: int, run: Run = UNKNOWN) -> float:
    """What a number, a schedule or a function is at an update index."""
    if isinstance(number, Schedule):
        return number.at(update, run)
    return float(number(update) if callable(number) else number)


def described(number: Any) -> Any:
    """A number as it is, a schedule with its settings, another function by its name: for logs and checkpoints."""
    if isinstance(number, Schedule):
        return repr(number)
    return getattr(number, "__name__", "schedule") if callable(number) else number


# ---- checks

def check(schedule: Schedule, name: str, fits: bool, wanted: str) -> None:
    if not fits:
        raise OptionError(f"Schedule {type(schedule).__name__}: {name} must be {wanted}, got {getattr(schedule, name)!r}.")


def is_number(x: object, least: float = -math.inf) -> bool:
    return isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool) and math.isfinite(x) and bool(x >= least)


def is_count(x: object, least: int = 1) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool) and bool(x >= least)


def check_numbers(schedule: Schedule, *names: str) -> None:
    for name in names:
        check(schedule, name, is_number(getattr(schedule, name), 0), "a number >= 0")


def check_length(schedule: Schedule, name: str = "total") -> None:
    check(schedule, name, getattr(schedule, name) is None or is_count(getattr(schedule, name)), "a number of updates >= 1, or None for the run's")


def check_inner(schedule: Schedule, name: str) -> None:
    number = getattr(schedule, name)
    check(schedule, name, callable(number) or is_number(number, 0), "a schedule, a function of the update index or a number >= 0")


def total_of(schedule: Schedule, total: int | None, run: Run) -> int:
    """The length of a schedule: its own, else the run's."""
    found = run.updates if total is None else total
    if found is None:
        raise OptionError(f"Schedule {type(schedule).__name__} is to last as long as the run, and neither a model that is called nor data "
                          f"without a length say how long that is: give {type(schedule).__name__}(..., total=updates), or train with max_batches.")
    return max(1, found)
