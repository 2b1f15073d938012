"""Stages of equal length: where to cut a chain so that the slowest stage is as fast as it can be, each within its memory."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def balanced(costs: Sequence[float], stages: int, *, factors: Sequence[float] | None = None, memory: Sequence[float] | None = None,
             held: Sequence[float] | None = None, bound: float = np.inf, breaks: Sequence[bool] | None = None,
             first: float = 0.0) -> list[int]:
    """Where each stage begins: contiguous, none empty, the dearest as cheap as possible; the earliest beginnings among equals.

    An exact dynamic programme over contiguous cuts, best[k][i] = min over j < i of max(best[k-1][j], factor[k] * cost(j..i)), in O(stages * n^2).

    Args:
        costs: of each piece of work, not negative. stages: how many.
        factors: how often a stage does its work, by stage (one that is recomputed does more).
        memory: bytes of each piece. held: factor on a stage's bytes, by stage (a pipeline's early stages stash more). bound: bytes of a stage.
        breaks: whether a stage may begin at a piece; the first always may. first: what the first stage costs besides.

    Raises:
        ValueError: there are no such stages.
    """
    n = len(costs)
    total = np.concatenate(([0.0], np.cumsum(np.asarray(costs, float))))
    nbytes = np.zeros(n + 1) if memory is None else np.concatenate(([0.0], np.cumsum(np.asarray(memory, float))))
    free = np.ones(n + 1, bool) if breaks is None else np.array([*breaks, True])
    free[[0, n]] = True
    points = np.flatnonzero(free)
    if not 1 <= stages < len(points):
        raise ValueError(f"{len(points) - 1} pieces of work cannot be {stages} stages")
    best = np.full(len(points), np.inf)
    best[0] = 0.0
    came: list[np.ndarray] = []
    for k in range(stages):
        factor, weight = (1.0 if factors is None else factors[k]), (1.0 if held is None else held[k])
        following, origin = np.full(len(points), np.inf), np.zeros(len(points), int)
        for i in range(1, len(points)):
            worst = np.maximum(best[:i], factor * (total[points[i]] - total[points[:i]]) + (first if k == 0 else 0.0))
            worst[weight * (nbytes[points[i]] - nbytes[points[:i]]) > bound] = np.inf
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
