"""Executables: what one process exports another one loads, without the model, and trains on to the same bits; what is
refused, and why."""
from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
import random
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import model_of, node, port, tensor
from paths import exhaustive
from places import PATH
from program_kinds import Recurrent
from random_strategies import CLASSES, Images, Tokens, draw

import tileflow
from tileflow import compiler, nn, optim
from tileflow.executable import store
from tileflow.loss import ClassLoss, OutputLoss, SeveralLosses, WeightedLoss
from tileflow.loss.focal import FocalLoss
from tileflow.loss.numbers import HuberLoss
from tileflow.optim import schedules
from tileflow.program.fields import Fault
from tileflow.runtime import executable_file
from tileflow.runtime.executable_file import Opened
from tileflow.runtime.recipes import loss_data, loss_of
from tileflow.system.errors import (
    CheckpointError,
    ModelError,
    OptionError,
    OutOfMemoryError,
    TileflowError,
    UnsupportedError,
)

RNG = np.random.default_rng(7)
X, Y = RNG.standard_normal((8, 6)).astype(np.float32), np.arange(8) % 3
PLAIN, FEW, MANY = 60, 110, 500
"""Damaged files of every change, of one exhaustive test, and of all of them."""


def small(**options: Any) -> Any:
    """A training model of two layers with dropout, a batch normalisation, and a schedule."""
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    rate = schedules.warmup(schedules.cosine(1e-2, total=20), 3)
    given = {"optimizer": optim.AdamW(lr=rate, no_decay="auto"), **options}
    return tileflow.training_model(net, **given)


def states(model: Any) -> dict[str, bytes]:
    return {name: np.asarray(a).tobytes() for name, a in (model.state_dict() | model.optimizer_state_dict()).items()}


def calls(model: Any, *arrays: np.ndarray, count: int = 2) -> list[bytes]:
    return [np.asarray(a).tobytes() for _ in range(count) for a in model(*arrays)]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An executable of a model that was trained for two updates."""
    model = small()
    calls(model, X, Y)
    return model.save(tmp_path_factory.mktemp("executables") / "small.tileflow")


# ---- from process to process

def with_control_flow() -> onnx.ModelProto:
    """A loop over a layer, then one of two branches, by what the data are."""
    def graph(name: str, nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, inputs, outputs)
    turn = [node("MatMul", ["h", "w"], ["m"]), node("Tanh", ["m"], ["next"]), node("Identity", ["go"], ["still"])]
    body = graph("body", turn,
                 [port("i", [], "int64"), port("go", [], "bool"), port("h", ["N", 6])],
                 [port("still", [], "bool"), port("next", ["N", 6])])
    branches = {f"{name}_branch": graph(name, [node("Mul", ["g", weight], [name])], [], [port(name, ["N", 6])])
                for name, weight in (("then", "a"), ("else", "b"))}
    nodes = [node("Constant", [], ["turns"], value=tensor("turns", np.array(3, np.int64))),
             node("Constant", [], ["yes"], value=tensor("yes", np.array(True))),
             node("Loop", ["turns", "yes", "x"], ["g"], body=body), node("ReduceMean", ["x"], ["mean"], keepdims=0),
             node("Constant", [], ["zero"], value=tensor("zero", np.array(0, np.float32))),
             node("Greater", ["mean", "zero"], ["above"]),
             node("If", ["above"], ["z"], **branches), node("Gemm", ["z", "v", "c"], ["y"])]
    rng = np.random.default_rng(1)
    weights = {"w": rng.standard_normal((6, 6)), "a": rng.standard_normal(6), "b": rng.standard_normal(6),
               "v": rng.standard_normal((6, 3)), "c": np.zeros(3)}
    return model_of(nodes, [port("x", ["N", 6])], [port("y", ["N", 3])],
                    {n: a.astype(np.float32) for n, a in weights.items()})


Made = Callable[[Path], tuple[Any, tuple[np.ndarray, ...]]]
"""Makes a model, and rows for it, with its files in a folder."""


def of_images(count: int, network: type[Images] | type[Tokens] = Images, **options: Any) -> Made:
    def made(folder: Path) -> tuple[Any, tuple[np.ndarray, ...]]:
        rng = np.random.default_rng(2)
        model = tileflow.training_model(network(), **options)
        return model, (network.rows(rng, count), rng.integers(0, CLASSES, count))
    return made


def of_sequences(folder: Path) -> tuple[Any, tuple[np.ndarray, ...]]:
    rng = np.random.default_rng(2)
    model = tileflow.training_model(Recurrent(), optimizer=optim.RMSprop(lr=1e-2, momentum=0.9))
    return model, (Images.rows(rng, 4), rng.integers(0, CLASSES, 4))


def of_control_flow(folder: Path) -> tuple[Any, tuple[np.ndarray, ...]]:
    onnx.save(with_control_flow(), folder / "control.onnx")
    model = tileflow.training_model(folder / "control.onnx", optimizer=optim.LAMB(lr=1e-2))
    assert {"Loop", "If"} <= {made.op.name for made in model.program_for(X, Y).micro.nodes}
    return model, (X, Y)


KINDS: dict[str, Made] = {
    "cnn": of_images(8, optimizer=optim.SGD(lr=0.1, momentum=0.9), gradient_accumulation=2, device_iterations=2),
    "encoder": of_images(4, Tokens, optimizer=optim.AdamW(
        lr=schedules.linear(1e-3, total=9), groups=[{"params": "*.bias", "weight_decay": 0}], max_grad_norm=1.0,
        average=schedules.ema(0.9))),
    "lstm": of_sequences,
    "control flow": of_control_flow,
    "mixed precision": of_images(4, precision="16-mixed", optimizer="adam"),
    "pipelined": of_images(8, strategy="pipelined", pipeline_splits=("hidden",), gradient_accumulation=4,
                           optimizer="adamw"),
}
THREADS = (1, 2, 3, 5, 2, 3)
ELSEWHERE = """
import sys
import numpy as np
import tileflow
for line in sys.stdin.read().splitlines():
    path, threads = line.rsplit(" ", 1)
    model = tileflow.load_executable(path, lambda o: setattr(o, "threads", int(threads)))
    with np.load(path + ".npz") as stored:
        arrays = [stored[f"arr_{i}"] for i in range(len(stored.files))]
    found = [a for _ in range(2) for a in model(*arrays)]
    named = {f"state {n}": a for n, a in (model.state_dict() | model.optimizer_state_dict()).items()}
    np.savez(path + ".found.npz", *[np.asarray(a) for a in found], **named)
