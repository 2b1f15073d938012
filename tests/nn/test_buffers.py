"""Buffers that `forward` writes in place: states of the program, kept between micro-batches and calls, saved and resumed, whatever runs it."""
from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peers import needs
from test_exact import random_plan
from test_resume import stop_at

import tileflow
from tileflow import exact, nn, optim
from tileflow.program.schedule import waves
from tileflow.program.staging import SEVERAL
from tileflow.system.errors import Interrupted, OptionError, ShapeError, TileflowError, TrainingError, TypeMismatchError

X = np.random.default_rng(0).standard_normal((24, 3)).astype(np.float32)
THREADS = [1, 2, 5]


class Counted(nn.Module):
    """Counts micro-batches, and scales by a mean that it keeps."""

    def __init__(self) -> None:
        self.w = nn.Parameter(np.array([1.0, -2.0, 0.5], np.float32))
        self.register_buffer("i", np.zeros((), np.int64))
        self.m = nn.Buffer(np.zeros(3, np.float32))

    def forward(self, x: nn.Tensor) -> Any:                        # type: ignore[override]
        self.i += 1
        y = x * self.w * (1 + self.m)
        self.m.lerp_(x.mean(0), 0.5)
        return nn.identity_loss(y.square().mean()), self.i, y


def followed(x: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """What `m` is before each micro-batch, and at the end."""
    m, before = np.zeros(3, np.float32), []
    for part in x.reshape(count, -1, 3):
        before.append(m)
        m = (m + (part.mean(0) - m) * np.float32(0.5)).astype(np.float32)
    return np.array(before), m


# ---- kept between micro-batches and calls


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("iterations", [1, 3, 4])
def test_inference_keeps_what_it_writes(threads: int, iterations: int) -> None:
    net = Counted()
    model = tileflow.inference_model(net, threads=threads, device_iterations=iterations)
    counts, scaled = [], []
    for rows in X.reshape(12 // iterations, -1, 3):
        _, i, y = model(rows)
        counts += np.reshape(i, -1).tolist()
        scaled.append(y)
    before, after = followed(X, 12)
    assert counts == list(range(1, 13))
    np.testing.assert_allclose(np.concatenate(scaled), X * net.w.data * (1 + before.repeat(2, 0)), rtol=1e-5, atol=1e-6)
    state = model.state_dict()
    assert state["i"] == 12
    assert state["i"].dtype == np.int64
    np.testing.assert_allclose(state["m"], after, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("threads", THREADS)
def test_training_keeps_what_it_writes(threads: int) -> None:
    """The same bits whatever the threads are; an inference model of the network goes on from there."""
    found = []
    for count in (1, threads):
        net = Counted()
        model = tileflow.training_model(net, loss="identity", optimizer=optim.SGD(lr=0.01), threads=count, gradient_accumulation=3,
                                        device_iterations=2, output_mode="all")
        calls = [model(X[:12]), model(X[12:])]
        found.append((calls, net.state_dict()))
    (calls, state), (others, other) = found
    assert [*calls[0][1], *calls[1][1]] == list(range(1, 13))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(itertools.chain(*calls), itertools.chain(*others), strict=True))
    assert all(state[k].tobytes() == other[k].tobytes() for k in state)
    np.testing.assert_allclose(state["m"], followed(X, 12)[1], rtol=1e-5, atol=1e-7)
    assert tileflow.inference_model(net)(X[:2])[1] == 13


def test_pytorch_agrees() -> None:
    """A normalisation by a mean that follows, with momentum and a queue of the last rows, as an eager loop of PyTorch has it."""
    torch = needs("torch")

    class Ours(nn.Module):
        def __init__(self) -> None:
            self.w = nn.Parameter(np.linspace(-1, 1, 9).reshape(3, 3))
            self.mean, self.queue, self.at = nn.Buffer(np.zeros(3)), nn.Buffer(np.zeros((4, 3))), nn.Buffer(np.zeros(1, np.int64))

        def forward(self, x: nn.Tensor) -> Any:                    # type: ignore[override]
            y = (x - self.mean) @ self.w
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            self.queue[self.at] = y.detach().mean(0, keepdim=True)
            self.at += 1
            self.at %= 4
            return nn.identity_loss((y * self.queue.sum(0)).sum() + y.square().mean()), y

    class Theirs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(3, 3))
            for name, like in (("mean", torch.zeros(3)), ("queue", torch.zeros(4, 3)), ("at", torch.zeros(1, dtype=torch.int64))):
                self.register_buffer(name, like if name == "at" else like.double())

        def forward(self, x: Any) -> Any:
            y = (x - self.mean.clone()) @ self.w
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            self.queue[self.at] = y.detach().mean(0, keepdim=True)
            self.at += 1
            self.at %= 4
            return (y * self.queue.sum(0)).sum() + y.square().mean(), y
    ours, theirs = Ours(), Theirs()
    model = tileflow.training_model(ours, loss="identity", optimizer=optim.SGD(lr=0.01), precision="float64", gradient_accumulation=2,
                                    device_iterations=3, output_mode="all")
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.01)
    x = X.astype(np.float64)
    for rows in (x[:12], x[12:]):
        loss, y = model(rows)
        for update, part in enumerate(rows.reshape(3, 2, 2, 3)):
            optimizer.zero_grad()
            for micro, one in enumerate(part):
                wanted, scores = theirs(torch.from_numpy(one))
                (wanted / 2).backward()
                at = 2 * update + micro
                np.testing.assert_allclose(loss[at], wanted.item(), rtol=1e-11)
                np.testing.assert_allclose(y.reshape(6, 2, 3)[at], scores.detach().numpy(), rtol=1e-11, atol=1e-13)
            optimizer.step()
    for name, tensor in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[name], tensor.numpy(), rtol=1e-11, atol=1e-13, err_msg=name)


