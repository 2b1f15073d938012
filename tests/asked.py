"""Runs that are asked to end where a test says."""
from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tileflow.collective import Communicator
from tileflow.runtime.stop import Stop


def asked_by(patch: pytest.MonkeyPatch, made: Callable[[], threading.Event]) -> None:
    """Trainers that are made from now on look at an event of `made`'s, in slices as short as can be."""
    def stop(group: Communicator | None) -> Stop:
        found = Stop(group)
        found.asked = found._agreed = made()
        return found
    patch.setattr("tileflow.runtime.trainer.Stop", stop)
    patch.setattr("tileflow.executable.engine.SLICE_NS", 0)
