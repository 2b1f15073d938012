"""Adam and AdamW (Kingma & Ba 2015, arXiv 1412.6980; Loshchilov & Hutter 2019, arXiv 1711.05101)."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import OptionError
from ..graph import Value
from .base import Optimizer, Schedule, Update, decayed


@dataclass
class Adam(Optimizer):
    """m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g²;  w -= lr * m̂ / (sqrt(v̂) + eps), with L2 decay inside g.

    m̂ = m / (1 - b1^t) and v̂ = v / (1 - b2^t); the powers and corrections are float64 scalars whatever the weights' type,
    because 1 - b^t cancels. `bias_correction=False` takes m and v as they are.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    bias_correction: bool = True
    variable: ClassVar[tuple[str, ...]] = ("lr", "weight_decay")
    slots: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    counts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise OptionError(f"{type(self).__name__}: betas must be two numbers in [0, 1), got {self.betas!r}.")
        if not self.eps > 0:
            raise OptionError(f"{type(self).__name__}: eps must be > 0, got {self.eps!r}.")

    def step(self, u: Update) -> Value:
        b = u.b
        return b.Sub(u.weight, scaled_moments(self, u, decayed(u, u.gradient)))


@dataclass
class AdamW(Adam):
    """Adam with decoupled decay: w -= lr * (m̂ / (sqrt(v̂) + eps) + wd * w)."""

    weight_decay: Schedule = 0.01

    def step(self, u: Update) -> Value:
        b = u.b
        keep = u.one_minus(b.Mul(u.hyper["lr"], u.hyper["weight_decay"]))
        return b.Sub(b.Mul(u.weight, u.cast(keep)), scaled_moments(self, u, u.gradient))


def scaled_moments(optimizer: Adam, u: Update, gradient: Value) -> Value:
    """lr * m̂ / (sqrt(v̂) + eps); writes both moments."""
    b = u.b
    beta1, beta2 = optimizer.betas
    like = u.weight
    m = b.Add(b.Mul(u.slots["exp_avg"], b.scalar(beta1, like)), b.Mul(gradient, b.scalar(1 - beta1, like)))
    v = b.Add(b.Mul(u.slots["exp_avg_sq"], b.scalar(beta2, like)), b.Mul(b.Mul(gradient, gradient), b.scalar(1 - beta2, like)))
    u.written.update(exp_avg=m, exp_avg_sq=v)
    rate, root = u.hyper["lr"], b.Sqrt(v)
    if optimizer.bias_correction:
        assert u.count is not None
        rate = b.Div(rate, u.one_minus(b.Pow(u.number(beta1), u.count)))
        root = b.Div(root, u.cast(b.Sqrt(u.one_minus(b.Pow(u.number(beta2), u.count)))))
    return b.Div(b.Mul(m, u.cast(rate)), b.Add(root, b.scalar(optimizer.eps, like)))
