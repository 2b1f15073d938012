"""Data: every source, what is refused, how rows become what a model takes, and the order of batches."""
from __future__ import annotations

import gzip
import struct
import threading
import time
import zipfile

import numpy as np
import pytest
from onnx_models import model_of, node, port
from peers import needs

import tileflow
from tileflow.feed.ahead import ahead
from tileflow.importers.onnx import wrap_model
from tileflow.kernels.machine import limits as limits_module
from tileflow.memory.types import TensorType
from tileflow.options.options import Options
from tileflow.runtime.data import Data, DataLoader, Dataset, open_data
from tileflow.runtime.data.dataset import permutation
from tileflow.system.errors import DataError, OutOfMemoryError


def rows(n: int, *shape: int) -> np.ndarray:
    return np.arange(n * int(np.prod(shape)), dtype=np.float32).reshape(n, *shape)


def idx(array: np.ndarray) -> bytes:
    code = {"u1": 8, "i4": 12, "f4": 13}[array.dtype.str[1:]]
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, code, array.ndim]) + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


# Sources


def test_arrays_in_memory():
    x, y = rows(6, 2), np.arange(6)
    for spec in [(x, y), {"x": x, "y": y}, {"features": x, "Label": y}, {"x_train": x, "y_train": y}]:
        data = open_data(spec)
        assert data.test is None
        assert len(data.train) == 6
        assert data.train.labels is not None
        assert np.array_equal(data.train.labels, y)
        assert np.array_equal(next(iter(data.train.inputs.values())), x)
    assert open_data(x).train.labels is None
    assert open_data((x, x + 1, y)).train.inputs.keys() == {"x0", "x1"}
    both = open_data(((x, y), (x[:2], y[:2])))
    assert both.test is not None
    assert len(both.test) == 2
    assert open_data(both) is both
    assert isinstance(open_data(both.train), Data)
    parts = open_data({f"{part}_{what}": array[:n] for part, n in (("train", 6), ("val", 1), ("test", 3))
                       for what, array in (("images", x), ("labels", y))})
    assert parts.test is not None
    assert (len(parts.train), len(parts.test)) == (6, 3)
    chosen = open_data({"a": x, "b": x * 2, "t": y}, Options(inputs="b", label="t")).train
    assert list(chosen.inputs) == ["b"]


@pytest.mark.parametrize(("spec", "says"), [
    ((rows(3, 2), np.arange(4)), "unequal numbers of rows: x 3, the labels 4"),
    ((rows(0, 2), np.arange(0)), "no rows"),
    ((), "empty tuple"),
    ({}, "no arrays"),
    ({"y": np.arange(3)}, "no input array"),
    (np.array(["a", "b"]), "element type <U1"),
    (np.array([object()]), "element type object"),
    ([[1], [1, 2]], "cannot be made an array"),
    (3.0, "single number"),
    (np.zeros(3, complex), "complex128"),
    (np.zeros(3, np.longdouble), "64 bits"),
])
def test_bad_arrays(spec, says):
    with pytest.raises(DataError, match=says):
        open_data(spec)


def test_unknown_array_names():
    with pytest.raises(DataError, match="no array 'z'; they have x, y"):
        open_data({"x": rows(2, 1), "y": rows(2)}, Options(label="z"))


def test_npz(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x_train=rows(5, 3), y_train=np.arange(5), x_test=rows(2, 3), y_test=np.arange(2))
    data = open_data(path)
    assert data.test is not None
    assert (len(data.train), len(data.test), list(data.train.inputs)) == (5, 2, ["x"])
    only_test = open_data(str(path), Options(inputs=("x_test",), label="y_test"))
    assert len(only_test.train) == 5


