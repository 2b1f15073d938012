"""Runs with every callback on that are stopped anywhere, or whose files cannot be written, and go on: the same files,
bit for bit."""
from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from asked import asked_by
from faults import AVAILABLE, BROKEN, MENDED, How, changes, disturbed, resumptions
from onnx_models import model_of, node, port
from test_resume_random import Asked

import tileflow
from tileflow.callbacks import Callback, CSVLogger, EarlyStopping, JSONLogger, ModelCheckpoint, ReduceLROnPlateau
from tileflow.runtime.checkpoint import load_checkpoint, load_tensors, save_tensors
from tileflow.runtime.run_folder import CHECKPOINT, FAILED
from tileflow.runtime.run_lock import LOCK
from tileflow.system.errors import CheckpointError, Interrupted, OptionError

DRAW = np.random.default_rng(0)
X, Y = DRAW.standard_normal((44, 4)).astype(np.float32), DRAW.integers(0, 3, 44)
TEST = DRAW.standard_normal((12, 4)).astype(np.float32), DRAW.integers(0, 3, 12)
OPTIONS: dict[str, Any] = dict(micro_batch_size=4, device_iterations=3, epochs=4, optimizer="adamw", learning_rate=0.05,
                               drop_last=False, threads=1,
                               eval_every=4, statistics=5, save_every_updates=6, keep_best=True, early_stopping=50,
                               max_updates=40, max_time="1h",
                               log="csv", metrics="f1_macro", average="ema", ema_decay=0.9)


class Own(Callback):
    """One of a user's: a sum of all losses, and a file that is asked for."""

    remembered = ("total",)

    def __init__(self) -> None:
        self.total = 0.0

    def on_train_batch_end(self, batch: int, logs: Any) -> None:
        for loss in logs["losses"].tolist():
            self.total += loss

    def on_evaluate_end(self, logs: Any) -> None:
        if self.run.updates == 20:
            self.run.save("mine")


def every_callback() -> list[Callback]:
    return [Own(), ReduceLROnPlateau("val_loss", patience=1, factor=0.5, min_delta=0.01),
            EarlyStopping("loss", patience=30, restore_best_weights=True),
            ModelCheckpoint("val_f1_macro", save_top_k=2, onnx=True),
            ModelCheckpoint(save_top_k=-1, every_n_updates=7, filename="u{updates}"),
            CSVLogger("other.csv", separator=";"), JSONLogger("other.jsonl")]


def train(model: Path, folder: Path, resume: bool | str = True) -> Any:
    return tileflow.train(model, data=(X, Y), test_data=TEST, out=str(folder), resume=resume,
                          callbacks=every_callback(), **OPTIONS)


def left(folder: Path) -> dict[str, Any]:
    """All that a run leaves, but for what the clock says and how it was asked for."""
    found: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        if path.name.endswith(".safetensors"):
            checkpoint = load_checkpoint(path)
            state = json.loads(checkpoint.metadata["tileflow"])
            for record in (state["running"], *state["history"]):
                del record["seconds"]
            del state["callbacks"]["MaxTime"]
            found[path.name] = {"state": state, **{n: a.tobytes() for n, a in checkpoint.tensors.items()}}
        elif path.name == "metrics.json":
            metrics = json.loads(path.read_text())
            for record in metrics["epochs"]:
                del record["seconds"], record["samples_per_second"]
            for name in ("out", "resume"):
                metrics["options"].pop(name, None)
            found[path.name] = metrics
        elif path.name not in (FAILED, "run.toml", "report.html", LOCK) and path.is_file():
            found[path.name] = path.read_bytes().replace(f"weights of {folder.name}".encode(), b"weights of run")
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str], int]:
    """The model, what a run leaves to which nothing happens, the changes it makes to its folder, and how often it looks
    for a signal."""
    folder = tmp_path_factory.mktemp("whole")
    weights = {"w": DRAW.standard_normal((4, 3)).astype(np.float32), "b": np.zeros(3, np.float32)}
    model = folder / "m.onnx"
    onnx.save(model_of([node("Gemm", ["x", "w", "b"], ["y"], "fc")], [port("x", ["N", 4])], [port("y", ["N", 3])],
                       weights), model)
    asked = Asked()
    seen = changes(folder / "run", lambda: with_asked(model, folder / "run", asked))
    found = left(folder / "run")
    assert {"best.safetensors", "best.onnx", "mine.safetensors", "u7.safetensors", "u35.safetensors", "log.jsonl",
            "log.csv", "other.csv",
            "model.onnx", "other.jsonl", "metrics.json", "statistics.csv", CHECKPOINT} <= set(found)
    assert len([n for n in found if n.startswith("epoch=")]) == 4          # two checkpoints, and their models
    return model, found, seen, asked.count


