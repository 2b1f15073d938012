"""Scaling and columns are remembered: the same images give the same numbers from every kind of file, and a trained file knows what it was fed."""
from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from onnx_models import model_of, node, port
from said import Said
from test_data import idx

import tileflow
from tileflow import cli
from tileflow.graph import TensorType
from tileflow.importers.onnx import load_model, wrap_model
from tileflow.runtime.data import Roles, Scaling, Statistics, open_data, open_more
from tileflow.runtime.preprocessing import Preprocessing
from tileflow.system.errors import DataError, ModelError

MODEL = Path(tileflow.__file__).parent / "data" / "digits_cnn.onnx"
OPTIONS: dict[str, Any] = dict(epochs=4, learning_rate=3e-3, micro_batch_size=16)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Byte images 0..240 as IDX files, as tables with the label in front (with and without test rows), and without labels."""
    folder = tmp_path_factory.mktemp("images")
    data = open_data("digits").train
    pixels, labels = data.inputs["x"][:480] * np.uint8(15), np.asarray(data.labels)[:480].astype(np.uint8)
    (folder / "idx").mkdir()
    for part, at in (("train", slice(0, 320)), ("t10k", slice(320, 480))):
        (folder / "idx" / f"{part}-images-idx3-ubyte").write_bytes(idx(pixels[at]))
        (folder / "idx" / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels[at]))
    header = ",".join(["digit", *(f"p{i}" for i in range(64))])
    table = np.column_stack([labels, pixels.reshape(480, 64)])
    for name, rows in (("train", table[:320]), ("test", table[320:])):
        np.savetxt(folder / f"{name}.csv", rows, "%d", ",", header=header, comments="")
    order = [3, *range(3), *range(4, 65)]
    np.savetxt(folder / "other order.csv", table[320:, order], "%d", ",", header=",".join(np.array(header.split(","))[order]), comments="")
    np.savetxt(folder / "unlabelled.csv", table[320:, 1:], "%d", ",", header=header.removeprefix("digit,"), comments="")
    return folder


@pytest.fixture(scope="module")
def trained(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tileflow.TrainResult:
    return tileflow.train(MODEL, data=str(images / "idx"), out=str(tmp_path_factory.mktemp("idx")), **OPTIONS)


def same_weights(one: tileflow.TrainResult, other: tileflow.TrainResult) -> bool:
    return all(np.array_equal(a, other.weights[n]) for n, a in one.weights.items())


def test_a_table_of_images_trains_as_their_file_does(images: Path, trained: tileflow.TrainResult, tmp_path: Path):
    """No 1/255 for the table's numbers: 21 % of the images were right instead of 86 %."""
    table = tileflow.train(MODEL, data=str(images / "train.csv"), test_data=str(images / "test.csv"), label="digit", out=str(tmp_path), **OPTIONS)
    assert same_weights(table, trained)
    assert table.epochs[-1].test_accuracy == trained.epochs[-1].test_accuracy
    assert table.epochs[-1].test_accuracy > 0.7


def test_a_file_from_elsewhere_gets_the_same_from_tables(images: Path):
    """Bytes of images are scaled wherever they come from; the model need not take images."""
    assert np.array_equal(tileflow.infer(MODEL, data=str(images / "idx"))["logits"],
                          tileflow.infer(MODEL, data=str(images / "test.csv"), label="digit")["logits"])
    flat = {"x": TensorType("float32", (4, 64))}
    table = open_data(str(images / "test.csv"), tileflow.Options(label="digit")).train.images_as_bytes(flat)
    assert table.adapt_to(flat).fields["x"].scaling == Scaling(1 / 255)
    few = open_data(str(images / "test.csv"), tileflow.Options(label="digit", inputs=("p3", "p4"))).train
    assert few.images_as_bytes({"x": TensorType("float32", (4, 2))}) is few


