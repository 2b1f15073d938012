"""Images out of folders and lists: what they become, who decodes them and how often, augmentation, and files that are
not what they say."""
from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import model_of, node, port
from peers import needs

import tileflow
from tileflow import cli, nn
from tileflow.feed import images as decoding
from tileflow.feed.images import ImageForm, Images, decoded
from tileflow.feed.kept import KeptRows
from tileflow.importers.onnx import load_model
from tileflow.options.options import Options
from tileflow.runtime.data import DataLoader, Dataset, open_data
from tileflow.runtime.data.augmentation import MIXES, Augmentation, Draws
from tileflow.runtime.preprocessing import Preprocessing
from tileflow.system.errors import DataError, OptionError

Image = needs("PIL.Image")
ImageOps = needs("PIL.ImageOps")
rng = np.random.default_rng(6)
COLOURS = ("blue", "green", "red")


def paint(path: Path, kind: int = 0, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> Path:
    """An image of a colour, with noise."""
    pixels = rng.integers(0, 120, (size[1], size[0], 3))
    pixels[..., 2 - kind] += 110
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).convert(mode).save(path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """26 images of three classes to train with and 6 to measure with."""
    root = tmp_path_factory.mktemp("images")
    for part, count in (("train", 26), ("val", 6)):
        for i in range(count):
            paint(root / part / COLOURS[i % 3] / ("deep" if i % 2 else "") / f"{i:02}.png", i % 3)
    return root


class Flat(nn.Module):
    def __init__(self) -> None:
        nn.manual_seed(1)
        self.linear = nn.Linear(3 * 8 * 8, 3)

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        return self.linear(x.flatten(1))


def onnx_file(path: Path, *dims: Any) -> Path:
    """A classifier of images [N, *dims] by the mean of each channel."""
    weights = {"w": rng.standard_normal((3, 3)).astype(np.float32), "b": np.zeros(3, np.float32)}
    nodes = [node("GlobalAveragePool", ["x"], ["p"]), node("Flatten", ["p"], ["f"]),
             node("Gemm", ["f", "w", "b"], ["scores"])]
    made = model_of(nodes, [port("x", ["N", *dims])], ["scores"], weights)
    path.write_bytes(made.SerializeToString())
    return path


# ---- what there is, and what it becomes

def test_folders_and_lists(folder: Path, tmp_path: Path):
    data = open_data(str(folder))
    assert data.test is not None
    assert (len(data.train), len(data.test), data.train.classes) == (26, 6, COLOURS)
    assert data.train.labels is not None
    assert [Path(p).parts[-2 - ("deep" in p)] for p in data.train.row_names] == [COLOURS[i] for i in data.train.labels]
    first = np.asarray(Image.open(data.train.row_names[0]))
    np.testing.assert_array_equal(data.train.inputs["x"][:1][0], first.transpose(2, 0, 1))
    names = [os.path.relpath(p, folder) for p in data.train.row_names]
    table = folder / "list.csv"
    rows = [f"{COLOURS[y]},{n}\n" for n, y in zip(names, data.train.labels, strict=True)]
    table.write_text("kind,file\n" + "".join(rows))
    listed = open_data(str(table)).train
    assert listed.row_names == tuple(f"{folder}/{n}" for n in names)
    assert (listed.classes, listed.label_name) == (COLOURS, "kind")
    assert listed.digest() == data.train.digest()
    table.write_text("file,price\n" + "".join(f"{n},{i / 2}\n" for i, n in enumerate(names)))
    priced = open_data(str(table)).train
    assert priced.classes is None
    assert priced.labels is not None
    assert priced.labels.tolist() == [i / 2 for i in range(26)]
    table.write_text("\n".join(names))                                # no header, no labels
    assert open_data(str(table)).train.label is None
    os.link(data.train.row_names[0], folder / "extra.png")
    (folder / "extra.png").rename(tmp_path / "0.png")
    (tmp_path / "notes.txt").write_text("x")
    bare = open_data(str(tmp_path)).train
    assert (len(bare), bare.label) == (1, None)
    assert "1 file is left out, by the name no image" in bare.notes[0]
    table.unlink()


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "1", "LA"])
def test_modes_and_sizes_are_pillows(mode: str, tmp_path: Path):
    """Another size is Pillow's own `ImageOps.fit`, of the image in the channels that are wanted."""
    path = str(paint(tmp_path / "a.png", 1, (23, 14), mode))
    for channels, wanted in decoding.MODES.items():
        image = Image.open(path).convert(wanted)
        same = decoded(path, ImageForm(channels, 14, 23, last=True))
        np.testing.assert_array_equal(same, np.asarray(image).reshape(14, 23, channels))
        fitted = np.asarray(ImageOps.fit(image, (9, 12), Image.Resampling.BILINEAR)).reshape(12, 9, channels)
        assert np.abs(decoded(path, ImageForm(channels, 12, 9)).transpose(1, 2, 0).astype(int) - fitted).max() <= 1