def test_all_that_is_saved_and_loaded(tmp_path: Path) -> None:
    net = Counted()
    model = tileflow.inference_model(net)
    model(X[:2])
    path = tileflow.save_state(model.state_dict(), tmp_path / "state.safetensors")
    wanted = [model(X[2:4])[1:], model(X[4:6])[1:]]
    other = tileflow.inference_model(Counted())
    other.load_state_dict(tileflow.load_state(path))
    for (i, y), rows in zip(wanted, (X[2:4], X[4:6]), strict=True):
        _, count, scaled = other(rows)
        assert i.tobytes() == count.tobytes()
        assert y.tobytes() == scaled.tobytes()
    net.i.data = 40                                                # outside of forward() data may be set
    assert model(X[:2])[1] == 41


# ---- ways to write

Written = Callable[[Any, nn.Tensor], None]


def iadd(s: Any, x: nn.Tensor) -> None:
    s.b += x.sum(0)


def isub(s: Any, x: nn.Tensor) -> None:
    s.b -= 2


def imul(s: Any, x: nn.Tensor) -> None:
    s.b *= x[0]


def idiv(s: Any, x: nn.Tensor) -> None:
    s.b /= 4.0


def ipow(s: Any, x: nn.Tensor) -> None:
    s.b **= 2


def imod(s: Any, x: nn.Tensor) -> None:
    s.b %= 2.0


def element(s: Any, x: nn.Tensor) -> None:
    s.b[1] = x[0, 1]


def added_element(s: Any, x: nn.Tensor) -> None:
    s.b[1:] += x[1, 1:]


def twice(s: Any, x: nn.Tensor) -> None:
    s.b += 1
    s.b *= s.b + x[0]


def chained(s: Any, x: nn.Tensor) -> None:
    s.b.mul_(0.5).add_(x[0], alpha=2).sub_(x[1], alpha=3)


B = np.array([1.0, -2.0, 3.0], np.float32)
WAYS: dict[str, tuple[Written, Callable[[np.ndarray, np.ndarray], Any]]] = {
    "+=": (iadd, lambda b, x: b + x.sum(0)),
    "-=": (isub, lambda b, x: b - 2),
    "*=": (imul, lambda b, x: b * x[0]),
    "/=": (idiv, lambda b, x: b / 4),
    "**=": (ipow, lambda b, x: b ** 2),
    "%=": (imod, lambda b, x: b % 2),
    "[1] =": (element, lambda b, x: [b[0], x[0, 1], b[2]]),
    "[1:] +=": (added_element, lambda b, x: [b[0], *(b[1:] + x[1, 1:])]),
    "twice": (twice, lambda b, x: (b + 1) * (b + 1 + x[0])),
    "chained": (chained, lambda b, x: b * 0.5 + 2 * x[0] - 3 * x[1]),
    "copy_": (lambda s, x: s.b.copy_(x[0]), lambda b, x: x[0]),
    "copy_ of a number": (lambda s, x: s.b.copy_(x[0, 0]), lambda b, x: [x[0, 0]] * 3),
    "copy_ of an input": (lambda s, x: s.b.copy_(x[1] if x.shape[0] > 1 else x), lambda b, x: x[1]),
    "copy_ of itself": (lambda s, x: s.b.copy_(s.b), lambda b, x: b),
    "fill_": (lambda s, x: s.b.fill_(7), lambda b, x: [7] * 3),
    "zero_": (lambda s, x: s.b.zero_(), lambda b, x: [0] * 3),
    "add_": (lambda s, x: s.b.add_(x[0]), lambda b, x: b + x[0]),
    "div_": (lambda s, x: s.b.div_(x[0]), lambda b, x: b / x[0]),
    "lerp_": (lambda s, x: s.b.lerp_(x[0], 0.25), lambda b, x: b + (x[0] - b) * 0.25),
    "clamp_": (lambda s, x: s.b.clamp_(min=0), lambda b, x: np.maximum(b, 0)),
    "abs_": (lambda s, x: s.b.abs_(), lambda b, x: np.abs(b)),
    "masked_fill_": (lambda s, x: s.b.masked_fill_(x[0] > 0, 9.0), lambda b, x: np.where(x[0] > 0, 9, b)),
    "scatter_": (lambda s, x: s.b.scatter_(0, np.array([2]), x[0, :1]), lambda b, x: [b[0], b[1], x[0, 0]]),
}


