"""Anchored tensors: values within a model after a call, in its output mode, and the outputs as they are without."""
from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tileflow
from tileflow import nn
from tileflow.system.errors import OptionError, TileflowError


class Net(nn.Module):
    def __init__(self) -> None:
        self.first, self.act, self.head = nn.Linear(4, 6), nn.ReLU(), nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.head(self.act(self.first(x)))


def linear(x: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def rows(n: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((n, 4)).astype(np.float32)


@pytest.mark.parametrize("mode", ["all", "final", "sum", "every_n"])
def test_inference(mode):
    """Layers by name, blocks of layers by their last one, in every output mode; the outputs are those of a model without."""
    net, x = Net(), rows(12)
    batching = {"device_iterations": 4, "output_mode": mode, **({"output_return_period": 2} if mode == "every_n" else {})}
    model = tileflow.inference_model(net, anchored_tensors=("first", "act", "head.1", "head", "x"), **batching)
    got = model(x)
    w = net.state_dict()
    first = linear(x, w, "first")
    tanh = np.tanh(linear(np.maximum(first, 0), w, "head.0"))
    wanted = {"x": x, "first": first, "act": np.maximum(first, 0), "head.1": tanh, "head": linear(tanh, w, "head.2")}
    shown = {"all": lambda a: a, "final": lambda a: a[9:], "sum": lambda a: a.reshape(4, 3, -1).sum(0),
             "every_n": lambda a: np.concatenate([a[3:6], a[9:]])}[mode]
    found = model.anchored()
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        np.testing.assert_allclose(model.anchored(name), shown(array), rtol=1e-5, atol=1e-5)
        assert model.anchored(name).shape == shown(array).shape
    plain = tileflow.inference_model(net, **batching)(x)
    assert got.tobytes() == plain.tobytes() == found["head"].tobytes()


def test_training():
    """Of each micro-batch before its update; the weights are those of a model without, to the bit."""
    x, y = rows(8), np.array([0, 1, 2, 0, 1, 2, 0, 1])
    results = []
    for anchors in ((), ("act", "head.*")):
        net = Net()
        net.load_state_dict({k: np.random.default_rng(5).standard_normal(v.shape).astype(np.float32) for k, v in net.state_dict().items()})
        before = net.state_dict()
        model = tileflow.training_model(net, optimizer="sgd", learning_rate=0.5, gradient_accumulation=2, output_mode="all", anchored_tensors=anchors)
        results.append((*model(x, y), net.state_dict()))
        if anchors:
            assert list(model.anchored()) == ["act", "head.0", "head.1", "head.2"]
            np.testing.assert_allclose(model.anchored("act"), np.maximum(linear(x, before, "first"), 0), rtol=1e-5, atol=1e-5)
            assert model.anchored("head.2").tobytes() == results[-1][0].tobytes()
            assert len(results[-1]) == 3
    (plain, plain_loss, without), (outputs, loss, with_them) = results
    assert plain.tobytes() == outputs.tobytes()
    assert plain_loss.tobytes() == loss.tobytes()
    assert all(without[k].tobytes() == with_them[k].tobytes() for k in without)


def test_a_loss_that_is_an_output():
    """With the loss identity the model's only output is the loss: anchors follow it, and what a call returns is the loss alone."""
    class Own(Net):
        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return (super().forward(x) ** 2).mean()

    net, x = Own(), rows(4)
    model = tileflow.training_model(net, loss="identity", anchored_tensors="head")
    before = net.state_dict()
    loss = model(x)
    head = linear(np.tanh(linear(np.maximum(linear(x, before, "first"), 0), before, "head.0")), before, "head.2")
    np.testing.assert_allclose(model.anchored("head"), head, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss, np.mean(head ** 2), rtol=1e-5)


def test_a_file(tmp_path):
    """Tensors of the file by their names, which go before names of nodes."""
    w = np.arange(6, dtype=np.float32).reshape(3, 2) / 4
    nodes = [helper.make_node("MatMul", ["x", "w"], ["hidden"], "swapped"), helper.make_node("Relu", ["hidden"], ["swapped"], "hidden"),
             helper.make_node("Exp", ["swapped"], ["y"], "out")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])], [numpy_helper.from_array(w, "w")])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    model = tileflow.inference_model(path, anchored_tensors=["hidden", "swapped"])
    np.testing.assert_allclose(model(x), np.exp(np.maximum(x @ w, 0)), rtol=1e-6)
    np.testing.assert_allclose(model.anchored("hidden"), x @ w, rtol=1e-6)
    np.testing.assert_allclose(model.anchored("swapped"), np.maximum(x @ w, 0), rtol=1e-6)


