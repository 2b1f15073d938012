"""Optimizers: chains of small transforms over weights, gradients and states."""
from .adam import Adam, AdamW
from .choose import from_options
from .lamb import LAMB
from .optimizer import Optimizer
from .rmsprop import RMSprop
from .sgd import SGD

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "from_options"]
