"""The updates of optimizers that ONNX has as operators (ai.onnx.preview.training): expressions over a tensor, its gradient and its states."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..kernels.elementwise.expr import Expr, Var, cast, pow_, sqrt, where

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value

Rule = Callable[[Expr, Expr, Sequence[Expr]], Sequence[Expr]]
"""From the learning rate, the count of updates and (tensor, gradient, states ...) to the new tensor and states."""


def updated(b: Builder, rule: Rule, rate: Value, step: Value, operands: Sequence[Value]) -> tuple[Value, ...]:
    """The new tensor and states."""
    dtype = operands[0].dtype
    r, t = cast(Var(0, rate.dtype), dtype), cast(Var(1, step.dtype), dtype)
    made = b.Map(rate, step, *operands, exprs=tuple(rule(r, t, [Var(2 + k, v.dtype) for k, v in enumerate(operands)])))
    return made if isinstance(made, tuple) else (made,)


def adagrad(decay: float, epsilon: float, norm: float) -> Rule:
    """Duchi et al. 2011, with a rate that decays; `norm`: a penalty of squares."""
    def rule(rate: Expr, step: Expr, v: Sequence[Expr]) -> Sequence[Expr]:
        x, g, squares = v
        g = norm * x + g
        squares = squares + g * g
        return x - rate / (1 + step * decay) * g / (sqrt(squares) + epsilon), squares
    return rule


def adam(alpha: float, beta: float, epsilon: float, norm: float, post: float) -> Rule:
    """Kingma and Ba 2015; the first update, of count 0, has no bias correction. `post`: weight decay after it."""
    def rule(rate: Expr, step: Expr, v: Sequence[Expr]) -> Sequence[Expr]:
        x, g, mean, squares = v
        g = norm * x + g
        mean, squares = alpha * mean + (1 - alpha) * g, beta * squares + (1 - beta) * (g * g)
        corrected = where(step > 0, rate * sqrt(1 - pow_(beta + step * 0, step)) / (1 - pow_(alpha + step * 0, step)), rate)
        return (1 - post) * (x - corrected * (mean / (sqrt(squares) + epsilon))), mean, squares
    return rule


def momentum(alpha: float, beta: float, norm: float, nesterov: bool) -> Rule:
    """Gradient descent with a velocity, perhaps Nesterov's; the first update takes the gradient whole."""
    def rule(rate: Expr, step: Expr, v: Sequence[Expr]) -> Sequence[Expr]:
        x, g, velocity = v
        g = norm * x + g
        velocity = alpha * velocity + where(step > 0, beta * g, g)
        return x - rate * (g + alpha * velocity if nesterov else velocity), velocity
    return rule