def test_tables_are_measured_as_the_images_of_the_training_are(images: Path, trained: tileflow.TrainResult, tmp_path: Path):
    """--test-data as a table, a later evaluation on one; where it has one column too many there is a sentence, not a wrong figure."""
    table = open_data(str(images / "test.csv"), tileflow.Options(label="digit"))
    assert trained.evaluate(table)["accuracy"] == trained.epochs[-1].test_accuracy
    mixed = tileflow.train(MODEL, data=open_data(str(images / "idx")).train, test_data=str(images / "test.csv"), label="digit",
                           out=str(tmp_path), **OPTIONS)
    assert mixed.epochs[-1].test_accuracy == trained.epochs[-1].test_accuracy
    with pytest.raises(DataError, match=r"test\.csv have no labels, which the loss cross_entropy needs; name them with the option label"):
        trained.evaluate(str(images / "test.csv"))


@pytest.mark.parametrize("header", [True, False])
def test_test_data_are_taken_as_the_training_data_were(header: bool, tmp_path: Path):
    """The last column of the test table was its label, and columns counted in its own order."""
    order = [1, 0, 2] if header else [0, 1, 2]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 2)).round(3)
    table = np.column_stack([x, x[:, 0] > x[:, 1]])
    names = np.array(["a", "b", "y"])
    np.savetxt(tmp_path / "train.csv", table, "%g", ",", header=",".join(names), comments="")
    np.savetxt(tmp_path / "test.csv", table[:, order], "%g", ",", header=",".join(names[order]) if header else "", comments="")
    np.savetxt(tmp_path / "moved.csv", table[:, [2, 1, 0]], "%g", ",", header="y,b,a", comments="")
    np.savetxt(tmp_path / "bare.csv", x, "%g", ",", header="a,b", comments="")
    np.savetxt(tmp_path / "renamed.csv", table, "%g", ",", header="a,B,y", comments="")
    options = tileflow.Options()
    first = open_data(str(tmp_path / "train.csv")).train

    def more(name: str) -> Any:
        return open_more(str(tmp_path / name), options, first, Roles()).train
    for name in ("test.csv", "moved.csv"):
        assert np.array_equal(more(name).inputs["x"], x), name
        assert np.array_equal(more(name).labels, table[:, 2]), name
    assert more("bare.csv").labels is None
    assert more("renamed.csv").notes == (f"Table {tmp_path}/renamed.csv has no column b, as the data that the model was trained on had; its columns "
                                         "are taken in order.",)
    assert more("test.csv").notes == ()


def test_the_parts_of_a_file_are_taken_alike():
    """The order of the arrays to measure with is that of those to train with."""
    a, b, y = np.zeros((4, 1)), np.ones((4, 1)), np.arange(4)
    data = open_data({"a_train": a, "b_train": b, "y_train": y, "b_test": b, "y_test": y, "a_test": a})
    assert data.test is not None
    assert list(data.train.inputs) == list(data.test.inputs) == ["a", "b"]


def test_infer_scales_as_the_training_did(images: Path, trained: tileflow.TrainResult):
    """From the file alone: IDX and tables give the same outputs, in any order of columns, with and without labels."""
    path = trained.folder / "model.onnx"
    said: list[str] = []
    expected = tileflow.infer(path, data=str(images / "idx"), say=said.append)["logits"]
    assert said[-1] == "Input image: scale 1/255, as the model was trained."
    for name, label in (("unlabelled.csv", None), ("test.csv", "digit"), ("other order.csv", "digit")):
        got = tileflow.infer(path, data=str(images / name), label=label)["logits"]
        assert np.array_equal(got, expected) == (name != "other order.csv"), name          # columns of images have no names
    table = trained.folder / "from-table"
    again = tileflow.train(MODEL, data=str(images / "train.csv"), label="digit", out=str(table), **OPTIONS)
    assert same_weights(again, trained)
    for name in ("test.csv", "other order.csv", "unlabelled.csv"):
        assert np.array_equal(tileflow.infer(table / "model.onnx", data=str(images / name))["logits"], expected), name


def test_a_trained_file_is_trained_on_as_it_was(images: Path, trained: tileflow.TrainResult, tmp_path: Path):
    said = Said()
    again = tileflow.train(trained.folder / "model.onnx", data=open_data(str(images / "train.csv"), tileflow.Options(label="digit")),
                           out=str(tmp_path), callbacks=[said], **OPTIONS | {"epochs": 0})
    assert again._trainer.train.fields["image"].scaling == Scaling(1 / 255)
    assert "Input image: scale 1/255, as the model was trained." in said.sentences


# ---- a model of two float inputs

