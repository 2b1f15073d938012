"""A start that finds by the file what an earlier one came to: nothing is imported, the same numbers come out, all that
a user may ask for afterwards is there; and whatever differs is made anew."""
from __future__ import annotations

import dataclasses
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import model_of, node, port
from places import PATH, ROOT

import tileflow
from tileflow import optim
from tileflow.executable import notes, store
from tileflow.graph import Builder, Value
from tileflow.kernels.machine import cache
from tileflow.runtime import code_key, front, imports, model_file, trained_file
from tileflow.system.errors import CheckpointError, DataError, ModelError, OptionError

DRAW = np.random.default_rng(8)
X, Y = DRAW.standard_normal((8, 6)).astype(np.float32), np.arange(8) % 3
WIDE = 300
"""Columns of a weight that is too large to stand in a note."""
HEAVY = {"graph", "ops", "importers", "lower", "passes", "host", "compiler", "nn", "tiles", "report", "exploration",
         "exact"}
"""Parts of the house that a start with everything kept does without."""


def network(folder: Path, seed: int = 0, **saved: Any) -> Path:
    """Two layers and a batch normalisation, whose running statistics training moves."""
    draw = np.random.default_rng(seed)
    weights = {"w": draw.standard_normal((6, WIDE)), "b": draw.standard_normal(WIDE),
               "v": draw.standard_normal((WIDE, 3)), "c": np.zeros(3),
               "scale": np.ones(WIDE), "shift": np.zeros(WIDE), "mean": np.zeros(WIDE), "var": np.ones(WIDE)}
    nodes = [node("Gemm", ["x", "w", "b"], ["h"]),
             node("BatchNormalization", ["h", "scale", "shift", "mean", "var"], ["n"]),
             node("Relu", ["n"], ["r"]), node("Gemm", ["r", "v", "c"], ["y"])]
    proto = model_of(nodes, [port("x", ["N", 6])], [port("y", ["N", 3])],
                     {k: a.astype(np.float32) for k, a in weights.items()})
    path = folder / "net.onnx"
    onnx.save(proto, path, **saved)
    return path


def other(path: Path, doc: str) -> None:
    """Make another file of it, of the same model."""
    proto = onnx.load(path)
    proto.doc_string = doc
    onnx.save(proto, path)


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Keys of this test's own, kept; what is imported meanwhile, which is what is not found."""
    made: list[str] = []
    real = imports.import_graph

    def noted(*args: Any, **given: Any) -> Any:
        made.append("a graph")
        return real(*args, **given)
    monkeypatch.setattr(imports, "import_graph", noted)
    monkeypatch.setattr(store, "enabled", True)
    for module in (front, model_file):
        monkeypatch.setattr(module, "all_code", lambda: f"code of {tmp_path}")
    read, write, own = store.read, store.write, f"note-{os.getpid()}-{tmp_path.name}-"
    monkeypatch.setattr(store, "read", lambda name: read(name.replace("note-", own)))
    monkeypatch.setattr(store, "write", lambda name, data: write(name.replace("note-", own), data))
    yield made
    for path in cache.folder().glob(f"{own}*"):
        path.unlink(missing_ok=True)


def train(path: Path, calls: int = 2, **given: Any) -> dict[str, bytes]:
    """What calls return and what weights are after them."""
    model = tileflow.training_model(path, **given)
    count = model.options.device_iterations * model.options.gradient_accumulation
    found = {f"call {i}": np.concatenate([np.ravel(a) for a in model(np.tile(X, (count, 1)), np.tile(Y, count))])
             for i in range(calls)}
    return {name: np.asarray(a).tobytes()
            for name, a in (found | model.state_dict() | model.optimizer_state_dict()).items()}


def infer(path: Path, **given: Any) -> bytes:
    return np.asarray(tileflow.inference_model(path, **given)(X)).tobytes()


STARTS = """
import sys
import numpy as np
import tileflow
verb, path, out = sys.argv[1:]
x, y = np.load("x.npy"), np.load("y.npy")
if verb == "train":
    found = tileflow.training_model(path, optimizer="adamw", gradient_accumulation=2)(x, y)
else:
    found = (tileflow.inference_model(path)(x),)
np.savez(out, *[np.asarray(a) for a in found])
rooms = {m.split(".")[1] for m in sys.modules if m.startswith("tileflow.")}
print(*sorted(rooms), *({"numba", "onnx"} & {*sys.modules}))
"""


