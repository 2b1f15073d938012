"""Which loss `auto` takes and why; labels as strings, one-hot, tokens; ranges checked for every loss before anything is trained."""
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
from tileflow.importers.onnx import wrap_model
from tileflow.options.options import Options
from tileflow.runtime.data import Dataset, open_data
from tileflow.system.errors import DataError, OptionError

rng = np.random.default_rng(8)
X = rng.standard_normal((48, 4)).astype(np.float32)
COUNTS, BITS, CLASSES = rng.integers(1, 30, 48), rng.integers(0, 2, 48), rng.integers(0, 3, 48)


def net(outputs: int, end: str | None = None, **attributes: Any) -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            nn.manual_seed(2)
            self.linear = nn.Linear(4, outputs)

        def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
            x = self.linear(x)
            return x if end is None else x.apply(end, **attributes)
    return Net()


def train(folder: Path, model: Any, y: Any, x: np.ndarray = X, **options: Any) -> tuple[Any, list[str]]:
    said = Said()
    result = tileflow.train(model, data=(x, y), micro_batch_size=8, out=str(folder), callbacks=[said], **options)
    return result, said.sentences


ONE_HOT = np.eye(3, dtype=np.float32)[CLASSES]
DECIDED = [
    ("counts on one column", 1, None, COUNTS, "mse", "the model gives one number per row and the labels are whole numbers from 1 to 29"),
    ("counts as floats", 1, None, COUNTS.astype(np.float32)[:, None], "mse", "whole numbers from 1 to 29"),
    ("numbers", 1, None, X[:, 0], "mse", "the labels are numbers from -"),
    ("numbers beside numbers", 3, None, X[:, :3], "mse", "the model gives [3] numbers per row"),
    ("classes", 3, None, CLASSES, "cross_entropy", "the labels are whole numbers from 0 to 2 and the model gives 3 scores for each"),
    ("classes as floats", 3, None, CLASSES.astype(np.float64)[:, None], "cross_entropy", "whole numbers from 0 to 2"),
    ("classes, softmax", 3, "Softmax", CLASSES, "cross_entropy", "the model ends in Softmax"),
    ("classes, log softmax", 3, "LogSoftmax", CLASSES, "cross_entropy", "the model ends in LogSoftmax"),
    ("one-hot", 3, None, ONE_HOT, "cross_entropy", "the labels are one-hot, one of 3 classes each"),
    ("one-hot, softmax", 3, "Softmax", ONE_HOT, "cross_entropy", "one-hot, one of 3 classes each, and the model ends in Softmax"),
    ("one-hot integers", 3, None, ONE_HOT.astype(np.int64), "cross_entropy", "one-hot"),
    ("one-hot, sigmoid", 3, "Sigmoid", ONE_HOT, "bce", "the model ends in Sigmoid and the labels are 0 and 1 only"),
    ("bits, sigmoid", 1, "Sigmoid", BITS, "bce", "the model ends in Sigmoid and the labels are 0 and 1 only"),
    ("two strings", 1, None, np.array(["no", "yes"])[BITS], "bce_with_logits", "of which yes counts as yes"),
    ("two strings, sigmoid", 1, "Sigmoid", np.array(["no", "yes"])[BITS], "bce", "ends in Sigmoid"),
    ("strings", 3, None, np.array(["iris", "lily", "rose"])[CLASSES], "cross_entropy", "strings, 3 different ones"),
]


@pytest.mark.parametrize(("outputs", "end", "y", "loss", "reason"), [c[1:] for c in DECIDED], ids=[c[0] for c in DECIDED])
def test_the_loss_is_decided_by_output_and_labels(outputs: int, end: str | None, y: np.ndarray, loss: str, reason: str, tmp_path: Path):
    result, said = train(tmp_path, net(outputs, end), y, epochs=2)
    assert result.loss == loss
    assert reason in result.loss_reason
    assert said[0] == f"Loss {loss}: {result.loss_reason}."
    told = json.loads((tmp_path / "metrics.json").read_text())["loss"]
    assert (told["name"], told["reason"]) == (loss, result.loss_reason)
    assert (result.history["accuracy"][-1] >= 0) == (loss != "mse")
    assert result.history["loss"][-1] < result.history["loss"][0]


