"""What is not finite is said where it matters: a run in which no update counted is no success, and outputs that are NaN or infinite are counted."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import model_of, node, port
from said import Said

import tileflow
from tileflow import cli, nn
from tileflow.runtime.checkpoint import load_tensors
from tileflow.runtime.run_folder import CHECKPOINT
from tileflow.system.errors import NoUpdateError, TrainingError

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((64, 4)).astype(np.float32), RNG.integers(0, 3, 64)
OPTIONS: dict[str, Any] = dict(micro_batch_size=16, precision="16-mixed", shuffle=False, learning_rate=0.01)


def table(folder: Path, scale: float) -> list[str]:
    """The words of a training on a model and a table of so large numbers."""
    weights = {"w": RNG.standard_normal((4, 3)).astype(np.float32), "b": np.zeros(3, np.float32)}
    onnx.save(model_of([node("Gemm", ["x", "w", "b"], ["y"], "fc")], [port("x", ["N", 4])], [port("y", ["N", 3])], weights), folder / "m.onnx")
    np.savez(folder / "d.npz", x=X * np.float32(scale), y=Y)
    return [str(folder / "m.onnx"), "--data", str(folder / "d.npz")]


def net() -> nn.Module:
    nn.manual_seed(0)
    return nn.Linear(4, 3)


# ---- no update counted

def test_a_run_in_which_no_update_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Its state is kept, the exit code is 1, and so it is when it is asked for once more."""
    words = ["train", *table(tmp_path, 1e30), "--precision", "16-mixed", "--out", str(tmp_path / "run"), "--epochs", "2"]
    for again in ([], ["--resume"]):
        assert cli.main([*words, *again]) == 1
        found = capsys.readouterr()
        assert "Trained model" not in found.out
        assert ("No update of epoch 2 counted: in each of its 4 the loss or a gradient was not finite, so they were skipped and the weights are as "
                "before it; the loss scale has come down to ") in found.err
        assert f"the state is saved in {tmp_path / 'run' / CHECKPOINT}" in found.err
        assert ("No update of epoch 1 counted" in found.err + found.out) is not again or again
    assert not (tmp_path / "run" / "model.onnx").exists()
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["updates"] == 8


def test_rows_whose_end_nobody_knew_count_as_others(tmp_path: Path):
    """An epoch of a generator has as many updates as it gave."""
    def rows() -> Any:
        return ((x * np.float32(1e30), y) for x, y in zip(X, Y, strict=True))
    with pytest.raises(NoUpdateError, match="No update of epoch 1 counted: in each of its 4"):
        tileflow.train(net(), data=rows, out=str(tmp_path / "a"), **OPTIONS)
    tileflow.train(net(), data=lambda: zip(X, Y, strict=True), out=str(tmp_path / "b"), **OPTIONS)


def test_a_run_whose_last_update_counted_is_a_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["train", *table(tmp_path, 1.0), "--precision", "16-mixed", "--out", str(tmp_path / "run")]
    assert cli.main([*words, "--epochs", "0"]) == 0                        # nothing to skip
    assert cli.main([*words, "--epochs", "1", "--resume"]) == 0
    found = capsys.readouterr()
    assert "counted" not in found.out + found.err
    assert (tmp_path / "run" / "model.onnx").exists()


@pytest.mark.parametrize("threads", [1, 2])
def test_an_earlier_epoch_is_said(threads: int, tmp_path: Path):
    """A loss scale that comes down: the first epochs have no update that counts, the last one has."""
    said = Said()
    data = X * np.float32(100), Y
    result = tileflow.train(net(), data=data, out=str(tmp_path), epochs=4, callbacks=[said], threads=threads,
                            automatic_loss_scaling="dynamic", loss_scaling=2.0 ** 21, **OPTIONS)
    skipped = result.history["skipped"].tolist()
    assert skipped[0] == 4
    assert skipped[-1] < 4
    heard = [s for s in said.sentences if s.startswith("No update of epoch")]
    assert len(heard) == skipped.count(4)
    assert heard[0].startswith("No update of epoch 1 counted: in each of its 4 the loss or a gradient was not finite, so they were skipped")


def test_the_last_epoch_alone(tmp_path: Path):
    """Updates counted before it, and are kept; in Python it is an error of a class of its own."""
    kept: dict[str, Any] = dict(out=str(tmp_path), skip_non_finite=True, **OPTIONS | {"precision": "32"})
    good = tileflow.train(net(), data=(X, Y), epochs=1, **kept)
    bad = np.full_like(X, np.nan)
    with pytest.raises(NoUpdateError, match=r"No update of epoch 2 counted: in each of its 4 .* no model was written; the state is saved"):
        tileflow.train(net(), data=(bad, Y), epochs=2, resume=True, allow_other_data=True, **kept)
    tensors = load_tensors(tmp_path / CHECKPOINT)[0]
    assert all(np.array_equal(tensors[name], w) for name, w in good.weights.items())
    assert issubclass(NoUpdateError, TrainingError)
    mended = tileflow.train(net(), data=(X, Y), epochs=3, resume=True, allow_other_data=True, **kept)
    assert mended.history["skipped"].tolist() == [0, 4, 0]


# ---- outputs

def test_outputs_that_are_not_finite_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["infer", *table(tmp_path, 1.0), "--out", str(tmp_path / "p.npz")]
    assert cli.main(words) == 0
    assert "not finite" not in capsys.readouterr().err
    x = X.copy()
    x[[3, 40, 63], 1] = np.inf, np.nan, -np.inf
    np.savez(tmp_path / "d.npz", x=x, y=Y)
    assert cli.main(words) == 0
    assert "The output 'y' is not finite in 3 of 64 rows: it holds NaN or an infinity there." in capsys.readouterr().err
    with pytest.warns(UserWarning, match="The output 'y' is not finite in 3 of 64 rows"):
        tileflow.infer(tmp_path / "m.onnx", data=x, micro_batch_size=16)


# ---- data

@pytest.mark.parametrize("shuffle", [False, True])
def test_what_is_no_number_in_the_data_is_named_in_the_error(shuffle: bool, tmp_path: Path):
    """By its row in the data, whichever batch it came in; data without have no such note."""
    x = X.copy()
    x[37, 2] = np.nan
    with pytest.raises(TrainingError, match="The loss is not finite") as told:
        tileflow.train(net(), data=(x, Y), out=str(tmp_path / "a"), **OPTIONS | {"precision": "32", "shuffle": shuffle})
    assert [n for n in told.value.__notes__ if "holds nan in row 37 of the data: mend that row, or leave it out." in n]
    with pytest.raises(NoUpdateError) as none:
        tileflow.train(net(), data=(np.full_like(X, np.inf), Y), out=str(tmp_path / "b"), **OPTIONS)
    assert [n for n in none.value.__notes__ if "row 0 of the data holds inf" in n]
    with pytest.raises(TrainingError, match="not finite") as high:                   # nothing wrong with the data
        tileflow.train(net(), data=(X * np.float32(1e30), Y), out=str(tmp_path / "c"), optimizer="sgd", **OPTIONS | {"precision": "32"})
    assert not [n for n in getattr(high.value, "__notes__", []) if "of the data holds" in n]
