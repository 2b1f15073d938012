"""From options to an optimizer."""
from __future__ import annotations

from ..options import Options
from .adam import Adam, AdamW
from .base import Optimizer
from .sgd import SGD


def from_options(options: Options) -> Optimizer:
    """The optimizer that the options describe (fields optimizer, learning_rate, weight_decay, betas, …)."""
    if options.optimizer == "sgd":
        return SGD(lr=options.learning_rate, weight_decay=options.weight_decay or 0.0, momentum=options.momentum,
                   dampening=options.dampening, nesterov=options.nesterov)
    decay = options.weight_decay
    if options.optimizer == "adam":
        return Adam(lr=options.learning_rate, weight_decay=decay or 0.0, betas=options.betas, eps=options.eps)
    return AdamW(lr=options.learning_rate, weight_decay=0.01 if decay is None else decay, betas=options.betas, eps=options.eps)
