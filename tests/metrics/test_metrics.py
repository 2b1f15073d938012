"""Metrics over whole sets: scikit-learn's values, ties included, in batches; small cases by hand; what fits which loss."""
from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peers import needs

import tileflow
from tileflow import nn
from tileflow.metrics import METRICS, Collector, Confusion, OutputMeaning, check_names, defaults
from tileflow.options.options import declarations
from tileflow.system.errors import DataError, OptionError

rng = np.random.default_rng(5)
CLASSES, BINARY, NUMBERS = OutputMeaning("classes"), OutputMeaning("binary"), OutputMeaning("numbers")


def measured(name: Any, view: OutputMeaning, output: np.ndarray, labels: np.ndarray, batch: int = 7) -> float | None:
    """A metric taken in batches of which the last is shorter."""
    collector = Collector([name], view, "loss")
    for i in range(0, len(output), batch):
        collector.update(output[i:i + batch], labels[i:i + batch])
    return next(iter(collector.values().values()))


# ---- by hand

@pytest.mark.parametrize(("name", "view", "output", "labels", "expected"), [
    ("accuracy", CLASSES, np.eye(3), np.arange(3), 1.0),
    ("accuracy", CLASSES, np.zeros((4, 2)), np.array([0, 1, 0, 0]), 0.75),                                  # the first of equal values
    ("accuracy", OutputMeaning("classes", ignore_index=9), np.eye(3), np.array([0, 9, 1]), 0.5),
    ("accuracy", OutputMeaning("classes", axis=2), np.array([[[1, 2], [3, 1]]]), np.array([[1, 1]]), 0.5),
    ("accuracy", OutputMeaning("classes", axis=1), np.array([[[1, 2], [3, 1]]]), np.array([[1, 1]]), 0.5),
    ("accuracy", BINARY, np.array([-1.0, 0.0, 2.0]), np.array([0, 0, 1]), 1.0),                             # 0 is no
    ("accuracy", OutputMeaning("binary", "probabilities"), np.array([[0.4], [0.6]]), np.array([[1], [1]]), 0.5),
    ("accuracy", BINARY, np.array([[1.0, -1.0], [1.0, 1.0]]), np.array([[1, 0], [1, 0]]), 0.5),             # a row is right as a whole
    ("top2", CLASSES, np.array([[3.0, 2, 1], [3, 2, 1]]), np.array([1, 2]), 0.5),
    ("top_1", CLASSES, np.zeros((2, 3)), np.array([0, 2]), 0.5),                                            # the last of equal values
    ("f1", BINARY, np.array([1.0, 1, -1, -1]), np.array([1, 0, 1, 0]), 0.5),
    ("auc", BINARY, np.array([1.0, 2, 2, 3]), np.array([0, 0, 1, 1]), 0.875),
    ("auc", BINARY, np.zeros(5), np.array([0, 1, 0, 1, 1]), 0.5),
    ("auc", BINARY, np.arange(3.0), np.ones(3), None),
    ("perplexity", CLASSES, np.zeros((5, 8)), np.arange(5), 8.0),
    ("perplexity", OutputMeaning("classes", "probabilities"), np.array([[0.25, 0.75]] * 2), np.array([0, 0]), 4.0),
    ("mae", NUMBERS, np.array([1.0, 2, 4]), np.array([1.0, 3, 1]), 4 / 3),
    ("rmse", NUMBERS, np.array([1.0, 2]), np.array([2.0, 1]), 1.0),
    ("r2", NUMBERS, np.array([1.0, 2, 3]), np.array([1.0, 2, 3]), 1.0),
    ("r2", NUMBERS, np.array([2.0, 2, 2]), np.array([1.0, 2, 3]), 0.0),
    ("r2", NUMBERS, np.array([5.0, 5.0]), np.array([5.0, 5.0]), 1.0),
    ("r2", NUMBERS, np.array([5.0, 6.0]), np.array([5.0, 5.0]), 0.0),
    ("r2", NUMBERS, np.array([5.0]), np.array([5.0]), None),
])
def test_by_hand(name: str, view: OutputMeaning, output: np.ndarray, labels: np.ndarray, expected: float | None):
    found = measured(name, view, output, labels)
    assert found is None if expected is None else found == pytest.approx(expected, rel=1e-15)


