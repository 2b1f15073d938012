"""detect_anomaly: the first operator that makes NaN or an infinity is named, and nothing else changes."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tileflow
from tileflow import nn, optim
from tileflow.executable.failure import bad_gradient
from tileflow.system.errors import TrainingError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((16, 6)).astype(np.float32)
Y = RNG.integers(0, 3, 16)


class Rooted(nn.Module):
    """The logarithm makes -inf of 0, the root's gradient an infinity of 0; the mask's infinities are given."""

    def __init__(self, kind: str) -> None:
        self.kind, self.first, self.last = kind, nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        h = self.first(x)
        h = h - h if self.kind != "mask" else h
        if self.kind == "log":
            h = h.log()
        elif self.kind == "sqrt":
            h = h.sqrt()
        return self.last(h)


def made(kind: str, **options: Any) -> Any:
    nn.manual_seed(1)
    return tileflow.training_model(Rooted(kind), optimizer=optim.SGD(lr=0.1), **options)


def test_the_first_operator_of_the_forward_pass():
    model = made("log", detect_anomaly=True)
    model.compile(X, Y)
    before = {n: a.tobytes() for n, a in model.source.session.lasting().items()}
    with pytest.raises(TrainingError, match=r"made an infinity: Log in its output .* while its operands are finite, at micro-batch 0"):
        model(X, Y)
    assert {n: a.tobytes() for n, a in model.source.session.lasting().items()} == before


def test_the_first_operator_of_the_backward_pass_in_the_micro_batch_that_it_is():
    model = made("sqrt", detect_anomaly=True, gradient_accumulation=4)
    with pytest.raises(TrainingError, match=r"detect_anomaly: the backward pass of .* made (an infinity|NaN): .* at micro-batch 0 of the call"):
        model(X, Y)


@pytest.mark.parametrize("threads", [1, 2])
def test_it_says_which_micro_batch_and_of_what_kind(threads: int):
    class Quotient(nn.Module):
        def __init__(self) -> None:
            self.last = nn.Linear(6, 3)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return self.last(x / x)
    rows = X.copy()
    rows[9, 2] = rows[14, 1] = 0.0
    for _ in range(3):
        model = tileflow.training_model(Quotient(), optimizer=optim.SGD(lr=0.1), gradient_accumulation=4, threads=threads, detect_anomaly=True)
        with pytest.raises(TrainingError, match=r"made NaN: Div in its output .* none of its operands has NaN, at micro-batch 2 of the call"):
            model(rows, Y)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_the_bits_are_the_same(threads: int, accumulation: int):
    weights = []
    for detect in (False, True):
        model = made("mask", detect_anomaly=detect, gradient_accumulation=accumulation, threads=threads)
        for _ in range(3):
            model(X, Y)
        weights.append({n: a.tobytes() for n, a in model.source.session.lasting().items()})
    assert weights[0] == weights[1]


def test_inference_names_it_too_and_given_infinities_are_nobodys():
    nn.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU())
    model = tileflow.inference_model(net, detect_anomaly=True)
    bad = X.copy()
    bad[3, 0] = np.inf
    with np.errstate(all="ignore"):
        assert not np.isfinite(model(bad)).all()                 # infinity went in, so nobody made it


def test_what_is_on_is_not_advised():
    """NaN that came with the inputs, and gradients: the sentence names detect_anomaly only to whom it says something new."""
    nn.manual_seed(1)
    bad = np.full_like(X, np.nan)
    for on in (False, True):
        model = tileflow.training_model(nn.Linear(6, 3), detect_anomaly=on, micro_batch_size=len(X))
        with pytest.raises(TrainingError, match="The loss is not finite at micro-batch 0") as told:
            model(bad, np.zeros(len(X), np.int64))
        assert ("detect_anomaly" in str(told.value)) is not on
        assert ("no operator made it of finite numbers" in str(told.value)) is on
        assert ("detect_anomaly" in str(bad_gradient(["w"], 3, on))) is not on


def test_a_node_of_an_onnx_file_is_named(tmp_path: Path):
    helper = onnx.helper
    shape = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N", 3]) for n in ("x", "y")]
    nodes = [helper.make_node("Exp", ["x"], ["e"], "/body/Exp"), helper.make_node("Sub", ["e", "e"], ["z"], "/body/Sub"),
             helper.make_node("Reciprocal", ["z"], ["r"], "/head/Reciprocal"), helper.make_node("Mul", ["r", "x"], ["y"], "/head/Mul")]
    graph = helper.make_graph(nodes, "g", shape[:1], shape[1:])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with pytest.raises(TrainingError, match=r"detect_anomaly: /head/Reciprocal made an infinity: Reciprocal .* at micro-batch 0 of the call\.$"):
        tileflow.inference_model(path, detect_anomaly=True, on_new_shape="compile")(X[:, :3])
