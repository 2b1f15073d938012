"""From options to the schedule of the learning rate."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...options.options import Options, declarations
from ...options.registries import OPTIMIZERS, SCHEDULES
from .base import Number
from .composed import warmup
from .curves import one_cycle_momentum

MAKERS: Mapping[str, Callable[[Options], Number]] = SCHEDULES.makers(__package__)


def from_options(options: Options) -> Number:
    """The learning rate that the options describe: what PyTorch's users step once per epoch is counted in epochs, curves go from update to
    update to the end of the run."""
    schedule = MAKERS[options.schedule](options)
    return warmup(schedule, options.warmup) if options.warmup else schedule


def beside(options: Options) -> dict[str, Any]:
    """Other attributes of the optimizer that the schedule drives: as in PyTorch, one_cycle lowers the momentum, where there is one, or the first of
    the betas, where nobody gave others, while the rate is high."""
    if options.schedule != "one_cycle":
        return {}
    if "momentum" in OPTIMIZERS[options.optimizer].options:
        return {"momentum": one_cycle_momentum()} if options.momentum else {}
    return {"betas": (one_cycle_momentum(), options.betas[1])} if options.betas == declarations()["betas"].default else {}