@pytest.mark.parametrize("name", WAYS)
def test_ways_to_write(name: str) -> None:
    """One that is read in the same step, and one that is written only."""
    write, wanted = WAYS[name]

    class Net(nn.Module):
        def __init__(self, read: bool) -> None:
            self.b, self.read = nn.Buffer(B), read

        def forward(self, x: nn.Tensor) -> Any:                    # type: ignore[override]
            before = self.b * 1.0
            write(self, x)
            return (before, self.b) if self.read else x
    for read in (False, True):
        net, b = Net(read), B
        model = tileflow.inference_model(net, device_iterations=2)
        shown = model(X[:4])
        for k, rows in enumerate((X[:2], X[2:4])):
            before, b = b, np.asarray(wanted(b, rows), np.float32)
            if read:
                np.testing.assert_allclose(shown[0].reshape(2, 3)[k], before, rtol=1e-5, atol=1e-5)
                np.testing.assert_allclose(shown[1].reshape(2, 3)[k], b, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(net.state_dict()["b"], b, rtol=1e-5, atol=1e-5)


def test_buffers_that_exchange_their_values() -> None:
    class Swap(nn.Module):
        def __init__(self) -> None:
            self.a, self.b = nn.Buffer(np.zeros(3, np.float32)), nn.Buffer(np.ones(3, np.float32))

        def forward(self, x: nn.Tensor) -> Any:                    # type: ignore[override]
            old = self.a.reshape(3) * 1
            self.a.copy_(self.b)
            self.b.copy_(old)
            return x
    for iterations in (1, 2, 3):
        net = Swap()
        tileflow.inference_model(net, device_iterations=iterations)(X[:6])
        assert net.a.data.tolist() == [iterations % 2] * 3
        assert net.b.data.tolist() == [1 - iterations % 2] * 3


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float16", "float64"])
def test_types_of_buffers(dtype: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.b = nn.Buffer(np.zeros(3, dtype))

        def forward(self, x: nn.Tensor) -> Any:                    # type: ignore[override]
            if dtype == "bool":
                self.b |= x[0] > 0
            else:
                self.b.copy_(self.b + (x[0] > 0))
            return self.b
    model = tileflow.inference_model(Net(), device_iterations=4)
    wanted = np.cumsum(X[:8:2] > 0, 0)
    np.testing.assert_array_equal(model(X[:8]).reshape(4, 3), wanted > 0 if dtype == "bool" else wanted)


def test_writes_that_do_not_fit() -> None:
    class Net(nn.Module):
        def __init__(self, write: Callable[[Any, nn.Tensor], Any]) -> None:
            self.b, self.i, self.w, self.write = nn.Buffer(B), nn.Buffer(np.zeros(3, np.int64)), nn.Parameter(B), write

        def forward(self, x: nn.Tensor) -> Any:                    # type: ignore[override]
            self.write(self, x)
            return x * self.w
    for write, error, message in (
            (lambda s, x: s.b.add_(x[:, None]), ShapeError, r"The buffer 'b' has shape \[3\] and is written in place, so that it cannot become"),
            (lambda s, x: s.i.add_(0.5), TypeMismatchError, r"The buffer 'i' is int64 .* cannot become float32; use copy_\(...\) to cast"),
            (lambda s, x: s.w.mul_(0.5), TileflowError, r"The parameter 'w' is written in forward\(\), and the optimizer writes parameters\."),
            (lambda s, x: s.b.nothing_(0.5), AttributeError, "'Buffer' object has no attribute 'nothing_'")):
        with pytest.raises(error, match=message):
            tileflow.inference_model(Net(write))(X[:2])
    for write in (lambda s, x: s.b.add_(x[0]), lambda s, x: s.i.copy_(x[0])):            # the nearest that fit
        tileflow.inference_model(Net(write))(X[:2])


# ---- assigned anew


class Assigning(nn.Module):
    def __init__(self, assign: Callable[[Any, nn.Tensor], Any]) -> None:
        self.w, self.i, self.assign = nn.Parameter(np.ones(3, np.float32)), nn.Buffer(np.zeros(3, np.float32)), assign
        self.listed, self.named = [nn.Buffer(B), nn.Linear(3, 3)], {"a": {"b": nn.Buffer(B)}}
        self.inner = nn.Linear(3, 3)
        self.last: Any = None

    def forward(self, x: nn.Tensor) -> Any:                        # type: ignore[override]
        self.assign(self, x)
        return self.inner(x) * self.w + self.i


def placed(s: Any, where: Any, key: Any, value: Any) -> None:
    where[key] = value


ANEW: dict[str, tuple[Callable[[Any, nn.Tensor], Any], str]] = {
    "buffer": (lambda s, x: setattr(s, "i", s.i + 1), "The buffer 'i' is assigned anew"),
    "buffer as nothing": (lambda s, x: setattr(s, "i", None), "The buffer 'i' is assigned anew"),
    "registered again": (lambda s, x: s.register_buffer("i", np.ones(3, np.float32)), "The buffer 'i' is assigned anew"),
    "parameter": (lambda s, x: setattr(s, "w", s.w * 0.5), "The parameter 'w' is assigned anew"),
    "of a layer": (lambda s, x: setattr(s.inner, "bias", s.inner.bias * 2), "The parameter 'inner.bias' is assigned anew"),
    "in a list": (lambda s, x: placed(s, s.listed, 0, s.listed[0] + 1), "The buffer 'listed.0' is assigned anew"),
    "off a list": (lambda s, x: s.listed.clear(), "The buffer 'listed.0' is assigned anew"),
    "in a dict": (lambda s, x: placed(s, s.named["a"], "b", x[0]), "The buffer 'named.a.b' is assigned anew"),
    "data": (lambda s, x: setattr(s.i, "data", np.ones(3, np.float32)), r"The buffer 'i': forward\(\) is recorded once"),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ANEW)
def test_assigned_anew(name: str, training: bool) -> None:
    """An error that names it and the form in place; the network is as it was."""
    assign, message = ANEW[name]
    net = Assigning(assign)
    before, parts = net.state_dict(), dict(net.named_parameters())
    remedy = "(w = self.w" if "parameter" in message else "Write it in place: +="
    with pytest.raises(TileflowError, match=message) as found:
        (tileflow.training_model(net, loss="mse") if training else tileflow.inference_model(net))(*[X[:2]] * (1 + training))
    assert remedy in str(found.value)
    assert dict(net.named_parameters()) == parts
    assert all(net.state_dict()[k].tobytes() == before[k].tobytes() for k in before)
    net.assign = lambda s, x: None
    np.testing.assert_allclose(tileflow.inference_model(net)(X[:2]), X[:2] @ net.inner.weight.data.T + net.inner.bias.data, rtol=1e-5, atol=1e-6)


def test_what_may_be_assigned() -> None:
    """Tensors under names of their own, a parameter to where it is, and parameters outside of forward()."""
    def assign(s: Any, x: nn.Tensor) -> None:
        s.last = s.w * 0.5
        s.w = s.w
        s.i += 1
        s.listed[0] += 1
        s.listed[0] = s.listed[0]
        s.named["a"]["b"].add_(1)
    net = Assigning(assign)
    tileflow.inference_model(net)(X[:2])
    assert net.i.data.tolist() == [1] * 3
    assert net.listed[0].data.tolist() == net.named["a"]["b"].data.tolist() == [2, -1, 4]          # type: ignore[union-attr]
    net.i = nn.Buffer(np.full(3, 5, np.float32))
    assert net.state_dict()["i"].tolist() == [5] * 3


# ---- strategies


class Block(nn.Module):
    def __init__(self) -> None:
        self.layer, self.seen = nn.Linear(3, 3), nn.Buffer(np.zeros((), np.int64))
        self.mean, self.apart = nn.Buffer(np.zeros(3, np.float32)), nn.Buffer(np.zeros(3, np.float32))

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        self.seen += 1
        self.apart.lerp_(x.mean(0), 0.25)
        y = self.layer(x) * (1 + self.mean)
        self.mean.lerp_(y.detach().mean(0), 0.5)
        return y.tanh()


class Chain(nn.Module):
    """Three blocks with buffers of their own; `early` and `queue` are read in the last stage, one of them written by what the first one gives.
    back: the first stage reads what the last one wrote."""

    def __init__(self, back: bool) -> None:
        nn.manual_seed(3)
        self.a, self.b, self.c, self.back = Block(), Block(), Block(), back
        self.last, self.early = nn.Buffer(np.zeros((), np.float32)), nn.Buffer(np.zeros(3, np.float32))
        self.queue = nn.Buffer(np.zeros((2, 3), np.float32))

    def forward(self, x: nn.Tensor) -> Any:                        # type: ignore[override]
        first = self.a(x + self.last if self.back else x)
        z = self.c(self.b(first)) + self.early
        self.queue[0] = self.queue[1]
        self.queue[1] = z[0].detach()
        self.early.copy_(first.mean(0).detach())
        self.last.copy_(z.mean().detach())
        return z + self.queue.sum(), (z ** 2).mean()


def ran(back: bool, training: bool, **options: Any) -> tuple[list[np.ndarray], dict[str, np.ndarray], Any]:
    """The outputs of two calls, the state then, and the model."""
    net = Chain(back)
    chosen = dict(micro_batch_size=1, output_mode="all") | options
    model: Any = tileflow.training_model(net, loss="identity", device_iterations=2, gradient_accumulation=6, optimizer=optim.SGD(lr=0.1), **chosen) \
        if training else tileflow.inference_model(net, device_iterations=12, **chosen)
    return [a for call in (X[:12], X[12:]) for a in model(call)], net.state_dict(), model


def agree(found: tuple[list[np.ndarray], dict[str, np.ndarray], Any], wanted: tuple[list[np.ndarray], dict[str, np.ndarray], Any]) -> None:
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found[0], wanted[0], strict=True))
    assert all(found[1][k].tobytes() == wanted[1][k].tobytes() for k in wanted[1])