def test_from_a_file_of_lines(tmp_path):
    (tmp_path / "o.conf").write_text('anchorTensor("short", "act")\n')
    model = tileflow.inference_model(Net(), tileflow.Options.load(tmp_path / "o.conf"))
    model(rows(2))
    assert model.anchored("act").min() >= 0


def test_what_is_not_there():
    net = Net()
    with pytest.raises(OptionError, match=r"anchored_tensors: 'head\.7' is no tensor, layer or node of the model; there are head\."):
        tileflow.inference_model(net, anchored_tensors="head.7")(rows(2))
    model = tileflow.inference_model(net, anchored_tensors="act")
    with pytest.raises(TileflowError, match="call the model at least once"):
        model.anchored("act")
    model(rows(2))
    with pytest.raises(OptionError, match="'first' is not anchored; the option anchored_tensors names act"):
        model.anchored("first")
    with pytest.raises(OptionError, match="name them in the option anchored_tensors"):
        tileflow.inference_model(net).anchored("act")
    with pytest.raises(OptionError, match="no effect on train; it is for training_model and inference_model"):
        tileflow.train(net, data=(rows(8), np.zeros(8, np.int64)), anchored_tensors="act")


@pytest.mark.parametrize("strategy",
                         [{}, {"strategy": "pipelined", "pipeline_splits": "head", "gradient_accumulation": 4}])
def test_gradients(strategy):
    """Of a parameter, by its name: those of each micro-batch, under any strategy; the weights are those of a model
    without, to the bit."""
    x, y = rows(8), np.array([0, 1, 2, 0, 1, 2, 0, 1])
    results = []
    for anchors in ((), ("act", "Gradient___head.2.bias", "Gradient___first.weight")):
        net = Net()
        net.load_state_dict({k: np.random.default_rng(5).standard_normal(v.shape).astype(np.float32)
                             for k, v in net.state_dict().items()})
        before = net.state_dict()
        options = {"gradient_accumulation": 2, **strategy, "output_mode": "all", "anchored_tensors": anchors}
        model = tileflow.training_model(net, optimizer=tileflow.optim.SGD(lr=0.5), **options)
        model(x, y)
        results.append(net.state_dict())
    accumulated = options["gradient_accumulation"]
    for name in ("head.2.bias", "first.weight"):
        of_each = model.anchored(f"Gradient___{name}").reshape(accumulated, *before[name].shape)
        np.testing.assert_allclose(before[name] - 0.5 * of_each.mean(0), results[1][name], rtol=1e-5, atol=1e-6)
    assert all(results[0][k].tobytes() == results[1][k].tobytes() for k in results[0])


def test_gradients_that_there_are_none_of():
    with pytest.raises(OptionError, match=r"heads\.bias is no parameter that has a gradient; there are first\.weight"):
        tileflow.training_model(Net(), anchored_tensors="Gradient___heads.bias")(rows(4), np.array([0, 1, 2, 0]))
    with pytest.raises(OptionError, match=r"inference has no gradient of first\.weight"):
        tileflow.inference_model(Net(), anchored_tensors="Gradient___first.weight")(rows(4))
