"""The networks of bench/networks.py in eager PyTorch, their modules under the same names, so that weights go across as they are."""
from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from .networks import BERT_SIZES, MASKED, POSITIONS, SEGMENTS, VOCABULARY
from .networks import ResNet as Ours


class ConvBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, relu: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        self.norm, self.relu = nn.BatchNorm2d(outputs), relu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x))
        return functional.relu(y, inplace=True) if self.relu else y


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(ConvBlock(inputs, outputs, 3, stride), ConvBlock(outputs, outputs, 3, relu=False))
        self.shortcut = ConvBlock(inputs, outputs, 1, stride, relu=False) if stride > 1 or inputs != outputs else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.branch(x)
        y += x if self.shortcut is None else self.shortcut(x)
        return functional.relu(y, inplace=True)


class ResNet18(nn.Module):
    """In-place additions and activations, as torchvision's."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem, self.pool = ConvBlock(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)
        blocks, width = [], 64
        for stage, count in enumerate(Ours.BLOCKS[18][1]):
            for i in range(count):
                blocks.append(Residual(width, 64 * 2 ** stage, 2 if stage and not i else 1))
                width = 64 * 2 ** stage
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.pool(self.stem(x))).mean((2, 3)))


class Attention(nn.Module):
    """With PyTorch's fused attention."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(seen.transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.wide, self.narrow, self.dropout = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden), nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x + self.dropout(self.attention(x, mask)))
        return self.norm2(y + self.dropout(self.narrow(functional.gelu(self.wide(y)))))


class Bert(nn.Module):
    """BERT with the heads of pre-training; inputs and outputs as bench.networks.Bert."""

    def __init__(self, size: str = "mini", masked: int = 20, dropout: float = 0.1) -> None:
        super().__init__()
        layers, hidden, heads = BERT_SIZES[size]
        self.tokens, self.positions = nn.Embedding(VOCABULARY, hidden), nn.Embedding(POSITIONS, hidden)
        self.segments = nn.Embedding(SEGMENTS, hidden)
        self.norm, self.dropout = nn.LayerNorm(hidden), nn.Dropout(dropout)
        self.layers = nn.ModuleList(EncoderLayer(hidden, heads, dropout) for _ in range(layers))
        self.transform, self.transform_norm = nn.Linear(hidden, hidden), nn.LayerNorm(hidden)
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))
        self.pooler, self.next_sentence = nn.Linear(hidden, hidden), nn.Linear(hidden, 2)
        self.masked = masked

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor,
                visible: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.dropout(self.norm(self.tokens(tokens) + self.positions(positions) + self.segments(segments)))
        mask = ((1.0 - visible) * MASKED)[:, None, None]
        for layer in self.layers:
            x = layer(x, mask)
        chosen = self.transform_norm(functional.gelu(self.transform(x[:, :self.masked].flatten(0, 1))))
        return functional.linear(chosen, self.tokens.weight, self.bias), self.next_sentence(torch.tanh(self.pooler(x[:, 0])))


def load(net: nn.Module, weights: Mapping[str, np.ndarray], dtype: torch.dtype) -> nn.Module:
    """The network with these weights."""
    counters = {name: value for name, value in net.state_dict().items() if name.endswith("num_batches_tracked")}
    net.load_state_dict({n: torch.from_numpy(np.array(a)) for n, a in weights.items()} | counters)
    return net.to(dtype)
