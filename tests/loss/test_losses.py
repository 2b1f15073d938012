"""Losses as objects: the formulas of PyTorch, softmax and sigmoid taken once, the compiled measuring program, partial batches of data."""
from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from evaluate import check_gradient, check_gradient_kernels, check_kernel, evaluate
from onnx_models import model_of, node, port
from peers import needs

import tileflow
from tileflow import nn, optim
from tileflow.graph import Builder, Graph, TensorType, Value
from tileflow.importers.onnx import wrap_model
from tileflow.loss import LOSSES, find, head_of
from tileflow.ops.loss import BCELoss
from tileflow.options.options import Options, declarations
from tileflow.runtime.data import Dataset
from tileflow.runtime.evaluate import EvaluationModel, Evaluator
from tileflow.runtime.net_source import NetSource
from tileflow.system.errors import DataError, OptionError, ShapeError, TrainingError

rng = np.random.default_rng(11)
EXACT: dict[str, Any] = {"precision": "float64", "threads": 1}


class Apply(nn.Module):
    """A linear layer over the last axis, then operators by name."""

    def __init__(self, inputs: int, outputs: int, *then: tuple[str, dict[str, Any]], swap: bool = False) -> None:
        nn.manual_seed(3)
        self.linear, self.then, self.swap = nn.Linear(inputs, outputs), then, swap

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        x = self.linear(x)
        if self.swap:
            x = x.apply("Transpose", perm=(0, 2, 1))
        for name, attributes in self.then:
            x = x.apply(name, **attributes)
        return x


@pytest.mark.parametrize(("setting", "what"), [
    ({"ignore_index": -100}, "-100, the ignore_index"), ({"class_weights": (1.0, 0.0, 1.0)}, "of classes that weigh 0"),
    ({"ignore_index": 2, "class_weights": (1.0, 0.0, 1.0)}, "of classes that weigh 0 or the ignore_index")])
def test_a_micro_batch_without_a_label_that_counts(setting: dict[str, Any], what: str) -> None:
    """The mean of none is NaN, in PyTorch, too: that is said, not that the learning rate is too high."""
    net = Apply(4, 3)
    model = tileflow.training_model(net, micro_batch_size=2, gradient_accumulation=2, device_iterations=2, optimizer=optim.SGD(lr=0.1), **EXACT,
                                    **setting)
    x, y = rng.standard_normal((8, 4)), np.array([0, 0, 0, 0, 0, 1, 1, setting.get("ignore_index", 1)])
    if "class_weights" not in setting:
        y[6:] = -100
    with pytest.raises(TrainingError, match=re.escape(f"No label of micro-batch 3 of the call (update 1) counts, for all are {what}: ")):
        model(x, y)
    x[0, 0] = np.inf
    with pytest.raises(TrainingError, match="The loss is not finite at micro-batch 0"):
        model(x, y)