def linear() -> ModelProto:
    weights = {"a": np.full((3, 2), 0.5, np.float32), "b": np.full((2, 2), 0.25, np.float32)}
    nodes = [node("MatMul", ["x", "a"], ["u"]), node("MatMul", ["z", "b"], ["v"]), node("Add", ["u", "v"], ["y"])]
    return model_of(nodes, [port("x", ["N", 3]), port("z", ["N", 2])], [port("y", ["N", 2])], weights)


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A trained file, and the data it was trained on."""
    onnx.save(linear(), tmp_path / "m.onnx")
    rng = np.random.default_rng(0)
    data = {"x": rng.uniform(0, 1, (64, 3)).astype(np.float32), "z": rng.uniform(0, 1, (64, 2)).astype(np.float32)}
    tileflow.train(tmp_path / "m.onnx", data=data | {"y": np.zeros((64, 2), np.float32)}, loss="mse", mean=0.1307, std=0.3081, epochs=0,
                   out=str(tmp_path / "run"))
    return tmp_path / "run" / "model.onnx", data


def test_mean_and_std_are_in_the_file(two: tuple[Path, dict[str, np.ndarray]]):
    path, data = two
    known = Preprocessing.of_file(load_model(path))
    assert known.scalings == dict.fromkeys("xz", Scaling(1.0, (0.1307,), (0.3081,)))
    assert known.roles[:2] == (("x", "z"), "y")
    a = (data["x"] - np.float32(0.1307)) / np.float32(0.3081)
    assert known.statistics["x"].mean == pytest.approx(a.mean(dtype=np.float64), rel=1e-6)
    assert (known.statistics["x"].min, known.statistics["x"].max) == (a.min(), a.max())
    b = (data["z"] - np.float32(0.1307)) / np.float32(0.3081)
    by_hand = tileflow.inference_model(path)(a[:16], b[:16])                          # takes arrays as they are
    assert np.array_equal(tileflow.infer(path, data=data)["y"][:16], by_hand)


def test_options_win_over_the_file_aloud(two: tuple[Path, dict[str, np.ndarray]]):
    path, data = two
    said: list[str] = []
    scaled = {n: (a - np.float32(0.1307)) / np.float32(0.3081) for n, a in data.items()}
    raw = tileflow.infer(path, data=scaled, mean=0, std=1, say=said.append)["y"]
    assert np.array_equal(raw, tileflow.infer(path, data=data)["y"])
    assert said == [f"Input {n}: mean 0, std 1 from the options that are given, although the model was trained with mean 0.1307, std 0.3081."
                    for n in "xz"]


def test_data_far_from_the_training_are_reported(two: tuple[Path, dict[str, np.ndarray]]):
    path, data = two
    for wrong in ({n: a * 255 for n, a in data.items()}, {n: a / 255 for n, a in data.items()}, {n: a + 3 for n, a in data.items()}):
        with pytest.warns(UserWarning, match=r"Input [xz]: the data that are fed range from .*; did you forget --scale, --mean or --std\?") as found:
            tileflow.infer(path, data=wrong)
        assert len(found) == 2
    tileflow.infer(path, data={n: a[:1] for n, a in data.items()})                 # a few rows may be as they are
    proto = onnx.load(path)
    for entry in [e for e in proto.metadata_props if e.key.endswith("statistics")]:
        proto.metadata_props.remove(entry)
    tileflow.infer(wrap_model(proto), data={n: a * 255 for n, a in data.items()})      # without statistics nothing is guessed
    assert "metadata" not in str(tileflow.load(path))


def test_the_mean_forgotten():
    """Images scaled to 0..1 that a model takes normalised: the range fits, the spread does not."""
    pixels = np.clip(np.random.default_rng(0).normal(0.13, 0.31, (100, 784)), 0, 1).astype(np.float32)
    normalised = Statistics.of([(pixels - 0.1307) / 0.3081])
    raw = Statistics.of([pixels])
    assert normalised is not None
    assert raw is not None
    assert raw.far_from(normalised)
    assert normalised.far_from(raw)
    half = Statistics.of([(pixels[:50] - 0.1307) / 0.3081])
    assert half is not None
    assert not half.far_from(normalised)


def test_statistics_of_what_is_not_finite_or_not_there():
    assert Statistics.of([np.array([[np.nan, np.inf]])]) is None
    assert Statistics.of([np.zeros((0, 3))]) is None
    assert Statistics.of([np.array([[np.nan, 1.0], [3.0, -np.inf]])]) == Statistics(1.0, 3.0, 2.0, 1.0, 2)


KEY = "tileflow.input.x."


@pytest.mark.parametrize(("key", "text"), [
    (KEY + "scale", "NaN"), (KEY + "scale", "1e999"), (KEY + "scale", "true"), (KEY + "scale", "[1]"), (KEY + "scale", ""), (KEY + "scale", "0x10"),
    (KEY + "scale", "__import__('os')"), (KEY + "scale", "1" * 5000), (KEY + "mean", "0.5"), (KEY + "mean", "[[0.5]]"), (KEY + "mean", '["a"]'),
    (KEY + "mean", "[" * 100_000), (KEY + "std", "[0]"), (KEY + "std", "[1, -1]"), (KEY + "std", "[1e-400]"), (KEY + "statistics", "{}"),
    (KEY + "statistics", '{"min": 1, "max": 0, "mean": 0, "std": 0, "rows": 1}'), (KEY + "statistics", "[1, 2, 3, 4, 5]"),
    (KEY + "statistics", '{"min": 0, "max": Infinity, "mean": 0, "std": 0, "rows": 1}'), ("tileflow.label", "3"), ("tileflow.label", '""'),
    ("tileflow.inputs", '"x"'), ("tileflow.inputs", "[1]"),
    ("tileflow.classes", "[]"), ("tileflow.classes", '["a", "a"]'), ("tileflow.classes", "[1, 2]"), ("tileflow.label", '"' + "a" * (1 << 20) + '"'),
])
def test_metadata_is_parsed_strictly(key: str, text: str):
    proto = linear()
    onnx.helper.set_model_props(proto, {KEY + "scale": "1", key: text})
    with pytest.raises(ModelError, match=r"the metadata entry tileflow\.\S+ is '.*', which is not what it stands for; take the entry out"):
        tileflow.infer(wrap_model(proto), data={"x": np.zeros((4, 3)), "z": np.zeros((4, 2))})


def test_other_metadata_are_kept_and_not_looked_at(tmp_path: Path):
    proto = linear()
    onnx.helper.set_model_props(proto, {"author": "me", "tileflow.input.w.scale": "?", KEY + "scale": "2"})
    onnx.save(proto, tmp_path / "m.onnx")
    data = {"x": np.ones((16, 3), np.float32), "z": np.ones((16, 2), np.float32), "y": np.zeros((16, 2), np.float32)}
    tileflow.train(tmp_path / "m.onnx", data=data, loss="mse", scale=3, epochs=0, out=str(tmp_path / "run"))
    found = {e.key: e.value for e in onnx.load(tmp_path / "run" / "model.onnx").metadata_props}
    assert (found["author"], found[KEY + "scale"], found["tileflow.input.w.scale"]) == ("me", "3.0", "?")


def test_what_does_not_hold_any_more_is_taken_out(two: tuple[Path, dict[str, np.ndarray]], tmp_path: Path):
    """Arrays in a tuple have no names."""
    path, data = two
    tileflow.train(path, data=(*data.values(), np.zeros((64, 2), np.float32)), loss="mse", epochs=0, out=str(tmp_path / "tuple"))
    known = Preprocessing.of_file(load_model(tmp_path / "tuple" / "model.onnx"))
    assert known.scalings == dict.fromkeys("xz", Scaling(1.0, (0.1307,), (0.3081,)))
    assert known.roles[:2] == ((), None)


# ---- names of classes

ANIMALS = np.array(["cat", "dog", "eel"])


def animals(rows: int = 64, seed: int = 0) -> dict[str, np.ndarray]:
    """Numbers that say which animal it is, and its name."""
    which = np.random.default_rng(seed).integers(0, 3, rows)
    return {"x": np.eye(3, dtype=np.float32)[which], "z": np.zeros((rows, 2), np.float32), "y": ANIMALS[which]}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained classifier of animals."""
    folder = tmp_path_factory.mktemp("zoo")
    weights = {"a": np.eye(3, dtype=np.float32), "b": np.ones((2, 3), np.float32)}
    nodes = [node("MatMul", ["x", "a"], ["u"]), node("MatMul", ["z", "b"], ["v"]), node("Add", ["u", "v"], ["y"])]
    onnx.save(model_of(nodes, [port("x", ["N", 3]), port("z", ["N", 2])], [port("y", ["N", 3])], weights), folder / "m.onnx")
    tileflow.train(folder / "m.onnx", data=animals(), out=str(folder / "run"))
    return folder / "run" / "model.onnx"


