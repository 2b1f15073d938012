"""The loss that a model computes itself: found wherever it is, returned once, or one of two errors."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tileflow
from tileflow import nn, optim
from tileflow.importers.onnx import wrap_model
from tileflow.system.errors import OptionError

X = np.random.default_rng(3).standard_normal((12, 4)).astype(np.float32)
Y = np.random.default_rng(4).integers(0, 3, 12)

Forward = Callable[[nn.Tensor, nn.Tensor], Any]
"""Scores and their cross entropy -> what `forward` returns."""


class Net(nn.Module):
    def __init__(self, end: Forward) -> None:
        nn.manual_seed(5)
        self.first, self.second, self.end = nn.Linear(4, 8), nn.Linear(8, 3), end

    def forward(self, x: nn.Tensor, kind: nn.Tensor) -> Any:       # type: ignore[override]
        z = self.second(self.first(x).relu())
        return self.end(z, nn.functional.cross_entropy(z, kind))


def trained(end: Forward, **options: Any) -> tuple[Any, dict[str, np.ndarray], Any]:
    """What the last of two calls gave, and the weights after it."""
    chosen = dict(micro_batch_size=3, gradient_accumulation=2, output_mode="all") | options
    model = tileflow.training_model(Net(end), loss="identity", optimizer=optim.SGD(lr=0.5), **chosen)
    for _ in range(2):
        found = model(X, Y) if chosen.get("device_iterations") else [model(X[i:i + 6], Y[i:i + 6]) for i in (0, 6)][-1]
    return found, model.state_dict(), model


def of_scores(end: Callable[[nn.Tensor], Any]) -> Forward:
    return lambda z, ce: end(z)


def second_mark(z: nn.Tensor, ce: nn.Tensor) -> nn.Tensor:
    return nn.identity_loss(nn.identity_loss(ce) * 1.0)


def not_returned(z: nn.Tensor, ce: nn.Tensor) -> nn.Tensor:
    nn.identity_loss(ce)
    return z


def in_a_part(z: nn.Tensor, ce: nn.Tensor) -> Any:
    first = nn.identity_loss(ce)
    return nn.identity_loss(first + 0 * z.mean()), first, z


def last(z: nn.Tensor, ce: nn.Tensor) -> Any:
    return z, nn.identity_loss(ce)


PLACES: dict[str, tuple[Forward, int, int]] = {
    "marked first": (lambda z, ce: (nn.identity_loss(ce), z), 2, 0),
    "marked between": (lambda z, ce: (z, nn.identity_loss(ce), z * 2), 3, 1),
    "marked alone": (lambda z, ce: nn.identity_loss(ce), 1, 0),
    "first": (lambda z, ce: (ce, z), 2, 0),
    "last": (lambda z, ce: (z, ce), 2, 1),
    "beside another number": (lambda z, ce: (z.mean(), ce, z), 3, 1),
    "in a mark of its own": (lambda z, ce: (nn.identity_loss(ce * 1.0), z, ce), 3, 0),
    "beside another loss that is only looked at": (lambda z, ce: (nn.functional.mse_loss(z, z * 0.5).detach(), ce, z), 3, 1),
    "beside what is computed from it and only looked at": (lambda z, ce: (z, ce, ce.detach().exp()), 3, 1),
    "beside what has no gradient for it": (lambda z, ce: (z, ce, ce.argmax()), 3, 1),
    "marked beside another number": (lambda z, ce: (z.mean(), nn.identity_loss(ce), z), 3, 1),
    "marked and not returned": (not_returned, 2, 1),
    "a mark within a mark": (second_mark, 1, 0),
    "a mark within a mark, both returned": (in_a_part, 3, 0),
    "summed": (lambda z, ce: (nn.identity_loss(ce, "sum"), z), 2, 0),
    "whole numbers beside it": (lambda z, ce: (z.argmax(1).sum(), ce, z), 3, 1),
}
"""What `forward` returns, how many arrays that gives, and which of them is the loss."""


@pytest.mark.parametrize("name", PLACES)
def test_the_loss_is_found_and_returned_once(name: str) -> None:
    end, count, place = PLACES[name]
    (z, loss), weights, _ = trained(last)
    found, others, model = trained(end)
    found = found if isinstance(found, tuple) else (found,)
    assert len(found) == count
    np.testing.assert_array_equal(found[place], loss)
    np.testing.assert_array_equal(model.last_losses, loss)
    assert all(others[k].tobytes() == weights[k].tobytes() for k in weights)
    if count > 1:
        assert any(np.array_equal(a, z) for a in found)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("strategy", ["pipelined", "sharded", "serial_phased"])
def test_the_loss_comes_first_in_stages(strategy: str, threads: int) -> None:
    end = PLACES["marked first"][0]
    shape: Any = dict(micro_batch_size=1, gradient_accumulation=3, device_iterations=4)
    (loss, z), weights, _ = trained(end, **shape)
    (staged, scores), others, _ = trained(end, **shape, strategy=strategy, pipeline_splits=("second",), threads=threads)
    assert staged.tobytes() == loss.tobytes()
    assert scores.tobytes() == z.tobytes()
    assert all(others[k].tobytes() == weights[k].tobytes() for k in weights)


def test_elements_of_a_mark_that_is_not_reduced_have_gradients_of_one() -> None:
    """As the reference system has it: the seed is ones of the loss's shape. The elements stay where `forward` returns them; their sum comes last."""
    def each(z: nn.Tensor, ce: nn.Tensor) -> Any:
        return nn.identity_loss(z.square().mean(1), "none"), z

    def total(z: nn.Tensor, ce: nn.Tensor) -> Any:
        return nn.identity_loss(z.square().mean(1), "sum"), z
    (one, z), weights, _ = trained(total)
    (rows, scores, loss), others, _ = trained(each)
    np.testing.assert_allclose(loss, one, rtol=1e-6)
    np.testing.assert_allclose(rows.reshape(2, 3).sum(1), one, rtol=1e-6)
    np.testing.assert_allclose(scores, z, rtol=1e-6, atol=1e-7)
    for k in weights:
        np.testing.assert_allclose(others[k], weights[k], rtol=1e-6, atol=1e-7)


