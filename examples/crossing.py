"""Parallel phases whose stages read each other: two IPUs of a phase multiply side by side, and each goes on with what the other has made.

    python examples/crossing.py
    python examples/crossing.py --serial
    python examples/crossing.py --groups 2 --updates 30

PopTorch's example of parallel phases: phases 0, 1, 1, 2, 3, 3, 4, 5, 5, even ones on IPUs 0 and 2, odd ones on 1 and 3. In phases 1, 3 and 5 there
are two products of each IPU, so that what they make crosses within the phase. The weights are those of one IPU, to the bit.
"""
from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import tileflow
from tileflow import nn
from tileflow.strategy.stages import ParallelPhasedExecution, SerialPhasedExecution, Stage

SIZE = 10


class Crossing(nn.Module):
    """In every group of two phases three products of each IPU: one in the even phase, two in the odd one, whose blocks are entered twice."""

    def __init__(self, groups: int) -> None:
        draw = np.random.default_rng(0)
        self.weights = nn.ParameterList([draw.random((SIZE, SIZE), np.float32) / 5 for _ in range(6 * groups)])

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        phase, weights = 0, iter(self.weights)
        with nn.Block("phase0_ipu0"):
            ins = x[:, :SIZE], x[:, SIZE:]
        for product in range(len(self.weights) // 2):
            outs = []
            for ipu in range(2):
                with nn.Block(f"phase{phase}_ipu{ipu}"):
                    outs.append((ins[ipu] @ next(weights)).relu())
            ins = outs[1], outs[0]                                       # each goes on with what the other has made
            phase += product % 3 != 1
        with nn.Block(f"phase{phase - 1}_ipu1"):
            return ins[0] + ins[1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Phased training with stages that read each other")
    parser.add_argument("--serial", action="store_true", help="all phases on IPUs 0 and 1, not on two groups in turn")
    parser.add_argument("--groups", type=int, default=3, help="two phases each (3)")
    parser.add_argument("--updates", type=int, default=20, help="weight updates (20)")
    args = parser.parse_args()

    phases = [[Stage(f"phase{n}_ipu{ipu}") for ipu in range(2)] for n in range(2 * args.groups)]
    strategy = (SerialPhasedExecution if args.serial else ParallelPhasedExecution)(phases)
    for n in range(2 * args.groups):
        strategy.phase(n).ipus(*((0, 1) if args.serial else (n % 2, n % 2 + 2)))
    plain = tileflow.Options(micro_batch_size=4, gradient_accumulation=2, device_iterations=args.updates, learning_rate=1e-2, loss="l1")
    phased = plain.clone(**strategy.to_options())

    priced: Any = tileflow.compile(Crossing(args.groups), phased, training=True, inputs=[np.zeros((4, 2 * SIZE), np.float32)], machine="gc200")
    for ipu in priced.report["ipus"]:
        print(f"IPU {ipu['number']}: {ipu['sent']:,} bytes an update to other IPUs")
    print(f"An update takes {priced.report['totals']['cycles']:,} cycles.")

    draw = np.random.default_rng(1)
    x, y = (draw.random((8 * args.updates, size), np.float32) for size in (2 * SIZE, SIZE))
    found = []
    for options in (plain, phased):
        net = Crossing(args.groups)
        _, loss = tileflow.training_model(net, options)(x, y)
        found.append(net.state_dict())
    same = all(found[0][name].tobytes() == found[1][name].tobytes() for name in found[0])
    print(f"Loss after {args.updates} updates: {loss:.4f}; the weights of one IPU to the bit: {'yes' if same else 'no'}")


if __name__ == "__main__":
    main()