ONE_IPU: dict[tuple[bool, bool], Any] = {}
STAGED: dict[str, dict[str, Any]] = {name: {"strategy": name} for name in SEVERAL} | {
    "1f1b": {"strategy": "pipelined", "pipeline_schedule": "1f1b"}, "not recomputed": {"strategy": "pipelined", "pipeline_recompute": False}}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("strategy", STAGED)
def test_strategies_keep_the_order(strategy: str, back: bool, training: bool) -> None:
    """The bits of one IPU at any number of threads. A pipeline overlaps unless an earlier stage reads what a later one writes."""
    wanted = ONE_IPU.setdefault((back, training), None) or ran(back, training, threads=1)
    ONE_IPU[back, training] = wanted
    assert wanted[1]["b.seen"] == 24
    for threads in THREADS:
        found = ran(back, training, threads=threads, pipeline_splits=("b", "c"), auto_round_num_ipus=True, **STAGED[strategy])
        agree(found, wanted)
        plan = found[2].plan
        assert plan.lanes == 1
        assert any(len(w.runs) > 1 for w in waves(plan.schedule)) == (STAGED[strategy]["strategy"] == "pipelined" and not back)


def test_what_only_writes_needs_no_order() -> None:
    """Micro-batches that read no buffer run side by side, as with running statistics."""
    class Apart(nn.Module):
        def __init__(self) -> None:
            self.w, self.i, self.m = nn.Linear(3, 3), nn.Buffer(np.zeros((), np.int64)), nn.Buffer(np.zeros(3, np.float32))

        def forward(self, x: nn.Tensor) -> nn.Tensor:              # type: ignore[override]
            y = self.w(x)
            self.i += 1
            self.m.lerp_(y.mean(0), 0.5)
            return y
    found = []
    for threads in THREADS:
        net = Apart()
        net.w.weight.data, net.w.bias.data = np.eye(3), np.zeros(3)
        model = tileflow.inference_model(net, device_iterations=8, threads=threads)
        model(X)
        assert model.plan.lanes == model.plan.workers
        found.append({k: a.tobytes() for k, a in net.state_dict().items()})
    assert found[0] == found[1] == found[2]