def test_the_spread_of_targets_loses_no_digits():
    """Targets of a million with a spread of one: sums of squares would keep four digits."""
    y = 1e6 + rng.standard_normal(1000)
    p = y + 0.5 * rng.standard_normal(1000)
    wanted = 1 - np.sum((y - p) ** 2) / np.sum((y - y.mean()) ** 2)
    assert measured("r2", NUMBERS, p, y) == pytest.approx(wanted, rel=1e-9)
    assert measured("r2", NUMBERS, p - 1e6, y - 1e6) == pytest.approx(wanted, rel=1e-9)


# ---- scikit-learn

def scores(rows: int, classes: int, tied: bool) -> np.ndarray:
    x = rng.standard_normal((rows, classes))
    return np.round(x) if tied else x


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("classes", [2, 5])
def test_classes_as_in_scikit_learn(classes: int, tied: bool):
    m = needs("sklearn.metrics")
    x, y = scores(203, classes, tied), rng.integers(0, classes, 203)
    p, hard = softmax(x), x.argmax(1)
    wanted = {"accuracy": m.accuracy_score(y, hard), "perplexity": np.exp(m.log_loss(y, p)),
              "auc": m.roc_auc_score(y, p[:, 1]) if classes == 2 else m.roc_auc_score(y, p, multi_class="ovr"),
              "f1": m.f1_score(y, hard, average="binary" if classes == 2 else "macro"),
              "miou": m.jaccard_score(y, hard, average="macro"),
              **{f"f1_{a}": m.f1_score(y, hard, average=a) for a in ("macro", "micro", "weighted")}}
    counts = Confusion(CLASSES)
    for part in (slice(50), slice(50, None)):
        counts.update(x[part], y[part])
    np.testing.assert_array_equal(counts.counts, m.confusion_matrix(y, hard))
    if classes > 2:
        wanted |= {f"top{k}": m.top_k_accuracy_score(y, p, k=k) for k in (1, 2, 4)}
    forms: list[tuple[Any, np.ndarray]] = [("scores", x), ("probabilities", p), ("log_probabilities", np.log(p))]
    for form, values in forms:
        for name, value in wanted.items():
            if (name, form, tied) == ("auc", "log_probabilities", True):
                continue                                                            # log and exp round equal probabilities apart
            found = measured(name, OutputMeaning("classes", form), values, y)
            assert found == pytest.approx(value, rel=1e-12, abs=1e-12), (name, form)


def test_classes_that_do_not_occur_as_in_scikit_learn():
    m = needs("sklearn.metrics")
    x, y = scores(40, 7, False), rng.integers(0, 3, 40)
    x[:, 5:] -= 100
    for average in ("macro", "micro", "weighted"):
        assert measured(f"f1_{average}", CLASSES, x, y) == pytest.approx(m.f1_score(y, x.argmax(1), average=average, zero_division=0), rel=1e-12)
    assert measured("auc", CLASSES, x, y) is None
    assert measured("miou", CLASSES, x, y) == pytest.approx(m.jaccard_score(y, x.argmax(1), average="macro"), rel=1e-12)
    soft = measured("miou", CLASSES, x, np.eye(7)[y])                                 # labels that are probabilities
    assert soft == measured("miou", CLASSES, x, y)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("columns", [1, 4])
def test_columns_as_in_scikit_learn(columns: int, tied: bool):
    m = needs("sklearn.metrics")
    x, y = scores(203, columns, tied), (rng.random((203, columns)) > 0.6).astype(np.float32)
    hard = x > 0
    flat = (lambda a: a[:, 0]) if columns == 1 else (lambda a: a)
    wanted = {"accuracy": m.accuracy_score(flat(y), flat(hard)), "auc": m.roc_auc_score(flat(y), flat(x)),
              "f1": m.f1_score(flat(y), flat(hard), average="binary" if columns == 1 else "macro"),
              "miou": m.jaccard_score(flat(y), flat(hard), average="binary" if columns == 1 else "macro")}
    if columns > 1:
        wanted |= {f"f1_{a}": m.f1_score(y, hard, average=a) for a in ("macro", "micro", "weighted")}
    for name, value in wanted.items():
        assert measured(name, BINARY, x, y) == pytest.approx(value, rel=1e-12, abs=1e-12), name
    if not tied:
        assert measured("accuracy", OutputMeaning("binary", "probabilities"), 1 / (1 + np.exp(-x)),
                        y) == wanted["accuracy"]


