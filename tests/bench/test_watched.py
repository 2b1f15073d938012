"""What callbacks cost, measured on a short run."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bench import watched
from tileflow import callbacks
from tileflow.runtime.callbacks.several import Callbacks
from tileflow.runtime.trainer import Trainer


def test_time_within_callbacks_is_counted_from_the_second_epoch_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that moves within a callback alone: of three epochs two are counted. Nothing stays of what counted."""
    now = [0.0]

    class Slow(callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any) -> None:
            now[0] += 1

    monkeypatch.setattr(watched, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    before = Callbacks.call, Trainer._keep
    found = watched.watched("slow", [Slow()], 2, 800, 1)
    assert (Callbacks.call, Trainer._keep) == before
    assert (found.seconds, found.of_run, found.share) == (2, 2, 1)
    assert "slow, 2 updates a call" in found.to_text()


def test_a_callback_of_each_kind_is_looked_at() -> None:
    kinds = {type(c).__name__ for c in watched.everything()}
    assert {"EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint", "CSVLogger"} <= kinds
