"""Images that tables hold and that rows of somebody's own hold as Pillow's: the same data as the files in folders."""
from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from onnx_models import model_of, node, port
from peers import needs

import tileflow
from tileflow import cli
from tileflow.feed.pictures import is_picture
from tileflow.feed.unpacked import Unpacked
from tileflow.options.options import Options
from tileflow.runtime.data import Dataset, Roles, WantedImages, open_data
from tileflow.system.errors import DataError, OutOfMemoryError

Image = needs("PIL.Image")
arrow = needs("pyarrow")
parquet = needs("pyarrow.parquet")
COLOURS = ("blue", "green", "red")
COUNT = 24


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Images of three classes in folders, 10 x 8 pixels each."""
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(8)
    for i in range(COUNT):
        pixels = rng.integers(0, 120, (8, 10, 3))
        pixels[..., 2 - i % 3] += 110
        path = root / COLOURS[i % 3] / f"{i:02}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return sorted(root.glob("*/*.png"))


def labels(files: list[Path]) -> list[int]:
    return [COLOURS.index(path.parent.name) for path in files]


def onnx_file(path: Path) -> str:
    """A classifier of images [N, 3, 8, 8] by the mean of each channel."""
    weights = {"w": np.eye(3, dtype=np.float32), "b": np.zeros(3, np.float32)}
    nodes = [node("GlobalAveragePool", ["x"], ["p"]), node("Flatten", ["p"], ["f"]),
             node("Gemm", ["f", "w", "b"], ["scores"])]
    path.write_bytes(model_of(nodes, [port("x", ["N", 3, 8, 8])], ["scores"], weights).SerializeToString())
    return str(path)


def hugging_face(table: Any) -> Any:
    """The table with the metadata that name its classes."""
    said = {"info": {"features": {"image": {"_type": "Image"}, "label": {"names": COLOURS, "_type": "ClassLabel"}}}}
    return table.replace_schema_metadata({"huggingface": json.dumps(said)})


def write(path: Path, table: Any, stream: bool = False) -> str:
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=10)
    else:
        with (arrow.ipc.new_stream if stream else arrow.ipc.new_file)(path, table.schema) as file:
            file.write_table(table, 7)
    return str(path)


def table_of(files: list[Path], **more: Any) -> Any:
    """As Hugging Face's: pairs of bytes and a path, and numbers of classes."""
    image = [{"bytes": path.read_bytes(), "path": path.name} for path in files]
    return hugging_face(arrow.table({"image": image, "size": [path.stat().st_size for path in files],
                                     "label": labels(files), **more}))


def same(data: Dataset, wanted: Dataset) -> None:
    rows = np.arange(COUNT)[::-1]
    for found, other in zip(data.gather(rows), wanted.gather(rows), strict=True):
        np.testing.assert_array_equal(found, other)


# ---- columns of image files

@pytest.mark.parametrize(("ending", "stream"), [("parquet", False), ("arrow", False), ("arrow", True)])
def test_a_column_of_image_files_is_what_a_folder_is(ending: str, stream: bool, files: list[Path], tmp_path: Path):
    wanted = open_data(str(files[0].parents[1])).train
    data = open_data(write(tmp_path / f"t.{ending}", table_of(files), stream)).train
    same(data, wanted)
    assert data.digest() == wanted.digest()
    assert (data.classes, data.label_name, len(data)) == (COLOURS, "label", COUNT)
    assert data.row_names == tuple(path.name for path in files)
    bare = arrow.table({"kind": [path.parent.name for path in files], "png": [p.read_bytes() for p in files]})
    words = open_data(write(tmp_path / f"b.{ending}", bare, stream)).train
    same(words, wanted)
    assert (words.classes, words.label_name) == (COLOURS, "kind")
    assert words.row_names[3] == f"in row 3 of {tmp_path}/b.{ending}"
    alone = open_data(write(tmp_path / f"a.{ending}", bare.select(["png"]), stream)).train
    assert alone.label is None


def test_what_is_unpacked_is_there_as_long_as_the_data(files: list[Path], tmp_path: Path):
    """Two images that differ lie in one file; nothing is left of it."""
    data = open_data(write(tmp_path / "t.parquet", table_of(files))).train
    assert data.source is not None
    unpacked = data.source.data.paths
    assert isinstance(unpacked, Unpacked)
    assert Path(unpacked.file).stat().st_size == sum(path.stat().st_size for path in files)
    assert [c.opened().read() for c in unpacked[-2:]] == [path.read_bytes() for path in files[-2:]]
    assert unpacked[-1] == unpacked[COUNT - 1]
    path = Path(unpacked.file)
    del data, unpacked
    gc.collect()
    assert not path.exists()


