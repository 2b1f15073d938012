"""Ends that are given in updates or in time."""
from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import ClassVar

from .base import Callback
from .logs import Logs


@dataclass
class MaxUpdates(Callback):
    """Ends the run after so many weight updates in all, exactly, however many a call has."""

    updates: int

    def next_update(self, updates: int) -> int | None:
        return self.updates

    def on_train_begin(self, logs: Logs) -> None:
        self._look()

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self._look()

    def _look(self) -> None:
        if self.run.updates >= self.updates:
            self.run.stop(f"{self.run.updates} updates are done" if self.run.updates > 1 else "1 update is done")


@dataclass
class MaxTime(Callback):
    """Ends the run after so many seconds, those before it was resumed included: once the call at hand is done."""

    seconds: float
    spent: float = field(init=False, repr=False, default=0.0)
    """Before this part of the run."""
    began: float = field(init=False, repr=False, default=0.0)

    transient: ClassVar[tuple[str, ...]] = ("began",)

    def on_train_begin(self, logs: Logs) -> None:
        if self.run.updates == 0:
            self.spent = 0.0
        self.began = time.monotonic()
        self.on_train_batch_end(0, logs)

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        if self.state()["spent"] >= self.seconds:
            self.run.stop(f"max_time, {self.seconds:g} s, is over")

    def state(self) -> dict[str, float]:
        return {"spent": self.spent + time.monotonic() - self.began}

    def restore(self, state: object) -> None:
        spent = float(state["spent"])                           # type: ignore[index]
        if not spent >= 0:
            raise ValueError("spent")
        self.spent = spent
