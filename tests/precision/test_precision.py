"""The option precision: its names, what they mean, and that every verb takes them."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tileflow.cli.arguments import options_of
from tileflow.cli.parser import make_parser
from tileflow.options.options import Options
from tileflow.precision.types import Precision
from tileflow.system.errors import OptionError

NAMES = {"32": ("float32", "float32", "float32"), "64": ("float64", "float64", "float64"), "16-mixed": ("float32", "float16", "float32"),
         "bf16-mixed": ("float32", "bfloat16", "float32"), "16-true": ("float16", "float16", "float32"),
         "bf16-true": ("bfloat16", "bfloat16", "float32")}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_precision_means(name: str) -> None:
    made = Precision.of(Options(precision=name))
    assert (made.weights, made.compute, made.loss) == NAMES[name]
    assert made.name == name
    assert made.mixed == name.endswith("mixed")
    assert made.float_dtype == (None if made.weights == "float32" else made.weights)


@pytest.mark.parametrize(("given", "name"), [
    ("float32", "32"), ("float64", "64"), ("float16", "16-true"), ("bfloat16", "bf16-true"), (32, "32"), (64, "64"), (16, "16-mixed"),
    ("16", "16-mixed"), ("bf16", "bf16-mixed"), ("fp16", "16-mixed"), ("32-true", "32"), ("64-true", "64"), (np.int64(16), "16-mixed")])
def test_other_spellings(given: Any, name: str, tmp_path: Any) -> None:
    """As a keyword, in a file and on the command line."""
    assert Options(precision=given).precision == name
    options = Options(precision=given, epochs=2)
    options.save(tmp_path / "o.toml")
    assert Options.load(tmp_path / "o.toml") == options
    (tmp_path / "o.toml").write_text(f"precision = {given!r}\n" if not isinstance(given, np.integer) else f"precision = {given}\n")
    assert Options.load(tmp_path / "o.toml").precision == name
    for command in ("train", "infer", "compile", "tune"):
        assert options_of(make_parser().parse_args([command, "m.onnx", "--precision", str(given)])).precision == name


@pytest.mark.parametrize("given", ["8", 8, 16.0, True, "mixed", "16-half", None, "FLOAT32"])
def test_what_is_no_precision(given: Any) -> None:
    with pytest.raises(OptionError, match="Option precision must be one of '32', '64', '16-mixed', 'bf16-mixed', '16-true', 'bf16-true'"):
        Options(precision=given)


def test_a_checkpoint_that_spells_the_precision_as_before_goes_on(tmp_path: Any) -> None:
    """Runs made when the option was called float32 and float64 can be resumed, and only with their own precision."""
    from tileflow.runtime.fingerprint import differences
    from tileflow.system.errors import CheckpointError
    made: dict[str, Any] = {"settings": {"precision": "float64"}, "loss": "mse", "model": "m", "optimizer": {"name": "sgd"},
                            "scaling": {}, "loss_scaling": 1.0, "data": "d", "rows": 1, "epochs": 1}
    model: Any = type("Model", (), {"optimizer": type("Sgd", (), {"variable": ()})})
    now = {**made, "settings": {"precision": "64"}, "max_updates": None}
    assert differences(tmp_path, made, now, model, Options(precision=64)) == []
    with pytest.raises(CheckpointError, match="was made with precision = 64, this run has 32"):
        differences(tmp_path, made, {**now, "settings": {"precision": "32"}}, model, Options())
