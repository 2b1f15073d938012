"""Small networks for the tests of the tile machine, as Programs."""
from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import tileflow.nn as nn
import tileflow.ops  # noqa: F401   (registers the operators)
from tileflow import compiler
from tileflow.graph import Builder, Graph, Op, Origin, TensorType
from tileflow.loss import find
from tileflow.nn.module import record
from tileflow.nn.tensor import Tensor
from tileflow.optim import SGD, Adam, Optimizer
from tileflow.program.batching import Batching
from tileflow.program.program import Program


def build(net: nn.Module, shape: tuple[int, ...], training: bool = True, accumulation: int = 1, optimizer: Optimizer | None = None,
          loss: str = "cross_entropy", dtype: str = "float32") -> Program:
    """The Program of a network for inputs of one shape, the micro-batch first."""
    graph = record(net, [("x", TensorType(dtype, shape))], training=training, dtype="float32")
    batching = Batching(shape[0], accumulation)
    if not training:
        return compiler.inference(graph, batching).program
    return compiler.training(graph, find(loss), optimizer or SGD(lr=0.1), batching).program


def alone(op: Op, types: tuple[TensorType | None, ...]) -> Program:
    """One operator on inputs from the host."""
    graph = Graph(op.name)
    b = Builder(graph, Origin((op.name.lower(),)))
    inputs = [None if t is None else b.input(f"x{i}", t) for i, t in enumerate(types)]
    graph.outputs.extend(b.emit(op, *inputs))
    return Program.of(graph, Batching(1))


def mlp(*sizes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def lenet() -> nn.Module:
    """The classifier of the tutorial: two convolutions, two dense layers."""
    return nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(256, 100), nn.ReLU(), nn.Linear(100, 10))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with batch normalisation around a shortcut."""

    def __init__(self, wide: int, narrow: int, out: int, stride: int = 1) -> None:
        self.a, self.norm_a = nn.Conv2d(wide, narrow, 1, bias=False), nn.BatchNorm2d(narrow)
        self.b, self.norm_b = nn.Conv2d(narrow, narrow, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(narrow)
        self.c, self.norm_c = nn.Conv2d(narrow, out, 1, bias=False), nn.BatchNorm2d(out)
        projected = stride != 1 or wide != out
        self.short = nn.Sequential(nn.Conv2d(wide, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out)) if projected else None

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        y = self.norm_a(self.a(x)).relu()
        y = self.norm_b(self.b(y)).relu()
        return (self.norm_c(self.c(y)) + (x if self.short is None else self.short(x))).relu()


class Residual(nn.Module):
    """A stem, bottlenecks and a classifier: ResNet-50 with its default depths."""

    def __init__(self, depths: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        self.stem, self.norm, self.pool = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(width), nn.MaxPool2d(3, 2, 1)
        self.blocks, channels = [], width
        for stage, depth in enumerate(depths):
            for k in range(depth):
                narrow = width << stage
                self.blocks.append(Bottleneck(channels, narrow, 4 * narrow, 2 if stage and not k else 1))
                channels = 4 * narrow
        self.top, self.dense = nn.GlobalAvgPool(), nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        x = self.pool(self.norm(self.stem(x)).relu())
        for block in self.blocks:
            x = block(x)
        return self.dense(self.top(x).flatten())


class Mixer(nn.Module):
    """The dense half of a transformer: layers of x + W2 relu(W1 normal(x)) over [batch, tokens, width]."""

    def __init__(self, layers: int, tokens: int, width: int) -> None:
        self.up = [nn.Linear(width, 4 * width) for _ in range(layers)]
        self.down = [nn.Linear(4 * width, width) for _ in range(layers)]
        self.out, self.tokens, self.width = nn.Linear(width, 10), tokens, width

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        batch = x.shape[0]
        x = x.reshape(batch * self.tokens, self.width)
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(up(x).relu())
        return self.out(x.reshape(batch, self.tokens, self.width).mean(1))


PROGRAMS: dict[str, Callable[[], Program]] = {
    "mlp training": lambda: build(mlp(784, 512, 10), (64, 784), optimizer=Adam()),
    "mlp inference": lambda: build(mlp(784, 512, 10), (64, 784), False),
    "lenet training": lambda: build(lenet(), (40, 1, 28, 28), accumulation=10),
    "lenet inference": lambda: build(lenet(), (40, 1, 28, 28), False),
    "residual training": lambda: build(Residual((1, 1), 32, 10), (4, 3, 64, 64), accumulation=4, optimizer=SGD(lr=0.1, momentum=0.9)),
    "residual inference": lambda: build(Residual((1, 1), 32, 10), (16, 3, 64, 64), False),
    "mixer training": lambda: build(Mixer(3, 32, 128), (8, 32, 128), accumulation=2, optimizer=Adam()),
    "mixer inference": lambda: build(Mixer(3, 32, 128), (8, 32, 128), False),
}
