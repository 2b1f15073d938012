"""Options: checked where set, frozen, loaded from files that are parsed and never executed."""
from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from places import ROOT

import tileflow
from tileflow.api.models import chosen_options
from tileflow.cli.arguments import options_of
from tileflow.cli.parser import make_parser
from tileflow.options.options import GROUPS, FrozenOptionsError, Options, declarations
from tileflow.system.errors import OptionError


def test_defaults_and_keywords():
    assert Options().micro_batch_size == 16
    options = Options(micro_batch_size=np.int64(40), learning_rate=1, betas=[0.5, 0.9], frozen="conv*", dims={"batch": 4}, data=Path("a/b"))
    assert (options.micro_batch_size, options.learning_rate, options.betas) == (40, 1.0, (0.5, 0.9))
    assert (options.frozen, options.dims, options.data) == (("conv*",), {"batch": 4}, "a/b")
    assert type(options.micro_batch_size) is int
    assert repr(Options(epochs=3)) == "Options(epochs=3)"


@pytest.mark.parametrize(("name", "value", "says"), [
    ("micro_batch_size", 0, "a whole number, at least 1, not 0"),
    ("micro_batch_size", 2.0, "a whole number, at least 1, not 2.0"),
    ("micro_batch_size", True, "not True"),
    ("micro_batch_size", "16", "not '16'"),
    ("micro_batch_size", None, "not None"),
    ("learning_rate", float("nan"), "a number, at least 0, not nan"),
    ("learning_rate", -1, "not -1"),
    ("learning_rate", "fast", "not 'fast'"),
    ("weight_decay", float("inf"), "or None"),
    ("loss", "crossentropy", "one of 'auto', 'cross_entropy', 'nll'"),
    ("loss", ["mse"], "one of"),
    ("shuffle", 1, "true or false, not 1"),
    ("betas", (0.9,), "2 numbers, each at least 0 and below 1"),
    ("betas", (0.9, 1.0), "below 1"),
    ("std", [0.1, 0.0], "numbers, each above 0"),
    ("frozen", [1], "a list of texts"),
    ("frozen", b"x", "a list of texts"),
    ("dims", {"batch": 0}, "sizes of at least 1"),
    ("dims", [("batch", 1)], "a table"),
    ("data", "", "a path"),
    ("data", "a\0b", "a path"),
    ("resume", 3, "a path, true or false"),
    ("eps", 0, "above 0"),
    ("label", "", "a text"),
    ("validation_split", 1.0, "below 1"),
    ("available_memory_proportion", 1.5, "a number from 0 to 1"),
    ("available_memory_proportion", -0.1, "a number from 0 to 1"),
    ("available_memory_proportion", {"conv*": 2}, "a number from 0 to 1"),
    ("available_memory_proportion", {"": 0.2}, "a table of name patterns"),
    ("serialized_matmul", {"fc": "columns:4"}, "with mode input_channels or reducing_dim"),
    ("serialized_matmul", {"fc": "output_channels:0"}, "MODE:FACTOR"),
    ("serialized_matmul", {"fc": ("output_channels", 4)}, "MODE:FACTOR"),
    ("machine_precision", "8.8", "one of '32.32'"),
    ("machine", "", "the name of a chip"),
    ("machine", {}, "the name of a chip"),
    ("machine", 3, "the name of a chip"),
    ("seed", -1, "at least 0"),
])
def test_wrong_values(name, value, says):
    with pytest.raises(OptionError, match=f"Option {name} must be .*") as error:
        Options(**{name: value})
    assert says in str(error.value)
    options = Options()
    before = getattr(options, name)
    with pytest.raises(OptionError):
        setattr(options, name, value)
    assert getattr(options, name) == before


def test_unknown_names():
    with pytest.raises(OptionError, match="no option 'epohcs'; did you mean epochs"):
        Options(epohcs=3)
    with pytest.raises(OptionError, match="the options are micro_batch_size"):
        Options().xyzzy = 3
    with pytest.raises(OptionError, match="cannot be deleted"):
        del Options().epochs