def log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    x = x - x.max(axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


def classes_in_numpy(scores: np.ndarray, labels: np.ndarray, ignore: int | None, weights: Sequence[float], smoothing: float) -> float:
    """PyTorch's cross entropy of scores [M, C] by its definition."""
    logs, weight = log_softmax(scores, 1), np.ones(scores.shape[1]) if not len(weights) else np.array(weights)
    total = by = 0.0
    for row, label in zip(logs, labels, strict=True):
        if label != ignore:
            total += (1 - smoothing) * weight[label] * -row[label] + smoothing / len(row) * float(np.sum(weight * -row))
            by += weight[label]
    return total / by


SETTINGS: list[dict[str, Any]] = [
    {}, {"ignore_index": -100}, {"ignore_index": 2}, {"class_weights": (0.5, 2.0, 0.0, 1.5)}, {"label_smoothing": 0.1},
    {"label_smoothing": 0.3, "class_weights": (0.5, 2.0, 1.0, 1.5), "ignore_index": 1}, {"label_smoothing": 1.0, "ignore_index": -1}]


def tokens(setting: dict[str, Any], *shape: int) -> np.ndarray:
    """Labels of four classes, some of them to be ignored."""
    labels = rng.integers(0, 4, shape)
    if setting.get("ignore_index") is not None:
        labels.reshape(-1)[::3] = setting["ignore_index"]
    return labels


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("layout", ["rows", "first", "last"])
def test_cross_entropy_is_its_definition(setting: dict[str, Any], layout: str):
    """Value, gradient (through the update of the bias, by differences) and the measuring program, for [N, C], [N, C, T] and [N, T, C]."""
    x = rng.standard_normal((6, 3)) if layout == "rows" else rng.standard_normal((6, 5, 3))
    net = Apply(3, 4, swap=layout == "first")
    labels = tokens(setting, *x.shape[:-1])
    weight, bias = net.linear.weight.data.astype(np.float64), net.linear.bias.data.astype(np.float64)

    def wanted(bias: np.ndarray) -> float:
        scores = (x @ (weight if weight.shape == (3, 4) else weight.T) + bias).reshape(-1, 4)
        return classes_in_numpy(scores, labels.reshape(-1), setting.get("ignore_index"), setting.get("class_weights", ()),
                                setting.get("label_smoothing", 0.0))
    before = net.linear.bias.data.astype(np.float64).copy()
    model = tileflow.training_model(net, optimizer=optim.SGD(lr=1.0), **EXACT, **setting)
    _, loss = model(x, labels)
    assert loss == pytest.approx(wanted(bias), rel=1e-12)
    slope = before - net.linear.bias.data
    for i in range(4):
        step = np.eye(4)[i] * 1e-6
        assert slope[i] == pytest.approx((wanted(before + step) - wanted(before - step)) / 2e-6, abs=1e-8)
    net.linear.bias.data[...] = before
    evaluation = EvaluationModel(model.source, model.options, model.loss)
    evaluation.source.session.set("linear.bias", before)
    evaluation.source.session.set("linear.weight", weight)
    _, losses, weights = evaluation.measure(x, labels)
    assert losses.shape == weights.shape == (6,)
    assert losses.sum() / weights.sum() == pytest.approx(wanted(bias), rel=1e-12)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("layout", ["rows", "first", "last"])
def test_cross_entropy_follows_pytorch(setting: dict[str, Any], layout: str):
    torch = needs("torch")
    x = rng.standard_normal((6, 3)) if layout == "rows" else rng.standard_normal((6, 5, 3))
    net = Apply(3, 4, swap=layout == "first")
    labels = tokens(setting, *x.shape[:-1])
    weight = torch.tensor(net.linear.weight.data.astype(np.float64), requires_grad=True)
    bias = torch.tensor(net.linear.bias.data.astype(np.float64), requires_grad=True)
    scores = torch.tensor(x) @ (weight if tuple(weight.shape) == (3, 4) else weight.T) + bias
    given = {"weight": torch.tensor(setting["class_weights"], dtype=torch.float64)} if "class_weights" in setting else {}
    loss = torch.nn.functional.cross_entropy(scores if layout == "rows" else scores.transpose(1, 2), torch.tensor(labels), **given,
                                             ignore_index=setting.get("ignore_index", -100), label_smoothing=setting.get("label_smoothing", 0.0))
    loss.backward()
    before = {n: a.copy() for n, a in net.state_dict().items()}
    _, ours = tileflow.training_model(net, optimizer=optim.SGD(lr=1.0), **EXACT, **setting)(x, labels)
    assert ours == pytest.approx(loss.item(), rel=1e-13)
    for name, g in (("linear.weight", weight.grad), ("linear.bias", bias.grad)):
        np.testing.assert_allclose(before[name] - net.state_dict()[name], g.numpy(), rtol=1e-10, atol=1e-14)


# ---- binary cross entropy of probabilities

def test_bce_at_the_edges_and_its_gradient():
    x = np.array([0.0, 1.0, 0.0, 1.0, 0.5, 1e-30, 0.999], "float32")
    t = np.array([1.0, 0.0, 0.0, 1.0, 0.25, 1.0, 0.5], "float32")
    each, = check_kernel(BCELoss(reduction="none"), x, t, rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(each[:4], [100, 100, 0, 0], rtol=1e-6)
    assert each[4] == pytest.approx(-0.25 * np.log(0.5) - 0.75 * np.log(0.5), rel=1e-6)
    assert np.isnan(check_kernel(BCELoss(reduction="none"), np.array([-0.1, 1.1], "float32"), np.array([1.0, 1.0], "float32"))[0][0])
    p, y = rng.uniform(0.05, 0.95, (3, 4)), rng.random((3, 4))
    for reduction in ("none", "sum", "mean"):
        check_gradient(BCELoss(reduction=reduction), p, y)
        check_gradient_kernels(BCELoss(reduction=reduction), p.astype("float32"), y.astype("float32"))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_bce_follows_pytorch(reduction: str):
    torch = needs("torch")
    x = np.concatenate([rng.random(200), [0, 0, 1, 1, 1e-13, 1 - 1e-13]])
    t = np.concatenate([rng.random(200), [0, 1, 0, 1, 1, 0]])
    p = torch.tensor(x, requires_grad=True)
    loss = torch.nn.functional.binary_cross_entropy(p, torch.tensor(t), reduction=reduction)
    y, = check_kernel(BCELoss(reduction=reduction), x, t, rtol=1e-12)
    np.testing.assert_allclose(y, loss.detach().numpy(), rtol=1e-12, atol=1e-14)
    loss.sum().backward()
    g = Graph()
    b = Builder(g)
    values = [b.input(n, TensorType("float64", x.shape)) for n in "xt"]
    slopes = b.BCELoss(*values, reduction=reduction).producer
    assert slopes is not None
    gradient = slopes.op.vjp(b, [b.input("g", slopes.outputs[0].type)], slopes.inputs, slopes.outputs)[0]
    assert gradient is not None
    g.outputs = [gradient]
    found = evaluate(g, {"x": x, "t": t, "g": np.ones(slopes.outputs[0].shape)})[gradient.name]
    np.testing.assert_allclose(found, p.grad.numpy(), rtol=1e-8)          # PyTorch holds the 1e-12 in float32


# ---- softmax and sigmoid at the end, once

def updates(net: nn.Module, loss: str, x: np.ndarray, y: np.ndarray, **options: Any) -> tuple[dict[str, np.ndarray], float]:
    model = tileflow.training_model(net, loss=loss, optimizer=optim.Adam(lr=0.05), **EXACT, **options)
    losses = [float(model(x, y)[1]) for _ in range(5)]
    return net.state_dict(), losses[-1]


X3, LABELS3 = rng.standard_normal((8, 5, 3)), rng.integers(0, 4, (8, 5))
SOFTMAX, LOG_SOFTMAX, SIGMOID = ("Softmax", {"axis": -1}), ("LogSoftmax", {"axis": -1}), ("Sigmoid", {})
ENDS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "softmax": (SOFTMAX,), "log softmax": (LOG_SOFTMAX,), "log of softmax": (SOFTMAX, ("Log", {})), "identity": (SOFTMAX, ("Identity", {})),
    "transposed": (SOFTMAX, ("Transpose", {"perm": (0, 2, 1)})),
    "reshaped": (SOFTMAX, ("Reshape", {"shape": (8, 5, 1, 4)}), ("Squeeze", {"axes": (2,)})),
    "before": (("Transpose", {"perm": (0, 2, 1)}), ("Softmax", {"axis": 1}))}


@pytest.mark.parametrize("loss", ["cross_entropy", "nll"])
@pytest.mark.parametrize("end", ENDS)
def test_a_model_that_ends_in_softmax_is_trained_as_the_same_one_without(end: str, loss: str):
    turned = end in ("transposed", "before")
    plain, plain_loss = updates(Apply(3, 4), "cross_entropy", X3, LABELS3)
    ended, ended_loss = updates(Apply(3, 4, *ENDS[end]), loss, X3, LABELS3)
    assert ended_loss == pytest.approx(plain_loss, rel=1e-13)
    for name in plain:
        np.testing.assert_allclose(ended[name], plain[name], rtol=1e-12, atol=1e-14)
    assert head_of(outputs(Apply(3, 4, *ENDS[end]), X3)[0]).axis == (1 if turned else 2)          # type: ignore[union-attr]


@pytest.mark.parametrize("then", [(), (("Transpose", {"perm": (0, 2, 1)}), ("Flatten", {}))], ids=["plain", "moved"])
@pytest.mark.parametrize("loss", ["bce", "bce_with_logits"])
def test_a_model_that_ends_in_sigmoid_is_trained_as_the_same_one_without(loss: str, then: Any):
    y = (rng.random((8, 5, 4)) > 0.5).astype(np.float64)
    if then:
        y = y.reshape(8, 20)
    plain, plain_loss = updates(Apply(3, 4, *then), "bce_with_logits", X3, y)
    ended, ended_loss = updates(Apply(3, 4, SIGMOID, *then), loss, X3, y)
    assert ended_loss == plain_loss
    assert {n: a.tobytes() for n, a in ended.items()} == {n: a.tobytes() for n, a in plain.items()}


def outputs(net: nn.Module, x: np.ndarray) -> list[Value]:
    return NetSource(net, Options(precision="float64")).graph([TensorType("float64", x.shape)], True)[0].outputs


@pytest.mark.parametrize("then", [(SOFTMAX, ("Mul2", {})), (SIGMOID, ("Slice", dict(starts=(0,), ends=(4,), axes=(0,), steps=(1,)))),
                                  (SOFTMAX, ("Relu", {})), (("Tanh", {}),)], ids=str)
def test_only_what_the_graph_proves_counts_as_the_end(then: Any):
    """Something between the function and the output that is more than a move of elements."""
    class Scaled(Apply):
        def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
            y = super().forward(x)
            return y * 2.0 if any(n == "Mul2" for n, _ in then) else y
    assert head_of(outputs(Scaled(3, 4, *[t for t in then if t[0] != "Mul2"]), X3)[0]) is None


def test_softmax_along_another_axis_than_the_classes_is_refused():
    net = Apply(3, 4, ("Softmax", {"axis": 1}))
    with pytest.raises(ShapeError, match=r"ends in Softmax along axis 1, the classes for the loss cross_entropy are on axis 2"):
        tileflow.training_model(net, **EXACT)(X3, LABELS3)


# ---- options

def test_the_options_name_the_losses():
    assert declarations()["loss"].kind.words == ("auto", *LOSSES)          # type: ignore[attr-defined]


@pytest.mark.parametrize(("loss", "option"), [("mse", {"ignore_index": 1}), ("nll", {"label_smoothing": 0.1}), ("bce", {"class_weights": (1.0,)}),
                                              ("identity", {"class_axis": 1})])
def test_an_option_that_a_loss_does_not_know_is_refused(loss: str, option: dict[str, Any]):
    with pytest.raises(OptionError, match=rf"Option {next(iter(option))} is for the loss .*; the loss {loss} has none"):
        find(loss, Options(**option))


def test_class_weights_are_one_for_each_class():
    with pytest.raises(OptionError, match=r"class_weights has 2 numbers; the model has 4 classes"):
        tileflow.training_model(Apply(3, 4), class_weights=(1.0, 2.0))(X3.astype("float32"), LABELS3)


def test_the_axis_of_the_classes_is_asked_for_where_shapes_leave_two():
    x, y = rng.standard_normal((2, 4, 3)), rng.integers(0, 4, (2, 4))
    with pytest.raises(OptionError, match=r"set class_axis \(--class-axis\) to 1 or -1"):
        tileflow.training_model(Apply(3, 4), **EXACT)(x, y)
    first, last = (tileflow.training_model(Apply(3, 4), class_axis=axis, **EXACT)(x, y)[1] for axis in (1, -1))
    assert first != last
    assert last == tileflow.training_model(Apply(3, 4, SOFTMAX), **EXACT)(x, y)[1]


# ---- the measuring program

def mean_of_squares(b: Builder, outputs: Sequence[Value]) -> Value:
    labels = b.input("labels", outputs[0].type)
    return b.ReduceMean(b.Mul(b.Sub(outputs[0], labels), b.Sub(outputs[0], labels)), keepdims=0)


MEASURED: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "mse": lambda p, y: float(np.mean((p - y) ** 2)),
    "l1": lambda p, y: float(np.mean(np.abs(p - y))),
    "bce_with_logits": lambda p, y: float(np.mean(np.maximum(p, 0) - p * y + np.log1p(np.exp(-np.abs(p))))),
}


