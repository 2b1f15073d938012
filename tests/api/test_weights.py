"""Weights out of every model and into it, and which models have the same ones."""
from __future__ import annotations

import gc
import os

import numpy as np
import onnx
import pytest
from onnx_models import model_of, node, port

import tileflow
from tileflow import nn
from tileflow.system.errors import DataError, OptionError

X = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
Y = np.arange(8) % 3


def save(path, seed=0, external=False):
    """x [N, 4] -> Gemm, BatchNormalization, Gemm -> y [N, 3]."""
    rng = np.random.default_rng(seed)
    weights = {"w1": rng.standard_normal((4, 5)), "b1": np.zeros(5), "scale": np.ones(5), "shift": np.zeros(5), "mean": np.zeros(5),
               "var": np.ones(5), "w2": rng.standard_normal((5, 3))}
    nodes = [node("Gemm", ["x", "w1", "b1"], ["h"], "fc1"), node("BatchNormalization", ["h", "scale", "shift", "mean", "var"], ["n"], "norm"),
             node("MatMul", ["n", "w2"], ["y"], "fc2")]
    model = model_of(nodes, [port("x", ["N", 4])], [port("y", ["N", 3])], {n: a.astype(np.float32) for n, a in weights.items()})
    onnx.save(model, path, save_as_external_data=external, size_threshold=0, location=f"{path.name}.data" if external else None)
    return path


@pytest.fixture
def path(tmp_path):
    return save(tmp_path / "net.onnx")


def trained(model):
    for _ in range(3):
        model(X, Y)
    return model


# ---- the same weights


@pytest.mark.parametrize("external", [False, True])
def test_models_of_one_path_share_weights_while_one_is_in_use(tmp_path, external):
    path = save(tmp_path / "net.onnx", external=external)
    fresh = tileflow.inference_model(tileflow.load(path))(X)
    training = trained(tileflow.training_model(path, optimizer="sgd", learning_rate=0.1))
    after = tileflow.inference_model(os.fspath(path))(X)
    assert np.abs(after - fresh).max() > 0.01
    np.testing.assert_array_equal(after, tileflow.inference_model(tmp_path / "." / "net.onnx")(X))
    np.testing.assert_array_equal(tileflow.infer(path, data=X)["y"], fresh)          # what is in the file
    np.testing.assert_array_equal(tileflow.inference_model(tileflow.load(path))(X), fresh)
    with pytest.warns(UserWarning, match=r"net.onnx was trained for 3 updates by another model in use, and this one goes on from its weights"):
        tileflow.training_model(path)
    del training
    gc.collect()
    np.testing.assert_array_equal(tileflow.inference_model(path)(X), fresh)


@pytest.mark.parametrize("external", [False, True])
def test_a_file_that_changed_is_another(tmp_path, external):
    path = save(tmp_path / "net.onnx", external=external)
    training = trained(tileflow.training_model(path))
    save(path, seed=1, external=external)
    np.testing.assert_array_equal(tileflow.inference_model(path)(X), tileflow.infer(path, data=X)["y"])
    save(path, external=external)
    shared = np.array_equal(tileflow.inference_model(path).state_dict()["w1"], training.state_dict()["w1"])
    assert shared is not external          # of external data size and time are looked at, not what they hold


def test_a_model_of_another_precision_needs_a_file_of_its_own(path):
    training = trained(tileflow.training_model(path))
    with pytest.raises(OptionError, match=r"use the same precision for all models of one network, or load its file again with tileflow.load"):
        tileflow.inference_model(path, precision="float64")(X)
    assert tileflow.inference_model(tileflow.load(path), precision="float64")(X).dtype == np.float64
    assert training.state_dict()["w1"].dtype == np.float32


# ---- out and in


def test_weights_before_and_after_a_call(path):
    for model in (tileflow.training_model(tileflow.load(path)), tileflow.inference_model(tileflow.load(path))):
        before = model.state_dict()
        assert sorted(before) == ["b1", "mean", "scale", "shift", "var", "w1", "w2"]
        model(X, Y) if model.training else model(X)
        after = model.state_dict()
        assert sorted(after) == sorted(before)
        assert np.array_equal(after["w1"], before["w1"]) is not model.training
        after["w1"][...] = 0          # a copy
        assert np.abs(model.state_dict()["w1"]).max() > 0


