"""The gradient noise scale beside the same formula over NumPy's gradients of one micro-batch at a time."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tileflow
from tileflow import nn
from tileflow.optim import SGD, noise
from tileflow.system.errors import OptionError

ROWS, N, RATE = 4, 4, 0.5                                  # rows of a micro-batch, micro-batches of an update
rng = np.random.default_rng(5)
X = rng.standard_normal((ROWS * N * 6, 6)).astype(np.float32)
Y = rng.integers(0, 2, len(X))


def network() -> nn.Module:
    nn.manual_seed(3)
    return nn.Linear(6, 2)


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of the mean cross entropy of rows: of the weights and, in the last column, the bias."""
    rows = np.concatenate([x, np.ones((len(x), 1))], 1)
    p = np.exp(rows @ w.T)
    return np.asarray((p / p.sum(1, keepdims=True) - np.eye(2)[y]).T @ rows / len(x))


def expected(updates: int) -> tuple[float, float]:
    """The two averages after that many updates of plain descent."""
    net = network().state_dict()
    w = np.concatenate([net["weight"], net["bias"][:, None]], 1).astype(np.float64)
    signal = trace = 0.0
    for u in range(updates):
        found = [gradient(w, *(a[(u * N + i) * ROWS:(u * N + i + 1) * ROWS] for a in (X, Y))) for i in range(N)]
        mean = np.mean(found, 0)
        single, together = np.mean([(g ** 2).sum() for g in found]), (mean ** 2).sum()
        signal = 0.99 * signal + 0.01 * (N * together - single) / (N - 1)
        trace = 0.99 * trace + 0.01 * (single - together) * ROWS * N / (N - 1)
        w -= RATE * mean
    return float(signal), float(trace)


def trained(iterations: int, **options: Any) -> Any:
    """The session after six updates."""
    how = {"micro_batch_size": ROWS, "gradient_accumulation": N, "device_iterations": iterations,
           "gradient_noise": True}
    model = tileflow.training_model(network(), loss="cross_entropy", optimizer=SGD(lr=RATE), **(how | options))
    rows = len(X) * iterations // 6
    for first in range(0, len(X), rows):
        model(X[first:first + rows], Y[first:first + rows])
    return model.source.session


def test_the_states_are_what_the_formula_gives() -> None:
    session = trained(1)
    found = float(session[noise.SIGNAL]), float(session[noise.NOISE])
    np.testing.assert_allclose(found, expected(6), rtol=1e-5)
    assert noise.scale_of(session) == found[1] / found[0]


@pytest.mark.parametrize("options",
                         [{"threads": 2}, {"threads": 5}, {"gradient_accumulation": 2, "replication_factor": 2},
                                     {"loss_scaling": 1024.0}, {"automatic_loss_scaling": "dynamic"}], ids=str)
def test_nothing_else_changes_it(options: dict[str, Any]) -> None:
    assert all(trained(3, **options)[name] == trained(1)[name] for name in (noise.SIGNAL, noise.NOISE))


@pytest.mark.parametrize("options", [{"accumulation_reduction": "sum"}, {"mean_reduction_strategy": "running"}],
                         ids=str)
def test_sums_and_running_means_say_the_same(options: dict[str, Any]) -> None:
    """Of the first update: a sum makes larger ones."""
    both = [tileflow.training_model(network(), loss="cross_entropy", optimizer=SGD(lr=RATE), micro_batch_size=ROWS,
                                    gradient_accumulation=N, gradient_noise=True, **given) for given in ({}, options)]
    for model in both:
        model(X[:ROWS * N], Y[:ROWS * N])
    plain, other = ([float(model.source.session[name]) for name in (noise.SIGNAL, noise.NOISE)] for model in both)
    assert other == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("strategy", ["pipelined", "sharded", "serial_phased"])
def test_stages_measure_what_one_ipu_does(strategy: str) -> None:
    def states(**options: Any) -> list[float]:
        nn.manual_seed(3)
        net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
        model = tileflow.training_model(net, loss="cross_entropy", optimizer=SGD(lr=RATE), micro_batch_size=ROWS,
                                        gradient_accumulation=N, device_iterations=2, gradient_noise=True, **options)
        model(X[:ROWS * N * 2], Y[:ROWS * N * 2])
        return [float(model.source.session[name]) for name in (noise.SIGNAL, noise.NOISE)]

    assert states(strategy=strategy, auto_pipeline=2, threads=2) == states(threads=1)


def test_weights_are_what_they_are_without_it() -> None:
    with_it, without = trained(2), trained(2, gradient_noise=False)
    assert all(with_it[name].tobytes() == without[name].tobytes() for name in ("weight", "bias"))


def test_a_run_tells_of_it_and_goes_on_with_it(tmp_path: Path) -> None:
    how: dict[str, Any] = {"data": (X, Y), "loss": "cross_entropy", "optimizer": "sgd", "learning_rate": 0.01,
                           "micro_batch_size": ROWS, "gradient_accumulation": 2, "gradient_noise": True}
    tileflow.train(network(), out=tmp_path / "whole", epochs=2, **how)
    tileflow.train(network(), out=tmp_path / "parts", epochs=1, **how)
    tileflow.train(network(), out=tmp_path / "parts", epochs=2, resume=True, **how)
    logs = [(tmp_path / name / "log.jsonl").read_text() for name in ("whole", "parts")]
    assert logs[0] == logs[1]
    assert logs[0].count("gradient_noise_scale") == 2


def test_what_cannot_be_measured_is_said() -> None:
    def model(**options: Any) -> Any:
        return tileflow.training_model(network(), **({"loss": "cross_entropy", "micro_batch_size": ROWS,
                                                      "gradient_accumulation": 2, "gradient_noise": True} | options))
    with pytest.raises(OptionError, match="there is one; give gradient_accumulation 2"):
        model(gradient_accumulation=1)
    with pytest.raises(OptionError, match="use_combined_accum adds them"):
        model(optimizer=SGD(momentum=0.9, use_combined_accum=True))(X[:8], Y[:8])
    with pytest.raises(OptionError, match="get those of a group only"):
        model(replication_factor=2, replica_grouping={"weight": "consecutive:1"})(X[:16], Y[:16])
    assert model(optimizer=SGD(momentum=0.9))(X[:8], Y[:8]) is not None
