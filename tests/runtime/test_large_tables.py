"""Parquet and Arrow tables that are larger than memory: the same numbers as those that fit, from temporary files."""
from __future__ import annotations

import decimal
import errno
import gc
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from peers import needs

import tileflow
from tileflow import nn
from tileflow.kernels.machine import limits
from tileflow.memory import budget
from tileflow.memory.types import TensorType
from tileflow.options.options import Options
from tileflow.runtime.data import Dataset, Roles, arrow, filled, open_data
from tileflow.runtime.data import table as tables
from tileflow.system.errors import DataError, OutOfMemoryError, TileflowError

ROWS = 700
COLOURS = (" red", "blue", None, "green\0", "", "red ")
ENDINGS = ("parquet", "arrow", "stream.arrow", "packed.arrow")
Scarce = Callable[[], AbstractContextManager[Path]]


@pytest.fixture
def scarce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scarce:
    """No memory for any table, little for a part of one, and a folder of temporary files of the test's own."""
    folder = tmp_path / "temporary"
    folder.mkdir()

    @contextmanager
    def within(nbytes: int = 20_000) -> Iterator[Path]:
        with monkeypatch.context() as changed:
            changed.setattr(limits, "memory", lambda: limits.Room(budget.RESERVE + nbytes, "a test"))
            changed.setattr(budget, "SMALL", 0)
            changed.setattr(arrow, "PART", (2000, 2000))
            changed.setattr(tempfile, "tempdir", str(folder))
            yield folder
    return within


def written(path: Path, columns: Any, rows: int = 100, page: int = 500) -> str:
    """A table in parts of so many rows."""
    pa, _ = needs("pyarrow"), needs("pyarrow.parquet")
    made = pa.table(columns)
    if path.suffix == ".parquet":
        pa.parquet.write_table(made, path, row_group_size=rows, data_page_size=page)
        return str(path)
    options = pa.ipc.IpcWriteOptions(compression="zstd" if "packed" in path.name else None)
    with (pa.ipc.new_stream if "stream" in path.name else pa.ipc.new_file)(path, made.schema, options=options) as file:
        file.write_table(made, max_chunksize=rows)
    return str(path)


def mapped(data: Dataset) -> bool:
    """Some of its arrays lie in a file."""
    return any(not field.array.flags.writeable for field in data.tensors)


def same(found: Dataset, wanted: Dataset) -> None:
    """Bit by bit."""
    assert mapped(found)
    assert not mapped(wanted)
    assert "does not fit into memory" in found.notes[0]
    assert found.notes[1:] == wanted.notes
    for name in ("name", "columns", "label_name", "classes", "categories", "ordered", "nameless", "numbers"):
        assert getattr(found, name) == getattr(wanted, name), name
    assert [*found.fields, *found.more] == [*wanted.fields, *wanted.more]
    for a, b in zip(found.tensors, wanted.tensors, strict=True):
        assert (a.dtype, a.sample, a.array.dtype) == (b.dtype, b.sample, b.array.dtype)
        assert a.array.tobytes() == b.array.tobytes()
    assert found.digest() == wanted.digest()