@pytest.mark.parametrize("verb", ["train", "infer"])
def test_a_warm_start_imports_neither_graph_nor_compiler(tmp_path: Path, verb: str):
    """The second process does not; the first imports all of it, and the third, which gets another file."""
    path = network(tmp_path)
    other(path, secrets.token_hex())                                   # a file that no earlier run of these tests had
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)

    def start(name: str) -> set[str]:
        done = subprocess.run([sys.executable, "-c", STARTS, verb, str(path), str(tmp_path / name)], cwd=tmp_path,
                              text=True, env={**os.environ, "PYTHONPATH": PATH}, capture_output=True)
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split())
    cold, warm = start("cold.npz"), start("warm.npz")
    assert cold >= {"graph", "ops", "importers", "onnx"}
    assert not warm & {*HEAVY, "numba", "onnx"}, warm
    with np.load(tmp_path / "cold.npz") as a, np.load(tmp_path / "warm.npz") as b:
        assert [a[k].tobytes() for k in a.files] == [b[k].tobytes() for k in b.files]
    other(path, secrets.token_hex())
    assert start("other.npz") >= {"graph", "ops", "importers"}


GIVEN: list[dict[str, Any]] = [
    {}, {"gradient_accumulation": 2, "device_iterations": 2, "optimizer": "adamw"}, {"threads": 1},
    {"threads": 3, "output_mode": "all"},
    {"replication_factor": 2, "micro_batch_size": 4}, {"frozen": ("w",)},
    {"loss_scaling": 8.0, "automatic_loss_scaling": "dynamic"},
    {"optimizer": optim.SGD(lr=0.1, momentum=0.9)}, {"anchored_tensors": ("h",)}]


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_training_is_the_same_and_all_that_is_asked_afterwards(tmp_path: Path, imported: list[str],
                                                               given: dict[str, Any]):
    path = network(tmp_path)
    cold = train(path, **given)
    assert imported
    imported.clear()
    assert train(path, **given) == cold
    imported.clear()
    model = tileflow.training_model(path, **given)
    count = model.options.device_iterations * model.options.gradient_accumulation
    first = model(np.tile(X, (count, 1)), np.tile(Y, count))
    assert not imported
    assert len(first) == 2
    names = [v.name for v in model.program.inputs]
    assert names == ["x", "labels"]
    assert imported == ["a graph"], "the program was asked for"
    assert model.fingerprint
    assert model.view is not None
    if given.get("anchored_tensors"):
        assert model.anchored("h").shape[-1] == WIDE


def test_what_is_saved_is_the_same(tmp_path: Path, imported: list[str]):
    """Weights, the optimizer's state and the trained file, whether its start was the first or not."""
    path, saved = network(tmp_path), []
    for i in range(2):
        model = tileflow.training_model(path, optimizer="adamw")
        model(X, Y)
        model.save_onnx(tmp_path / f"trained{i}.onnx")
        saved.append((tmp_path / f"trained{i}.onnx").read_bytes())
        del model
    assert saved[0] == saved[1]


def test_inference_sees_what_training_beside_it_does(tmp_path: Path, imported: list[str]):
    path, found = network(tmp_path), []
    for _ in range(2):
        training, inference = tileflow.training_model(path), tileflow.inference_model(path)
        before = inference(X)
        training(X, Y)
        found.append((before.tobytes(), inference(X).tobytes()))
        assert found[-1][0] != found[-1][1]
        del training, inference
    assert found[0] == found[1]


# ---- what is another model

def test_a_changed_file_is_another(tmp_path: Path, imported: list[str]):
    path = network(tmp_path)
    wanted = infer(path)
    proto = onnx.load(path)
    weight = next(t for t in proto.graph.initializer if t.name == "v")
    changed = onnx.numpy_helper.to_array(weight).copy()
    changed[0, 0] += 1
    weight.raw_data = changed.tobytes()
    onnx.save(proto, path)
    imported.clear()
    assert infer(path) != wanted
    assert imported


