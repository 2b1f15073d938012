"""Networks of `python -m bench training`, in PyTorch's own modules: each returns scores and the loss.

    net, rows = NETWORKS["ResNet-20"](np.random.default_rng(0))
"""
from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

Rows = tuple[np.ndarray, ...]
Rng = np.random.Generator


class Scored(nn.Module):
    """A network and the cross entropy of its scores, whose classes are the last axis."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.net(x)
        return scores, functional.cross_entropy(scores.flatten(0, -2), y.flatten())


class Layer(nn.Module):
    """A transformer's layer, normalised before each block (GPT-2, ViT)."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (a.unflatten(-1, (self.heads, -1)).transpose(1, 2) for a in self.qkv(self.norm1(x)).chunk(3, -1))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))


class Gpt(nn.Module):
    """Tokens to scores of the next one."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width, heads, causal=True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.tokens(x) + self.positions.weight[:x.shape[1]])))


class Vit(nn.Module):
    """Images of 32², patches of 4²."""

    def __init__(self, layers: int, width: int, heads: int, classes: int) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 65, width))
        self.layers = nn.Sequential(*(Layer(width, heads, causal=False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.layers(x)[:, 0]))


class Bert(nn.Module):
    """PyTorch's encoder layers over embedded tokens; scores of two classes."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.tokens(x) + self.positions.weight[:x.shape[1]])[:, 0])


def _conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1,
          act: type[nn.Module] | None = nn.ReLU) -> nn.Sequential:
    made = [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*made, *([act()] if act else []))


class Around(nn.Module):
    """A branch added to its input, or to a shortcut of it."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None, relu: bool = False) -> None:
        super().__init__()
        self.branch, self.shortcut, self.relu = branch, shortcut, relu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.branch(x) + (x if self.shortcut is None else self.shortcut(x))
        return functional.relu(y) if self.relu else y


def resnet20() -> nn.Module:
    """He et al. (2016), for images of 32²."""
    blocks: list[nn.Module] = [_conv(3, 16)]
    width = 16
    for stage in range(3):
        for i in range(3):
            outputs, stride = 16 << stage, 2 if stage and not i else 1
            shortcut = _conv(width, outputs, 1, stride, act=None) if stride > 1 else None
            blocks.append(Around(nn.Sequential(_conv(width, outputs, 3, stride), _conv(outputs, outputs, act=None)),
                                 shortcut, relu=True))
            width = outputs
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def mobilenet_v2() -> nn.Module:
    """Sandler et al. (2018), without the strides of the first two stages: for images of 64²."""
    blocks: list[nn.Module] = [_conv(3, 32, stride=2, act=nn.ReLU6)]
    width = 32
    for expand, outputs, count, first in ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                                          (6, 160, 3, 2), (6, 320, 1, 1)):
        for i in range(count):
            middle, stride = expand * width, first if i == 0 else 1
            made = [_conv(width, middle, 1, act=nn.ReLU6)] if expand > 1 else []
            made += [_conv(middle, middle, 3, stride, middle, nn.ReLU6), _conv(middle, outputs, 1, act=None)]
            branch = nn.Sequential(*made)
            blocks.append(Around(branch) if stride == 1 and width == outputs else branch)
            width = outputs
    return nn.Sequential(*blocks, _conv(width, 1280, 1, act=nn.ReLU6), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(1280, 10))


class Unet(nn.Module):
    """Ronneberger et al. (2015), three levels: scores of two classes a pixel, classes last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(nn.Sequential(_conv(a, b), _conv(b, b))
                                  for a, b in zip([3, *widths[:-1]], widths, strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(widths))
        self.after = nn.ModuleList(nn.Sequential(_conv(2 * a, a), _conv(a, a)) for a in widths[:-1])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        for i, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for i in range(len(self.up) - 1, -1, -1):
            x = self.after[i](torch.cat([self.up[i](x), kept[i]], 1))
        return self.head(x).permute(0, 2, 3, 1)


class Lstm(nn.Module):
    """Characters to scores of the next one."""

    def __init__(self, width: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.cells = nn.Embedding(vocabulary, width), nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(self.tokens(x))[0])


def _tokens(rng: Rng, rows: int, length: int, vocabulary: int) -> Rows:
    x = rng.integers(0, vocabulary, (rows, length + 1))
    return x[:, :-1].copy(), x[:, 1:].copy()


def _images(rng: Rng, rows: int, side: int, *label: int, classes: int = 10) -> Rows:
    return rng.standard_normal((rows, 3, side, side)).astype(np.float32), rng.integers(0, classes, (rows, *label))


def _of(net: Callable[[], nn.Module], rows: Callable[[Rng], Rows]) -> Callable[[Rng], tuple[Any, Rows]]:
    return lambda rng: (Scored(net()), rows(rng))


NETWORKS: dict[str, Callable[[Rng], tuple[Any, Rows]]] = {
    "GPT 4 x 128": _of(lambda: Gpt(4, 128, 4, 65, 64), lambda rng: _tokens(rng, 12, 64, 65)),
    "GPT 6 x 384": _of(lambda: Gpt(6, 384, 6, 65, 256), lambda rng: _tokens(rng, 4, 256, 65)),
    "ViT 6 x 192": _of(lambda: Vit(6, 192, 3, 10), lambda rng: _images(rng, 32, 32)),
    "BERT-mini": _of(lambda: Bert(4, 256, 4, 30522, 128),
                     lambda rng: (rng.integers(0, 30522, (16, 128)), rng.integers(0, 2, 16))),
    "ResNet-20": _of(resnet20, lambda rng: _images(rng, 64, 32)),
    "MobileNetV2": _of(mobilenet_v2, lambda rng: _images(rng, 16, 64)),
    "U-Net": _of(lambda: Unet(32), lambda rng: _images(rng, 4, 64, 64, 64, classes=2)),
    "LSTM": _of(lambda: Lstm(256, 2, 65), lambda rng: _tokens(rng, 32, 64, 65)),
    "MLP": _of(lambda: nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                                     nn.Linear(512, 10)),
               lambda rng: (rng.standard_normal((64, 784)).astype(np.float32), rng.integers(0, 10, 64))),
}
"""By name; the two GPTs are nanoGPT's for a CPU and for characters of Shakespeare, the latter with fewer rows."""