def test_a_walk_from_a_table_of_images_by_commands(files: list[Path], tmp_path: Path,
                                                   capsys: pytest.CaptureFixture[str]):
    """Workers decode, weights count, and the trained file knows what the classes are called."""
    weights = 1 + np.arange(COUNT) % 2
    path, run = write(tmp_path / "t.parquet", table_of(files, sample_weight=weights.astype(float))), tmp_path / "run"
    words = ["train", onnx_file(tmp_path / "m.onnx"), "--data", path, "--epochs", "40", "--micro-batch-size", "6",
             "--learning-rate", "0.1", "--num-workers", "2", "--augment", "flip", "--out", str(run)]
    assert cli.main(words) == 0
    assert cli.main(["infer", f"{run}/model.onnx", "--data", path, "--out", str(tmp_path / "p.npz")]) == 0
    capsys.readouterr()
    with np.load(tmp_path / "p.npz") as found:
        assert found["predicted_class"].tolist() == [path.parent.name for path in files]
        assert found["row"].tolist() == [path.name for path in files]
    listed = files[0].parents[1] / "weighted.csv"
    lines = [f"{w},{p.parent.name}/{p.name},{p.parent.name}\n" for w, p in zip(weights, files, strict=True)]
    listed.write_text("sample_weight,file,kind\n" + "".join(lines))

    def history(data: Any, **setting: Any) -> list[float]:
        with pytest.warns(tileflow.TileflowWarning):
            return list(tileflow.train(tmp_path / "m.onnx", data=data, micro_batch_size=6, **setting).history["loss"])
    assert history(path) == history(str(listed)) == history(str(files[0].parents[1]), sample_weight=weights)
    assert history(path) != history(path, sampling="weighted")
    listed.write_text("sample_weight,file,kind\n" + "".join(["x" + lines[0][1:], *lines[1:]]))
    with pytest.raises(DataError, match=r"line 2, column sample_weight: 'x' is not a number, as the weight"):
        open_data(str(listed))
    listed.unlink()


def test_paths_instead_of_bytes_are_relative_to_the_table(files: list[Path], tmp_path: Path):
    root = files[0].parents[1]
    pairs = [{"bytes": None, "path": str(p.relative_to(root))} for p in files]
    table = arrow.table({"image": arrow.array(pairs, arrow.struct({"bytes": arrow.binary(), "path": arrow.string()})),
                         "label": labels(files)})
    data = open_data(write(root / "paths.parquet", table)).train
    (root / "paths.parquet").unlink()
    assert data.row_names == tuple(map(str, files))
    same(data, open_data(str(root)).train)


@pytest.mark.parametrize(("cells", "says"), [
    (lambda good: [good, {"bytes": None, "path": None}], "the column 'image' holds no image in row 1"),
    (lambda good: [good, {"bytes": None, "path": "a.png"}], "the column 'image' holds no image in row 1"),
    (lambda good: [good, {"bytes": b"", "path": "a.png"}], "the column 'image' holds no image in row 1"),
    (lambda good: [{"bytes": b"no image", "path": None}], r"Image in row 0 of .*t.parquet cannot be read: it is none"),
    (lambda good: [{"bytes": b"no image", "path": "x\ny"}], r"Image x y cannot be read: it is none"),
    (lambda good: [], "has no rows")])
def test_cells_that_are_no_images(cells: Callable[[Any], Any], says: str, files: list[Path], tmp_path: Path):
    made = cells({"bytes": files[0].read_bytes(), "path": "good.png"})
    kind = arrow.struct({"bytes": arrow.binary(), "path": arrow.string()})
    table = arrow.table({"image": arrow.array(made, kind), "label": np.zeros(len(made), int)})
    path = write(tmp_path / "t.parquet", table)
    with pytest.raises(DataError, match=says):
        open_data(path)


@pytest.mark.parametrize("said", [b"{", b"[]", b'{"info": 1}', b'{"info": {"features": {"label": {"names": [1]}}}}',
                                  b'{"info": {"features": {"label": {"names": ["a", "a", "b"]}}}}',
                                  b'{"info": {"features": {"label": {"names": ["a", "b"]}}}}'])
def test_metadata_that_name_no_classes(said: bytes, files: list[Path], tmp_path: Path):
    """What is said is not believed where it is no list of names for all numbers."""
    table = table_of(files).replace_schema_metadata({"huggingface": said})
    data = open_data(write(tmp_path / "t.parquet", table)).train
    assert data.classes is None
    same(data, open_data(str(files[0].parents[1])).train)


