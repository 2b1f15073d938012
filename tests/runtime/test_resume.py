"""Interrupting and resuming: Ctrl-C, kill, failures; the result is, bit for bit, that of a run that was never stopped."""
from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asked import asked_by
from places import ROOT
from said import Said

import tileflow
from tileflow import cli, nn
from tileflow.runtime.checkpoint import load_tensors, save_tensors
from tileflow.runtime.run_folder import CHECKPOINT, FAILED
from tileflow.runtime.stop import Stop, asked_by_signals
from tileflow.system.errors import CheckpointError, Interrupted, TileflowError, TrainingError

MODEL = Path(tileflow.__file__).parent / "data" / "digits_cnn.onnx"
OPTIONS: dict[str, Any] = dict(data="digits", micro_batch_size=16, gradient_accumulation=2, device_iterations=4, learning_rate=3e-3, seed=3)
UPDATES = 1438 // (16 * 2 * 4) * 4          # of an epoch


def finish(folder: Path, epochs: int, **changes: Any) -> bytes:
    """Train (or go on) to the end; the file's bytes."""
    tileflow.train(MODEL, out=str(folder), epochs=epochs, **OPTIONS | changes)
    return (folder / "model.onnx").read_bytes()


def stop_at(monkeypatch: pytest.MonkeyPatch, poll: int) -> None:
    """Let Ctrl-C arrive when training looks for it for the `poll`-th time; slices are as short as can be."""
    class Asked(threading.Event):
        count = 0

        def is_set(self) -> bool:
            self.count += 1
            if self.count == poll:
                signal.raise_signal(signal.SIGINT)
            return super().is_set()
    asked_by(monkeypatch, Asked)


def position(folder: Path, name: str = CHECKPOINT) -> dict[str, Any]:
    """What the checkpoint says about the run."""
    return json.loads(load_tensors(folder / name)[1]["tileflow"])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], bytes]:
    """The file after so many epochs without a stop."""
    found: dict[int, bytes] = {}

    def after(epochs: int) -> bytes:
        if epochs not in found:
            found[epochs] = finish(tmp_path_factory.mktemp("whole"), epochs)
        return found[epochs]
    return after


# ---- Ctrl-C

@pytest.mark.parametrize("poll", [3, 40, 200, 555, 900])
def test_ctrl_c_anywhere_and_resume(poll: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: Callable[[int], bytes]):
    with monkeypatch.context() as patch:
        stop_at(patch, poll)
        with pytest.raises(Interrupted, match=r"Stopped after \d+ updates; .* Go on with tileflow train --resume --out \S+\."):
            finish(tmp_path, 2)
    stopped = position(tmp_path)
    assert stopped["updates"] == stopped["epoch"] * UPDATES + stopped["updates_in_epoch"]
    assert not (tmp_path / "model.onnx").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert finish(tmp_path, 2, resume=True) == uninterrupted(2)
    assert position(tmp_path)["updates"] == 2 * UPDATES


def test_some_of_these_stops_were_in_the_middle_of_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                          uninterrupted: Callable[[int], bytes]):
    """Several stops in one run, one of them inside a call of four updates; another number of threads each time."""
    within = 0
    for poll, threads in ((90, 1), (130, 2), (170, 1), (211, 2)):
        with monkeypatch.context() as patch:
            stop_at(patch, poll)
            with pytest.raises(Interrupted):
                finish(tmp_path, 3, threads=threads, resume=(tmp_path / CHECKPOINT).exists())
        within += position(tmp_path)["updates_in_epoch"] % 4 > 0
    assert within
    assert finish(tmp_path, 3, resume=True) == uninterrupted(3)


def test_metrics_of_a_resumed_epoch_are_the_whole_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        stop_at(patch, 100)
        with pytest.raises(Interrupted):
            finish(tmp_path / "a", 1)
    finish(tmp_path / "a", 1, resume=True)
    finish(tmp_path / "b", 1)
    one, other = (json.loads((tmp_path / d / "metrics.json").read_text())["epochs"] for d in "ab")
    for name in ("loss", "accuracy", "test_loss", "test_accuracy", "samples"):
        assert one[0][name] == pytest.approx(other[0][name], rel=1e-12)


