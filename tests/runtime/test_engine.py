"""The engine: the same bits whatever the threads, lanes and slices; updates are all or nothing; statistics in global order."""
from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from paths import rare
from peers import needs
from places import PATH

import tileflow
from tileflow import nn, optim
from tileflow.runtime.training_model import TrainingModel
from tileflow.system.errors import TrainingError

ROWS, MICRO = 48, 4
rng = np.random.default_rng(11)
X = rng.standard_normal((ROWS, 2, 12, 12)).astype(np.float32)
Y = rng.integers(0, 5, ROWS)


class Everything(nn.Module):
    """Convolution, batch norm, pooling, dropout, dense: all that could depend on an order."""

    def __init__(self) -> None:
        nn.manual_seed(5)
        self.conv, self.norm = nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8)
        self.drop, self.last = nn.Dropout(0.4), nn.Linear(8 * 25, 5)

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        x = self.norm(self.conv(x)).relu().apply("MaxPool", kernel_shape=(2, 2), strides=(2, 2))
        return self.last(self.drop(x.flatten()))


def model_of(net: nn.Module, **options: Any) -> TrainingModel:
    return tileflow.training_model(net, optimizer=optim.AdamW(lr=0.01), output_mode="all", **options)


def bits(model: TrainingModel) -> dict[str, bytes]:
    """Weights, statistics and optimizer states."""
    return {n: a.tobytes() for n, a in model.source.session.snapshot().items()}


def run(accumulation: int, iterations: int, threads: int, **options: Any) -> tuple[dict[str, bytes], bytes]:
    """State and all outputs after training on all rows once."""
    model = model_of(Everything(), gradient_accumulation=accumulation, device_iterations=iterations, threads=threads, **options)
    rows = MICRO * accumulation * iterations
    calls = [model.run_call(X[at:at + rows], Y[at:at + rows]) for at in range(0, ROWS - rows + 1, rows)]
    return bits(model), b"".join(scores.tobytes() for scores, _ in calls) + b"".join(losses.tobytes() for _, losses in calls)


# ---- bits

@pytest.mark.parametrize(("accumulation", "iterations"), [(1, 1), (1, 12), (3, 4), (4, 3), (12, 1)])
def test_threads_iterations_and_runs_give_the_same_bits(accumulation: int, iterations: int):
    wanted = run(accumulation, 1, threads=1)
    assert run(accumulation, iterations, threads=1) == wanted
    assert run(accumulation, iterations, threads=2) == wanted
    assert run(accumulation, iterations, threads=2) == wanted


