"""Batching: rows of a call, output modes, gradient accumulation, errors for shapes, weights shared by the models of one network."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import model_of, node, port
from paths import exhaustive

import tileflow
from tileflow import Options, nn, optim
from tileflow.importers.onnx import wrap_model
from tileflow.program.batching import Batching
from tileflow.runtime.outputs import selection
from tileflow.system.errors import DataError, OptionError, ShapeError, TileflowError, TypeMismatchError

rng = np.random.default_rng(7)
X = rng.standard_normal((40, 6)).astype(np.float32)
Y = rng.integers(0, 4, 40)


def linear(inputs: int = 6, outputs: int = 4) -> nn.Linear:
    nn.manual_seed(1)
    return nn.Linear(inputs, outputs)


def trained(rows: int = 40, calls: int = 3, optimizer: optim.Optimizer | None = None, **options: Any) -> dict[str, np.ndarray]:
    """Weights of the small network after some calls on the same rows."""
    net = linear()
    model = tileflow.training_model(net, optimizer=optimizer or optim.SGD(lr=0.1), **options)
    for _ in range(calls):
        model(X[:rows], Y[:rows])
    return net.state_dict()


# ---- inference: shapes and values of the output modes

def test_inference_output_modes():
    """PopTorch's own case: device_iterations 10, input [10, 1, 5, 6], Linear(6, 20)."""
    net = linear(6, 20)
    x = rng.standard_normal((10, 1, 5, 6)).astype(np.float32)
    wanted = x @ net.weight.data.T + net.bias.data
    everything = tileflow.inference_model(net, device_iterations=10)(x)
    assert everything.shape == (10, 1, 5, 20)
    np.testing.assert_allclose(everything, wanted, rtol=1e-5, atol=1e-6)

    def run(**options: Any) -> np.ndarray:
        return np.asarray(tileflow.inference_model(net, device_iterations=10, **options)(x))
    np.testing.assert_array_equal(run(output_mode="all"), everything)
    np.testing.assert_array_equal(run(output_mode="final"), everything[9:])
    np.testing.assert_array_equal(run(output_mode="every_n", output_return_period=5), everything[[4, 9]])
    np.testing.assert_array_equal(run(output_mode="every_n", output_return_period=10), everything[[9]])
    np.testing.assert_array_equal(run(output_mode="sum"), np.add.reduce(everything.reshape(10, 1, 1, 5, 20), 0, dtype=np.float32))


def test_device_iterations_never_change_the_outputs():
    net = linear()
    alone = tileflow.inference_model(net)(X)
    for iterations in (1, 4, 5, 40):
        np.testing.assert_allclose(tileflow.inference_model(net, device_iterations=iterations)(X), alone, rtol=1e-6, atol=5e-7)


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        self.linear = linear()

    def forward(self, x: nn.Tensor) -> Any:                    # type: ignore[override]
        y = self.linear(x)
        return x, y, y.sum(), y


def test_several_outputs_numbers_and_returned_inputs():
    model = tileflow.inference_model(TwoOutputs(), device_iterations=4)
    x, y, total, again = model(X)
    assert total.shape == (4,)                                 # a number per micro-batch becomes a vector
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, again)
    np.testing.assert_allclose(total, y.reshape(4, -1).sum(1), rtol=1e-4)
    assert tileflow.inference_model(TwoOutputs())(X)[2].shape == ()
    assert tileflow.inference_model(TwoOutputs(), device_iterations=4, output_mode="final")(X)[2].shape == ()


@pytest.mark.parametrize(("mode", "iterations", "accumulation", "period"), [
    ("all", 2, 3, None), ("final", 2, 3, None), ("sum", 2, 3, None), ("every_n", 4, 2, 2), ("every_n", 4, 1, 4), ("every_n", 4, 2, 1)])