@pytest.mark.parametrize("columns", [1, 3])
def test_numbers_as_in_scikit_learn(columns: int):
    m = needs("sklearn.metrics")
    x, y = (rng.standard_normal((203, columns)) * 10 + np.arange(columns) * 100 for _ in range(2))
    if columns > 1:
        y[:, 0] = 4.0
    for name, function in (("mae", m.mean_absolute_error), ("rmse", m.root_mean_squared_error), ("r2", m.r2_score)):
        assert measured(name, NUMBERS, x, y) == pytest.approx(function(y, x), rel=1e-12), name


# ---- names, functions, fit

def test_a_function_sees_everything_once():
    seen: list[tuple[int, ...]] = []

    def worst(outputs: np.ndarray, labels: np.ndarray) -> float:
        seen.append(outputs.shape)
        return float(np.abs(outputs - labels).max())
    x, y = rng.standard_normal((20, 2)), rng.standard_normal((20, 2))
    assert measured(worst, NUMBERS, x, y) == np.abs(x - y).max()
    assert seen == [(20, 2)]
    with pytest.raises(OptionError, match="must return one number"):
        measured(lambda o, y: o, NUMBERS, x, y)


@pytest.mark.parametrize(("names", "view", "message"), [
    (["accuracey"], CLASSES, "no metric 'accuracey'; choose from accuracy, f1"),
    (["mae"], CLASSES, "The metric mae does not fit the loss x; those that do are accuracy, f1"),
    (["top5"], BINARY, "The metric top5 does not fit the loss x"),
    (["f1"], None, r"does not fit the loss x; only functions \(outputs, labels\) do"),
    (["f1", "f1"], CLASSES, "named twice"),
])
def test_metrics_that_do_not_fit(names: Any, view: OutputMeaning | None, message: str):
    with pytest.raises(OptionError, match=message):
        check_names(names, view, "x")


def test_what_cannot_be_measured_is_said():
    with pytest.raises(DataError, match=r"need targets of 0 and 1; there is 0\.5"):
        measured("auc", BINARY, np.zeros(3), np.array([0, 0.5, 1]))
    with pytest.raises(DataError, match="f1_binary is for two classes; there are 3"):
        measured("f1_binary", CLASSES, np.eye(3), np.arange(3))
    assert defaults(NUMBERS) == defaults(None) == ()
    told = set(re.findall(r"\w+", declarations()["metrics"].help))
    assert set(METRICS) - {"f1_binary"} <= told, "the option's help leaves some out"


# ---- in a training

def test_a_training_measures_what_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from tileflow.callbacks import ProgressBar
    x = rng.standard_normal((90, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)

    def share_of_zeros(outputs: np.ndarray, labels: np.ndarray) -> float:
        assert outputs.shape == (35, 3)
        return float(np.mean(labels == 0))
    result = tileflow.train(nn.Sequential(nn.Linear(4, 3)), data=((x, y), (x[:35], y[:35])), epochs=2, micro_batch_size=8, out=str(tmp_path),
                            metrics=("f1", "top2", "auc", share_of_zeros), callbacks=ProgressBar(False))
    p = tileflow.inference_model(result.model.source.net)(x[:35])          # type: ignore[attr-defined]
    found = result.evaluate()
    assert list(found) == ["loss", "accuracy", "f1", "top2", "auc", "share_of_zeros"]
    assert found["accuracy"] == np.mean(p.argmax(1) == y[:35])
    assert result.history["test_share_of_zeros"].tolist() == [np.mean(y[:35] == 0)] * 2
    assert result.history["test_f1"][-1] == found["f1"]
    records = json.loads((tmp_path / "metrics.json").read_text())["epochs"]
    assert records[-1]["test_f1"] == found["f1"]
    assert "test f1 0." in capsys.readouterr().out
    two = tileflow.train(nn.Sequential(nn.Linear(4, 3)), data=((x, y), (x, y)), metrics="f1, top2", epochs=0, out=str(tmp_path / "c"))
    assert list(two.evaluate((x, y))) == ["loss", "accuracy", "f1", "top2"]
    with pytest.raises(OptionError, match="The metric rmse does not fit the loss cross_entropy"):
        tileflow.train(nn.Sequential(nn.Linear(4, 3)), data=(x, y), metrics="rmse", out=str(tmp_path / "b"))