@pytest.mark.parametrize(("accumulation", "iterations"), [(3, 4), rare(1, 12)])
def test_more_threads_than_cores_and_micro_batches_give_the_same_bits(accumulation: int, iterations: int):
    script = "import test_engine, hashlib; print(hashlib.sha256(repr(test_engine.run({}, {}, threads=5)).encode()).hexdigest())"
    environment = {**os.environ, "NUMBA_NUM_THREADS": "5", "PYTHONPATH": PATH}
    done = subprocess.run([sys.executable, "-c", script.format(accumulation, iterations)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == hashlib.sha256(repr(run(accumulation, iterations, threads=1)).encode()).hexdigest()


def test_short_slices_give_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    wanted = run(3, 4, threads=2)
    monkeypatch.setattr("tileflow.executable.engine.SLICE_NS", 0)          # the driver comes back at every chance
    assert run(3, 4, threads=2) == wanted
    assert run(3, 4, threads=1) == wanted


def test_fusion_and_merging_give_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    wanted = run(3, 4, threads=2)
    monkeypatch.setattr("tileflow.lower.passes.fuse", lambda graph, keep, together=False: graph)
    monkeypatch.setattr("tileflow.runtime.binding._joined", lambda a, b: None)
    assert run(3, 4, threads=2) == wanted


def test_one_micro_batch_at_a_time_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    """A model too large for lanes side by side runs each micro-batch over all workers."""
    wanted = run(3, 4, threads=2)
    monkeypatch.setattr("tileflow.memory.budget.LANE_MEMORY_SHARE", 0.0)
    assert run(3, 4, threads=2) == wanted


def test_parallel_rows_give_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    wanted = run(1, 12, threads=1)
    monkeypatch.setattr("tileflow.kernels.machine.table.FORK_NS", 0.0)       # split every call over the workers
    assert run(1, 12, threads=2) == wanted


def test_another_seed_draws_other_numbers():
    assert run(3, 4, threads=2, seed=1) != run(3, 4, threads=2, seed=2)


@pytest.mark.parametrize("iterations", [1, 3, 12])
def test_inference_gives_the_same_bits(iterations: int):
    net = Everything()
    assert len({tileflow.inference_model(net, threads=t, device_iterations=iterations)(X).tobytes() for t in (1, 2)}) == 1


def test_final_outputs_are_the_last_micro_batch():
    """output_mode final keeps a slot per lane; it must be the last micro-batch's that is shown."""
    for accumulation, iterations in ((3, 4), (4, 3), (1, 12)):
        options: dict[str, Any] = dict(gradient_accumulation=accumulation, device_iterations=iterations, threads=2)
        everything = model_of(Everything(), **options)(X, Y)[0]
        last = tileflow.training_model(Everything(), optimizer=optim.AdamW(lr=0.01), **options)(X, Y)[0]
        np.testing.assert_array_equal(last, everything[-MICRO:])


# ---- all or nothing

def state_after(updates: int, accumulation: int, x: np.ndarray = X, y: np.ndarray = Y) -> dict[str, bytes]:
    """The state after that many updates and no more."""
    model = model_of(Everything(), gradient_accumulation=accumulation)
    rows = MICRO * accumulation
    model.compile(x[:rows], y[:rows])
    for u in range(updates):
        model(x[rows * u:rows * u + rows], y[rows * u:rows * u + rows])
    return bits(model)


@pytest.mark.parametrize(("threads", "micro_batch"), [(1, 7), (2, 7), (2, 8), (2, 0)])
def test_a_loss_that_is_not_finite(threads: int, micro_batch: int):
    x = X.copy()
    x[micro_batch * MICRO + 1, 0, 3, 3] = np.nan
    model = model_of(Everything(), gradient_accumulation=3, device_iterations=4, threads=threads)
    with pytest.raises(TrainingError, match=rf"not finite at micro-batch {micro_batch} of the call \(update {micro_batch // 3}\)"):
        model(x, Y)
    assert model.engine.completed == micro_batch // 3 == model.source.session.updates
    assert bits(model) == state_after(micro_batch // 3, 3)
    model(X, Y)                                                    # and it goes on from there
    assert model.source.session.updates == micro_batch // 3 + 4


class Root(nn.Module):
    """sqrt(x w): at x = 0 its value is 0 and its gradient is not a number."""

    def __init__(self) -> None:
        self.weight, self.shift = nn.Parameter(np.ones(3, np.float32)), nn.Parameter(np.ones(3, np.float32))

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        return ((x * self.weight).sqrt() + self.shift).mean()


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_gradient_that_is_not_finite(accumulation: int):
    model = tileflow.training_model(Root(), loss="identity", optimizer=optim.SGD(lr=0.1), gradient_accumulation=accumulation, device_iterations=3)
    x = np.ones((2 * accumulation * 3, 3), np.float32)
    model(x[:2 * accumulation].repeat(3, 0))
    before = bits(model)
    x[2 * accumulation - 1, 1] = 0
    with pytest.raises(TrainingError, match="loss is finite but the gradient of weight is not, at update 3;"):
        model(x)
    assert bits(model) == before
    assert model.source.session.updates == 3
    x[:] = 1
    x[-1, 2] = 0
    with pytest.raises(TrainingError, match="at update 5;"):
        model(x)
    assert all(np.isfinite(p.data).all() for p in model.source.net.parameters())      # type: ignore[attr-defined]


@pytest.mark.parametrize("label", [5, -1, 2**40])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_label_out_of_range(label: int, threads: int):
    y = Y.copy()
    y[5 * MICRO + 2] = label
    model = model_of(Everything(), gradient_accumulation=3, device_iterations=4, threads=threads)
    with pytest.raises(TrainingError, match=r"label is outside of the classes.* micro-batch 5 of the call \(update 1\)"):
        model(X, y)
    assert bits(model) == state_after(1, 3)


def stopping(after: int) -> Callable[[], bool]:
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > after
    return stop


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("after", [0, 3, 12, 100])
def test_a_stopped_call_ends_after_a_whole_update_and_can_be_finished(monkeypatch: pytest.MonkeyPatch, threads: int, after: int):
    monkeypatch.setattr("tileflow.executable.engine.SLICE_NS", 0)
    model = model_of(Everything(), gradient_accumulation=3, device_iterations=4, threads=threads)
    model.stop = stopping(after)
    scores, losses = model.run_call(X, Y)
    done = model.engine.completed
    assert done < 4 or after == 100
    assert bits(model) == state_after(done, 3)
    assert model.source.session.micro_batches == 3 * done
    model.stop = None
    whole = model_of(Everything(), gradient_accumulation=3, device_iterations=4, threads=threads)
    wanted = whole.run_call(X, Y)
    if done < 4:
        rest = model.run_call(X, Y, first_update=done)
        np.testing.assert_array_equal(rest[0][3 * done:], wanted[0][3 * done:])
        np.testing.assert_array_equal(scores[:3 * done], wanted[0][:3 * done])
        np.testing.assert_array_equal(losses[:3 * done], wanted[1][:3 * done])
    assert bits(model) == bits(whole)


def test_an_exception_between_slices(monkeypatch: pytest.MonkeyPatch):
    """What Ctrl-C does outside of a training loop."""
    monkeypatch.setattr("tileflow.executable.engine.SLICE_NS", 0)
    model = model_of(Everything(), gradient_accumulation=3, device_iterations=4)

    def interrupt() -> bool:
        raise KeyboardInterrupt
    model.compile(X, Y)
    model.stop = interrupt
    with pytest.raises(KeyboardInterrupt):
        model(X, Y)
    assert bits(model) == state_after(model.engine.completed, 3)


# ---- statistics and random streams

def test_running_statistics_are_pytorchs():
    torch = needs("torch")

    class Net(nn.Module):
        def __init__(self) -> None:
            nn.manual_seed(2)
            self.conv, self.norm, self.last = nn.Conv2d(2, 3, 5), nn.BatchNorm2d(3, momentum=0.3), nn.Linear(3 * 64, 5)

        def forward(self, x: nn.Tensor) -> nn.Tensor:              # type: ignore[override]
            return self.last(self.norm(self.conv(x)).relu().flatten())
    net = Net()
    theirs = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 5), torch.nn.BatchNorm2d(3, momentum=0.3), torch.nn.ReLU(), torch.nn.Flatten(),
                                 torch.nn.Linear(192, 5)).double()
    names = {"conv": "0", "norm": "1", "last": "4"}
    theirs.load_state_dict({f"{names[n.split('.')[0]]}.{n.split('.')[1]}": torch.from_numpy(a.astype(np.float64))
                            for n, a in net.state_dict().items()}, strict=False)
    sgd = torch.optim.SGD(theirs.parameters(), lr=0.05)
    model = tileflow.training_model(net, optimizer=optim.SGD(lr=0.05), precision="float64", gradient_accumulation=3, device_iterations=2)
    for start in (0, 24):
        model(X[start:start + 24], Y[start:start + 24])
        for update in range(2):
            sgd.zero_grad()
            for k in range(3):
                at = start + MICRO * (3 * update + k)
                scores = theirs(torch.from_numpy(X[at:at + MICRO].astype(np.float64)))
                (torch.nn.functional.cross_entropy(scores, torch.from_numpy(Y[at:at + MICRO])) / 3).backward()
            sgd.step()
    ours = net.state_dict()
    for name, other in theirs.state_dict().items():
        if "num_batches" not in name:
            layer = {v: k for k, v in names.items()}[name.split(".")[0]]
            np.testing.assert_allclose(ours[f"{layer}.{name.split('.')[1]}"], other.numpy(), rtol=1e-9, atol=1e-11, err_msg=name)
    theirs.eval()
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(X.astype(np.float64))).numpy()
    np.testing.assert_allclose(tileflow.inference_model(net, precision="float64")(X), wanted, rtol=1e-9, atol=1e-11)