def test_modes_of_an_array(mode: str, iterations: int, accumulation: int, period: int | None):
    """`select` against plain indexing, [device_iterations, gradient_accumulation, micro-batch, ...]."""
    full = rng.standard_normal((iterations, accumulation, 5, 2))
    flat = full.reshape(-1, 5, 2)
    wanted = {"all": full.reshape(-1, 2), "final": full[-1, -1], "sum": full.sum((0, 1)),
              "every_n": full[(period or 1) - 1::period or 1].reshape(-1, 2)}[mode]
    show = selection(mode, Batching(5, accumulation, iterations), period, flat.shape)
    np.testing.assert_allclose(show(flat), wanted)


# ---- training: what a call returns

def test_training_output_modes():
    def call(**options: Any) -> Any:
        return tileflow.training_model(linear(), optimizer=optim.SGD(lr=0.1), device_iterations=5, gradient_accumulation=2, **options)(X, Y)
    scores, losses = call(output_mode="all")
    assert scores.shape == (40, 4)
    assert losses.shape == (10,)
    prediction, loss = call()
    assert prediction.shape == (4, 4)
    assert np.shape(loss) == ()
    np.testing.assert_array_equal(prediction, scores[-4:])
    assert loss == losses[-1]
    total, loss = call(output_mode="sum")
    np.testing.assert_allclose(total, scores.reshape(10, 4, 4).sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss, losses.sum(), rtol=1e-6)
    some, loss = call(output_mode="every_n", output_return_period=5)
    np.testing.assert_array_equal(some, scores[-8:])           # the fifth iteration with all its accumulation steps
    np.testing.assert_array_equal(loss, losses[-2:])


def test_every_micro_batch_sees_the_weights_of_its_update():
    """The losses of a call are those of PyTorch's loop: falling, one update after each accumulation."""
    model = tileflow.training_model(linear(), optimizer=optim.SGD(lr=0.5), device_iterations=10, gradient_accumulation=4, output_mode="all")
    x, y = np.tile(X[:4], (10, 1)), np.tile(Y[:4], 10)
    losses = model(x, y)[1].reshape(10, 4).sum(1)
    assert (np.diff(losses) < 0).all()
    np.testing.assert_array_equal(model.last_losses.reshape(10, 4).sum(1), losses)


# ---- accumulation

@pytest.mark.parametrize(("a", "b"), [((1, 40), (4, 10)), ((1, 40), (8, 5)), ((2, 20), (5, 8))])
def test_mean_accumulation_is_a_larger_batch(a: tuple[int, int], b: tuple[int, int]):
    one, other = trained(gradient_accumulation=a[0]), trained(gradient_accumulation=b[0])
    for name, weight in one.items():
        np.testing.assert_allclose(weight, other[name], rtol=1e-6, atol=1e-6)


def test_sum_accumulation_is_a_larger_rate():
    one = trained(gradient_accumulation=4, accumulation_reduction="sum", optimizer=optim.SGD(lr=0.05))
    other = trained(gradient_accumulation=4, accumulation_reduction="mean", optimizer=optim.SGD(lr=0.2))
    for name, weight in one.items():
        np.testing.assert_allclose(weight, other[name], rtol=1e-6, atol=1e-6)


def test_iterations_of_one_call_are_calls():
    """device_iterations 5 on 40 rows is five calls on 8 rows, bit for bit."""
    net = linear()
    model = tileflow.training_model(net, optimizer=optim.AdamW(lr=0.1), gradient_accumulation=2)
    for i in range(5):
        model(X[8 * i:8 * i + 8], Y[8 * i:8 * i + 8])
    together = trained(calls=1, optimizer=optim.AdamW(lr=0.1), gradient_accumulation=2, device_iterations=5)
    for name, weight in net.state_dict().items():
        np.testing.assert_array_equal(weight, together[name])


# ---- errors

def test_rows_must_divide():
    with pytest.raises(ShapeError, match=r"Invalid batch dimension.*\[40, 6\].*\(40\).*device_iterations \(3\).*\(1\) = 3"):
        tileflow.inference_model(linear(), device_iterations=3)(X)
    with pytest.raises(ShapeError, match="Invalid batch dimension"):
        tileflow.training_model(linear(), gradient_accumulation=7)(X, Y)
    with pytest.raises(ShapeError, match="Invalid batch dimension"):
        tileflow.inference_model(linear())(X[:0])


