"""From options to an optimizer."""
from __future__ import annotations

from collections.abc import Mapping

from ..options.options import Options, declarations
from ..options.registries import OPTIMIZERS
from . import schedules
from .optimizer import Optimizer

CLASSES: Mapping[str, type[Optimizer]] = OPTIMIZERS.makers(__package__)
OF_ALL = ("weight_decay", "max_grad_norm", "accum_type", "no_decay", "torch_compat")
"""Options that are attributes of every optimizer; the registry has those of some, the schedule is the rate's."""


def from_options(options: Options) -> Optimizer:
    """The optimizer that the options describe. Options with another value than their default are variable attributes of it, the others constants:
    a file of options that says all of them means the same as one that says what differs."""
    own = (*OF_ALL, *OPTIMIZERS[options.optimizer].options)
    given = {name: x for name in own if (x := getattr(options, name)) != declarations()[name].default}
    given |= schedules.beside(options)
    if options.average != "none":
        given["average"] = schedules.ema(options.ema_decay,
                                         warmup=True) if options.average == "ema" else schedules.swa(options.swa_start)
    if options.param_groups:
        given["groups"] = tuple(dict(group) for group in options.param_groups)
    return CLASSES[options.optimizer](lr=schedules.from_options(options), **given)
