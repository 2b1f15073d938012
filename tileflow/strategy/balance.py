"""Stages of equal length: where to cut a chain so that the slowest stage is as fast as it can be, each within its memory."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Holding:
    """What stages hold, in bytes: by piece, and how often a stage holds those of its own, by stage (more than once where micro-batches wait).

    states: of each piece, once. made: of each piece, what it makes, `made_times`; a stage holds all of it, or (not `kept`) the largest only.
    entering: what enters a stage that begins at a piece, `entering_times`. first: what the first stage holds besides.
    """

    states: Sequence[float]
    made: Sequence[float] = ()
    made_times: Sequence[float] = ()
    entering: Sequence[float] = ()
    entering_times: Sequence[float] = ()
    first: float = 0.0
    kept: bool = True

    def of(self, stage: int, begin: np.ndarray, end: int) -> np.ndarray:
        """Bytes of a stage that ends before the piece `end`, by where it begins: float64[len(begin)]."""
        found = _after(self.states, end)[begin] + (self.first if stage == 0 else 0.0)
        if len(self.made):
            from_there = _after(self.made, end) if self.kept else np.maximum.accumulate(np.asarray(self.made[:end], float)[::-1])[::-1]
            found = found + self.made_times[stage] * from_there[begin] + self.entering_times[stage] * np.asarray(self.entering, float)[begin]
        return np.asarray(found)


def _after(pieces: Sequence[float], end: int) -> np.ndarray:
    """The sum from each piece on, before `end`: float64[end]."""
    return np.cumsum(np.asarray(pieces[:end], float)[::-1])[::-1]


def balanced(costs: Sequence[float], stages: int, *, factors: Sequence[float] | None = None, holding: Holding | None = None,
             bound: float = np.inf, breaks: Sequence[bool] | None = None, first: float = 0.0) -> list[int]:
    """Where each stage begins: contiguous, none empty, the dearest as cheap as possible; the earliest beginnings among equals.

    An exact dynamic programme over contiguous cuts, best[k][i] = min over j < i of max(best[k-1][j], factor[k] * cost(j..i)), in O(stages * n^2).

    Args:
        costs: of each piece of work, not negative. stages: how many.
        factors: how often a stage does its work, by stage (one that is recomputed does more).
        holding: what stages hold. bound: the most bytes of a stage.
        breaks: whether a stage may begin at a piece; the first always may. first: what the first stage costs besides.

    Raises:
        ValueError: there are no such stages.
    """
    n = len(costs)
    total = np.concatenate(([0.0], np.cumsum(np.asarray(costs, float))))
    free = np.ones(n + 1, bool) if breaks is None else np.array([*breaks, True])
    free[[0, n]] = True
    points = np.flatnonzero(free)
    if not 1 <= stages < len(points):
        raise ValueError(f"{len(points) - 1} pieces of work cannot be {stages} stages")
    best = np.full(len(points), np.inf)
    best[0] = 0.0
    came: list[np.ndarray] = []
    for k in range(stages):
        factor = 1.0 if factors is None else factors[k]
        following, origin = np.full(len(points), np.inf), np.zeros(len(points), int)
        for i in range(1, len(points)):
            worst = np.maximum(best[:i], factor * (total[points[i]] - total[points[:i]]) + (first if k == 0 else 0.0))
            if holding is not None and np.isfinite(bound):
                worst[holding.of(k, points[:i], int(points[i])) > bound] = np.inf
            origin[i] = worst.argmin()
            following[i] = worst[origin[i]]
        best = following
        came.append(origin)
    if not np.isfinite(best[-1]):
        raise ValueError(f"no cut into {stages} stages keeps each within {bound:,.0f} bytes")
    starts, at = [], len(points) - 1
    for origin in reversed(came):
        at = int(origin[at])
        starts.append(int(points[at]))
    return starts[::-1]
