"""Schedules in closed form: one class each, called as functions are."""
from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

from .base import Run, Schedule, check, check_length, check_numbers, is_count, is_number, total_of


@dataclass(frozen=True)
class constant(Schedule):
    """`lr * factor` for the first `total` updates, then `lr` (torch ConstantLR); always `lr` without a factor."""

    lr: float
    factor: float = 1.0
    total: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, "lr", "factor")
        check(self, "total", is_count(self.total, 0), "a number of updates >= 0")

    def at(self, update: int, run: Run) -> float:
        return self.lr * (self.factor if update < self.total else 1.0)


@dataclass(frozen=True)
class step(Schedule):
    """lr * gamma^(t // every) (torch StepLR)."""

    lr: float
    every: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        check_numbers(self, "lr", "gamma")
        check(self, "every", is_count(self.every), "a number of updates >= 1")

    def at(self, update: int, run: Run) -> float:
        return float(self.lr * self.gamma ** (update // self.every))


@dataclass(frozen=True)
class multi_step(Schedule):
    """lr * gamma^(milestones reached) (torch MultiStepLR)."""

    lr: float
    milestones: Sequence[int]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        check_numbers(self, "lr", "gamma")
        wanted = "numbers of updates >= 1 that do not fall"
        listed = not isinstance(self.milestones, str) and isinstance(self.milestones, Sequence) and len(self.milestones) > 0
        check(self, "milestones", listed and all(map(is_count, self.milestones)), wanted)
        check(self, "milestones", list(self.milestones) == sorted(self.milestones), wanted)
        object.__setattr__(self, "milestones", tuple(self.milestones))

    def at(self, update: int, run: Run) -> float:
        return float(self.lr * self.gamma ** bisect.bisect_right(self.milestones, update))


@dataclass(frozen=True)
class exponential(Schedule):
    """lr * gamma^t (torch ExponentialLR)."""

    lr: float
    gamma: float

    def __post_init__(self) -> None:
        check_numbers(self, "lr", "gamma")

    def at(self, update: int, run: Run) -> float:
        return float(self.lr * self.gamma ** update)


@dataclass(frozen=True)
class linear(Schedule):
    """lr * (start + (end - start) * min(t, total) / total) (torch LinearLR): by default down to zero at the end of the run."""

    lr: float
    total: int | None = None
    start: float = 1.0
    end: float = 0.0

    def __post_init__(self) -> None:
        check_numbers(self, "lr", "start", "end")
        check_length(self)

    def at(self, update: int, run: Run) -> float:
        total = total_of(self, self.total, run)
        return self.lr * (self.start + (self.end - self.start) * min(update, total) / total)


@dataclass(frozen=True)
class polynomial(Schedule):
    """end + (lr - end) * (1 - min(t, total) / total)^power (torch PolynomialLR where end is 0)."""

    lr: float
    total: int | None = None
    power: float = 1.0
    end: float = 0.0

    def __post_init__(self) -> None:
        check_numbers(self, "lr", "power", "end")
        check_length(self)

    def at(self, update: int, run: Run) -> float:
        total = total_of(self, self.total, run)
        return float(self.end + (self.lr - self.end) * (1 - min(update, total) / total) ** self.power)


@dataclass(frozen=True)
class cosine(Schedule):
    """end + (lr - end) * (1 + cos(pi t / total)) / 2 (torch CosineAnnealingLR, Loshchilov & Hutter 2017, arXiv 1608.03983).

    `total` of its own: after it the rate rises again, as PyTorch's does. A length that is the run's: it ends there and stays at `end`.
    """

    lr: float
    total: int | None = None
    end: float = 0.0

    def __post_init__(self) -> None:
        check_numbers(self, "lr", "end")
        check_length(self)

    def at(self, update: int, run: Run) -> float:
        total = total_of(self, self.total, run)
        return _cosine(self.lr, self.end, (update if self.total is not None else min(update, total)) / total)


@dataclass(frozen=True)
class cosine_restarts(Schedule):
    """Cosines of `first`, `first * growth`, `first * growth²` ... updates one after the other, each from `lr` to `end`
    (torch CosineAnnealingWarmRestarts)."""

    lr: float
    first: int
    growth: int = 1
    end: float = 0.0

    def __post_init__(self) -> None:
        check_numbers(self, "lr", "end")
        check(self, "first", is_count(self.first), "a number of updates >= 1")
        check(self, "growth", is_count(self.growth), "a whole number >= 1")

    def at(self, update: int, run: Run) -> float:
        length, t = self.first, update
        if self.growth == 1:
            t %= length
        while t >= length:
            t -= length
            length *= self.growth
        return _cosine(self.lr, self.end, t / length)


@dataclass(frozen=True)
class one_cycle(Schedule):
    """From `lr / div` up to `lr` in the first `rise` of the updates, then down to `lr / div / final_div` (torch OneCycleLR; Smith & Topin 2018,
    arXiv 1708.07120). `lr` is the highest rate. `three_phase`: down as it went up, then on to the end."""

    lr: float
    total: int | None = None
    rise: float = 0.3
    div: float = 25.0
    final_div: float = 1e4
    anneal: str = "cos"
    three_phase: bool = False

    def __post_init__(self) -> None:
        check_numbers(self, "lr")
        _cycle(self)
        for name in ("div", "final_div"):
            check(self, name, is_number(getattr(self, name), 0) and getattr(self, name) > 0, "a number above 0")

    def at(self, update: int, run: Run) -> float:
        start = self.lr / self.div
        phases = (start, self.lr, start, start / self.final_div) if self.three_phase else (start, self.lr, start / self.final_div)
        return _on_cycle(update, total_of(self, self.total, run), self.rise, self.anneal, phases)


@dataclass(frozen=True)
class one_cycle_momentum(Schedule):
    """The momentum, or first beta, beside `one_cycle`: from `high` down to `low` while the rate rises, then up again."""

    low: float = 0.85
    high: float = 0.95
    total: int | None = None
    rise: float = 0.3
    anneal: str = "cos"
    three_phase: bool = False

    def __post_init__(self) -> None:
        check_numbers(self, "low", "high")
        _cycle(self)

    def at(self, update: int, run: Run) -> float:
        phases = (self.high, self.low, self.high, self.high) if self.three_phase else (self.high, self.low, self.high)
        return _on_cycle(update, total_of(self, self.total, run), self.rise, self.anneal, phases)


def _cycle(schedule: one_cycle | one_cycle_momentum) -> None:
    check_length(schedule)
    check(schedule, "rise", is_number(schedule.rise, 0) and schedule.rise <= 1, "a share between 0 and 1")
    check(schedule, "anneal", schedule.anneal in ("cos", "linear"), "'cos' or 'linear'")


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def _on_cycle(update: int, total: int, rise: float, anneal: str, values: tuple[float, ...]) -> float:
    """Between `values`, at the ends of the phases. PyTorch's ends are one update early, since its first update is the first value itself."""
    ends = [rise * total - 1, total - 1] if len(values) == 3 else [rise * total - 1, 2 * rise * total - 2, total - 1]
    t, begin = min(update, total - 1), 0.0
    for i, end in enumerate(ends):
        if t <= end or i == len(ends) - 1:
            share = (t - begin) / (end - begin) if end != begin else 1.0
            return _cosine(values[i], values[i + 1], share) if anneal == "cos" else (values[i + 1] - values[i]) * share + values[i]
        begin = end
    raise AssertionError