@pytest.mark.parametrize("folder", ["", "beside"])
def test_external_data_count(tmp_path: Path, imported: list[str], folder: str):
    """They are read from where they are; one changed byte of them is another model; without them there is the sentence
    that there always is."""
    if folder:
        (tmp_path / folder).mkdir()
    path = network(tmp_path, save_as_external_data=True, location=os.path.join(folder, "net.data"), size_threshold=0)
    data = tmp_path / folder / "net.data"
    wanted = infer(path)
    imported.clear()
    assert infer(path) == wanted
    assert not imported
    content = bytearray(data.read_bytes())
    content[4 * WIDE + 3] ^= 1
    data.write_bytes(content)
    assert infer(path) != wanted
    assert imported
    data.unlink()
    with pytest.raises(ModelError, match="needs the external file"):
        infer(path)


@pytest.mark.parametrize("changed", [
    {"optimizer": "adamw"}, {"optimizer": optim.SGD(lr=0.1, momentum=0.5)}, {"gradient_accumulation": 2},
    {"device_iterations": 2},
    {"frozen": ("w",)}, {"trainable": ("v",)}, {"loss": "nll"}, {"label_smoothing": 0.1}, {"loss_scaling": 2.0},
    {"precision": "16-mixed"}, {"gradient_checkpointing": ("*",)}, {"micro_batch_size": 8}], ids=str)
def test_changed_options_are_another_and_their_own(tmp_path: Path, imported: list[str], changed: dict[str, Any]):
    path = network(tmp_path)
    train(path)
    imported.clear()
    first = train(path, **changed)
    assert imported
    assert train(path, **changed) == first
    imported.clear()
    train(path)
    assert not imported


def test_what_may_change_while_it_runs_is_no_other(tmp_path: Path, imported: list[str]):
    """A learning rate is a number that the update reads."""
    path = network(tmp_path)
    train(path, optimizer=optim.SGD(lr=0.1))
    imported.clear()
    assert train(path, optimizer=optim.SGD(lr=0.2)) != train(path, optimizer=optim.SGD(lr=0.1))
    assert not imported


def test_other_rows_are_another(tmp_path: Path, imported: list[str]):
    path = network(tmp_path)
    for rows in (8, 5, 8, 5):
        found = tileflow.inference_model(path)(X[:rows])
        assert found.shape == (rows, 3)
    assert len(imported) == 2


def own_loss(b: Builder, outputs: Any) -> Value:
    return b.ReduceMean(b.Mul(outputs[0], outputs[0]), keepdims=0)          # type: ignore[no-any-return]


@dataclasses.dataclass
class OwnSGD(optim.SGD):
    """An optimizer of somebody's own."""


@pytest.mark.parametrize("given", [{"loss": own_loss}, {"optimizer": OwnSGD(lr=0.1)}, {"detect_anomaly": True}],
                         ids=["loss", "optimizer", "anomaly"])
def test_what_cannot_be_written_down_is_made_anew(tmp_path: Path, imported: list[str], given: dict[str, Any]):
    """Code of somebody's own may be another the next time, under the same name."""
    path = network(tmp_path)
    for _ in range(2):
        model = tileflow.training_model(path, **given)
        model(*((X,) if given.get("loss") else (X, Y)))
        del model
    assert len(imported) == 2


def test_sentences_of_making_a_program_are_said_by_every_start(tmp_path: Path, imported: list[str]):
    """No gradient comes through whole numbers; what says so is not kept, so it is said each time."""
    draw = np.random.default_rng(0)
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Cast", ["h"], ["i"], to=onnx.TensorProto.INT32),
             node("Cast", ["i"], ["r"], to=onnx.TensorProto.FLOAT), node("MatMul", ["r", "v"], ["y"])]
    path = tmp_path / "net.onnx"
    weights = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in (("w", (6, 4)), ("v", (4, 3)))}
    onnx.save(model_of(nodes, [port("x", ["N", 6])], [port("y", ["N", 3])], weights), path)
    for _ in range(2):
        with pytest.warns(UserWarning, match="Not trained, because no gradient gets there: w"):
            tileflow.training_model(path)(X, Y)