def test_names_of_classes_are_in_the_file(zoo: Path):
    assert Preprocessing.of_file(load_model(zoo)).classes == tuple(ANIMALS)


def test_inspect_says_what_a_file_was_trained_on(zoo: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["inspect", str(zoo)]) == 0
    assert capsys.readouterr().out.endswith("""
What it was trained on
  Input x was fed with no scaling, 0 to 1 (mean 0.3333, std 0.4714).
  Input z was fed with no scaling, 0 to 0 (mean 0, std 0).
  The labels were called y.
  The classes are cat, dog, eel.
""")
    assert cli.main(["inspect", str(MODEL)]) == 0
    assert "What it was trained on" not in capsys.readouterr().out


@pytest.mark.parametrize(("change", "says"), [
    (lambda y: y, "accuracy 100.00% of"), (lambda y: np.where(y == "cat", "dog", y), "accuracy "),
    (lambda y: np.where(y == "cat", "cow", y), "There is no accuracy: the labels are texts, and some are no classes that the model was trained on."),
])
def test_labels_are_numbered_as_in_training(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                            change: Any, says: str):
    """Data without cats have dogs as their class 0 when looked at alone."""
    monkeypatch.chdir(tmp_path)
    data = animals(seed=1)
    keep = data["y"] != "cat"
    np.savez("dogs.npz", **{n: a[keep] for n, a in data.items()} if "100" in says else data | {"y": change(data["y"])})
    assert cli.main(["infer", str(zoo), "--data", "dogs.npz"]) == 0
    out = capsys.readouterr().out
    assert says in out
    if "100" not in says and "There" not in says:
        assert f"accuracy {np.mean(data['y'] != 'cat'):.2%} of" in out