def test_bad_npz(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(b"not a zip")
    with pytest.raises(DataError, match="not a readable"):
        open_data(path)
    np.savez(path, x=np.array([object()], dtype=object))
    with pytest.raises(DataError, match="Python objects"):
        open_data(path)
    np.savez(path, x=rows(100, 10))
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"'shape': (100, 10)", b"'shape': (9**9, 1)"))
    with pytest.raises(DataError, match=r"Array x in .* cannot be read"):
        open_data(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", raw[raw.index(b"\x93NUMPY"):][:128].replace(b"(100, 10), ", b"(1 << 40,),")[:128])
    with pytest.raises(DataError, match="Array x in"):
        open_data(path)


def test_a_claim_of_too_much_memory(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(3_000_000))
    monkeypatch.setattr(limits_module, "memory", lambda: limits_module.Room(148 << 20, "a test"))
    with pytest.raises(OutOfMemoryError, match=r"needs 24 MB of memory, and 21 MB can be had \(a test\); use .npy files"):
        open_data(tmp_path / "a.npz")


def test_npy_files_and_folders(tmp_path):
    np.save(tmp_path / "x.npy", np.asfortranarray(rows(4, 3)))
    np.save(tmp_path / "y.npy", np.arange(4))
    for spec in (tmp_path, tmp_path / "x.npy"):
        train = open_data(spec).train
        assert train.labels is not None
        x, y = train.gather(np.array([2, 0]))
        assert np.array_equal(x, rows(4, 3)[[2, 0]])
        assert x.flags.c_contiguous
        assert type(x) is np.ndarray
        assert y.tolist() == [2, 0]
    (tmp_path / "y.npy").write_bytes((tmp_path / "y.npy").read_bytes()[:-3])
    with pytest.raises(DataError, match=r"y\.npy has shape \[4\]|y\.npy cannot be read"):
        open_data(tmp_path)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dash", ["-", "."])
def test_idx(tmp_path, packed, dash):
    images, labels = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3), np.arange(5, dtype=np.uint8)
    for part, n in (("train", 5), ("t10k", 2)):
        for what, array in (("images", images), ("labels", labels)):
            raw = idx(array[:n])
            path = tmp_path / f"{part}-{what}{dash}idx{array.ndim}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(raw, mtime=0) if packed else raw)
    data = open_data(tmp_path)
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (5, 2)
    assert np.array_equal(data.train.inputs["images"], images)
    single = open_data(next(tmp_path.glob("t10k-images*"))).train
    assert len(single) == 2
    assert single.labels is not None


def test_idx_element_types(tmp_path):
    for array in (np.array([[1, -2], [3, 4]], np.int32), np.array([1.5, np.nan], np.float32)):
        path = tmp_path / "a.idx"
        path.write_bytes(idx(array))
        found = open_data(path).train.inputs["images"]
        assert found.dtype == array.dtype
        assert np.array_equal(found, array, equal_nan=True)


@pytest.mark.parametrize(("content", "says"), [
    (b"", "starts with nothing"),
    (b"\x00\x00\x07\x01", "not an IDX file"),
    (b"\x00\x00\x08\x00", "not an IDX file"),
    (b"\x00\x00\x08\x02\x00\x00", "ends within its header"),
    (idx(np.arange(9, dtype=np.uint8))[:-1], "holds 8|stores only"),
    (idx(np.arange(900, dtype=np.uint8))[:-2], "holds 898"),
    (idx(np.arange(9, dtype=np.uint8)) + b"x", "holds more"),
    (b"\x00\x00\x08\x03" + b"\xff" * 12, "claims"),
    (gzip.compress(b"\x00\x00\x08\x03" + b"\xff" * 12, mtime=0), "claims"),
    (gzip.compress(idx(np.zeros(9, np.uint8)), mtime=0)[:-9], "cannot be read|holds"),
    (gzip.compress(idx(np.zeros(9, np.uint8)) + bytes(10_000_000), mtime=0), "holds more"),
    (b"\x1f\x8b nonsense", "cannot be read"),
])
def test_bad_idx(tmp_path, content, says):
    path = tmp_path / ("train-images-idx3-ubyte" + (".gz" if content[:2] == b"\x1f\x8b" else ""))
    path.write_bytes(content)
    with pytest.raises(DataError, match=says):
        open_data(path)


