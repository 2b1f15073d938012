"""Gradients without training: `tileflow.grad` against PyTorch, and what it says where there is none."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import model_of, node, port
from peers import needs

import tileflow
from tileflow import nn
from tileflow.system.errors import DataError, OptionError, UnsupportedError


class Net(nn.Module):
    def __init__(self) -> None:
        self.conv, self.norm, self.fc = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Linear(27, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        features = self.norm(self.conv(x)).tanh().flatten(1)
        return self.fc(self.drop(features)), features


def peer(net: Net) -> Any:
    torch = needs("torch")

    class Peer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.fc = torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.Linear(27, 4)

        def forward(self, x: Any) -> Any:
            features = self.norm(self.conv(x)).tanh().flatten(1)
            return self.fc(features), features

    made = Peer().double().eval()
    made.load_state_dict({k: torch.tensor(v) for k, v in net.state_dict().items()}, strict=False)
    return made


def test_gradients_are_pytorchs_in_float64_for_layers_and_for_their_file(tmp_path: Path) -> None:
    """Of a sum, of a given upstream gradient, of a loss; by inputs and parameters; batched."""
    torch = needs("torch")
    nn.manual_seed(3)
    net, draw = Net(), np.random.default_rng(0)
    x, y = draw.standard_normal((5, 2, 5, 5)), draw.integers(0, 4, 5)
    up = draw.standard_normal((5, 27))
    stored = Net()                                                  # a network has one precision, and the file is to have float32
    stored.load_state_dict(net.state_dict())
    path = tileflow.save_onnx(stored, tmp_path / "net.onnx", x.astype(np.float32))
    before, model = net.state_dict(), peer(net)
    names = [n for n, _ in model.named_parameters()]

    def wanted(number: Any, tx: Any) -> dict[str, Any]:
        found = torch.autograd.grad(number, [tx, *model.parameters()], allow_unused=True)
        return {n: g.numpy() for n, g in zip(["x", *names], found, strict=True) if g is not None}

    for given in (net, path):
        place = (lambda i: i) if given is net else (lambda i: f"output_{i}")
        tx = torch.tensor(x, requires_grad=True)
        by_sum = tileflow.grad(given, x, wrt=["x", *names], output=place(0), precision="64")
        by_upstream = tileflow.grad(given, [x], wrt=["x", "conv*"], output=place(1), upstream=up, precision="64")
        by_loss = tileflow.grad(given, {"x": x}, wrt=["x", *names], loss="cross_entropy", labels=y, precision="64")
        for found, number in ((by_sum, model(tx)[0].sum()), (by_upstream, (model(tx)[1] * torch.tensor(up)).sum()),
                              (by_loss, torch.nn.functional.cross_entropy(model(tx)[0], torch.tensor(y)))):
            theirs = wanted(number, tx)
            assert found.keys() <= theirs.keys()
            for name, g in found.items():
                assert (g.shape, g.dtype) == (theirs[name].shape, np.float64), name
                np.testing.assert_allclose(g, theirs[name], rtol=1e-9, atol=1e-12, err_msg=name)
    assert all(np.array_equal(before[k], v) for k, v in net.state_dict().items()), "nothing is trained"


def test_a_model_of_gradients_is_compiled_once_and_sees_the_weights_as_they_are() -> None:
    net = nn.Sequential(nn.Linear(3, 1))
    slope = tileflow.gradient_model(net)
    x = np.ones((4, 3), np.float32)
    np.testing.assert_array_equal(slope(x)["x"], np.broadcast_to(net.state_dict()["0.weight"], (4, 3)))
    engine = slope.engine
    net.load_state_dict({"0.weight": np.array([[1, 2, 3]], np.float32), "0.bias": np.zeros(1, np.float32)})
    np.testing.assert_array_equal(slope(x)["x"], np.broadcast_to(np.array([1, 2, 3], np.float32), (4, 3)))
    assert slope.engine is engine
    parameter = next(iter(net.parameters()))
    assert list(tileflow.grad(net, x, wrt=parameter)) == ["0.weight"]


class Rounded(nn.Module):
    def __init__(self) -> None:
        self.fc = nn.Linear(4, 4)

    def forward(self, x: nn.Tensor, ids: nn.Tensor) -> Any:
        y = self.fc(x)
        return y.argmax(-1).float() * 2, y.detach() + 1, y, ids + 1


@pytest.mark.parametrize(("given", "error", "message"), [
    (dict(output=0), UnsupportedError, r"The output .* has no gradient by x: it ends at ArgMax"),
    (dict(output=1, wrt="fc.weight"), UnsupportedError, r"has no gradient by fc.weight: it ends at Detach"),
    (dict(output=2, wrt="ids"), UnsupportedError, "the input ids is int64, and only floating numbers have gradients"),
    (dict(output=3), UnsupportedError, "The output .* is int64"), (dict(), DataError, "has 4 outputs; say of which"),
    (dict(output="no"), DataError, "no output 'no'"), (dict(output=2, wrt="no*"), DataError, "'no[*]' is no input and no parameter"),
    (dict(output=2, upstream=np.ones(3, np.float32)), DataError, r"upstream gradient \[3\] must have the shape"),
    (dict(loss="mse", upstream=np.ones(3)), OptionError, "not both"), (dict(labels=np.ones(3)), OptionError, "labels for a loss"),
    (dict(output=2, wrt=3), OptionError, "names of inputs and parameters"),
])
def test_where_there_is_no_gradient_the_node_is_named(given: dict[str, Any], error: type[Exception], message: str) -> None:
    x, ids = np.ones((2, 4), np.float32), np.zeros(2, np.int64)
    with pytest.raises(error, match=message):
        tileflow.grad(Rounded(), (x, ids), **given)


def test_a_loss_in_the_file_and_an_operator_that_says_why_it_has_no_gradient(tmp_path: Path) -> None:
    made = model_of([node("SoftmaxCrossEntropyLoss", ["x", "y", "w"], ["loss"], "end")],
                    [port("x", ["N", 3]), port("y", ["N"], "int64"), port("w", [3])], [port("loss", [])])
    path = tmp_path / "loss.onnx"
    path.write_bytes(made.SerializeToString())
    x, y, w = np.zeros((2, 3), np.float32), np.array([0, 2]), np.ones(3, np.float32)
    third = np.full((2, 3), 1 / 6, np.float32)
    third[[0, 1], y] -= 1 / 2
    np.testing.assert_allclose(tileflow.grad(path, (x, y, w), wrt="x")["x"], third, rtol=1e-5)
    with pytest.raises(UnsupportedError, match=r"between w and the output loss have no gradient: .*\(end\), as the weights of the classes are given"):
        tileflow.grad(path, (x, y, w), wrt="w")
