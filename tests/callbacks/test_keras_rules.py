"""When runs end, rates fall and checkpoints are kept: the cases of Keras' and Lightning's own tests, their inputs and
what is expected of them, in runs of ours; and Keras itself over drawn figures, where it is installed."""
from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from peers import needs

import tileflow
from tileflow import nn
from tileflow.callbacks import Callback, EarlyStopping, ModelCheckpoint, ReduceLROnPlateau
from tileflow.system.errors import OptionError

DRAW = np.random.default_rng(0)
X, Y = DRAW.standard_normal((8, 3)).astype(np.float32), DRAW.integers(0, 2, 8)


class Scripted:
    """A metric that takes these values, one after each epoch."""

    __name__ = "scripted"

    def __init__(self, values: Sequence[float]) -> None:
        self.values = list(values)

    def __call__(self, outputs: np.ndarray, labels: np.ndarray) -> float:
        return self.values.pop(0)


class Weights(Callback):
    """The weights after each epoch."""

    def __init__(self) -> None:
        self.after: list[dict[str, np.ndarray]] = []

    def on_epoch_end(self, epoch: int, logs: Any) -> None:
        self.after.append(self.run.state_dict())

    def state(self) -> dict[str, Any]:
        return {}


def run(folder: Path, values: Sequence[float], *callbacks: Callback, **options: Any) -> tileflow.TrainResult:
    """A run whose epochs have these values of the metric."""
    nn.manual_seed(0)
    settings: dict[str, Any] = dict(data=((X, Y), (X[:4], Y[:4])), metrics=[Scripted(values)], micro_batch_size=4,
                                    epochs=len(values),
                                    out=str(folder), optimizer="sgd", learning_rate=0.1, callbacks=[*callbacks])
    return tileflow.train(nn.Linear(3, 2), **settings | options)


# ---- early stopping

@pytest.mark.parametrize("patience", [0, 1, 2, 3])
def test_keras_patience(patience: int, tmp_path: Path) -> None:
    """Keras, test_early_stopping_patience"""
    stopper = EarlyStopping("val_scripted", mode="min", patience=patience)
    result = run(tmp_path, [10.0, 9.0, 8.0, 9.0, 8.9, 8.8, 8.7, 8.6, 8.5], stopper)
    assert stopper.stopped_epoch == max(patience, 1) + 2
    assert len(result.epochs) == stopper.stopped_epoch + 1
    assert result.stopped == "val_scripted has not improved on 8 (epoch 3) since"


@pytest.mark.parametrize(("values", "patience", "epoch"),
                         [([6, 5, 5, 5, 5, 5], 3, 4), ([6, 5, 4, 4, 3, 3], 1, 3), ([6, 5, 6, 5, 5, 5], 3, 4)])
def test_lightnings_patience(values: list[float], patience: int, epoch: int, tmp_path: Path) -> None:
    """Lightning, test_early_stopping_patience"""
    stopper = EarlyStopping("val_scripted", mode="min", patience=patience)
    run(tmp_path, values, stopper)
    assert stopper.stopped_epoch == epoch


class Stops(Callback):
    def __init__(self, after: int) -> None:
        self.after = after

    def on_epoch_end(self, epoch: int, logs: Any) -> None:
        if epoch == self.after:
            self.run.stop("as asked")


@pytest.mark.parametrize(("values", "more", "others", "epochs", "best"), [
    ([0.2, 0.15, 0.1, 0.11, 0.12], dict(patience=2), [], 5, 2),
    ([0.9, 0.8, 0.7, 0.71, 0.72, 0.73], dict(patience=5, baseline=0.5), [], 5, 2),
    ([0.9, 0.8, 0.7, 0.71, 0.72, 0.73], dict(patience=5, baseline=0.5), [Stops(3)], 4, 2),
    ([0.3, 0.2, 0.1], dict(patience=2), [], 3, 2),
], ids=["patience", "baseline", "another stops", "best last"])
def test_keras_best_weights(values: list[float], more: dict[str, Any], others: list[Callback], epochs: int, best: int,
                            tmp_path: Path) -> None:
    """Keras, test_early_stopping_final_weights_when_restoring_model_weights; the run's checkpoint keeps the last ones,
    and the model's file has the best."""
    seen = Weights()
    result = run(tmp_path, values, seen, EarlyStopping("val_scripted", mode="min", restore_best_weights=True, **more),
                 *others)
    assert len(result.epochs) == epochs
    for name, array in result.weights.items():
        assert np.array_equal(array, seen.after[best][name])
    assert best == epochs - 1 or any(not np.array_equal(a, result.weights[n]) for n, a in seen.after[-1].items())