def test_a_line_changed_anywhere_is_other_code(tmp_path: Path):
    package = tmp_path / "tileflow"
    shutil.copytree(ROOT / "tileflow", package, symlinks=False, ignore=shutil.ignore_patterns("__pycache__"))
    before = code_key.content(package)
    assert before == code_key.content(ROOT / "tileflow")
    rooms = [package, *(path for path in sorted(package.iterdir()) if path.is_dir() and any(path.rglob("*.py")))]
    assert len(rooms) > 20
    for room in rooms:
        path = sorted(room.glob("*.py") if room == package else room.rglob("*.py"))[-1]
        text = path.read_text()
        path.write_text(text + "# another line\n")
        assert code_key.content(package) != before, room
        path.write_text(text)


# ---- damage, and refusals

@pytest.mark.parametrize("damage", [
    lambda n: n | {"program": "0" * 64}, lambda n: {"program": n["program"]}, lambda n: [], lambda n: 7,
    lambda n: n | {"initial": {k: w | {"at": 1 << 40} if "at" in w else w for k, w in n["initial"].items()}},
    lambda n: n | {"initial": {k: w | {"part": 3} if "at" in w else w for k, w in n["initial"].items()}},
    lambda n: n | {"initial": {k: w | {"dtype": "nothing"} for k, w in n["initial"].items()}}],
    ids=["no program", "part of it", "a list", "a number", "beyond", "no such part", "no such type"])
def test_notes_that_do_not_fit_are_made_anew(tmp_path: Path, imported: list[str], monkeypatch: pytest.MonkeyPatch,
                                             damage: Callable[[Any], Any]):
    """Whatever is in them: they are whole by their digest, so that this is what nobody but the owner could have
    written."""
    path = network(tmp_path)
    wanted = infer(path)
    real = notes.load

    def damaged(key: str) -> Any:
        found = real(key)
        return damage(found) if isinstance(found, dict) and "program" in found else found
    monkeypatch.setattr(notes, "load", damaged)
    assert infer(path) == wanted


def test_cut_off_files_of_the_cache_are_made_anew(tmp_path: Path, imported: list[str]):
    path = network(tmp_path)
    wanted = infer(path)
    made = [*cache.folder().glob(f"note-{os.getpid()}-{tmp_path.name}-*")]
    assert made
    for file in made:
        os.truncate(file, file.stat().st_size // 2)
    imported.clear()
    assert infer(path) == wanted
    assert imported


def test_refusals_are_those_of_the_first_start(tmp_path: Path, imported: list[str]):
    path = network(tmp_path)
    infer(path)
    train(path)
    with pytest.raises(DataError, match="takes 1 inputs"):
        tileflow.inference_model(path)(X, X)
    with pytest.raises(OptionError, match="matches no weight"):
        tileflow.training_model(path, frozen=("nothing",))(X, Y)
    with pytest.raises(OptionError):
        tileflow.training_model(path, tie=("w=nothing",))
    (tmp_path / "cut.onnx").write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ModelError, match="cut off"):
        tileflow.inference_model(tmp_path / "cut.onnx")
    with pytest.raises(ModelError, match="There is no model file"):
        tileflow.inference_model(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="is a folder"):
        tileflow.inference_model(tmp_path)


# ---- the verbs, of which a model is a part

def data(folder: Path, rows: int = 40, scale: float = 1.0) -> Path:
    draw = np.random.default_rng(3)
    path = folder / f"data{rows}-{scale}.npz"
    np.savez(path, x=draw.standard_normal((rows, 6)).astype(np.float32) * scale, y=np.arange(rows) % 3)
    return path


COMMAND = """
import sys
from tileflow.cli import main
assert main(sys.argv[1:]) == 0
rooms = sorted({m.split(".")[1] for m in sys.modules if m.startswith("tileflow.")})
print("rooms", *rooms, *({"numba", "onnx"} & {*sys.modules}))
"""
CURVES = {"report"}
"""A run's page is made of the curves and pictures that reports are made of, too."""


