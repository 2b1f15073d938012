"""A callback of functions."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...system.errors import OptionError
from .base import HOOKS, Callback


class LambdaCallback(Callback):
    """Hooks by keyword, for what is said in a line.

        LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, logs["loss"]))
    """

    def __init__(self, **hooks: Callable[..., Any]) -> None:
        """Raises OptionError where a keyword is no hook, or a hook no function."""
        for name, hook in hooks.items():
            if name not in HOOKS or not callable(hook):
                raise OptionError(f"LambdaCallback takes functions by the names of hooks, {', '.join(HOOKS)}, not "
                                  f"{name}={hook!r}.")
        vars(self).update(hooks)
