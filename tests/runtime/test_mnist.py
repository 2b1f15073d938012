"""The tutorial on real MNIST, three epochs. `python -m bench.accuracy` prints the medians over five seeds, and PyTorch's."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import tileflow
from bench.accuracy import FOLDER, train
from bench.fetch import SHA256
from bench.models import TutorialNet, initial_weights, tutorial_cnn

pytestmark = pytest.mark.skipif(not all((FOLDER / name).is_file() for name in SHA256),
                                reason="needs MNIST: python -m bench.fetch .cache/mnist")


def test_from_the_file(tmp_path: Path):
    onnx.save(tutorial_cnn(initial_weights(0)), tmp_path / "model.onnx")
    result = train(tmp_path / "model.onnx", 0, 3, tmp_path / "run")
    assert result.history["test_accuracy"][-1] >= 0.980
    assert (np.diff(result.history["loss"]) < 0).all()
    options = tileflow.Options(mean=(0.1307,), std=(0.3081,), micro_batch_size=40, device_iterations=50)
    scores = tileflow.infer(tmp_path / "run" / "model.onnx", options, data=str(FOLDER))["logits"]
    labels = np.fromfile(FOLDER / "t10k-labels-idx1-ubyte", np.uint8, offset=8)
    assert (scores.argmax(1) == labels).mean() == pytest.approx(result.history["test_accuracy"][-1])


def test_from_layers(tmp_path: Path):
    result = train(TutorialNet(initial_weights(1)), 1, 3, tmp_path)
    assert result.history["test_accuracy"][-1] >= 0.980