def test_tables_of_images_without_room(files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "t.parquet", table_of(files))
    big = write(tmp_path / "big.parquet", arrow.table({"image": [bytes(1 << 24)] * 6, "label": [0] * 6}))
    monkeypatch.setattr("tileflow.kernels.machine.limits.memory",
                        lambda: type("Room", (), {"nbytes": 1 << 27, "limit": "a test"})())
    open_data(path)
    with pytest.raises(OutOfMemoryError, match=r"A part of table .*big.parquet needs .* smaller row groups"):
        open_data(big)
    monkeypatch.setattr("tempfile.mkstemp", lambda **_: (_full(), "/dev/full"))
    monkeypatch.setattr("tileflow.feed.unpacked._remove", lambda *_: None)
    with pytest.raises(DataError, match=r"a temporary file, and /dev does not take them: No space left .* TMPDIR"):
        open_data(path)


def _full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


# ---- folders of tables

@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_folder_of_tables_is_one_table(ending: str, files: list[Path], tmp_path: Path):
    """As the hub of Hugging Face's has them: in the order of their names, with the parts that these begin with."""
    whole = table_of(files)
    for name, rows in (("train-00001-of-00002", slice(10, COUNT)), ("train-00000-of-00002", slice(0, 10)),
                       ("test-00000-of-00001", slice(3, 9)), (".hidden", slice(0, 1))):
        write(tmp_path / f"{name}.{ending}", whole.slice(rows.start, rows.stop - rows.start))
    (tmp_path / "state.json").write_text("{}")
    data = open_data(str(tmp_path))
    wanted = open_data(str(files[0].parents[1])).train
    same(data.train, wanted)
    assert data.train.row_names == tuple(path.name for path in files)
    assert data.test is not None
    for found, other in zip(data.test.gather(np.arange(6)), wanted.gather(np.arange(3, 9)), strict=True):
        np.testing.assert_array_equal(found, other)
    only = tmp_path / "only"
    only.mkdir()
    write(only / f"testing.{ending}", whole)
    assert len(open_data(str(only)).train) == COUNT                      # a word that begins so is no part
    write(only / f"validation.{ending}", whole.slice(0, 5))
    assert [len(part) for part in open_data(str(only))[:2] if part is not None] == [COUNT, 5]


def test_tables_of_numbers_and_texts_in_a_folder(tmp_path: Path):
    """Categories are those of all files; the part to measure with has the training's."""
    parts = {"a": ([1.0, 2.0], ["red", "blue"], [0, 1]), "b": ([3.0], ["green"], [1])}
    for name, (size, colour, label) in parts.items():
        write(tmp_path / f"{name}.parquet", arrow.table({"size": size, "colour": colour, "label": label}))
    write(tmp_path / "test.parquet", arrow.table({"size": [4.0], "colour": ["red"], "label": [0]}))
    data = open_data(str(tmp_path), Options(categories=("colour",)))
    assert data.train.inputs["x"].tolist() == [[1, 3], [2, 1], [3, 2]]
    assert data.test is not None
    assert data.test.inputs["x"].tolist() == [[4, 3]]
    write(tmp_path / "c.parquet", arrow.table({"size": ["x"], "colour": ["red"], "label": [0]}))
    with pytest.raises(DataError, match=r"c.parquet has other columns than a.parquet: 'size' is not the same"):
        open_data(str(tmp_path), Options(categories=("colour",)))
    with pytest.raises(DataError, match=r"holds no file whose name ends in .arrow or .feather"):
        open_data(str(tmp_path), Options(data_format="arrow"))


# ---- names, and Pillow's images in rows

def test_names_of_numbers_stand_in_no_ones_way(files: list[Path], tmp_path: Path):
    """Data whose numbers have names and data whose numbers have none measure each other; other names, other classes."""
    model, named = onnx_file(tmp_path / "m.onnx"), write(tmp_path / "t.parquet", table_of(files))
    x, y = open_data(named, trained=Roles(images=WantedImages(3, 8, 8))).train.gather(np.arange(COUNT))

    class Named(Rows):
        features: ClassVar = {"label": SimpleNamespace(names=list(COLOURS))}

    def measured(data: Any, test: Any) -> list[float]:
        with pytest.warns(tileflow.TileflowWarning) as told:
            found = tileflow.train(model, data=data, test_data=test, micro_batch_size=6)
        assert any("the labels are whole numbers from 0 to 2" in str(w.message) for w in told)
        return list(found.history["test_loss"])
    rows = Named(files, True)
    assert open_data(rows).train.classes == COLOURS
    wanted = measured((x, y), (x, y))
    for data, test in ((named, (x, y)), (named, rows), (rows, (x, y)), (rows, named), ((x, y), named),
                       (rows, str(files[0].parents[1]))):
        assert measured(data, test) == wanted
    rows.features = {"label": SimpleNamespace(names=["blue", "green", "violet"])}
    with pytest.raises(DataError, match=r"labels that the training data do not have: 'red'"):
        tileflow.train(model, data=rows, test_data=named, micro_batch_size=6)
    for nothing in (None, {}, {"label": 1}, {"label": SimpleNamespace(names=[1, 2, 3])}):
        rows.features = nothing
        assert open_data(rows).train.classes is None