class Scaled(nn.Module):
    def __init__(self) -> None:
        self.linear = linear()

    def forward(self, x: nn.Tensor, factor: nn.Tensor) -> nn.Tensor:       # type: ignore[override]
        return self.linear(x) * factor


def test_a_number_is_an_input_for_single_micro_batches():
    wanted = tileflow.inference_model(linear())(X)
    np.testing.assert_allclose(tileflow.inference_model(Scaled())(X, np.float32(2)), 2 * wanted, rtol=1e-6)
    with pytest.raises(ShapeError, match="Invalid batch dimension"):
        tileflow.inference_model(Scaled(), device_iterations=2)(X, np.float32(2))


def test_other_shapes_and_types_after_compiling():
    model = tileflow.inference_model(linear())
    model(X)
    with pytest.raises(ShapeError, match=r"Shape mismatch for x: expected \[40, 6\] but got \[8, 6\].*destroy"):
        model(X[:8])
    with pytest.raises(TypeMismatchError, match="Data type mismatch for x: expected float32 but got int64"):
        model(X.astype(np.int64))
    with pytest.raises(DataError, match="expected 1 but got 2"):
        model(X, X)
    np.testing.assert_array_equal(model(X), model(X))          # still usable


def test_destroy_lets_other_shapes_in_and_keeps_the_weights():
    net = linear()
    model = tileflow.training_model(net, optimizer=optim.AdamW(lr=0.1))
    model(X, Y)
    with pytest.raises(ShapeError, match="Shape mismatch for x"):
        model(X[:8], Y[:8])
    before = net.state_dict()
    model.destroy()
    with pytest.raises(TileflowError, match="not been compiled"):
        _ = model.program
    model.compile(X[:8], Y[:8])
    np.testing.assert_array_equal(net.state_dict()["weight"], before["weight"])
    model(X[:8], Y[:8])
    other = linear()                                           # the optimizer's state went on as well
    plain = tileflow.training_model(other, optimizer=optim.AdamW(lr=0.1), on_new_shape="compile")
    plain(X, Y)
    plain(X[:8], Y[:8])
    np.testing.assert_array_equal(other.state_dict()["weight"], net.state_dict()["weight"])