def test_a_camera_that_was_turned(tmp_path: Path):
    image = Image.fromarray(rng.integers(0, 255, (6, 4, 3), np.uint8))
    tags = image.getexif()
    tags[0x0112] = 6                                              # turned by a quarter
    image.save(tmp_path / "a.jpg", exif=tags, quality=95)
    turned = decoded(str(tmp_path / "a.jpg"), ImageForm(3, 4, 6, last=True))
    np.testing.assert_array_equal(turned, np.asarray(ImageOps.exif_transpose(Image.open(tmp_path / "a.jpg"))))


def test_the_size_is_the_options_the_models_or_the_first_images(folder: Path, tmp_path: Path):
    def shape(model: Path | None, **options: Any) -> tuple[int, ...]:
        known = Preprocessing.of_file(load_model(model)).roles if model else None
        return open_data(str(folder), Options(**options), known).train.fields["x"].sample
    assert shape(None) == (3, 8, 8)
    assert shape(None, image_size=5) == (3, 5, 5)
    assert shape(onnx_file(tmp_path / "a.onnx", 1, 6, 7)) == (1, 6, 7)
    assert shape(onnx_file(tmp_path / "b.onnx", 3, "H", "W"), image_size=(4, 6)) == (3, 4, 6)
    assert shape(onnx_file(tmp_path / "c.onnx", 6, 7, 3)) == (6, 7, 3)
    with pytest.raises(DataError, match="images of 5 channels; image files are read as 1"):
        shape(onnx_file(tmp_path / "d.onnx", 5, 6, 7))
    with pytest.raises(OptionError, match="a height and a width"):
        Options(image_size=(1, 2, 3))


def test_infer_writes_names_and_decodes_as_the_training_did(folder: Path, tmp_path: Path,
                                                            capsys: pytest.CaptureFixture[str]):
    """A file that leaves the size open keeps the one of its training; names of classes and files stand beside the
    outputs."""
    model = onnx_file(tmp_path / "a.onnx", 3, "H", "W")
    run = ["train", str(model), "--data", str(folder), "--epochs", "12", "--micro-batch-size", "4", "--learning-rate",
           "0.5", "--image-size", "6,5"]
    assert cli.main([*run, "--out", str(tmp_path / "run")]) == 0
    assert "Images become 5 x 6 pixels: the middle of each" in capsys.readouterr().err
    trained = Preprocessing.of_file(load_model(tmp_path / "run" / "model.onnx"))
    assert trained.roles.images == (3, 6, 5, False)
    assert cli.main(["infer", str(tmp_path / "run" / "model.onnx"), "--data", str(folder / "val"), "--out",
                     str(tmp_path / "p.npz")]) == 0
    assert "accuracy 100.00% of 6 rows" in capsys.readouterr().out
    with np.load(tmp_path / "p.npz") as found:
        assert found["predicted_class"].tolist() == [Path(p).parent.name if "deep" not in p
                                                     else Path(p).parent.parent.name for p in found["row"]]
        assert len(found["row"]) == 6


