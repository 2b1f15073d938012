"""What has to be over in time, on a computer that has other things to do: a second counts for the share of it in which
one that wants a processor has one."""
from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

LOOK = 0.1
"""Seconds between two looks at how many want a processor."""


class Served:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._last, self._sum = time.monotonic(), 0.0

    def seconds(self) -> float:
        """To be asked often."""
        now = time.monotonic()
        self._sum += (now - self._last) * min(1.0, (os.cpu_count() or 1) / max(1, _runnable()))
        self._last = now
        return self._sum


def _runnable() -> int:
    """How many have a processor, or wait for one."""
    try:
        return next(int(line.split()[1])
                    for line in Path("/proc/stat").read_text().splitlines() if line.startswith("procs_running"))
    except OSError:
        return 1


def within(seconds: float) -> Iterator[None]:
    """Turns, LOOK apart, as long as these last."""
    served = Served()
    while served.seconds() < seconds:
        yield
        time.sleep(LOOK)


def over(done: Callable[[], bool], seconds: float) -> bool:
    """Whether it is done in time."""
    return any(done() for _ in within(seconds)) or done()


def communicated(launcher: subprocess.Popen[str], seconds: float,
                 begun: Callable[[], bool] = lambda: True) -> tuple[str, str]:
    """What a process says until it ends, in time from when that has `begun`; TimeoutExpired where it does not."""
    served = None
    while True:
        try:
            out, said = launcher.communicate(timeout=LOOK)
            return out or "", said or ""
        except subprocess.TimeoutExpired:
            served = served or (Served() if begun() else None)
            if served is not None and served.seconds() > seconds:
                raise
