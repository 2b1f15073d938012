"""From options to the schedule of the learning rate."""
from __future__ import annotations

from typing import Any

from ...options.options import Options, declarations
from .base import Number
from .composed import per_epoch, warmup
from .curves import cosine, cosine_restarts, exponential, linear, multi_step, one_cycle, one_cycle_momentum, polynomial, step
from .plateau import plateau

PATIENCE = 10
"""Epochs without progress that a plateau has by default, as PyTorch's."""
GAMMA = 0.1
"""By what a rate falls, where nobody says."""


def from_options(options: Options) -> Number:
    """The learning rate that the options describe: what PyTorch's users step once per epoch is counted in epochs, curves go from update to
    update to the end of the run."""
    schedule = _schedule(options)
    return warmup(schedule, options.warmup) if options.warmup else schedule


def _schedule(options: Options) -> Number:
    lr, end, epochs = options.learning_rate, options.schedule_end, options.schedule_epochs
    gamma = GAMMA if options.schedule_gamma is None else options.schedule_gamma
    match options.schedule:
        case "step":
            return per_epoch(step(lr, epochs[0], gamma) if len(epochs) == 1 else multi_step(lr, epochs, gamma))
        case "exponential":
            return per_epoch(exponential(lr, gamma))
        case "linear":
            return linear(lr, end=end / lr if lr else 0.0)
        case "polynomial":
            return polynomial(lr, power=options.schedule_power, end=end)
        case "cosine":
            return per_epoch(cosine_restarts(lr, epochs[0], end=end), smooth=True) if epochs else cosine(lr, end=end)
        case "one_cycle":
            return one_cycle(lr)
        case "plateau":
            return plateau(lr, gamma, epochs[0] if epochs else PATIENCE, least=end)
    return lr


def beside(options: Options) -> dict[str, Any]:
    """Other attributes of the optimizer that the schedule drives: as in PyTorch, one_cycle lowers the momentum, where there is one, or the first of
    the betas, where nobody gave others, while the rate is high."""
    if options.schedule != "one_cycle":
        return {}
    if options.optimizer in ("sgd", "rmsprop"):
        return {"momentum": one_cycle_momentum()} if options.momentum else {}
    return {"betas": (one_cycle_momentum(), options.betas[1])} if options.betas == declarations()["betas"].default else {}