def started(words: list[str], ready: Callable[[], bool]) -> subprocess.Popen[str]:
    """A training in a process of its own, once `ready` holds."""
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while not ready():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "training did not begin"
        time.sleep(0.01)
    return process


def command(folder: Path, checkpoint_every: int = 10) -> list[str]:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    return ["-m", "tileflow", "train", str(MODEL), "--out", str(folder), "--epochs", "1000000", f"--checkpoint-every={checkpoint_every}", *flags]


@pytest.mark.parametrize("asked", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)])
def test_ctrl_c_in_a_terminal(tmp_path: Path, uninterrupted: Callable[[int], bytes], asked: signal.Signals):
    """SIGTERM, by which process managers ask, ends a run as Ctrl-C does."""
    process = started(command(tmp_path), (tmp_path / CHECKPOINT).exists)
    process.send_signal(asked)
    _, errors = process.communicate(timeout=30)         # of a million epochs, that is: a quiet machine takes half a second
    assert process.returncode == 130
    assert "Traceback" not in errors
    said = re.search(r"tileflow: Stopped after \d+ updates; saved .*\. Go on with (tileflow train --resume --out .*)\.\n", errors)
    assert said
    epochs = position(tmp_path)["epoch"] + 1
    assert cli.main([*shlex.split(said[1])[1:], "--epochs", str(epochs), "--checkpoint-every", "1"]) == 0
    assert (tmp_path / "model.onnx").read_bytes() == uninterrupted(epochs)


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once(asked: signal.Signals):
    stop, before = Stop(None), signal.getsignal(asked)
    with asked_by_signals(stop):
        signal.raise_signal(asked)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(asked)
    assert signal.getsignal(asked) is before


@pytest.mark.exhaustive
def test_ctrl_c_in_a_script(tmp_path: Path):
    script = f"import tileflow; tileflow.train({str(MODEL)!r}, out={str(tmp_path)!r}, epochs=10**6, **{OPTIONS!r})"
    process = started(["-c", script], (tmp_path / CHECKPOINT).exists)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "Interrupted: Stopped after" in errors.splitlines()[-1]


def test_kill_and_resume_from_the_last_checkpoint(tmp_path: Path, uninterrupted: Callable[[int], bytes]):
    def later() -> bool:
        return (tmp_path / CHECKPOINT).exists() and position(tmp_path)["epoch"] >= 3
    process = started([*command(tmp_path, 1), "--save-every-updates", "12"], later)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    epochs = position(tmp_path)["epoch"] + 1
    assert finish(tmp_path, epochs, resume=True) == uninterrupted(epochs)


# ---- failures, refusals

class Net(nn.Module):
    def __init__(self) -> None:
        nn.manual_seed(1)
        self.one, self.norm, self.drop, self.two = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        return self.two(self.drop(self.norm(self.one(x)).relu()))


