"""Averages of weights and layers that wait: PyTorch's equations, the same bits for every number of updates of a call,
resumed and measured."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tileflow
from tileflow import nn, optim
from tileflow.callbacks import Callback, EarlyStopping
from tileflow.optim import schedules as s
from tileflow.optim.schedules import Run
from tileflow.system.errors import OptionError

DRAW = np.random.default_rng(0)
X, Y = DRAW.standard_normal((60, 4)).astype(np.float32), DRAW.integers(0, 3, 60)
TEST = DRAW.standard_normal((20, 4)).astype(np.float32), DRAW.integers(0, 3, 20)


def train(folder: Path, **options: Any) -> tileflow.TrainResult:
    nn.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    settings: dict[str, Any] = dict(data=(X, Y), micro_batch_size=2, epochs=2, out=str(folder))
    if "optimizer" not in options:
        settings |= dict(optimizer="adamw", learning_rate=0.02)
    return tileflow.train(net, **settings | options)


class Seen(Callback):
    """The weights after each update, told apart by calls of one."""

    def __init__(self) -> None:
        self.after: list[dict[str, np.ndarray]] = []

    def on_train_batch_end(self, batch: int, logs: Any) -> None:
        self.after.append({n: a.astype(np.float64) for n, a in self.run.model.state_dict().items()})

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Any) -> None:
        pass


@pytest.mark.parametrize(("average", "numpy"), [
    (s.ema(0.9), lambda old, new, i: new if i == 0 else 0.9 * old + 0.1 * new),
    (s.ema(0.9, start=5, warmup=True),
     lambda old, new, i: new if i <= 5 else old + (new - old) * (1 - min(0.9, (i - 4) / (i + 5)))),
    (s.ema(0.5, start=10), lambda old, new, i: new if i <= 10 else 0.5 * old + 0.5 * new),
    (s.swa(20, every=5),
     lambda old, new, i: new if i < 20 else old if (i + 1) % 5 else old + (new - old) / ((i + 1 - 20) // 5 + 1)),
    (0.75, lambda old, new, i: 0.75 * old + 0.25 * new)], ids=["ema", "ema warm", "ema later", "swa", "a number"])
def test_averages_are_numpys(average: Any, numpy: Any, tmp_path: Path) -> None:
    """Of the weights that the same run has without averages."""
    seen = Seen()
    train(tmp_path / "plain", optimizer=optim.AdamW(lr=0.02), callbacks=seen)
    nn.manual_seed(1)
    wanted = {n: a.astype(np.float64)
              for n, a in nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).state_dict().items()}
    for i, weights in enumerate(seen.after):
        wanted = {n: numpy(wanted[n], w, i) for n, w in weights.items()}
    result = train(tmp_path / "averaged", optimizer=optim.AdamW(lr=0.02, average=average))
    for name, w in result.weights.items():
        np.testing.assert_allclose(w, wanted[name], rtol=2e-5, atol=2e-6)


def test_when_the_mean_is_taken() -> None:
    """A mean of weights: of every epoch from three quarters of the run on, or of updates."""
    def averaged(schedule: s.swa, run: Run, updates: int) -> list[float]:
        found = 0.0
        keeps = []
        for t in range(updates):
            keep = schedule.at(t, run)
            found = keep * found + (1 - keep) * (t + 1)
            keeps.append(found)
        return keeps
    assert averaged(s.swa(0.75), Run(40, 10), 40)[-1] == np.mean([30, 40])
    assert averaged(s.swa(0.5), Run(40, 10), 40)[24] == 20
    assert averaged(s.swa(7, every=3), Run(), 20)[-1] == np.mean([9, 12, 15, 18])
    assert averaged(s.swa(0), Run(), 5) == [1.0, 1.5, 2.0, 2.5, 3.0]
    with pytest.raises(OptionError, match=r"^Schedule swa: 0\.75 is a share of the run"):
        s.swa().at(0, Run())


OPTIONS: tuple[dict[str, Any], ...] = (
    dict(average="ema", ema_decay=0.9), dict(average="swa", swa_start=0.5),
    dict(average="ema", ema_decay=0.9, gradient_accumulation=3),
    dict(average="ema", precision="16-mixed"),
    dict(average="swa", swa_start=10, precision="bf16-true", master_weights="remainder"),
    dict(average="ema", ema_decay=0.5, optimizer="sgd", momentum=0.9, learning_rate=0.1))


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[4], *(pytest.param(o, marks=pytest.mark.exhaustive)
                                                               for i, o in enumerate(OPTIONS) if i not in (0, 4))],
                                                               ids=str)
def test_the_same_bits_for_every_call(options: dict[str, Any], tmp_path: Path) -> None:
    """And when the run is stopped in the middle, and with threads: weights, what is measured, the checkpoint."""
    found = []
    for calls, threads in ((1, 1), (2, 2), (10, 3)):
        result = train(tmp_path / str(calls), device_iterations=calls, threads=threads, test_data=TEST, **options)
        found.append(({n: w.tobytes() for n, w in result.weights.items()}, result.history["test_loss"].tolist()))
    assert found[0] == found[1] == found[2]
    train(tmp_path / "parts", test_data=TEST, max_updates=13, **options)
    resumed = train(tmp_path / "parts", test_data=TEST, resume=True, max_updates=100, **options)
    assert ({n: w.tobytes() for n, w in resumed.weights.items()}, resumed.history["test_loss"].tolist()) == found[0]


def test_what_is_measured_and_written(tmp_path: Path) -> None:
    """The averages, everywhere but in what the run goes on with."""
    options: dict[str, Any] = dict(data="digits", max_batches=20, epochs=2, average="ema", ema_decay=0.8,
                                   keep_best=True)
    result = tileflow.train("digits_cnn.onnx", out=str(tmp_path), **options)
    plain = tileflow.train("digits_cnn.onnx", out=str(tmp_path / "plain"),
                           **{n: x for n, x in options.items() if n not in ("average", "ema_decay")})
    assert any(not np.array_equal(w, plain.weights[n]) for n, w in result.weights.items())
    assert result.history["loss"].tolist() == plain.history["loss"].tolist()  # the training does not know of them
    assert result.evaluate()["loss"] == pytest.approx(result.history["test_loss"][-1])
    for name in ("model.onnx", "best.onnx"):
        written = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / name).graph.initializer}
        assert all(np.array_equal(written[n], w) for n, w in result.weights.items() if n in written)
    best = EarlyStopping("val_loss", patience=9, restore_best_weights=True)
    again = tileflow.train("digits_cnn.onnx", out=str(tmp_path / "again"), callbacks=best, **options)
    assert all(np.array_equal(w, result.weights[n]) for n, w in again.weights.items())  # the last epoch was the best


@pytest.mark.parametrize("calls", [1, 10])
def test_layers_that_wait(calls: int, tmp_path: Path) -> None:
    """They stay as they are until their update, whatever the calls; then they are trained."""
    def run(folder: str, updates: int) -> tileflow.TrainResult:
        groups = [{"params": "0.*", "lr": s.per_epoch(s.unfreeze(0.05, 1))}]
        return train(tmp_path / folder, optimizer=optim.AdamW(lr=0.02, groups=groups), device_iterations=calls,
                     max_updates=updates)
    nn.manual_seed(1)
    start = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).state_dict()
    before, after = run("a", 30), run("b", 31)
    assert np.array_equal(before.weights["0.weight"], start["0.weight"])
    assert not np.array_equal(before.weights["2.weight"], start["2.weight"])
    assert not np.array_equal(after.weights["0.weight"], start["0.weight"])


def test_what_cannot_be(tmp_path: Path) -> None:
    for make, says in ((lambda: optim.SGD(lr=0.1, average=1.5), r"average must be at most 1, got 1\.5"),
                       (lambda: s.ema(1.0), "ema: decay must be a share below 1"),
                       (lambda: s.swa(1.5), "swa: start must be a whole number"),
                       (lambda: tileflow.Options(swa_start=1.5), "Option swa_start must be a whole number"),
                       (lambda: train(tmp_path, ema_decay=0.5),
                        "Option ema_decay has no effect with the average none; it is for ema")):
        with pytest.raises(OptionError, match=says):
            make()
    model = tileflow.training_model(nn.Linear(4, 3), optimizer=optim.SGD(lr=0.1, average=s.ema(0.9)))
    model(X[:4], Y[:4])
    with pytest.raises(OptionError, match="Can not replace a non constant value with a constant value: average"):
        model.set_optimizer(optim.SGD(lr=0.1))
    model.set_optimizer(optim.SGD(lr=0.1, average=s.ema(0.5)))
    assert any(name.endswith(".average") for name in model.optimizer_state_dict())
    assert json.dumps(model.optimizer.describe())