def column_of_all(rng: np.random.Generator) -> dict[str, Any]:
    """Columns of every type that a table may have, with what is missing."""
    pa = needs("pyarrow")
    gaps = rng.random(ROWS) < 0.1
    numbers = rng.integers(-100, 100, ROWS)
    text = [COLOURS[i] for i in rng.integers(0, len(COLOURS), ROWS)]
    return {
        "f8": rng.standard_normal(ROWS), "f4": rng.standard_normal(ROWS).astype(np.float32),
        "f2": rng.standard_normal(ROWS).astype(np.float16), "u1": rng.integers(0, 256, ROWS).astype(np.uint8),
        "i8": pa.array(numbers * (1 << 55) // 100, mask=gaps), "u8": rng.integers(0, 1 << 64, ROWS, np.uint64),
        "b": pa.array(numbers > 0, mask=gaps), "whole": numbers > 50,
        "money": [None if gap else decimal.Decimal(int(n)) / 4 for n, gap in zip(numbers, gaps, strict=True)],
        "coded": pa.array(numbers.astype(np.int16)).dictionary_encode(), "colour": text,
        "town": pa.DictionaryArray.from_arrays(pa.array(rng.integers(1, 4, ROWS), pa.uint32(), mask=gaps),
                                               ["nobody's", "Ulm", "Bad, Tölz", " Ulm"]),
        "sample_weight": rng.random(ROWS), "y": rng.integers(0, 3, ROWS)}


LABELS: tuple[tuple[str, Any], ...] = (("y", None), ("f4", None), ("colour", None), ("town", None), ("b", None),
                                       ("numbers", ["10", "2", "-7"]), ("y", [1.0, 2.5, None]))


@pytest.mark.parametrize("ending", ENDINGS)
def test_tables_that_do_not_fit_are_the_same_numbers(ending: str, tmp_path: Path, scarce: Scarce):
    """Every type of column, any of them the label; categories by names, by the mark for all, those of a training."""
    columns = column_of_all(np.random.default_rng(3))
    known = Roles(categories={"colour": ("green", "red"), "town": ("Ulm",)}, label="y", inputs=("town", "colour", "f8"))
    for (label, values), texts in zip(LABELS, itertools.cycle([("colour", "town"), ("*",)])):
        made = columns if values is None else {**columns, label: [values[i % len(values)] for i in range(ROWS)]}
        path = written(tmp_path / f"t.{ending}", made)
        options = Options(label=label, categories=[t for t in texts if t != label])
        whole = open_data(path, options).train
        with scarce():
            same(open_data(path, options).train, whole)
    path = written(tmp_path / f"t.{ending}", columns)
    chosen = Options(inputs=["f4", "colour", "u1"], label="f8", categories="colour", sample_weight="b")
    for options, roles in ((chosen, None), (Options(inputs=["y", "f4"], label="y"), None), (Options(), known)):
        whole = open_data(path, options, roles).train
        with scarce():
            same(open_data(path, options, roles).train, whole)


def test_what_is_read_some_rows_at_a_time_is_what_arrow_reads(tmp_path: Path, scarce: Scarce):
    """Its own conversion of whole columns, which is none of ours."""
    pa, columns = needs("pyarrow"), column_of_all(np.random.default_rng(4))
    path = written(tmp_path / "t.parquet", columns)
    names = [name for name in columns if name not in ("colour", "town", "sample_weight", "y")]
    with scarce():
        x = open_data(path, Options(inputs=names, label="y")).train.inputs["x"]
    for i, name in enumerate(names):
        column = pa.table(columns).column(name)
        column = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        np.testing.assert_array_equal(x[:, i], column.to_numpy().astype(np.float64), err_msg=name)


@pytest.mark.parametrize("ending", ENDINGS)
def test_lists_that_do_not_fit_are_the_same_arrays(ending: str, tmp_path: Path, scarce: Scarce):
    pa, rng = needs("pyarrow"), np.random.default_rng(5)
    vectors = rng.standard_normal((ROWS, 6)).astype(np.float32)
    deep = [[[int(n), None if n == 3 else 1] for n in row] for row in rng.integers(0, 5, (ROWS, 3))]
    columns = {"vector": pa.FixedSizeListArray.from_arrays(vectors.ravel(), 6), "deep": deep,
               "tokens": rng.integers(0, 99, (ROWS, 4)).astype(np.int32).tolist(), "text": ["a"] * ROWS,
               "late": [True] * (ROWS - 1) + [None], "sample_weight": rng.random(ROWS),
               "label": [COLOURS[i] for i in rng.integers(0, len(COLOURS), ROWS)]}
    path = written(tmp_path / f"t.{ending}", columns)
    for options in (Options(inputs=["vector", "deep", "tokens", "late"]), Options(inputs="vector", label="text")):
        whole = open_data(path, options).train
        np.testing.assert_array_equal(whole.inputs["vector"], vectors)
        with scarce(40_000):
            same(open_data(path, options).train, whole)
    assert open_data(path, Options(inputs=["deep", "late"])).train.inputs["late"].dtype == np.float64
    for options in (Options(), Options(inputs=["vector", "text"])):
        with pytest.raises(DataError, match=r"Input text of data .* has element type <U1"):
            open_data(path, options)
        with scarce(40_000), pytest.raises(DataError, match=r"Input text of data .* has element type <U1"):
            open_data(path, options)


def test_folders_of_parts_that_do_not_fit(tmp_path: Path, scarce: Scarce):
    """Types are those of all files, as are categories; the part to measure with has the training's."""
    pa, rng = needs("pyarrow"), np.random.default_rng(6)
    folder, lists = tmp_path / "t", tmp_path / "l"
    for i, (name, colours) in enumerate((("train-0", ["b", "a"]), ("train-1", ["c", "b"]), ("test-0", ["c", "x"]))):
        for place, more in ((folder, {}), (lists, {"v": pa.array(rng.integers(0, 9, (ROWS, 2)).tolist(),
                                                                pa.list_(pa.int8() if i else pa.float32()))})):
            place.mkdir(exist_ok=True)
            written(place / f"{name}.parquet", {
                "size": rng.integers(0, 9, ROWS).astype([np.int32, np.uint64, np.int8][i]), "y": [i] * ROWS,
                "colour": [colours[n] for n in rng.integers(0, 2, ROWS)], **more})
    for place, options in ((folder, Options(categories="colour")), (lists, Options(inputs=["v", "size"]))):
        whole = open_data(place, options)
        with scarce():
            parts = open_data(place, options)
        same(parts.train, whole.train)
        assert parts.test is not None
        assert whole.test is not None
        assert parts.test.digest() == whole.test.digest()
        assert len(parts.train) == 2 * ROWS


def test_a_data_set_of_hugging_face_that_does_not_fit(tmp_path: Path, scarce: Scarce):
    datasets, rng = needs("datasets"), np.random.default_rng(7)
    rows = datasets.Dataset.from_dict({"x": rng.random((ROWS, 3)).tolist(), "label": rng.integers(0, 2, ROWS).tolist()})
    rows.to_parquet(tmp_path / "train-0.parquet", batch_size=100)
    whole = open_data(tmp_path / "train-0.parquet").train
    with scarce():
        same(open_data(tmp_path / "train-0.parquet").train, whole)


class Line(nn.Module):
    def __init__(self) -> None:
        self.line = nn.Linear(4, 3)

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        return self.line(x)


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_training_comes_to_the_same_weights(ending: str, tmp_path: Path, scarce: Scarce):
    """Shuffled, weighted, with rows kept apart."""
    rng = np.random.default_rng(8)
    columns = {**{f"x{i}": rng.standard_normal(ROWS) for i in range(4)}, "sample_weight": rng.random(ROWS),
               "kind": [("a", "b", "c")[n] for n in rng.integers(0, 3, ROWS)]}
    options = Options(validation_split=0.2)
    path = written(tmp_path / f"t.{ending}", columns)

    def weights(data: Any) -> list[bytes]:
        nn.manual_seed(5)
        net = Line()
        with pytest.warns(tileflow.TileflowWarning):
            history = tileflow.train(net, data=data, epochs=2, micro_batch_size=16).history
        return [*(net.session[name].tobytes() for name in net.session.names()), history["loss"].tobytes(),
                history["test_loss"].tobytes()]
    with scarce():
        parts = open_data(path, options)
    whole = open_data(path, options)
    same(parts.train, whole.train)
    assert weights(parts) == weights(whole)


def test_pixels_in_columns_that_do_not_fit_are_bytes_as_well(tmp_path: Path, scarce: Scarce):
    pixels = np.random.default_rng(9).integers(0, 256, (ROWS, 64))
    path = written(tmp_path / "t.parquet", {**{f"p{i}": pixels[:, i] for i in range(64)}, "y": pixels[:, 0] % 3})
    takes = {"x": TensorType("float32", (1, 64))}
    with scarce(500_000):
        data = open_data(path).train
        found = data.images_as_bytes(takes)
    assert mapped(data)
    with scarce(10_000):
        again = data.images_as_bytes(takes)
    assert [mapped(found), mapped(again)] == [True, True]                # the labels' file, and the images', too
    for made in (found, again):
        assert made.inputs["x"].dtype == np.uint8
        np.testing.assert_array_equal(made.inputs["x"], pixels)
    assert found.inputs["x"].flags.writeable
    assert not again.inputs["x"].flags.writeable


# ---- what is refused, and the nearest that is not

def test_tables_that_do_not_fit_are_refused_as_others_are(tmp_path: Path, scarce: Scarce,
                                                          monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "t.parquet"
    many = [f"word {i}" for i in range(ROWS)]
    for columns, options, says in (
            ({"a": [[1]] * 499 + [[1], [1, 2, 3]]}, Options(), "lists of different lengths"),
            ({"a": [[1, 2]] * 500 + [[1]] * 100}, Options(), "lists of different lengths"),
            ({"a": [[1]] * 500 + [None]}, Options(), "rows without a list"),
            ({"a": [{"b": 1}] * ROWS}, Options(), "is of struct"), ({"a": many}, Options(), "name it with the option"),
            ({"a": many}, Options(categories="a"), "'a' has .*different texts of .* letters, too many")):
        file = written(path, {**columns, "y": [0] * len(columns["a"])})
        monkeypatch.setattr(tables, "MOST_WORDS", 300)
        with pytest.raises(DataError, match=says):
            open_data(file, options)
        with scarce() as folder, pytest.raises(DataError, match=says):
            open_data(file, options)
        assert not os.listdir(folder)
    few = written(path, {"a": [f"word {i % 300}" for i in range(ROWS)], "y": [0] * ROWS})
    with scarce():
        assert open_data(few, Options(categories="a")).train.inputs["x"].max() == 300


def test_what_must_be_in_memory_is_asked_for(tmp_path: Path, scarce: Scarce):
    """A part of a table, and the different words of labels; smaller parts and fewer words do."""
    rng = np.random.default_rng(1)
    columns = {"a": rng.standard_normal(20_000), "y": [f"{i % 4000:050}x" for i in range(20_000)]}
    for name, rows, says in (("t.parquet", 20_000, "with smaller row groups"),
                             ("packed.arrow", 20_000, "with smaller batches")):
        path = written(tmp_path / name, columns, rows)
        with scarce(300_000), pytest.raises(OutOfMemoryError, match=f"A part of table .* needs .*{says}"):
            open_data(path)
        path = written(tmp_path / name, columns, 500)
        with scarce(300_000), pytest.raises(OutOfMemoryError, match=r"'y', whose different texts are classes, "
                                                                    r"needs .*the option label"):
            open_data(path)
        with scarce(10_000_000):
            assert len(open_data(path).train.classes or ()) == 4000
        with scarce(300_000):
            assert mapped(open_data(path, Options(inputs="a", label="a")).train)
    path = written(tmp_path / "t.arrow", {"a": columns["a"]}, 20_000)                     # as it lies in the file
    with scarce():
        np.testing.assert_array_equal(open_data(path, Options(inputs="a")).train.inputs["x"][:, 0], columns["a"])


def test_dictionaries_of_parquet_are_asked_for(tmp_path: Path, scarce: Scarce):
    """A column's lies in memory while the column is read; by default writers end it at a megabyte."""
    pa, parquet = needs("pyarrow"), needs("pyarrow.parquet")
    numbers = np.random.default_rng(1).standard_normal(500_000)
    for limit, said in ((8 << 20, True), (1 << 20, False)):
        path = tmp_path / "t.parquet"
        parquet.write_table(pa.table({"a": numbers}), path, dictionary_pagesize_limit=limit)
        with scarce(4_000_000):
            if said:
                with pytest.raises(OutOfMemoryError, match=r"A part of table .*parquet needs 6 MB of memory, and 4 MB"):
                    open_data(path, Options(inputs="a"))
            else:
                np.testing.assert_array_equal(open_data(path, Options(inputs="a")).train.inputs["x"][:, 0], numbers)


def test_small_pages_of_parquet_are_let_go_of(tmp_path: Path):
    """Whatever the size of pages, a column's memory is that of its dictionary and a page."""
    pa, path = needs("pyarrow"), tmp_path / "t.parquet"
    written(path, {"a": np.random.default_rng(1).standard_normal(600_000)}, 600_000)
    taken = [pa.total_allocated_bytes() for part in arrow.table_parts([path], "parquet", ["a"])]
    assert len(taken) > 5
    assert max(taken[1:]) - taken[1] < 200_000


def test_the_disk_must_have_room(tmp_path: Path, scarce: Scarce, monkeypatch: pytest.MonkeyPatch):
    """Before it is taken, where the system says; else when it is full. Nothing stays there."""
    path = written(tmp_path / "t.parquet", {"a": np.arange(5000.0), "y": np.arange(5000) % 2})
    usage = type(shutil.disk_usage(tmp_path))
    for free, room in ((79_999, False), (80_000, True)):
        with scarce() as folder, monkeypatch.context() as changed:
            changed.setattr("tileflow.system.files.shutil.disk_usage", lambda _, free=free: usage(10**6, 0, free))
            if room:
                assert mapped(open_data(path).train)
            else:
                with pytest.raises(DataError, match=r"t.parquet, in temporary files, takes 80,000 bytes, and the disk "
                                                    r"of .*temporary has 79,999 left; the environment variable TMPDIR"):
                    open_data(path)
    with scarce() as folder:
        monkeypatch.setattr(filled, "_nameless", lambda: os.fdopen(os.open("/dev/full", os.O_RDWR), "r+b"))
        with pytest.raises(DataError, match=r"is written into a temporary file, and .*temporary does not take it: "
                                            r"No space left on device; .* TMPDIR"):
            open_data(path)
    assert not os.listdir(folder)
    monkeypatch.undo()
    with scarce(), monkeypatch.context() as changed:                   # addresses, too
        changed.setattr(filled, "mmap", SimpleNamespace(mmap=no_addresses, ACCESS_READ=1))
        with pytest.raises(OutOfMemoryError, match=r"t.parquet lies in a temporary file that this process cannot map: "
                                                   r"Cannot allocate memory; .* \(ulimit -v\)"):
            open_data(path)


def no_addresses(*_: Any, **more: Any) -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def test_temporary_files_in_memory_need_room_there(tmp_path: Path, scarce: Scarce, monkeypatch: pytest.MonkeyPatch):
    path = written(tmp_path / "t.parquet", {"a": np.arange(5000.0), "y": np.arange(5000) % 2})
    for room in (79_999, 80_000):
        monkeypatch.setattr(limits, "memory_of_files",
                            lambda folder, room=room: limits.Room(budget.RESERVE + room, "a test"))
        with scarce():
            if room == 80_000:
                assert mapped(open_data(path).train)
            else:
                with pytest.raises(OutOfMemoryError, match=r"needs 80 KB of .*temporary, whose files lie in memory"):
                    open_data(path)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not say what a process has mapped")
def test_nothing_is_left_of_temporary_files(tmp_path: Path, scarce: Scarce, monkeypatch: pytest.MonkeyPatch):
    """They have no names while they are used; at an end, a failure or Ctrl-C nobody has them any more."""
    path = written(tmp_path / "t.parquet", {"a": np.arange(5000.0), "y": np.arange(5000) % 2})

    def held(folder: Path) -> bool:
        gc.collect()
        opened = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
                  if os.path.islink(f"/proc/self/fd/{n}")]
        return str(folder) in Path("/proc/self/maps").read_text() or any(str(folder) in link for link in opened)
    with scarce() as folder:
        data = open_data(path)
        assert held(folder)
        assert not os.listdir(folder)
        del data
        assert not held(folder)
        append = filled.FilledArray.append
        for error in (KeyboardInterrupt, OSError):
            seen: list[bool] = []

            def stop(self: Any, rows: np.ndarray, error: Any = error, seen: list[bool] = seen) -> None:
                append(self, rows)
                if len(seen) > 3:
                    raise error
                seen.append(held(folder))
            monkeypatch.setattr(filled.FilledArray, "append", stop)
            with pytest.raises(error):
                open_data(path)
            assert seen == [True] * 4
            assert not held(folder)
            assert not os.listdir(folder)


@pytest.mark.parametrize("ending", ["arrow", "packed.arrow"])
def test_damaged_arrow_tables_end_in_a_sentence(ending: str, tmp_path: Path):
    """Places of texts and lists in such a file lead anywhere; a table or an error of ours comes of it."""
    rng, path, found = np.random.default_rng(11), tmp_path / f"t.{ending}", [0, 0]
    pa = needs("pyarrow")
    colours, texts = ["a", None, "long"] * 20, pa.array(["x", "y"] * 30).dictionary_encode()
    whole = Path(written(path, {"a": rng.random(60), "colour": colours, "text": texts, "y": [0] * 60}, 20)).read_bytes()
    options = Options(categories=["colour", "text"])
    assert len(open_data(path, options).train) == 60
    for _ in range(150):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole), 3):
            damaged[at] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            open_data(path, options)
            found[0] += 1
        except TileflowError:
            found[1] += 1
    assert min(found) > 5, found


