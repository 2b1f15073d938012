"""The trained file in the form for inference: what only training makes is gone, here, in subgraphs and in functions."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper
from onnx_models import expected, model_of, node, port, tensor

import tileflow
from tileflow.importers.onnx import export_model, load_model, wrap_model
from tileflow.importers.onnx.inference_form import to_inference
from tileflow.system.errors import ModelError

RNG = np.random.default_rng(0)
STATISTICS = ["scale", "shift", "mean", "variance"]
ON = {"ratio": np.float32(0.5), "on": np.bool_(True)}


def norm_weights(channels: int = 3) -> dict[str, Any]:
    return {n: RNG.uniform(0.5, 1.5, channels).astype(np.float32) for n in STATISTICS}


def training_file() -> ModelProto:
    """x [N, 3, 4, 4] -> normalised -> 5 scores with dropout before them, as PyTorch's older exporter writes it for training."""
    nodes = [node("BatchNormalization", ["x", *STATISTICS], ["n", "new_mean", "new_variance"], "norm", training_mode=1, momentum=0.5),
             node("GlobalAveragePool", ["n"], ["p"]), node("Flatten", ["p"], ["f"]),
             node("Constant", [], ["on"], value=tensor("", np.bool_(True))),
             node("Dropout", ["f", "ratio", "on"], ["d", "mask"], "drop"), node("Gemm", ["d", "w", "b"], ["y"])]
    weights = {**norm_weights(), "ratio": ON["ratio"], "w": RNG.standard_normal((3, 5)).astype(np.float32), "b": np.zeros(5, np.float32)}
    return model_of(nodes, [port("x", ["N", 3, 4, 4])], [port("y", ["N", 5])], weights)


def data(rows: int = 64) -> tuple[np.ndarray, np.ndarray]:
    x = (3 + 2 * RNG.standard_normal((rows, 3, 4, 4))).astype(np.float32)
    return x, RNG.integers(0, 5, rows)


