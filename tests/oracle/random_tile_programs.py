"""Programs, chips and options drawn by a seed, for tile-exact runs: graphs of the operators' samples, their gradients, and networks in training.

    program, chip, options, feeds = draw(137)
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from random_graphs import Array, random_recipe, sum_of
from tile_models import build

import tileflow.nn as nn
from tileflow.graph import Builder
from tileflow.nn.tensor import Tensor
from tileflow.optim import SGD, Adam, Optimizer
from tileflow.passes.autograd import gradients
from tileflow.program.batching import Batching
from tileflow.program.program import Program
from tileflow.tiles.hardware.chip import CHIPS, Chip, MatrixUnit
from tileflow.tiles.plans.plan import TileOptions

Rng = np.random.Generator
Drawn = tuple[Program, Chip, TileOptions, dict[str, Array]]


def draw(seed: int) -> Drawn:
    """What the seed names; `feeds` are those that a program's samples say, and empty where any random ones do."""
    rng = np.random.default_rng([seed, 14])
    kind = rng.choice(["values", "gradients", "training", "inference"], p=[0.5, 0.2, 0.2, 0.1])
    if kind in ("values", "gradients"):
        program, feeds = graph_program(rng, kind == "gradients")
    else:
        program, feeds = network_program(rng, kind == "training"), {}
    return program, random_chip(rng), random_options(rng), feeds


def graph_program(rng: Rng, differentiated: bool) -> tuple[Program, dict[str, Array]]:
    """Operators from their samples; with `differentiated` the gradients of a weighted sum of all outputs, too."""
    graph, feeds = random_recipe(rng, int(rng.integers(1, 7)), differentiated).build("float32", differentiated)
    if differentiated:
        inputs = [v for v in graph.inputs if v.type.is_float]
        loss = sum_of(Builder(graph), graph.outputs, lambda v: np.random.default_rng(v.type.size).standard_normal(v.shape).astype("float32"))
        graph.outputs = [loss, *gradients(graph, loss, inputs)]
    return Program.of(graph, Batching(1)), {name: a[None] for name, a in feeds.items()}


def random_chip(rng: Rng) -> Chip:
    """A built-in chip of few or many tiles, or one of a user's own: other matrix units or none, another data path, bus and exchange."""
    base = CHIPS[str(rng.choice(sorted(CHIPS)))]
    tiles = int(rng.choice([1, 2, 3, 7, 16, 64, 500, base.tiles]))
    if rng.random() < 0.6:
        return base.variant(name="few", tiles=tiles)
    units: dict[str, Any] = {}
    for types in ("float16.float32", "float16.float16", "float32.float32"):
        if rng.random() < 0.7:
            width, depth = int(rng.choice([4, 5, 8, 16])), int(rng.choice([4, 6, 8, 16]))
            units[types] = MatrixUnit(width * depth // int(rng.choice([1, 2, 4])), width, depth)
    return base.variant(name="own", tiles=tiles, matrix=units, workers=int(rng.choice([1, 4, 6, 7])), vector_bytes=int(rng.choice([4, 8, 16, 32])),
                        exchange_bytes_per_cycle=float(rng.choice([1.0, 4.0, 6.5, 32.0])), tiles_per_bus=int(rng.choice([1, 2, 4])),
                        coefficient_bytes_per_cycle=int(rng.choice([4, 8, 16])), sync_cycles=int(rng.choice([0, 100, 600])),
                        bytes_per_tile=int(rng.choice([1 << 18, 1 << 20])))


def random_options(rng: Rng) -> TileOptions:
    return TileOptions(available_memory_proportion=float(rng.choice([0.0, 0.01, 0.05, 0.2, 0.6, 1.0])),
                       precision=str(rng.choice(["32.32", "16.32", "16.16"])), recompute=bool(rng.random() < 0.2),
                       joint_plans=bool(rng.random() < 0.7))


class Attend(nn.Module):
    """One head of attention over [batch, tokens, width], then the mean of the tokens."""

    def __init__(self, width: int, classes: int) -> None:
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:                        # type: ignore[override]
        y = (self.q(x) @ self.k(x).transpose(1, 2) * 0.3).softmax(-1) @ self.v(x)
        return self.out(self.norm(x + y).mean(1))


def images(rng: Rng, classes: int) -> tuple[nn.Module, tuple[int, ...]]:
    """Two convolutions, some way to normalise, a pool and a dense layer."""
    groups = int(rng.choice([1, 2, 4]))
    wide = groups * int(rng.integers(1, 4))
    mid = groups * int(rng.integers(1, 5))
    norms: list[Callable[[], nn.Module]] = [lambda: nn.BatchNorm2d(mid), lambda: nn.GroupNorm(groups, mid), lambda: nn.InstanceNorm2d(mid),
                                            nn.ReLU, nn.Sigmoid]
    pools: list[Callable[[], nn.Module]] = [lambda: nn.MaxPool2d(2), lambda: nn.AvgPool2d(2), nn.Tanh]
    size = int(rng.integers(7, 13))
    conv = nn.Conv2d(wide, mid, int(rng.integers(1, 4)), stride=int(rng.integers(1, 3)), padding=1, groups=groups, bias=bool(rng.random() < 0.5))
    layers = [conv, norms[rng.integers(len(norms))](), nn.ReLU(), pools[rng.integers(len(pools))](), nn.Conv2d(mid, 5, 1), nn.GlobalAvgPool(),
              nn.Flatten(), nn.Linear(5, classes)]
    return nn.Sequential(*layers), (wide, size, size)


def rows(rng: Rng, classes: int) -> tuple[nn.Module, tuple[int, ...]]:
    """Dense layers with a function and a norm between them."""
    a, b = int(rng.integers(1, 40)), int(rng.integers(1, 60))
    functions: list[Callable[[], nn.Module]] = [nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU, lambda: nn.LayerNorm(b), lambda: nn.BatchNorm1d(b)]
    return nn.Sequential(nn.Linear(a, b), functions[rng.integers(len(functions))](), nn.Linear(b, classes)), (a,)


def tokens(rng: Rng, classes: int) -> tuple[nn.Module, tuple[int, ...]]:
    width = int(rng.integers(2, 20))
    return Attend(width, classes), (int(rng.integers(1, 12)), width)


def network_program(rng: Rng, training: bool) -> Program:
    """A network in training, or as it infers."""
    classes = int(rng.integers(2, 9))
    net, shape = [images, rows, tokens][rng.integers(3)](rng, classes)
    optimizers: list[Callable[[], Optimizer]] = [lambda: SGD(lr=0.1), lambda: SGD(lr=0.1, momentum=0.9), Adam]
    batch = int(rng.integers(2, 7))
    return build(net, (batch, *shape), training, int(rng.integers(1, 3)), optimizers[rng.integers(3)]())