@pytest.mark.parametrize(("values", "says"), [
    ({"output_mode": "every_n"}, "output_return_period"),
    ({"output_mode": "every_n", "output_return_period": 3, "device_iterations": 10}, "divides device_iterations"),
    ({"nesterov": True}, "momentum above 0"),
    ({"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "dampening 0"),
    ({"frozen": ["a"], "trainable": ["b"]}, "exclude each other"),
    ({"test_data": "a", "validation_split": 0.1}, "exclude each other"),
])
def test_combinations(values, says):
    with pytest.raises(OptionError, match=says):
        Options(**values)
    options = Options()
    for name, value in values.items():
        setattr(options, name, value)          # each alone is right
    with pytest.raises(OptionError, match=says):
        options.freeze()


def test_derived_values():
    options = Options(micro_batch_size=4, gradient_accumulation=3, device_iterations=2)
    assert (options.global_batch_size, options.combined_batch_size) == (12, 24)
    assert (options.output_mode_for(True), options.output_mode_for(False)) == ("final", "all")
    assert options.clone(output_mode="sum").output_mode_for(True) == "sum"


def test_options_of_a_model_are_frozen():
    """What is changed after that would have no effect."""
    net, options = tileflow.nn.Sequential(tileflow.nn.Linear(4, 3)), Options(device_iterations=2)
    tileflow.inference_model(net, options, output_mode="sum")
    assert options.output_mode == "default"
    with pytest.raises(FrozenOptionsError, match="Can't modify frozen Options"):
        options.device_iterations = 3
    assert options.clone(device_iterations=3).device_iterations == 3


def test_frozen_options_do_not_change():
    options = Options(epochs=2, dims={"batch": 4})
    assert options.freeze() is options
    assert options.is_frozen
    with pytest.raises(FrozenOptionsError, match="Can't modify frozen Options"):
        options.epochs = 3
    with pytest.raises(AttributeError):
        options.epochs = 3
    with pytest.raises(TypeError):
        options.dims["batch"] = 5          # type: ignore[index]
    for copied in (options.clone(), copy.copy(options), copy.deepcopy(options)):
        assert copied == options
        copied.epochs = 3
    assert options.epochs == 2
    assert options.clone(epochs=5).epochs == 5


def test_diff_says_what_two_differ_in():
    a = Options(epochs=3, betas=(0.5, 0.9), dims={"n": 2})
    b = a.clone(learning_rate=0.1, dims={"n": 3}, frozen="conv*")
    assert list(a.diff(b)) == ["frozen", "learning_rate", "dims"]
    assert a.diff(b) == {"frozen": ([], ["conv*"]), "learning_rate": (0.001, 0.1), "dims": ({"n": 2}, {"n": 3})}
    assert a.diff(a.clone()) == {}
    assert a == a.clone() != b
    assert Options(**eval(repr(a), {"Options": dict})) == a
    with pytest.raises(OptionError, match="compared with Options, not with dict"):
        a.diff({})          # type: ignore[arg-type]


def test_to_dict_is_json_and_comes_back():
    options = Options(betas=(0.5, 0.9), dims={"n": 3}, frozen=("a*",), resume=True, weight_decay=0.1)
    assert Options(**json.loads(json.dumps(options.to_dict()))) == options


def test_files(tmp_path):
    toml = tmp_path / "run.toml"
    toml.write_text('seed = 3\ndata = "digits"\n[training]\nepochs = 2\nfrozen = ["conv1.*"]\n[optimizer]\nbetas = [0.8, 0.9]\n'
                    '[run]\ndims = {batch = 4}\n')
    options = Options.load(toml, epochs=7)
    assert options == Options(seed=3, data="digits", epochs=7, frozen=("conv1.*",), betas=(0.8, 0.9), dims={"batch": 4})
    saved = tmp_path / "run.json"
    saved.write_text(json.dumps(options.to_dict()))
    assert Options.load(saved) == options


@pytest.mark.parametrize(("name", "text", "says"), [
    ("a.toml", "epochs = ", "is not valid TOML"),
    ("a.toml", "__import__('os').system('true')", "is not valid TOML"),
    ("a.toml", "[training]\nseed = 1", r"seed belongs to \[run\], not to \[training\]"),
    ("a.toml", "epochs = 1\n[training]\nepochs = 1", "set twice"),
    ("a.toml", "epochs = '3'", "Option epochs must be"),
    ("a.toml", "epoch = 3", "did you mean epochs"),
    ("a.toml", "[training]\n[training.epochs]\nx = 1", "Option epochs must be"),
    ("a.json", "[1]", "must hold a table"),
    ("a.json", "[" * 100_000, "is not valid JSON"),
    ("a.json", '{"epochs": NaN}', "Option epochs must be"),
    ("a.yaml", "epochs: 3", r"must end in \.toml, \.json \(tables\) or \.conf or \.txt"),
    ("a.json", None, "No such file"),
])
def test_bad_files(tmp_path, name, text, says):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(OptionError, match=says) as error:
        Options.load(path)
    assert name in str(error.value)


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match="is not valid TOML"):
        Options.load(path)


def test_every_declaration_is_complete():
    for declaration in declarations().values():
        assert declaration.group in GROUPS
        assert declaration.help
        assert declaration.help[0].islower() or declaration.help.startswith(("Nesterov", "PyTorch", "TensorFlow"))
        assert declaration.default is None or declaration.check(declaration.default) == declaration.default
        assert declaration.optional == (declaration.default is None)


def test_importing_options_is_cheap():
    code = ("import sys, tileflow.options.options; "
            "assert not {'numba', 'numpy', 'onnx'} & set(sys.modules), sorted(sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_names_that_an_option_had_before(tmp_path):
    """Keyword, assignment, reading, clone, file, table, command line, run folder's settings: the old name is the option."""
    old, split = "serialised_matmul", {"fc*": "output_channels:4"}
    assert declarations()["serialized_matmul"].aliases == (old,)
    assert old not in declarations()
    options = Options(**{old: split})
    assert dict(options.serialized_matmul) == dict(getattr(options, old)) == split
    assert options.given("serialized_matmul")
    assert options.given(old)
    assert old not in options.to_dict()
    setattr(options, old, {})
    assert not options.serialized_matmul
    assert dict(options.clone(**{old: split}).serialized_matmul) == split
    for text in (f'{old} = {{"fc*" = "output_channels:4"}}', f'[machine]\n{old} = {{"fc*" = "output_channels:4"}}'):
        (tmp_path / "o.toml").write_text(text)
        loaded = Options.load(tmp_path / "o.toml")
        assert dict(loaded.serialized_matmul) == split
        assert not Options.load(tmp_path / "o.toml", **{old: {}}).serialized_matmul
        assert not loaded.given("serialized_matmul", files=False)
    (tmp_path / "o.toml").write_text(f'{old} = {{}}\nserialized_matmul = {{}}')
    for twice in (lambda: Options(**{old: {}, "serialized_matmul": {}}), lambda: Options.load(tmp_path / "o.toml")):
        with pytest.raises(OptionError, match="serialized_matmul is set twice"):
            twice()
    with pytest.raises(AttributeError, match="serialised_matmuls"):
        _ = Options().serialised_matmuls
    chosen = chosen_options("train", None, {old: split})
    assert dict(chosen.serialized_matmul) == split


def test_old_names_on_the_command_line():
    for command in ("train", "compile"):
        for flag in ("--serialised-matmul", "--serialized-matmul"):
            parsed = options_of(make_parser().parse_args([command, "m.onnx", flag, "fc=reducing_dim:2"]))
            assert dict(parsed.serialized_matmul) == {"fc": "reducing_dim:2"}
    assert "serialised" not in make_parser().format_help()