def test_weights_from_one_model_into_another(path, tmp_path):
    training = trained(tileflow.training_model(path))
    expected = tileflow.inference_model(path)(X)
    for called in (False, True):
        other = tileflow.inference_model(tileflow.load(save(tmp_path / "other.onnx", seed=7)))
        if called:
            assert np.abs(other(X) - expected).max() > 0.01
        other.load_state_dict(training.state_dict())
        np.testing.assert_array_equal(other(X), expected)


def test_training_goes_on_from_weights_that_were_loaded(path, tmp_path):
    first = trained(tileflow.training_model(path, optimizer="sgd"))
    middle = first.state_dict()
    end = trained(first).state_dict()
    other = tileflow.training_model(save(tmp_path / "other.onnx", seed=7), optimizer="sgd")
    other.load_state_dict(middle)
    again = trained(other).state_dict()
    assert all(np.array_equal(again[name], end[name]) for name in end)


class Net(nn.Module):
    def __init__(self, seed=0):
        nn.manual_seed(seed)
        self.fc, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.fc(x))


def test_layers_have_the_same_ways():
    net, other = Net(), Net(seed=1)
    training = trained(tileflow.training_model(net))
    assert all(np.array_equal(a, net.state_dict()[n]) for n, a in training.state_dict().items())
    model = tileflow.inference_model(other)
    model.load_state_dict(training.state_dict())
    np.testing.assert_array_equal(model(X), tileflow.inference_model(net)(X))


def change(tensors, **changes):
    return {n: a for n, a in {**tensors, **changes}.items() if a is not None}


@pytest.mark.parametrize(("changes", "says"), [
    ({"w1": None}, "not this network's: missing w1, unexpected none"),
    ({"w3": np.zeros(3)}, "missing none, unexpected w3"),
    ({"w1": np.zeros((5, 4), np.float32)}, r"'w1' is float32\[4, 5\], got float32\[5, 4\]"),
    ({"w1": np.zeros((4, 5), np.int64)}, r"'w1' is float32\[4, 5\], got int64\[4, 5\]"),
    ({"w1": np.zeros((4, 5), complex)}, r"got complex128\[4, 5\]"),
    ({"w1": "text"}, "'w1' is float32.*got <U4"),
])
def test_weights_that_do_not_fit_change_nothing(path, changes, says):
    model = tileflow.inference_model(tileflow.load(path))
    before, expected = model.state_dict(), model(X)
    new = {name: array + 1 for name, array in before.items()}
    with pytest.raises(DataError, match=says):
        model.load_state_dict(change(new, **changes))
    np.testing.assert_array_equal(model(X), expected)
    with pytest.raises(DataError, match="a table of arrays by name"):
        model.load_state_dict([1, 2])


def test_not_strict_takes_what_is_there(path):
    model = tileflow.inference_model(tileflow.load(path))
    before = model.state_dict()
    model.load_state_dict({"w1": np.zeros((4, 5)), "head": np.zeros(3)}, strict=False)          # float64 is rounded
    after = model.state_dict()
    assert not after["w1"].any()
    assert np.array_equal(after["w2"], before["w2"])
    with pytest.raises(DataError, match="none was taken over"):
        model.load_state_dict({"w1": np.ones((4, 5)), "w2": np.zeros(3)}, strict=False)
    assert not model.state_dict()["w1"].any()


def test_every_model_of_a_file_can_be_saved(path, tmp_path):
    training = trained(tileflow.training_model(path))
    expected = tileflow.inference_model(path)(X)
    for model in (training, tileflow.inference_model(path)):          # called and not called
        saved = model.save_onnx(tmp_path / "saved.onnx")
        np.testing.assert_array_equal(tileflow.infer(saved, data=X)["y"], expected)
    never_called = tileflow.training_model(tileflow.load(path))
    never_called.save_onnx(tmp_path / "same.onnx")
    assert [t.raw_data for t in onnx.load(tmp_path / "same.onnx").graph.initializer] == [t.raw_data for t in onnx.load(path).graph.initializer]
