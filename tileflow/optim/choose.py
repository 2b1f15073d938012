"""From options to an optimizer."""
from __future__ import annotations

from collections.abc import Mapping

from ..options.options import Options, declarations
from ..options.spellings import OF_OPTIMIZER
from . import schedules
from .adam import Adam, AdamW
from .lamb import LAMB
from .optimizer import Optimizer
from .rmsprop import RMSprop
from .sgd import SGD

CLASSES: Mapping[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW, "rmsprop": RMSprop, "lamb": LAMB}
OF_ALL = ("weight_decay", "max_grad_norm", "accum_type", "no_decay", "torch_compat")
OPTIONS = frozenset({"optimizer", "learning_rate", "param_groups", *OF_ALL, *OF_OPTIMIZER})
"""The options that an optimizer is made of; the schedule is its learning rate's."""


def from_options(options: Options) -> Optimizer:
    """The optimizer that the options describe. Options with another value than their default are variable attributes of it, the others constants:
    a file of options that says all of them means the same as one that says what differs."""
    own = (*OF_ALL, *(name for name, kinds in OF_OPTIMIZER.items() if options.optimizer in kinds))
    given = {name: x for name in own if (x := getattr(options, name)) != declarations()[name].default}
    given |= schedules.beside(options)
    if options.param_groups:
        given["groups"] = tuple(dict(group) for group in options.param_groups)
    return CLASSES[options.optimizer](lr=schedules.from_options(options), **given)
