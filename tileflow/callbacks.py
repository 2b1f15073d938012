"""Callbacks, which watch and steer training runs: `tileflow.train(..., callbacks=[...])` (docs/callbacks.md)."""
from .runtime.callbacks import *  # noqa: F403
from .runtime.callbacks import __all__ as __all__
