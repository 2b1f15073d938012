"""The log of gradients and weights: what it and its picture say is what NumPy finds."""
from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tileflow
from tileflow import nn, optim
from tileflow.report.statistics import SCALES, Tensor, best, lost, render
from tileflow.runtime.callbacks import appended
from tileflow.runtime.callbacks.statistics import LOG, PAGE, figures, measured, read
from tileflow.runtime.run_folder import CHECKPOINT, FAILED
from tileflow.system import files
from tileflow.system.errors import CheckpointError, OptionError

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


SETTINGS: dict[str, Any] = dict(data=(X, Y), micro_batch_size=8, epochs=2, statistics=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The table of a run that nothing happens to: 12 updates."""
    folder = tmp_path_factory.mktemp("whole")
    tileflow.train(network(), out=str(folder), **SETTINGS)
    return (folder / LOG).read_bytes()


@pytest.mark.parametrize("left", [b"", b"upd", b"update,kind\n", b"whole", b"whole, and the beginning of a row\n12,grad"])
@pytest.mark.parametrize("resume", [False, True])
def test_what_a_run_without_a_checkpoint_left_is_no_part_of_the_next(left: bytes, resume: bool, whole: bytes, tmp_path: Path):
    """It was killed before its first one, in the middle of a row or of the header perhaps."""
    (tmp_path / LOG).write_bytes(left.replace(b"whole", whole))
    tileflow.train(network(), out=str(tmp_path), resume=resume, **SETTINGS)
    assert (tmp_path / LOG).read_bytes() == whole


@pytest.mark.parametrize("left", [0, 1, 57, -1])
def test_rows_after_the_checkpoint_are_written_once(left: int, whole: bytes, tmp_path: Path):
    """Cut anywhere behind those of the checkpoint; those before it stay."""
    tileflow.train(network(), out=str(tmp_path), **SETTINGS | {"epochs": 1})
    first = (tmp_path / LOG).read_bytes()
    assert whole.startswith(first)
    (tmp_path / LOG).write_bytes(first + whole[len(first):][:left])
    tileflow.train(network(), out=str(tmp_path), resume=True, **SETTINGS)
    assert (tmp_path / LOG).read_bytes() == whole


def test_a_full_disk_is_a_sentence_and_loses_no_row(whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The rows of the second epoch do not come to the disk at first: the state that is saved then has them all the
    same."""
    append, failed = files.append, []

    def full(_file: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def once(path: Path, data: bytes) -> None:
        with monkeypatch.context() as patch:
            if data.startswith(b"7,") and not failed:
                failed.append(path)
                patch.setattr(files, "sync", full)
            append(path, data)
    with monkeypatch.context() as patch:
        patch.setattr(appended, "append", once)
        with pytest.raises(CheckpointError, match=r"^Cannot write \S+statistics\.csv: No space left on device; free some space or choose") as told:
            tileflow.train(network(), out=str(tmp_path), **SETTINGS)
    assert len(failed) == 1
    assert f"is saved in {tmp_path / FAILED}" in told.value.__notes__[0]
    tileflow.train(network(), out=str(tmp_path), **SETTINGS | {"resume": str(tmp_path / FAILED)})
    assert (tmp_path / LOG).read_bytes() == whole


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of open files")
def test_rows_are_on_the_disk_before_the_checkpoint_that_counts_on_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nothing was ever brought there: a power cut left a checkpoint without its rows."""
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        done.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    def replaced(old: Path, new: Path) -> None:
        done.append(f"{new.name} is there")
        replace(old, new)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    tileflow.train(network(), out=str(tmp_path), **SETTINGS)
    places = [i for i, what in enumerate(done) if what == f"{CHECKPOINT} is there"]
    assert [done[:i].count(LOG) for i in places] == [1, 2]


def test_velocities_that_take_gradients_in_have_none(tmp_path: Path):
    with pytest.raises(OptionError, match="use_combined_accum adds them to the velocity"):
        tileflow.train(network(), data=(X, Y), out=str(tmp_path), statistics=1, micro_batch_size=8, gradient_accumulation=2,
                       optimizer=optim.SGD(lr=0.1, momentum=0.9, use_combined_accum=True))


def test_names_are_escaped():
    assert "<b>" not in render([Tensor(1, "weight", "<b>", 1, 1.0, 1.0, 1.0, 0, 0, 0, 0, 0, 1.0, {0: 1})], "<b>")
