"""What `train` called from Python says of data and model: a warning for each sentence, and errors for names that do not fit."""
from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from said import Said

import tileflow
from tileflow import cli, nn
from tileflow.system.errors import DataError

IDS = np.random.default_rng(0).integers(0, 7, (8, 5))
MASK = np.ones((8, 5), np.int64)
Y = np.arange(8) % 3


class Tokens(nn.Module):
    """Takes word numbers up to 7; a mask is 0 or 1, so that each in the other's place is another loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, input_ids: nn.Tensor, attention_mask: nn.Tensor | None = None, offsets: nn.Tensor | None = None) -> nn.Tensor:
        rows = self.embedding(input_ids)
        return self.last((rows if attention_mask is None else rows * attention_mask.float().unsqueeze(-1)).sum(1))


def net() -> Tokens:
    made = Tokens()
    for i, p in enumerate(made.parameters()):
        p.data = np.random.default_rng(i).normal(size=p.shape).astype(np.float32)
    return made


class Rows:
    """Rows that are dicts."""

    def __init__(self, **parts: np.ndarray) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        return {name: part[i] for name, part in self.parts.items()}


def trained(tmp_path: Path, data: Any, **more: Any) -> list[float]:
    result = tileflow.train(net(), data=data, loss="cross_entropy", epochs=1, micro_batch_size=4, shuffle=False, seed=0, out=tmp_path / "run", **more)
    return result.history["loss"].tolist()


@pytest.mark.parametrize("form", [dict, Rows])
def test_names_are_matched_in_any_order(tmp_path, form):
    """A mask that came first was embedded as words."""
    right = trained(tmp_path / "a", (IDS, MASK, Y))
    assert trained(tmp_path / "b", form(attention_mask=MASK, input_ids=IDS, y=Y)) == right
    assert trained(tmp_path / "c", form(y=Y, input_ids=IDS, attention_mask=MASK)) == right
    alone = form(input_ids=IDS, y=Y)                                             # what has a default may be left out
    assert trained(tmp_path / "d", alone) == right
    assert trained(tmp_path / "e", form(words=IDS, y=Y)) == right              # a single one is the only input, whatever its name
    chosen = form(b=MASK, a=IDS, y=Y)
    assert trained(tmp_path / "f", chosen, inputs=("a", "b")) == right


@pytest.mark.parametrize("form", [dict, Rows])
@pytest.mark.parametrize(("parts", "says"), [
    ({"mask": MASK, "input_ids": IDS}, "The model has inputs input_ids, attention_mask; data {} have mask, input_ids. "),
    ({"mask": MASK, "words": IDS}, "The model has inputs input_ids, attention_mask; data {} have mask, words. "),
    ({"offsets": MASK, "input_ids": IDS}, "The model has inputs input_ids, attention_mask, offsets; data {} have offsets, input_ids. "),
    ({"input_ids": IDS, "attention_mask": MASK, "offsets": MASK, "group": np.ones(8)},
     "The model has no input for group; it has inputs input_ids, attention_mask, offsets. "),
])
def test_names_that_do_not_fit(tmp_path, form, parts, says):
    with pytest.raises(DataError) as caught:
        trained(tmp_path, form(**parts, y=Y))
    assert str(caught.value) == says.format("in memory" if form is dict else "Rows") + (
        "Leave out what is not fed, or name the arrays or columns to use, in the order of the model's inputs, with the "
        "option inputs. See docs/data-loading.md.")


@pytest.mark.parametrize("names", [("x", "group", "y"), ("group", "x", "y")])
def test_what_has_no_input_of_a_file(tmp_path, names):
    """What is fed to nobody went nowhere, and in a file that was trained before as well."""
    x, y = np.random.default_rng(0).normal(size=(8, 1, 8, 8)).astype(np.float32), np.arange(8) % 10
    parts = {"x": x, "group": np.ones(8), "y": y}
    kept = tileflow.train("digits_cnn.onnx", data={"x": x, "y": y}, epochs=1, micro_batch_size=4, out=tmp_path / "run")
    for model in ("digits_cnn.onnx", kept.folder / "model.onnx"):
        with pytest.raises(DataError, match=r"^The model has inputs image; data in memory have (x, group|group, x)\. "):
            tileflow.train(model, data={name: parts[name] for name in names}, epochs=1, micro_batch_size=4, out=tmp_path / "other")


@pytest.mark.parametrize("callbacks", [(), Said()])
def test_sentences_are_warnings(tmp_path, callbacks, monkeypatch, capsys):
    """Python says what the command says, a sentence once, at the line that called; the command does not say it twice."""
    x, y = np.random.default_rng(0).integers(0, 255, (8, 64)).astype(np.uint8), np.arange(8) % 10
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    path = str(tmp_path / "data.npz")
    settings: dict[str, Any] = {"epochs": 1, "micro_batch_size": 4, "test_data": path}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        tileflow.train("digits_cnn.onnx", data=path, out=tmp_path / "run", callbacks=callbacks, **settings)
    said = [str(w.message) for w in found]
    assert any(s.startswith("Loss cross_entropy: ") for s in said)
    assert any(s.startswith("Input ") and "are reshaped to [1, 8, 8]" in s for s in said)
    assert len(said) == len(set(said))
    assert {w.category for w in found} == {tileflow.TileflowWarning}
    assert {w.filename for w in found} == {__file__}
    if callbacks:
        assert list(dict.fromkeys(callbacks.sentences)) == said
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "digits_cnn.onnx", "--data", path, "--test-data", path, "--epochs", "1", "--micro-batch-size", "4"]) == 0
    printed = capsys.readouterr().err
    assert all(printed.count(sentence) == 1 for sentence in said)


def test_nothing_to_say(tmp_path):
    """Data and model that fit are trained without a word."""
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tileflow.train(nn.Sequential(nn.Linear(4, 3)), data=(x, Y), loss="cross_entropy", epochs=1, micro_batch_size=4, out=tmp_path / "run")
