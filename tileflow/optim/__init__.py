"""Optimizers: chains of small transforms over weights, gradients and states."""
from typing import TYPE_CHECKING, Any

from .choose import CLASSES, from_options
from .optimizer import Optimizer

if TYPE_CHECKING:
    from .adam import Adam, AdamW
    from .lamb import LAMB
    from .rmsprop import RMSprop
    from .sgd import SGD

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "from_options"]
_BY_CLASS = {made.__name__: made for made in CLASSES.values()}


def __getattr__(name: str) -> Any:
    """An optimizer of the registry (`options.registries`), exported by being one."""
    if name not in _BY_CLASS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _BY_CLASS[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *_BY_CLASS])
