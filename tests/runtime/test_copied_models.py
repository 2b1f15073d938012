"""Models and networks copied and pickled: each goes on by itself, in memory of its own."""
from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tileflow
from tileflow import nn, optim

X, Y = np.random.default_rng(0).standard_normal((4, 6), np.float32), np.arange(4) % 3
COPIED: list[Callable[[Any], Any]] = [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]


def net() -> nn.Module:
    nn.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 30), nn.ReLU(), nn.Dropout(0.2), nn.Linear(30, 3))


def losses(model: Any, count: int = 3) -> list[float]:
    return [float(model(X, Y)[-1]) for _ in range(count)]


@pytest.mark.parametrize("copied", COPIED, ids=["copy", "pickle"])
def test_a_trained_model_goes_on_as_its_copy_does(copied: Callable[[Any], Any]):
    """Moments, the optimizer's variable attributes, options and the draws of dropout among it."""
    model = tileflow.training_model(net(), optimizer=optim.Adam(lr=0.1), threads=1)
    losses(model)
    model.optimizer.lr = 0.05
    twin = copied(model)
    assert twin.options.threads == 1
    assert losses(twin) == losses(model)
    for name, array in model.state_dict().items():
        assert np.array_equal(twin.state_dict()[name], array)
    before = model.state_dict()
    losses(twin)
    assert all(np.array_equal(model.state_dict()[name], array) for name, array in before.items())


def test_a_network_that_was_trained_can_be_copied_and_trained():
    """Weights and moments lie side by side in the copy, too."""
    one = net()
    model = tileflow.training_model(one, optimizer=optim.Adam(lr=0.1))
    losses(model)
    other = copy.deepcopy(one)
    assert losses(tileflow.training_model(other, optimizer=optim.Adam(lr=0.1))) == losses(model)


def test_models_of_a_file_and_models_that_share_weights(tmp_path: Path):
    path = tmp_path / "net.onnx"
    tileflow.save_onnx(net(), path, X)
    loaded = tileflow.load(path)
    trained = tileflow.training_model(loaded, optimizer=optim.SGD(lr=0.1, momentum=0.9))
    models = trained, tileflow.inference_model(loaded)
    losses(models[0])
    trained, runs = pickle.loads(pickle.dumps(models))
    assert np.array_equal(runs(X), models[1](X))
    assert losses(trained) == losses(models[0])
    assert np.array_equal(runs(X), models[1](X))  # the two share weights, as those that they are copies of


def test_gradients_and_options():
    model = tileflow.gradient_model(net(), "*.weight", upstream=True)
    g = np.ones((4, 3), np.float32)
    found, twin = model(X, g), copy.deepcopy(model)
    assert all(np.array_equal(twin(X, g)[name], array) for name, array in found.items())
    options = tileflow.Options(threads=2, dims={"N": 4}, micro_batch_size=3)
    again = pickle.loads(pickle.dumps(options.freeze()))
    assert again.diff(options) == {}
    assert again.given("threads")
    assert not again.given("seed")
    again.threads = 1