def converted(proto: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(proto)
    to_inference(copy)
    onnx.checker.check_model(copy, full_check=True)
    return copy


def test_what_train_writes_is_for_inference(tmp_path: Path) -> None:
    """ONNX's own evaluator computes what the engine does; before, it normalised by the batch and dropped half of the features."""
    x, labels = data()
    model = wrap_model(training_file())
    result = tileflow.train(model, data=(x, labels), micro_batch_size=16, epochs=2, out=str(tmp_path), learning_rate=0.05)
    written = load_model(tmp_path / "model.onnx")
    scores = tileflow.inference_model(model, micro_batch_size=16)(x[:16])
    np.testing.assert_allclose(expected(written.proto, {"x": x[:16]})[0], scores, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(written.array("mean"), result.weights["mean"])
    assert np.abs(written.array("mean") - 3).max() < 0.5                     # the running statistics came along
    assert [len(n.output) for n in written.proto.graph.node if n.op_type in ("BatchNormalization", "Dropout")] == [1, 1]
    assert "Constant" not in [n.op_type for n in written.proto.graph.node]   # it only said training_mode


def test_the_training_form_is_kept_on_request(tmp_path: Path) -> None:
    model = wrap_model(training_file())
    result = tileflow.train(model, data=data(), micro_batch_size=16, out=str(tmp_path), keep_training_mode=True)
    assert list(load_model(tmp_path / "model.onnx").proto.graph.node) == list(model.proto.graph.node)
    result.save_onnx(tmp_path / "other.onnx", keep_training_mode=False)
    assert list(load_model(tmp_path / "other.onnx").proto.graph.node) != list(model.proto.graph.node)


def test_the_trained_file_trains_again(tmp_path: Path) -> None:
    x, labels = data()
    tileflow.train(wrap_model(training_file()), data=(x, labels), micro_batch_size=16, out=str(tmp_path / "one"))
    again = tileflow.train(tmp_path / "one/model.onnx", data=(x, labels), micro_batch_size=16, out=str(tmp_path / "two"))
    before = load_model(tmp_path / "one/model.onnx").array("variance")
    assert not np.array_equal(again.weights["variance"], before)             # batch normalisation trained again


def test_a_file_that_computes_something_else_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check reads the file as it stands: one in training mode is found out by its own outputs. It does so after training, too."""
    monkeypatch.setattr("tileflow.importers.onnx.export.to_inference", lambda proto: None)
    monkeypatch.setattr("tileflow.api.training.rehearsed", lambda *arguments: None)
    with pytest.raises(ModelError, match=r"was not written: read again.*output 'y' \(it differs by .*The weights are as they were"):
        tileflow.train(wrap_model(training_file()), data=data(), micro_batch_size=16, out=str(tmp_path))
    assert not (tmp_path / "model.onnx").exists()
    assert (tmp_path / "checkpoint.safetensors").exists()
    assert not list(tmp_path.glob(".model*"))


def test_weights_that_got_lost_are_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tileflow.importers.onnx.export._fill", lambda proto, weights: None)
    with pytest.raises(ModelError, match="was not written"):
        tileflow.train(wrap_model(training_file()), data=data(), micro_batch_size=16, learning_rate=0.1, keep_training_mode=True, out=str(tmp_path))
    assert not (tmp_path / "model.onnx").exists()


def test_an_older_file_stays_where_the_new_one_is_wrong(tmp_path: Path) -> None:
    model = wrap_model(training_file())
    (tmp_path / "out.onnx").write_bytes(b"older")

    def refuse(path: Path) -> None:
        assert load_model(path)
        raise ModelError("no")
    with pytest.raises(ModelError, match="no"):
        export_model(model, {}, tmp_path / "out.onnx", check=refuse)
    assert (tmp_path / "out.onnx").read_bytes() == b"older"


@pytest.mark.exhaustive
def test_float64_weights_are_rounded_to_the_file(tmp_path: Path) -> None:
    tileflow.train(wrap_model(training_file()), data=data(), micro_batch_size=16, out=str(tmp_path), precision="float64", learning_rate=0.1)
    assert load_model(tmp_path / "model.onnx").array("w").dtype == np.float32


def test_statistics_that_are_read_are_the_running_ones() -> None:
    nodes = [node("BatchNormalization", ["x", *STATISTICS], ["y", "m", "v"], training_mode=1), node("Add", ["m", "m"], ["twice"])]
    proto = model_of(nodes, [port("x", [2, 3])], [port("y", [2, 3]), port("v", [3]), port("twice", [3])], norm_weights())
    x = RNG.standard_normal((2, 3)).astype(np.float32)
    found = expected(converted(proto), {"x": x})
    weights = wrap_model(proto)
    np.testing.assert_array_equal(found[1], weights.array("variance"))
    np.testing.assert_array_equal(found[2], 2 * weights.array("mean"))


def test_saved_statistics_have_no_form_for_inference() -> None:
    nodes = [node("BatchNormalization", ["x", *STATISTICS], ["y", "m", "v", "sm", "sv"], "norm"), node("Add", ["sm", "sm"], ["z"])]
    proto = model_of(nodes, [port("x", [2, 3])], ["y", "z"], norm_weights(), opset=9)
    with pytest.raises(ModelError, match=r"BatchNormalization node 'norm' gives the statistics of a batch.*keep_training_mode"):
        to_inference(proto)


@pytest.mark.parametrize("opset", [9, 13])
def test_older_batch_normalisation_trains_where_it_has_more_outputs(opset: int) -> None:
    proto = model_of([node("BatchNormalization", ["x", *STATISTICS], ["y", "m", "v", "sm", "sv"])], [port("x", [2, 3])], [port("y", [2, 3])],
                     norm_weights(), opset=opset)
    assert [list(n.output) for n in converted(proto).graph.node] == [["y"]]


def test_a_mask_that_is_read_stays() -> None:
    nodes = [node("Dropout", ["x", "ratio", "on"], ["y", "mask"])]
    proto = model_of(nodes, [port("x", [64])], [port("y", [64]), port("mask", [64], "bool")], ON)
    x = np.ones(64, np.float32)
    result = converted(proto)
    y, mask = expected(result, {"x": x})
    np.testing.assert_array_equal(y, x)
    assert mask.all()
    assert [t.name for t in result.graph.initializer] == ["ratio"]


def test_a_constant_that_somebody_else_reads_stays() -> None:
    nodes = [node("Dropout", ["x", "ratio", "on"], ["d"]), node("Cast", ["on"], ["c"], to=1), node("Add", ["d", "c"], ["y"])]
    proto = model_of(nodes, [port("x", [8])], [port("y", [8])], ON)
    np.testing.assert_array_equal(expected(converted(proto), {"x": np.ones(8, np.float32)})[0], np.full(8, 2, np.float32))


def test_inside_functions_and_branches() -> None:
    """A function of the model with both operators and its own constant, called from a branch."""
    body = [node("BatchNormalization", ["x", "s", "b", "m", "v"], ["n", "nm", "nv"], training_mode=1),
            node("Constant", [], ["yes"], value=tensor("", np.bool_(True))), node("Constant", [], ["r"], value=tensor("", np.float32(0.9))),
            node("Dropout", ["n", "r", "yes"], ["y", "mask"])]
    function = helper.make_function("local", "Block", ["x", "s", "b", "m", "v"], ["y", "nm"], body, [helper.make_opsetid("", 17)])
    branches = [helper.make_graph([node("Block", ["x", *STATISTICS], [f"{side}y", f"{side}m"], domain="local"),
                                   node("Dropout", [f"{side}y", "ratio", "on"], [f"{side}z"])],
                                  side, [], [port(f"{side}z", [2, 3]), port(f"{side}m", [3])]) for side in ("then", "else")]
    proto = model_of([node("If", ["cond"], ["y", "m"], then_branch=branches[0], else_branch=branches[1])], [port("x", [2, 3])],
                     [port("y", [2, 3]), port("m", [3])], {**norm_weights(), **ON, "cond": np.bool_(True)}, domains=["local"])
    proto.functions.append(function)
    result = converted(proto)
    x = RNG.standard_normal((2, 3)).astype(np.float32)
    w = {n: wrap_model(proto).array(n) for n in STATISTICS}
    y, m = expected(result, {"x": x})
    np.testing.assert_allclose(y, (x - w["mean"]) / np.sqrt(w["variance"] + 1e-5) * w["scale"] + w["shift"], rtol=1e-5)
    np.testing.assert_array_equal(m, w["mean"])
    assert [n.op_type for n in result.functions[0].node] == ["BatchNormalization", "Identity", "Constant", "Dropout"]
    assert "on" not in [t.name for t in result.graph.initializer]


def test_a_file_for_inference_stays_as_it_is() -> None:
    proto = converted(training_file())
    assert converted(proto) == proto
