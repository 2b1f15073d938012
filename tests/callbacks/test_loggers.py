"""What loggers write, read by the tools that they are for."""
from __future__ import annotations

import csv
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peers import needs

import tileflow
from tileflow import nn
from tileflow.callbacks import Callback, TensorBoardLogger, Tracker
from tileflow.report.png import picture, png
from tileflow.runtime.callbacks.tensorboard import EVENTS, FOLDER
from tileflow.system.errors import OptionError

DRAW = np.random.default_rng(0)
X, Y = DRAW.random((40, 1, 6, 5)).astype(np.float32), DRAW.integers(0, 3, 40)


def train(folder: Path, **options: Any) -> tileflow.TrainResult:
    nn.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(30, 3))
    return tileflow.train(net, **dict(data=((X, Y), (X[:12], Y[:12])), micro_batch_size=4, device_iterations=5,
                                      epochs=3, out=str(folder)) | options)


def test_lines_of_json_and_a_table(tmp_path: Path) -> None:
    """A line for each update, each epoch; the same figures as the result's."""
    result = train(tmp_path, log="csv")
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    updates = [r for r in rows if "update" in r]
    assert [r["update"] for r in updates] == list(range(1, 31))
    assert [r["learning_rate"] for r in updates] == result.learning_rates.tolist()
    epochs = [r for r in rows if "epoch" in r]
    assert [r["updates"] for r in epochs] == [10, 20, 30]
    for name in ("loss", "accuracy", "test_loss", "test_accuracy"):
        value = result.history[name.replace("test_", "val_")]
        assert [r[name] for r in epochs] == result.history[name].tolist() == value.tolist()
    assert epochs[0]["loss"] == pytest.approx(np.mean([r["loss"] for r in updates[:10]]))
    with (tmp_path / "log.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [float(r["test_loss"]) for r in table] == result.history["test_loss"].tolist()
    text = result.history.to_csv(tmp_path / "history.csv")
    assert (tmp_path / "history.csv").read_text() == text
    assert [float(r["loss"]) for r in csv.DictReader(text.splitlines())] == result.history["loss"].tolist()


def test_losses_that_are_no_numbers(tmp_path: Path) -> None:
    """JSON has none: other readers would refuse the line."""
    x = np.concatenate([X[:36], np.full((4, 1, 6, 5), np.nan, np.float32)])
    result = train(tmp_path, epochs=1, shuffle=False, skip_non_finite=True, data=(x, Y))
    assert result.history["skipped"].tolist() == [1]
    rows = [json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert sum(r["loss"] is None for r in rows) == 1


def test_a_logger_in_ten_lines(tmp_path: Path) -> None:
    """That of docs/callbacks.md."""
    text = (Path(__file__).parents[2] / "docs" / "callbacks.md").read_text()
    code = text.split("```python\n# a logger of your own\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    space: dict[str, Any] = {}
    exec(code, space)
    own = next(x for x in space.values() if isinstance(x, type) and issubclass(x, Callback)
               and x is not Callback)(tmp_path / "own.txt")
    train(tmp_path / "run", callbacks=own)
    lines = (tmp_path / "own.txt").read_text().splitlines()
    assert len(lines) == 3


# ---- TensorBoard

def events(folder: Path) -> tuple[dict[str, list[tuple[int, float]]], Any]:
    reader = needs("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(folder / FOLDER), size_guidance={"scalars": 0, "histograms": 0, "images": 0})
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}, found


def test_tensorboards_own_reader(tmp_path: Path) -> None:
    needs("tensorboardX")
    result = train(tmp_path, callbacks=TensorBoardLogger(every=4), statistics=10)
    scalars, found = events(tmp_path)
    assert scalars["test_loss"] == [(10 * (i + 1), pytest.approx(x)) for i, x in enumerate(result.history["test_loss"])]
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    losses = {r["update"]: r["loss"] for r in log if "update" in r}
    assert scalars["update/loss"] == [(u, pytest.approx(losses[u])) for u in range(4, 31, 4)]
    histogram, = (found.Histograms(tag)[-1]
                  for tag in found.Tags()["histograms"] if tag.startswith("weight/") and "weight" in tag[7:])
    assert histogram.step == 30
    assert histogram.histogram_value.num == 90 == sum(histogram.histogram_value.bucket)
    assert len(found.Images("inputs/0")) == 1
    assert any(tag.startswith("_hparams_") for tag in found.summary_metadata)


@pytest.mark.parametrize("left", [0, 1, 100, -1])
def test_events_after_the_checkpoint_are_written_once(left: int, tmp_path: Path) -> None:
    needs("tensorboardX")
    train(tmp_path / "whole", callbacks=TensorBoardLogger(every=1))
    train(tmp_path / "parts", callbacks=TensorBoardLogger(every=1), epochs=1)
    path = tmp_path / "parts" / FOLDER / EVENTS
    whole = (tmp_path / "whole" / FOLDER / EVENTS).read_bytes()
    path.write_bytes(path.read_bytes() + whole[path.stat().st_size:][:left])
    train(tmp_path / "parts", callbacks=TensorBoardLogger(every=1), resume=True)
    assert events(tmp_path / "parts")[0] == events(tmp_path / "whole")[0]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys
    for name in ("tensorboardX", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    wanted = r"^Logs for TensorBoard need tensorboardX: pip install 'tileflow-engine\[tensorboard\]'\.$"
    with pytest.raises(OptionError, match=wanted):
        train(tmp_path, log="tensorboard")
    with pytest.raises(OptionError, match=r"^Logs to wandb need its package: pip install wandb\.$"):
        train(tmp_path / "b", log="wandb")


# ---- tools with init, log and finish

class Tool:
    """What wandb and trackio have in common."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def init(self, project: str, name: str, config: dict[str, Any], **more: Any) -> None:
        self.told.append((project, name, config["epochs"], more))

    def log(self, figures: dict[str, Any], step: int) -> None:
        self.told.append((step, figures))

    def finish(self) -> None:
        self.told.append("finished")


@pytest.mark.parametrize("calls", [1, 5])
def test_a_tracker(calls: int, tmp_path: Path) -> None:
    tool = Tool()
    result = train(tmp_path / "first", callbacks=Tracker(tool, every=10, mode="offline"), device_iterations=calls)
    start, *told, end = tool.told
    assert start == (tmp_path.name, "first", 3, {"mode": "offline"})
    assert end == "finished"
    assert [step for step, figures in told] == [10, 10, 20, 20, 30, 30]
    assert [figures["test_loss"] for _, figures in told[1::2]] == result.history["test_loss"].tolist()
    with pytest.raises(OptionError, match=r"^Tracker takes what has the functions init, log and finish"):
        Tracker(np)


def test_a_tracker_is_told_of_an_end_by_an_error(tmp_path: Path) -> None:
    tool = Tool()
    with pytest.raises(tileflow.errors.TrainingError):
        train(tmp_path, callbacks=Tracker(tool), data=(np.full_like(X, np.nan), Y))
    assert tool.told[-1] == "finished"


# ---- pictures

@pytest.mark.parametrize("shape", [(5, 7), (4, 4, 3), (1, 1)])
def test_png_files(shape: tuple[int, ...]) -> None:
    """Each row is there again; Pillow reads them as they are."""
    pixels = DRAW.integers(0, 256, shape).astype(np.uint8)
    data = png(pixels)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at = data.index(b"IDAT")
    raw = zlib.decompress(data[at + 4:at + 4 + struct.unpack(">I", data[at - 4:at])[0]])
    assert np.array_equal(np.frombuffer(raw, np.uint8).reshape(shape[0], -1)[:, 1:], pixels.reshape(shape[0], -1))
    image = pytest.importorskip("PIL.Image", reason="pip install pillow makes it run")
    import io
    assert np.array_equal(np.asarray(image.open(io.BytesIO(data))), pixels)


def test_what_is_a_picture() -> None:
    assert picture(np.zeros((3, 8, 8))) is not None
    found = picture(np.array([[0.0, 1.0, 2.0, np.nan]] * 4))
    assert found is not None
    assert found[0].tolist() == [0, 128, 255, 0]
    for other in (np.zeros(8), np.zeros((2, 8, 8)), np.zeros((1, 2, 9)), np.zeros((3, 3, 3, 3))):
        assert picture(other) is None
