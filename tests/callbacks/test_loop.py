"""What callbacks are told and when, and what they may ask of a run: ends, saved files, learning rates."""
from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from said import Said

import tileflow
from tileflow import nn
from tileflow.callbacks import Callback, EarlyStopping, LambdaCallback, MaxUpdates
from tileflow.optim import AdamW, schedules
from tileflow.runtime.checkpoint import load_checkpoint
from tileflow.runtime.run_folder import CHECKPOINT
from tileflow.system.errors import OptionError

DRAW = np.random.default_rng(0)
X, Y = DRAW.standard_normal((60, 4)).astype(np.float32), DRAW.integers(0, 3, 60)
TEST = DRAW.standard_normal((20, 4)).astype(np.float32), DRAW.integers(0, 3, 20)
CALLS = (1, 3, 10)
"""Device iterations: an epoch are 30 updates."""


def network() -> nn.Module:
    nn.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def train(folder: Path, **options: Any) -> tileflow.TrainResult:
    settings: dict[str, Any] = dict(data=(X, Y), micro_batch_size=2, epochs=2, out=str(folder))
    if "optimizer" not in options:
        settings |= dict(optimizer="adamw", learning_rate=0.02)
    return tileflow.train(network(), **settings | options)


def bits(result: tileflow.TrainResult) -> dict[str, bytes]:
    return {name: w.tobytes() for name, w in result.weights.items()}


class Told(Callback):
    """Keeps what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_train_begin(self, logs: Any) -> None:
        self.told.append("train begins")

    def on_train_end(self, logs: Any) -> None:
        self.told.append("train ends")

    def on_epoch_begin(self, epoch: int, logs: Any) -> None:
        self.told.append(f"epoch {epoch} begins")

    def on_epoch_end(self, epoch: int, logs: Any) -> None:
        assert logs["val_loss"] == logs["test_loss"] == self.run.metrics["test_loss"]
        self.told.append(f"epoch {epoch} ends")

    def on_train_batch_end(self, batch: int, logs: Any) -> None:
        assert logs["losses"].shape == logs["learning_rates"].shape
        self.told.append(f"batch {batch} after {self.run.updates}")

    def on_evaluate_end(self, logs: Any) -> None:
        self.told.append("evaluated")

    def on_save(self, path: Path) -> None:
        self.told.append(path.stem)

    def state(self) -> dict[str, Any]:
        return {"told": len(self.told)}

    def restore(self, state: Any) -> None:
        self.before = state["told"]


class Asks(Told):
    """Asks for a file in the middle of the moment that another callback, which comes after it, is told of as well."""

    def on_epoch_end(self, epoch: int, logs: Any) -> None:
        super().on_epoch_end(epoch, logs)
        self.run.save("kept")
        self.told.append("asked")


def test_the_order_of_things(tmp_path: Path) -> None:
    """Updates, evaluation, all callbacks, what they asked for, the run's checkpoint."""
    first, second = Asks(), Told()
    train(tmp_path, device_iterations=15, epochs=1, test_data=TEST, callbacks=[first, second])
    calls = ["batch 0 after 15", "batch 1 after 30"]
    assert first.told == ["train begins", "epoch 0 begins", *calls, "evaluated", "epoch 0 ends", "asked", "kept",
                          "checkpoint", "train ends"]
    assert second.told == [what for what in first.told if what != "asked"]
    kept = json.loads(load_checkpoint(tmp_path / "kept.safetensors").metadata["tileflow"])
    assert kept["callbacks"]["Told"] == {"told": 7}  # with this moment, though it came after who asked
    assert kept["callbacks"]["Asks"] == {"told": 8}


def test_a_kept_file_is_resumed(tmp_path: Path) -> None:
    """It holds the whole run, and what comes of it is what came of the run."""
    whole = train(tmp_path / "a", callbacks=LambdaCallback(on_epoch_end=lambda epoch, logs: None))
    keeper = LambdaCallback()
    vars(keeper)["on_epoch_end"] = lambda epoch, logs: keeper.run.save("first") if epoch == 0 else None
    train(tmp_path / "b", callbacks=keeper)
    again = train(tmp_path / "c", resume=str(tmp_path / "b" / "first.safetensors"), callbacks=keeper)
    assert bits(again) == bits(whole)
    assert again.history["loss"].tolist() == whole.history["loss"].tolist()


