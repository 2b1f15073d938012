"""Symbolic links in and around a run's folder: nothing that a run writes goes where a stranger's link points."""
from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tileflow
from tileflow.cli import examination as doctor
from tileflow.kernels.machine import cache
from tileflow.runtime.run_folder import CHECKPOINT
from tileflow.system.errors import CheckpointError
from tileflow.system.files import probe

MODEL = Path(tileflow.__file__).parent / "data" / "digits_cnn.onnx"
OPTIONS: dict[str, Any] = dict(data="digits", max_batches=2, micro_batch_size=16, statistics=1, seed=1)
PRECIOUS = b"a stranger's\n"


def train(folder: Path, **changes: Any) -> dict[str, bytes]:
    """The weights' bits."""
    return {n: w.tobytes() for n, w in tileflow.train(MODEL, out=str(folder), **OPTIONS | changes).weights.items()}


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """A run in two goes, from which there is a file of every name that runs write."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder)
    return folder, train(folder, resume=True, epochs=2)


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_at_every_name_that_a_run_writes(dangling: bool, whole: tuple[Path, dict[str, bytes]], tmp_path: Path):
    """And at the names of probes that older versions had: they point to strangers' files, or to where one would come to be."""
    run, strangers = tmp_path / "run", tmp_path / "strangers"
    run.mkdir()
    strangers.mkdir()
    written = [n for n in names(whole[0]) if n != CHECKPOINT or dangling]
    assert {"run.toml", "metrics.json", "model.onnx", "run.lock", "statistics.csv", "statistics.html"} <= set(written)
    for name in (*written, ".writable"):
        (run / name).symlink_to(strangers / name)
        if not dangling:
            (strangers / name).write_bytes(PRECIOUS)
    train(run)
    weights = train(run, resume=True, epochs=2)
    assert [n for n in names(run) if (run / n).is_symlink()] == [".writable"]
    assert names(strangers) == ([] if dangling else sorted((*written, ".writable")))
    assert all(p.read_bytes() == PRECIOUS for p in strangers.iterdir())
    assert weights == whole[1]


def test_a_link_in_the_place_of_a_checkpoint(whole: tuple[Path, dict[str, bytes]], tmp_path: Path):
    """Out of the folder it is refused, and taken by its own path or its target's; within it is the folder's own."""
    elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
    train(elsewhere)
    before = (elsewhere / CHECKPOINT).read_bytes()
    shutil.copytree(elsewhere, run)
    (run / CHECKPOINT).unlink()
    (run / CHECKPOINT).symlink_to(elsewhere / CHECKPOINT)
    with pytest.raises(CheckpointError, match=rf"{CHECKPOINT} is a link to {elsewhere / CHECKPOINT}, which is not in the folder of the run; name"):
        train(run, resume=True, epochs=2)
    assert (run / CHECKPOINT).is_symlink()
    with pytest.raises(CheckpointError, match="already holds a run"):
        train(run)
    assert train(run, resume=str(run / CHECKPOINT), epochs=2) == whole[1]
    assert not (run / CHECKPOINT).is_symlink()
    assert (elsewhere / CHECKPOINT).read_bytes() == before
    assert train(tmp_path / "third", resume=str(elsewhere / CHECKPOINT), epochs=2) == whole[1]

    (elsewhere / CHECKPOINT).rename(elsewhere / "kept.safetensors")
    (elsewhere / CHECKPOINT).symlink_to("kept.safetensors")
    assert train(elsewhere, resume=True, epochs=2) == whole[1]
    assert (elsewhere / "kept.safetensors").read_bytes() == before


def test_the_folder_itself_may_be_a_link(whole: tuple[Path, dict[str, bytes]], tmp_path: Path):
    (tmp_path / "disk" / "runs").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    (tmp_path / "run").symlink_to(tmp_path / "link" / "runs")
    train(tmp_path / "run")
    assert train(tmp_path / "run", resume=True, epochs=2) == whole[1]
    assert (tmp_path / "run").is_symlink()
    assert names(tmp_path / "disk" / "runs") == names(whole[0])


def test_a_probe_is_nobodys_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its name cannot be guessed, and where there is one of that name it is left alone."""
    made: list[str] = []
    opened = os.open

    def seen(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        made.append(os.path.basename(path))
        assert flags & os.O_EXCL
        assert flags & os.O_NOFOLLOW
        return opened(path, flags, *rest, **more)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", seen)
        probe(tmp_path)
        probe(tmp_path)
    assert len(set(made)) == 2
    assert names(tmp_path) == []
    monkeypatch.setattr("secrets.token_hex", lambda n: "00" * n)
    guessed = tmp_path / made[0].replace(made[0].rsplit("-", 1)[1], "00" * 6 + ".tmp")
    (tmp_path / "stranger").write_bytes(PRECIOUS)
    guessed.symlink_to("stranger")
    with pytest.raises(FileExistsError):
        probe(tmp_path)
    assert (tmp_path / "stranger").read_bytes() == PRECIOUS
    assert guessed.is_symlink()


def test_doctor_follows_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "kernels"
    folder.mkdir(mode=0o755)
    (tmp_path / "stranger").write_bytes(PRECIOUS)
    (folder / f".doctor-{os.getpid()}").symlink_to(tmp_path / "stranger")
    monkeypatch.setattr(cache, "folder", lambda: folder)
    doctor._cache(doctor.Examination())
    assert (tmp_path / "stranger").read_bytes() == PRECIOUS
    assert names(folder) == [f".doctor-{os.getpid()}"]


def test_a_link_that_somebody_named_stays_one(tmp_path: Path):
    """Outside of a run's folder: --out of infer, save_onnx."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "m.onnx").symlink_to(tmp_path / "disk" / "m.onnx")
    result = tileflow.train(MODEL, out=str(tmp_path / "run"), **OPTIONS)
    result.save_onnx(tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").is_symlink()
    x = np.zeros((2, 1, 8, 8), np.float32)
    assert tileflow.infer(tmp_path / "disk" / "m.onnx", data=x).keys() == tileflow.infer(tmp_path / "run" / "model.onnx", data=x).keys()
