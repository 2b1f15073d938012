"""A character transformer on Shakespeare's works: the text, the network in layers and its training. `python -m bench.fetch .cache` gets the text."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import tileflow
from tileflow import nn

TEXT = Path(__file__).parent.parent / ".cache" / "shakespeare.txt"
CONTEXT = 64
SETTINGS: dict[str, Any] = dict(micro_batch_size=16, gradient_accumulation=2, device_iterations=8, learning_rate=2e-3, loss="cross_entropy",
                                class_axis=-1)
"""Batches of 32 x 64 characters, AdamW."""


class Block(nn.Module):
    """Attention to what came before, then two layers for each position; both beside the stream of features (Vaswani et al., arXiv:1706.03762)."""

    def __init__(self, width: int, heads: int) -> None:
        self.before, self.attend = nn.LayerNorm(width), nn.MultiheadAttention(width, heads)
        self.between = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        x = x + self.attend(self.before(x), is_causal=True)
        return x + self.feed(self.between(x))


class CharacterModel(nn.Module):
    """Scores [N, L, characters] of the next character after each of `tokens` [N, L]."""

    def __init__(self, characters: int, width: int = 64, layers: int = 2, heads: int = 4, context: int = CONTEXT) -> None:
        self.token, self.place = nn.Embedding(characters, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)

    def forward(self, tokens: nn.Tensor) -> nn.Tensor:
        x = self.token(tokens) + self.place(nn.tensor(np.arange(tokens.shape[1])))
        return self.head(self.norm(self.blocks(x)))


def rows(text: Path, seed: int, count: int, tests: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray], int]:
    """Training rows from random places of the first nine tenths of the text, test rows spread over the last; and how many characters there are."""
    letters, numbers = np.unique(np.frombuffer(text.read_bytes(), np.uint8), return_inverse=True)
    numbers = numbers.astype(np.int64)
    end = len(numbers) * 9 // 10
    rng = np.random.default_rng(seed)

    def at(starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        windows = numbers[starts[:, None] + np.arange(CONTEXT + 1)]
        return windows[:, :-1], windows[:, 1:]
    spread = np.linspace(end, len(numbers) - CONTEXT - 1, tests).astype(np.int64)
    return at(rng.integers(0, end - CONTEXT - 1, count)), at(spread), len(letters)


def train(seed: int, folder: Path, updates: int = 384, text: Path = TEXT, **options: Any) -> tileflow.TrainResult:
    """Train from a seed, which draws weights and rows; the run's history has the loss and accuracy on the last tenth of the text."""
    batch = SETTINGS["micro_batch_size"] * SETTINGS["gradient_accumulation"]
    (x, y), (x_test, y_test), characters = rows(text, seed, batch * updates, 512)
    data = dict(x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    nn.manual_seed(seed)
    return tileflow.train(CharacterModel(characters), data=data, out=str(folder), epochs=1, seed=seed, **{**SETTINGS, **options})