@pytest.mark.parametrize(("mode", "monitor", "least"), [
    ("max", "val_mae", False), ("min", "val_loss", True), ("auto", "val_mae", True), ("auto", "loss", True),
    ("auto", "accuracy", False),
    ("auto", "val_accuracy", False), ("auto", "val_f1", False), ("auto", "test_top5", False), ("auto", "val_r2", False),
    ("auto", "val_rmse", True)])
def test_which_way_is_better(mode: str, monitor: str, least: bool) -> None:
    """Keras, test_early_stopping, with the metrics that we have"""
    assert EarlyStopping(monitor, mode).least == least
    with pytest.raises(OptionError, match="whether unknown is best when least or when greatest is not known"):
        EarlyStopping("unknown", mode if mode == "auto" else "auto")


def test_epochs_that_do_not_count(tmp_path: Path) -> None:
    """Keras, test_early_stopping_with_start_from_epoch: more exactly than there"""
    for patience, epochs in ((3, 2 + 1 + 3), (0, 2 + 1 + 1)):
        stopper = EarlyStopping("val_scripted", mode="min", patience=patience, start_from_epoch=2)
        assert len(run(tmp_path / str(patience), [1.0] * 20, stopper).epochs) == epochs


def test_it_is_used_again(tmp_path: Path) -> None:
    """Keras, test_early_stopping_reuse: another run begins anew"""
    stopper = EarlyStopping("val_scripted", mode="min", patience=3)
    for i in range(2):
        assert len(run(tmp_path / str(i), [1.0 + i, *[2.0 + i] * 10], stopper).epochs) == 4


# ---- learning rates

@pytest.mark.parametrize(("more", "epochs", "rate"), [
    (dict(patience=1, factor=0.1, min_delta=100), 2, 0.01),
    (dict(patience=1, factor=0.1, min_delta=10, min_lr=0.005), 4, 0.005),
    (dict(patience=1, factor=0.1, min_delta=100, cooldown=2), 4, 0.001)], ids=["reduces", "min_lr", "cooldown"])
def test_keras_reductions(more: dict[str, Any], epochs: int, rate: float, tmp_path: Path) -> None:
    """Keras, test_reduces_lr_with_model_fit, test_honors_min_lr, test_cooldown"""
    result = run(tmp_path, [1.0] * epochs, ReduceLROnPlateau("val_loss", **more))
    assert result.model.optimizer.values(0)["lr"] == pytest.approx(rate)


def test_a_schedule_sets_the_rate_alone(tmp_path: Path) -> None:
    """Keras, test_throws_when_optimizer_has_schedule"""
    with pytest.raises(OptionError, match="The learning rate follows the schedule linear"):
        run(tmp_path, [1.0] * 3, ReduceLROnPlateau("val_loss", patience=1, min_delta=100), schedule="linear")


class Rates(Callback):
    def __init__(self) -> None:
        self.after: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any) -> None:
        self.after.append(self.run.learning_rate)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(30))