def test_the_same_labels_in_other_forms_train_alike(tmp_path: Path):
    forms = [CLASSES, CLASSES.astype(np.float64), ONE_HOT, np.array(["a", "b", "c"])[CLASSES]]
    found = [train(tmp_path / str(i), net(3), y)[0].weights["linear.weight"].tobytes() for i, y in enumerate(forms)]
    assert len(set(found)) == 1


DOUBTFUL = [
    ("bits on one column", 1, None, BITS, "may be yes and no or numbers. Choose it with --loss: bce_with_logits for yes or no or mse for numbers"),
    ("several bits", 3, None, X[:, :3] > 0, "bce_with_logits for yes or no or mse"),
    ("shares, sigmoid", 1, "Sigmoid", np.linspace(0, 1, 48), "whose outputs lie between 0 and 1.*bce for yes or no or mse"),
    ("counts, sigmoid", 1, "Sigmoid", COUNTS, "the labels are whole numbers from 1 to 29.*mse for numbers.* or l1"),
    ("classes, sigmoid", 3, "Sigmoid", CLASSES, "yes or no for each of 3 columns.*cross_entropy.*or give one-hot labels for bce"),
    ("numbers, softmax", 3, "Softmax", X[:, :3], "the labels have the output's shape but are not one-hot"),
]


@pytest.mark.parametrize(("outputs", "end", "y", "message"), [c[1:] for c in DOUBTFUL], ids=[c[0] for c in DOUBTFUL])
def test_a_doubt_is_asked_about(outputs: int, end: str | None, y: np.ndarray, message: str, tmp_path: Path):
    with pytest.raises(OptionError, match=f"The loss cannot be decided: .*{message}"):
        train(tmp_path, net(outputs, end), y)


REFUSED = [
    ("class 3 of 3", 3, None, np.where(np.arange(48) == 40, 3, CLASSES), {}, r"label 3 of row 40 is outside of the model's classes 0\.\.2"),
    ("from 1", 3, None, CLASSES + 1, {}, r"numbered from 0 and these labels from 1: subtract 1"),
    ("ignored ones", 3, None, np.where(np.arange(48) == 5, -100, CLASSES), {}, r"label -100 of row 5 .* left out, set ignore_index to -100"),
    ("numbers for classes", 3, None, X[:, 0], {}, r"must be class numbers; give whole numbers, or labels of shape \[3\] per row for mse"),
    ("numbers for cross entropy", 3, None, X[:, 0], {"loss": "cross_entropy"}, "are whole; for numbers to be predicted choose --loss mse"),
    ("too many strings", 1, None, np.array(list("abc"))[CLASSES], {}, "one number per row tells two apart; for more"),
    ("a string too many", 2, None, np.array(list("abc"))[CLASSES], {}, "different strings: a, b, c"),
    ("nan", 1, None, np.where(np.arange(48) == 7, np.nan, X[:, 0]), {}, "label nan of row 7 is no finite number"),
    ("infinity", 1, None, np.where(np.arange(48) == 7, np.inf, X[:, 0]), {"loss": "l1"}, "label inf of row 7 is no finite number"),
    ("2 for bce", 1, "Sigmoid", np.where(np.arange(48) == 9, 2, BITS), {"loss": "bce"}, r"label 2 of row 9 is outside of 0\.\.1.*--loss mse"),
    ("2 for bce with logits", 1, None, np.where(np.arange(48) == 9, 2, BITS), {"loss": "bce_with_logits"}, r"outside of 0\.\.1"),
    ("other shapes", 3, None, X, {}, r"labels of shape \[4\] per row fit no loss for an output of shape \[3\]"),
]