class Losses(Callback):
    """The loss of each update of a run."""

    remembered = ("losses",)

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any) -> None:
        self.losses += logs["losses"].tolist()
        assert len(self.losses) == self.run.updates


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.exhaustive), 3])
def test_a_stop_at_an_update_is_exact(threads: int, tmp_path: Path) -> None:
    """Weights, histories, losses of each update and logs are the same whatever the number of updates of a call."""
    found = []
    for calls in CALLS:
        told = Losses()
        result = train(tmp_path / str(calls), device_iterations=calls, max_updates=37, eval_every=7, test_data=TEST,
                       threads=threads, callbacks=told)
        assert len(result.learning_rates) == 37
        assert result.stopped == "37 updates are done"
        assert len(result.epochs) == 2                                   # the second in the middle of which it ended
        log = (tmp_path / str(calls) / "log.jsonl").read_text()
        assert [json.loads(line)["evaluation"]
                for line in log.splitlines() if "evaluation" in line] == [7, 14, 21, 28, 30, 35]
        history = {n: a.tolist() for n, a in result.history.items() if n not in ("samples_per_second", "loss_scale")}
        found.append((bits(result), told.losses, log, history))
    assert found[0] == found[1] == found[2]


def test_a_run_that_ended_early_goes_on_further(tmp_path: Path) -> None:
    """Where what ended it is another one, bit for bit; told so where it is the same."""
    whole = train(tmp_path / "whole", max_updates=50, device_iterations=3)
    train(tmp_path / "parts", max_updates=37, device_iterations=3)
    said = Said()
    again = train(tmp_path / "parts", max_updates=37, device_iterations=3, resume=True, callbacks=said)
    assert len(again.learning_rates) == 37
    assert "There is nothing left to train; ask for more with epochs, or change what ended the run." in said.sentences
    further = train(tmp_path / "parts", max_updates=50, device_iterations=3, resume=True)
    assert bits(further) == bits(whole)
    names = {p.name for p in (tmp_path / "whole").iterdir()}
    assert {p.name for p in (tmp_path / "parts").iterdir()} == names
    assert (tmp_path / "parts" / "log.jsonl").read_text() == (tmp_path / "whole" / "log.jsonl").read_text()


def test_a_stop_in_a_hook(tmp_path: Path) -> None:
    """After the epoch's call; it is an end like any other: the model is written, and no error."""
    stopper = LambdaCallback()
    vars(stopper)["on_epoch_end"] = lambda epoch, logs: stopper.run.stop("enough") if epoch == 1 else None
    said = Said()
    result = train(tmp_path, epochs=5, callbacks=[stopper, said])
    assert result.stopped == "enough"
    assert len(result.epochs) == 2
    assert "The run ended early: enough." in said.sentences
    assert json.loads((tmp_path / "metrics.json").read_text())["ended_early"] == "enough"
    assert json.loads(load_checkpoint(tmp_path / CHECKPOINT).metadata["tileflow"])["epoch"] == 2
    whole = train(tmp_path / "whole", epochs=2)
    assert whole.stopped is None
    assert bits(result) == bits(whole)


class Halves(Callback):
    def on_epoch_end(self, epoch: int, logs: Any) -> None:
        self.run.learning_rate /= 2


@pytest.mark.parametrize("calls", CALLS)
def test_a_learning_rate_that_is_set(calls: int, tmp_path: Path) -> None:
    """From the next update on; other groups in proportion; a checkpoint keeps it."""
    def run(folder: str, epochs: int, **more: Any) -> tileflow.TrainResult:
        optimizer = AdamW(lr=0.02, groups=[{"params": "0.*", "lr": 0.002}])
        return train(tmp_path / folder, epochs=epochs, optimizer=optimizer, device_iterations=calls, callbacks=Halves(),
                     **more)
    whole = run("whole", 3)
    assert whole.learning_rates.tolist() == [0.02] * 30 + [0.01] * 30 + [0.005] * 30
    assert whole.model.optimizer.param_groups[1]["lr"] == 0.00025
    run("parts", 1)
    assert bits(run("parts", 3, resume=True)) == bits(whole)
    with pytest.raises(OptionError, match=r"^The learning rate follows the schedule cosine\(.*leave the schedule out"):
        train(tmp_path / "scheduled", optimizer=AdamW(lr=schedules.cosine(0.02)), callbacks=Halves())


class Counts(Callback):
    def __init__(self) -> None:
        self.calls = 0

    def on_train_batch_end(self, batch: int, logs: Any) -> None:
        self.calls += 1


