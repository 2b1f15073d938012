"""Twenty networks of all kinds for tests of the tile machine as a whole, small enough that each of their elements can be looked at."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tile_models import PROGRAMS, build

import tileflow.nn as nn
from tileflow import compiler
from tileflow.graph import TensorType
from tileflow.loss import find
from tileflow.nn import functional
from tileflow.nn.module import record
from tileflow.nn.tensor import Tensor, cat
from tileflow.optim import SGD, Adam
from tileflow.program.batching import Batching
from tileflow.program.program import Program


class Block(nn.Module):
    """A layer of a transformer: attention of several heads and a gated dense half, normalised before."""

    def __init__(self, width: int, heads: int, norm: Callable[[int], nn.Module]) -> None:
        self.first, self.second, self.heads = norm(width), norm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.gate, self.down = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        batch, length, width = x.shape
        each = width // self.heads
        q, k, v = (t.reshape(batch, length, self.heads, each).transpose(1, 2) for t in self.qkv(self.first(x)).split(width, -1))
        y = (q @ k.transpose(2, 3) * each ** -0.5).softmax(-1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        y = self.second(x)
        return x + self.down(self.up(y) * functional.silu(self.gate(y)))


class Language(nn.Module):
    """Tokens in, the next token out."""

    def __init__(self, words: int, width: int, body: nn.Module, out: int = 0) -> None:
        self.table, self.body, self.head = nn.Embedding(words, width), body, nn.Linear(out or width, words)

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        y = self.body(self.table(x))
        return self.head(y.mean(1))


class Recurrent(nn.Module):
    """A recurrent layer's states of all steps."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        return self.layer(x)[0]


class Hourglass(nn.Module):
    """Down, up again by a transposed convolution, and a skip."""

    def __init__(self, width: int) -> None:
        self.inside, self.down = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 2 * width, 2, stride=2)
        self.up, self.out = nn.ConvTranspose2d(2 * width, width, 2, stride=2), nn.Conv2d(2 * width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        a = self.inside(x).relu()
        b = self.up(self.down(a).relu())
        return self.out(cat([a, b], 1)).mean((2, 3))


class Branches(nn.Module):
    """Convolutions of several sizes side by side, concatenated."""

    def __init__(self, width: int) -> None:
        self.parts = [nn.Conv2d(3, width, k, padding=k // 2) for k in (1, 3, 5)]
        self.pool, self.dense = nn.AvgPool2d(2), nn.Linear(3 * width, 10)

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        y = cat([p(x).relu() for p in self.parts], 1)
        return self.dense(self.pool(y).mean((2, 3)))


class Scaled(nn.Module):
    """Exponentials, powers and divisions of the elements."""

    def __init__(self, width: int) -> None:
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        y = self.a(x)
        return self.b(y.exp() / (y.exp() + 1.0) + (y * y + 1.0).sqrt().tanh())


def separable(width: int) -> nn.Module:
    """Convolutions of each channel by itself, then across channels."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU6()]
    for stride in (1, 2):
        layers += [nn.Conv2d(width, width, 3, stride=stride, padding=1, groups=width, bias=False), nn.BatchNorm2d(width), nn.ReLU6(),
                   nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width)]
    return nn.Sequential(*layers, nn.GlobalAvgPool(), nn.Flatten(), nn.Linear(width, 10))


def normalised(norm: Callable[[], nn.Module], width: int = 32) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), norm(), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1, groups=4), norm(), nn.ReLU(),
                         nn.GlobalAvgPool(), nn.Flatten(), nn.Linear(width, 10))


def tokens(net: nn.Module, shape: tuple[int, ...], training: bool = True) -> Program:
    """The Program of a network that reads numbers of tokens."""
    graph = record(net, [("x", TensorType("int64", shape))], training=training, dtype="float32")
    batching = Batching(shape[0], 2 if training else 1)
    if not training:
        return compiler.inference(graph, batching).program
    return compiler.training(graph, find("cross_entropy"), Adam(), batching).program


def image(net: Any, size: int = 16, batch: int = 4, training: bool = True) -> Program:
    return build(net, (batch, 3, size, size), training, 2 if training else 1, SGD(lr=0.1, momentum=0.9))


ZOO: dict[str, Callable[[], Program]] = {
    **PROGRAMS,
    "group norm training": lambda: image(normalised(lambda: nn.GroupNorm(4, 32))),
    "instance norm training": lambda: image(normalised(lambda: nn.InstanceNorm2d(32, affine=True))),
    "instance norm inference": lambda: image(normalised(lambda: nn.InstanceNorm2d(32)), training=False),
    "separable training": lambda: image(separable(32), 24),
    "hourglass training": lambda: image(Hourglass(16)),
    "branches inference": lambda: image(Branches(16), training=False),
    "transformer training": lambda: tokens(Language(500, 64, nn.Sequential(*(Block(64, 4, nn.LayerNorm) for _ in range(2)))), (4, 24)),
    "transformer inference": lambda: tokens(Language(500, 64, Block(64, 4, nn.RMSNorm)), (4, 24), False),
    "words training": lambda: tokens(Language(3000, 16, nn.Identity()), (32, 20)),
    "lstm training": lambda: tokens(Language(100, 24, Recurrent(nn.LSTM(24, 32, batch_first=True)), 32), (8, 12)),
    "volumes training": lambda: build(nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2), nn.Flatten(), nn.Linear(512, 10)),
                                      (4, 1, 8, 8, 8), True, 2),
    "functions training": lambda: build(Scaled(96), (32, 96), True, 1, Adam()),
}
assert len(ZOO) == 20
