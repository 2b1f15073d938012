"""Python's logging under `tileflow`: silent until somebody gives it a handler, or asks to be shown it; nothing else is
ever configured."""
from __future__ import annotations

import logging
import os

ROOT = "tileflow"
"""The logger above all others here: `logging.getLogger("tileflow").setLevel("DEBUG")`."""
LOG_LEVEL = "TILEFLOW_LOG_LEVEL"
"""The environment variable that shows the log on standard error, from a level on."""
LEVELS = {"TRACE": 5, "DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARN": logging.WARNING, "ERR": logging.ERROR,
          "OFF": logging.CRITICAL + 10}
"""Levels by name, from all messages to none."""
OTHER_NAMES = {"TRACE_ALL": "TRACE", "WARNING": "WARN", "ERROR": "ERR", "CRITICAL": "ERR"}
_root = logging.getLogger(ROOT)
_root.addHandler(logging.NullHandler())


def logger(name: str = "") -> logging.Logger:
    """The logger of a part, such as "data"."""
    return logging.getLogger(f"{ROOT}.{name}" if name else ROOT)


def level(name: str) -> int | None:
    """A level by its name, in capitals or not; None where there is none."""
    return LEVELS.get(OTHER_NAMES.get(name.upper(), name.upper()))


def show(number: int) -> None:
    """Show the log on standard error from this level on, in addition to handlers that somebody gave it."""
    _root.setLevel(number)
    shown = [h for h in _root.handlers if isinstance(h, logging.StreamHandler)]
    if not shown:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(asctime)s] [%(name)s] [%(levelname)s] %(message)s", "%H:%M:%S"))
        _root.addHandler(handler)


def from_environment() -> str | None:
    """Show the log as the environment says; a sentence where what it says is no level."""
    found = os.environ.get(LOG_LEVEL)
    if not found:
        return None
    number = level(found)
    if number is None:
        return f"The environment sets {LOG_LEVEL}={found!r}, which is no level: give one of {', '.join(LEVELS)}."
    show(number)
    return None
