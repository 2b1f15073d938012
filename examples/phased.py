"""A transformer in phases: one part of it after the other on one IPU, or on two IPUs in turn.

    python examples/phased.py
    python examples/phased.py --parallel --separate-backward
    python examples/phased.py --liveness off_chip_after_each_phase
    python examples/phased.py --layers 6 --updates 300

It learns to tell which of the tokens 0 to 7 is most frequent in a sequence.
"""
from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import tileflow
from tileflow import nn
from tileflow.strategy.stages import ParallelPhasedExecution, SerialPhasedExecution

TOKENS, LENGTH = 8, 24
LIVENESS = ("always_live", "off_chip_after_fwd", "off_chip_after_fwd_no_overlap", "off_chip_after_each_phase")


class Encoder(nn.Module):
    """A block for each layer, which the strategy takes as a phase."""

    def __init__(self, layers: int, width: int = 32) -> None:
        self.embed, self.head = nn.Embedding(TOKENS, width), nn.Linear(width, TOKENS)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True) for _ in range(layers)])

    def forward(self, tokens: nn.Tensor) -> nn.Tensor:
        with nn.Block("embed"):
            x = self.embed(tokens)
        for i, layer in enumerate(self.layers):
            with nn.Block(f"layer{i}"):
                x = layer(x)
        with nn.Block("head"):
            return self.head(x.mean(1))


def sequences(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [count, LENGTH] and the most frequent one of each row, the smallest of several."""
    tokens = np.random.default_rng(seed).integers(0, TOKENS, (count, LENGTH))
    frequency = (tokens[:, :, None] == np.arange(TOKENS)).sum(1)
    return tokens, frequency.argmax(1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Phased training of a transformer")
    parser.add_argument("--parallel", action="store_true", help="phases on two IPUs in turn, not on one")
    parser.add_argument("--separate-backward", action="store_true", help="the last phase's backward pass is a phase of its own")
    parser.add_argument("--liveness", choices=LIVENESS, default="always_live", help="when what later phases read leaves the chip (always_live)")
    parser.add_argument("--layers", type=int, default=2, help="layers of the transformer (2)")
    parser.add_argument("--updates", type=int, default=100, help="weight updates (100)")
    args = parser.parse_args()

    phases = ["embed", *(f"layer{i}" for i in range(args.layers)), "head"]
    execution = ParallelPhasedExecution if args.parallel else SerialPhasedExecution
    strategy = execution(*phases, liveness=args.liveness, separate_backward=args.separate_backward)
    options = tileflow.Options(micro_batch_size=32, gradient_accumulation=2, device_iterations=10, learning_rate=3e-3, **strategy.to_options())

    nn.manual_seed(0)
    net = Encoder(args.layers)
    priced: Any = tileflow.compile(net, options, training=True, inputs=[np.zeros((32, LENGTH), np.int64)], machine="gc200")
    for ipu in priced.report["ipus"]:
        print(f"IPU {ipu['number']}: {ipu['worst']:,} bytes on the fullest tile, {ipu['always_live']:,} always; "
              f"{ipu['streamed']:,} bytes an update to and from streaming memory")
    print(f"An update takes {priced.report['totals']['cycles']:,} cycles.")

    model = tileflow.training_model(net, options)
    for call in range(args.updates // 10):
        _, loss = model(*sequences(32 * 2 * 10, seed=call))
        print(f"after {10 * (call + 1)} updates: loss {loss:.3f}")
    tokens, most = sequences(1000, seed=10 ** 6)
    scores = tileflow.inference_model(net)(tokens)
    print(f"Right: {(scores.argmax(1) == most).mean():.1%} of 1,000 new sequences")


if __name__ == "__main__":
    main()
