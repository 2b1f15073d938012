"""Optimizers: chains of small graph builders over weights, gradients and states."""
from .adam import Adam, AdamW
from .base import Optimizer
from .choose import from_options
from .sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "from_options"]
