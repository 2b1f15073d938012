"""The hardware, the log and the environment, as scripts for the reference system ask for them."""
from __future__ import annotations

import atexit
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..api.surroundings import report_every_program
from ..system import logs
from ..system.spans import TraceFile
from .options import report_folder

LOG_LEVEL, DEFAULT_LEVEL = "POPTORCH_LOG_LEVEL", "WARN"
NUMBERS = ("TRACE", "DEBUG", "INFO", "WARN", "ERR", None, "OFF")
"""Levels by number, as the reference has them."""
DEFAULT_CHIP = 2
"""The version of the chip that the reference's model of an IPU has by default."""
CACHE, OWN_CACHE, ENGINE, PVTI = "POPTORCH_CACHE_DIR", "TILEFLOW_CACHE_DIR", "POPLAR_ENGINE_OPTIONS", "PVTI_OPTIONS"
REPORTS = ("autoReport.all", "autoReport.directory", "debug.allowOutOfMemory")
"""Options of the reference's engine that mean reports here."""
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
            raise ValueError(f"Invalid log level integer: {level}; levels are "
                             f"{', '.join(f'{i} ({n})' for i, n in enumerate(NUMBERS) if n)}.")
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
            warnings.warn(f"The environment sets {LOG_LEVEL}={level!r}, which is no level: give one of "
                          f"{', '.join(logs.LEVELS)}.", stacklevel=3)
        else:
            setLogLevel(level)
    if os.environ.get(CACHE):
        os.environ.setdefault(OWN_CACHE, os.environ[CACHE])
    engine = _table(ENGINE)
    others = [name for name in engine if name not in REPORTS]
    if others:
        warnings.warn(f"The environment sets {', '.join(others)} in {ENGINE}, which has no effect: Poplar's engine is "
                      "not part of tileflow.", stacklevel=3)
    folder = report_folder(engine)
    if folder is not None:
        report_every_program(folder)
    traced = _table(PVTI)
    if str(traced.get("enable", "false")).lower() == "true":
        begun = TraceFile(Path(str(traced.get("directory") or ".")) / "trace.json")
        begun.__enter__()
        atexit.register(begun.close)
    for name, why in WITHOUT_EFFECT.items():
        if os.environ.get(name):
            warnings.warn(f"The environment sets {name}, which has no effect: {why}.", stacklevel=3)


def _table(name: str) -> Mapping[str, Any]:
    """What an environment variable says as JSON; empty, with a warning, where it says none."""
    text = os.environ.get(name)
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        warnings.warn(f"The environment sets {name}, which is no table in JSON and has no effect.", stacklevel=4)
        return {}
    return found
