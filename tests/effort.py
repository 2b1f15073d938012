"""What work takes, counted in function calls, Python's and C's: no other process and no slower machine changes that. Seconds are the benchmark's."""
from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Effort:
    """Functions that were called so far."""

    def __init__(self) -> None:
        self.calls = 0


@contextmanager
def counted() -> Iterator[Effort]:
    """What this thread calls within the block."""
    effort = Effort()

    def seen(_frame: Any, event: str, _argument: Any) -> None:
        if event in ("call", "c_call"):
            effort.calls += 1
    sys.setprofile(seen)
    try:
        yield effort
    finally:
        sys.setprofile(None)


@contextmanager
def at_most(calls: int) -> Iterator[None]:
    """Work that should be small, or be refused, was small."""
    with counted() as effort:
        yield
    assert effort.calls <= calls, f"{effort.calls:,} calls"