def test_what_is_said_of_callbacks_without_a_state(tmp_path: Path) -> None:
    """Once; and nothing of those that have one, or change nothing."""
    said = Said()
    vars(said)["remembered"] = ()
    train(tmp_path, callbacks=[Counts(), Losses(), LambdaCallback(on_save=lambda path: None), said])
    found = [s for s in said.sentences if "has no state()" in s]
    assert len(found) == 1
    assert found[0].startswith("Callback Counts changes calls and has no state(): where the run is resumed, it begins "
                               "anew.")


@pytest.mark.parametrize(("hook", "told"),
                         [("on_epoch_begin", 2), ("on_epoch_end", 1), ("on_train_batch_end", 2), ("on_save", 1)])
def test_a_callback_that_fails(hook: str, told: int, tmp_path: Path) -> None:
    """The others are told all the same, so that the state that is saved is that of all of them; and of the error."""
    failed = []

    def fail(*_told: Any) -> None:
        if not failed:
            failed.append(hook)
            raise ValueError("mine")
    after, errors = Told(), []
    callbacks = [LambdaCallback(**{hook: fail}), after, LambdaCallback(on_exception=errors.append)]
    with pytest.raises(ValueError, match="mine") as raised:
        train(tmp_path / "run", device_iterations=15, test_data=TEST, callbacks=callbacks)
    assert errors == [raised.value]
    whole = train(tmp_path / "whole", device_iterations=15, test_data=TEST)
    resumed = tmp_path / "run" / "checkpoint.failed"
    if hook != "on_epoch_begin":  # before the first update there is nothing to save
        assert "is saved in" in raised.value.__notes__[-1]
        again = train(tmp_path / "run", device_iterations=15, test_data=TEST, resume=str(resumed), callbacks=callbacks)
        assert bits(again) == bits(whole)
        for name in ("log.jsonl",):
            assert (tmp_path / "run" / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_a_reporter_goes_on_working(tmp_path: Path) -> None:
    class Reporter:
        def __init__(self) -> None:
            self.told: list[Any] = []

        def say(self, sentence: str) -> None:
            pass

        def begin_epoch(self, epoch: int, epochs: int, batches: int) -> None:
            self.told.append((epoch, epochs, batches))

        def batch(self, loss: float, accuracy: float | None, samples: int) -> None:
            self.told.append(samples)

        def end_epoch(self, record: Any) -> None:
            self.told.append(record.epoch)
    reporter = Reporter()
    with pytest.warns(tileflow.TileflowWarning,
                      match=r"^reporter goes on working; callbacks=\[\.\.\.\] does the same and more"):
        train(tmp_path, device_iterations=15, epochs=1, reporter=reporter)
    assert reporter.told == [(1, 1, 2), 30, 30, 1]


@pytest.mark.parametrize(("callbacks", "says"), [
    ([EarlyStopping], r"^callbacks takes objects of tileflow\.callbacks\.Callback, not EarlyStopping\.$"),
    (EarlyStopping("val_loss"),
     "^EarlyStopping monitors val_loss, which this run does not measure and has no test data; it measures loss, "),
    ([LambdaCallback()] * 2, "^The callback LambdaCallback is given twice"),
])
def test_what_is_no_callback(callbacks: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=says):
        train(tmp_path, callbacks=callbacks)
    train(tmp_path, callbacks=EarlyStopping("loss", patience=1), epochs=1)


@pytest.mark.parametrize("name", ["../x", "checkpoint", "model", "a/b", "", ".hidden", "x\n"])
def test_names_of_kept_files(name: str, tmp_path: Path) -> None:
    asking = LambdaCallback()
    vars(asking)["on_train_end"] = lambda logs: asking.run.save(name)
    if not name:                                                          # the run's own
        train(tmp_path, epochs=1, callbacks=asking)
        return
    with pytest.raises(OptionError, match=r"^A checkpoint cannot be called"):
        train(tmp_path, epochs=1, callbacks=asking)


# ---- options

def test_options_ask_for_callbacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command: the best is kept, a log written, the run ended and said to be, and gone on with by its folder."""
    from tileflow import cli
    words = ["train", "digits_cnn.onnx", "--data", "digits", "--out", str(tmp_path / "run"), "--max-batches", "6",
             "--early-stopping", "3", "--monitor", "val_accuracy", "--keep-best", "--log", "csv", "--eval-every", "4",
             "--max-updates", "9", "--epochs", "3", "--max-time", "10m"]
    assert cli.main(words) == 0, capsys.readouterr().err
    out, err = capsys.readouterr()
    assert re.search(r"^update 4  test loss [0-9.]+  test accuracy [0-9.]+%", out, re.MULTILINE)
    assert "(3 updates)" in out
    assert "The run ended early: 9 updates are done." in err
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert {"best.safetensors", "best.onnx", "log.csv", "log.jsonl", "model.onnx"} <= names
    head = (tmp_path / "run" / "log.csv").read_text().splitlines()[0]
    assert head.startswith("epoch,updates,loss,accuracy,test_loss,test_accuracy")
    assert cli.main(["train", "--resume", "--out", str(tmp_path / "run"), "--max-updates", "12"]) == 0
    assert len((tmp_path / "run" / "log.csv").read_text().splitlines()) == 3
    assert cli.main(["train", "digits_cnn.onnx", "--data", "digits", "--log", "nonsense", "--out",
                     str(tmp_path / "other")]) == 2
    assert "Option log must name loggers (csv, tensorboard, wandb, trackio), not 'nonsense'." in capsys.readouterr().err


def test_a_fast_dev_run_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = Told()
    result = tileflow.train("digits_cnn.onnx", data="digits", fast_dev_run=True, keep_best=True, callbacks=told,
                            epochs=50)
    assert told.told == ["train begins", "epoch 0 begins", "batch 0 after 1", "evaluated", "best", "checkpoint",
                         "train ends"]
    assert len(result.learning_rates) == 1
    assert not list(tmp_path.iterdir())
    assert not result.folder.exists()


def test_overfitting_a_few_rows(tmp_path: Path) -> None:
    """They are trained and measured, and nothing else is."""
    result = train(tmp_path, overfit=8, epochs=60)
    assert len(result.learning_rates) == 60 * 4
    assert result.history["test_accuracy"][-1] == 1.0
    assert result.evaluate((X[:8], Y[:8]))["loss"] == pytest.approx(result.history["test_loss"][-1])
    few = train(tmp_path / "few", overfit=3, micro_batch_size=8, epochs=2)          # fewer than a call has
    assert len(few.learning_rates) == 2


def test_time_that_is_over(tmp_path: Path) -> None:
    result = train(tmp_path, max_time="0.000001s", epochs=50, device_iterations=3)
    assert result.stopped == "max_time, 1e-06 s, is over"
    assert len(result.learning_rates) <= 3
    assert train(tmp_path / "b", max_time="1h", epochs=1).stopped is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for text, seconds in (("90s", 90.0), ("1h30m", 5400.0), ("2d", 172800.0), ("90", 90.0), ("1.5", 1.5)):
            assert tileflow.Options(max_time=text).max_time == seconds
    for text in ("", "m", "10 m", "-3s", "1m1h", "nan"):
        with pytest.raises(OptionError, match="Option max_time must be seconds, or a time such as 90s, 10m or 1h30m"):
            tileflow.Options(max_time=text)


def test_updates_say_how_many_epochs(tmp_path: Path) -> None:
    """Where nothing else does; a schedule then ends with them, and a run that is resumed goes on as far as is asked
    for."""
    def run(folder: str, **more: Any) -> tileflow.TrainResult:
        nn.manual_seed(1)
        return tileflow.train(nn.Linear(4, 3), data=(X, Y), micro_batch_size=2, out=str(tmp_path / folder),
                              schedule="linear", **more)
    result = run("a", max_updates=75)
    assert len(result.learning_rates) == 75
    np.testing.assert_allclose(result.learning_rates, 1e-3 * (1 - np.arange(75) / 75))
    assert len(run("b", max_updates=75, epochs=1).learning_rates) == 30
    said = Said()
    assert len(run("a", max_updates=100, resume=True, callbacks=said).learning_rates) == 100
    assert any(s.startswith("Going on to update 100; the run was to end with 75. The schedule of lr now ends with it")
               for s in said.sentences)
    assert len(run("a", resume=True).learning_rates) == 100
    assert len(tileflow.train(nn.Linear(4, 3), data=lambda: zip(X, Y, strict=True), micro_batch_size=2,
                              out=str(tmp_path / "open"), max_updates=75,
                              schedule="cosine").learning_rates) == 75  # data that do not say how many rows they have


def test_an_end_by_updates_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    """The epoch is over, as it would be without."""
    result = train(tmp_path / "a", epochs=3, callbacks=MaxUpdates(30))
    assert len(result.epochs) == 1
    assert bits(result) == bits(train(tmp_path / "b", epochs=1))
