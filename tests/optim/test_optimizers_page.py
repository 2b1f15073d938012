"""docs/optimizers.md is true: its code runs as it stands, its table is what the memory report says, its options are options."""
from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optim_harness import feed, trainer
from places import ROOT

from tileflow import cli, optim
from tileflow.optim.choose import CLASSES
from tileflow.options.options import Options
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.machine import analyze

PAGE = (ROOT / "docs" / "optimizers.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([A-Za-z]+\(.*?\))` \| (\d+) \|$", PAGE, re.MULTILINE)


def test_the_code_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    known: dict[str, Any] = {}
    exec(compile("\n".join(blocks), "optimizers.md", "exec"), known)
    assert known["optimizer"].variable_attrs.is_constant("momentum")
    assert np.isfinite(known["signed"].weight.data).all()


def test_the_command_and_the_file_say_the_same(tmp_path: Path) -> None:
    text, = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "o.toml").write_text(text)
    command, = re.findall(r"`tileflow train model.onnx (.*?)`", PAGE, re.DOTALL)
    words = [w.strip('"') for w in command.split()]
    assert tomllib.loads(text)
    assert cli.options_of(cli.parse(["train", "model.onnx", *words])) == Options.load(tmp_path / "o.toml")


@pytest.mark.parametrize(("optimizer", "nbytes"), ROWS)
def test_what_accumulators_and_moments_take(optimizer: str, nbytes: str) -> None:
    made = eval(f"optim.{optimizer}", {"optim": optim})
    weights = {"w": np.ones((64, 64), np.float32)}
    model = trainer(made, weights, gradient_accumulation=2)
    feed(model, {"w": np.ones((2, 64, 64), np.float32)})
    storages = analyze(model.program, chip("gc200")).memory_schedule.storages
    found = sum(s.itemsize * math.prod(s.shape) for s in storages if s.kind == "optimizer" and math.prod(s.shape) > 1)
    assert found == int(nbytes) * 64 * 64


def test_every_attribute_of_a_group_is_in_the_table() -> None:
    table = PAGE[PAGE.index("| optimizer | per group |"):]
    for cls in CLASSES.values():
        line, = re.findall(rf"^\| (?:\w+, )*{cls.__name__}(?:, \w+)* \| (.*?) \|", table, re.MULTILINE)
        own = {*cls.numbers, *(n for n in cls.flags if n != "centered")}
        assert set(re.findall(r"`(\w+)`", line)) == own