def with_asked(model: Path, folder: Path, asked: Asked) -> None:
    """A run, or what is left of it, in slices as short as can be."""
    with pytest.MonkeyPatch.context() as patch:
        asked_by(patch, lambda: asked)
        train(model, folder)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(s, marks=pytest.mark.exhaustive) for s in range(2, 60))])
def test_stops_by_a_signal(seed: int, whole: tuple[Path, dict[str, Any], list[str], int], tmp_path: Path) -> None:
    model, wanted, _, polls = whole
    draw = np.random.default_rng(seed)
    for _ in range(int(draw.integers(1, 4))):
        try:
            with_asked(model, tmp_path / "run",
                       Asked(1 + int(draw.random() * polls), (signal.SIGINT, signal.SIGTERM)[seed % 2]))
            break
        except Interrupted:
            pass
    train(model, tmp_path / "run")
    found = left(tmp_path / "run")
    assert list(found) == list(wanted)
    assert [n for n in wanted if found[n] != wanted[n]] == []


def check(whole: tuple[Path, dict[str, Any], list[str], int], folder: Path, at: int, how: How) -> None:
    """A run that is killed at a change, or one change of which fails, and then is resumed: by its folder, and from the
    state before the failure."""
    model, wanted, _, _ = whole
    run = folder / "run"
    status = disturbed(run, lambda: train(model, run), at, how)
    assert status != BROKEN, f"change {at} ({how}): no sentence"
    assert status == (-signal.SIGKILL if how == "stop" else MENDED)
    for place, resume in resumptions(run, folder):
        train(model, place, resume)
        found = left(place)
        assert list(found) == list(wanted)
        assert [n for n in wanted if found[n] != wanted[n]] == [], f"change {at} ({how}), resumed with {resume}"


HOWS: tuple[How, ...] = ("stop", "fail", "full")


@pytest.mark.skipif(not AVAILABLE, reason="no forks, or no list of open files")
@pytest.mark.parametrize(("how", "share"), [
    *zip(HOWS, (0.2, 0.5, 0.9), strict=True),
    *(pytest.param(how, i / 60, marks=pytest.mark.exhaustive) for how in HOWS for i in range(60))])
def test_faults(how: How, share: float, whole: tuple[Path, dict[str, Any], list[str], int], tmp_path: Path) -> None:
    check(whole, tmp_path, int((share + HOWS.index(how) / 180) * len(whole[2])), how)


# ---- checkpoints from anywhere

def forged(folder: Path, **changed: Any) -> None:
    """The folder's checkpoint with another table of states."""
    tensors, metadata = load_tensors(folder / CHECKPOINT)
    state = json.loads(metadata["tileflow"])
    save_tensors(folder / CHECKPOINT, tensors, metadata | {"tileflow": json.dumps(state | changed)})


