"""What precisions take on the tile machine, for the table in docs/precision.md: `python -m bench tile-choices [--write docs/precision.md]`.

Figures are those of the reports of training programs on a GC200; nothing is run.
"""
from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tileflow import nn
from tileflow.api.choices import PrecisionChoice, compare

from .networks import ResNet

BEGIN, END = "<!-- the table: python -m bench tile-choices --write docs/precision.md -->", "<!-- end of the table -->"
WORDS, LENGTH = 8000, 128


class CharacterTransformer(nn.Module):
    """Four blocks of 256 features and four heads over 128 positions, causal, with 8,000 words."""

    def __init__(self) -> None:
        self.tokens, self.positions = nn.Embedding(WORDS, 256), nn.Parameter(nn.init.normal((LENGTH, 256), 0.02))
        self.blocks = [{"norm": nn.LayerNorm(256), "attention": nn.MultiheadAttention(256, 4), "norm2": nn.LayerNorm(256),
                        "up": nn.Linear(256, 1024), "down": nn.Linear(1024, 256)} for _ in range(4)]
        self.head = nn.Linear(256, WORDS)

    def forward(self, ids: nn.Tensor) -> nn.Tensor:
        x = self.tokens(ids) + self.positions
        for block in self.blocks:
            x = x + block["attention"](block["norm"](x), is_causal=True)
            x = x + block["down"](nn.GELU()(block["up"](block["norm2"](x))))
        return self.head(x).transpose(1, 2)


def models() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Names with models and settings."""
    import numpy as np
    both: dict[str, Any] = {"machine": "gc200", "gradient_accumulation": 4}
    with nn.skip_init():
        resnet, transformer = ResNet(18), CharacterTransformer()
    return {
        "digits_cnn.onnx, AdamW": ("digits_cnn.onnx", {**both, "micro_batch_size": 16}),
        "ResNet-18, 224 x 224, momentum SGD": (resnet, {**both, "inputs": [(2, 3, 224, 224)], "loss": "cross_entropy", "optimizer": "sgd",
                                                       "momentum": 0.9}),
        "transformer of 4 blocks, 7.3 M weights, AdamW": (transformer, {**both, "inputs": [np.zeros((2, LENGTH), np.int64)],
                                                                       "loss": "cross_entropy"}),
    }


def markdown(name: str, choices: Sequence[PrecisionChoice]) -> str:
    """The rows of one model."""
    first = choices[0]
    lines = [f"**{name}**", "", "| precision | accumulators | moments | worst tile | always live | of it weights | cycles |",
             "|---|---|---|--:|--:|--:|--:|"]
    for c in choices:
        cycles = f"{c.cycles:,} ({c.cycles / first.cycles:.2f})"
        lines.append(f"| {c.precision} | {c.accumulators} | {c.moments} | {c.worst:,} ({c.worst / first.worst:.2f}){'' if c.fits else ' !'} | "
                     f"{c.always_live:,} ({c.always_live / first.always_live:.2f}) | {c.weights:,} | {cycles} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench tile-choices", description=__doc__)
    parser.add_argument("--write", metavar="FILE", help="put the tables between the marks of this file")
    chosen = parser.parse_args(arguments)
    text = "\n\n".join(markdown(name, compare(model, **settings)) for name, (model, settings) in models().items())
    print(text)
    if chosen.write:
        path = Path(chosen.write)
        before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
        path.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