# ---- decoded once, by whoever; the same bits

def count_decodes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    real = decoding.decoded
    monkeypatch.setattr(decoding, "decoded", lambda path, form: (seen.append(path), real(path, form))[1])
    return seen


@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
def test_images_are_decoded_once_as_far_as_there_is_room(folder: Path, share: float, monkeypatch: pytest.MonkeyPatch):
    seen = count_decodes(monkeypatch)
    data = open_data(str(folder)).train
    assert isinstance(data.source, KeptRows)
    plain = [a.copy() for a in data.gather(np.arange(26))]
    data.source.__init__(data.source.data, int(share * 26 * (3 * 64 + 8)))             # type: ignore[misc]
    loader = DataLoader(Options(micro_batch_size=5, drop_last=False), data, drop_last=False)
    rows = int(26 * share)
    for epoch in range(3):
        seen.clear()
        order = loader.order(epoch)
        batches = list(loader)
        for i, a in enumerate(plain):
            np.testing.assert_array_equal(np.concatenate([b[i] for b in batches]), a[order])
        assert len(seen) == (26 if epoch == 0 else 26 - rows)
    assert data.source.holds(np.arange(rows))
    assert data.source.holds() == (share == 1)
    half = data.part(np.arange(0, 26, 2))
    assert half.reader().holds() == (share == 1)


def test_workers_decode_and_leave_when_nothing_is_left_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch):
    seen = count_decodes(monkeypatch)
    data = open_data(str(folder)).train
    seen.clear()
    loader = DataLoader(Options(micro_batch_size=6), data, drop_last=False, num_workers=2)
    first = list(loader)
    assert loader._workers is not None
    assert not seen                                             # here nobody decodes what workers do
    second = list(loader)
    assert loader._workers is None
    assert not seen
    assert [len(b[1]) for b in first] == [len(b[1]) for b in second] == [6, 6, 6, 6, 2]
    plain = open_data(str(folder)).train.gather(np.concatenate([loader.order(0), loader.order(1)]))
    for i, a in enumerate(plain):
        np.testing.assert_array_equal(np.concatenate([b[i] for b in [*first, *second]]), a)


def trained(data: Any, out: Path | None = None, **setting: Any) -> np.ndarray:
    net = Flat()
    more = {"out": str(out)} if out is not None else {}
    setting = {"epochs": 2, "micro_batch_size": 4, "learning_rate": 0.1, "seed": 5, **more, **setting}
    tileflow.train(net, data=data, **setting)
    return net.linear.weight.data.copy()


def test_images_train_as_arrays_do(folder: Path):
    data = open_data(str(folder)).train
    x, y = (np.asarray(a) for a in data.gather(np.arange(26)))
    np.testing.assert_array_equal(trained(str(folder)), trained((x, y)))


@pytest.mark.parametrize("names", [("flip", "crop", "color"), ("flip", "mixup", "cutmix")], ids=str)
def test_augmented_runs_are_the_same_for_all_and_go_on(names: tuple[str, ...], folder: Path, tmp_path: Path):
    """Workers, threads, calls of several updates, a stop in the middle of a call: the same bits; without augmentation
    others."""
    wanted = trained(str(folder), augment=names)
    assert not np.array_equal(wanted, trained(str(folder)))
    for setting in ({"num_workers": 2}, {"threads": 1, "prefetch": 0}, {"threads": 3, "device_iterations": 3}):
        np.testing.assert_array_equal(trained(str(folder), augment=names, **setting), wanted)
    whole = trained(str(folder), augment=names, device_iterations=3, epochs=3)
    for stop in (2, 7):
        trained(str(folder), tmp_path / str(stop), augment=names, device_iterations=3, epochs=3, max_updates=stop)
        resumed = trained(str(folder), tmp_path / str(stop), augment=names, device_iterations=3, epochs=3,
                          max_updates=99, resume=True)
        np.testing.assert_array_equal(resumed, whole)