print(*sorted({m.split(".")[1] for m in sys.modules if m.startswith("tileflow.")} | {"numba", "onnx"} & {*sys.modules}))
"""


def elsewhere(*lines: str) -> set[str]:
    """Load and call executables in a process of its own; what it has imported."""
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], input="\n".join(lines),
                          env={**os.environ, "PYTHONPATH": PATH}, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


Both = tuple[dict[str, bytes], dict[str, bytes], Path]
"""What a model has come to that went on here, what one came to that another process loaded, and its file."""
FEWER = ("cnn", "control flow", "pipelined")
"""Kinds at every change: of the others there are kernels that no other test has."""


def both(folder: Path, kinds: tuple[str, ...]) -> dict[str, Both]:
    here, lines = {}, []
    for kind, threads in zip(kinds, THREADS, strict=False):
        model, arrays = KINDS[kind](folder)
        path = folder / f"{kind}.tileflow"
        calls(model, *arrays)
        np.savez(f"{path}.npz", *arrays)
        assert model.save(path) == path
        here[kind] = {f"arr_{i}": a for i, a in enumerate(calls(model, *arrays))}
        here[kind] |= {f"state {n}": a for n, a in states(model).items()}
        lines.append(f"{path} {threads}")
    elsewhere(*lines)
    found = {}
    for kind in kinds:
        with np.load(folder / f"{kind}.tileflow.found.npz") as stored:
            there = {name: stored[name].tobytes() for name in stored.files}
        found[kind] = here[kind], there, folder / f"{kind}.tileflow"
    return found


@pytest.fixture(scope="module")
def trained_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Both]:
    return both(tmp_path_factory.mktemp("kinds"), FEWER)


def assert_same(found: Both) -> None:
    here, there, _ = found
    assert here.keys() == there.keys()
    assert [name for name in here if here[name] != there[name]] == []


@pytest.mark.parametrize("kind", FEWER)
def test_another_process_trains_on_to_the_same_bits(kind: str, trained_elsewhere: dict[str, Both]) -> None:
    """Outputs, losses, weights, statistics, moments, averages, counts and the loss scale, for any number of threads."""
    assert_same(trained_elsewhere[kind])


@exhaustive
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FEWER])
def test_and_so_do_these(kind: str, tmp_path: Path) -> None:
    assert_same(both(tmp_path, (kind,))[kind])


@exhaustive
@pytest.mark.parametrize("seed", range(6))
def test_drawn_strategies_and_options(seed: int, tmp_path: Path) -> None:
    """Replicas with weights of their own, stages, precisions, output modes: loaded beside the model, in one process."""
    what = draw(seed)
    model = tileflow.training_model(what.network(), **what.options())
    calls(model, *what.data(), count=1)
    loaded = tileflow.load_executable(model.save(tmp_path / "drawn.tileflow"), threads=3)
    assert calls(loaded, *what.data()) == calls(model, *what.data())
    assert states(loaded) == states(model)


def test_anchored_values_are_there(tmp_path: Path) -> None:
    model = small(anchored_tensors=("0", "Gradient___4.bias"))
    calls(model, X, Y)
    loaded = tileflow.load_executable(model.save(tmp_path / "anchors.tileflow"))
    assert calls(loaded, X, Y) == calls(model, X, Y)
    anchors, expected = ({n: a.tobytes() for n, a in m.anchored().items()} for m in (loaded, model))
    assert anchors == expected
    assert loaded.anchored("Gradient___4.bias").shape == (3,)


def test_a_warm_load_imports_neither_graph_nor_compiler(trained_elsewhere: dict[str, Both]) -> None:
    """Of a file from layers and of one from an ONNX file, which stays unread."""
    heavy = {"graph", "ops", "importers", "lower", "passes", "host", "compiler", "nn", "tiles", "numba", "onnx"}
    files = [f"{trained_elsewhere[kind][2]} {threads}" for kind, threads in zip(FEWER[:2], THREADS, strict=False)]
    assert not elsewhere(*files) & heavy


def test_an_executable_is_exported_again_and_copied(file: Path, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """Each goes on by itself: the file's own, the second file's, a copy's."""
    monkeypatch.chdir(tmp_path)
    model = tileflow.load_executable(file)
    again = tileflow.load_executable(model.save("again.tileflow"))
    copied = copy.deepcopy(model)
    found = [[*calls(m, X, Y), *states(m).values()] for m in (model, again, copied)]
    assert found[0] == found[1] == found[2]
    for _ in range(3):
        model.save(tmp_path / "again.tileflow")
        model(X, Y)
    monkeypatch.chdir(file.parent)
    again.destroy()
    again.load_state_dict(model.state_dict())
    again.load_optimizer_state_dict(model.optimizer_state_dict())
    assert calls(again, X, Y) == calls(model, X, Y), "its program is read from a file that was written again"