def test_new_shapes_may_compile():
    model = tileflow.inference_model(linear(), on_new_shape="compile")
    whole = model(X)
    np.testing.assert_allclose(model(X[:8]), whole[:8], rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(model(X), whole)
    assert len(model.programs) == 2


def test_inference_has_no_accumulation():
    with pytest.raises(OptionError, match="gradient_accumulation to 1"):
        tileflow.inference_model(linear(), gradient_accumulation=2)


def test_labels_are_needed_and_checked():
    model = tileflow.training_model(linear())
    with pytest.raises(DataError, match="needs labels"):
        model(X)
    with pytest.raises(ShapeError, match=r"Shape mismatch for labels: a micro-batch must be \[40\] but is \[39\]"):
        model(X, Y[:39])
    with pytest.raises(TypeMismatchError, match="labels: expected int64 but got float32"):
        model(X, Y.astype(np.float32))
    two = tileflow.training_model(linear(outputs=2))
    assert two(X, Y > 1)[1] == tileflow.training_model(linear(outputs=2))(X, (Y > 1).astype(np.uint8))[1]
    one = tileflow.training_model(linear(outputs=1), loss="mse")
    assert one(X, Y[:, None])[1] == tileflow.training_model(linear(outputs=1), loss="mse")(X, Y[:, None].astype(np.float64))[1]
    with pytest.raises(DataError, match="at least one"):
        tileflow.inference_model(linear())()
    with pytest.raises(TypeMismatchError, match="element type"):
        tileflow.inference_model(linear())(np.array(["a"]))


# ---- one network, several models

def test_weights_are_shared_both_ways():
    net = linear()
    run = tileflow.inference_model(net)
    before = run(X)
    train = tileflow.training_model(net, optimizer=optim.SGD(lr=0.1))
    train(X, Y)
    after = run(X)
    assert not np.array_equal(before, after)
    np.testing.assert_allclose(after, X @ net.weight.data.T + net.bias.data, rtol=1e-5, atol=1e-6)
    net.weight.data = np.zeros((4, 6))
    np.testing.assert_array_equal(run(X), np.broadcast_to(net.bias.data, (40, 4)))
    assert train(X, Y)[1] > 0
    state = linear().state_dict()
    net.load_state_dict(state)
    np.testing.assert_array_equal(run(X), before)
    with pytest.raises(ShapeError, match=r"\[4, 6\]; cannot assign \[6, 4\]"):
        net.weight.data = np.zeros((6, 4))
    with pytest.raises(DataError, match="missing bias, unexpected none"):
        net.load_state_dict({"weight": state["weight"]})


class Transposing(nn.Linear):
    """A linear layer that turns its weight first."""

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return x @ x.lift(self.weight).transpose(1, 0) + self.bias


def test_what_is_derived_from_weights_follows_them():
    """A prologue (here a transposed weight) runs again after updates and assignments."""
    nn.manual_seed(1)
    net = Transposing(6, 4)
    run = tileflow.inference_model(net)
    x = rng.standard_normal((2, 3, 6)).astype(np.float32)
    run(x)
    assert run.program.parts["prologue"].nodes
    net.weight.data = 2 * net.weight.data
    np.testing.assert_allclose(run(x), x @ net.weight.data.T + net.bias.data, rtol=1e-5, atol=1e-6)
    train = tileflow.training_model(net, optimizer=optim.SGD(lr=0.1), loss="mse", device_iterations=2, output_mode="all")
    first = net.state_dict()
    prediction, _ = train(x, np.zeros((2, 3, 4), np.float32))
    np.testing.assert_allclose(prediction[0], x[0] @ first["weight"].T + first["bias"], rtol=1e-5, atol=1e-6)
    assert np.abs(prediction[1] - (x[1] @ first["weight"].T + first["bias"])).max() > 1e-3
    np.testing.assert_allclose(run(x), x @ net.weight.data.T + net.bias.data, rtol=1e-5, atol=1e-6)


def test_one_precision_per_network():
    net = linear()
    tileflow.inference_model(net)(X)
    with pytest.raises(OptionError, match="same precision"):
        tileflow.inference_model(net, precision="float64")(X)


def test_options_are_frozen_by_a_model():
    options = Options(device_iterations=2)
    model = tileflow.inference_model(linear(), options)
    for taken in (options, model.options):
        with pytest.raises(OptionError, match="was set after a model or data loader took the options"):
            taken.device_iterations = 3
    options.clone(device_iterations=3).device_iterations = 4


def test_a_loss_of_ones_own():
    """It may take no labels, or several."""
    def weighted(b: Any, outputs: Any) -> Any:
        target, weight = b.input("target", outputs[0].type), b.input("weight", outputs[0].type.with_shape(outputs[0].shape[:1]))
        d = b.Sub(outputs[0], target)
        rows = b.ReduceMean(b.Mul(d, d), axes=(1,), keepdims=False)
        return b.ReduceSum(b.Mul(rows, weight), axes=(0,), keepdims=False)

    def small(b: Any, outputs: Any) -> Any:
        return b.ReduceMean(b.Mul(outputs[0], outputs[0]), axes=(0, 1), keepdims=False)
    net = linear()
    start = X @ net.weight.data.T + net.bias.data
    target, weight = rng.standard_normal((40, 4)), rng.uniform(0, 1, 40)
    _, loss = tileflow.training_model(net, optimizer=optim.SGD(lr=0.0), loss=weighted)(X, target, weight)
    assert loss == pytest.approx((((start - target) ** 2).mean(1) * weight).sum(), rel=1e-5)
    _, loss = tileflow.training_model(net, optimizer=optim.SGD(lr=0.0), loss=small)(X)
    assert loss == pytest.approx((start ** 2).mean(), rel=1e-5)


def test_the_option_loss_counts():
    model = tileflow.training_model(linear(), Options(loss="mse"), optimizer=optim.SGD(lr=0.0))
    assert model.loss_name == "mse"
    assert tileflow.training_model(linear()).loss_name == "cross_entropy"
    with pytest.raises(OptionError, match="no loss 'msee'"):
        tileflow.training_model(linear(), loss="msee")


# ---- one ONNX file

DIGITS = Path(tileflow.__file__).parent / "data" / "digits_cnn.onnx"
IMAGES = rng.standard_normal((8, 1, 8, 8)).astype(np.float32)


def test_models_of_one_loaded_file_share_weights():
    loaded = tileflow.load(DIGITS)
    run = tileflow.inference_model(loaded)
    before = run(IMAGES)
    tileflow.training_model(loaded, optimizer=optim.SGD(lr=0.1))(IMAGES, np.arange(8))
    assert not np.array_equal(run(IMAGES), before)
    np.testing.assert_array_equal(tileflow.inference_model(DIGITS)(IMAGES), before)
    np.testing.assert_array_equal(tileflow.inference_model(loaded)(IMAGES), run(IMAGES))


@pytest.mark.parametrize("options", [dict(trainable=("fc*",)), dict(frozen=("conv*",))])
def test_only_chosen_weights_are_trained(options: dict[str, Any]):
    model = tileflow.training_model(DIGITS, optimizer=optim.AdamW(lr=0.1), **options)
    model.compile(IMAGES, np.arange(8))
    before = model.source.session.snapshot()
    model(IMAGES, np.arange(8))
    after = model.source.session.snapshot()
    changed = {n for n in model.source.session.names("parameter") if not np.array_equal(before[n], after[n])}
    assert changed == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
    assert {s.name for s in tileflow.compile(DIGITS, training=True, **options).program.parts["update"].states if s.kind == "parameter"} == changed


def test_inference_of_a_file():
    """Rows that do not fill a batch, outputs by name."""
    outputs = tileflow.infer(DIGITS, data=IMAGES, micro_batch_size=3)
    assert list(outputs) == ["logits"]
    np.testing.assert_allclose(outputs["logits"], tileflow.inference_model(DIGITS)(IMAGES), rtol=1e-5, atol=1e-5)


def test_outputs_that_are_no_rows_are_not_joined():
    """A mean of a batch, and labels that lie in a row: the last batch is filled up, and what is of a batch is not of all rows."""
    proto = model_of([node("ReduceMax", ["x"], ["m"], axes=[1], keepdims=1), node("Transpose", ["m"], ["row"], perm=[1, 0]),
                      node("ReduceMean", ["x"], ["mean"], keepdims=0)], [port("x", ["N", 4])], ["row", "m", "mean"])
    x = np.random.default_rng(0).standard_normal((7, 4)).astype("float32")
    said = []
    found = tileflow.infer(wrap_model(proto), data=x, micro_batch_size=3, say=said.append)
    assert list(found) == ["m"]
    np.testing.assert_array_equal(found["m"], x.max(1, keepdims=True))
    assert [text[:45] for text in said] == ["The output 'row' has the shape [1, 3] for 3 r", "The output 'mean' has the shape [] for 3 rows"]
    assert "choose a micro_batch_size of all 7 rows" in said[0]
    with pytest.warns(UserWarning, match="for 3 rows"):
        tileflow.infer(wrap_model(proto), data=x, micro_batch_size=3)
    whole = tileflow.infer(wrap_model(proto), data=x, micro_batch_size=7)
    np.testing.assert_array_equal(whole["row"], x.max(1)[None])
    assert whole["mean"] == pytest.approx(x.mean())


@exhaustive
def test_inference_of_a_file_in_another_precision():
    outputs = tileflow.infer(DIGITS, data=IMAGES, micro_batch_size=3)
    double = tileflow.inference_model(DIGITS, precision="float64")(IMAGES)
    assert double.dtype == np.float64
    np.testing.assert_allclose(outputs["logits"], double, rtol=1e-4, atol=1e-5)