def test_a_table_without_an_end_of_line(tmp_path, monkeypatch):
    monkeypatch.setattr("tileflow.runtime.data.table.LONGEST_LINE", 1000)
    (tmp_path / "a.csv").write_bytes(b"1," * 500)
    with pytest.raises(DataError, match="has a first line of more than 1,000 characters"):
        open_data(tmp_path / "a.csv")


def test_csv(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("\ufeffa,b,\"kind, of\"\n1,2.5,0\n-3,nan,1\n\n5,1e3,2\n", encoding="utf-8")
    train = open_data(path).train
    assert train.columns == ("a", "b")
    assert np.array_equal(train.inputs["x"], [[1, 2.5], [-3, np.nan], [5, 1000]], equal_nan=True)
    assert train.labels is not None
    assert train.labels.dtype == np.int64
    other = open_data(path, Options(inputs=("b",), label="a")).train
    assert other.labels is not None
    assert other.labels.tolist() == [1, -3, 5]
    assert other.inputs["x"].shape == (3, 1)
    path = tmp_path / "b.tsv"
    path.write_text("1\t2\t0.5\n3\t4\t1.5\n")
    train = open_data(path).train
    assert train.labels is not None
    assert (train.columns, train.labels.tolist()) == (("0", "1"), [0.5, 1.5])
    path.write_text("1;2;3\n")
    assert len(open_data(path, Options(data_format="csv")).train) == 1


@pytest.mark.parametrize(("header", "label", "says"), [
    ("label,a,b", "label", "by its name"), ("a,Target,b", "Target", "by its name"), ("y,a,b", "y", "by its name"), ("a,b,y", "y", "the last one"),
    ("x,y,kind", "kind", "the last one"), ("label,a,target", "target", "the last one"), ("price,rooms,area", "area", "the last one")])
def test_which_column_of_a_table_is_the_label(tmp_path, header, label, says):
    """The one that is called so, wherever it stands; else the last; and that is said."""
    (tmp_path / "a.csv").write_text(f"{header}\n0,1,2\n3,4,5\n")
    train = open_data(tmp_path / "a.csv").train
    assert train.label_name == label
    assert train.labels.tolist() == [header.split(",").index(label) + i for i in (0, 3)]
    assert train.notes == (f"Table {tmp_path / 'a.csv'}: the label is the column {label!r}, {says}; another is named with the option label.",)


def test_columns_that_nobody_wants_may_hold_anything(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("when,a,b,note,kind\n2020-01-01,1,2,,cat\n2020-01-02,3,4,hm,dog\n")
    words = open_data(path, Options(inputs=("a", "b"), label="kind")).train
    assert np.array_equal(words.inputs["x"], [[1, 2], [3, 4]])
    assert words.classes == ("cat", "dog")
    assert np.array_equal(open_data(path, Options(inputs=("b",), label="a")).train.labels, [1, 3])
    with pytest.raises(DataError, match="line 2, column when: '2020-01-01' is not a number"):
        open_data(path, Options(label="kind"))
    path.write_text("when,a,b\n2020-01-01,1,2\n2020-01-02,3,4,5\n")
    with pytest.raises(DataError, match="line 3, has 4 cells"):
        open_data(path, Options(inputs=("a",), label="b"))


def test_a_table_of_inputs_alone(tmp_path):
    """All columns are named as inputs: there are no labels. Where nothing is named, the message says what the last column was taken for."""
    path = tmp_path / "a.csv"
    path.write_text("a,b,c\n1,2,3\n4,5,6\n")
    assert open_data(path, Options(inputs=("a", "b", "c"))).train.label is None
    model = wrap_model(model_of([node("Softmax", ["x"], ["p"])], [port("x", ["N", 3])], ["p"]))
    assert tileflow.infer(model, data=str(path), inputs=("a", "b", "c"))["p"].shape == (2, 3)
    with pytest.raises(DataError) as caught:
        tileflow.infer(model, data=str(path))
    assert "The column 'c' was taken for the label" in caught.value.__notes__[0]


@pytest.mark.parametrize(("text", "options", "says"), [
    ("a,b\n1,2\n3,x\n", {}, "line 3, column b: 'x' is not a number"),
    ("a,b\n1,\n", {}, "line 2, column b: '' is not a number"),
    ("1,2\n3,x\n", {}, "line 2, column 1: 'x' is not a number"),
    ("a,b\n1,2,3\n", {}, "line 2, has 3 cells; there are 2 columns"),
    ("a,b\n1,2\n3\n", {}, "line 3, has 1 cells"),
    ("a,b\n", {}, "no rows"),
    ("", {}, "no rows"),
    ("a,a\n1,2\n", {}, "two columns 'a'"),
    ("a,b\n1,2\n", {"label": "c"}, "no column 'c'; its columns are a, b"),
    ("a,b\n1,2\n", {"inputs": ("d",)}, "no column 'd'"),
    ("a\n1\n", {}, "no column but the label"),
])
def test_bad_csv(tmp_path, text, options, says):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=says):
        open_data(path, Options(**options))


WIDE = 20_000
WIDE_TABLES = {
    "names": {"header": True}, "named inputs": {"header": True, "named": True}, "no names": {}, "words for labels": {"header": True, "label": "word"},
    "words beside the inputs": {"header": True, "strange": True, "named": True}, "a word among the inputs": {"header": True, "strange": True},
    "two of one name": {"header": True, "twice": True}, "no such column": {"header": True, "named": True, "lost": True}}


@pytest.mark.parametrize("kind", ["names", "named inputs", *(pytest.param(k, marks=pytest.mark.exhaustive) for k in [*WIDE_TABLES][2:])])
def test_wide_tables_are_read_in_the_time_of_their_cells(kind, tmp_path):
    """20,000 columns x 100 rows, in every way that a table is read: nothing is looked for once for each column. Seconds of this process."""
    how = WIDE_TABLES[kind]
    names = [f"c{i}" for i in range(WIDE - 1)]
    if "twice" in how:
        names[-1] = names[-2]
    cells = ["0.5"] * (WIDE - 1)
    rows = [[*cells[:3], "word" if "strange" in how and r else "1", *cells[4:], f"w{r % 3}" if "label" in how else str(r % 3)] for r in range(100)]
    path = tmp_path / "wide.csv"
    path.write_text("\n".join(",".join(line) for line in [*([[*names, "label"]] if "header" in how else []), *rows]) + "\n")
    inputs = (*names[:3], *names[4:], *(["lost"] if "lost" in how else [])) if "named" in how else ()
    says = {"a word among the inputs": "line 3, column c3: 'word' is not a number", "two of one name": f"two columns 'c{WIDE - 3}'",
            "no such column": "no column 'lost'"}
    begun = time.process_time()
    if kind in says:
        with pytest.raises(DataError, match=says[kind]):
            open_data(path, Options(inputs=inputs))
    else:
        train = open_data(path, Options(inputs=inputs)).train
        assert train.fields["x"].array.shape == (100, len(inputs or names))
        assert len(train.label.array) == 100
    assert time.process_time() - begun < 10         # with a search per column: over a minute


def test_many_columns_are_many_inputs_in_no_more_time(tmp_path):
    count = 4000
    header = ",".join([*(f"c{i}" for i in range(count)), "label"])
    (tmp_path / "a.csv").write_text(f"{header}\n" + "\n".join(",".join([*map(str, range(count)), "1"]) for _ in range(2)) + "\n")
    opened = open_data(tmp_path / "a.csv").train
    begun = time.process_time()
    fitted = opened.adapt_to({f"c{i}": TensorType("float32", (1, 1)) for i in reversed(range(count))})
    assert time.process_time() - begun < 10         # with a search per column: over a minute
    assert [fitted.fields[f"c{i}"].array[0].item() for i in (0, 7, count - 1)] == [0, 7, count - 1]


def test_unknown_places(tmp_path):
    with pytest.raises(DataError, match=r"no data at .*none"):
        open_data(tmp_path / "none")
    with pytest.raises(DataError, match="holds no data that tileflow knows"):
        open_data(tmp_path)
    (tmp_path / "a.orc").write_bytes(b"")
    with pytest.raises(DataError, match="no known ending"):
        open_data(tmp_path / "a.orc")
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe,\x00")
    with pytest.raises(DataError, match="cannot be read"):
        open_data(tmp_path / "a.csv")


def test_digits():
    data = open_data("digits")
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (1438, 359)
    image = data.train.inputs["x"]
    assert (image.shape, image.dtype, image.max()) == ((1438, 8, 8), np.uint8, 16)
    assert data.train.labels is not None
    assert np.bincount(data.train.labels).min() > 120
    sklearn = needs("sklearn.datasets")
    x, y = sklearn.load_digits(return_X_y=True)
    order = permutation(len(x), 0, 0)
    assert np.array_equal(np.concatenate([image, data.test.inputs["x"]]).reshape(len(x), -1), x[order])
    assert np.array_equal(np.concatenate([data.train.labels, data.test.labels]), y[order])          # type: ignore[list-item]


def test_validation_split():
    data = open_data((rows(10, 2), np.arange(10)), Options(validation_split=0.3, seed=4))
    assert data.test is not None
    kept, held = data.train.labels, data.test.labels
    assert kept is not None
    assert held is not None
    assert (len(kept), len(held)) == (7, 3)
    assert sorted([*kept, *held]) == list(range(10))
    assert sorted(kept) == list(kept)
    again = open_data((rows(10, 2), np.arange(10)), Options(validation_split=0.3, seed=4))
    assert again.test is not None
    assert np.array_equal(again.test.labels, held)          # type: ignore[arg-type]
    with pytest.raises(DataError, match="one row"):
        open_data((rows(1, 2), np.arange(1)), Options(validation_split=0.5))


# Adapting to a model


def batch(dataset: Dataset, n: int) -> tuple[np.ndarray, ...]:
    return dataset.gather(np.arange(n))


def test_bytes_images_get_a_channel_axis_and_a_scale():
    images = np.array([[[0, 255], [51, 102]]] * 3, np.uint8)
    adapted = open_data((images, np.arange(3, dtype=np.uint8))).train.adapt_to(
        {"image": TensorType("float32", (2, 1, 2, 2))}, TensorType("int64", (2,)))
    x, y = batch(adapted, 2)
    assert x.dtype == np.float32
    assert x.flags.c_contiguous
    assert np.allclose(x[0], [[[0, 1], [0.2, 0.4]]])
    assert y.dtype == np.int64
    assert any("reshaped to [1, 2, 2]" in note for note in adapted.notes)
    assert any("1/255" in note for note in adapted.notes)
    raw = open_data(images).train.adapt_to({"image": TensorType("uint8", (2, 2, 2))})
    assert np.array_equal(batch(raw, 2)[0], images[:2])


def test_scale_mean_and_std():
    x = np.ones((4, 3, 2, 2), np.float32) * np.arange(3, dtype=np.float32)[:, None, None]
    wanted = {"x": TensorType("float64", (4, 3, 2, 2))}
    got = batch(open_data(x).train.adapt_to(wanted, options=Options(scale=2, mean=(0, 1, 2), std=(1, 2, 4))), 4)[0]
    assert got.dtype == np.float64
    assert np.array_equal(got[0, :, 0, 0], [0, 0.5, 0.5])
    got = batch(open_data(x).train.adapt_to(wanted, options=Options(mean=1.0)), 4)[0]
    assert np.array_equal(got[0, :, 0, 0], [-1, 0, 1])
    with pytest.raises(DataError, match="Option std has 5 numbers; input x has rows of shape"):
        open_data(x).train.adapt_to(wanted, options=Options(std=(1,) * 5))
    last = batch(open_data(rows(2, 3)).train.adapt_to({"x": TensorType("float32", (2, 3))}, options=Options(mean=(0, 1, 2))), 1)[0]
    assert np.array_equal(last, [[0, 0, 0]])


@pytest.mark.parametrize(("have", "want", "right"), [
    ((8, 8), (64,), True), ((64,), (1, 8, 8), True), ((1, 4), (4, 1), True), ((), (1,), True), ((1,), (), True),
    ((5, 4, 3), (3, 5, 4), True), ((5, 4, 3), (60,), True), ((8, 8), (4, 16), False), ((2, 3), (3, 2), False),
    ((7, 7), (64,), False), ((3,), (4,), False),
])
def test_row_shapes(have, want, right):
    data = open_data(rows(2, *have)).train
    model = {"x": TensorType("float32", (2, *want))}
    if not right:
        with pytest.raises(DataError, match="takes rows of shape"):
            data.adapt_to(model)
        return
    got = batch(data.adapt_to(model), 2)[0]
    expected = rows(2, *have)
    expected = np.moveaxis(expected, -1, 1) if have == (5, 4, 3) and len(want) == 3 else expected.reshape(2, *want)
    assert np.array_equal(got, expected)
    assert got.flags.c_contiguous


def test_inputs_are_found_by_name_then_by_order(tmp_path):
    a, b = rows(3, 2), rows(3, 5) * 10
    model = {"a": TensorType("float32", (1, 2)), "b": TensorType("float32", (1, 5))}
    by_name = open_data({"b": b, "a": a}).train.adapt_to(model)
    assert [v.shape[1] for v in batch(by_name, 1)] == [2, 5]
    with pytest.raises(DataError, match=r"^The model has no input for extra; it has inputs a, b\. Leave out what is not fed, or name"):
        open_data({"b": b, "a": a, "extra": a}).train.adapt_to(model)
    chosen = open_data({"b": b, "a": a, "extra": a}, Options(inputs=("b", "a"))).train.adapt_to(model)
    assert [v.shape[1] for v in batch(chosen, 1)] == [2, 5]
    by_order = open_data((a, b, np.arange(3))).train.adapt_to({"p": TensorType("float32", (1, 2)), "q": TensorType("float32", (1, 5))})
    assert [v.shape[1:] for v in batch(by_order, 1)] == [(2,), (5,), ()]
    assert "x0 for p, x1 for q" in by_order.notes[0]
    with pytest.raises(DataError, match=r"inputs p, q, r; data in memory have x0, x1"):
        open_data((a, b, np.arange(3))).train.adapt_to({n: TensorType("float32", (1, 2)) for n in "pqr"})
    with pytest.raises(DataError, match="no batch axis"):
        open_data(a).train.adapt_to({"x": TensorType("float32", ())})
    (tmp_path / "t.csv").write_text("u,v,y\n1,2,0\n3,4,1\n")
    columns = open_data(tmp_path / "t.csv").train.adapt_to({"v": TensorType("float32", (1, 1)), "u": TensorType("int64", (1,))})
    assert [v.tolist() for v in batch(columns, 2)[:2]] == [[[2.0], [4.0]], [1, 3]]


def test_a_name_that_fits_goes_before_the_order():
    """A mask that stood first went into the tokens' place. Names that do not fit have an order where somebody gave one."""
    a, b = rows(3, 2), rows(3, 5) * 10
    model = {"tokens": TensorType("float32", (1, 5)), "mask": TensorType("float32", (1, 2))}
    named = {"mask": a, "x": b, "y": np.arange(3)}
    with pytest.raises(DataError, match=r"^The model has inputs tokens, mask; data in memory have mask, x\. Leave out what is not fed, or name"):
        open_data(named).train.adapt_to(model)
    mixed = open_data(named, Options(inputs=("mask", "x"))).train.adapt_to(model)
    assert [v.shape[1] for v in batch(mixed, 1)[:2]] == [5, 2]
    assert mixed.notes[0] == "Other inputs are taken in order: x for tokens."
    turned = {"x1": TensorType("float32", (1, 2)), "x0": TensorType("float32", (1, 5))}
    assert [v.shape[1:] for v in batch(open_data((a, b, np.arange(3))).train.adapt_to(turned), 1)][:2] == [(2,), (5,)]


@pytest.mark.parametrize(("array", "dtype", "says"), [
    (np.array([1.0, np.nan]), "float32", "Input x: row 1 of the data holds nan, and what comes of it is no number."),
    (np.array([1.0, -np.inf], np.float32), "float32", "Input x: row 1 of the data holds -inf, and what comes of it is no number."),
    (np.array([0.0, 1e300]), "float32", "Input x: row 1 of the data holds 1e+300, which is infinite as a float32."),
    (np.array([2.0**24, 2.0**24 + 1]), "float32", "Input x: row 1 of the data holds 16777217, which is 16777216 as a float32: above 16,777,216 it "
     "holds no longer all whole numbers. Subtract a number from such a column, or scale it, before it is fed."),
    (np.array([1, 2**53 + 1]), "float64", "Input x: row 1 of the data holds 9007199254740993, which is 9007199254740992 as a float64: above "
     "9,007,199,254,740,992 it holds no longer all whole numbers. Subtract a number from such a column, or scale it, before it is fed."),
    (np.array([2.0**24, 2.0**24 + 2]), "float32", ""),
    (np.array([1e9 + 0.5, 1e30]), "float32", ""),
    (np.array([1e300]), "float64", ""),
])
def test_numbers_that_change_on_their_way_are_told(array, dtype, says):
    wide = np.column_stack([np.zeros(len(array), array.dtype), array])
    model = {"x": TensorType(dtype, (1, 2))}
    assert "".join(open_data(wide).train.adapt_to(model).notes) == says
    later = open_data(np.concatenate([wide[:1], wide])).train.part(np.array([0]))          # rows that are not read
    assert later.adapt_to(model).notes == ()


def test_a_mask_is_not_forgotten():
    """NumPy's arrays of masked ones have whatever was there."""
    x = np.ma.masked_equal(rows(3, 2), 4)
    for spec in ((x, np.arange(3)), {"x": x, "y": np.arange(3)}, (rows(3, 2), np.ma.masked_equal(np.arange(3), 1)), Numbered(x)):
        with pytest.raises(DataError, match="has masked elements, the first at"):
            open_data(spec).train.gather(np.arange(3))
    assert np.array_equal(open_data(np.ma.masked_equal(rows(3, 2), 9)).train.inputs["x"], rows(3, 2))


class Numbered:
    """Rows by number."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return self.x[i], i


def test_tensors_leave_their_gradients_behind():
    torch = needs("torch")
    assert np.array_equal(open_data((torch.ones(3, 2, requires_grad=True), torch.arange(3))).train.inputs["x"], np.ones((3, 2)))


@pytest.mark.parametrize(("array", "dtype", "says"), [
    (np.array([0.0, 1.5]), "int64", "row 1 of the data holds 1.5"),
    (np.array([0.0, np.nan]), "int64", "holds nan"),
    (np.array([0, 300]), "uint8", "holds 300"),
    (np.array([0, -1]), "uint64", "holds -1"),
    (np.array([0, 2]), "bool", "holds 2"),
    (np.array([2.0**63]), "int64", "row 0"),
    (np.array([2.0**40, 3.0]), "int64", ""),
    (np.array([True, False]), "int32", ""),
    (np.array([2**64 - 1], np.uint64), "int64", "row 0"),
])
def test_whole_numbers(array, dtype, says):
    data = open_data((rows(len(array), 1), array)).train
    model = {"x": TensorType("float32", (1, 1))}
    if says:
        with pytest.raises(DataError, match=says):
            data.adapt_to(model, TensorType(dtype, (1,)))
        return
    assert np.array_equal(batch(data.adapt_to(model, TensorType(dtype, (1,))), len(array))[1], array)


# DataLoader


def loader(n: int = 20, **more: object) -> DataLoader:
    settings = {"micro_batch_size": 4, **more}
    arguments = {k: settings.pop(k) for k in ("pad_last", "batch_size") if k in settings}
    return DataLoader(Options(**settings), (rows(n, 2), np.arange(n)), **arguments)          # type: ignore[arg-type]


def seen(batches: object) -> list[int]:
    return [int(y) for _, labels in batches for y in labels]          # type: ignore[attr-defined]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_batches(prefetch):
    made = loader(21, prefetch=prefetch, gradient_accumulation=2, device_iterations=1)
    assert made.combined_batch_size == 8
    assert len(made) == 2
    got = list(made)
    assert [x.shape for x, _ in got] == [(8, 2)] * 2
    assert all(np.array_equal(x[:, 0], 2 * y) for x, y in got)
    assert len(set(seen(got))) == 16
    assert made.options.is_frozen


def test_the_order_depends_on_seed_and_epoch_only():
    made = loader(seed=3)
    first, second = seen(made), seen(made)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(20))
    made.set_epoch(0)
    assert seen(made) == first
    other = loader(seed=3, prefetch=0, gradient_accumulation=5)
    other.set_epoch(1)
    assert seen(other) == second
    assert seen(loader(seed=4)) != first
    assert seen(loader(shuffle=False)) == list(range(20))
    assert permutation(8, 1, 2).tolist() == [4, 2, 0, 6, 1, 5, 7, 3]          # fixed for ever: resumed runs rely on it


def test_resuming_within_an_epoch():
    made = loader(22, seed=1)
    whole = seen(made)
    made.set_epoch(0, offset=8)
    rest = list(made)
    assert seen(rest) == whole[8:]
    assert len(seen(made)) == 20          # the next epoch is whole again
    made.set_epoch(0, offset=20)
    assert list(made) == []


def test_the_last_batch():
    with pytest.warns(UserWarning, match="last batch of data in memory has 2 rows instead of 4"):
        made = loader(10, drop_last=False, shuffle=False)
    assert len(made) == 3
    assert [len(y) for _, y in made] == [4, 4, 2]
    padded = loader(10, pad_last=True, shuffle=False)
    assert [y.tolist() for _, y in padded][-1] == [8, 9, 9, 9]
    with pytest.raises(DataError, match=r"have 10 rows, fewer than one batch of 12 \(4 x gradient_accumulation 3"):
        loader(10, gradient_accumulation=3)
    with pytest.raises(DataError, match="at least 1"):
        loader(10, batch_size=0)


def test_limits():
    made = loader(40, max_batches=3)
    assert len(made) == 3
    assert len(list(made)) == 3
    made.set_epoch(0, offset=8)
    assert len(list(made)) == 1


def data_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "tileflow-data"]


def test_no_thread_is_left_behind():
    for _ in loader(40):
        break
    iterator = iter(loader(40))
    next(iterator)
    iterator.close()          # type: ignore[attr-defined]
    list(loader(40))
    iter(loader(40))          # never started
    assert data_threads() == []


def test_batches_are_fresh():
    first, second = list(loader(8, shuffle=False))
    first[0][...] = -1
    assert second[0].min() >= 0
    assert not np.shares_memory(first[0], second[0])


def test_errors_of_the_thread_reach_the_reader():
    def broken():
        yield 1
        raise DataError("the disk is gone")
    items = ahead(broken, 2)
    assert next(items) == 1
    with pytest.raises(DataError, match="the disk is gone"):
        next(items)
    assert data_threads() == []


def test_prefetch_depth():
    made = []

    def numbers():
        for i in range(10):
            made.append(i)
            yield i
    items = ahead(numbers, 2)
    assert next(items) == 0
    deadline = time.monotonic() + 5
    while len(made) < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.02)
    assert made == [0, 1, 2]
    assert list(items) == list(range(1, 10))