# ---- options

def test_options_that_shape_no_number_may_change(file: Path) -> None:
    def edit(options: tileflow.Options) -> None:
        options.threads, options.detect_anomaly = 1, True
    plain, changed = tileflow.load_executable(file), tileflow.load_executable(file, edit, output_mode="all")
    assert (changed.options.threads, changed.options.detect_anomaly, changed.options.output_mode) == (1, True, "all")
    assert calls(plain, X, Y) == calls(changed, X, Y)


@pytest.mark.parametrize(("name", "value"), [
    ("seed", 1), ("precision", "16-mixed"), ("learning_rate", 0.5), ("gradient_accumulation", 2),
    ("device_iterations", 2), ("matmul_precision", "medium"), ("strategy", "sharded"),
    ("label_smoothing", 0.1), ("anchored_tensors", ("x",)), ("micro_batch_size", 4)])
def test_options_that_are_compiled_in_may_not(name: str, value: Any, file: Path) -> None:
    with pytest.raises(OptionError, match=rf"Option {name} is compiled into executable .* cannot become"):
        tileflow.load_executable(file, lambda options: setattr(options, name, value))


def test_what_edit_options_is(file: Path) -> None:
    with pytest.raises(OptionError, match="edit_options is a function"):
        tileflow.load_executable(file, {"threads": 1})                                  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="There is no option 'thread'"):
        tileflow.load_executable(file, thread=1)


