"""The schedules by name, as the option `schedule` gives them: what PyTorch's users step once per epoch is counted in
epochs, the others go from update to update to the end of the run."""
from __future__ import annotations

from ...options.options import Options
from . import curves
from .base import Number
from .composed import per_epoch
from .plateau import plateau as falling

PATIENCE = 10
"""Epochs without progress that a plateau has by default, as PyTorch's."""
GAMMA = 0.1
"""By what a rate falls, where nobody says."""


def _gamma(o: Options) -> float:
    return GAMMA if o.schedule_gamma is None else o.schedule_gamma


def constant(o: Options) -> Number:
    return o.learning_rate


def step(o: Options) -> Number:
    """It falls every so many epochs, or after each of several."""
    lr, epochs, gamma = o.learning_rate, o.schedule_epochs, _gamma(o)
    return per_epoch(curves.step(lr, epochs[0], gamma) if len(epochs) == 1 else curves.multi_step(lr, epochs, gamma))


def exponential(o: Options) -> Number:
    return per_epoch(curves.exponential(o.learning_rate, _gamma(o)))


def linear(o: Options) -> Number:
    return curves.linear(o.learning_rate, end=o.schedule_end / o.learning_rate if o.learning_rate else 0.0)


def polynomial(o: Options) -> Number:
    return curves.polynomial(o.learning_rate, power=o.schedule_power, end=o.schedule_end)


def cosine(o: Options) -> Number:
    """Once over the run, or starting again every so many epochs."""
    if not o.schedule_epochs:
        return curves.cosine(o.learning_rate, end=o.schedule_end)
    return per_epoch(curves.cosine_restarts(o.learning_rate, o.schedule_epochs[0], end=o.schedule_end), smooth=True)


def one_cycle(o: Options) -> Number:
    return curves.one_cycle(o.learning_rate)


def plateau(o: Options) -> Number:
    patience = o.schedule_epochs[0] if o.schedule_epochs else PATIENCE
    return falling(o.learning_rate, _gamma(o), patience, least=o.schedule_end)