def test_keras_itself(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn figures, settings and directions: the same epochs to stop at, bests and rates."""
    monkeypatch.setenv("KERAS_BACKEND", os.environ.get("KERAS_BACKEND", "torch"))
    keras = needs("keras")
    draw = np.random.default_rng(seed)
    values, mode = (draw.integers(1, 12, 25) / 8).tolist(), ("min", "max")[seed % 2]
    early: dict[str, Any] = dict(patience=int(draw.integers(0, 5)), min_delta=float(draw.choice([0, 0.125])), mode=mode,
                                 start_from_epoch=int(draw.integers(0, 4)), baseline=draw.choice([None, 0.75]))
    lower: dict[str, Any] = dict(patience=int(draw.integers(1, 4)), factor=0.5, cooldown=int(draw.integers(0, 3)),
                                 min_delta=0.125, min_lr=0.002, mode=mode)
    model = SimpleNamespace(stop_training=False, optimizer=SimpleNamespace(learning_rate=0.1))
    stopper = keras.callbacks.EarlyStopping("scripted", **early)
    reducer = keras.callbacks.ReduceLROnPlateau("scripted", **lower)
    rates = []
    for callback in (stopper, reducer):
        callback.set_model(model)
        callback.on_train_begin()
    for epoch, value in enumerate(values):
        for callback in (reducer, stopper):
            callback.on_epoch_end(epoch, {"scripted": value})
        rates.append(float(model.optimizer.learning_rate))
        if model.stop_training:
            break
    ours, seen = EarlyStopping("val_scripted", **early), Rates()
    result = run(tmp_path, values, ReduceLROnPlateau("val_scripted", **lower), ours, seen)
    assert len(result.epochs) == len(rates)
    assert (ours.stopped_epoch, ours.best) == (stopper.stopped_epoch, stopper.best)
    np.testing.assert_allclose(seen.after, rates, rtol=1e-6)


# ---- checkpoints

LOSSES = [10, 9, 2.8, 5, 2.5]


@pytest.mark.parametrize(("top", "epochs"),
                         [(-1, [0, 1, 2, 3, 4]), (1, [4]), (2, [2, 4]), (4, [1, 2, 3, 4]), (3, [2, 3, 4]), (0, [])])
def test_lightnings_best(top: int, epochs: list[int], tmp_path: Path) -> None:
    """Lightning, test_model_checkpoint_options"""
    keeper = ModelCheckpoint("val_scripted", "min", save_top_k=top, filename="epoch={epoch}")
    run(tmp_path, LOSSES, keeper)
    # ours are counted from 1
    assert {p.name for p in tmp_path.glob("epoch*")} == {f"epoch={e + 1}.safetensors" for e in epochs}
    assert (tmp_path / "checkpoint.safetensors").exists()  # Lightning's save_last
    if top:
        assert keeper.best_model_path == tmp_path / "epoch=5.safetensors"
        assert keeper.best is not None
        assert keeper.best.value == 2.5


@pytest.mark.parametrize(("values", "kept"),
                         [([np.nan, 2.0], 2), ([1.0, np.nan], 1), ([2.0, 2.0], 1), ([3.0, 2.0, 2.5], 2)])
def test_what_is_no_number_is_worst(values: list[float], kept: int, tmp_path: Path) -> None:
    keeper = ModelCheckpoint("val_scripted", "min", filename="{epoch}")
    run(tmp_path, values, keeper)
    assert [p.stem for p in tmp_path.glob("[0-9]*.safetensors")] == [str(kept)]


def test_without_a_figure(tmp_path: Path) -> None:
    """The newest, or all, every so many epochs or updates (an epoch has two)."""
    run(tmp_path, [1.0] * 5, ModelCheckpoint(filename="a{epoch}"),
        ModelCheckpoint(save_top_k=-1, every_n_epochs=2, filename="b{epoch}"),
        ModelCheckpoint(save_top_k=-1, every_n_updates=3, filename="c{updates}"), device_iterations=2)
    names = sorted(p.stem for p in tmp_path.glob("*.safetensors"))
    assert names == ["a5", "b2", "b4", "c3", "c6", "c9", "checkpoint"]
    with pytest.raises(OptionError, match="without a figure to monitor save_top_k must be 1"):
        ModelCheckpoint(save_top_k=2)
    with pytest.raises(OptionError,
                       match=r"val_loss is not measured every 3 updates; set eval_every to a number that divides it"):
        run(tmp_path / "x", [1.0], ModelCheckpoint("val_loss", every_n_updates=3))


@pytest.mark.parametrize("calls", [1, 2])
def test_the_best_evaluation_is_kept(calls: int, tmp_path: Path) -> None:
    """Evaluations in between count, as they do for who waits for an improvement."""
    keeper = ModelCheckpoint("val_scripted", "min", filename="{updates}")
    stopper = EarlyStopping("val_scripted", mode="min", patience=2)
    result = run(tmp_path, [5.0, 3.0, 4.0, 2.0, 9.0, 9.0, 1.0], keeper, stopper, eval_every=1, device_iterations=calls)
    assert [p.stem for p in tmp_path.glob("[0-9]*.safetensors")] == ["4"]
    assert len(result.learning_rates) == 6
