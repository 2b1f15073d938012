"""`python -m bench.accuracy [--seeds N] [--epochs N] [--peer]`: the tutorial on MNIST; test accuracy per seed and its median.

Weights, order of the rows and everything else that is random follow from the seed and are the same on all sides: from the
ONNX file, from layers and, with `--peer`, in PyTorch. Needs MNIST: `python -m bench.fetch .cache/mnist`.
"""
from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tileflow
from tileflow.graph import TensorType
from tileflow.runtime.data import DataLoader, open_data

from .models import TutorialNet, initial_weights, tutorial_cnn

FOLDER = Path(__file__).parent.parent / ".cache" / "mnist"
MEAN, STD = 0.1307, 0.3081
SETTINGS: dict[str, Any] = dict(micro_batch_size=40, gradient_accumulation=10, device_iterations=10, mean=(MEAN,), std=(STD,))
"""The tutorial's: batches of 400, AdamW at 1e-3, ten updates a call; 60,000 rows are 15 calls."""


def train(model: Any, seed: int, epochs: int, folder: Path, data: Path = FOLDER, **options: Any) -> tileflow.TrainResult:
    """Train from a file or a network of layers; the run's `history["test_accuracy"]` has a figure per epoch."""
    return tileflow.train(model, data=str(data), out=str(folder), epochs=epochs, seed=seed, **SETTINGS, **options)


def from_file(seed: int, epochs: int) -> float:
    """Test accuracy of the ONNX file's training."""
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(tutorial_cnn(initial_weights(seed)), f"{folder}/model.onnx")
        return float(train(f"{folder}/model.onnx", seed, epochs, Path(folder, "run")).history["test_accuracy"][-1])


def from_layers(seed: int, epochs: int) -> float:
    """Test accuracy of the network of layers."""
    with tempfile.TemporaryDirectory() as folder:
        return float(train(TutorialNet(initial_weights(seed)), seed, epochs, Path(folder)).history["test_accuracy"][-1])


def in_torch(seed: int, epochs: int) -> float:
    """Test accuracy of the same training in PyTorch: the same rows in the same order."""
    import torch

    from .peer_torch import call, network
    options = tileflow.Options(seed=seed, **SETTINGS)
    data = open_data(str(FOLDER), options)
    assert data.test is not None
    image = {"image": TensorType("float32", (40, 1, 28, 28))}
    rows, test = (part.adapt_to(image, TensorType("int64", (40,)), options) for part in (data.train, data.test))
    net = network(initial_weights(seed))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    loader = DataLoader(options, rows)
    for _ in range(epochs):
        for x, y in loader:
            call(net, optimizer, x, y, options.micro_batch_size, options.gradient_accumulation)
    x, y = test.gather(np.arange(len(test)))
    with torch.no_grad():
        return float((net(torch.from_numpy(x)).argmax(1).numpy() == y).mean())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds, from 0 (default: 5)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs (default: the tutorial's 3)")
    parser.add_argument("--peer", action="store_true", help="train in PyTorch as well")
    chosen = parser.parse_args()
    sides: dict[str, Callable[[int, int], float]] = {"ONNX file": from_file, "layers": from_layers}
    if chosen.peer:
        sides["PyTorch"] = in_torch
    for name, side in sides.items():
        found = [100 * side(seed, chosen.epochs) for seed in range(chosen.seeds)]
        print(f"{name:<10} median {statistics.median(found):.2f} %  ({', '.join(f'{a:.2f}' for a in found)})", flush=True)


if __name__ == "__main__":
    main()
