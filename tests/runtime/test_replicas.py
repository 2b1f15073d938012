"""Replicas: data-parallel copies over shared weights, what a call returns of them, and who gets which rows."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tileflow
from tileflow import Options, nn, optim
from tileflow.program.batching import Batching
from tileflow.runtime.outputs import selection
from tileflow.system.errors import OptionError, ShapeError

rng = np.random.default_rng(3)
X = rng.standard_normal((48, 6)).astype(np.float32)
Y = rng.integers(0, 4, 48)


def network(*, dropout: bool = False, norm: bool = False) -> nn.Module:
    nn.manual_seed(1)
    layers: list[nn.Module] = [nn.Linear(6, 8)]
    layers += [nn.BatchNorm1d(8)] if norm else []
    layers += [nn.ReLU(), *([nn.Dropout(0.3)] if dropout else []), nn.Linear(8, 4)]
    return nn.Sequential(*layers)


def trained(net: nn.Module, calls: int = 3, **options: Any) -> tuple[dict[str, np.ndarray], list[Any]]:
    """Weights and buffers after some calls on 48 rows, and what the calls returned."""
    model = tileflow.training_model(net, optimizer=optim.AdamW(lr=0.05), output_mode="all", **options)
    returned = [model(X, Y) for _ in range(calls)]
    return net.state_dict(), returned


def same(one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    assert one[0].keys() == other[0].keys()
    for name, array in one[0].items():
        np.testing.assert_array_equal(array, other[0][name], err_msg=name)
    for a, b in zip(one[1], other[1], strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("strategy", ["post", "running"])
def test_replicas_are_accumulation_to_the_bit(reduction: str, strategy: str):
    """Micro-batches fold in global order and random streams follow the global index: dropout, running statistics and all."""
    def run(**batching: int) -> Any:
        return trained(network(dropout=True, norm=True), accumulation_reduction=reduction, mean_reduction_strategy=strategy, **batching)
    alone = run(gradient_accumulation=4)
    same(alone, run(gradient_accumulation=2, replication_factor=2))
    same(alone, run(replication_factor=4))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_replicas_do_not_depend_on_threads(threads: int):
    wanted = trained(network(dropout=True, norm=True), replication_factor=2, gradient_accumulation=3, device_iterations=2)
    same(wanted, trained(network(dropout=True, norm=True), replication_factor=2, gradient_accumulation=3, device_iterations=2, threads=threads))


# ---- what a call returns: a model of the reference in a few lines of NumPy


def reference(full: np.ndarray, mode: str, period: int) -> np.ndarray:
    """`full`: [device_iterations, gradient_accumulation, replicas, *micro-batch shape]; a number per micro-batch becomes a vector where there are
    several."""
    chosen = {"all": full, "final": full[-1:, -1:], "every_n": full[period - 1::period], "sum": full.sum((0, 1), keepdims=True)}[mode]
    count, shape = chosen.shape[0] * chosen.shape[1] * chosen.shape[2], full.shape[3:]
    if not shape:
        return chosen.reshape(count) if count > 1 else chosen.reshape(())
    return chosen.reshape(count * shape[0], *shape[1:])


BATCHES = st.tuples(st.integers(1, 4), st.integers(1, 3), st.sampled_from([1, 2, 3, 4]), st.sampled_from(["all", "final", "sum", "every_n"]))


@given(BATCHES, st.sampled_from([(), (2,), (3, 2), (1, 2, 2)]), st.data())
@settings(max_examples=150, deadline=None)
def test_output_modes_are_those_of_the_reference(batch: tuple[int, int, int, str], shape: tuple[int, ...], data: st.DataObject):
    iterations, accumulation, replicas, mode = batch
    period = data.draw(st.sampled_from([n for n in range(1, iterations + 1) if iterations % n == 0]))
    full = np.arange(np.prod((iterations, accumulation, replicas, *shape)), dtype=np.float64).reshape(iterations, accumulation, replicas, *shape)
    flat, batching = full.reshape(-1, *shape), Batching(shape[0] if shape else 1, accumulation, iterations, replicas)
    shown = selection(mode, batching, period, flat.shape)(flat)
    wanted = reference(full, mode, period)
    assert np.shape(shown) == wanted.shape
    np.testing.assert_array_equal(shown, wanted)


def groups(replicas: int, size: int, order: str) -> list[list[int]]:
    """Replica groups as PopTorch lists them: {0..k-1}, {k..2k-1} and {0, m, 2m ..}, {1, m+1 ..} with m = N/k."""
    apart = replicas // size
    return [[g * size + i if order == "consecutive" else g + i * apart for i in range(size)] for g in range(apart)]


@given(BATCHES, st.sampled_from(["consecutive", "orthogonal"]), st.data())
@settings(max_examples=25, deadline=None)
def test_whole_calls_are_those_of_the_reference(batch: tuple[int, int, int, str], order: str, data: st.DataObject):
    """Inference and training through the engine: [iterations, accumulation, replicas, micro-batch] in and out, groups on the same rows."""
    iterations, accumulation, replicas, mode = batch
    size = data.draw(st.sampled_from([n for n in range(1, replicas + 1) if replicas % n == 0]))
    training = data.draw(st.booleans())
    accumulation = accumulation if training else 1
    period = {"output_return_period": iterations} if mode == "every_n" else {}
    grouped = {"input_group_size": size} if replicas > 1 else {}
    grouped |= {"input_group_type": order} if size > 1 else {}
    micro = 2
    rows = micro * iterations * accumulation * (replicas // size)
    x, y = X[:rows] if rows <= len(X) else np.tile(X, (2, 1))[:rows], np.resize(Y, rows)
    dealt = np.empty((iterations, accumulation, replicas, micro, 6), np.float32)
    labels = np.empty((iterations, accumulation, replicas, micro), np.int64)
    for g, members in enumerate(groups(replicas, size, order)):
        dealt[:, :, members] = x.reshape(iterations, accumulation, -1, 1, micro, 6)[:, :, g]
        labels[:, :, members] = y.reshape(iterations, accumulation, -1, 1, micro)[:, :, g]
    options: dict[str, Any] = dict(device_iterations=iterations, replication_factor=replicas, output_mode=mode, **period, **grouped)
    plain = dict(device_iterations=iterations * (1 if training else replicas), output_mode="all")
    if training:
        net = network()
        shown = tileflow.training_model(net, optimizer=optim.SGD(lr=0.1), gradient_accumulation=accumulation, **options)(x, y)
        other = network()
        full = tileflow.training_model(other, optimizer=optim.SGD(lr=0.1), gradient_accumulation=accumulation * replicas, **plain)(
            dealt.reshape(-1, 6), labels.reshape(-1))
        for name, array in net.state_dict().items():
            np.testing.assert_array_equal(array, other.state_dict()[name])
    else:
        net = network()
        shown, full = (tileflow.inference_model(net, **options)(x),), (tileflow.inference_model(net, **plain)(dealt.reshape(-1, 6)),)
    for got, every, shape in zip(shown, full, ((micro, 4), ()), strict=False):
        wanted = reference(every.reshape(iterations, accumulation, replicas, *shape), mode, iterations)
        assert np.shape(got) == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6) if mode == "sum" else np.testing.assert_array_equal(got, wanted)


# ---- facts of the reference's that are easy to get wrong


def test_rows_of_a_call():
    """Dimension 0 is micro-batch * accumulation * (replicas / group size) * iterations, and a number is legal where that product is one."""
    model = tileflow.training_model(network(), gradient_accumulation=2, replication_factor=4, input_group_size=2, device_iterations=3,
                                    output_mode="all")
    scores, losses = model(X[:24], Y[:24])
    assert scores.shape == (48, 4)
    assert losses.shape == (24,)
    with pytest.raises(ShapeError, match=r"multiple of device_iterations \(3\) \* gradient_accumulation \(2\) \* replication_factor / "
                                         r"input_group_size \(2\) = 12"):
        tileflow.training_model(network(), gradient_accumulation=2, replication_factor=4, input_group_size=2, device_iterations=3)(X[:25], Y[:25])
    with pytest.raises(ShapeError, match=r"device_iterations \(1\) \* gradient_accumulation \(1\) \* replication_factor \(5\) = 5"):
        tileflow.training_model(network(), replication_factor=5)(X, Y)


def test_modes_by_default_and_a_loss_of_each_replica():
    prediction, loss = tileflow.training_model(network(), replication_factor=4, gradient_accumulation=2)(X, Y)
    assert prediction.shape == (24, 4)                         # final: one micro-batch of 6 rows of each of four replicas
    assert loss.shape == (4,)
    prediction, loss = tileflow.training_model(network(), gradient_accumulation=2)(X, Y)
    assert np.shape(loss) == ()
    assert tileflow.inference_model(network(), replication_factor=4)(X).shape == (48, 4)
    assert tileflow.inference_model(network(), replication_factor=4, output_mode="final")(X).shape == (48, 4)
    assert tileflow.inference_model(network(), replication_factor=4, device_iterations=3, output_mode="sum")(X).shape == (16, 4)


@pytest.mark.parametrize(("options", "sentence"), [
    ({"replication_factor": 0}, "replication_factor must be a whole number, at least 1"),
    ({"replication_factor": 4, "input_group_size": 3}, "input_group_size must be a factor of replication_factor"),
    ({"replication_factor": 2, "input_group_size": 4}, "input_group_size cannot be larger than replication_factor"),
    ({"input_group_type": "all", "replication_factor": 2, "input_group_size": 2}, "one of 'consecutive', 'orthogonal'"),
    ({"broadcast_buffers": False}, "has no effect without replicas"),
    ({"replication_factor": 2, "input_group_type": "orthogonal"}, "has no effect without groups")])
def test_what_is_refused(options: dict[str, Any], sentence: str):
    with pytest.raises(OptionError, match=sentence):
        tileflow.training_model(network(), **options)


def test_training_run_with_replicas(tmp_path: Any):
    """A whole run, its last rows included, is that of as many micro-batches accumulated."""
    def run(folder: str, **batching: int) -> tileflow.TrainResult:
        return tileflow.train(network(norm=True), data=(X[:47], Y[:47]), epochs=2, micro_batch_size=4, drop_last=False, out=str(tmp_path / folder),
                              **batching)
    one, other = run("a", gradient_accumulation=4), run("b", gradient_accumulation=2, replication_factor=2)
    for name, array in one.weights.items():
        np.testing.assert_array_equal(array, other.weights[name])
    np.testing.assert_array_equal(one.history["loss"], other.history["loss"])
    assert Options(micro_batch_size=4, gradient_accumulation=2, replication_factor=6, input_group_size=2).global_batch_size == 24


# ---- buffers of each replica's own


def statistics(net: nn.Module) -> np.ndarray:
    return net.state_dict()["1.running_mean"]


def test_buffers_of_their_own_are_those_of_a_run_on_its_own_rows():
    """Without learning, replica 0's running statistics are those of a model that saw its micro-batches only; shared ones saw all."""
    def run(x: np.ndarray, y: np.ndarray, **options: Any) -> np.ndarray:
        net = network(norm=True)
        model = tileflow.training_model(net, optimizer=optim.SGD(lr=0.0), **options)
        for _ in range(2):
            model(x, y)
        return statistics(net)
    mine = X.reshape(3, 2, 8, 6)[:, 0].reshape(24, 6)
    alone = run(mine, np.resize(Y, 24), gradient_accumulation=3)
    np.testing.assert_array_equal(run(X, Y, gradient_accumulation=3, replication_factor=2, broadcast_buffers=False), alone)
    everything = run(X, Y, gradient_accumulation=6)
    np.testing.assert_array_equal(run(X, Y, gradient_accumulation=3, replication_factor=2), everything)
    assert not np.array_equal(alone, everything)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_weights_do_not_follow_from_who_has_the_buffers(threads: int):
    """Training normalises by each micro-batch's own statistics, so the weights are the same to the bit."""
    shared = trained(network(norm=True, dropout=True), gradient_accumulation=2, replication_factor=2)
    own = trained(network(norm=True, dropout=True), gradient_accumulation=2, replication_factor=2, broadcast_buffers=False, threads=threads)
    assert own[0].keys() == shared[0].keys()                       # replica 0's are saved under the buffer's name, others nowhere
    for name in shared[0]:
        assert np.array_equal(shared[0][name], own[0][name]) == ("running" not in name)


