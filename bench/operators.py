"""What an operator of one's own takes: LeakyRelu as an expression, by Numba and by Python, each beside the built-in
one, in turns."""
from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import tileflow
from tileflow import custom, nn

from .report import Figures

MOST = 1.1
"""Times the built-in's time for what is compiled."""
ROUND = 20e-3
"""Seconds that a side is called for in a turn."""
SHAPES = ((64, 1024), (512, 1024), (4096, 4096))
SMALL = (4, 8)
"""Of which a Python function computes next to nothing: what is left is what calling it takes."""
DOMAIN, ALPHA = "bench", 0.01


@dataclass
class Own(Figures):
    """One form at one shape: seconds of a call of it and of the built-in's. most: None where nothing is promised."""

    form: str
    shape: tuple[int, int]
    threads: int
    own: float
    built_in: float
    ratio: float
    most: float | None

    def to_text(self) -> str:
        most = f"{1e6 * (self.own - self.built_in):+.1f} us" if self.most is None else f"at most {self.most}"
        return (f"LeakyRelu, {self.form:<10} {self.shape[0]:>4} x {self.shape[1]:<4} {self.threads} threads: "
                f"{1e6 * self.own:.1f} of {1e6 * self.built_in:.1f} us, {self.ratio:.3f} times ({most})")


class Net(nn.Module):
    """A network of one operator."""

    def __init__(self, op: Any) -> None:
        self.op = op

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        made: nn.Tensor = self.op(x)
        return made


def run(threads: int | None, runs: int) -> list[Own]:
    """All forms at all shapes; `runs` times ten turns."""
    forms = _declared()
    try:
        return [_measured(form, op, shape, threads or 1, 10 * runs) for form, op in forms.items()
                for shape in ((SMALL,) if form == "Python" else SHAPES)]
    finally:
        for op in forms.values():
            custom.forget(*type(op).name.split("::"))


def _declared() -> dict[str, Any]:
    where = custom.functions.where

    @tileflow.operator(DOMAIN, "LeakyReluExpression")
    class LeakyReluExpression:
        alpha: float = ALPHA

        @custom.expression
        def forward(self, x):                              # type: ignore[no-untyped-def]
            return where(x < 0, self.alpha * x, x)

    @tileflow.operator(DOMAIN, "LeakyReluCompiled")
    class LeakyReluCompiled:
        alpha: float = ALPHA

        def infer(self, x):                                # type: ignore[no-untyped-def]
            return x

        @custom.compiled(rows=("x", "y"), cost=0.3)
        def forward(x, y, alpha):                          # type: ignore[no-untyped-def]
            for i in range(x.shape[0]):
                for j in range(x.shape[1]):
                    y[i, j] = x[i, j] if x[i, j] > 0 else np.float32(alpha) * x[i, j]

    @tileflow.operator(DOMAIN, "LeakyReluPython")
    class LeakyReluPython:
        alpha: float = ALPHA

        def infer(self, x):                                # type: ignore[no-untyped-def]
            return x

        @custom.python
        def forward(self, x):                              # type: ignore[no-untyped-def]
            return np.where(x > 0, x, np.float32(self.alpha) * x)

    return {"expression": LeakyReluExpression(), "Numba": LeakyReluCompiled(), "Python": LeakyReluPython()}


def _measured(form: str, op: Any, shape: tuple[int, int], threads: int, turns: int) -> Own:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    models = [tileflow.inference_model(Net(made), threads=threads) for made in (op, nn.LeakyReLU(ALPHA))]
    for model in models:
        model(x)
    calls = max(1, int(ROUND / _seconds(models[1], x, 3)))
    pairs = [(_seconds(models[0], x, calls), _seconds(models[1], x, calls)) for _ in range(turns)]
    own, built_in = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
    return Own(form, shape, threads, own, built_in, statistics.median(a / b for a, b in pairs),
               None if form == "Python" else MOST)


def _seconds(model: Any, x: np.ndarray, calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        model(x)
    return (time.perf_counter() - began) / calls
