"""Small networks, optimizers and precisions for tests of several processes."""
from __future__ import annotations

from typing import Any

from tileflow import nn, optim


class Tokens(nn.Module):
    """A small transformer: its own attention, layer normalisation, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.encoder(x).mean(1))


class Sequence(nn.Module):
    """An LSTM with dropout."""

    def __init__(self, inputs: int = 8, hidden: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.lstm, self.drop = nn.LSTM(inputs, hidden, batch_first=True), nn.Dropout(0.2)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Any) -> Any:
        return self.head(self.drop(self.lstm(x)[0][:, -1]))


class Block(nn.Module):
    """ResNet's, with a projection where its sizes change."""

    def __init__(self, channels: int, made: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, made, 3, stride=stride, padding=1, bias=False),
                                  nn.BatchNorm2d(made), nn.ReLU(),
                                  nn.Conv2d(made, made, 3, padding=1, bias=False), nn.BatchNorm2d(made))
        self.short = nn.Sequential() if channels == made and stride == 1 else nn.Sequential(
            nn.Conv2d(channels, made, 1, stride=stride, bias=False), nn.BatchNorm2d(made))

    def forward(self, x: Any) -> Any:
        return nn.functional.relu(self.body(x) + self.short(x))


def resnet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), Block(8, 8, 1),
                         Block(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 5))


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(36, 5))


def wide() -> nn.Module:
    """A weight of 4800 elements, 5 grains of a fold's rows, and others that are not cut for three processes."""
    return nn.Sequential(nn.Linear(8, 600), nn.BatchNorm1d(600), nn.ReLU(), nn.Dropout(0.2), nn.Linear(600, 5))


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {"mlp": (mlp, (8,)), "cnn": (cnn, (1, 8, 8)),
                                                    "transformer": (Tokens, (6, 16)),
                                                "lstm": (Sequence, (6, 8)), "resnet": (resnet, (3, 12, 12)),
                                                "wide": (wide, (8,))}
OPTIMIZERS: dict[str, Any] = {"adamw": lambda: optim.AdamW(lr=0.01), "lamb": lambda: optim.LAMB(lr=0.01),
                              "clipped": lambda: optim.SGD(lr=0.1, momentum=0.9, max_grad_norm=0.5)}
SHORT: dict[str, Any] = {name: lambda name=name: optim.AdamW(lr=0.01, accum_type=name)
                         for name in ("float16", "bfloat16")}
"""Accumulators of 16 bits."""
PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {}, "mixed": {"precision": "16-mixed"},
    "half": {"precision": "16-true", "loss_scaling": 2.0**24, "automatic_loss_scaling": "histogram"}}
