"""The hardware, the log and the environment, as scripts for the reference system ask for them."""
from __future__ import annotations

import os
import warnings

from ..system import logs

LOG_LEVEL, DEFAULT_LEVEL = "POPTORCH_LOG_LEVEL", "WARN"
NUMBERS = ("TRACE", "DEBUG", "INFO", "WARN", "ERR", None, "OFF")
"""Levels by number, as the reference has them."""
DEFAULT_CHIP = 2
"""The version of the chip that the reference's model of an IPU has by default."""
WITHOUT_EFFECT = {
    "POPTORCH_WAIT_FOR_IPU": "there is no IPU to wait for",
    "POPTORCH_SMALL_IPU_MODEL": "the option machine may name a .toml file that describes a chip of 4 tiles"}
"""Environment variables that are said to have no effect, once a process."""


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """False: everything is computed on this computer, as with the reference's model of an IPU."""
    return False


def ipuHardwareVersion() -> int:
    """The version of the chip that is simulated where nothing else is said: 2, a GC200."""
    return DEFAULT_CHIP


def setLogLevel(level: str | int) -> None:
    """Show the log of `tileflow` on standard error: TRACE, DEBUG, INFO, WARN, ERR, OFF, or their numbers.

    Raises:
        ValueError: there is no such level.
    """
    if isinstance(level, int) and not isinstance(level, bool):
        name = NUMBERS[level] if 0 <= level < len(NUMBERS) else None
        if name is None:
            raise ValueError(f"Invalid log level integer: {level}; levels are {', '.join(f'{i} ({n})' for i, n in enumerate(NUMBERS) if n)}.")
    else:
        name = str(level)
    number = logs.level(name)
    if number is None:
        raise ValueError(f"Level must be one of {', '.join(logs.LEVELS)}, not {level!r}.")
    logs.show(number)


def heed_environment() -> None:
    """Do what the reference's environment variables ask, and say which have no effect."""
    level = os.environ.get(LOG_LEVEL)
    if level:
        if logs.level(level) is None:
            warnings.warn(f"The environment sets {LOG_LEVEL}={level!r}, which is no level: give one of {', '.join(logs.LEVELS)}.", stacklevel=3)
        else:
            setLogLevel(level)
    for name, why in WITHOUT_EFFECT.items():
        if os.environ.get(name):
            warnings.warn(f"The environment sets {name}, which has no effect: {why}.", stacklevel=3)