MULTIPLE = (r"Multiple independent losses found in graph\. Graph must have one final loss\. Wrap final graph loss in nn\.identity_loss, "
            r"and detach\(\) what is only looked at\. They are \S+: float32\[\], \S+: float32\[\]\.")
TWO = (r"The output \S+: float32\[\] is computed from the loss \S+: float32\[\], and nothing says which of the two training is to minimise\. "
       r"Wrap final graph loss in nn\.identity_loss, and detach\(\) what is only looked at\.")
NONE = r"Couldn't find a loss in graph! .*mark it with nn\.identity_loss in forward\(\).*the outputs are "


@pytest.mark.parametrize(("end", "message"), [
    (lambda z, ce: (nn.identity_loss(ce), nn.identity_loss(z.mean())), MULTIPLE),
    (lambda z, ce: nn.identity_loss(ce) + nn.identity_loss(z.mean()), MULTIPLE),
    (lambda z, ce: (z, ce, nn.functional.mse_loss(z, z * 0.5)), MULTIPLE),
    (lambda z, ce: (nn.identity_loss(ce), nn.functional.mse_loss(z, z * 0.5)), MULTIPLE),
    (lambda z, ce: ce + nn.functional.l1_loss(z, z * 0.5), MULTIPLE),
    (lambda z, ce: (z.square().mean(), z.mean()), MULTIPLE),
    (lambda z, ce: (z, ce * 0.5), TWO),
    (lambda z, ce: (ce, z, ce + z.mean()), TWO),
    (of_scores(lambda z: z), NONE),
    (of_scores(lambda z: (z, z.argmax(1).sum())), NONE),
    (of_scores(lambda z: z.square().mean(1)), NONE),
])
def test_no_loss_or_several(end: Forward, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        trained(end)


def test_an_output_of_one_row_is_no_loss() -> None:
    """With micro-batches of one row a score [1, 1] is no loss that it would not be with two; a number without dimensions is."""
    class Column(nn.Module):
        def __init__(self, with_loss: bool) -> None:
            self.layer, self.with_loss = nn.Linear(4, 1), with_loss

        def forward(self, x: nn.Tensor) -> Any:                    # type: ignore[override]
            y = self.layer(x)
            return (y, y.square().mean()) if self.with_loss else y
    for rows in (1, 2):
        with pytest.raises(OptionError, match="Couldn't find a loss"):
            tileflow.training_model(Column(False), loss="identity")(X[:rows])
        y, loss = tileflow.training_model(Column(True), loss="identity")(X[:rows])
        np.testing.assert_allclose(loss, np.square(y).mean(), rtol=1e-6)


def file_of(*outputs: str) -> Any:
    """y = x w, its mean as one number and as [1]."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("ReduceMean", ["y"], ["mean"], keepdims=0),
             helper.make_node("Reshape", ["mean", "one"], ["single"])]
    types = {"y": ["n", 2], "mean": [], "single": [1]}
    constants = [helper.make_tensor("w", TensorProto.FLOAT, [4, 2], np.ones(8)), helper.make_tensor("one", TensorProto.INT64, [1], [1])]
    graph = helper.make_graph(nodes, "own", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
                              [helper.make_tensor_value_info(o, TensorProto.FLOAT, types[o]) for o in outputs], constants)
    return wrap_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


@pytest.mark.parametrize("outputs", [("mean", "y"), ("y", "mean"), ("y", "single"), ("single",)])
def test_the_loss_of_a_file(outputs: tuple[str, ...]) -> None:
    model = tileflow.training_model(file_of(*outputs), loss="identity", optimizer=optim.SGD(lr=0.1))
    found = model(X[:3])
    found = found if isinstance(found, tuple) else (found,)
    assert len(found) == len(outputs)
    loss = next(a for name, a in zip(outputs, found, strict=True) if name != "y")
    np.testing.assert_allclose(np.reshape(loss, ()), X[:3].sum(1).mean(), rtol=1e-5)
    np.testing.assert_allclose(model.state_dict()["w"], 1 - 0.1 * np.repeat(X[:3].mean(0)[:, None], 2, 1) / 2, rtol=1e-5)


def test_files_without_one_loss() -> None:
    with pytest.raises(OptionError, match=r"Couldn't find a loss in graph! .* the outputs are y: float32\[3, 2\]\."):
        tileflow.training_model(file_of("y"), loss="identity")(X[:3])
    with pytest.raises(OptionError, match=r"Multiple independent losses .* They are mean: float32\[\], "):
        tileflow.training_model(file_of_two(), loss="identity")(X[:3])


def file_of_two() -> Any:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("ReduceMean", ["y"], ["mean"], keepdims=0),
             helper.make_node("ReduceMax", ["y"], ["most"], keepdims=0)]
    graph = helper.make_graph(nodes, "two", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
                              [helper.make_tensor_value_info(o, TensorProto.FLOAT, []) for o in ("mean", "most")],
                              [helper.make_tensor("w", TensorProto.FLOAT, [4, 2], np.ones(8))])
    return wrap_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


def test_anchors_beside_a_loss_that_comes_first() -> None:
    end = PLACES["marked first"][0]
    (loss, z), _, _ = trained(end)
    (other, scores), _, model = trained(end, anchored_tensors=("first",))
    assert loss.tobytes() == other.tobytes()
    assert z.tobytes() == scores.tobytes()
    assert model.anchored("first").shape == (6, 8)


@pytest.mark.parametrize("precision", ["32-true", "16-true", "bf16-mixed", "16-mixed"])
def test_a_loss_of_16_bits_is_returned_once(precision: str) -> None:
    (first, z), _, model = trained(PLACES["marked first"][0], precision=precision)
    (scores, other), _, _ = trained(last, precision=precision)
    assert first.dtype == np.float32
    assert first.tobytes() == other.tobytes() == model.last_losses.tobytes()
    assert z.tobytes() == scores.tobytes()


@pytest.mark.parametrize("name", ["marked first", "first", "marked and not returned"])
def test_runs_evaluations_and_files_follow(name: str, tmp_path: Any) -> None:
    """A run of `train` measures the same loss and the same scores wherever the loss is; the file has what `forward` returns."""
    def rows(scores: np.ndarray, labels: np.ndarray) -> float:
        assert scores.shape == (12, 3), scores.shape
        return float(scores.sum())
    rows.__name__ = "rows"
    data = tmp_path / "data.npz"
    np.savez(data, x=X, kind=Y)
    found = {}
    for which, end in (("last", last), (name, PLACES[name][0])):
        net = Net(end)
        result = tileflow.train(net, data=data, test_data=data, loss="identity", epochs=2, micro_batch_size=4, metrics=(rows,), out=tmp_path / which,
                                learning_rate=0.1, seed=3)
        found[which] = [(e.loss, e.test_loss, e.test_metrics) for e in result.epochs]
        given = tileflow.inference_model(net)(X, Y)
        path = tileflow.save_onnx(net, tmp_path / "net.onnx", (X, Y))
        again = tileflow.inference_model(path)(X, Y)
        for a, b in zip(given if isinstance(given, tuple) else (given,), again if isinstance(again, tuple) else (again,), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert found[name] == found["last"]


def test_gradients_of_the_models_own_loss() -> None:
    """`grad` finds it as training does, and gives what the update would take."""
    gradients = [tileflow.grad(Net(end), (X, Y), wrt="*.weight", loss="identity") for end in (last, PLACES["marked first"][0], not_returned)]
    assert sorted(gradients[0]) == ["first.weight", "second.weight"]
    assert all(g[k].tobytes() == gradients[0][k].tobytes() for g in gradients for k in g)
    with pytest.raises(OptionError, match="Multiple independent losses"):
        tileflow.grad(Net(lambda z, ce: (z.square().mean(), z.mean())), (X, Y), wrt="*.weight", loss="identity")