def rows(bad: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((96, 6)).astype(np.float32)
    y = (np.abs(x[:, 0]) + np.abs(x[:, 1]) > 1.5).astype(np.int64) + (x[:, 2] > 1)
    if bad is not None:
        x[bad] = np.nan
    return x, y


def train_net(folder: Path, data: Any, **changes: Any) -> tuple[nn.Module, Any]:
    net = Net()
    options = dict(micro_batch_size=4, gradient_accumulation=2, device_iterations=3, out=str(folder), shuffle=False, learning_rate=0.01) | changes
    return net, tileflow.train(net, data=data, **options)


def test_a_failed_run_goes_on_from_before_the_failure(tmp_path: Path):
    """Update 4, the second of the second call, fails; with mended data the run goes on as if nothing had been."""
    with pytest.raises(TrainingError, match=r"not finite at micro-batch 3 of the call \(update 4\)") as failure:
        train_net(tmp_path, rows(bad=37), epochs=2)
    assert failure.value.__notes__ == ["Input x holds nan in row 37 of the data: mend that row, or leave it out.",
                                       f"The state before the failure is saved in {tmp_path / FAILED}. Go on from it with the same call and "
                                       f"resume={str(tmp_path / FAILED)!r}."]
    assert (position(tmp_path, FAILED)["updates"], position(tmp_path, FAILED)["updates_in_epoch"]) == (4, 4)
    resumed, _ = train_net(tmp_path, rows(), epochs=2, resume=str(tmp_path / FAILED), allow_other_data=True)
    whole, _ = train_net(tmp_path / "whole", rows(), epochs=2)
    assert {n: a.tobytes() for n, a in resumed.state_dict().items()} == {n: a.tobytes() for n, a in whole.state_dict().items()}


def test_a_failure_leaves_the_last_checkpoint_alone(tmp_path: Path):
    with pytest.raises(TrainingError) as failure:
        train_net(tmp_path, rows(bad=37), epochs=2, save_every_updates=3)
    assert failure.value.__notes__[1].endswith(f" The last checkpoint, {tmp_path / CHECKPOINT}, is as it was.")
    good = (tmp_path / CHECKPOINT).read_bytes()
    assert (position(tmp_path)["updates"], position(tmp_path, FAILED)["updates"]) == (3, 4)
    with pytest.raises(TrainingError):
        train_net(tmp_path, rows(bad=37), epochs=2, resume=True)
    assert (tmp_path / CHECKPOINT).read_bytes() == good


def test_layers_with_statistics_and_dropout_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        stop_at(patch, 60)
        with pytest.raises(Interrupted):
            train_net(tmp_path, rows(), epochs=5, shuffle=True)
    resumed, result = train_net(tmp_path, rows(), epochs=5, shuffle=True, resume=str(tmp_path / CHECKPOINT))
    whole, _ = train_net(tmp_path / "whole", rows(), epochs=5, shuffle=True)
    assert {n: a.tobytes() for n, a in resumed.state_dict().items()} == {n: a.tobytes() for n, a in whole.state_dict().items()}
    assert len(result.epochs) == 5
    assert not np.array_equal(resumed.state_dict()["norm.running_mean"], np.zeros(8))


def test_a_finished_run_can_be_prolonged(tmp_path: Path):
    train_net(tmp_path, rows(), epochs=2)
    longer, result = train_net(tmp_path, rows(), epochs=4, resume=True)
    whole, _ = train_net(tmp_path / "whole", rows(), epochs=4)
    assert {n: a.tobytes() for n, a in longer.state_dict().items()} == {n: a.tobytes() for n, a in whole.state_dict().items()}
    assert [e.epoch for e in result.epochs] == [1, 2, 3, 4]


@pytest.mark.parametrize(("changes", "says"), [
    ({"seed": 1}, "was made with seed = 0, this run has 1; resume with the same settings"),
    ({"gradient_accumulation": 1}, "was made with gradient_accumulation = 2, this run has 1"),
    ({"device_iterations": 2}, "was made with device_iterations = 3, this run has 2"),
    ({"frozen": "one*"}, r"was made with frozen = \[\], this run has \['one\*'\]"),
    ({"loss": "nll"}, "was made with loss = cross_entropy, this run has nll"),
    ({"optimizer": "sgd"}, "was made with the optimizer AdamW, this run has SGD"),
    ({"betas": (0.8, 0.9)}, r"was made with the optimizer's betas = \[0.9, 0.999\], this run has \[0.8, 0.9\]"),
    ({"scale": 2.0}, r"was made with scale 1.0, mean \[\], std \[\] for input x, this run has scale 2.0, mean \[\], std \[\] for input x"),
    ({"mean": 0.5}, r"this run has scale 1.0, mean \[0.5\]"),
])
def test_resuming_needs_the_same_run(tmp_path: Path, changes: dict[str, Any], says: str):
    train_net(tmp_path, rows(), epochs=1)
    with pytest.raises(CheckpointError, match=says):
        train_net(tmp_path, rows(), epochs=2, resume=True, **changes)


def test_resuming_needs_a_checkpoint_that_is_named_to_be_there(tmp_path: Path):
    train_net(tmp_path, rows(), epochs=1)
    with pytest.raises(CheckpointError, match=r"no-checkpoint"):
        train_net(tmp_path, rows(), epochs=2, resume=str(tmp_path / "no-checkpoint"))
    with pytest.raises(CheckpointError, match="already holds a run"):
        train_net(tmp_path, rows(), epochs=2)
    train_net(tmp_path / "other", rows(), epochs=1)
    with pytest.raises(CheckpointError, match="other already holds a run"):
        train_net(tmp_path / "other", rows(), epochs=2, resume=str(tmp_path / CHECKPOINT))
    with pytest.raises(CheckpointError, match="name its folder with out"):
        tileflow.train(Net(), data=rows(), resume=True)


class Other(Net):
    """The same parameters, another function."""

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        return self.two(self.drop(self.norm(self.one(x)).tanh()))


def test_resuming_needs_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    train_net(tmp_path, rows(), epochs=1)
    options = dict(micro_batch_size=4, gradient_accumulation=2, device_iterations=3, shuffle=False, learning_rate=0.01, epochs=2)
    with pytest.raises(CheckpointError, match="belongs to another model: operators, attributes, names or sizes of its graph"):
        tileflow.train(Other(), data=rows(), out=str(tmp_path), resume=True, **options)          # type: ignore[arg-type]
    monkeypatch.setattr("tileflow.runtime.fingerprint.VERSION", "9.0")
    with pytest.raises(CheckpointError, match=r"tileflow 0\.\S+ wrote it, and another version may read a model differently: go on with that one"):
        tileflow.train(Other(), data=rows(), out=str(tmp_path), resume=True, **options)          # type: ignore[arg-type]
    tileflow.train(Net(), data=rows(), out=str(tmp_path), resume=True, **options)          # type: ignore[arg-type]


def test_resuming_needs_the_same_data(tmp_path: Path):
    x, y = rows()
    train_net(tmp_path, (x, y), epochs=1)
    for other in ((x[::-1], y), (x, y[::-1]), (x.astype(np.float64), y), (x[:90], y[:90])):
        with pytest.raises(CheckpointError, match=rf"made with other data \(96 rows, this run has {len(other[0])}; .*--allow-other-data"):
            train_net(tmp_path, other, epochs=2, resume=True)
    named = np.array(["a", "b", "c"])
    train_net(tmp_path / "named", (x, named[y]), epochs=1)
    with pytest.raises(CheckpointError, match="made with other data"):
        train_net(tmp_path / "named", (x, np.array(["a", "b", "d"])[y]), epochs=2, resume=True)
    said = Said()
    train_net(tmp_path, (x[:90], y[:90]), epochs=2, resume=True, allow_other_data=True, callbacks=[said])
    assert "Going on with other data: 90 rows, 96 before." in said.sentences


def test_rates_and_epochs_may_change_aloud(tmp_path: Path):
    train_net(tmp_path, rows(), epochs=1)
    said = Said()
    _, result = train_net(tmp_path, rows(), epochs=2, learning_rate=0.02, weight_decay=0.5, resume=True,
                          callbacks=[said])
    assert [s for s in said.sentences if s.startswith("Going on")] == [
        "Going on with lr = 0.02 in place of 0.01.", "Going on with weight_decay = 0.5 in place of 0.01.",
        "Going on to epoch 2; the run was to end with 1."]
    same, _ = train_net(tmp_path / "same", rows(), epochs=1)
    same, _ = train_net(tmp_path / "same", rows(), epochs=2, resume=True)
    assert not np.array_equal(result.weights["one.weight"], same.state_dict()["one.weight"])
    assert len(result.epochs) == 2


def test_one_command_repeated_brings_a_run_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """--resume where nothing is there begins, and says so; where everything is done it says that."""
    said = Said()
    with monkeypatch.context() as patch:
        stop_at(patch, 30)
        with pytest.raises(Interrupted):
            train_net(tmp_path, rows(), epochs=3, resume=True, callbacks=[said])
    assert f"There is no checkpoint in {tmp_path} yet: the run begins anew." in said.sentences
    train_net(tmp_path, rows(), epochs=3, resume=True, callbacks=[said])
    again, result = train_net(tmp_path, rows(), epochs=3, resume=True, callbacks=[said])
    assert "The run has done 3 epochs, so there is nothing left to train; ask for more with epochs." in said.sentences
    whole, _ = train_net(tmp_path / "whole", rows(), epochs=3)
    assert {n: a.tobytes() for n, a in again.state_dict().items()} == {n: a.tobytes() for n, a in whole.state_dict().items()}
    assert len(result.epochs) == 3


def test_a_failed_run_is_named_where_it_left_no_checkpoint(tmp_path: Path):
    with pytest.raises(TrainingError):
        train_net(tmp_path, rows(bad=37), epochs=2)
    said = Said()
    train_net(tmp_path, rows(), epochs=1, resume=True, callbacks=[said])
    assert f"A run that failed left its state in {tmp_path / FAILED}: resume that file to go on from it." in said.sentences[-1]


def test_a_damaged_checkpoint_is_refused(tmp_path: Path):
    train_net(tmp_path, rows(), epochs=1)
    whole = (tmp_path / CHECKPOINT).read_bytes()
    (tmp_path / CHECKPOINT).write_bytes(whole[:-10])
    with pytest.raises(CheckpointError, match="damaged"):
        train_net(tmp_path, rows(), epochs=2, resume=True)
    other = nn.Sequential(nn.Linear(6, 3))
    (tmp_path / CHECKPOINT).write_bytes(whole)
    with pytest.raises(CheckpointError, match="another model"):
        tileflow.train(other, data=rows(), micro_batch_size=4, gradient_accumulation=2, device_iterations=3, out=str(tmp_path), shuffle=False,
                       learning_rate=0.01, epochs=2, resume=True)


def test_training_outside_of_the_main_thread(tmp_path: Path):
    """No signal handler is set there; training works all the same."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            train_net(tmp_path, rows(), epochs=1, threads=1)
        except BaseException as error:
            failures.append(error)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures
    assert os.path.exists(tmp_path / CHECKPOINT)


# ---- forged checkpoints

@pytest.mark.parametrize(("forge", "says"), [
    (lambda t, s: s.update(updates_in_epoch=10**12), "says that 1,000,000,000,000 updates of its epoch are done, and an epoch of this"),
    (lambda t, s: s.update(updates_in_epoch=5), "says that 5 updates of its epoch are done, and an epoch of this run has 4; restore"),
    (lambda t, s: t.update({"optimizer.loss_scale": np.array(-2, np.float32)}), "holds -2.0 under optimizer.loss_scale, and a loss"),
    (lambda t, s: t.update({"optimizer.loss_scale": np.array(np.nan, np.float32)}), "holds nan under optimizer.loss_scale"),
    (lambda t, s: t.update({"optimizer.loss_scale": np.array(0, np.float32)}), "holds 0.0 under optimizer.loss_scale"),
    (lambda t, s: (t.pop("optimizer.loss_scale"), s["run"].update(loss_scaling=-3)), "holds -3.0 under optimizer.loss_scale"),
    (lambda t, s: s.update(updates=2**60), "The learning rates of the 1,152,921,504,606,846,976 updates that"),
    (lambda t, s: s.update(history=["x"]), "does not say how far its run has come"),
    (lambda t, s: s.update(short_updates=3, updates_in_epoch=4), "does not say how far its run has come"),
    (lambda t, s: s.update(short_updates=1), "does not say how far its run has come"),
    (lambda t, s: s.pop("short_updates"), ""),
    (lambda t, s: None, ""),
    (lambda t, s: (s.update(updates_in_epoch=4, epoch=0, history=[]), s["running"].update(samples=64)), ""),
])
def test_forged_checkpoints(forge: Any, says: str, tmp_path: Path):
    """With a digest that is right. The last three are none: an older one, one as it was, and stopped between an epoch's last call and its end."""
    options: dict[str, Any] = dict(data=rows(), micro_batch_size=4, gradient_accumulation=4, precision="16-mixed", max_batches=4, out=str(tmp_path))
    tileflow.train(nn.Linear(6, 3), epochs=1, **options)
    tensors, metadata = load_tensors(tmp_path / CHECKPOINT)
    state = json.loads(metadata["tileflow"])
    forge(tensors, state)
    save_tensors(tmp_path / CHECKPOINT, tensors, {"tileflow": json.dumps(state)})
    if says:
        with pytest.raises(TileflowError, match=says):
            tileflow.train(nn.Linear(6, 3), epochs=2, resume=True, **options)
    else:
        assert len(tileflow.train(nn.Linear(6, 3), epochs=2, resume=True, **options).epochs) == 2