@pytest.mark.parametrize("change", ["fewer", "more", "words"])
def test_a_table_that_changes_while_it_is_read(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What the first look at it said is no longer so; of one that stays nobody is told."""
    path = tmp_path / "t.parquet"
    columns = {"a": np.arange(500.0), "y": ["a", "b"] * 250}
    other = {"fewer": {name: c[:400] for name, c in columns.items()}, "words": {**columns, "y": ["a", "c"] * 250},
             "more": {name: [*c, *c] for name, c in columns.items()}}[change]
    parts = arrow.table_parts
    for changed in (columns, other):
        passes = iter((columns, changed))

        def between(*args: Any, passes: Iterator[Any] = passes) -> Any:
            written(path, next(passes))
            return parts(*args)
        monkeypatch.setattr("tileflow.runtime.data.parts.table_parts", between)
        written(path, columns)
        if changed is columns:
            assert len(open_data(path).train) == 500
        else:
            with pytest.raises(DataError, match="changed while it was read"):
                open_data(path)


CHILD = """
import resource, sys
import numpy as np
import pyarrow.parquet
import tileflow
from tileflow.runtime.data import open_data
def status(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) << 10
before, resident = status("VmData"), status("VmRSS")
resource.setrlimit(resource.RLIMIT_DATA, (before + (210 << 20),) * 2)
data = open_data(sys.argv[1]).train
print(status("VmHWM") - resident)
assert "does not fit" in data.notes[0], data.notes
total = np.zeros(9)
for i in range(0, len(data), 1000):
    total += data.gather(np.arange(i, i + 1000))[0].sum(0)
print(status("VmData") - before, *total)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems limit and count memory otherwise")
@pytest.mark.exhaustive
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_table_of_200_mb_within_a_limit_on_memory(ending: str, tmp_path: Path):
    """A process that may take no more than that, 128 MB of which are left free: three quarters of the table's size are
    never resident while it is opened (pages of the file that is read, which the system may keep, count), and its
    numbers are all there."""
    rng = np.random.default_rng(2)
    columns = {f"c{i}": rng.standard_normal(2_500_000) for i in range(10)}
    path = written(tmp_path / f"t.{ending}", columns, 2_500_000, 1 << 20)
    assert Path(path).stat().st_size > 190 << 20
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "TMPDIR": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", CHILD, path], capture_output=True, text=True, env=environment)
    assert said.returncode == 0, said.stderr
    resident, grown, *total = map(float, said.stdout.split())
    assert resident < 144 << 20
    assert grown < 96 << 20
    np.testing.assert_allclose(total, [columns[f"c{i}"].sum() for i in range(9)], rtol=1e-9, atol=1e-6)
    assert os.listdir(tmp_path) == [Path(path).name]