def test_a_batch_norm_that_is_used_twice_learns_twice() -> None:
    torch = needs("torch")

    class Twice(nn.Module):
        def __init__(self) -> None:
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: nn.Tensor) -> Any:                    # type: ignore[override]
            return self.norm(self.norm(x) * 2 + 1).square().mean()
    ours, theirs = Twice(), torch.nn.BatchNorm1d(3)
    tileflow.training_model(ours, loss="identity", optimizer=optim.SGD(lr=0.0))(X)
    theirs(theirs(torch.from_numpy(X)) * 2 + 1)
    np.testing.assert_allclose(ours.norm.running_mean.data, theirs.running_mean.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.norm.running_var.data, theirs.running_var.numpy(), rtol=1e-4)


# ---- replicas


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("threads", THREADS)
def test_replicas_have_buffers_of_their_own(threads: int, training: bool) -> None:
    shape: dict[str, Any] = dict(threads=threads, replication_factor=2, device_iterations=3, output_mode="all", micro_batch_size=2)
    if training:
        shape |= dict(loss="identity", optimizer=optim.SGD(lr=0.0), gradient_accumulation=2)
    make: Any = tileflow.training_model if training else tileflow.inference_model
    with pytest.raises(OptionError, match=r"does not support broadcasting buffers\. If your model is able to tolerate buffers becoming out of sync "
                                          r"between replicas, you can disable buffer broadcasting using broadcast_buffers=False\. .* are i, m\."):
        make(Counted(), **shape)(X if training else X[:12])
    net = Counted()
    model = make(net, broadcast_buffers=False, **shape)
    rows = X if training else X[:12]
    _, counts, y = model(rows)
    turns = len(rows) // 4
    assert counts.tolist() == [k for k in range(1, turns + 1) for _ in range(2)]
    own = model.replica_state_dict()
    for replica in range(2):
        before, after = followed(np.ascontiguousarray(rows.reshape(turns, 2, 2, 3)[:, replica]), turns)
        np.testing.assert_allclose(own["m"][replica], after, rtol=1e-5, atol=1e-6)
        wanted = rows.reshape(turns, 2, 2, 3)[:, replica] * net.w.data * (1 + before[:, None])
        np.testing.assert_allclose(y.reshape(turns, 2, 2, 3)[:, replica], wanted, rtol=1e-5, atol=1e-6)
    assert own["i"].tolist() == [turns, turns]
    assert model.state_dict()["i"] == turns


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("strategy", ["pipelined", "sharded", "serial_phased"])
def test_replicas_in_stages(strategy: str, back: bool, training: bool) -> None:
    results = []
    staged: dict[str, Any] = {"strategy": strategy, "pipeline_splits": ("b", "c"), "auto_round_num_ipus": True}
    for more in ({}, staged):
        for threads in THREADS:
            net = Chain(back)
            options: dict[str, Any] = dict(replication_factor=2, threads=threads, micro_batch_size=1, output_mode="all", broadcast_buffers=False)
            options |= more
            model: Any = tileflow.training_model(net, loss="identity", gradient_accumulation=6, optimizer=optim.SGD(lr=0.1), **options) if training \
                else tileflow.inference_model(net, device_iterations=6, **options)
            results.append([a.tobytes() for call in (X[:12], X[12:]) for a in model(call)]
                           + [a.tobytes() for a in [*net.state_dict().values(), *model.replica_state_dict().values()]])
    assert all(r == results[0] for r in results)