# ---- augmentation

def made(names: tuple[str, ...], x: np.ndarray, y: np.ndarray, micro: int = 4,
         **options: Any) -> tuple[Augmentation, Dataset]:
    from tileflow.memory.types import TensorType
    data = Dataset.of({"x": x}, y).adapt_to({"x": TensorType("float32", x.shape)}, options=Options(**options))
    return Augmentation.of(names, data, 3, micro), data


def test_each_augmentation_by_its_definition():
    x = rng.integers(0, 256, (64, 3, 16, 8)).astype(np.uint8)
    y = np.eye(64, dtype=np.float32)
    for name, last in (("flip", False), ("crop", False), ("crop", True), ("color", False), ("cutmix", False),
                       ("mixup", True)):
        scale = {"mean": (0.5, 0.2, 0.1), "std": (2.0, 1.0, 0.5)}
        augment, data = made((name,), x.transpose(0, 2, 3, 1).copy() if last else x, y, **scale)
        before = data.gather(np.arange(64))
        out, labels = augment(tuple(a.copy() for a in before), 0, 0)
        plain = before[0].transpose(0, 3, 1, 2) if last else before[0]
        out = out.transpose(0, 3, 1, 2) if last else out
        black = ((0 - np.array([0.5, 0.2, 0.1])) / [2.0, 1.0, 0.5]).astype(np.float32)[:, None, None]
        if name == "flip":
            turned = [np.array_equal(a, b[:, :, ::-1]) for a, b in zip(out, plain, strict=True)]
            assert all(t or np.array_equal(a, b) for t, a, b in zip(turned, out, plain, strict=True))
            assert 16 < sum(turned) < 48
        elif name == "crop":
            seen = set()
            for a, b in zip(out, plain, strict=True):
                padded = np.broadcast_to(black, (3, 20, 10)).copy()
                padded[:, 2:18, 1:9] = b
                seen.add(next((i, j) for i in range(5) for j in range(3)
                              if np.array_equal(a, padded[:, i:i + 16, j:j + 8])))
            assert len(seen) > 10                                            # of 15
        elif name == "color":
            pixels = out * np.array([2.0, 1.0, 0.5])[:, None, None] + np.array([0.5, 0.2, 0.1])[:, None, None]
            assert pixels.min() > -1e-6
            assert pixels.max() < 1 + 1e-6
            assert not np.array_equal(out, plain)
            assert 0.6 < pixels.mean() / (x / 255).mean() < 1.4
        elif name == "mixup":
            np.testing.assert_allclose(out, np.einsum("ij,j...->i...", labels, plain), atol=1e-6)
        else:
            kept = (out == plain).all(axis=1).mean(axis=(1, 2))
            np.testing.assert_allclose(np.diag(labels), kept, atol=0.04)
        if name in ("flip", "crop", "color"):
            np.testing.assert_array_equal(labels, y)
            again = augment(tuple(a[10:20].copy() for a in before), 0,
                            10)[0]                     # a row's does not depend on its batch
            np.testing.assert_array_equal(again, (out.transpose(0, 2, 3, 1) if last else out)[10:20])
        else:
            np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-6)
            assert not labels[:4, 4:].any()                                  # mixed within a micro-batch
        other = augment(tuple(a.copy() for a in before), 1, 0)[0]
        assert not np.array_equal(other, out.transpose(0, 2, 3, 1) if last else out)


def test_shares_of_mixing_have_the_beta_distribution():
    from_numpy = rng.beta(0.2, 0.2, 4000)
    ours = [Draws(0, 0, MIXES, i).beta(0.2) for i in range(4000)]
    np.testing.assert_allclose(np.quantile(ours, [0.3, 0.5, 0.7]), np.quantile(from_numpy, [0.3, 0.5, 0.7]), atol=0.08)


