"""Rows at the end of an epoch that fill no call: which updates they make, as PyTorch's with drop_last=False; stopped and resumed anywhere."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import model_of, node, port
from peers import needs

import tileflow
from tileflow import nn, optim
from tileflow.importers.onnx import wrap_model
from tileflow.options.options import Options
from tileflow.runtime.schedule import CallSchedule, UpdateCall
from tileflow.runtime.trainer import Trainer
from tileflow.system.errors import Interrupted, OptionError

rng = np.random.default_rng(21)
X, Y = rng.standard_normal((103, 5)), rng.integers(0, 3, 103)


def net() -> nn.Module:
    nn.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Dropout(0.2), nn.Linear(7, 3))


def weights(network: nn.Module) -> dict[str, bytes]:
    return {n: a.tobytes() for n, a in network.state_dict().items()}


@pytest.mark.parametrize(("rows", "options", "calls", "rest"), [
    (103, dict(micro_batch_size=8, gradient_accumulation=3, device_iterations=2), 2, [(8, 0)]),
    (103, dict(micro_batch_size=8, gradient_accumulation=2, device_iterations=5), 1, [(8, 2), (7, 1)]),
    (103, dict(micro_batch_size=4, gradient_accumulation=5, device_iterations=4), 1, [(4, 5), (3, 1)]),
    (103, dict(micro_batch_size=4, gradient_accumulation=8, device_iterations=9), 0, [(4, 8), (4, 8), (4, 8), (4, 1), (3, 1)]),
    (96, dict(micro_batch_size=8, gradient_accumulation=3, device_iterations=2), 2, []),
    (3, dict(micro_batch_size=8), 0, [(3, 1)]),
    (103, dict(micro_batch_size=8, max_batches=12), 12, []),
    (103, dict(micro_batch_size=8, max_batches=13), 12, [(7, 1)]),
])
def test_what_an_epoch_is_made_of(rows: int, options: dict[str, Any], calls: int, rest: list[tuple[int, int]]):
    found = CallSchedule.of(rows, Options(drop_last=False, **options))
    steps = [UpdateCall(*s) for s in rest if s[1]]
    if rest and not rest[0][1]:
        steps = [UpdateCall(7, 1)]
    assert (found.calls, list(found.rest)) == (calls, steps)
    assert CallSchedule.of(rows, Options(drop_last=True, **options)).rest == ()
    updates, at = calls * found.updates + len(steps), []
    for done in range(updates + 1):
        row, within = found.after(done, found.short(done))
        within_calls = row < calls * found.updates * found.rows
        at.append(row + (within * found.rows if within_calls else sum(s.rows for s in steps[:within])))
        assert within < found.updates if within_calls else row == calls * found.updates * found.rows
    sizes = [found.rows] * (calls * found.updates) + [s.rows for s in steps]
    assert at == np.cumsum([0, *sizes]).tolist()


def test_the_last_updates_are_those_of_calls_on_their_rows(tmp_path: Path):
    """Each is the mean over the rows it has, with the statistics and random numbers of the session going on."""
    options: dict[str, Any] = dict(precision="float64", micro_batch_size=8, gradient_accumulation=4)
    trained = net()
    tileflow.train(trained, data=(X, Y), shuffle=False, drop_last=False, device_iterations=2, epochs=2, learning_rate=0.01, out=str(tmp_path),
                   **options)
    other = net()
    optimizer = optim.AdamW(lr=0.01, weight_decay=0.01)
    wholes = tileflow.training_model(other, optimizer=optimizer, **options)
    part = tileflow.training_model(other, optimizer=optimizer, **options | {"micro_batch_size": 7, "gradient_accumulation": 1})
    for _ in range(2):
        for start in (0, 32, 64):
            wholes(X[start:start + 32], Y[start:start + 32])
        part(X[96:], Y[96:])
    assert weights(trained) == weights(other)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_pytorch_with_drop_last_off(accumulation: int, tmp_path: Path):
    torch = needs("torch")
    ours = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    theirs = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).double()
    theirs.load_state_dict({n: torch.from_numpy(w.astype(np.float64)) for n, w in ours.state_dict().items()})
    tileflow.train(ours, data=(X, Y), shuffle=False, drop_last=False, epochs=3, out=str(tmp_path), precision="float64", loss="cross_entropy",
                   micro_batch_size=16, gradient_accumulation=accumulation, optimizer=optim.SGD(lr=0.1, momentum=0.9))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    rows = 16 * accumulation
    updates = [slice(i, i + 16) for i in range(0, 103, 16)] if accumulation == 1 else [slice(0, rows), slice(rows, 2 * rows), slice(96, 103)]
    assert accumulation == 1 or 2 * rows == 96
    for _ in range(3):
        for at in updates:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(theirs(torch.from_numpy(X[at])), torch.from_numpy(Y[at])).backward()
            optimizer.step()
    for name, w in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[name], w.numpy(), rtol=1e-11, atol=1e-13)


def test_the_loss_of_an_epoch_weighs_rows(tmp_path: Path):
    network = nn.Sequential(nn.Linear(5, 3))
    result = tileflow.train(network, data=((X, Y), (X, Y)), drop_last=False, micro_batch_size=16, gradient_accumulation=2, learning_rate=0.0,
                            precision="float64", out=str(tmp_path))
    assert result.epochs[0].samples == 103
    assert result.history["loss"][0] == pytest.approx(result.history["test_loss"][0], rel=1e-12)
    assert result.history["accuracy"][0] == result.history["test_accuracy"][0]


@pytest.mark.parametrize("stops", [(2,), (3,), (4,), (5,), (6,), (3, 4, 5)])
def test_a_run_stopped_between_any_two_updates_goes_on_as_if_never_stopped(stops: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Four updates in two calls, then one of 4 rows times 2 and one of 3 rows."""
    options: dict[str, Any] = dict(data=(X[:91], Y[:91]), drop_last=False, micro_batch_size=4, gradient_accumulation=5, device_iterations=2, epochs=2,
                                   precision="float64", learning_rate=0.01)
    whole = net()
    tileflow.train(whole, out=str(tmp_path / "whole"), **options)
    parts = net()
    made = Trainer._call
    for i, stop in enumerate(stops):
        def until(self: Trainer, *args: Any, _stop: int = stop) -> None:
            made(self, *args)
            if self.session.updates >= _stop:
                self._stop.set()
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "_call", until)
            with pytest.raises(Interrupted):
                tileflow.train(net() if i else parts, out=str(tmp_path / "parts"), resume=bool(i), **options)
    resumed = net()
    result = tileflow.train(resumed, out=str(tmp_path / "parts"), resume=True, **options)
    assert weights(resumed) == weights(whole)
    assert [e.samples for e in result.epochs] == [91, 91]
    assert result.model.source.session.updates == 12


def test_a_model_of_one_batch_size_says_what_it_cannot_take(tmp_path: Path):
    weights = {"w": rng.standard_normal((4, 3)).astype(np.float32), "each": np.zeros((8, 3), np.float32)}
    fixed = wrap_model(model_of([node("MatMul", ["x", "w"], ["m"], "fc"), node("Add", ["m", "each"], ["y"], "own")],
                                [port("x", [8, 4])], [port("y", [8, 3])], weights))
    data = (X[:19, :4].astype(np.float32), Y[:19])
    with pytest.raises(OptionError, match=r"the last 3 rows are a micro-batch of their own, which this model cannot take: .*Set drop_last, or"):
        tileflow.train(fixed, data=data, micro_batch_size=8, drop_last=False, loss="cross_entropy", out=str(tmp_path))