def test_running_statistics_stay_shared() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: nn.Tensor) -> nn.Tensor:              # type: ignore[override]
            return self.norm(x)
    net, alone = Net(), Net()
    for made, more in ((net, {"replication_factor": 2}), (alone, {"gradient_accumulation": 2})):
        tileflow.training_model(made, loss="mse", optimizer=optim.SGD(lr=0.1), micro_batch_size=12, **more)(X, X)          # type: ignore[arg-type]
    assert net.norm.running_mean.data.tobytes() == alone.norm.running_mean.data.tobytes()


# ---- runs, failures, what changes nothing


class Learner(nn.Module):
    """Trains, measures and counts; what it has seen scales what it gives."""

    def __init__(self) -> None:
        nn.manual_seed(1)
        self.layer, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.i, self.m = nn.Buffer(np.zeros((), np.int64)), nn.Buffer(np.zeros(4, np.float32))

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        self.i += 1
        y = self.norm(self.layer(x)) * (1 + 0.1 * self.m)
        self.m.lerp_(y.detach().mean(0), 0.1)
        return y


def learned(folder: Path, data: Path, **changes: Any) -> dict[str, bytes]:
    """A run's state at its end."""
    net = Learner()
    options: dict[str, Any] = dict(micro_batch_size=2, gradient_accumulation=2, device_iterations=2, learning_rate=0.05, seed=3, epochs=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = tileflow.train(net, data=data, test_data=data, loss="cross_entropy", out=folder, **options | changes)
    metrics = repr([(e.loss, e.test_loss) for e in result.epochs]).encode()
    return {k: a.tobytes() for k, a in net.state_dict().items()} | {"metrics": metrics}


@pytest.fixture
def rows_of_data(tmp_path: Path) -> Path:
    draw = np.random.default_rng(8)
    path = tmp_path / "data.npz"
    np.savez(path, x=draw.standard_normal((45, 3)).astype(np.float32), y=draw.integers(0, 4, 45))
    return path


@pytest.mark.parametrize("more", [{}, {"drop_last": False, "threads": 2}, {"strategy": "sharded", "pipeline_splits": ("norm",)},
                                  {"replication_factor": 2, "gradient_accumulation": 1, "broadcast_buffers": False}], ids=str)
def test_a_run_is_resumed_bit_for_bit(more: dict[str, Any], tmp_path: Path, rows_of_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring the test data after each epoch writes nothing, so the count is that of the training micro-batches."""
    wanted = learned(tmp_path / "whole", rows_of_data, **more)
    count = int(np.frombuffer(wanted["i"], np.int64)[0])
    assert count == 3 * (23 if more.get("drop_last") is False else 20) // more.get("replication_factor", 1)
    stops = 0
    for poll in (2, 9, 23, 40):
        folder = tmp_path / f"stopped {poll}"
        try:
            with monkeypatch.context() as patch:
                stop_at(patch, poll)
                learned(folder, rows_of_data, **more)
        except Interrupted:
            stops += 1
            assert learned(folder, rows_of_data, resume=True, **more) == wanted
    assert stops > 1


def test_a_call_that_fails_leaves_buffers_as_after_the_last_whole_update() -> None:
    net, x = Counted(), X.copy()
    model = tileflow.training_model(net, loss="identity", optimizer=optim.SGD(lr=0.01), gradient_accumulation=3, device_iterations=4)
    x[14] = np.inf                                                 # the eighth micro-batch, of the third update
    with pytest.raises(TrainingError):
        model(x)
    assert net.i.data == 6
    np.testing.assert_allclose(net.m.data, followed(X[:12], 6)[1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("threads", THREADS)
def test_a_call_of_inference_that_fails_or_stops_writes_nothing(threads: int) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            self.table, self.i = nn.Parameter(np.ones((4, 3), np.float32)), nn.Buffer(np.zeros((), np.int64))

        def forward(self, rows: nn.Tensor) -> Any:                 # type: ignore[override]
            self.i += 1
            return rows.lift(self.table).apply("Gather", rows, axis=0) * self.i
    net = Table()
    model = tileflow.inference_model(net, device_iterations=3, threads=threads)
    model(np.array([0, 1, 2]))
    with pytest.raises(TrainingError, match="an index lies outside of its axis at micro-batch 2 of the call"):
        model(np.array([0, 1, 9]))
    assert net.i.data == 3
    asked = threading.Event()
    asked.set()
    model.stop = asked.is_set
    model(np.array([0, 1, 2]))
    model.stop = None
    assert net.i.data in (3, 6)                                    # a call that had come to its end counts
    before = int(net.i.data)
    assert model(np.array([0, 1, 2])).reshape(3, 3)[:, 0].tolist() == [before + 1, before + 2, before + 3]


def test_gradients_and_measuring_change_nothing() -> None:
    net = Counted()
    tileflow.inference_model(net)(X[:6])
    before = {k: a.tobytes() for k, a in net.state_dict().items()}
    first, second = (tileflow.grad(net, X[:6], output=2)["x"] for _ in range(2))
    assert first.tobytes() == second.tobytes()
    kept = tileflow.gradient_model(net, output=2)
    assert kept(X[:6])["x"].tobytes() == first.tobytes()
    assert {k: a.tobytes() for k, a in net.state_dict().items()} == before
    tileflow.inference_model(net)(X[6:12])                         # what was computed from the old buffers is computed anew
    later = kept(X[:6])["x"]
    assert later.tobytes() == tileflow.grad(net, X[:6], output=2)["x"].tobytes() != first.tobytes()


@pytest.mark.parametrize("options", [{"precision": "bf16-true"}, {"precision": "16-mixed", "loss_scaling": 8.0}, {"precision": "float64"},
                                     {"gradient_checkpointing": ("*",)}], ids=str)
def test_precisions_and_checkpointing(options: dict[str, Any]) -> None:
    def trained(threads: int, **more: Any) -> Any:
        return ran(False, True, threads=threads, **more)
    one, two = trained(1, **options), trained(2, **options)
    agree(two, one)
    plain = trained(1)
    assert one[1]["a.seen"] == 24
    np.testing.assert_allclose(one[1]["c.mean"].astype(np.float64), plain[1]["c.mean"], atol=0.05)
    if "precision" not in options:
        agree(one, plain)


# ---- files


def test_files_begin_with_the_buffers_as_they_are(tmp_path: Path) -> None:
    """A file has no memory: where outputs depend on what forward() writes, a warning says so; a count that nobody reads needs none."""
    net = Counted()
    model = tileflow.inference_model(net)
    model(X[:4])
    with pytest.warns(UserWarning, match=r"Counted writes buffers in forward\(\) that its outputs depend on \(i, m\)\. An ONNX file has no memory"):
        path = tileflow.save_onnx(net, tmp_path / "net.onnx", X[:4])
    assert net.i.data == 1
    again = tileflow.inference_model(path)
    first, second, wanted = again(X[:4]), again(X[:4]), model(X[:4])
    for a, b, c in zip(first, second, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-5)

    class Only(nn.Module):
        def __init__(self) -> None:
            self.layer, self.i = nn.Linear(3, 2), nn.Buffer(np.zeros((), np.int64))

        def forward(self, x: nn.Tensor) -> nn.Tensor:              # type: ignore[override]
            self.i += 1
            return self.layer(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        only = Only()
        path = tileflow.save_onnx(only, tmp_path / "only.onnx", X[:4])
        np.testing.assert_allclose(tileflow.inference_model(path)(X[:4]), tileflow.inference_model(only)(X[:4]), rtol=1e-5, atol=1e-6)


# ---- the tile machine


@pytest.mark.parametrize("training", [False, True])
def test_tile_by_tile_it_is_the_engines(training: bool) -> None:
    """Outputs of every micro-batch and the states after a call."""
    net = Counted()
    model: Any = tileflow.training_model(net, loss="identity", optimizer=optim.SGD(lr=0.01), gradient_accumulation=3, device_iterations=2,
                                         output_mode="all") if training else tileflow.inference_model(net, device_iterations=6)
    model.compile(X[:12])
    program, session = model.program, model.source.session
    before = {n: a.copy() for n, a in session.snapshot().items()}
    scalars = model.optimizer.values if training else None
    plans = {n: random_plan(exact.work_of(n), np.random.default_rng(4), 8) for g in program.graphs for n in g.nodes if n.op.alias is None}
    found = exact.execute(program, plans, {v.name: X[:12] for v in program.inputs}, before, exact.Tiles(8, 1 << 16), scalars=scalars)
    for (what, a), b in zip(found.outputs.items(), model._run([X[:12]]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=what)
    for what, b in session.snapshot().items():
        np.testing.assert_allclose(found.states[what], b, rtol=1e-5, atol=1e-6, err_msg=what)
    assert found.states["i"] == 6


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_the_tile_machine_plans_them(back: bool, training: bool, tmp_path: Path) -> None:
    """On one IPU and in stages, whose cycles overlap unless micro-batches must follow one another."""
    cycles = []
    for more in ({}, {"strategy": "sharded"}, {"strategy": "pipelined"}):
        staged: dict[str, Any] = more | ({"pipeline_splits": ("b", "c"), "auto_round_num_ipus": True} if more else {})
        if training:
            staged |= {"loss": "identity", "gradient_accumulation": 6}
        tiled: Any = tileflow.compile(Chain(back), training=training, inputs=[(1, 3)], machine="gc200", device_iterations=1 if training else 6,
                                      report=tmp_path / "report", **staged)
        assert exact.check(tiled.tiled).ok if not more else tiled.to_text()
        cycles.append(tiled.tiled.cycles_per_update)
    overlapped = cycles[2] if training or back else cycles[2] / 6  # figures of a pipeline of inference are those of a call
    assert (overlapped < cycles[1]) == (not back)


# ---- what was taken of a buffer before a write


class Looking(nn.Module):
    """Returns what `look` took of a buffer before a write, with `after` or what it takes after it."""

    def __init__(self, look: Callable[[Any], Any], again: bool) -> None:
        self.m, self.look, self.again = nn.Buffer(np.arange(6, dtype=np.float32).reshape(2, 3)), look, again

    def forward(self, x: nn.Tensor) -> Any:                        # type: ignore[override]
        before = self.look(self.m)
        self.m += x
        return (self.look(self.m) if self.again else before) + x.sum() * 0


LOOKS: dict[str, Callable[[Any], Any]] = {
    "a row": lambda m: m[0], "a slice": lambda m: m[:, 1:], "reshaped": lambda m: m.reshape(-1), "turned": lambda m: m.T,
    "a part": lambda m: m.split(1)[1], "a view of a view": lambda m: m[1].reshape(3, 1), "detached": lambda m: m.detach()}
COPIES: dict[str, Callable[[Any], Any]] = {
    "a clone": lambda m: m.clone(), "a row of a clone": lambda m: m.clone()[0], "a clone of a row": lambda m: m[0].clone(),
    "a sum": lambda m: m + 1,
    "rows by number": lambda m: m[[1, 0]], "a mean of a row": lambda m: m[0].mean()}


@pytest.mark.parametrize("name", LOOKS)
def test_a_view_of_what_a_buffer_was(name: str) -> None:
    ones = np.ones((2, 3), np.float32)
    with pytest.raises(TileflowError, match=r"A view of the buffer 'm' .* Take it again after the write, or take it of clone\(\)"):
        tileflow.inference_model(Looking(LOOKS[name], False))(ones)
    found = tileflow.inference_model(Looking(LOOKS[name], True))(ones)
    np.testing.assert_array_equal(found, follow(LOOKS[name], True))


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_of_what_a_buffer_was(name: str) -> None:
    for again in (False, True):
        found = tileflow.inference_model(Looking(COPIES[name], again))(np.ones((2, 3), np.float32))
        np.testing.assert_allclose(found, follow(COPIES[name], again), rtol=1e-6)


def follow(look: Callable[[Any], Any], again: bool) -> np.ndarray:
    """What PyTorch gives, written out in NumPy."""
    class Array(np.ndarray):
        clone, detach = np.ndarray.copy, np.ndarray.view

        def split(self, size: int) -> Any:
            return [self[i:i + size] for i in range(0, len(self), size)]
    m = np.arange(6, dtype=np.float32).reshape(2, 3).view(Array)
    return np.asarray(look(m + 1 if again else m.copy().view(Array)))