def test_an_image_that_looks_for_anomalies_is_not_kept_for_others(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[str] = []
    monkeypatch.setattr(store, "enabled", True)
    monkeypatch.setattr(store, "load", lambda key: None)
    monkeypatch.setattr(store, "save", lambda key, image: kept.append(key))
    tileflow.load_executable(file, detect_anomaly=True)
    assert kept == []
    tileflow.load_executable(file)
    assert len(kept) == 1


# ---- what is no data

def rising(update: int) -> float:
    return 1e-3 * (1 + update)


def test_rates_that_are_functions_are_asked_for(tmp_path: Path) -> None:
    model = small(optimizer=optim.SGD(lr=schedules.warmup(rising, 2), momentum=0.9))
    calls(model, X, Y)
    path = model.save(tmp_path / "function.tileflow")
    with pytest.raises(OptionError, match=r"lr, the function rising.*optimizer=\.\.\."):
        tileflow.load_executable(path)
    with pytest.raises(OptionError, match=r"optimizer must be one of tileflow\.optim, such as SGD\(lr=0\.1\), not str"):
        tileflow.load_executable(path, optimizer="sgd")                                 # type: ignore[arg-type]
    with pytest.raises(OptionError, match="compiled with another optimizer"):
        tileflow.load_executable(path, optimizer=optim.AdamW(lr=rising))
    loaded = tileflow.load_executable(path, optimizer=optim.SGD(lr=schedules.warmup(rising, 2), momentum=0.9))
    assert calls(loaded, X, Y) == calls(model, X, Y)
    assert states(loaded) == states(model)


class Mine(optim.SGD):
    """An optimizer of one's own."""


def test_an_optimizer_of_ones_own_is_asked_for(tmp_path: Path) -> None:
    model = small(optimizer=Mine(lr=0.1, momentum=0.9))
    calls(model, X, Y)
    path = model.save(tmp_path / "own.tileflow")
    with pytest.raises(OptionError, match="what is no data and so is not in it: the optimizer Mine"):
        tileflow.load_executable(path)
    assert calls(tileflow.load_executable(path, optimizer=Mine(lr=0.1, momentum=0.9)), X, Y) == calls(model, X, Y)


def test_a_loss_of_ones_own_is_in_the_program(tmp_path: Path) -> None:
    def far(b: Any, outputs: Any) -> Any:
        labels = b.input("labels", outputs[0].type)
        return b.ReduceMean(b.Abs(b.Sub(outputs[0], labels)), keepdims=0)
    model = tileflow.training_model(nn.Linear(6, 3), loss=far)
    arrays = X, RNG.standard_normal((8, 3)).astype(np.float32)
    calls(model, *arrays)
    loaded = tileflow.load_executable(model.save(tmp_path / "loss.tileflow"))
    assert loaded.loss_name == "far()"
    assert calls(loaded, *arrays) == calls(model, *arrays)


@pytest.mark.parametrize("loss", ["focal", "dice", "huber", "soft_cross_entropy"])
def test_losses_by_name_are_in_executables(loss: str, tmp_path: Path) -> None:
    model = tileflow.training_model(nn.Linear(6, 3), loss=loss)
    arrays = X, Y if loss in ("focal", "dice") else np.full((len(X), 3), 1 / 3, np.float32)
    calls(model, *arrays)
    loaded = tileflow.load_executable(model.save(tmp_path / "loss.tileflow"))
    assert type(loaded.loss) is type(model.loss)
    assert calls(loaded, *arrays) == calls(model, *arrays)


def test_losses_within_losses_are_data() -> None:
    several = SeveralLosses((OutputLoss("a", 0, FocalLoss(gamma=1.0)),
                             OutputLoss("b", 1, HuberLoss("huber", "HuberLoss", delta=2.0), 0.5)))
    for loss in (WeightedLoss(ClassLoss()), several, WeightedLoss(several)):
        data = json.loads(json.dumps(loss_data(loss)))
        assert loss_of(data, 2) == loss
    for broken in (loss_data(several),
                   {"class": "WeightedLoss", "fields": {}},
                   {"class": "SeveralLosses", "fields": {"parts": [3]}},
                   loss_data(WeightedLoss(WeightedLoss(WeightedLoss(ClassLoss()))))):
        with pytest.raises(Fault):
            loss_of(broken, 1)


def test_a_plateau_goes_on_from_what_it_has_come_to(tmp_path: Path) -> None:
    model = small(optimizer=optim.SGD(lr=schedules.plateau(0.1, patience=0)))
    calls(model, X, Y)
    for metric in (1.0, 2.0, 3.0):
        model.optimizer.lr.observe(metric)
    loaded = tileflow.load_executable(model.save(tmp_path / "plateau.tileflow"))
    assert loaded.optimizer.lr.rate == model.optimizer.lr.rate < 0.1
    assert calls(loaded, X, Y) == calls(model, X, Y)


# ---- load_executable of a model

def test_a_model_takes_a_program_and_keeps_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled of its own graph; the file need not have weights, and those that it has are left."""
    exported = small()
    exported.compile_and_export(tmp_path / "program.tileflow", X, Y, export_model=False)
    exported.save(tmp_path / "whole.tileflow")
    one, other = small(), small()
    weights = other.state_dict()
    assert not np.array_equal(weights["0.weight"], exported.state_dict()["0.weight"])
    one.load_state_dict(weights)
    expected = calls(one, X, Y), states(one)
    other.load_state_dict(weights)
    monkeypatch.setattr(compiler, "training", lambda *_, **__: pytest.fail("it was compiled"))
    other.load_executable(tmp_path / "program.tileflow")
    assert (calls(other, X, Y), states(other)) == expected
    third = small()
    third.load_state_dict(weights)
    third.load_executable(tmp_path / "whole.tileflow")
    assert calls(third, X, Y) == expected[0]
    with pytest.raises(ModelError,
                       match=r"export_model=False, so that it has no weights: .*model\.load_executable\(path\)"):
        tileflow.load_executable(tmp_path / "program.tileflow")


@pytest.mark.parametrize(("make", "says"), [
    (lambda: small(seed=3), "was compiled with seed = 0, and this model has 3"),
    (lambda: small(optimizer="sgd"), "was compiled with the optimizer AdamW"),
    (lambda: small(loss="mse"), "was compiled with the loss cross_entropy, and this model has mse"),
    (lambda: small(anchored_tensors=("0",)), r"keeps the values \[\], and this model \['0'\]"),
    (lambda: tileflow.training_model(
        nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3)),
        optimizer=small().optimizer), "computes something else than this model: operators"),
    (lambda: tileflow.inference_model(nn.Linear(6, 3)), "is of a TrainingModel, and this is a InferenceModel"),
    (lambda: tileflow.training_model(nn.Linear(6, 3), optimizer=small().optimizer),
     r"has the parameter 0\.weight, .*none of that name"),
    (lambda: tileflow.training_model(nn.Sequential(nn.Linear(6, 9)), optimizer=small().optimizer),
     r"one of float32\[9, 6\]")])
def test_a_model_refuses_the_program_of_another(make: Callable[[], Any], says: str, file: Path) -> None:
    model = make()
    with pytest.raises(OptionError, match=says):
        model.load_executable(file)
    assert not model.is_compiled


def test_models_that_were_connected_are_so_again(tmp_path: Path) -> None:
    """The reference's last way: the second model is made of the first, and takes its program."""
    net = nn.Sequential(nn.Linear(6, 3))
    training, validation = tileflow.training_model(net, optimizer=optim.SGD(lr=0.1)), tileflow.inference_model(net)
    training.compile_and_export(tmp_path / "training.tileflow", X, Y)
    validation.compile_and_export(tmp_path / "validation.tileflow", X)
    training = tileflow.load_executable(tmp_path / "training.tileflow")
    lone = tileflow.load_executable(tmp_path / "validation.tileflow")
    validation = tileflow.inference_model(training)
    with pytest.raises(UnsupportedError, match="holds one program, of the network Sequential"):
        validation(X)
    validation.load_executable(tmp_path / "validation.tileflow")
    before = validation(X)
    assert np.array_equal(before, lone(X))
    training(X, Y)
    weights = training.state_dict()
    assert np.allclose(validation(X), X @ weights["0.weight"].T + weights["0.bias"], atol=1e-5)
    assert np.array_equal(lone(X), before)
    lone.load_state_dict(weights)
    assert np.array_equal(lone(X), validation(X))


# ---- out of ONNX files

@pytest.fixture
def network(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    weights = {"w": rng.standard_normal((6, 20)), "b": np.zeros(20), "v": rng.standard_normal((20, 3))}
    nodes = [node("Gemm", ["x", "w", "b"], ["h"]), node("Relu", ["h"], ["r"]), node("MatMul", ["r", "v"], ["y"])]
    onnx.save(model_of(nodes, [port("x", ["N", 6])], [port("y", ["N", 3])],
                       {n: a.astype(np.float32) for n, a in weights.items()}),
              tmp_path / "net.onnx", save_as_external_data=True, size_threshold=0, location="net.data")
    return tmp_path / "net.onnx"


def test_the_onnx_file_is_in_it(network: Path, tmp_path: Path) -> None:
    """External data and all: the trained file is written, other shapes and inference are compiled from it, with the
    executable's weights."""
    model = tileflow.training_model(network, optimizer="adam")
    calls(model, X, Y)
    path = model.save(tmp_path / "net.tileflow")
    expected = tileflow.inference_model(network)(X[:3])
    for file in (network, tmp_path / "net.data"):
        file.unlink()
    loaded = tileflow.load_executable(path, on_new_shape="compile")
    assert np.array_equal(tileflow.inference_model(loaded)(X[:3]), expected)
    written = loaded.save_onnx(tmp_path / "trained.onnx")
    assert np.allclose(tileflow.inference_model(written)(X[:3]), expected, atol=1e-6)
    loaded(X[:4], Y[:4])


def test_before_anything_is_compiled_the_file_says_what_it_takes(network: Path, tmp_path: Path) -> None:
    """`save` compiles for that; layers do not say it."""
    inference = tileflow.inference_model(network, micro_batch_size=4, device_iterations=2)
    loaded = tileflow.load_executable(inference.save(tmp_path / "i.tileflow"))
    assert np.array_equal(loaded(X), inference(X))
    training = tileflow.training_model(network, micro_batch_size=4, gradient_accumulation=2)
    loaded = tileflow.load_executable(training.save(tmp_path / "t.tileflow"))
    assert calls(loaded, X, Y) == calls(training, X, Y)
    with pytest.raises(TileflowError, match="The model has not been compiled yet"):
        small().save(tmp_path / "none.tileflow")
    assert not (tmp_path / "none.tileflow").exists()


def test_layers_have_no_file_to_write(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no ONNX file to write its weights into"):
        tileflow.load_executable(file).save_onnx(tmp_path / "no.onnx")


def test_models_in_pieces_have_no_program(tmp_path: Path) -> None:
    nodes = [node("NonZero", ["x"], ["places"]), node("Cast", ["places"], ["y"], to=TensorProto.FLOAT)]
    onnx.save(model_of(nodes, [port("x", ["N", 6])], [port("y", [2, None])]), tmp_path / "pieces.onnx")
    model = tileflow.inference_model(tmp_path / "pieces.onnx")
    with pytest.raises(UnsupportedError, match="no executable of a model that is no one program, since sizes"):
        model.compile_and_export(tmp_path / "pieces.tileflow", X)
    model(X)
    with pytest.raises(TileflowError, match=r"The model runs in pieces.*no one program"):
        model.save(tmp_path / "pieces.tileflow")
    made = tileflow.gradient_model(nn.Linear(6, 1), loss="mse")
    made(X, X[:, :1])
    with pytest.raises(UnsupportedError, match="A GradientModel cannot be written as an executable"):
        made.save(tmp_path / "gradient.tileflow")


def test_other_verbs_say_what_it_is(file: Path) -> None:
    for verb in (tileflow.load, tileflow.training_model, tileflow.inference_model, tileflow.compile):
        with pytest.raises(ModelError, match=r"is an executable, compiled already: tileflow\.load_executable"):
            verb(file)


# ---- the commands

def test_commands_take_executables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    """The trained file is that of the model itself, byte for byte."""
    from tileflow.cli import main
    monkeypatch.chdir(tmp_path)
    sizes = ["--micro-batch-size", "32"]
    assert main(["compile", "digits_cnn.onnx", "--training", *sizes, "--export", "digits.tileflow"]) == 0
    assert "tileflow train digits.tileflow --data DATA" in capsys.readouterr().out
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "training", lambda *_, **__: pytest.fail("it was compiled"))
        assert main(["train", "digits.tileflow", "--data", "digits", "--epochs", "1", "--out", "a"]) == 0
    assert main(["train", "digits_cnn.onnx", *sizes, "--data", "digits", "--epochs", "1", "--out", "b"]) == 0
    assert Path("a/model.onnx").read_bytes() == Path("b/model.onnx").read_bytes()
    assert main(["train", "--resume", "--out", "a", "--epochs", "2"]) == 0
    assert main(["compile", "a/model.onnx", "--micro-batch-size", "32", "--export", "trained.tileflow"]) == 0
    found = []
    for model in ("trained.tileflow", "a/model.onnx"):
        capsys.readouterr()
        assert main(["infer", model, "--data", "digits", "--micro-batch-size", "32"]) == 0
        found.append((Path("predictions.npz").read_bytes(), capsys.readouterr().out.splitlines()[1]))
    assert found[0] == found[1]
    assert found[0][1].startswith("accuracy 8")
    for words, says in (
            ("train digits.tileflow --data digits --learning-rate 1", "Option learning_rate is compiled into"),
            ("train trained.tileflow --data digits", "is of an inference model and holds no update"),
            ("compile digits_cnn.onnx --export x --machine gc200", "of which --machine says nothing")):
        assert main(words.split()) == 2
        assert says in capsys.readouterr().err
    assert main(["inspect", "digits.tileflow"]) == 0
    told = capsys.readouterr().out
    for words in ("digits_cnn.onnx, for training", "image float32[32, 1, 8, 8]", "cross_entropy",
                  "micro_batch_size=32"):
        assert words in told


# ---- files that are none

def with_header(content: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """A file with another header, whose digest is right again, and as long."""
    begin, start = executable_file.START, len(executable_file.MAGIC)
    length = int.from_bytes(content[start:start + 8], "little")
    header = json.loads(content[begin:begin + length])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(begin + len(text)) % 64)
    head = executable_file.MAGIC + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest()
    return head + text + content[begin + length:]


@pytest.mark.parametrize(("change", "says"), [
    (lambda c: b"", "is no executable of tileflow"),
    (lambda c: b"\x08\x07" + c[2:], "is no executable of tileflow"),
    (lambda c: c[:7] + b"9" + c[8:], "has version '9' of the format, and this tileflow reads '1'"),
    (lambda c: c[:30], "claims"),
    (lambda c: c[:8] + (1 << 50).to_bytes(8, "little") + c[16:], "the header claims 1,125,899,906,842,624 bytes"),
    (lambda c: c[:100] + b"!" + c[101:], "the header differs from its digest"),
    (lambda c: c[:-64], "fewer than its parts need|need a file of"),
    (lambda c: c + bytes(64), "need a file of"),
    (lambda c: with_header(c, lambda h: h.update(states=[])), "a header|stored states|states"),
    (lambda c: with_header(c, lambda h: h.pop("updates")), "lacks updates"),
    (lambda c: with_header(c, lambda h: h.update(more=1)), "has no 'more'"),
    (lambda c: with_header(c, lambda h: h.update(updates=-1)), "counts below 0"),
    (lambda c: with_header(c, lambda h: h["options"].update(seed=["a", "code"])), "the options cannot be"),
    (lambda c: with_header(c, lambda h: h["options"].update(nothing=[1, "code"])), "the options cannot be"),
    (lambda c: with_header(c, lambda h: h["optimizer"].update({"class": "os.system"})), "the optimizer is"),
    (lambda c: with_header(c, lambda h: h["optimizer"]["fields"].update(lr={"schedule": "Popen", "fields": {}})),
     "which is no attribute"),
    (lambda c: with_header(c, lambda h: h["loss"].update({"class": "eval"})), "the loss is"),
    (lambda c: with_header(c, lambda h: h["states"][0].update(shape=[1 << 40])), "fewer than its parts need"),
    (lambda c: with_header(c, lambda h: h["states"][0].update(dtype="object")), "is 'object'"),
    (lambda c: with_header(c, lambda h: h["inputs"][0].update(shape=[9, 6])), "says other inputs, outputs or states"),
    (lambda c: with_header(c, lambda h: h.update(outputs=[*h["outputs"], "y"])),
     "says other inputs, outputs or states")])
def test_a_sentence_for_every_file_that_is_none(change: Callable[[bytes], bytes], says: str, file: Path,
                                                tmp_path: Path) -> None:
    (tmp_path / "bad.tileflow").write_bytes(change(file.read_bytes()))
    with pytest.raises(ModelError,
                       match=f"Executable .*bad.tileflow cannot be used: .*({says}).*export the model again"):
        tileflow.load_executable(tmp_path / "bad.tileflow")


def test_memory_is_asked_for_before_it_is_taken(file: Path, tmp_path: Path) -> None:
    """States of which no number is stored may not be many times the others; and what is stored must have room."""
    def bomb(header: dict[str, Any]) -> None:
        header["states"].append({**header["states"][0], "name": "bomb", "kind": "accumulator", "shape": [1 << 30]})
    (tmp_path / "bomb.tileflow").write_bytes(with_header(file.read_bytes(), bomb))
    with pytest.raises(ModelError, match=r"whose numbers are not in it would take 4,294,967,296 bytes"):
        tileflow.load_executable(tmp_path / "bomb.tileflow")
    sparse = tmp_path / "large.tileflow"
    sparse.write_bytes(with_header(file.read_bytes(), lambda h: h["states"][0].update(shape=[1 << 38])))
    with sparse.open("r+b") as opened:
        opened.truncate((1 << 40) + (1 << 30))
    with pytest.raises(OutOfMemoryError, match=r"The states of an executable needs .*close other programs"):
        tileflow.load_executable(sparse)


def test_what_cannot_be_read_or_written(tmp_path: Path, file: Path) -> None:
    for path, says in ((tmp_path / "none", "cannot be read: No such file"),
                       (tmp_path, "cannot be read: Is a directory"),
                       (3, "not int")):
        with pytest.raises(ModelError, match=says):
            tileflow.load_executable(path)
    with pytest.raises(CheckpointError, match="create the folder first"):
        small().compile_and_export(tmp_path / "no" / "where.tileflow", X, Y)
    opened = Opened(file)
    assert dataclasses.replace(opened.header) == opened.header
    assert b"__reduce__" not in file.read_bytes()


# ---- damaged files

def damaged(content: bytes, seed: int) -> bytes:
    """A file after a few changes: of bytes, of its length, or of its header, whose digest is right again."""
    rng = random.Random(f"executable {seed}")
    if rng.random() < 0.5:
        return with_header(content, lambda header: _member(header, rng))
    made = bytearray(content)
    how = rng.randrange(4)
    if how == 0:
        return bytes(made[:rng.randrange(len(made))])
    if how == 1:
        at = rng.randrange(len(made))
        return bytes(made[:at] + rng.randbytes(rng.randrange(1, 200)) + made[at:])
    for _ in range(rng.choice((1, 3, 50))):
        made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


VALUES = (None, True, -1, 0, 1, 7, 1 << 31, 1 << 70, 0.5, float("inf"), "", "x", "float64", "accumulator", [], {}, [[]],
          {"value": 1})


def _member(data: Any, rng: random.Random) -> None:
    """Another value, one fewer, or one twice, somewhere in a table."""
    while True:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(data[key], (dict, list)) and data[key] and rng.random() < 0.85:
            data = data[key]
            continue
        how = rng.randrange(8)
        if how == 0:
            del data[key]
        elif how == 1 and isinstance(data, list):
            data.append(copy.deepcopy(data[key]))
        else:
            data[key] = rng.choice(VALUES)
        return


def judge(content: bytes, seed: int, path: Path) -> str:
    """What comes of a damaged file: a sentence, or a model that runs; else what is wrong."""
    path.write_bytes(damaged(content, seed))
    try:
        model = tileflow.load_executable(path)
        model(X, Y)
        model.state_dict()
    except TileflowError as error:
        return "refused" if len(str(error)) > 20 else f"no sentence: {error}"
    except BaseException:
        return traceback.format_exc()
    return "ran"


def judged(content: bytes, seeds: range, folder: Path) -> None:
    """In a process of its own: a crash is one file's."""
    def work() -> bool:
        found = {seed: judge(content, seed, folder / "damaged.tileflow") for seed in seeds}
        (folder / "found.json").write_text(json.dumps(found))
        return True
    assert forked.child(work) == 0
    found = json.loads((folder / "found.json").read_text())
    assert {seed: how for seed, how in found.items() if how not in ("ran", "refused")} == {}
    assert list(found.values()).count("refused") > len(found) // 2


def test_damaged_files_are_refused_or_run(file: Path, tmp_path: Path) -> None:
    judged(file.read_bytes(), range(PLAIN), tmp_path)


@exhaustive
@pytest.mark.parametrize("first", range(PLAIN, MANY, FEW))
def test_many_damaged_files(first: int, file: Path, tmp_path: Path) -> None:
    judged(file.read_bytes(), range(first, min(first + FEW, MANY)), tmp_path)
