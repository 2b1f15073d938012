"""A run that is stopped anywhere, several times, and goes on is, bit for bit, the run that was never stopped: every optimizer and precision, with
dropout, statistics, schedules, loss scales that adapt, accumulation, stochastic rounding, and rows at the end of an epoch that fill no call."""
from __future__ import annotations

import functools
import json
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asked import asked_by

import tileflow
from tileflow import nn
from tileflow.options.options import declarations
from tileflow.runtime.checkpoint import load_checkpoint
from tileflow.runtime.run_folder import CHECKPOINT
from tileflow.system.errors import Interrupted

hypothesis = pytest.importorskip("hypothesis", reason="pip install hypothesis makes it run")
st = hypothesis.strategies

draw = np.random.default_rng(2)
X, Y = draw.standard_normal((75, 6)).astype(np.float32), draw.integers(0, 3, 75)
EPOCHS = 2
OPTIMIZERS: dict[str, dict[str, Any]] = {"sgd": dict(momentum=0.9, weight_decay=0.05), "adam": dict(weight_decay=0.05)}
"""What the optimizers are given besides their defaults."""
NAMES = declarations()["optimizer"].kind.words                   # type: ignore[attr-defined]
PRECISIONS = ("32", "64", "16-mixed", "bf16-mixed", "16-true", "bf16-true")
EXTRAS: tuple[dict[str, Any], ...] = (
    dict(), dict(schedule="cosine", warmup=3, learning_rate=0.05), dict(schedule="plateau", schedule_epochs=0, warmup=0.25, learning_rate=0.05),
    dict(loss_scaling=128.0, gradient_accumulation=2), dict(automatic_loss_scaling="dynamic", growth_interval=3),
    dict(drop_last=False, schedule="linear"), dict(save_every_updates=2, device_iterations=5))

PURE: tuple[dict[str, Any], ...] = (dict(), dict(stochastic_rounding=True), dict(master_weights="remainder"))
"""How weights of 16 bits may be written."""


class Net(nn.Module):
    def __init__(self) -> None:
        nn.manual_seed(3)
        self.one, self.norm, self.two, self.drop = nn.Linear(6, 5), nn.BatchNorm(5), nn.Linear(5, 3), nn.Dropout(0.3)

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        return self.two(self.drop(self.norm(self.one(x)).relu()))


class Asked(threading.Event):
    """Is looked at between any two slices of the driver; a signal comes when that happens for the `at`-th time. How often it happens depends on the
    machine: a signal that nobody waits for any more, which would end the tests, does not come."""

    def __init__(self, at: int | None = None, what: int = signal.SIGINT) -> None:
        super().__init__()
        self.at, self.what, self.count = at, what, 0

    def is_set(self) -> bool:
        self.count += 1
        if self.count == self.at and signal.getsignal(self.what) not in (signal.SIG_DFL, signal.default_int_handler):
            signal.raise_signal(self.what)
        return super().is_set()


def run(folder: Path, asked: Asked, **options: Any) -> Any:
    """A run, or what is left of it, in slices as short as can be."""
    with pytest.MonkeyPatch.context() as patch:
        asked_by(patch, lambda: asked)
        return tileflow.train(Net(), data=(X, Y), out=str(folder), resume=True, **options)


def left(folder: Path) -> dict[str, Any]:
    """All that a run leaves: the tensors' bits, its position and history without the seconds."""
    found = load_checkpoint(folder / CHECKPOINT)
    state = json.loads(found.metadata["tileflow"])
    for record in (state["running"], *state["history"]):
        del record["seconds"]
    del state["run"]
    return {n: a.tobytes() for n, a in found.tensors.items()} | {"state": state}


def options_of(optimizer: str, precision: str, extra: int) -> dict[str, Any]:
    options = dict(optimizer=optimizer, precision=precision, micro_batch_size=4, device_iterations=3, epochs=EPOCHS, learning_rate=0.01)
    pure = PURE[(extra + NAMES.index(optimizer)) % len(PURE)] if precision.endswith("true") else {}
    return options | OPTIMIZERS.get(optimizer, {}) | EXTRAS[extra] | pure


@functools.cache
def whole(optimizer: str, precision: str, extra: int) -> tuple[dict[str, Any], int]:
    """What is left of a run that is not stopped, and how often it looked for a signal."""
    with tempfile.TemporaryDirectory() as name:
        asked = Asked()
        run(Path(name), asked, **options_of(optimizer, precision, extra))
        return left(Path(name)), asked.count


def stopped_and_resumed(optimizer: str, precision: str, extra: int, stops: list[tuple[float, int]]) -> None:
    """Stops at these shares of what is left of the run, by these signals."""
    wanted, polls = whole(optimizer, precision, extra)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for share, what in stops:
            try:
                run(folder, Asked(1 + int(share * polls), what), **options_of(optimizer, precision, extra))
                break                                              # it was over before
            except Interrupted:
                pass
        run(folder, Asked(), **options_of(optimizer, precision, extra))
        found = left(folder)
    assert found.keys() == wanted.keys()
    assert [n for n in wanted if found[n] != wanted[n]] == []


STOPS = st.lists(st.tuples(st.floats(0, 0.99), st.sampled_from([signal.SIGINT, signal.SIGTERM])), min_size=1, max_size=3)


def cases() -> list[Any]:
    """Every optimizer with every precision; at every change each in float32, and one in mixed precision."""
    def often(i: int, j: int) -> bool:
        return PRECISIONS[j] == "32" or (i == 0 and PRECISIONS[j] == "16-mixed")
    return [pytest.param(o, p, marks=() if often(i, j) else pytest.mark.exhaustive) for i, o in enumerate(NAMES) for j, p in enumerate(PRECISIONS)]


@pytest.mark.parametrize(("optimizer", "precision"), cases())
def test_a_stop_in_every_optimizer_and_precision(optimizer: str, precision: str) -> None:
    """Each with one of the extras."""
    number = NAMES.index(optimizer) + PRECISIONS.index(precision)
    stopped_and_resumed(optimizer, precision, number % len(EXTRAS), [(0.3, signal.SIGTERM), (0.45, signal.SIGINT)])


@pytest.mark.exhaustive
@hypothesis.settings(max_examples=150, deadline=None, derandomize=True)
@hypothesis.given(st.sampled_from(NAMES), st.sampled_from(PRECISIONS), st.sampled_from(range(len(EXTRAS))), STOPS)
def test_stops_anywhere(optimizer: str, precision: str, extra: int, stops: list[tuple[float, int]]) -> None:
    stopped_and_resumed(optimizer, precision, extra, stops)