def test_buffers_of_their_own_begin_and_are_set_together():
    net = network(norm=True)
    first = tileflow.training_model(net, optimizer=optim.SGD(lr=0.0))
    first(X, Y)
    known = statistics(net).copy()
    model = tileflow.training_model(net, optimizer=optim.SGD(lr=0.0), replication_factor=2, broadcast_buffers=False)
    model.compile(X, Y)
    session = model.source.session
    np.testing.assert_array_equal(session["1.running_mean@1"], known)      # what was learned so far, not what the network began with
    model(X, Y)
    assert not np.array_equal(session["1.running_mean@1"], session["1.running_mean"])
    model.load_state_dict({name: np.zeros_like(a) for name, a in model.state_dict().items()})
    assert not session["1.running_mean@1"].any()


def test_resumed_run_with_buffers_of_their_own_is_the_run(tmp_path: Any):
    def run(folder: str, epochs: int, **more: Any) -> tileflow.TrainResult:
        return tileflow.train(network(norm=True), data=(X, Y), epochs=epochs, micro_batch_size=4, replication_factor=3, broadcast_buffers=False,
                              out=str(tmp_path / folder), **more)
    whole = run("whole", 3)
    run("parts", 1)
    resumed = run("parts", 3, resume=True)
    for name, array in whole.weights.items():
        np.testing.assert_array_equal(array, resumed.weights[name])
    for r in (1, 2):
        name = f"1.running_mean@{r}"
        np.testing.assert_array_equal(whole.model.source.session[name], resumed.model.source.session[name])