class Dropped(nn.Module):
    def __init__(self) -> None:
        self.weight = nn.Parameter(np.ones(1000, np.float32))
        self.one, self.two = nn.Dropout(0.25), nn.Dropout(0.25)

    def forward(self, x: nn.Tensor) -> Any:                        # type: ignore[override]
        y = x * self.weight
        return self.one(y), self.two(y), y.mean()


def test_dropout_draws_anew_for_every_layer_micro_batch_and_call():
    model = tileflow.training_model(Dropped(), loss="identity", optimizer=optim.SGD(lr=0.0), gradient_accumulation=2, device_iterations=2,
                                    output_mode="all")
    x = np.ones((4, 1000), np.float32)
    drawn = [mask for _ in range(2) for layer in model(x)[:2] for mask in layer]
    assert len(drawn) == 16
    assert len({m.tobytes() for m in drawn}) == 16
    kept = np.concatenate(drawn)
    assert set(np.unique(kept)) == {0.0, np.float32(1 / 0.75)}
    assert abs((kept > 0).mean() - 0.75) < 0.02
    again = tileflow.training_model(Dropped(), loss="identity", optimizer=optim.SGD(lr=0.0), output_mode="all")
    single = [mask for _ in range(8) for layer in again(x[:1])[:2] for mask in layer]
    order = [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
    assert [drawn[i].tobytes() for i in order] == [m.tobytes() for m in single]


def test_inference_does_not_drop():
    one, two, _ = tileflow.inference_model(Dropped())(np.ones((1, 1000), np.float32))
    np.testing.assert_array_equal(one, np.ones((1, 1000)))
    np.testing.assert_array_equal(two, one)


class Remembering(nn.Module):
    """A buffer that follows the input itself: the fold reads what the caller gave."""

    def __init__(self) -> None:
        self.weight, self.seen = nn.Parameter(np.ones(3, np.float32)), nn.Buffer(np.zeros((2, 3), np.float32))

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        if x.trace.training:
            state = x.trace.state(self.seen)
            state.output, state.when = (nn.Tensor(x.trace, state.input) * 0.5 + x).value, "micro"
        return (x * self.weight).mean()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_buffer_that_follows_the_input(threads: int):
    net = Remembering()
    x = rng.standard_normal((12, 3)).astype(np.float32)
    model = tileflow.training_model(net, loss="identity", optimizer=optim.SGD(lr=0.1), threads=threads, gradient_accumulation=3, device_iterations=2)
    model(x)
    wanted = np.zeros((2, 3), np.float32)
    for part in x.reshape(6, 2, 3):
        wanted = wanted * np.float32(0.5) + part
    np.testing.assert_array_equal(net.seen.data, wanted)


def test_an_input_may_have_any_name():
    """Names of the engine's own memory are no names of tensors."""
    class Net(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Parameter(np.ones(3, np.float32))

        def forward(self, optimizer: nn.Tensor, lr: nn.Tensor) -> nn.Tensor:       # type: ignore[override]
            return (optimizer * self.weight + lr).mean()
    net = Net()
    model = tileflow.training_model(net, loss="identity", optimizer=optim.SGD(lr=0.3))
    x = rng.standard_normal((2, 3)).astype(np.float32)
    assert model(x, x) == pytest.approx(2 * x.mean(), rel=1e-5)
    np.testing.assert_allclose(net.weight.data, 1 - 0.3 * x.sum(0) / 6, rtol=1e-6)


@pytest.mark.parametrize("training", [False, True])
def test_an_index_out_of_range(training: bool):
    class Table(nn.Module):
        def __init__(self) -> None:
            self.table = nn.Parameter(np.ones((4, 3), np.float32))

        def forward(self, rows: nn.Tensor) -> nn.Tensor:           # type: ignore[override]
            return rows.lift(self.table).apply("Gather", rows, axis=0).mean()
    rows = np.array([0, 3, 1, 2, 4, 0])
    model: Any = tileflow.training_model(Table(), loss="identity") if training else tileflow.inference_model(Table(), device_iterations=3)
    where = f"micro-batch {0 if training else 2} of the call"
    with pytest.raises(TrainingError, match=rf"Gather \(Table\): an index lies outside of its axis at {where}"):
        model(rows)
