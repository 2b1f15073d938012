"""The log of gradients and weights: what it and its picture say is what NumPy finds."""
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tileflow
from tileflow import nn, optim
from tileflow.errors import OptionError
from tileflow.report.statistics import SCALES, Tensor, best, lost, render
from tileflow.runtime.statistics import LOG, PAGE, figures, measured, read

RNG = np.random.default_rng(0)
X = RNG.standard_normal((48, 6)).astype(np.float32)
Y = RNG.integers(0, 3, 48)


def network() -> nn.Module:
    nn.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def wide() -> np.ndarray:
    """Magnitudes from 2^-60 to 2^30, and what is special."""
    x = (RNG.standard_normal(20000) * np.exp2(RNG.uniform(-60, 30, 20000))).astype(np.float32)
    x[:300], x[300:310], x[310:315] = 0, np.nan, -np.inf
    return x


def test_figures_are_numpys():
    x, scale, divisor = wide(), 256.0, 4.0
    t = figures(7, "gradient", "w", x, divisor, scale)
    plain = x[np.isfinite(x)].astype(np.float64) / divisor
    with np.errstate(over="ignore"):
        half = plain.astype(np.float16)
    true = np.abs(plain / scale)
    assert (t.elements, t.zeros, t.not_finite) == (20000, 300, 15)
    assert t.underflow == np.count_nonzero((half == 0) & (plain != 0))
    assert t.overflow == np.count_nonzero(np.isinf(half))
    assert t.subnormal == np.count_nonzero((half != 0) & (np.abs(plain) < np.finfo(np.float16).smallest_normal))
    np.testing.assert_allclose(t.norm, np.linalg.norm(true), rtol=1e-12)
    assert (t.largest, t.smallest) == (true.max(), true[true > 0].min())
    assert sum(t.exponents.values()) == np.count_nonzero(true)
    for e, n in t.exponents.items():
        assert n == np.count_nonzero((true >= 2.0 ** e) & (true < 2.0 ** (e + 1)))


def test_the_picture_says_what_float16_would_lose():
    """Every bar of the page beside NumPy's casts of the scaled gradients."""
    x = wide()
    x = x[np.isfinite(x) & (x != 0)]
    t = figures(1, "gradient", "w", x, 1.0, 1.0)
    page = render([t, figures(1, "weight", "w", x[:5], 1.0, 1.0)], "a run")
    said = {int(k): (float(low) / 100, float(high) / 100)
            for k, low, high in re.findall(r"2\^(-?\d+): ([\d.]+)% underflow, ([\d.]+)% overflow", page)}
    assert list(said) == list(SCALES)
    for k, (low, high) in said.items():
        with np.errstate(over="ignore"):
            half = (x.astype(np.float64) * 2.0 ** k).astype(np.float16)
        assert low == pytest.approx(np.mean(half == 0), abs=2e-5)
        assert high == pytest.approx(np.mean(np.isinf(half)), abs=1e-3)          # to within a power of two: 65520 rounds up, 65519 does not
        assert (low, high) == pytest.approx(lost([t], k), abs=1e-6)
    small = figures(1, "gradient", "w", np.exp2(RNG.uniform(-30, -20, 1000)).astype(np.float32), 1.0, 1.0)
    assert best([small]) == (5, 24)


def test_gradients_are_those_that_moved_the_weights():
    """With SGD and a rate of 1 the weights' change is the mean gradient, whatever the scale and the accumulation."""
    for options in (dict(), dict(gradient_accumulation=4), dict(gradient_accumulation=2, loss_scaling=64.0),
                    dict(gradient_accumulation=2, automatic_loss_scaling="dynamic", growth_interval=1, loss_scaling=32.0)):
        model = tileflow.training_model(network(), optimizer=optim.SGD(lr=1.0), **options)          # type: ignore[arg-type]
        model(X, Y)
        before = model.state_dict()
        model(X, Y)
        after = model.state_dict()
        found = {(t.kind, t.name): t for t in measured(model)}
        assert len(found) == 2 * len(before)
        for name, w in after.items():
            change = (before[name] - w).astype(np.float64)
            np.testing.assert_allclose(found["gradient", name].norm, np.linalg.norm(change), rtol=1e-4)
            np.testing.assert_allclose(found["gradient", name].largest, np.abs(change).max(), rtol=1e-4)
            np.testing.assert_allclose(found["weight", name].norm, np.linalg.norm(w.astype(np.float64)), rtol=1e-12)


def test_a_run_writes_them_and_goes_on_with_them(tmp_path: Path):
    settings: dict[str, Any] = dict(data=(X, Y), micro_batch_size=8, gradient_accumulation=2, shuffle=False, optimizer="adamw", statistics=2)
    whole = tileflow.train(network(), out=str(tmp_path / "whole"), epochs=4, **settings)
    tileflow.train(network(), out=str(tmp_path / "parts"), epochs=2, **settings)
    tileflow.train(network(), out=str(tmp_path / "parts"), epochs=4, resume=True, **settings)
    rows = read(tmp_path / "whole" / LOG)
    assert (tmp_path / "whole" / LOG).read_bytes() == (tmp_path / "parts" / LOG).read_bytes()
    assert sorted({t.update for t in rows}) == list(range(2, 13, 2))
    assert len(rows) == 6 * 8
    last = {t.name: t for t in rows if t.update == 12 and t.kind == "weight"}
    for name, w in whole.weights.items():
        np.testing.assert_allclose(last[name].norm, np.linalg.norm(w.astype(np.float64)), rtol=1e-12)
    page = (tmp_path / "whole" / PAGE).read_text(encoding="utf-8")
    assert "Which loss scale" in page
    assert all(name in page for name in whole.weights)
    assert "http" not in page.replace("http-equiv", "")
    plain = tileflow.train(network(), out=str(tmp_path / "plain"), epochs=4, **{**settings, "statistics": None})
    assert {n: w.tobytes() for n, w in plain.weights.items()} == {n: w.tobytes() for n, w in whole.weights.items()}
    assert not (tmp_path / "plain" / LOG).exists()


def test_velocities_that_take_gradients_in_have_none(tmp_path: Path):
    with pytest.raises(OptionError, match="use_combined_accum adds them to the velocity"):
        tileflow.train(network(), data=(X, Y), out=str(tmp_path), statistics=1, micro_batch_size=8, gradient_accumulation=2,
                       optimizer=optim.SGD(lr=0.1, momentum=0.9, use_combined_accum=True))


def test_names_are_escaped():
    assert "<b>" not in render([Tensor(1, "weight", "<b>", 1, 1.0, 1.0, 1.0, 0, 0, 0, 0, 0, 1.0, {0: 1})], "<b>")