class Rows:
    """Rows by number, as PyTorch's: (image, class), or dicts as Hugging Face's."""

    def __init__(self, files: list[Path], named: bool = False) -> None:
        self.files, self.named = files, named

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> Any:
        if i >= len(self):
            raise IndexError(i)
        image, label = Image.open(self.files[i]), COLOURS.index(self.files[i].parent.name)
        return {"image": image, "label": label} if self.named else (image, label)


def test_rows_of_pillows_images_train_as_their_files_do(files: list[Path], tmp_path: Path):
    """In whatever way they come, and whoever reads them; their size is the model's."""
    model = onnx_file(tmp_path / "m.onnx")

    def history(data: Any, **setting: Any) -> list[float]:
        with pytest.warns(tileflow.TileflowWarning) as told:
            found = tileflow.train(model, data=data, micro_batch_size=6, epochs=2, shuffle=False, **setting).history
        assert any("Images become 8 x 8 pixels" in str(w.message) for w in told) == (data is not arrays)
        return [*found["loss"], *found["test_loss"][found["test_loss"] > 0]]
    images = open_data(str(files[0].parents[1]), trained=Roles(images=WantedImages(3, 8, 8))).train
    arrays = tuple(images.gather(np.arange(COUNT)))
    wanted = history(arrays)
    for data in (Rows(files), Rows(files, True), lambda: iter(Rows(files))):
        assert history(data) == wanted
    assert history(Rows(files), num_workers=1) == wanted

    class Many(Rows):
        """As PyTorch's Subset reads rows."""

        def __getitems__(self, rows: list[int]) -> list[Any]:
            return [self[i] for i in rows]
    assert history(Many(files)) == wanted
    parts = {"train": Rows(files), "test": Rows(files[:5]), "unsupervised": Rows(files)}
    assert history(parts)[:2] == wanted
    assert history(parts)[2:] == history(Rows(files), test_data=Rows(files[:5]))[2:]


def test_parts_by_their_names(files: list[Path]):
    """As DatasetDict has them: test goes before validation, and what has another name is left out."""
    data = open_data({"validation": Rows(files[:3]), "Train": Rows(files), "extra": Rows(files)})
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (COUNT, 3)
    assert "extra is left out" in " ".join(data.train.notes)
    both = open_data({"train": Rows(files), "validation": Rows(files[:3]), "test": Rows(files[:4])})
    assert both.test is not None
    assert len(both.test) == 4
    assert open_data({"train": Rows(files)}).test is None
    x = np.ones((4, 2))
    assert [*open_data({"x_train": x, "y_train": x[:, 0]}).train.fields] == ["x"]           # arrays are as they were


def test_what_pillows_images_become(files: list[Path]):
    grey = Image.open(files[0]).convert("L")
    deep = Image.fromarray(np.arange(80, dtype=np.int32).reshape(8, 10))
    assert is_picture(grey)
    assert not is_picture(deep)                              # numbers, as Pillow gives them
    assert not is_picture(np.asarray(grey))

    def first(image: Any, wanted: WantedImages | None = None, **setting: Any) -> np.ndarray:
        rows = Rows(files)
        rows.__class__ = type("Ones", (Rows,), {"__getitem__": lambda self, i: (image, 0)})
        roles = Roles(images=wanted or WantedImages())
        return np.asarray(open_data(rows, Options(**setting), roles).train.inputs["x"][:1])[0]
    np.testing.assert_array_equal(first(grey), np.asarray(grey)[None])
    np.testing.assert_array_equal(first(deep), np.asarray(deep))
    assert first(grey, WantedImages(3, 4, 4, True)).shape == (4, 4, 3)
    assert first(grey, WantedImages(3, 4, 4), image_size=(6, 5)).shape == (3, 6, 5)
    own = open_data(Rows(files), collate_fn=lambda rows: (np.stack([np.asarray(r[0]) for r in rows]),
                                                         np.array([r[1] for r in rows])))
    assert own.train.inputs["x"].shape == (COUNT, 8, 10, 3)               # one's own function gets them as they are


def test_a_copy_of_the_process_leaves_what_was_unpacked() -> None:
    """A forked child that ends is not the end of the file, and the end of its maker is."""
    script = """
import os, sys
from tileflow.feed.unpacked import Unpacked
made = Unpacked([(b"one", "a"), (b"three", "b")])
if not os.fork():
    sys.exit(0)
os.wait()
print(made[1].opened().read().decode(), made.file)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert said[0] == "three"
    assert not os.path.exists(said[1])
