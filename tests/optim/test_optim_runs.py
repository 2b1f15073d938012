"""Whole runs: the float64 engine follows float64 PyTorch to 1e-9 over 20 updates; what float32 departs from it is at most twice PyTorch's own.

The network has what amplifies: a normalisation, a product of activations, cross entropy. Where PyTorch has no such optimizer (LAMB) its gradients go
through the twin.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from peers import needs
from twins import optimizers as twins

import tileflow
from tileflow import nn, optim

UPDATES, ROWS = 20, 12


class Net(nn.Module):
    def __init__(self, seed: int) -> None:
        nn.manual_seed(seed)
        self.one, self.gate, self.norm, self.two = nn.Linear(6, 16), nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        return self.two(self.norm(self.one(x).tanh() * self.gate(x).sigmoid()))


def rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.standard_normal((UPDATES * ROWS, 6)), draw.integers(0, 4, UPDATES * ROWS)


def ours(optimizer: optim.Optimizer, seed: int, precision: str) -> dict[str, np.ndarray]:
    net = Net(seed)
    model = tileflow.training_model(net, optimizer=optimizer, loss="cross_entropy", precision=precision, micro_batch_size=ROWS, device_iterations=5)
    x, y = rows(seed)
    for i in range(0, len(x), 5 * ROWS):
        model(x[i:i + 5 * ROWS], y[i:i + 5 * ROWS])
    return net.state_dict()


class Twin:
    """A twin as PyTorch's optimizers are used; weights and moments are kept in the parameters' type."""

    def __init__(self, parameters: dict[str, Any], twin: twins.Twin) -> None:
        self.parameters, self.twin = parameters, twin

    def step(self) -> None:
        torch = needs("torch")
        self.twin.update([{n: p.grad.numpy() for n, p in self.parameters.items()}])
        for n, p in self.parameters.items():
            for kept in (self.twin.weights, *self.twin.state.values()):
                kept[n] = torch.from_numpy(kept[n]).to(p.dtype).double().numpy()
            p.data = torch.from_numpy(self.twin.weights[n]).to(p.dtype)


def theirs(make: Callable[[dict[str, Any]], Any], seed: int, dtype: str) -> dict[str, np.ndarray]:
    torch = needs("torch")
    p = {n: torch.nn.Parameter(torch.from_numpy(w.astype(dtype))) for n, w in Net(seed).state_dict().items()}
    optimizer = make(p)
    x, y = rows(seed)
    xs, ys = torch.from_numpy(x.astype(dtype)), torch.from_numpy(y)
    for i in range(0, len(x), ROWS):
        for w in p.values():
            w.grad = None
        at = xs[i:i + ROWS]
        linear = torch.nn.functional.linear
        hidden = torch.tanh(linear(at, p["one.weight"], p["one.bias"])) * torch.sigmoid(linear(at, p["gate.weight"], p["gate.bias"]))
        hidden = torch.nn.functional.layer_norm(hidden, (16,), p["norm.weight"], p["norm.bias"])
        torch.nn.functional.cross_entropy(linear(hidden, p["two.weight"], p["two.bias"]), ys[i:i + ROWS]).backward()
        optimizer.step()
    return {n: w.detach().numpy() for n, w in p.items()}


def by_name(name: str, **options: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda p: getattr(needs("torch").optim, name)(p.values(), **options)


CASES: dict[str, tuple[Callable[[], optim.Optimizer], Callable[[dict[str, Any]], Any]]] = {
    "SGD": (lambda: optim.SGD(lr=0.2, weight_decay=0.01), by_name("SGD", lr=0.2, weight_decay=0.01)),
    "momentum": (lambda: optim.SGD(lr=0.1, momentum=0.9, nesterov=True), by_name("SGD", lr=0.1, momentum=0.9, nesterov=True)),
    "Adam": (lambda: optim.Adam(lr=0.01, weight_decay=0.01), by_name("Adam", lr=0.01, weight_decay=0.01)),
    "AdamW": (lambda: optim.AdamW(lr=0.01), by_name("AdamW", lr=0.01)),
    "RMSprop": (lambda: optim.RMSprop(lr=0.003, momentum=0.5), by_name("RMSprop", lr=0.003, momentum=0.5)),
    "LAMB": (lambda: optim.LAMB(lr=0.01), lambda p: Twin(p, twins.LAMB({n: w.detach().numpy() for n, w in p.items()}, lr=0.01))),
}


def distance(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """Of all weights together, relative."""
    return float(np.sqrt(sum(np.sum((one[n] - w) ** 2) for n, w in other.items()) / sum(np.sum(w ** 2) for w in other.values())))


@pytest.mark.parametrize("name", CASES)
def test_the_float64_engine_follows_pytorch(name: str) -> None:
    mine, make = CASES[name]
    found, wanted = ours(mine(), 0, "float64"), theirs(make, 0, "float64")
    for n, w in wanted.items():
        assert np.abs(found[n] - w).max() <= 1e-9 * np.abs(w).max(), n


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in ("AdamW", "LAMB") else pytest.mark.exhaustive) for n in CASES])
def test_float32_departs_at_most_twice_as_far_as_pytorchs(name: str) -> None:
    """The median over five seeds: one run of 20 updates amplifies whatever its last bits happen to be."""
    mine, make = CASES[name]
    ratios = []
    for seed in range(5):
        exact = theirs(make, seed, "float64")
        ratios.append(distance(ours(mine(), seed, "float32"), exact) / distance(theirs(make, seed, "float32"), exact))
    assert np.median(ratios) <= 2, ratios
