"""Whole runs by several processes: files, figures and weights are those of one process, and so is a run that goes on
with others."""
from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from groups import forked
from tileflow.errors import OptionError, ProcessError

import tileflow
from tileflow import callbacks, collective, nn
from tileflow.runtime.checkpoint import load_checkpoint
from tileflow.runtime.stop import Stop, asked_by_signals


def data() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    x = draw.standard_normal((58, 8)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


class Halved(callbacks.Callback):
    """Sets the learning rate, and stops the run, in the first process only."""

    def __init__(self, stop: int) -> None:
        self.at = stop
        self.seen: list[int] = []

    remembered = ("seen",)
    transient = ("at",)

    def __repr__(self) -> str:
        return f"Halved({self.at})"

    def next_update(self, updates: int) -> int:
        return updates + 1

    def on_train_batch_end(self, batch: int, logs: Any) -> None:
        self.seen.append(self.run.updates)
        if self.run.updates == 3:
            self.run.learning_rate = self.run.learning_rate / 2
        if self.run.updates == self.at:
            self.run.stop("enough")


def run(folder: Path, stop: int = 100, rows: int = 58, **more: Any) -> list[int]:
    nn.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))
    x, y = data()
    watching = Halved(stop)
    tileflow.train(net, data=(x[:rows], y[:rows]), validation_split=0.2, epochs=2, micro_batch_size=3,
                   replication_factor=4, optimizer="adamw", learning_rate=0.01,
                   out=str(folder), drop_last=False, threads=1, callbacks=[watching], **more)
    return watching.seen


def left(folder: Path) -> tuple[dict[str, bytes], Any]:
    """Tensors of a run's checkpoint, and the figures of its epochs without times."""
    found = load_checkpoint(folder / "checkpoint.safetensors")
    at = json.loads(found.metadata["tileflow"])
    epochs = [{k: v for k, v in e.items() if "second" not in k and "per" not in k} for e in at["history"]]
    return {n: np.ascontiguousarray(a).tobytes() for n, a in found.tensors.items()}, epochs


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Any:
    folder = tmp_path_factory.mktemp("alone") / "run"
    return run(folder), left(folder)


@pytest.mark.filterwarnings("ignore::tileflow.TileflowWarning")
def test_a_run_is_that_of_one_process(alone, tmp_path):
    seen = forked(tmp_path / "group", 2, lambda rank: run(tmp_path / "run"))
    assert seen == [alone[0], []], "callbacks are those of the first process"
    assert left(tmp_path / "run") == alone[1]
    assert {p.name for p in (tmp_path / "run").iterdir()} >= {"checkpoint.safetensors", "metrics.json"}


@pytest.mark.filterwarnings("ignore::tileflow.TileflowWarning")
def test_a_run_goes_on_with_another_number_of_processes(alone, tmp_path):
    found = forked(tmp_path / "three", 3, lambda rank: run(tmp_path / "run", stop=4))
    assert not any(isinstance(f, Exception) for f in found), found
    found = forked(tmp_path / "two", 2, lambda rank: run(tmp_path / "run", resume=True))
    assert not any(isinstance(f, Exception) for f in found), found
    assert left(tmp_path / "run") == alone[1]


@pytest.mark.filterwarnings("ignore::tileflow.TileflowWarning")
def test_other_data_are_refused(tmp_path):
    found = forked(tmp_path / "group", 2, lambda rank: run(tmp_path / "run", rows=58 - rank))
    assert any(isinstance(f, OptionError) and "set of data or options" in str(f) for f in found), found
    assert all(isinstance(f, (OptionError, ProcessError)) for f in found)


def test_a_request_that_comes_after_all_have_agreed_is_spent(tmp_path: Path):
    """Whoever asks a group asks each of its processes, and some of them end before their own request comes."""
    def work(rank: int) -> tuple[bool, bool, list[int]]:
        came: list[int] = []
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: came.append(number))
        stop = Stop(collective.current())
        with asked_by_signals(stop):
            if rank == 0:
                signal.raise_signal(signal.SIGTERM)
            stop.agree()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        return stop.is_set(), stop.is_asked(), came
    assert forked(tmp_path, 2, work) == [(True, True, [signal.SIGTERM, signal.SIGINT]), (True, False, [signal.SIGINT])]
