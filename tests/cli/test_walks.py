"""From files as people have them to a saved model, by commands alone."""
from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from onnx_models import model_of, node, port
from peers import needs

from tileflow import cli


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command that succeeds prints."""
    assert cli.main(words) == 0
    said = capsys.readouterr()
    return said.out + said.err


@pytest.mark.exhaustive                    # whole learning
def test_digits_as_images_by_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    Image = needs("PIL.Image")
    with resources.as_file(resources.files("tileflow") / "data" / "digits.npz") as path, np.load(path) as digits:
        for part in ("train", "test"):
            for i, (x, y) in enumerate(zip(digits[f"x_{part}"], digits[f"y_{part}"], strict=True)):
                folder = tmp_path / "digits" / part / str(y)
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(x * 15).save(folder / f"{i}.png")
    run = str(tmp_path / "run")
    said = told(["train", "digits_cnn.onnx", "--data", str(tmp_path / "digits"), "--epochs", "4", "--micro-batch-size",
                 "16", "--learning-rate",
                 "3e-3", "--augment", "crop", "--out", run], capsys)
    assert f"tileflow infer {run}/model.onnx --data {tmp_path / 'digits'}" in said
    said = told(["infer", f"{run}/model.onnx", "--data", str(tmp_path / "digits"), "--out", str(tmp_path / "p.npz")],
                capsys)
    assert float(said.partition("accuracy ")[2].partition("%")[0]) > 80
    assert "classes" not in told(["inspect", f"{run}/model.onnx"], capsys)                 # numbers are their own names


def test_texts_as_tokens_with_padding(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Which of two words a text has more of; 0 is padding, which a mask leaves out of the mean. Classes have names."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 13, 200)
    tokens = np.where(np.arange(12) < lengths[:, None], rng.integers(1, 6, (200, 12)), 0)
    labels = np.where((tokens == 1).sum(1) > (tokens == 2).sum(1), "ham", "egg")
    np.savez(tmp_path / "texts.npz", tokens_train=tokens[:160], label_train=labels[:160], tokens_test=tokens[160:],
             label_test=labels[160:])
    weights = {"table": rng.standard_normal((6, 4)).astype(np.float32), "zero": np.array(0, np.int64),
               "w": rng.standard_normal((4, 2)).astype(np.float32), "b": np.zeros(2, np.float32),
               "last": np.array([2], np.int64),
               "one": np.array([1], np.int64)}
    nodes = [node("Gather", ["table", "tokens"], ["e"]), node("Equal", ["tokens", "zero"], ["pad"]),
             node("Not", ["pad"], ["kept"]),
             node("Cast", ["kept"], ["m"], to=1), node("Unsqueeze", ["m", "last"], ["mask"]),
             node("Mul", ["e", "mask"], ["shown"]),
             node("ReduceSum", ["shown", "one"], ["sum"], keepdims=0),
             node("ReduceSum", ["mask", "one"], ["count"], keepdims=0),
             node("Div", ["sum", "count"], ["mean"]), node("Gemm", ["mean", "w", "b"], ["scores"])]
    made = model_of(nodes, [port("tokens", ["N", "T"], "int64")], ["scores"], weights)
    (tmp_path / "text.onnx").write_bytes(made.SerializeToString())
    run = str(tmp_path / "run")
    told(["train", str(tmp_path / "text.onnx"), "--data", str(tmp_path / "texts.npz"), "--epochs", "25",
          "--micro-batch-size", "16",
          "--learning-rate", "0.1", "--class-weights", "balanced", "--metrics", "f1", "--out", run], capsys)
    said = told(["infer", f"{run}/model.onnx", "--data", str(tmp_path / "texts.npz"), "--out", str(tmp_path / "p.npz")],
                capsys)
    assert float(said.partition("accuracy ")[2].partition("%")[0]) > 80
    with np.load(tmp_path / "p.npz") as found:
        assert set(found["predicted_class"]) == {"egg", "ham"}
        assert np.mean(found["predicted_class"] == labels[160:]) > 0.8