def test_validation_rows_are_not_augmented_and_labels_may_be_any(folder: Path):
    result = tileflow.train(Flat(), data=str(folder), epochs=1, micro_batch_size=4, augment=("mixup", "flip"),
                            class_weights="balanced")
    assert result.evaluate(str(folder)) == result.evaluate(str(folder))
    assert result.confusion_matrix().sum() == 6
    x = rng.standard_normal((8, 3, 8, 8)).astype(np.float32)
    numbers = rng.standard_normal((8, 3)).astype(np.float32)
    assert tileflow.train(Flat(), data=(x, numbers), loss="mse", micro_batch_size=4,
                          augment="mixup").history["loss"][0] > 0


@pytest.mark.parametrize(("setting", "says"), [
    ({"augment": "spin"}, "Option augment takes flip, crop, color, mixup, cutmix, not 'spin'"),
    ({"augment": "flip", "data": (np.zeros((8, 192), np.float32), np.arange(8) % 3)}, "single input of images"),
    ({"augment": "cutmix", "loss": "focal"}, "focal takes class numbers, not their probabilities"),
    ({"augment": "mixup", "loss": "dice"}, "labels, which the loss dice does not take so"),
    ({"augment": "mixup", "ignore_index": 1}, "probabilities have none"),
])
def test_augmentations_that_are_refused(setting: dict[str, Any], says: str):
    x, y = np.zeros((8, 3, 8, 8), np.float32), np.arange(8) % 3
    with pytest.raises((OptionError, DataError), match=says):
        tileflow.train(Flat(), **{"data": (x, y), "micro_batch_size": 4, "loss": "cross_entropy", **setting})


# ---- files that are not what they say

def png_of(width: int, height: int, data: bytes = b"") -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", data) + chunk(b"IEND", b"")


