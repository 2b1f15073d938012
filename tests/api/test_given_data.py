"""Data that `train` is given as objects: what is measured after each epoch in any form, rows in lists, and data that end where they end."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peers import needs

import tileflow
from tileflow import nn
from tileflow.callbacks import Callback
from tileflow.options.options import MEASURED_TWICE
from tileflow.system.errors import DataError, OptionError

X, Y = np.random.default_rng(0).normal(size=(23, 4)).astype(np.float32), np.arange(23) % 3


class Rows:
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return X[i], Y[i]


def rows() -> Iterator[tuple[np.ndarray, int]]:
    yield from zip(X, Y, strict=True)


def torch_loader() -> Any:
    return needs("torch").utils.data.DataLoader(Rows(), batch_size=6)


FORMS: dict[str, Callable[[], Any]] = {
    "tuple": lambda: (X, Y), "dict": lambda: {"y": Y, "x": X}, "dataset": lambda: tileflow.Dataset.of({"x": X}, Y), "rows": Rows,
    "dict rows": lambda: [{"y": y, "x": x} for x, y in zip(X, Y, strict=True)], "loader": torch_loader, "function": lambda: rows,
}


def train(out: Path, **more: Any) -> tileflow.TrainResult:
    net = nn.Sequential(nn.Linear(4, 3))
    for i, p in enumerate(net.parameters()):
        p.data = np.random.default_rng(i).normal(size=p.shape).astype(np.float32)
    settings = {"data": (X, Y), "loss": "cross_entropy", "epochs": 2, "micro_batch_size": 5, "shuffle": False} | more
    return tileflow.train(net, out=out, **settings)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("threads", [1, 3])
def test_test_data_as_objects(tmp_path, form, threads):
    """Every row counts, 23 in micro-batches of 5, whoever gives them; a file says the same."""
    np.savez(tmp_path / "test.npz", x=X, y=Y)
    expected = train(tmp_path / "a", test_data=str(tmp_path / "test.npz"), metrics="accuracy,f1", threads=threads).history
    found = train(tmp_path / "b", test_data=FORMS[form](), metrics="accuracy,f1", threads=threads).history
    assert np.isfinite(expected["test_loss"]).all()
    for name in ("test_loss", "test_accuracy", "test_f1"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)


def test_a_generator_to_measure_with(tmp_path):
    """It has one epoch."""
    assert np.isfinite(train(tmp_path / "a", test_data=rows(), epochs=1).history["test_loss"]).all()
    with pytest.raises(DataError, match=r"The data are a generator, which can be gone through once, and are read a second time; give a function"):
        train(tmp_path / "b", test_data=rows())


def test_test_data_exclude_a_split(tmp_path):
    with pytest.raises(OptionError) as caught:
        train(tmp_path, test_data=(X, Y), validation_split=0.5)
    assert str(caught.value) == MEASURED_TWICE


def test_objects_go_before_the_options(tmp_path):
    """A path that the options name is not read, and not recorded as what this run measured with."""
    options = tileflow.Options(test_data="nowhere.npz")
    assert np.isfinite(train(tmp_path, options=options, test_data=(X, Y)).history["test_loss"]).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("more", [{}, {"device_iterations": 2}, {"gradient_accumulation": 2, "device_iterations": 2}])
def test_no_row_is_lost_at_the_end(tmp_path, form, more):
    """Data of unknown length that ended in the middle of a call lost the rows that filled none, with drop_last off as well."""
    expected = train(tmp_path / "a", drop_last=False, **more)
    found = train(tmp_path / "b", data=FORMS[form](), drop_last=False, **more)
    early = train(tmp_path / "c", data=FORMS[form](), drop_last=False, max_batches=40, **more)          # more than there are
    for result in (found, early):
        assert len(result.learning_rates) == len(expected.learning_rates)
        assert result.history["loss"].tolist() == expected.history["loss"].tolist()
        assert all(np.array_equal(w, expected.weights[name]) for name, w in result.weights.items())


def test_data_end_where_they_end(tmp_path):
    """Nobody need say how many rows there are: a generator has one epoch, and a bar that knows no end."""
    class Batches(Callback):
        def on_epoch_begin(self, epoch: int, logs: Any) -> None:
            seen.append(self.run.batches)
    seen: list[int | None] = []
    once = train(tmp_path / "a", data=rows(), epochs=1, drop_last=False, callbacks=Batches())
    assert len(once.learning_rates) == 5
    with pytest.warns(tileflow.TileflowWarning, match=r"^Data function do not say how many rows they have: an epoch ends where they end"):
        train(tmp_path / "said", data=rows, drop_last=False)
    assert seen == [None]
    assert len(train(tmp_path / "b", data=rows, epochs=2, drop_last=False).learning_rates) == 10
    assert len(train(tmp_path / "c", data=rows, epochs=2, max_batches=3).learning_rates) == 6
    with pytest.raises(OptionError, match=r"^Schedule cosine is to last as .* neither .* nor data without a length say .*max_batches"):
        train(tmp_path / "d", data=rows, schedule="cosine")
    assert len(train(tmp_path / "e", data=rows, max_batches=4, schedule="cosine").learning_rates) == 8


def test_an_interrupted_stream_of_unknown_length_goes_on(tmp_path):
    whole = train(tmp_path / "a", data=rows, drop_last=False, epochs=4)
    train(tmp_path / "b", data=rows, drop_last=False, epochs=2)
    rest = train(tmp_path / "b", data=rows, drop_last=False, epochs=4, resume=True)
    assert all(np.array_equal(w, whole.weights[name]) for name, w in rest.weights.items())
