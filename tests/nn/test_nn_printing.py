"""Tensors that are printed: values and gradients, in the order of the micro-batches whatever runs side by side, from
layers and by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import model_of, node, port

import tileflow
from tileflow import nn
from tileflow.ops.printing import PrintTensor
from tileflow.system.errors import OptionError


class Net(nn.Module):
    """Two blocks, the result of each printed: one number, which says the row."""

    def __init__(self) -> None:
        self.one, self.two = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        for layer in (self.one, self.two):
            layer.weight.data = np.ones((1, 1), np.float32)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        x = nn.print_tensor(self.one(x), "one", digits=0)
        return nn.print_tensor(self.two(x), "two", digits=0)


def blocks() -> Net:
    net = Net()
    net.one = nn.begin_block(net.one, "0", ipu_id=0)
    net.two = nn.begin_block(net.two, "two", ipu_id=1)
    return net


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("strategy", [None, "pipelined"])
def test_printed_in_global_order(threads: int, strategy: str | None, capsys: pytest.CaptureFixture[str]):
    """Two updates of four micro-batches, in a pipeline too: of each micro-batch its values, then its gradients, then
    the next one's."""
    x = np.arange(1, 9, dtype=np.float32).reshape(8, 1)
    staged = {} if strategy is None else {"strategy": strategy, "stages": ("0", "two")}
    model = tileflow.training_model(
        blocks(),
        loss="mse",
        optimizer="sgd",
        learning_rate=0.0,
        micro_batch_size=1,
        gradient_accumulation=4,
        device_iterations=2,
        threads=threads,
        **staged,
    )
    model(x, x - 1)
    lines = capsys.readouterr().out.splitlines()
    wanted = []
    for row in range(1, 9):
        wanted += [f"one: (({row}.))", f"two: (({row}.))", "two_gradient: ((2.))", "one_gradient: ((2.))"]
    assert lines == wanted


def test_nothing_is_printed_of_what_nobody_uses_and_no_bit_changes(capsys: pytest.CaptureFixture[str]):
    class Unused(nn.Module):
        def __init__(self) -> None:
            nn.manual_seed(4)
            self.a = nn.Linear(3, 3)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            x = self.a(x)
            nn.print_tensor(x, "lost")
            return x.relu()

    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    plain = tileflow.inference_model(Unused())(x)
    assert not capsys.readouterr().out
    shown = tileflow.inference_model(Unused(), printed_tensors=("a", "x"))(x)
    assert plain.tobytes() == shown.tobytes()
    assert re.match(r"(?s)^x: \(\(.*a: \(\(", capsys.readouterr().out)


def test_tensors_of_a_file_by_pattern(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """In inference and in training, where gradients follow; a name that fits nothing is refused."""
    w = np.eye(2, dtype=np.float32)
    nodes = [node("MatMul", ["x", "w"], ["h1"]), node("Relu", ["h1"], ["h2"]), node("MatMul", ["h2", "v"], ["y"])]
    onnx.save(model_of(nodes, [port("x", ["N", 2])], [port("y", ["N", 2])], {"w": w, "v": w}), tmp_path / "net.onnx")
    x = np.array([[1, 2]], np.float32)
    tileflow.inference_model(tmp_path / "net.onnx", printed_tensors=("h1", "h2"))(x)
    assert capsys.readouterr().out == "h1: ((1., 2.))\nh2: ((1., 2.))\n"
    tileflow.training_model(tmp_path / "net.onnx", printed_tensors="h2", loss="mse", optimizer="sgd")(x, x - 1)
    assert capsys.readouterr().out == "h2: ((1., 2.))\nh2_gradient: ((1., 1.))\n"
    with pytest.raises(OptionError, match="Option printed_tensors: 'nothing' is no tensor"):
        tileflow.inference_model(tmp_path / "net.onnx", printed_tensors="nothing")(x)


@pytest.mark.parametrize(
    ("settings", "array", "text"),
    [
        ({}, np.array([1.5, -2, 0.12345], np.float32), "( 1.5   , -2.    ,  0.1235)"),
        ({"float_format": "fixed", "digits": 2}, np.array([1.5, -2]), "(1.50, -2.00)"),
        ({"float_format": "scientific", "digits": 1, "separator": " "}, np.array([1500.0, 2]), "(1.5e+03 2.0e+00)"),
        ({"float_format": "none"}, np.array([1.5, 0.1]), "(1.5, 0.1)"),
        ({"summarise_threshold": 4, "edge_items": 1}, np.arange(9), "(0, ..., 8)"),
        ({"open_bracket": "{", "close_bracket": "}"}, np.array([[True], [False]]), "{{ True},\n {False}}"),
        ({"max_line_width": 8}, np.arange(4), "(0, 1,\n 2, 3)"),
        ({}, np.zeros((0, 3)), "()"),
        ({}, np.float32(2.5), "2.5"),
    ],
)
def test_texts(settings: dict[str, Any], array: Any, text: str):
    assert PrintTensor(**settings).shown(np.asarray(array)) == text
