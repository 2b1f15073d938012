"""Whole trainings against PyTorch: the tutorial's network and a small one, from the ONNX file and from layers."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from peers import needs

import tileflow
from tileflow import nn, optim
from tileflow.importers.onnx import wrap_model

torch = needs("torch")

from bench.models import TutorialNet, initial_weights, tutorial_cnn  # noqa: E402  (imports torch's network too)
from bench.peer_torch import call, network  # noqa: E402

MICRO_BATCH, ACCUMULATION, ITERATIONS, UPDATES = 40, 10, 10, 20
Weights = dict[str, np.ndarray]


def digits(rows: int = MICRO_BATCH * ACCUMULATION * UPDATES) -> tuple[np.ndarray, np.ndarray]:
    """Images that can be learned: a prototype per class in noise."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 10, rows)
    prototypes = rng.standard_normal((10, 1, 28, 28))
    return (0.5 * prototypes[labels] + rng.standard_normal((rows, 1, 28, 28))).astype(np.float32), labels


WEIGHTS = initial_weights(1)
X, Y = digits()


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def ours(model: Any, precision: str, rows: int = len(X), iterations: int = ITERATIONS, **options: Any) -> Weights:
    """The weights after training on the first `rows` images (all: 20 updates), in float64."""
    trained = tileflow.training_model(model, optimizer=optim.AdamW(lr=1e-3), precision=precision, gradient_accumulation=ACCUMULATION,
                                      device_iterations=iterations, **options)
    step = MICRO_BATCH * ACCUMULATION * iterations
    for start in range(0, rows, step):
        trained(X[start:start + step], Y[start:start + step])
    return {n: trained.source.session[n].astype(np.float64) for n in WEIGHTS}


def theirs(name: str, rows: int = len(X)) -> Weights:
    """PyTorch's weights after training on the first `rows` images."""
    net = network(WEIGHTS, getattr(torch, name))
    call(net, torch.optim.AdamW(net.parameters(), lr=1e-3), X[:rows].astype(name), Y[:rows], MICRO_BATCH, ACCUMULATION)
    return {n: p.numpy().astype(np.float64) for n, p in net.state_dict().items()}


def distances(a: Weights, b: Weights) -> dict[str, float]:
    """Norm of the difference over the norm, per tensor."""
    return {n: float(np.linalg.norm(a[n] - b[n]) / np.linalg.norm(b[n])) for n in b}


SOURCES: dict[str, Callable[[], Any]] = {"file": lambda: wrap_model(tutorial_cnn(WEIGHTS)), "layers": lambda: TutorialNet(WEIGHTS)}


@pytest.mark.parametrize("source", SOURCES)
def test_the_tutorial_in_float64_follows_pytorch(source: str):
    found = distances(ours(SOURCES[source](), "float64"), theirs("float64"))
    assert max(found.values()) < 1e-9, found


@pytest.mark.parametrize("source", SOURCES)
def test_the_tutorial_in_float32_stays_as_close_as_pytorch(source: str):
    """After four updates: later one pooling winner that rounding picks otherwise moves the weights by more than rounding does."""
    rows = 4 * MICRO_BATCH * ACCUMULATION
    trained, peer, exact = ours(SOURCES[source](), "float32", rows, 4), theirs("float32", rows), theirs("float64", rows)
    found, peer = (distances(w, exact) for w in (trained, peer))
    assert np.linalg.norm(list(found.values())) <= 2 * np.linalg.norm(list(peer.values())), (found, peer)


def test_the_tutorial_has_the_same_bits_on_any_number_of_threads():
    one, two = (ours(wrap_model(tutorial_cnn(WEIGHTS)), "float32", threads=t) for t in (1, 2))
    layers = ours(TutorialNet(WEIGHTS), "float32", threads=2)
    assert {n: w.tobytes() for n, w in one.items()} == {n: w.tobytes() for n, w in two.items()} == {n: w.tobytes() for n, w in layers.items()}


# ---- a small network under every optimizer

class Small(nn.Module):
    def __init__(self) -> None:
        nn.manual_seed(6)
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.last = nn.Linear(4 * 49, 10)

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        x = self.norm(self.conv(x)).sigmoid()
        return self.last(x.apply("AveragePool", kernel_shape=(4, 4), strides=(4, 4)).flatten())


def small_in_torch(weights: Weights) -> Any:
    net = torch.nn.Sequential()
    net.add_module("conv", torch.nn.Conv2d(1, 4, 3, padding=1))
    net.add_module("norm", torch.nn.BatchNorm2d(4))
    net.add_module("sigmoid", torch.nn.Sigmoid())
    net.add_module("pool", torch.nn.AvgPool2d(4))
    net.add_module("flat", torch.nn.Flatten())
    net.add_module("last", torch.nn.Linear(196, 10))
    net = net.double()
    net.load_state_dict({n: torch.from_numpy(w.astype(np.float64)) for n, w in weights.items()}, strict=False)
    return net


CASES = [("SGD", dict(lr=0.05, momentum=0.9, weight_decay=1e-3)), ("SGD", dict(lr=0.05, momentum=0.9, nesterov=True)),
         ("Adam", dict(lr=2e-3, weight_decay=1e-2)), ("AdamW", dict(lr=2e-3, weight_decay=0.1))]


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_a_small_network_follows_pytorch(name: str, options: dict[str, Any]):
    net = Small()
    peer = small_in_torch(net.state_dict())
    rows, micro, accumulation = 480, 8, 3
    model = tileflow.training_model(net, optimizer=getattr(optim, name)(**options), precision="float64", gradient_accumulation=accumulation,
                                    device_iterations=rows // (micro * accumulation))
    model(X[:rows], Y[:rows])
    call(peer, getattr(torch.optim, name)(peer.parameters(), **options), X[:rows].astype(np.float64), Y[:rows], micro, accumulation)
    wanted = {n: p.numpy() for n, p in peer.state_dict().items() if "tracked" not in n}
    assert max(distances(net.state_dict(), wanted).values()) < 1e-9
    before = copy.deepcopy(net.state_dict())
    x = X[rows:rows + 40].astype(np.float64)
    with torch.no_grad():
        np.testing.assert_allclose(tileflow.inference_model(net, precision="float64")(x), peer.eval()(torch.from_numpy(x)).numpy(), rtol=1e-8,
                                   atol=1e-10)
    assert {n: a.tobytes() for n, a in before.items()} == {n: a.tobytes() for n, a in net.state_dict().items()}
