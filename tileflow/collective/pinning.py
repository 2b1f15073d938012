"""Which processors each process of a host has: equal parts of those that all of them may use, cores that are neighbours
together."""
from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

PIN = "TILEFLOW_PIN"
"""Environment variable: 0 lets every process run wherever the system puts it."""
CPUS = Path("/sys/devices/system/cpu")


def parts(cpus: Iterable[int], count: int, root: Path = CPUS) -> list[set[int]] | None:
    """The processors of each of `count` processes; None where there are fewer than processes, all of which then share
    all.

    Args:
        cpus: numbers of processors. root: the system's folder of them, which tells packages and cores.
    """
    def place(cpu: int) -> tuple[int, int, int]:
        topology = root / f"cpu{cpu}/topology"
        return _number(topology / "physical_package_id"), _number(topology / "core_id"), cpu
    ordered = sorted(cpus, key=place)
    if len(ordered) < count:
        return None
    return [set(ordered[len(ordered) * i // count:len(ordered) * (i + 1) // count]) for i in range(count)]


def allowed() -> set[int]:
    """The processors that this process may use; empty where the system cannot pin, or nobody is to be pinned."""
    if os.environ.get(PIN) == "0" or not hasattr(os, "sched_getaffinity"):
        return set()
    return os.sched_getaffinity(0)


@contextlib.contextmanager
def pinned(cpus: set[int] | None) -> Iterator[None]:
    """Processes that are started within have these processors (None: as this one)."""
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _number(file: Path) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return 0