HOSTILE = {
    "bomb": (png_of(60_000, 60_000, zlib.compress(bytes(100_000))),
             r"60,000 x 60,000 pixels|claims|decompression bomb"),
    "large": (png_of(9_000, 9_000, zlib.compress(bytes(1000))),
              "9,000 x 9,000 pixels, and 67,108,864 are taken at most"),
    "nothing": (png_of(0, 8), "none of PNG|0 x 8"),
    "short": (png_of(8, 8, zlib.compress(rng.bytes(200)))[:150], "truncated|data stream"),
    "text": (b"<html>not an image</html>", "none of PNG, JPEG"), "empty": (b"", "none of PNG, JPEG"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", "none of PNG, JPEG"),
    "broken": (png_of(8, 8, b"\0" * 20), "broken data stream")}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.filterwarnings("ignore:Image size")
def test_files_that_lie_are_named(case: str, tmp_path: Path):
    paint(tmp_path / "a" / "0.png")
    content, says = HOSTILE[case]
    (tmp_path / "a" / "1.png").write_bytes(content)
    with pytest.raises(DataError, match=r"Image \S+/a/1.png cannot be read: .*(" + says + ")"):
        open_data(str(tmp_path)).train.gather(np.array([1]))


def test_cut_files_deep_pixels_pipes_and_files_that_vanish(tmp_path: Path):
    whole = paint(tmp_path / "a" / "0.jpg", size=(40, 40)).read_bytes()
    bad = tmp_path / "a" / "1.jpg"
    bad.write_bytes(whole[:len(whole) // 2])
    data = open_data(str(tmp_path)).train
    with pytest.raises(DataError, match=r"1.jpg cannot be read: image file is truncated"):
        data.gather(np.array([1]))
    bad.unlink()
    with pytest.raises(DataError, match=r"1.jpg cannot be read: No such file"):
        data.gather(np.array([1]))
    bad.symlink_to(bad)
    with pytest.raises(DataError, match=r"1.jpg cannot be read: Too many levels"):
        data.gather(np.array([1]))
    bad.unlink()
    os.mkfifo(bad)
    with pytest.raises(DataError, match=r"1.jpg cannot be read: it is a fifo"):
        data.gather(np.array([1]))
    bad.unlink()
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(tmp_path / "a" / "1.png")
    with pytest.raises(DataError, match=r"1.png cannot be read: its pixels are no bytes"):
        open_data(str(tmp_path)).train.gather(np.array([1]))
    (tmp_path / "a" / "1.png").unlink()
    np.testing.assert_array_equal(data.gather(np.array([0]))[0].shape, (1, 3, 40, 40))


def test_a_worker_tells_which_file_was_damaged_and_the_run_keeps_its_state(tmp_path: Path):
    for i in range(8):
        paint(tmp_path / "data" / COLOURS[i % 2] / f"{i}.png", i % 2)
    bad = tmp_path / "data" / "blue" / "6.png"
    real = bad.read_bytes()
    bad.write_bytes(real[:60])
    run: dict[str, Any] = {"micro_batch_size": 2, "epochs": 1, "shuffle": False, "num_workers": 1}
    with pytest.raises(DataError, match=r"blue/6.png cannot be read"):
        trained(str(tmp_path / "data"), tmp_path / "run", **run)
    bad.write_bytes(real)
    assert np.isfinite(trained(str(tmp_path / "data"), tmp_path / "run", **run, resume=True)).all()


@pytest.mark.parametrize(("make", "says"), [
    (lambda d: paint(d / "0.png") and paint(d / "a" / "1.png"),
     "images in folders, whose names are their classes, and others beside"),
    (lambda d: (d / "a").mkdir(), "holds no data that tileflow knows"),
    (lambda d: paint(d / "train" / "a" / "0.png") and paint(d / "val" / "a" / "0.png")
     and paint(d / "test" / "a" / "0.png"), "two folders for one"),
    (lambda d: paint(d / "train" / "a" / "0.png") and (d / "test" / "a").mkdir(parents=True), "has no images in it"),
])
def test_folders_that_are_refused(make: Any, says: str, tmp_path: Path):
    make(tmp_path)
    with pytest.raises(DataError, match=says):
        open_data(str(tmp_path))


def test_links(tmp_path: Path):
    """A class may be a link; below one nobody follows links to folders, which may lead back."""
    paint(tmp_path / "far" / "0.png")
    root = tmp_path / "data"
    paint(root / "a" / "0.png")
    (root / "b").symlink_to(tmp_path / "far")
    (root / "a" / "back").symlink_to(root)
    (root / "a" / "1.png").symlink_to(tmp_path / "far" / "0.png")
    (root / ".hidden").mkdir()
    data = open_data(str(root)).train
    assert data.classes == ("a", "b")
    assert [Path(p).name for p in data.row_names] == ["0.png", "1.png", "0.png"]


@pytest.mark.parametrize(("text", "says"), [
    ("file,y\na.png,1\nnotes.txt,2\n", "line 3, column file: 'notes.txt' is not the name of such a file"),
    ("file,y\na.png,1\nb.png\n", "line 3, has 1 cells"),
    ("file,y\na.png," + "x" * 200_000 + "\n", "field larger than field limit"),
    ("file,y\na.png,1\na.png,\n", "line 3, column y: there is no label"),
    ("file,y\ngone.png,1\n", "gone.png cannot be read: No such file"),
])
def test_lists_that_are_refused(text: str, says: str, tmp_path: Path):
    paint(tmp_path / "a.png")
    (tmp_path / "l.csv").write_text(text)
    with pytest.raises(DataError, match=says):
        open_data(str(tmp_path / "l.csv"))


def test_images_is_what_decodes(tmp_path: Path):
    """The reader is small to send: paths and the form, no pixels."""
    import pickle
    paint(tmp_path / "0.png")
    kept = KeptRows(Images([str(tmp_path / "0.png")], ImageForm(3, 8, 8)), 1 << 20)
    kept.read(np.array([0]))
    copy = pickle.loads(pickle.dumps(kept))
    assert (copy.room, copy.holds()) == (0, False)
    np.testing.assert_array_equal(copy.read(np.array([0]))[0], kept.read(np.array([0]))[0])
    assert not copy.holds()