@pytest.mark.parametrize(("changed", "says"), [
    ({"callbacks": {"EarlyStopping": {"wait": "x", "best": 1.0, "best_epoch": 0, "stopped_epoch": 0}}},
     "holds no state of the callback Early"),
    ({"callbacks": {"EarlyStopping": {}}}, "holds no state of the callback EarlyStopping"),
    ({"callbacks": {"EarlyStopping": {"wait": 2 ** 70, "best": None, "best_epoch": 0, "stopped_epoch": 0}}},
     "holds no state of the callback"),
    ({"callbacks": {"ModelCheckpoint": {"kept": [["../../x", 1.0, 0, 1]]}}},
     "holds no state of the callback ModelCheckpoint"),
    ({"callbacks": {"ModelCheckpoint": {"kept": [[1]]}}}, "holds no state of the callback ModelCheckpoint"),
    ({"callbacks": {"JSONLogger": {"length": -7}}}, "holds no state of the callback JSONLogger"),
    ({"callbacks": {"JSONLogger": {"length": True}}}, "holds no state of the callback JSONLogger"),
    ({"callbacks": {"CSVLogger": {"length": 1, "columns": [1]}}}, "holds no state of the callback CSVLogger"),
    ({"callbacks": {"MaxTime": {"spent": "x"}}}, "holds no state of the callback MaxTime"),
    ({"callbacks": {"MaxTime": {"spent": -1.0}}}, "holds no state of the callback MaxTime"),
    ({"callbacks": []}, "does not say how far its run has come"),
    ({"pending": [["x", 1, 2]]}, "does not say how far its run has come"),
    ({"rates_set": {"lr": -1.0}}, "does not say how far its run has come"),
    ({"evaluated": -2}, "does not say how far its run has come"),
    ({"begun": 1.5}, "does not say how far its run has come"),
], ids=str)
def test_forged_states(changed: dict[str, Any], says: str, tmp_path: Path) -> None:
    options: dict[str, Any] = dict(data=(X, Y), micro_batch_size=4, out=str(tmp_path), early_stopping=2, keep_best=True,
                                   log="csv", max_time="1h")
    tileflow.train(net(), epochs=1, **options)
    forged(tmp_path, **changed)
    with pytest.raises(CheckpointError, match=says):
        tileflow.train(net(), epochs=2, resume=True, **options)


@pytest.mark.parametrize("length", [0, 1, 70, 2 ** 62])
def test_a_forged_length_of_a_log(length: int, tmp_path: Path) -> None:
    """No memory is taken for what it claims; what is there of whole lines stays."""
    options: dict[str, Any] = dict(data=(X, Y), micro_batch_size=4, out=str(tmp_path))
    tileflow.train(net(), epochs=1, **options)
    before = (tmp_path / "log.jsonl").read_bytes()
    forged(tmp_path, callbacks={"JSONLogger": {"length": length}})
    tileflow.train(net(), epochs=2, resume=True, **options)
    found = (tmp_path / "log.jsonl").read_bytes()
    kept = before[:length].rpartition(b"\n")
    assert found.startswith(kept[0] + kept[1])
    assert found.splitlines()[-1].startswith(b'{"epoch":2,')
    assert all(json.loads(line) for line in found.splitlines())


def net() -> Any:
    from tileflow import nn
    nn.manual_seed(0)
    return nn.Linear(4, 3)


@pytest.mark.parametrize("name", ["checkpoint", "../x", "model"])
def test_a_forged_request(name: str, tmp_path: Path) -> None:
    """A checkpoint cannot have files removed or written that are none of a callback's."""
    tileflow.train(net(), data=(X, Y), micro_batch_size=4, out=str(tmp_path / "run"), epochs=1)
    (tmp_path / "x.onnx").write_bytes(b"mine")
    forged(tmp_path / "run", pending=[[name, False, True]])
    with pytest.raises(OptionError, match="A checkpoint cannot be called"):
        tileflow.train(net(), data=(X, Y), micro_batch_size=4, out=str(tmp_path / "run"), epochs=2, resume=True)
    assert (tmp_path / "x.onnx").exists()
    assert (tmp_path / "run" / CHECKPOINT).exists()


def test_callbacks_that_come_and_go(tmp_path: Path) -> None:
    """Each is said; the run goes on."""
    from said import Said
    options: dict[str, Any] = dict(data=(X, Y), micro_batch_size=4, out=str(tmp_path))
    said = Said()
    tileflow.train(net(), epochs=1, callbacks=Own(), **options)
    tileflow.train(net(), epochs=2, resume=True, callbacks=[said, EarlyStopping("loss", patience=9)], **options)
    assert "The checkpoint knows nothing of the callback EarlyStopping, which begins anew." in said.sentences
    assert "The run goes on without the callback Own that it had." in said.sentences
