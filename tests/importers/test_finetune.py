"""Fine-tuning somebody else's file: another last layer, and training it alone."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_models import mnist_cnn, model_of, node, port

import tileflow
from tileflow import nn
from tileflow.importers.onnx import OnnxModel, with_classes, wrap_model
from tileflow.system.errors import ModelError, OptionError

DRAW = np.random.default_rng(0)


def arrays(model: OnnxModel) -> dict[str, np.ndarray]:
    return {name: model.array(name) for name in model.initializers}


def test_a_new_last_layer_trains_alone_and_runs_with_its_size_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "mnist.onnx"
    path.write_bytes(mnist_cnn().SerializeToString())
    given = tileflow.load(path)
    x, y = DRAW.random((48, *[d for d in given.inputs[0].dims or () if isinstance(d, int)]), np.float32), DRAW.integers(0, 3, 48)
    tileflow.train(path, data=(x, y), num_classes=3, trainable="head", epochs=2, micro_batch_size=16, out=tmp_path / "run", seed=5)
    trained = tileflow.load(tmp_path / "run" / "model.onnx")
    onnx.checker.check_model(trained.proto, full_check=True)
    drawn, before, after = arrays(tileflow.load(path, num_classes=3, seed=5)), arrays(given), arrays(trained)
    changed = {n for n in after if not np.array_equal(after[n], drawn[n])}
    head = {n for n in after if drawn[n].shape != before[n].shape}
    assert changed == head
    assert len(head) == 2
    assert all(np.array_equal(drawn[n], before[n]) for n in after if n not in head)
    assert trained.outputs[0].dims == (*(given.outputs[0].dims or ())[:-1], 3)
    found, = ReferenceEvaluator(trained.proto).run(None, {given.inputs[0].name: x[:16]})
    assert found.shape == (16, 3)
    np.testing.assert_allclose(tileflow.inference_model(trained)(x[:16]), found, rtol=1e-4, atol=1e-5)
    again = tileflow.train(resume=True, out=tmp_path / "run", data=(x, y), epochs=3)
    assert len(again.epochs) == 3


def test_the_new_weights_are_pytorchs_distribution_by_the_seed() -> None:
    made = model_of([node("MatMul", ["x", "w"], ["y"]), node("Add", ["y", "b"], ["z"]), node("Softmax", ["z"], ["p"])], [port("x", ["N", 400])],
                    [port("p", ["N", 10])], {"w": np.ones((400, 10), np.float32), "b": np.zeros(10, np.float32)})
    model = wrap_model(made)
    w, b = (with_classes(model, 500, 1).array(n) for n in "wb")
    assert (w.shape, b.shape) == ((400, 500), (500,))
    for a in (w, b):
        assert np.abs(a).max() <= 0.05
        assert a.std() == pytest.approx(0.05 / np.sqrt(3), rel=0.1)
    assert np.array_equal(w, with_classes(model, 500, 1).array("w"))
    assert not np.array_equal(w, with_classes(model, 500, 2).array("w"))
    assert np.array_equal(model.array("w"), np.ones((400, 10))), "the given model stays"


def test_a_convolution_can_be_the_last_layer_and_shared_biases_part() -> None:
    """As in SqueezeNet: classes are channels, pooled behind; two layers whose equal biases the exporter stored once."""
    made = model_of(
        [node("Conv", ["x", "v", "zero"], ["h"]), node("Conv", ["h", "w", "zero"], ["c"]), node("GlobalAveragePool", ["c"], ["g"]),
         node("Flatten", ["g"], ["y"])], [port("x", ["N", 4, 5, 5])], [port("y", ["N", 4])],
        {"v": np.ones((4, 4, 1, 1), np.float32), "w": np.ones((4, 4, 3, 3), np.float32), "zero": np.zeros(4, np.float32)})
    changed = with_classes(wrap_model(made), 7)
    assert {n: a.shape for n, a in arrays(changed).items()} == {"v": (4, 4, 1, 1), "w": (7, 4, 3, 3), "zero": (4,), "zero.head": (7,)}
    assert changed.outputs[0].dims == ("N", 7)
    onnx.checker.check_model(changed.proto, full_check=True)
    assert ReferenceEvaluator(changed.proto).run(None, {"x": np.ones((2, 4, 5, 5), np.float32)})[0].shape == (2, 7)


W = {"w": np.ones((4, 6), np.float32)}


@pytest.mark.parametrize(("nodes", "stored", "shape", "message"), [
    ([node("MatMul", ["x", "w"], ["h"]), node("Reshape", ["h", "s"], ["y"])], W | {"s": np.array([-1, 6])}, ["N", 6], "made for 6|old number"),
    ([node("MatMul", ["x", "w"], ["h"]), node("Mul", ["h", "m"], ["y"])], W | {"m": np.arange(6, dtype=np.float32)}, ["N", 6], "old number"),
    ([node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "t"], ["k"]), node("MatMul", ["k", "w"], ["y"])],
     W | {"t": np.ones((6, 4), np.float32)}, ["N", 6], "another node reads its weight 'w'"),
    ([node("Relu", ["x"], ["y"])], {}, ["N", 4], "no last layer to replace"),
    ([node("MatMul", ["x", "w"], ["h"]), node("ArgMax", ["h"], ["y"], axis=1, keepdims=0)], W, ["N"], "cannot be told"),
])
def test_what_cannot_be_replaced_is_said(nodes: list[Any], stored: dict[str, np.ndarray], shape: list[Any], message: str) -> None:
    made = model_of(nodes, [port("x", ["N", 4])], [port("y", shape, "int64" if len(shape) == 1 else "float32")], stored)
    with pytest.raises(ModelError, match=message):
        with_classes(wrap_model(made), 9)


def test_the_head_of_a_network_of_layers() -> None:
    """With its bias, whatever the layers before it are called; beside other patterns."""
    class Net(nn.Module):
        def __init__(self) -> None:
            self.conv, self.first, self.last = nn.Conv2d(1, 2, 3), nn.Linear(8, 4), nn.Linear(4, 3)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            h = self.first(self.conv(x).flatten()).relu()
            return self.last(h.unsqueeze(1)).squeeze(1).softmax(-1)

    x, y = DRAW.random((6, 1, 4, 4), np.float32), DRAW.integers(0, 3, 6)
    for trainable, wanted in (("head", {"last.weight", "last.bias"}), (["head", "conv.*"], {"last.weight", "last.bias", "conv.weight", "conv.bias"})):
        net = Net()
        before = net.state_dict()
        tileflow.training_model(net, trainable=trainable, optimizer=tileflow.optim.SGD(lr=1.0))(x, y)
        assert {n for n, a in net.state_dict().items() if not np.array_equal(a, before[n])} == wanted
    with pytest.raises(OptionError, match="num_classes has no effect"):
        tileflow.train(Net(), data=(x, y), num_classes=3)
    with pytest.raises(OptionError, match="nothing before the first output has any"):
        tileflow.training_model(nn.Sequential(nn.LayerNorm(4)), trainable="head", loss="mse")(*[np.ones((2, 4), np.float32)] * 2)
