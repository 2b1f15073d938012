"""What `train` says to calls as other frameworks take them, and to rows that cannot be fed: the exact sentences."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peers import needs

import tileflow
from tileflow import nn
from tileflow.loss import LOSSES
from tileflow.system.errors import DataError, OptionError, TrainingError

X, Y = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32), np.arange(20) % 3


def train(out: Path, **more: Any) -> tileflow.TrainResult:
    settings = {"data": (X, Y), "loss": "cross_entropy", "epochs": 1, "micro_batch_size": 4} | more
    return tileflow.train(nn.Sequential(nn.Linear(4, 3)), out=out, **settings)


@pytest.mark.parametrize("kind", ["module", "function"])
def test_a_criterion_of_pytorch(tmp_path, kind):
    torch = needs("torch")
    loss, name = (torch.nn.CrossEntropyLoss(), "CrossEntropyLoss") if kind == "module" else (torch.nn.functional.cross_entropy, "cross_entropy")
    says = (f"The loss is PyTorch's {name}, which computes on PyTorch's tensors: give a name ({', '.join(LOSSES)}), a criterion of tileflow.nn, or a "
            "function (builder, outputs) -> loss.")
    with pytest.raises(OptionError) as caught:
        train(tmp_path / "a", loss=loss)
    assert str(caught.value) == says
    with pytest.raises(OptionError) as caught:
        tileflow.training_model(nn.Sequential(nn.Linear(4, 3)), loss=loss)(X[:4], Y[:4])
    assert str(caught.value) == says
    train(tmp_path / "b", loss=nn.CrossEntropyLoss())


@pytest.mark.parametrize("given", [(X, Y), (X,), ((X, Y),), (None, X)])
def test_data_by_place(given):
    with pytest.raises(OptionError) as caught:
        tileflow.train(nn.Sequential(nn.Linear(4, 3)), *given)
    assert str(caught.value) == ("train takes a model and, after it, a tileflow.Options and nothing else: data are given as data=(x, y), single "
                                 "options by keyword.")


def test_options_by_place(tmp_path):
    options = tileflow.Options(loss="cross_entropy", epochs=1, micro_batch_size=4, out=str(tmp_path))
    assert tileflow.train(nn.Sequential(nn.Linear(4, 3)), options, data=(X, Y)).epochs


class Rows:
    def __init__(self, x: Any) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return self.x[i], Y[i]


@pytest.mark.parametrize("form", ["arrays", "rows", "in order"])
@pytest.mark.parametrize("more", [{}, {"gradient_accumulation": 5}, {"device_iterations": 2, "drop_last": False, "threads": 3}])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_which_row_is_no_number(tmp_path, form, more, bad):
    """Also where rows were shuffled, and in the rows at the end; data in order have numbers of their own."""
    x = X.copy()
    x[18 if "drop_last" in more else 7, 2] = bad
    data = {"arrays": (x, Y), "rows": Rows(x), "in order": lambda: zip(x, Y, strict=True)}[form]
    row = 18 if "drop_last" in more else 7
    with pytest.raises(TrainingError) as caught:
        train(tmp_path / "a", data=data, shuffle="drop_last" not in more, **more)
    where = "of epoch 1" if form == "in order" else "of the data"
    assert f"Input x holds {bad} in row {row} {where}: mend that row, or leave it out." in caught.value.__notes__


def test_which_row_of_a_share_is_no_number(tmp_path):
    """Rows that were kept apart do not shift the numbers."""
    x = np.full((20, 4), np.nan, np.float32)
    with pytest.raises(TrainingError) as caught:
        train(tmp_path, data=(x, Y), validation_split=0.5)
    note = next(n for n in caught.value.__notes__ if n.startswith("Input "))
    kept = tileflow.runtime.data.open_data((x, Y), tileflow.Options(validation_split=0.5)).train.rows
    assert int(note.split(" in row ")[1].split()[0]) in kept.tolist()


def test_a_loss_that_is_no_number_by_itself(tmp_path):
    """Inputs are not blamed for what they do not hold."""
    with pytest.raises(TrainingError) as caught:
        train(tmp_path, data=(X * 1e30, Y), learning_rate=1e30)
    assert not any(note.startswith("Input ") for note in caught.value.__notes__)


def test_a_trained_model_without_labels(tmp_path):
    result = train(tmp_path)
    with pytest.raises(DataError) as caught:
        result.model(X[:4])
    assert str(caught.value) == ("The loss cross_entropy needs labels after the model's inputs: call model(x, labels); where forward() computes its "
                                 "loss itself, set loss='identity'; outputs alone are what tileflow.inference_model gives.")
    assert len(result.model(X[:4], Y[:4])) == 2


def test_rows_of_different_lengths(tmp_path):
    ragged = [np.ones(4, np.float32)] * 3 + [np.ones(5, np.float32)] * 17
    with pytest.raises(DataError) as caught:
        train(tmp_path / "a", data=(ragged, Y))
    assert str(caught.value) == "Input x of data in memory has rows of different shapes: row 0 has [4], row 3 has [5]. Pad them to one."
    with pytest.raises(DataError) as caught:
        train(tmp_path / "b", data=Rows(ragged), shuffle=False)
    assert str(caught.value) == ("Part number 0 of the data set's rows has shape [5] in one row and [4] in another (rows 3 and 0 of a batch); rows "
                                 "of a batch must be alike: pad them in the data set, or give a collate_fn that does; where each is "
                                 "a micro-batch of its own, as a graph is, set whole_elements.")
    assert train(tmp_path / "c", data=(list(X), Y)).epochs
