"""What is given to a verb has an effect there: optimizers by name, packaged models, sizes that the data determine, patterns of parameters."""
from __future__ import annotations

import argparse
import ast
import dataclasses
import re

import numpy as np
import onnx
import pytest
from onnx_models import model_of, node, port
from test_architecture import PRODUCT, nodes

import tileflow
from tileflow import cli, nn
from tileflow.importers.onnx import open_sizes, wrap_model
from tileflow.optim.choose import CLASSES
from tileflow.options.declaration import GROUPS
from tileflow.options.needs import With
from tileflow.options.options import Options, declarations
from tileflow.options.registries import LOSSES, OPTIMIZERS, SCHEDULES
from tileflow.options.uses import AXES, check_use
from tileflow.options.verbs import COMMANDS, MODELS
from tileflow.strategy.cut import BUILDERS
from tileflow.system.errors import DataError, ModelError, OptionError, TypeMismatchError

X = np.random.default_rng(0).standard_normal((32, 4)).astype(np.float32)
Y = np.arange(32) % 3


def weights(**settings):
    nn.manual_seed(0)
    net = nn.Linear(4, 3)
    tileflow.training_model(net, **settings)(X, Y)
    return net.state_dict()


def test_an_optimizer_by_name_is_the_option():
    for name in ("sgd", "adamw"):
        by_name, by_option = weights(optimizer=name, learning_rate=0.1), weights(options=tileflow.Options(optimizer=name, learning_rate=0.1))
        assert all(np.array_equal(by_name[k], by_option[k]) for k in by_name)
    assert not np.array_equal(weights(optimizer="sgd")["weight"], weights(optimizer="adamw")["weight"])
    with_momentum = tileflow.training_model(nn.Linear(4, 3), optimizer="sgd", momentum=0.9)          # whose settings count then
    assert with_momentum.optimizer == tileflow.optim.SGD(1e-3, momentum=0.9)