@pytest.mark.parametrize("rows", [7, 16, 37])
@pytest.mark.parametrize("loss", [*MEASURED, "own"])
def test_measuring_uses_every_row_once(loss: str, rows: int, tmp_path: Any):
    """Fewer rows than a micro-batch, whole batches, and a shorter last one: padded rows do not count."""
    x, y = rng.standard_normal((64, 3)), rng.random((64, 4))
    net = Apply(3, 4)
    given: Any = mean_of_squares if loss == "own" else loss
    if loss == "own":
        model = tileflow.training_model(net, loss=given, micro_batch_size=16, **EXACT)
        model.compile(x[:16], y[:16])
        found = Evaluator(model).measure(Dataset.of({"x": x[:rows]}, y[:rows]))
    else:
        result = tileflow.train(net, data=(x, y), loss=loss, epochs=0, micro_batch_size=16, out=str(tmp_path), **EXACT)
        found = result.evaluate((x[:rows], y[:rows]))
    assert found is not None
    p = tileflow.inference_model(net, **EXACT)(x[:rows])
    assert found["loss"] == pytest.approx(MEASURED["mse" if loss == "own" else loss](p, y[:rows]), rel=1e-12)


def test_measuring_weighs_what_counts(tmp_path: Any):
    """Over the whole set as over one batch: rows of which more labels are ignored weigh less."""
    x, y = rng.standard_normal((24, 5, 3)), rng.integers(0, 4, (24, 5))
    y[:12, 1:] = -100
    setting: dict[str, Any] = {"ignore_index": -100, "class_weights": (1.0, 2.0, 3.0, 4.0)}
    result = tileflow.train(Apply(3, 4), data=((x, y), (x, y)), learning_rate=0.0, micro_batch_size=10, out=str(tmp_path), **EXACT, **setting)
    p = tileflow.inference_model(result.model.source.net, **EXACT)(x)          # type: ignore[attr-defined]
    wanted = classes_in_numpy(p.reshape(-1, 4), y.reshape(-1), -100, setting["class_weights"], 0.0)
    assert result.evaluate()["loss"] == pytest.approx(wanted, rel=1e-12)
    counts = y.reshape(-1) != -100
    assert result.evaluate()["accuracy"] == pytest.approx(np.mean(p.reshape(-1, 4).argmax(1)[counts] == y.reshape(-1)[counts]), rel=1e-15)


