"""Stochastic gradient descent with momentum, dampening, decay and Nesterov's look-ahead."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import OptionError
from ..graph import Value
from .base import Optimizer, Update, decayed


@dataclass
class SGD(Optimizer):
    """v = mm v + (1 - dm) (g + wd w);  w -= lr * v, or with Nesterov w -= lr * (g + wd w + mm v).

    Without momentum the dampening still scales the step, and with it the first velocity starts from zero, as PopART has
    it; `torch_compat=True` gives PyTorch's forms of both (they agree when dampening is 0). `momentum`, `dampening` and
    `nesterov` are compiled in.
    """

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    torch_compat: bool = False
    variable: ClassVar[tuple[str, ...]] = ("lr", "weight_decay")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum < 0 or self.dampening < 0:
            raise OptionError(f"SGD: momentum and dampening must be >= 0, got {self.momentum} and {self.dampening}.")
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise OptionError(f"SGD: nesterov needs momentum > 0 and dampening 0, got {self.momentum} and {self.dampening}.")

    @property
    def slots(self) -> tuple[str, ...]:                    # type: ignore[override]
        return ("momentum_buffer",) if self.momentum else ()

    @property
    def counts(self) -> bool:                              # type: ignore[override]
        return bool(self.momentum and self.dampening and self.torch_compat)

    def step(self, u: Update) -> Value:
        b, like = u.b, u.weight
        g = decayed(u, u.gradient)
        rate = u.cast(u.hyper["lr"])
        damped = 1.0 - self.dampening
        if not self.momentum:
            if self.dampening and not self.torch_compat:
                rate = b.Mul(rate, b.scalar(damped, like))
            return b.Sub(u.weight, b.Mul(rate, g))
        fresh = g
        if self.dampening:
            share = b.scalar(damped, like)
            if u.count is not None:                         # PyTorch's first velocity is the plain gradient
                share = b.Where(b.Equal(u.count, u.number(1.0)), b.scalar(1.0, like), share)
            fresh = b.Mul(g, share)
        velocity = b.Add(b.Mul(u.slots["momentum_buffer"], b.scalar(self.momentum, like)), fresh)
        u.written["momentum_buffer"] = velocity
        if self.nesterov:
            velocity = b.Add(g, b.Mul(velocity, b.scalar(self.momentum, like)))
        return b.Sub(u.weight, b.Mul(rate, velocity))
