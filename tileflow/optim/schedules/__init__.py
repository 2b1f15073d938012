"""Schedules: rates, or any other variable attribute of an optimizer, as functions of the update.

    optimizer.lr = schedules.cosine(1e-3)                                  over the whole run
    optimizer.lr = schedules.warmup(schedules.cosine(1e-3), 500)           after 500 updates of rising rates
    optimizer.lr = schedules.per_epoch(schedules.step(0.1, every=30))      counted in epochs

The equations are those of torch.optim.lr_scheduler, in closed form: a schedule is a pure function of the index of the update (0, 1, ...), so a
run that is resumed goes on with the very rates that it would have had. Only `plateau` has a state, which checkpoints keep. Updates that are
skipped for an overflow count: data advance with them. Lengths are in updates; `per_epoch` makes epochs of them. A length that is not given is
the run's, which a training run knows from its epochs and data.
"""
from __future__ import annotations

from .averages import ema, swa, unfreeze
from .base import UNKNOWN, Number, Run, Schedule, described, value_at
from .choose import beside, from_options
from .composed import chained, per_epoch, sequential, warmup
from .curves import constant, cosine, cosine_restarts, exponential, linear, multi_step, one_cycle, one_cycle_momentum, polynomial, step
from .plateau import is_state, plateau, plateaus

__all__ = [
    "UNKNOWN",
    "Number",
    "Run",
    "Schedule",
    "beside",
    "chained",
    "constant",
    "cosine",
    "cosine_restarts",
    "described",
    "ema",
    "exponential",
    "from_options",
    "is_state",
    "linear",
    "multi_step",
    "one_cycle",
    "one_cycle_momentum",
    "per_epoch",
    "plateau",
    "plateaus",
    "polynomial",
    "sequential",
    "step",
    "swa",
    "unfreeze",
    "value_at",
    "warmup",
]
