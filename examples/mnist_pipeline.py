"""The PopTorch tutorial on pipelining: the MNIST network over four IPUs, trained and tested on this computer, and priced on simulated IPUs.

    python examples/mnist_pipeline.py
    python examples/mnist_pipeline.py --learning-rate 0.002 --debug --epochs 5
    python examples/mnist_pipeline.py --profile --profile-dir pipeline_profile
    python examples/mnist_pipeline.py --strategy sharded --profile --profile-dir sharding_profile
    python examples/mnist_pipeline.py --strategy serial_phased
    python examples/mnist_pipeline.py --strategy parallel_phased
    python examples/mnist_pipeline.py --offload-optimiser
"""
from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from images import mnist
from tqdm import tqdm

import tileflow
from tileflow import nn
from tileflow.strategy.stages import ParallelPhasedExecution, Phase, PipelinedExecution, SerialPhasedExecution, ShardedExecution, Stage

FOUR = Stage("B1").ipu(0), Stage("B2").ipu(1), Stage("B3").ipu(2), Stage("B4").ipu(3)
STRATEGIES = {
    "pipelined": PipelinedExecution(*FOUR),
    "sharded": ShardedExecution(*FOUR),
    "serial_phased": SerialPhasedExecution("B1", "B2", "B3", "B4"),
    "parallel_phased": ParallelPhasedExecution(Phase(Stage("B1"), Stage("B2")).ipus(0, 2), Phase(Stage("B3"), Stage("B4")).ipus(1, 3))}


class ConvLayer(nn.Module):
    def __init__(self, in_channels: int, num_filters: int, kernel_size: int, pool_size: int) -> None:
        self.conv = nn.Conv2d(in_channels, num_filters, kernel_size)
        self.pool = nn.MaxPool2d(pool_size)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.pool(self.conv(x)).relu()


class Network(nn.Module):
    """Blocks are named here; which of them make a stage, and on which IPU it runs, is said by the strategy."""

    def __init__(self) -> None:
        self.layer1, self.layer2 = ConvLayer(1, 10, 5, 2), ConvLayer(10, 20, 5, 2)
        self.layer3, self.layer4 = nn.Linear(320, 256), nn.Linear(256, 10)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        with nn.Block("B1"):
            x = self.layer1(x)
        with nn.Block("B2"):
            x = self.layer2(x)
        with nn.Block("B3"):
            x = self.layer3(x.flatten(1)).relu()
        with nn.Block("B4"):
            return self.layer4(x)


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Percentage of right predictions; the last labels belong to what the output mode returned."""
    return 100 * float((predictions.argmax(1) == labels[-len(predictions):]).mean())


def train(model: Any, data: tileflow.DataLoader, epochs: int) -> None:
    for epoch in range(1, epochs + 1):
        bar = tqdm(data, desc=f"Epoch {epoch}/{epochs}")
        for images, labels in bar:
            predictions, losses = model(images, labels)
            bar.set_description(f"Epoch {epoch}/{epochs} Loss:{losses.mean():0.4f} | Accuracy:{accuracy(predictions, labels):0.2f}%")


def test(model: Any, data: tileflow.DataLoader) -> None:
    found = [accuracy(model(images), labels) for images, labels in data]
    print(f"Accuracy on test set: {np.mean(found):0.2f}%")


def profile(network: Network, options: tileflow.Options, folder: str | None) -> None:
    """What an update takes on four simulated IPUs; pictures of it, tables and a trace go into the folder."""
    compiled: Any = tileflow.compile(network, options, training=True, inputs=[(options.micro_batch_size, 1, 28, 28)], machine="gc200", report=folder)
    print(compiled.to_text())
    if folder is not None:
        print(f"The profile is in {folder}: open page.html, or trace.json in a trace viewer.")


def main() -> None:
    parser = argparse.ArgumentParser(description="Pipelined training of the MNIST network over four IPUs")
    parser.add_argument("--data", metavar="FILE", help="MNIST as an .npz file; by default the packaged digits, enlarged to 28x28")
    parser.add_argument("--batch-size", type=int, default=40, help="mini-batch size for training (40)")
    parser.add_argument("--device-iterations", type=int, default=10, help="weight updates of a call in training (10)")
    parser.add_argument("--gradient-accumulation", type=int, default=10, help="mini-batches of a weight update (10)")
    parser.add_argument("--test-batch-size", type=int, default=8, help="mini-batch size for inference (8)")
    parser.add_argument("--test-device-iterations", type=int, default=4, help="mini-batches of a call in inference, at least one for each stage (4)")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the training data (3)")
    parser.add_argument("--learning-rate", type=float, default=0.001, help="of AdamW (0.001)")
    parser.add_argument("--strategy", choices=STRATEGIES, default="pipelined", help="execution strategy (pipelined)")
    parser.add_argument("--profile", action="store_true", help="write a profile of the simulated IPUs")
    parser.add_argument("--profile-dir", default="profile", metavar="DIR", help="where to (profile)")
    parser.add_argument("--offload-optimiser", action="store_true", help="keep the optimiser's state off the chip; it says what that takes")
    parser.add_argument("--debug", action="store_true", help="print the compiled program and show its kernels being compiled")
    args = parser.parse_args()

    train_data, test_data = mnist(args.data)
    options = tileflow.Options(
        micro_batch_size=args.batch_size, gradient_accumulation=args.gradient_accumulation, device_iterations=args.device_iterations,
        output_mode="all", learning_rate=args.learning_rate, **STRATEGIES[args.strategy].to_options())  # output mode final, the default, is faster
    test_options = options.clone(micro_batch_size=args.test_batch_size, gradient_accumulation=1, device_iterations=args.test_device_iterations)

    nn.manual_seed(0)
    network = Network()
    if args.profile or args.offload_optimiser:
        profile(network, options.clone(optimizer_off_chip=args.offload_optimiser), args.profile_dir if args.profile else None)
    training_model = tileflow.training_model(network, options, progress=args.debug)
    train(training_model, tileflow.DataLoader(options, train_data), args.epochs)
    if args.debug:
        print(training_model.program.to_text())
    inference_model = tileflow.inference_model(network, test_options, progress=args.debug)         # the same weights
    test(inference_model, tileflow.DataLoader(test_options, test_data, shuffle=False))


if __name__ == "__main__":
    main()
