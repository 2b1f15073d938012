"""Resident memory of this process, in bytes."""
from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path


def resident() -> int:
    """Memory in use now (0 where the system does not say)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def forget_peak() -> None:
    """Let `peak` count from now on, where the system can (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """The most that was in use, since `forget_peak` where that works, else since the process began."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
