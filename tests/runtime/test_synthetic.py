"""Runs on made-up rows: of the data's shapes, or of the model's own."""
from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tileflow
from tileflow import cli, nn
from tileflow.options.options import Options
from tileflow.runtime import synthetic
from tileflow.runtime.data import Dataset
from tileflow.runtime.onnx_source import OnnxSource
from tileflow.system.errors import DataError, OptionError


def test_like_data():
    """Shapes, types and labels are those of the data; floats are made up by the seed, whole numbers are zero."""
    draw = np.random.default_rng(0)
    data = Dataset.of({"x": draw.random((500, 3, 2)), "ids": draw.integers(1, 9, (500, 4))}, draw.integers(0, 5, 500), "mine")
    made = synthetic.like(data, Options(synthetic_data="normal", seed=3))
    assert {n: (f.array.dtype, f.array.shape) for n, f in made.fields.items()} == {"x": (np.float64, (500, 3, 2)), "ids": (np.int64, (500, 4))}
    x = made.fields["x"].array
    assert abs(x.mean()) < 0.1
    assert abs(x.std() - 1) < 0.1
    assert not made.fields["ids"].array.any()
    assert np.array_equal(made.label.array, data.label.array)
    again = synthetic.like(data, Options(synthetic_data="normal", seed=3)).fields["x"].array
    assert x.tobytes() == again.tobytes() != synthetic.like(data, Options(synthetic_data="normal", seed=4)).fields["x"].array.tobytes()
    assert not synthetic.like(data, Options(synthetic_data="zeros")).fields["x"].array.any()


def file(folder, shape=("n", 4), classes=3):
    w = np.random.default_rng(1).standard_normal((shape[-1], classes)).astype(np.float32)
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [*shape[:-1], classes])], [numpy_helper.from_array(w, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize(("loss", "kind", "label"), [
    ("auto", "i", (96,)), ("cross_entropy", "i", (96,)), ("mse", "f", (96, 3)), ("bce_with_logits", "f", (96, 3)), ("identity", None, None)])
def test_of_the_models_own_shapes(tmp_path, loss, kind, label):
    options = Options(synthetic_data="normal", micro_batch_size=2, gradient_accumulation=3, loss=loss)
    made = synthetic.made_up(OnnxSource(tileflow.load(file(tmp_path)), options), options)
    assert made.fields["x"].array.shape == (96, 4)
    if label is None:
        assert made.label is None
        return
    found = made.label.array
    assert (found.dtype.kind, found.shape) == (kind, label)
    if kind == "i":
        assert set(np.unique(found)) == {0, 1, 2}
    if loss == "bce_with_logits":
        assert set(np.unique(found)) == {0.0, 1.0}


def test_a_sequence_has_a_class_for_each_place(tmp_path):
    options = Options(synthetic_data="zeros", micro_batch_size=2)
    made = synthetic.made_up(OnnxSource(tileflow.load(file(tmp_path, ("n", 7, 4))), options), options)
    assert made.label.array.shape == (32, 7)
    assert made.label.array.max() == 2
    assert not made.fields["x"].array.any()


def test_train(tmp_path):
    """Without data; by the command; and again to the bit, for the seed decides."""
    path = file(tmp_path)
    results = [tileflow.train(path, synthetic_data="normal", micro_batch_size=4, out=tmp_path / f"r{i}") for i in range(2)]
    assert results[0].weights["w"].tobytes() == results[1].weights["w"].tobytes()
    assert results[0].epochs[0].test_loss is None
    assert results[0].history["samples_per_second"][0] > 0
    more = tileflow.train(resume=True, out=tmp_path / "r0", epochs=2)
    assert len(more.epochs) == 2


def test_train_command(tmp_path, capsys):
    assert cli.main(["train", str(file(tmp_path)), "--synthetic-data", "zeros", "--micro-batch-size", "4", "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "tileflow infer" not in said, "there are no data that it could run on"
    assert "tileflow train --resume" in said


def test_what_is_refused(tmp_path):
    net, x = nn.Linear(4, 3), np.ones((32, 4), np.float32)
    with pytest.raises(DataError, match="The shapes of the network's inputs are not known: give data for synthetic_data to be like"):
        tileflow.train(net, synthetic_data="zeros", out=tmp_path / "a")
    with pytest.raises(OptionError, match="synthetic_data and test_data exclude each other"):
        tileflow.train(net, data=(x, np.zeros(32, int)), synthetic_data="zeros", test_data="digits", out=tmp_path / "b")
    with pytest.raises(OptionError, match="no effect on inference_model; it is for train"):
        tileflow.inference_model(net, synthetic_data="zeros")
    before = net.state_dict()["weight"]
    result = tileflow.train(net, data=(x * np.nan, np.zeros(32, int)), synthetic_data="zeros", out=tmp_path / "c", optimizer="sgd",
                            loss="cross_entropy")
    assert np.array_equal(result.weights["weight"], before), "zeros have no gradient in the weight, and the data's NaN were not looked at"
    assert np.isfinite(result.epochs[0].loss)