def test_an_optimizer_in_place_of_a_files_options(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("learning_rate = 0.5\n")
    assert weights(options=tileflow.Options.load(path), optimizer=tileflow.optim.SGD(lr=0.1))
    with pytest.raises(OptionError, match="contradict"):
        weights(options=tileflow.Options(learning_rate=0.5), optimizer=tileflow.optim.SGD(lr=0.1))


def test_a_micro_batch_size_that_was_set_fixes_the_rows_of_a_call(tmp_path):
    model = tileflow.training_model(nn.Linear(4, 3), micro_batch_size=8, gradient_accumulation=2, device_iterations=2)
    model(X, Y)
    assert model.program.batching.micro_batch == 8
    path = tmp_path / "run.toml"
    path.write_text("micro_batch_size = 5\ngradient_accumulation = 4\n")
    with pytest.raises(tileflow.TileflowError, match=r"a call takes 20: micro_batch_size \(5\)"):
        tileflow.training_model(nn.Linear(4, 3), tileflow.Options.load(path))(X, Y)
    assert tileflow.inference_model(nn.Linear(4, 3), tileflow.Options.load(path))(X).shape == (32, 3)
    with pytest.raises(tileflow.TileflowError, match="a call takes 5"):
        tileflow.inference_model(nn.Linear(4, 3), micro_batch_size=5)(X)


def test_packaged_models_by_name_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tileflow.load("digits_cnn.onnx").inputs[0].name == "image"
    assert tileflow.compile("digits_cnn.onnx").program.inputs[0].name == "image"
    assert tileflow.inference_model("digits_cnn.onnx")(np.zeros((1, 1, 8, 8), np.float32)).shape == (1, 10)
    for verb in (tileflow.load, tileflow.compile, tileflow.training_model, lambda path: tileflow.train(path, data=(X, Y))):
        with pytest.raises(ModelError, match=r"^There is no model file none.onnx; give an .onnx file, or one that comes with tileflow: digits_cnn"):
            verb("none.onnx")


def test_the_options_of_a_run_serve_for_inference(tmp_path):
    result = tileflow.train("digits_cnn.onnx", data="digits", max_batches=2, out=str(tmp_path), gradient_accumulation=2, device_iterations=2,
                            threads=1)
    options = tileflow.Options.load(tmp_path / "run.toml")
    assert (options.gradient_accumulation, options.threads) == (2, 1)
    model = tileflow.inference_model(result.folder / "model.onnx", options, device_iterations=1)
    assert model(np.zeros((3, 1, 8, 8), np.float32)).shape == (3, 10)


# ---- sizes that the data determine


def sequence(dims):
    """[N, T, 4] -> the mean over T -> a Gemm."""
    return model_of([node("ReduceMean", ["x"], ["m"], axes=[1], keepdims=0), node("MatMul", ["m", "w"], ["y"], "fc")],
                    [port("x", dims)], [port("y", None)], {"w": np.ones((4, 3), np.float32)})


@pytest.mark.parametrize("dims", [["N", "T", 4], ["N", None, 4], ["N", "T", "C"]])
def test_open_sizes_are_the_datas(tmp_path, dims):
    x = np.zeros((32, 7, 4), np.float32)
    path = tmp_path / "sequence.onnx"
    onnx.save(sequence(dims), path)
    tileflow.train(path, data=(x, Y), out=str(tmp_path / "run"))
    assert tileflow.infer(path, data=x)["y"].shape == (32, 3)
    with pytest.raises(DataError, match=r"takes rows of shape \[5, 4\]"):
        tileflow.infer(path, data=x, dims={"x[1]" if dims[1] is None else "T": 5, **({"C": 4} if dims[2] == "C" else {})})


@pytest.mark.parametrize(("dims", "sample", "sizes"), [
    (["N", 3, "H", "W"], (32, 24, 3), {"H": 32, "W": 24}),          # channels last
    (["N", 3, "H", "W"], (3, 32, 24), {"H": 32, "W": 24}),
    (["N", 1, "H", "W"], (32, 24), {"H": 32, "W": 24}),
    (["N", "T"], (7, 1), {"T": 7}),
    (["N", "T", "N"], (7, 5), {"T": 7}),
    (["N", 3, "H", "W"], (5, 32, 24), {}),
    (["N", "T"], (7, 5), {}),
    (["N", "T"], (0,), {}),
])
def test_which_sizes_rows_settle(dims, sample, sizes):
    model = wrap_model(model_of([node("Relu", ["x"], ["y"])], [port("x", dims)], ["y"]))
    assert open_sizes(model, {"x": sample}) == sizes


# ---- layers


class Net(nn.Module):
    def __init__(self):
        nn.manual_seed(0)
        self.fc1, self.fc2 = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.fc2(self.fc1(x))


@pytest.mark.parametrize(("patterns", "changed"), [
    ({}, {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}), ({"frozen": "fc1*"}, {"fc2.weight", "fc2.bias"}),
    ({"trainable": "*.bias"}, {"fc1.bias", "fc2.bias"}),
])
def test_patterns_choose_the_parameters_of_layers(patterns, changed):
    net = Net()
    before = net.state_dict()
    tileflow.training_model(net, optimizer="sgd", learning_rate=0.1, **patterns)(X, Y)
    assert {name for name, array in net.state_dict().items() if not np.array_equal(array, before[name])} == changed


def test_what_is_for_files_is_refused_for_layers():
    with pytest.raises(OptionError, match="Option dims has no effect on a network of layers; it is for ONNX files"):
        tileflow.inference_model(Net(), dims={"T": 3})


def test_a_pattern_that_fits_nothing():
    with pytest.raises(OptionError, match=r"The pattern 'fc3\*' fits no parameter of Net; they are fc1.weight, fc1.bias"):
        tileflow.training_model(Net(), frozen="fc3*")(X, Y)


@pytest.mark.parametrize(("forward", "expected"), [
    (lambda x: nn.where(x > 0.5, 0.5, x), lambda x: np.where(x > 0.5, np.float32(0.5), x)),
    (lambda x: nn.where(x <= 0, x, -x), lambda x: -np.abs(x)),
    (lambda x: nn.where(x != 0, x, 1.0), lambda x: np.where(x != 0, x, 1)),
    (lambda x: nn.where(x >= 0, np.array([1.0, 2.0, 3.0, 4.0]), 0.0), lambda x: np.where(x >= 0, np.arange(1, 5, dtype=np.float32), 0)),
    (lambda x: nn.where(x < 0, x * 0, x), lambda x: np.maximum(x, 0)),
])
def test_where_and_comparisons(forward, expected):
    class Net(nn.Module):
        def forward(self, x):
            return forward(x)

    x = np.where(X > 1.5, np.float32(0), X)
    assert np.array_equal(tileflow.inference_model(Net())(x), expected(x))


def test_where_needs_an_element_type():
    class Net(nn.Module):
        def forward(self, x):
            return nn.where(x > 0, 1.0, 0.0)

    with pytest.raises(TypeMismatchError, match="no element type"):
        tileflow.inference_model(Net())(X)


def test_selection_where_a_message_sends_people():
    class Branches(nn.Module):
        def forward(self, x):
            return x if x > 0 else -x

    with pytest.raises(TypeMismatchError, match=r"use nn.where\(condition, a, b\)"):
        tileflow.inference_model(Branches())(X)


def test_progress_is_shown_in_python_too(tmp_path, capsys):
    tileflow.train("digits_cnn.onnx", data="digits", max_batches=2, out=str(tmp_path / "a"), progress=True)
    assert capsys.readouterr().out.startswith("epoch 1/1  loss ")
    tileflow.train("digits_cnn.onnx", data="digits", max_batches=2, out=str(tmp_path / "b"))
    assert capsys.readouterr().out == ""


# ---- the table


def test_declarations_name_what_exists():
    verbs = {*COMMANDS, *MODELS}
    for d in declarations().values():
        assert verbs >= {*d.verbs} >= {*d.commands}, d.name
        assert len({*d.verbs}) == len(d.verbs), d.name
        for need in d.needs:
            assert not isinstance(need, With) or (need.option in declarations() and need.values), d.name
    for registry in (OPTIMIZERS, LOSSES, SCHEDULES):
        assert {registry.option, *registry.own} <= set(declarations())
        assert all({*entry.defaults} <= set(declarations()) for entry in registry.values())
        assert set(declarations()[registry.option].kind.words) - {"auto"} == set(registry)
    assert {*BUILDERS} == {*declarations()["strategy"].kind.words} - {"none"}


READERS = {
    "options/uses.py": {*AXES}, "options/declaration.py": {*GROUPS}, "options/needs.py": set(),
    "options/settings.py": set(), "options/files.py": set(), "runtime/run_settings.py": set(),
    "runtime/fingerprint.py": {"loss", "optimizer", "loss_scaling", "epochs", "max_updates", "data", "weight_decay"}}
"""What reads declarations, and what of its words is an option's name, too: axes, groups, what a fingerprint holds."""


def test_what_reads_declarations_knows_no_option_by_name():
    for name, words in READERS.items():
        path, = (p for p in PRODUCT if p.as_posix().endswith(f"tileflow/{name}"))
        found = {n.value for n in nodes(path) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        assert found & set(declarations()) <= words, name


def test_registries_say_of_optimizers_what_their_classes_do():
    for name, entry in OPTIMIZERS.items():
        cls = CLASSES[name]
        assert getattr(tileflow.optim, cls.__name__) is cls
        own = {f.name for f in dataclasses.fields(cls)} - {f.name for f in dataclasses.fields(tileflow.optim.Optimizer)}
        assert own == {*entry.options}, name
        assert cls().weight_decay == entry.defaults.get("weight_decay", 0.0)


def test_what_a_resumed_run_is_told_again_needs_no_more():
    """Its folder knows the optimizer, the schedule and how the loss scale adapts."""
    given = {"momentum": 0.9, "schedule_power": 2.0, "growth_factor": 3.0, "auto_stage": "auto_increment"}
    check_use("train", given, Options(resume=True, **given))
    for name, value in given.items():
        with pytest.raises(OptionError, match=f"Option {name} has no effect with"):
            check_use("train", [name], Options(**{name: value}))


def test_options_objects_may_hold_more_than_a_verb_uses():
    options = tileflow.Options(epochs=3, machine="gc200", momentum=0.9)
    check_use("infer", [], options)
    assert tileflow.inference_model(nn.Linear(4, 3), options)(X).shape == (32, 3)
    with pytest.raises(OptionError, match="has no effect on inference_model; it is for train"):
        tileflow.inference_model(nn.Linear(4, 3), options, epochs=3)


def test_progress_of_models_may_be_a_bar_or_a_function():
    seen = []
    tileflow.inference_model(nn.Linear(4, 3), progress=lambda *said: seen.append(said))(X)
    assert seen[-1][1] == seen[-1][2] > 0
    assert tileflow.inference_model(nn.Linear(4, 3), progress=True)(X).shape == (32, 3)
    assert tileflow.infer(nn.Linear(4, 3), data=X, progress=False)
    with pytest.raises(OptionError, match="progress must be true, false or a function"):
        tileflow.inference_model(nn.Linear(4, 3), progress="bar")


# ---- what messages name


def messages():
    """(file and line, text) of every text of the product that may be a message: with a space in it, and no docstring."""
    for path in PRODUCT:
        every = nodes(path)
        docs = {id(n.body[0].value) for n in every if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef))
                and n.body and isinstance(n.body[0], ast.Expr)}
        for n in every:
            if isinstance(n, ast.Constant) and isinstance(n.value, str) and " " in n.value and id(n) not in docs:
                yield f"{path.name}:{n.lineno}", n.value


def test_messages_name_flags_and_functions_that_exist():
    """A message told people to use where(), which there was not, and --dim, which is --dims."""
    commands = next(a.choices for a in cli.make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    flags = {flag for command in commands.values() for action in command._actions for flag in action.option_strings}
    flags |= {"--force-reinstall", "--shm-size"}                     # pip's and docker's
    places = {"tileflow": tileflow, "nn": nn, "optim": tileflow.optim}
    found = list(messages())
    assert len(found) > 500
    for where, text in found:
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text):
            assert flag in flags, f"{where} names {flag}"
        for path in re.findall(r"\b((?:tileflow|nn|optim)(?:\.\w+)+)\(", text):
            thing = places[path.split(".")[0]]
            for name in path.split(".")[1:]:
                assert hasattr(thing, name), f"{where} names {path}()"
                thing = getattr(thing, name)