def test_no_accuracy_is_guessed_where_the_file_has_no_names(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                            capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    np.savez("animals.npz", **animals())
    assert cli.main(["infer", str(zoo.parent.parent / "m.onnx"), "--data", "animals.npz"]) == 0
    assert "There is no accuracy: the labels are texts, and the file does not say which class has which number." in capsys.readouterr().out


def test_training_further_keeps_the_numbers_of_the_classes(zoo: Path, tmp_path: Path):
    data = animals(seed=2)
    keep = data["y"] != "cat"
    said = Said()
    further = tileflow.train(zoo, data={n: a[keep][:32] for n, a in data.items()}, out=str(tmp_path / "0"), epochs=0,
                             callbacks=[said])
    assert further._preprocessing.classes == tuple(ANIMALS)
    assert set(np.unique(further._trainer.train.labels)) == {1, 2}
    others = data | {"y": np.where(data["y"] == "cat", "cow", data["y"])}
    anew = tileflow.train(zoo, data=others, out=str(tmp_path / "1"), epochs=0, callbacks=[said])
    assert anew._preprocessing.classes == ("cow", "dog", "eel")
    assert said.sentences.count("The labels are other classes than those that the model was trained on; they are numbered anew.") == 1


def test_whole_numbers_that_may_be_bytes_are_named(tmp_path: Path):
    """No image comes of the rows, so nothing is guessed; the sentence says what would be done to bytes."""
    onnx.save(linear(), tmp_path / "m.onnx")
    data = {"x": np.full((16, 3), 200), "z": np.ones((16, 2)), "y": np.zeros((16, 2))}
    said = Said()
    with warnings.catch_warnings():
        tileflow.train(tmp_path / "m.onnx", data=data, loss="mse", epochs=0, out=str(tmp_path / "run"),
                       callbacks=[said])
    assert ("Input x: whole numbers from 200 to 200 are fed as they are; if they are the bytes of images, "
            "--scale 0.00392156862745098 brings them to 0..1.") in said.sentences
    assert not [s for s in said.sentences if s.startswith("Input z")]
