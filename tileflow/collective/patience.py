"""Telling a process that hangs from one that is not given a processor, by those who watch: a busy computer is no
fault."""
from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..system.errors import OptionError

Found = TypeVar("Found")
PATIENCE = "TILEFLOW_PATIENCE"
"""Says `silent` otherwise."""
SILENT = 6.0
"""Seconds: with those for which processes may end by themselves, all have ended within 10."""
STARVED = 2.0
"""Seconds of processors that a process may use up in silence, while it wants more: else it is one that hangs."""


def silent() -> float:
    """Seconds without a heartbeat after which a process counts as one that hangs, or that cannot be reached, and those
    that hear nobody who watches end by themselves.

    Raises:
        OptionError: the environment says what is no such number.
    """
    told = os.environ.get(PATIENCE) or str(SILENT)
    try:
        found = float(told)
    except ValueError:
        found = 0.0
    if not 1.0 <= found <= 86400.0:
        raise OptionError(f"{PATIENCE} must be 1 to 86400 seconds, not {told!r}.")
    return found


class Clock:
    """Seconds as one has them who listens: what a wait took beyond its time does not count, for nobody listened
    meanwhile."""

    def __init__(self) -> None:
        self._lost = 0.0

    def now(self) -> float:
        return time.monotonic() - self._lost

    def during(self, wait: Callable[[], Found], seconds: float) -> Found:
        """What a wait gives that ends after so many seconds."""
        began = time.monotonic()
        found = wait()
        self._lost += max(0.0, time.monotonic() - began - 2 * seconds)
        return found


def used(pid: int) -> float:
    """Seconds of processors that a process has used; 0 where nobody knows."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


def starves(pid: int, before: float) -> bool:
    """Whether a process that had used `before` seconds when it was heard last waits for a processor, of which it has
    had little since."""
    try:
        states = [(task / "stat").read_text().rpartition(") ")[2][:1] for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False
    return "R" in states and used(pid) - before < STARVED
