"""A run that is stopped, or fails, at any change that it makes to its folder, and is then resumed, is the run that nothing happened to: the same
weights, position, metrics and statistics."""
from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from faults import AVAILABLE, BROKEN, KINDS, MENDED, How, changes, disturbed, resumptions
from onnx_models import model_of, node, port

import tileflow
from tileflow.runtime.callbacks.metrics_file import METRICS
from tileflow.runtime.callbacks.statistics import LOG
from tileflow.runtime.checkpoint import load_checkpoint
from tileflow.runtime.run_folder import CHECKPOINT, FAILED
from tileflow.system.errors import CheckpointError

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no forks, or no list of open files")
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((26, 4)).astype(np.float32), RNG.integers(0, 3, 26)
OPTIONS: dict[str, Any] = dict(micro_batch_size=4, device_iterations=2, epochs=2, optimizer="adamw", learning_rate=0.02, drop_last=False,
                               save_every_updates=4, statistics=2, threads=1)
HOWS: tuple[How, ...] = ("stop", "fail", "full")


def train(model: Path, folder: Path, resume: bool | str = True) -> Any:
    """The command that begins a run, or goes on with it."""
    return tileflow.train(model, data=(X, Y), test_data=None, out=str(folder), resume=resume, **OPTIONS)


def left(folder: Path) -> dict[str, Any]:
    """All that a run leaves, without what the clock says."""
    found = load_checkpoint(folder / CHECKPOINT)
    state, metrics = json.loads(found.metadata["tileflow"]), json.loads((folder / METRICS).read_text())
    for record in (state["running"], *state["history"], *metrics["epochs"]):
        del record["seconds"]
        record.pop("samples_per_second", None)
    for name in ("out", "resume"):                             # how it was asked for
        metrics["options"].pop(name, None)
    names = {p.name for p in folder.iterdir()} - {FAILED}
    return {"tensors": {n: a.tobytes() for n, a in found.tensors.items()}, "state": state, "metrics": metrics,
            "statistics": (folder / LOG).read_text(), "model": (folder / "model.onnx").read_bytes(), "names": names}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    """The model, what a run leaves to which nothing happens, and its changes."""
    folder = tmp_path_factory.mktemp("whole")
    weights = {"w": RNG.standard_normal((4, 3)).astype(np.float32), "b": np.zeros(3, np.float32)}
    model = folder / "m.onnx"
    onnx.save(model_of([node("Gemm", ["x", "w", "b"], ["y"], "fc")], [port("x", ["N", 4])], [port("y", ["N", 3])], weights), model)
    seen = changes(folder / "run", lambda: train(model, folder / "run"))
    return model, left(folder / "run"), seen


def check(whole: tuple[Path, dict[str, Any], list[str]], folder: Path, at: int, how: How) -> None:
    """One fault, and the run resumed: by its folder, and from the state before the failure where there is one."""
    model, wanted, _ = whole
    run = folder / "run"
    status = disturbed(run, lambda: train(model, run), at, how)
    assert status != BROKEN, f"change {at} ({how}): no sentence"
    assert status == (-signal.SIGKILL if how == "stop" else MENDED)
    for place, resume in resumptions(run, folder):
        train(model, place, resume)
        found = left(place)
        assert [n for n in wanted if found[n] != wanted[n]] == [], f"change {at} ({how}), resumed with {resume}"


def some(seen: list[str]) -> list[int]:
    """The first, one in the middle and the last of each kind."""
    return sorted({numbers[i] for kind in KINDS if (numbers := [n for n, k in enumerate(seen) if k == kind]) for i in (0, len(numbers) // 2, -1)})


def test_every_kind_of_change_is_seen(whole: tuple[Path, dict[str, Any], list[str]], tmp_path: Path):
    """Each is made by a run, and two runs make the same ones in one order, so that a number says which."""
    model, wanted, seen = whole
    assert set(seen) == set(KINDS)
    assert changes(tmp_path / "run", lambda: train(model, tmp_path / "run")) == seen
    assert left(tmp_path / "run") == wanted


def test_what_faults_do(tmp_path: Path):
    """A file that is not written whole or not at all is found out; changes elsewhere are none of a run's."""
    path = tmp_path / "run" / "file"
    path.parent.mkdir()

    def work() -> None:
        (tmp_path / "elsewhere").write_bytes(b"x")
        path.write_bytes(b"12345678")
        os.unlink(path)

    def tells() -> None:
        try:
            work()
        except OSError as error:
            raise CheckpointError(str(error)) from None
    assert changes(path.parent, work) == ["creat", "write", "unlink"]
    for at, kept in enumerate((None, b"1234", b"12345678")):
        for how in HOWS:
            path.unlink(missing_ok=True)
            assert disturbed(path.parent, tells, at, how) == (-signal.SIGKILL if how == "stop" else MENDED)
            assert (path.read_bytes() if path.exists() else None) == kept
    assert disturbed(path.parent, work, 1, "fail") == BROKEN


@pytest.mark.parametrize("how", HOWS)
def test_faults_at_some_changes(how: How, whole: tuple[Path, dict[str, Any], list[str]], tmp_path: Path):
    for at in some(whole[2])[HOWS.index(how)::3]:
        check(whole, tmp_path / str(at), at, how)


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", HOWS)
def test_faults_at_every_change(how: How, whole: tuple[Path, dict[str, Any], list[str]], tmp_path: Path):
    for at in range(len(whole[2])):
        check(whole, tmp_path / str(at), at, how)
