"""What the bench's updates are compared with: the equations once more, in float64, over the first tensor."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

STEPS = 3
"""Updates, all with the same gradient, after which weights are compared."""


def exact(problem: Any, weight: np.ndarray, gradients: Sequence[np.ndarray]) -> np.ndarray:
    """The first weight after STEPS updates of an `UpdateStep`."""
    w, g = weight.astype(np.float64), gradients[0].astype(np.float64)
    if problem.clip is not None:
        norm = np.sqrt(sum(float(np.square(a, dtype=np.float64).sum()) for a in gradients))
        g = g * min(1.0, problem.clip / norm)
    step = RULES[problem.optimizer](problem.settings, w)
    for t in range(1, STEPS + 1):
        w = step(w, g, t)
    return w


Step = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


def _sgd(s: dict[str, Any], like: np.ndarray) -> Step:
    v = np.zeros_like(like)

    def step(w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
        v[:] = s["momentum"] * v + g + s["weight_decay"] * w
        return w - s["lr"] * v
    return step


def _direction(s: dict[str, Any], like: np.ndarray) -> Step:
    """Adam's m̂ / (sqrt(v̂) + eps)."""
    m, v = np.zeros_like(like), np.zeros_like(like)
    first, second = s["betas"]

    def step(w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
        m[:], v[:] = first * m + (1 - first) * g, second * v + (1 - second) * g * g
        return (m / (1 - first ** t)) / (np.sqrt(v / (1 - second ** t)) + s["eps"])
    return step


def _adamw(s: dict[str, Any], like: np.ndarray) -> Step:
    direction = _direction(s, like)
    return lambda w, g, t: w * (1 - s["lr"] * s["weight_decay"]) - s["lr"] * direction(w, g, t)


def _lamb(s: dict[str, Any], like: np.ndarray) -> Step:
    direction = _direction(s, like)

    def step(w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
        u = direction(w, g, t) + s["weight_decay"] * w
        return w - s["lr"] * np.linalg.norm(w) / np.linalg.norm(u) * u
    return step


def _rmsprop(s: dict[str, Any], like: np.ndarray) -> Step:
    square, mean = np.zeros_like(like), np.zeros_like(like)

    def step(w: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
        g = g + s["weight_decay"] * w
        square[:] = s["alpha"] * square + (1 - s["alpha"]) * g * g
        if s.get("centered"):
            mean[:] = s["alpha"] * mean + (1 - s["alpha"]) * g
        return w - s["lr"] * g / (np.sqrt(square - mean ** 2) + s["eps"])
    return step


RULES: dict[str, Callable[[dict[str, Any], np.ndarray], Step]] = {
    "SGD": _sgd, "AdamW": _adamw, "LAMB": _lamb, "RMSprop": _rmsprop}