def command(folder: Path, *words: str) -> tuple[str, set[str]]:
    """What a command says, but for how fast it was, and the rooms that its process has opened."""
    done = subprocess.run([sys.executable, "-c", COMMAND, *words], cwd=folder, env={**os.environ, "PYTHONPATH": PATH},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *said, rooms = done.stdout.splitlines()
    return "\n".join(re.sub(r"[\d,]+ samples/s", "", line) for line in said) + done.stderr, set(rooms.split())


def test_warm_commands_import_neither_graph_nor_compiler(tmp_path: Path):
    """From the file to the trained one, checkpoint and page, and from that to predictions with their accuracy."""
    path = network(tmp_path)
    other(path, secrets.token_hex())
    given = ["net.onnx", "--data", str(data(tmp_path)), "--test-data", str(data(tmp_path, 13)), "--optimizer", "adamw",
             "--out", "run"]
    said, files = [], []
    for start in ("cold", "warm"):
        trained, rooms = command(tmp_path, "train", *given, "--epochs", "2")
        written = (tmp_path / "run" / "model.onnx").read_bytes()
        (tmp_path / "trained.onnx").write_bytes(written)
        inferred, more = command(tmp_path, "infer", "trained.onnx", "--data", str(data(tmp_path, 13)))
        said.append((trained, inferred))
        files.append((written, (tmp_path / "predictions.npz").read_bytes()))
        if start == "cold":
            assert rooms >= {"graph", "importers", "onnx"}
            assert more >= {"graph", "importers", "onnx"}
            shutil.rmtree(tmp_path / "run")
        else:
            assert not rooms & ({*HEAVY, "numba", "onnx"} - CURVES), rooms
            assert not more & {*HEAVY, "numba", "onnx"}, more
    assert said[0] == said[1]
    assert files[0] == files[1]
    _, rooms = command(tmp_path, "train", *given, "--epochs", "3", "--out", "longer")
    assert not rooms & ({*HEAVY, "numba", "onnx"} - CURVES), "how long it trains shapes nothing that is kept"


@pytest.fixture
def in_full(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is rehearsed, and written with a check by computing."""
    made: list[str] = []

    def note(name: str, real: Callable[..., Any]) -> None:
        def noted(*args: Any) -> Any:
            made.append(name)
            return real(*args)
        monkeypatch.setattr(trained_file, name, noted)
    note("rehearse", trained_file.rehearse)
    note("write_trained", trained_file.write_trained)
    return made


def fit(path: Path, folder: Path, rows: Path, **given: Any) -> bytes:
    shutil.rmtree(folder / "run", ignore_errors=True)
    tileflow.train(path, data=str(rows), out=str(folder / "run"), epochs=1, learning_rate=0.01, **given)
    return (folder / "run" / "model.onnx").read_bytes()


def test_a_trained_file_is_rehearsed_and_checked_by_computing_once(tmp_path: Path, imported: list[str],
                                                                   in_full: list[str]):
    """Other weights go into the same bytes; what reads them again gets them."""
    path, rows = network(tmp_path), data(tmp_path)
    first = fit(path, tmp_path, rows)
    assert in_full == ["rehearse", "write_trained"]
    imported.clear()
    assert fit(path, tmp_path, rows) == first
    second = fit(path, tmp_path, rows, max_updates=1)
    assert in_full == ["rehearse", "write_trained"]
    assert not imported
    tensors = [{t.name: onnx.numpy_helper.to_array(t) for t in onnx.load_from_string(file).graph.initializer}
               for file in (first, second)]
    result = tileflow.train(path, data=str(rows), out=str(tmp_path / "again"), epochs=1, learning_rate=0.01,
                            max_updates=1)
    for name, array in result.weights.items():
        assert array.tobytes() == tensors[1][name].tobytes()
    assert any(tensors[0][name].tobytes() != tensors[1][name].tobytes() for name in tensors[0])


@pytest.mark.parametrize("changed",
                         [{"keep_training_mode": True}, {"micro_batch_size": 8}, {"frozen": ("w",)}, {"rows": 2.0},
                                     {"file": "other"}], ids=str)
def test_what_shapes_a_trained_file_has_it_checked_again(tmp_path: Path, imported: list[str], in_full: list[str],
                                                         changed: dict[str, Any]):
    """Options, and the file itself; what it says of the data counts, too."""
    path = network(tmp_path)
    fit(path, tmp_path, data(tmp_path))
    in_full.clear()
    rows = data(tmp_path, scale=changed.pop("rows", 1.0))
    if changed.pop("file", None):
        other(path, "another")
    found = fit(path, tmp_path, rows, **changed)
    assert in_full == ["rehearse", "write_trained"]
    assert fit(path, tmp_path, rows, **changed) == found
    assert in_full == ["rehearse", "write_trained"]


def test_where_it_cannot_be_written_is_said_by_every_start(tmp_path: Path, imported: list[str],
                                                           monkeypatch: pytest.MonkeyPatch):
    path, rows, said = network(tmp_path), data(tmp_path), []
    for _ in range(2):
        fit(path, tmp_path, rows)
    (tmp_path / "taken" / "model.onnx").mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="name a file, not a folder") as error:
            tileflow.train(path, data=str(rows), out=str(tmp_path / "taken"), epochs=1)
        said.append(str(error.value))
    assert said[0] == said[1]
    full = shutil._ntuple_diskusage(1 << 30, 1 << 30, 100)          # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: full)
    with pytest.raises(CheckpointError, match="The trained model takes"):
        fit(path, tmp_path, rows)


def test_a_written_file_is_read_back(tmp_path: Path, imported: list[str], monkeypatch: pytest.MonkeyPatch):
    path, rows = network(tmp_path), data(tmp_path)
    wanted = fit(path, tmp_path, rows)
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read(self)[:-1] if self.suffix == ".tmp" else read(self))
    with pytest.raises(CheckpointError, match="what is read back differs"):
        fit(path, tmp_path, rows)
    assert not (tmp_path / "run" / "model.onnx").exists()
    monkeypatch.undo()
    assert fit(path, tmp_path, rows) == wanted


@pytest.mark.parametrize("harm", ["halves", "external", "damage"])
def test_files_that_are_no_bytes_around_weights_are_checked_each_time(tmp_path: Path, imported: list[str],
                                                                      in_full: list[str], harm: str,
                                                                       monkeypatch: pytest.MonkeyPatch):
    """Weights of another type than in memory, or in another file; a note that does not fit."""
    external = {"save_as_external_data": True, "location": "net.data", "size_threshold": 0}
    path, rows = network(tmp_path, **(external if harm == "external" else {})), data(tmp_path)
    given: dict[str, Any] = {"precision": "64"} if harm == "halves" else {}
    found = fit(path, tmp_path, rows, **given)
    if harm == "damage":
        real = notes.load
        monkeypatch.setattr(notes, "load", lambda key: 7 if isinstance(note := real(key), list) else note)
    in_full.clear()
    assert fit(path, tmp_path, rows, **given) == found
    assert "write_trained" in in_full


def test_gradients_are_those_that_are_asked_for(tmp_path: Path, imported: list[str]):
    """By whatever, of whichever output: options and types of the arrays are the same."""
    path = network(tmp_path)
    for wrt in ("x", "v", "w", "v"):
        found = tileflow.grad(path, X, wrt=wrt)
        assert [*found] == [wrt]
        assert np.any(found[wrt])


@pytest.mark.parametrize("ending", [None, "Sigmoid", "Softmax"])
def test_what_a_model_ends_in_is_known_without_its_graph(tmp_path: Path, imported: list[str], ending: str | None):
    path = network(tmp_path)
    proto = onnx.load(path)
    if ending:
        proto.graph.node[-1].output[0] = "scores"
        proto.graph.node.append(node(ending, ["scores"], ["y"]))
        onnx.save(proto, path)
    labels = np.eye(3, dtype=np.float32)[Y] if ending == "Sigmoid" else Y
    said = []
    for _ in range(2):
        imported.clear()
        result = tileflow.train(path, data=(X, labels), out=str(tmp_path / f"run{len(said)}"), epochs=1,
                                micro_batch_size=4)
        said.append((result.loss, result.loss_reason, result.history["accuracy"].tobytes()))
    assert not imported
    assert said[0] == said[1]
    assert said[0][0] == {None: "cross_entropy", "Sigmoid": "bce", "Softmax": "cross_entropy"}[ending]