def test_a_training_takes_a_function_as_its_loss(tmp_path: Any):
    x, y = rng.standard_normal((37, 3)), rng.random((37, 4))

    def farthest(outputs: np.ndarray, labels: np.ndarray) -> float:
        return float(np.abs(outputs - labels).max())
    own, known = (tileflow.train(Apply(3, 4), data=((x, y), (x, y)), loss=loss, metrics=farthest, micro_batch_size=8, epochs=2, drop_last=False,
                                 out=str(tmp_path / str(i)), **EXACT) for i, loss in enumerate((mean_of_squares, "mse")))
    assert (own.loss, known.loss) == ("mean_of_squares()", "mse")
    for name, weight in known.weights.items():
        np.testing.assert_allclose(own.weights[name], weight, rtol=1e-12)
    np.testing.assert_allclose(own.history["test_loss"], known.history["test_loss"], rtol=1e-12)
    assert own.history["test_farthest"] == pytest.approx(known.history["test_farthest"], rel=1e-9)


def test_labels_that_a_loss_cannot_take_are_refused_in_a_call():
    with pytest.raises(DataError, match="needs labels after the model's inputs"):
        tileflow.training_model(Apply(3, 4), loss="bce")(X3)


@pytest.mark.parametrize("end", [None, "Softmax"])
@pytest.mark.parametrize("setting", [{}, {"label_smoothing": 0.1, "class_weights": (1.0, 2.0, 3.0)}, {"ignore_index": 1}], ids=str)
def test_sixteen_bit_models_are_trained_and_measured(end: str | None, setting: dict[str, Any], tmp_path: Any):
    """Rows' losses are summed in float32."""
    x, y = rng.standard_normal((70, 4)).astype(np.float16), np.arange(70) % 3
    nodes = [node("MatMul", ["x", "w"], ["m"], "fc"), *([node(end, ["m"], ["y"], "end")] if end else [])]
    weight = rng.standard_normal((4, 3)).astype(np.float16)
    model = wrap_model(model_of(nodes, [port("x", ["N", 4], "float16")], [port(nodes[-1].output[0], ["N", 3], "float16")], {"w": weight}))
    result = tileflow.train(model, data=((x, y), (x, y)), epochs=0, micro_batch_size=8, out=str(tmp_path), **setting)
    scores = (x.astype(np.float32) @ weight.astype(np.float32)).astype(np.float16).astype(np.float64)
    wanted = classes_in_numpy(scores, y, setting.get("ignore_index"), setting.get("class_weights", ()), setting.get("label_smoothing", 0.0))
    assert result.evaluate()["loss"] == pytest.approx(wanted, rel=2e-3)