@pytest.mark.parametrize(("outputs", "end", "y", "options", "message"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_labels_out_of_range_are_refused_before_anything_is_trained(outputs: int, end: str | None, y: np.ndarray, options: dict[str, Any],
                                                                    message: str, tmp_path: Path):
    with pytest.raises(DataError, match=message):
        train(tmp_path / "run", net(outputs, end), y, **options)
    assert not (tmp_path / "run").exists()


def test_the_test_labels_are_checked_and_numbered_as_those_of_the_training(tmp_path: Path):
    names = np.array(["ant", "bee", "cow"])
    result, _ = train(tmp_path / "a", net(3), names[CLASSES])
    other = names[CLASSES[:10] % 2 + 1]                                      # no ant: numbers of its own would be shifted
    shifted = result.evaluate((X[:10], other))
    right, _ = train(tmp_path / "b", net(3), CLASSES)
    assert shifted == right.evaluate((X[:10], CLASSES[:10] % 2 + 1))
    with pytest.raises(DataError, match="labels that the training data do not have: 'dog'; those have 'ant', 'bee', 'cow'"):
        result.evaluate((X[:2], np.array(["ant", "dog"])))
    with pytest.raises(DataError, match="labels of data in memory are numbers, those of the training data strings"):
        result.evaluate((X[:2], CLASSES[:2]))
    with pytest.raises(DataError, match="label 3 of row 1 is outside"):
        right.evaluate((X[:2], np.array([0, 3])))


def test_test_labels_may_be_one_hot_along_more_axes(tmp_path: Path):
    """A few rows of tokens that are all different have one 1 along both axes."""
    tokens = rng.integers(0, 5, (32, 5))
    result, _ = train(tmp_path, language_model(5), np.eye(5)[tokens], tokens, dims={"T": 5})
    some = np.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
    assert result.evaluate((some, np.eye(5)[some])) == result.evaluate((some, some))
    with pytest.raises(DataError, match="not one-hot as those of the training data are"):
        result.evaluate((some, np.zeros((2, 5, 5))))


def test_string_labels_are_numbered_in_their_order(tmp_path: Path):
    y = np.array([["b"], ["a"], ["ü"], ["B"]])
    for given in (y, y.astype(object), np.char.encode(y, "utf-8")):
        data = Dataset.of({"x": X[:4]}, given)
        assert data.classes == ("B", "a", "b", "ü")
        assert data.labels is not None
        assert data.labels.tolist() == [[2], [1], [3], [0]]
    assert Dataset.of({"x": X[:4]}, [1, 2, 3, 4]).classes is None
    written = Dataset.of({"x": X[:4]}, np.array(["10", "2", "-1", "2"]))          # not in the order of texts
    assert written.classes is None
    assert written.labels is not None
    assert written.labels.tolist() == [10, 2, -1, 2]
    assert Dataset.of({"x": X[:4]}, np.array(["10", "2", "x", "2"])).classes == ("10", "2", "x")
    np.savez(tmp_path / "d.npz", x=X[:4], y=y)
    assert open_data(tmp_path / "d.npz").train.classes == ("B", "a", "b", "ü")


@pytest.mark.parametrize(("text", "options", "columns", "labels"), [
    ("a,b,kind\n1,2,oak\n3,4,fir\n", {}, ("a", "b"), ["oak", "fir"]),
    ("1,2,oak\n3,4,fir\n", {}, ("0", "1"), ["oak", "fir"]),                              # no header: the first row counts
    ("0,1,kind\n1,2,oak\n3,4,fir\n", {}, ("0", "1"), ["oak", "fir"]),                   # columns with numbers for names
    ("0,1,2\n1,2,8\n3,4,9\n", {}, ("0", "1"), [8, 9]),                              # as pandas names columns that have no names
    ("0,1\n2,3\n", {}, ("0",), [1, 3]),
    ("kind;a\n oak;1\n'fir;2\n", {"label": "kind"}, ("a",), ["oak", "'fir"]),
    ("a,kind\n1,7\n2,8\n", {}, ("a",), [7, 8]),
    ("1,oak\n2,7\n", {}, ("1",), [7]),                                                 # a name above a number
])
def test_labels_in_tables_may_be_words(tmp_path: Path, text: str, options: dict[str, Any], columns: tuple[str, ...], labels: list[Any]):
    path = tmp_path / "t.csv"
    path.write_text(text)
    data = open_data(path, Options(**options)).train
    assert data.labels is not None
    assert data.columns == columns
    assert ([data.classes[i] for i in data.labels] if data.classes else data.labels.tolist()) == labels
    assert np.isfinite(data.inputs["x"]).all()


@pytest.mark.parametrize("text", ["a,b\n1,oak\n2,3\n", "a,b\n1,oak\n2,\n", "a,b\noak,1\n2,fir\n", "1,oak\nfir,oak\n", "1,2,oak\n3,oak\n"])
def test_words_among_numbers_are_refused(tmp_path: Path, text: str):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=r"is not a number|has 2 cells"):
        open_data(path)


def test_a_table_with_words_trains(tmp_path: Path):
    names = np.array(["fir", "elm", "oak"])[CLASSES]
    path = tmp_path / "t.csv"
    path.write_text("".join(",".join(map(str, row)) + f",{name}\n" for row, name in zip(X, names, strict=True)))
    result = tileflow.train(net(3), data=path, micro_batch_size=8, out=str(tmp_path / "run"))
    assert result.loss_reason.startswith("the labels are strings, 3 different ones")
    assert result.epochs[0].samples == 48


def test_soft_targets_have_no_accuracy(tmp_path: Path):
    result, said = train(tmp_path, net(1, "Sigmoid"), np.linspace(0, 1, 48), loss="bce", validation_split=0.2)
    assert "computed from the scores before the Sigmoid" in said[0]
    assert np.isnan(result.history["accuracy"]).all()
    assert np.isfinite(result.history["test_loss"]).all()


# ---- tokens

def language_model(vocabulary: int, first: bool = False, end: str | None = None) -> Any:
    """tokens [N, T] -> scores [N, T, C], or [N, C, T]: an embedding, a layer, a head."""
    r = np.random.default_rng(3)
    sizes = {"table": (vocabulary, 6), "w1": (6, 8), "b1": (8,), "w2": (8, vocabulary)}
    weights = {n: r.standard_normal(s) for n, s in sizes.items()}
    nodes = [node("Gather", ["table", "tokens"], ["e"], "embed"), node("MatMul", ["e", "w1"], ["m"], "hidden"),
             node("Add", ["m", "b1"], ["a"], "bias"), node("Tanh", ["a"], ["t"], "tanh"), node("MatMul", ["t", "w2"], ["last"], "head")]
    if first:
        nodes.append(node("Transpose", ["last"], ["turned"], "turn", perm=[0, 2, 1]))
    if end:
        nodes.append(node(end, [nodes[-1].output[0]], ["ended"], "end", axis=1 if first else -1))
    shape = ["N", vocabulary, "T"] if first else ["N", "T", vocabulary]
    return wrap_model(model_of(nodes, [port("tokens", ["N", "T"], np.int64)], [port(nodes[-1].output[0], shape)],
                               {n: w.astype(np.float32) for n, w in weights.items()}))


@pytest.mark.parametrize("end", [None, "Softmax", "LogSoftmax"])
@pytest.mark.parametrize("length", [5, 9])
def test_an_exported_language_model_trains_as_it_is(length: int, end: str | None, tmp_path: Path):
    """Scores [N, T, C] and [N, C, T] give the same updates; where T is C the softmax says which axis it is, or the option does."""
    tokens = rng.integers(0, 9, (32, length))
    following = np.roll(tokens, -1, axis=1)
    following[:, -1] = -100
    found = []
    for first in (False, True):
        options: dict[str, Any] = {"dims": {"T": length}, "ignore_index": -100, "epochs": 3, "learning_rate": 0.05, "precision": "float64",
                                   "metrics": ("perplexity",), "validation_split": 0.25}
        if length == 9 and end is None:
            with pytest.raises(OptionError, match="set class_axis"):
                train(tmp_path / "asked", language_model(9, first, end), following, tokens, **options)
            options["class_axis"] = 1 if first else -1
        result, _ = train(tmp_path / f"{first}", language_model(9, first, end), following, tokens, **options)
        assert result.loss == "cross_entropy"
        assert result.history["test_perplexity"][-1] == pytest.approx(np.exp(result.history["test_loss"][-1]), rel=1e-6)
        found.append(result)
    for name, weight in found[0].weights.items():
        np.testing.assert_allclose(found[1].weights[name], weight, rtol=1e-12, atol=1e-14)
    assert found[0].history["loss"][-1] < found[0].history["loss"][0]
    assert found[0].history["test_accuracy"].tolist() == found[1].history["test_accuracy"].tolist()


def test_one_hot_tokens(tmp_path: Path):
    """Their own axis of ones says where the classes are, also where two axes are of one size."""
    tokens = rng.integers(0, 5, (32, 5))
    result, _ = train(tmp_path / "a", language_model(5), np.eye(5)[tokens], tokens, dims={"T": 5})
    other, _ = train(tmp_path / "b", language_model(5), tokens, tokens, dims={"T": 5}, class_axis=-1)
    assert {n: w.tobytes() for n, w in result.weights.items()} == {n: w.tobytes() for n, w in other.weights.items()}


# ---- tileflow infer

def exported(path: Path, outputs: int, end: str | None = None) -> Path:
    nodes = [node("MatMul", ["x", "w"], ["m"], "fc"), *([node(end, ["m"], ["y"], "end")] if end else [])]
    weight = np.random.default_rng(1).standard_normal((4, outputs)).astype(np.float32)
    onnx.save(model_of(nodes, [port("x", ["N", 4])], [port(nodes[-1].output[0], ["N", outputs])], {"w": weight}), path)
    return path


@pytest.mark.parametrize(("outputs", "end", "y", "flags", "says"), [
    (3, None, CLASSES, [], ["accuracy"]),
    (3, "Softmax", ONE_HOT, ["--metrics", "auc,top2"], ["auc", "top2", "accuracy"]),
    (1, "Sigmoid", BITS, ["--metrics", "f1"], ["f1", "accuracy"]),
    (1, None, BITS, ["--loss", "bce_with_logits"], ["accuracy"]),
    (1, None, COUNTS, [], ["mae", "rmse", "r2"]),
    (1, None, BITS, [], []),
    (3, None, CLASSES + 5, [], []),
], ids=str)
def test_infer_measures_as_train_does(outputs: int, end: str | None, y: np.ndarray, flags: list[str], says: list[str], tmp_path: Path,
                                      capsys: pytest.CaptureFixture[str]):
    model = exported(tmp_path / "m.onnx", outputs, end)
    np.savez(tmp_path / "d.npz", x=X, y=y)
    words = ["--data", str(tmp_path / "d.npz"), "--out", str(tmp_path / "p.npz"), "--micro-batch-size", "32"]
    assert cli.main(["infer", str(model), *words, *flags]) == 0
    out = capsys.readouterr().out
    shown = {line.split()[0]: line.split()[1] for line in out.splitlines() if line.endswith("of 48 rows")}
    assert list(shown) == says
    if not says:
        assert "Nothing is measured. " in out
        return
    loss = flags[1] if flags[:1] == ["--loss"] else "auto"
    result = tileflow.train(model, data=((X, y), (X, y)), epochs=0, loss=loss, metrics=says[:-1] if "accuracy" in says else says,
                            out=str(tmp_path / "run"))
    for name, value in result.evaluate().items():
        if name in says:
            assert float(shown[name].rstrip("%")) == pytest.approx(value * (100 if name == "accuracy" else 1), abs=6e-3, rel=1e-5)          # type: ignore


def test_infer_refuses_what_was_asked_for_and_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = exported(tmp_path / "m.onnx", 3)
    np.savez(tmp_path / "d.npz", x=X, y=CLASSES)
    words = ["infer", str(model), "--data", str(tmp_path / "d.npz"), "--out", str(tmp_path / "p.npz"), "--metrics"]
    assert cli.main([*words, "rmse"]) == 2
    assert "The metric rmse does not fit the loss cross_entropy; those that do are accuracy" in capsys.readouterr().err


@pytest.mark.parametrize(("outputs", "end", "operator"), [(1, None, "MSELoss"), (1, "Sigmoid", "BCEWithLogitsLoss"),
                                                          (3, "Softmax", "SoftmaxCrossEntropyLoss"), (3, None, "SoftmaxCrossEntropyLoss")])
def test_a_plan_without_labels_has_the_likeliest_loss(outputs: int, end: str | None, operator: str, tmp_path: Path):
    program = tileflow.compile(exported(tmp_path / "m.onnx", outputs, end), training=True).program
    assert program.loss is not None
    assert program.loss.producer is not None
    assert program.loss.producer.op.name == operator
