"""A batch that a file fixes holds where nothing is run on rows of data: compile, explore and tune take it and say so, and the option overrides it."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from onnx_models import model_of, node, port

import tileflow
from tileflow import cli
from tileflow.importers.onnx import wrap_model
from tileflow.options.options import Options
from tileflow.system.errors import TileflowError

TAKEN = "The micro-batch is {}, which the file declares; micro_batch_size (--micro-batch-size) takes its place.\n"


def image(batch: int | str) -> ModelProto:
    weights = {"w": np.ones((2, 3, 1, 1), np.float32), "v": np.ones((32, 4), np.float32)}
    return model_of([node("Conv", ["x", "w"], ["c"]), node("Flatten", ["c"], ["f"]), node("MatMul", ["f", "v"], ["y"])],
                    [port("x", [batch, 3, 4, 4])], [port("y", [batch, 4])], weights)


def product(rows: int | str = 2048) -> ModelProto:
    """Of two inputs of equal sizes, neither of which is a batch."""
    return model_of([node("MatMul", ["a", "b"], ["y"])], [port("a", [rows, 2048]), port("b", [2048, 2048])], [port("y", [rows, 2048])])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("batch", "options", "wanted"), [
    (1, {}, 1), (16, {}, 16), (3, {}, 3), (1, {"micro_batch_size": 4}, 4), (1, {"micro_batch_size": 16}, 16), ("N", {}, 16),
    ("N", {"micro_batch_size": 5}, 5)], ids=str)
def test_what_the_file_says_holds_and_the_option_overrides_it(batch: int | str, options: dict[str, Any], wanted: int, training: bool) -> None:
    found = tileflow.compile(wrap_model(image(batch)), training=training, **options)
    assert found.program.batching.micro_batch == wanted
    assert found.program.inputs[0].shape == (wanted, 3, 4, 4)
    assert found.to_text().startswith(TAKEN.format(batch)) == (isinstance(batch, int) and not options)


def test_an_options_file_overrides_it(tmp_path: Path) -> None:
    (tmp_path / "options.toml").write_text("micro_batch_size = 6\n", "utf-8")
    assert tileflow.compile(wrap_model(image(1)), Options.load(tmp_path / "options.toml")).program.batching.micro_batch == 6


def test_inputs_that_have_no_batch() -> None:
    found = tileflow.compile(wrap_model(product()))
    assert [v.shape for v in found.program.inputs] == [(2048, 2048)] * 2
    assert tileflow.compile(wrap_model(product("M"))).program.inputs[0].shape == (16, 2048)         # an open size beside a fixed one
    with pytest.raises(TileflowError, match="the file declares batch 2048 and 16 was asked for"):
        tileflow.compile(wrap_model(product()), micro_batch_size=16)
    model = tileflow.inference_model(wrap_model(product()))
    assert model.state_dict() == {}
    a = np.eye(2048, dtype=np.float32)
    np.testing.assert_array_equal(model(a, 2 * a), 2 * a)


def test_the_machine_says_what_was_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(image(2), "two.onnx")
    small = {"name": "small", "base": "gc200", "tiles": 16}
    found = tileflow.compile("two.onnx", machine=small)
    assert found.report["batching"]["micro_batch"] == 2                     # type: ignore[attr-defined]
    assert TAKEN.format(2) in found.to_text() + "\n"
    assert cli.main(["compile", "two.onnx"]) == 0
    assert capsys.readouterr().out.startswith(TAKEN.format(2))
    assert cli.main(["compile", "two.onnx", "--micro-batch-size", "8"]) == 0
    shown = capsys.readouterr().out
    assert "The micro-batch is" not in shown
    assert "float32[8, 3, 4, 4]" in shown


def test_explore_and_tune_take_it() -> None:
    small = {"name": "small", "base": "gc200", "tiles": 16}
    model = wrap_model(image(2))
    assert [p.values["micro_batch_size"] for p in tileflow.explore(model, machines=[small]).points] == [2]
    assert [p.values["micro_batch_size"] for p in tileflow.explore(model, machines=[small], micro_batch_size=[1, 4]).points] == [1, 4]
    assert [p.values["micro_batch_size"] for p in tileflow.explore(wrap_model(image("N")), machines=[small]).points] == [16]
    tuned = tileflow.tune_available_memory(model, machine=small, evaluations=1)
    assert tuned.compilation.program.batching.micro_batch == 2


def test_training_on_rows_takes_the_options(tmp_path: Path) -> None:
    """The nearest run that must go on as before: rows of data are cut by micro_batch_size, 16 by default, whatever the file was exported for."""
    x = np.ones((32, 3, 4, 4), np.float32)
    result = tileflow.train(wrap_model(image(1)), data=(x, np.arange(32) % 4), out=str(tmp_path))
    assert result.model.program.batching.micro_batch == 16
