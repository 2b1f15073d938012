"""Columns of texts as categories, in tables of text and of Arrow; what a trained file keeps of them."""
from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import model_of, node, port
from peers import needs

import tileflow
from tileflow import cli
from tileflow.importers.onnx import load_model
from tileflow.options.options import Options
from tileflow.runtime.data import open_data
from tileflow.runtime.data import table as tables
from tileflow.runtime.preprocessing import Preprocessing
from tileflow.system.errors import DataError, ModelError

COLOURS, TOWNS = ("blue", "green", "red"), ("Bad, Tölz", "Ulm")
ROWS = [(i / 7, COLOURS[i % 3], (*TOWNS, "")[i // 3 % 3], "warm" if i % 3 == 2 else "cold") for i in range(36)]


def table(path: Path, rows: Any = ROWS, delimiter: str = ",") -> str:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([("size", "colour", "town", "kind"), *rows])
    return str(path)


def model(path: Path) -> str:
    """A model with an input for each column: a number and two categories, of which one row of each table is for 0."""
    rng = np.random.default_rng(2)
    weights = {"e": rng.standard_normal((4, 3)).astype(np.float32), "f": rng.standard_normal((3, 2)).astype(np.float32),
               "s": np.array([-1, 1], np.int64), "w": rng.standard_normal((6, 2)).astype(np.float32),
               "b": np.zeros(2, np.float32)}
    nodes = [node("Gather", ["e", "colour"], ["c"]), node("Gather", ["f", "town"], ["t"]),
             node("Reshape", ["size", "s"], ["z"]),
             node("Concat", ["z", "c", "t"], ["a"], axis=1), node("Gemm", ["a", "w", "b"], ["scores"])]
    made = model_of(nodes, [port("size", ["N"]), port("colour", ["N"], "int64"), port("town", ["N"], "int64")],
                    ["scores"], weights)
    path.write_bytes(made.SerializeToString())
    return str(path)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_texts_are_numbered_from_one_in_their_order(tmp_path: Path, delimiter: str):
    for named in (("colour", "town"), ("*",)):
        data = open_data(table(tmp_path / "t.csv", delimiter=delimiter), Options(categories=named)).train
        assert data.categories == {"colour": COLOURS, "town": TOWNS}
        x = data.inputs["x"]
        np.testing.assert_allclose(x[:, 0], [r[0] for r in ROWS])
        assert x[:, 1].tolist() == [1 + COLOURS.index(r[1]) for r in ROWS]
        assert x[:, 2].tolist() == [1 + TOWNS.index(r[2]) if r[2] else 0 for r in ROWS]
        assert data.classes == ("cold", "warm")
    numbers = open_data(table(tmp_path / "n.csv", [(1, 10, 5, 0), (2, 9, 7, 1)]),
                        Options(categories="colour")).train        # numbers are texts, too
    assert numbers.categories == {"colour": ("10", "9")}
    assert numbers.inputs["x"].tolist() == [[1, 1, 5], [2, 2, 7]]
    with pytest.raises(DataError, match=r"line 2, column colour: 'blue' is not a number; .* name it with the option "
                                        r"categories"):
        open_data(table(tmp_path / "t.csv"), Options(categories="town"))


def test_a_walk_with_commands_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Train on a table with texts and weights; the file knows the texts, and what it does not know is 0."""
    rows = [(*r, 1 + i % 2) for i, r in enumerate(ROWS)]
    path = tmp_path / "t.csv"
    lines = "".join(f'{a},{b},"{c}",{d},{w}\n' for a, b, c, d, w in rows)
    path.write_text("size,colour,town,kind,sample_weight\n" + lines, encoding="utf-8")
    words = ["train", model(tmp_path / "m.onnx"), "--data", str(path), "--categories", "colour,town", "--epochs", "30",
             "--micro-batch-size", "6",
             "--learning-rate", "0.2", "--out", str(tmp_path / "run")]
    assert cli.main(words) == 0
    assert "column 'colour': its 3 different texts are numbered from 1; 0 stands for others" in capsys.readouterr().err
    trained = str(tmp_path / "run" / "model.onnx")
    kept = Preprocessing.of_file(load_model(trained))
    assert dict(kept.roles.categories) == {"colour": COLOURS, "town": TOWNS}
    assert kept.roles.inputs == ("size", "colour", "town")
    assert "Column colour: its texts have the numbers from 1 to 3." in kept.to_text()
    strange = table(tmp_path / "u.csv", [(1.0, "violet", "Ulm", "cold"), *ROWS[1:]])
    assert cli.main(["infer", trained, "--data", strange, "--out", str(tmp_path / "p.npz")]) == 0
    said = capsys.readouterr()
    assert "its texts are numbered as in training; 1 of its 36 cells hold others, or none, and are 0" in said.err
    with np.load(tmp_path / "p.npz") as found:
        assert found["predicted_class"][1:].tolist() == [r[3] for r in ROWS[1:]]
    assert open_data(strange, Options(), kept.roles).train.inputs["x"][0].tolist() == [1.0, 0, 2]
    assert tileflow.train(trained, data=strange, micro_batch_size=6, out=str(tmp_path / "again")).history["loss"][0] < 1


def test_what_is_no_category(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = table(tmp_path / "t.csv")
    with pytest.raises(DataError, match="no column 'shape', which the option categories names; its columns are size, "
                                        "colour"):
        open_data(path, Options(categories="shape"))
    monkeypatch.setattr(tables, "MOST_WORDS", 2)
    with pytest.raises(DataError, match="'colour' has 3 different texts of 12 letters, too many"):
        open_data(path, Options(categories=["colour", "town"]))
    (tmp_path / "h.csv").write_text("a,b,y\n" + "x" * 200_000 + ",1,1\n")
    with pytest.raises(DataError, match=r"h.csv cannot be read: field larger"):
        open_data(str(tmp_path / "h.csv"), Options(categories="a"))


@pytest.mark.parametrize("text", ['{"a": ["x", "x"]}', '{"a": [1]}', '["a"]', '{"a": "x"}', "{"])
def test_metadata_of_categories_are_parsed_strictly(text: str, tmp_path: Path):
    import onnx
    made = onnx.load(model(tmp_path / "m.onnx"))
    made.metadata_props.add(key="tileflow.categories", value=text)
    onnx.save(made, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"metadata entry tileflow.categories is"):
        Preprocessing.of_file(load_model(tmp_path / "m.onnx"))


# ---- Parquet and Arrow

def written(path: Path, columns: dict[str, Any]) -> str:
    arrow = needs("pyarrow")
    needs("pyarrow.parquet")
    made = arrow.table(columns)
    if path.suffix == ".parquet":
        arrow.parquet.write_table(made, path)
    else:
        with arrow.ipc.new_file(path, made.schema) as file:
            file.write_table(made)
    return str(path)


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_arrow_tables_are_what_their_text_is(tmp_path: Path, ending: str):
    """The same dataset, digest included, as the table of text; lists are inputs by name."""
    arrow = needs("pyarrow")
    size, colour, town, kind = zip(*ROWS, strict=True)
    options = Options(categories=("colour", "town"))
    path = written(tmp_path / f"t.{ending}",
                   {"size": size, "colour": arrow.array(colour).dictionary_encode(), "town": [t or None for t in town],
                                              "kind": kind})
    data, text = open_data(path, options).train, open_data(table(tmp_path / "t.csv"), options).train
    np.testing.assert_array_equal(data.inputs["x"], text.inputs["x"])
    assert (data.columns, data.classes, data.categories) == (text.columns, text.classes, text.categories)
    assert data.label_name == "kind"
    assert data.digest() == text.digest()
    with pytest.raises(DataError, match="the column 'colour' holds texts, which are no numbers: name it"):
        open_data(path)
    tokens = np.arange(24).reshape(6, 4)
    lists = open_data(written(tmp_path / f"l.{ending}",
                              {"tokens": tokens.tolist(), "y": ["a", "b"] * 3, "sample_weight": [1.0] * 6,
                                                         "deep": [[[1, 2]] * 3] * 6})).train
    assert lists.classes == ("a", "b")
    assert [*lists.fields, *lists.more] == ["tokens", "deep", "sample_weight"]
    np.testing.assert_array_equal(lists.inputs["tokens"], tokens)
    assert lists.inputs["deep"].shape == (6, 3, 2)
    assert np.isnan(open_data(written(tmp_path / f"n.{ending}", {"a": [1, None], "y": [0, 1]})).train.inputs["x"][1, 0])


def test_arrow_files_that_are_refused(tmp_path: Path):
    path = tmp_path / "t.parquet"
    whole = Path(written(path, {"a": [1.0, 2.0], "y": [0, 1]})).read_bytes()
    for content in (b"", b"no parquet", whole[:40], whole[:-20] + bytes(20)):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"t.parquet cannot be read"):
            open_data(str(path))
    (tmp_path / "t.arrow").write_bytes(whole)
    with pytest.raises(DataError, match=r"t.arrow cannot be read"):
        open_data(str(tmp_path / "t.arrow"))
    for columns, says in (({"a": [[1], [1, 2]], "y": [0, 1]}, "lists of different lengths"),
                          ({"a": [b"x"], "y": [0]}, "Image in row 0 of .*t.parquet cannot be read"),
                          ({"a": [{"b": 1}], "y": [0]}, "is of struct"),
                          ({"a": [[1], None], "y": [0, 1]}, "rows without a list"),
                          ({"a": np.zeros(0), "y": np.zeros(0)}, "no rows")):
        with pytest.raises(DataError, match=says):
            open_data(written(path, columns))


def test_data_sets_of_hugging_face(tmp_path: Path):
    """They are rows by number: nothing of theirs is imported."""
    datasets = needs("datasets")
    rows = datasets.Dataset.from_dict({"x": np.eye(4).tolist(), "label": [0, 1, 0, 1]}).with_format("numpy")
    data = open_data(rows).train
    np.testing.assert_array_equal(data.gather(np.array([2, 1]))[0], np.eye(4)[[2, 1]])
    assert data.label_name == "label"
    parts = open_data(datasets.DatasetDict(train=rows, validation=rows.select([1]))).test
    assert parts is not None
    np.testing.assert_array_equal(parts.gather(np.array([0]))[0], np.eye(4)[[1]])
    image = needs("PIL.Image").fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4))
    images = datasets.Dataset.from_dict({"image": [image], "label": [1]})
    np.testing.assert_array_equal(open_data(images).train.gather(np.array([0]))[0], np.asarray(image)[None, None])