def moved(b: Builder, x: Value, draw: np.random.Generator) -> Value:
    """One random move of elements."""
    shape = list(x.shape)
    kind = draw.integers(5)
    if kind == 0:
        return b.Transpose(x, perm=tuple(int(i) for i in draw.permutation(len(shape))))
    if kind == 1:
        return b.Unsqueeze(x, axes=(int(draw.integers(len(shape) + 1)),))
    if kind == 2 and len(shape) > 1:
        at = int(draw.integers(len(shape) - 1))
        return b.Reshape(x, shape=(*shape[:at], shape[at] * shape[at + 1], *shape[at + 2:]))
    if kind == 3 and any(n == 6 for n in shape):
        at = shape.index(6)
        return b.Reshape(x, shape=(*shape[:at], 2, 3, *shape[at + 1:]))
    return b.Identity(x)


@pytest.mark.parametrize("seed", range(60))
def test_the_scores_found_give_the_output_by_the_function_named(seed: int):
    """Whatever moves follow it: the softmax along the axis that was found, of the scores moved alike, is the output; or no axis was found."""
    draw = np.random.default_rng(seed)
    shape = tuple(int(n) for n in draw.permutation([2, 3, 6] if seed % 2 else [3, 3, 2]))
    graph = Graph()
    b = Builder(graph)
    name, axis = ("Softmax", "LogSoftmax", "Sigmoid")[seed % 3], int(draw.integers(-3, 3))
    start = b.input("x", TensorType("float64", shape))
    y = getattr(b, name)(start, **({} if name == "Sigmoid" else {"axis": axis}))
    for _ in range(int(draw.integers(5))):
        y = moved(b, y, draw)
    head = head_of(y)
    assert head is not None
    assert head.function == name
    scores = head.before(b)
    graph.outputs = [y, scores]
    values = evaluate(graph, {"x": rng.standard_normal(shape)})
    found, given = values[scores.name], values[y.name]
    if name == "Sigmoid":
        np.testing.assert_allclose(1 / (1 + np.exp(-found)), given, rtol=1e-12)
    elif head.axis is not None:
        logs = log_softmax(found, head.axis)
        np.testing.assert_allclose(logs if name == "LogSoftmax" else np.exp(logs), given, rtol=1e-12)
    else:
        assert given.shape != shape          # it was cut or joined with its neighbours
