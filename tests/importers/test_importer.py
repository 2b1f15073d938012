"""ONNX files into graphs: against ONNX's reference evaluator, for old and new opsets, and against damaged and hostile files."""
from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from evaluate import evaluate
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx_models import NEWEST, compare, expected, imported, mnist_cnn, model_of, node, port, run, tensor
from peers import needs

from tileflow.graph import TensorType
from tileflow.importers.onnx import export_model, import_graph, inspect_model, load_model, wrap_model
from tileflow.importers.onnx.bind import evaluate as evaluate_dim
from tileflow.importers.onnx.rebatch import rescaled
from tileflow.system.errors import (
    ModelError,
    OptionError,
    ShapeError,
    TileflowError,
    TypeMismatchError,
    UnsupportedError,
)

RNG = np.random.default_rng(7)


def f4(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def i8(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.int64)


def one_sentence(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text
    assert len(text) < 2000
    return text


# ---- whole models -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("opset", [7, 8, 9, 11, 12, 13, 15, 17, 18, 21, NEWEST])
def test_mnist_cnn(opset: int) -> None:
    result = compare(mnist_cnn(opset), {"image": f4(3, 1, 28, 28)}, batch=3)
    assert [s.name for s in result.graph.parameters] == [
        "conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    assert all(s.trainable and s.output is None for s in result.graph.states)
    assert [v.name for v in result.graph.outputs] == ["log_probabilities"]
    assert result.graph.nodes[0].origin.sources == ("conv1",)
    assert result.warnings == []


def test_mnist_cnn_like_onnxruntime() -> None:
    ort = needs("onnxruntime")
    x = f4(5, 1, 28, 28)
    for proto in (mnist_cnn(13), mnist_cnn(13, flatten=True)):
        wanted, = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"image": x})
        np.testing.assert_allclose(run(imported(proto, batch=5), {"image": x})[0], wanted, rtol=1e-5, atol=1e-5)


def test_float64_graph() -> None:
    result = imported(mnist_cnn(), batch=2, float_dtype="float64")
    assert {v.dtype for n in result.graph.nodes for v in n.outputs} == {"float64"}
    x = f4(2, 1, 28, 28)
    got, = run(result, {"image": x.astype(np.float64)})
    np.testing.assert_allclose(got, expected(mnist_cnn(), {"image": x})[0], rtol=1e-5, atol=1e-6)


def test_fixed_batch_is_overridden() -> None:
    x = f4(6, 1, 28, 28)
    result = imported(mnist_cnn(batch=1), batch=6)
    assert result.graph.inputs[0].shape == (6, 1, 28, 28)
    np.testing.assert_allclose(run(result, {"image": x})[0], expected(mnist_cnn(), {"image": x})[0], rtol=1e-5, atol=1e-6)
    assert len(result.warnings) == 2
    assert "declares batch 1" in result.warnings[0]
    assert "[1, 320]; with batch 6 it is taken as [6, 320]" in result.warnings[1]
    assert imported(mnist_cnn(batch=4), batch=4).warnings == []
    assert imported(mnist_cnn(batch=4), batch=2).graph.outputs[0].shape == (2, 10)


def test_override_leaves_weight_reshapes_alone() -> None:
    """A weight that is reshaped to a first dimension of 1 does not carry the batch."""
    proto = model_of([node("Reshape", ["w", "s"], ["r"]), node("Add", ["x", "r"], ["y"])], [port("x", [1, 4])], ["y"],
                     {"w": f4(2, 2), "s": i8(1, 4)})
    assert imported(proto, batch=3).graph.outputs[0].shape == (3, 4)


def test_override_scales_merged_dimensions() -> None:
    """[batch, 5, 4] -> [batch * 5, 4] -> [batch, 20]."""
    proto = model_of([node("Reshape", ["x", "merged"], ["m"]), node("Reshape", ["m", "apart"], ["y"])], [port("x", [2, 5, 4])], ["y"],
                     {"merged": i8(10, 4), "apart": i8(2, 20)})
    assert [n.outputs[0].shape for n in imported(proto, batch=6).graph.nodes] == [(30, 4), (6, 20)]


@pytest.mark.parametrize(("before", "after", "target", "wanted"), [
    ((1, 20, 4, 4), (6, 20, 4, 4), (1, 320), (6, 320)), ((1, 3), (4, 3), (1, 3, 1, 1), (4, 3, 1, 1)),
    ((1, 7, 16), (4, 7, 16), (7, 16), (28, 16)), ((7, 16), (28, 16), (1, 7, 16), (4, 7, 16)), ((7, 16), (28, 16), (7, 1, 16), None),
    ((7, 1, 16), (7, 4, 16), (7, 16), None), ((2, 7, 16), (5, 7, 16), (14, 16), (35, 16)),
    ((14, 16), (35, 16), (2, 7, 16), (5, 7, 16)), ((14, 16), (35, 16), (7, 2, 16), (7, 5, 16)),
    ((7, 2, 16), (7, 5, 16), (7, 8, 4), (7, 20, 4)), ((7, 8, 4), (7, 20, 4), (7, 2, 16), (7, 5, 16)),
    ((7, 2, 6), (7, 5, 6), (14, 6), (35, 6)), ((4, 16), (10, 16), (2, 2, 16), None), ((3, 2), (3, 5), (2, 3), None),
    ((2, 0), (5, 0), (0, 2), None), ((2, 3), (5, 3), (7,), None),
])
def test_rescaled_shapes(before: tuple[int, ...], after: tuple[int, ...], target: tuple[int, ...], wanted: tuple[int, ...] | None) -> None:
    """The declared batch is 1 where `before` starts with 1 or has 7 positions of 1 sample, else 2."""
    batch = 1 if 1 in before + target and 2 not in before + target else 2
    assert rescaled(before, after, target, batch) == wanted


def test_override_leaves_computed_shapes_alone() -> None:
    """A shape that follows the batch by itself is right already, whatever the declared batch is."""
    nodes = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"]), node("Concat", ["n", "rest"], ["t"], axis=0),
             node("Reshape", ["x", "t"], ["y"]), node("Expand", ["x", "wide"], ["z"])]
    proto = model_of(nodes, [port("x", [3, 3, 1])], ["y", "z"], {"zero": i8(0), "rest": i8(-1), "wide": i8(3, 3, 4)})
    result = imported(proto, batch=9)
    assert [v.shape for v in result.graph.outputs] == [(9, 3), (9, 3, 4)]
    assert len(result.warnings) == 2
    assert "Expand node" in result.warnings[1]


def test_symbolic_dimensions() -> None:
    proto = model_of([node("Add", ["x", "z"], ["y"])], [port("x", ["N", "seq"]), port("z", ["N", 1])], [port("y", ["N", "seq"])])
    result = imported(proto, dims={"seq": 5}, batch=2)
    assert [v.shape for v in result.graph.inputs] == [(2, 5), (2, 1)]
    assert imported(proto, dims={"seq": 5, "N": 3}).graph.outputs[0].shape == (3, 5)
    given = imported(proto, input_types={"x": TensorType("float32", (4, 7))})
    assert [v.shape for v in given.graph.inputs] == [(4, 7), (4, 1)]
    with pytest.raises(ModelError, match=r"'N' .*'seq' .*dims=\{\"N\": 128\}.*--dims N=128") as caught:
        imported(proto)
    one_sentence(caught.value)
    with pytest.raises(ModelError, match=r"the sizes of 'seq' \(x: float32\[N, seq\]\) are open"):
        imported(proto, batch=2)
    with pytest.raises(OptionError, match="'sequence', which is no open dimension"):
        imported(proto, dims={"sequence": 4}, batch=1)
    with pytest.raises(OptionError, match="positive integer"):
        imported(proto, dims={"seq": 0}, batch=1)
    with pytest.raises(OptionError, match="has no input 'q'"):
        imported(proto, input_types={"q": TensorType("float32", (1,))})
    with pytest.raises(ShapeError, match="'N' is 4"):
        imported(proto, input_types={"x": TensorType("float32", (4, 7)), "z": TensorType("float32", (3, 1))})
    with pytest.raises(ShapeError, match="2 dimensions"):
        imported(proto, input_types={"x": TensorType("float32", (4,))})
    with pytest.raises(TypeMismatchError, match="is float32, but the data is int64"):
        imported(proto, input_types={"x": TensorType("int64", (4, 7))})


def test_unnamed_and_computed_dimensions() -> None:
    proto = model_of([node("Concat", ["x", "z"], ["y"], axis=1)], [port("x", [None, "past"]), port("z", [None, "past + 2*seq"])], ["y"])
    result = imported(proto, batch=2, dims={"past": 3, "seq": 4})
    assert [v.shape for v in result.graph.inputs] == [(2, 3), (2, 11)]
    with pytest.raises(ModelError, match=re.escape("'x[0]'")):
        imported(proto, dims={"past": 3, "seq": 4})
    for text, value in (("a*b//2 - 1", 5), ("a", 3), ("(a+b)", 7), ("c", None), ("a.b", None), ("a(", None), ("a/0", None), ("-a", None)):
        assert evaluate_dim(text, {"a": 3, "b": 4}) == value


def test_first_batch_overrides_declared_batch() -> None:
    proto = mnist_cnn(batch=1)
    result = imported(proto, input_types={"image": TensorType("float32", (3, 1, 28, 28))})
    assert result.graph.outputs[0].shape == (3, 10)
    with pytest.raises(ShapeError, match="only the first dimension, the batch, may differ"):
        imported(proto, input_types={"image": TensorType("float32", (1, 1, 28, 14))})


def test_initializers_that_are_also_inputs() -> None:
    """IR version 3 lists initializers among the inputs."""
    proto = model_of([node("Mul", ["x", "w"], ["y"])], [port("x", [2]), port("w", [2])], ["y"], {"w": f4(2)}, opset=8, ir_version=3)
    assert [p.name for p in wrap_model(proto).inputs] == ["x"]
    compare(proto, {"x": f4(2)})


# ---- states -------------------------------------------------------------------------------------------------------------

def weighted() -> ModelProto:
    return model_of([node("Mul", ["x", "scale"], ["a"]), node("Add", ["a", "offset"], ["b"]), node("Clip", ["b", "low", "high"], ["c"]),
                     node("Identity", ["fc.bias"], ["alias"]), node("Gemm", ["c", "fc.weight", "alias"], ["y"])],
                    [port("x", [2, 3])], ["y"],
                    {"scale": np.float32(2), "offset": f4(3), "low": np.float32(-1), "high": np.float32(1), "unused": f4(9),
                     "fc.weight": f4(3, 4), "fc.bias": f4(4)})


def test_which_initializers_are_weights() -> None:
    result = compare(weighted(), {"x": f4(2, 3)})
    assert [(s.name, s.kind, s.trainable) for s in result.graph.states] == [
        ("offset", "parameter", True), ("fc.weight", "parameter", True), ("fc.bias", "parameter", True)]
    assert set(result.weights) == {"offset", "fc.weight", "fc.bias"}
    assert result.names["fc.bias"] == "fc.bias"
    assert [n.op.name for n in result.graph.nodes] == ["Mul", "Add", "Clip", "Gemm"]


def test_weights_in_constant_nodes_can_be_trained() -> None:
    proto = model_of([node("Constant", [], ["w"], value=tensor("", f4(3))), node("Mul", ["x", "w"], ["m"]), node("Add", ["m", "b"], ["y"])],
                     [port("x", [3])], ["y"], {"b": f4(3)})
    assert [s.name for s in imported(proto).graph.parameters] == ["b"]
    result = compare(proto, {"x": f4(3)}, trainable=["w"])
    assert [(s.name, s.trainable) for s in result.graph.parameters] == [("b", True), ("w", True)]


def test_freeze_and_trainable_patterns() -> None:
    def trained(**options: Any) -> list[str]:
        return [s.name for s in imported(weighted(), **options).graph.states if s.trainable]
    assert trained(freeze=["fc.*"]) == ["offset"]
    assert trained(freeze=["*"], trainable=["fc.weight"]) == ["fc.weight"]
    assert trained(trainable=["scale"]) == ["scale", "offset", "fc.weight", "fc.bias"]
    with pytest.raises(OptionError, match=r"'head\.\*' matches no weight; the weights are offset, fc.weight, fc.bias"):
        trained(freeze=["head.*"])


STATISTICS = {"gamma": f4(3), "beta": f4(3), "mean": f4(3), "var": np.abs(f4(3)) + 1}


def normalised(opset: int = 15) -> ModelProto:
    return model_of([node("BatchNormalization", ["x", "gamma", "beta", "mean", "var"], ["n"], "bn", momentum=0.8),
                     node("Dropout", ["n"], ["d"], "drop1"), node("Dropout", ["d"], ["y"], "drop2")], [port("x", ["N", 3, 4])], ["y"],
                    STATISTICS, opset=opset)


@pytest.mark.parametrize("opset", [7, 9, 12, 14, 15, NEWEST])
def test_inference_of_normalisation_and_dropout(opset: int) -> None:
    x = f4(2, 3, 4)
    result = imported(normalised(opset), batch=2)
    np.testing.assert_allclose(run(result, {"x": x})[0], expected(normalised(15), {"x": x})[0], rtol=1e-5, atol=1e-6)
    assert [(s.name, s.kind, s.trainable, s.output) for s in result.graph.states] == [
        ("gamma", "parameter", True, None), ("beta", "parameter", True, None),
        ("mean", "buffer", False, None), ("var", "buffer", False, None)]


def test_training_of_normalisation_and_dropout() -> None:
    result = imported(normalised(), batch=5, training=True)
    x = f4(5, 3, 4)
    values = evaluate(result.graph, {"x": x, **result.weights})
    wanted, running_mean, running_var = expected(
        model_of([node("BatchNormalization", ["x", "gamma", "beta", "mean", "var"], ["y", "m", "v"], momentum=0.8, training_mode=1)],
                 [port("x", [5, 3, 4])], ["y", "m", "v"], result.weights), {"x": x})
    np.testing.assert_allclose(values["n"], wanted, rtol=1e-5, atol=1e-6)
    for name, running in (("mean", running_mean), ("var", running_var)):
        state = result.graph.state(name)
        assert state.when == "micro"
        assert state.output is not None
        np.testing.assert_allclose(values[state.output.name], running, rtol=1e-5, atol=1e-6)
    drops = [n.op for n in result.graph.nodes if n.op.name == "Dropout"]
    assert [op.attributes()["stream"] for op in drops] == [0, 1]
    assert all(op.attributes()["training_mode"] for op in drops)


def test_training_mode_as_the_file_has_it() -> None:
    nodes = [node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "m2", "v2"], training_mode=1)]
    weights = {"s": f4(3), "b": f4(3), "m": f4(3), "v": np.abs(f4(3))}
    proto = model_of(nodes, [port("x", [4, 3])], ["y", "m2", "v2"], weights)
    compare(proto, {"x": f4(4, 3)}, training=None)
    assert [v.name for v in imported(proto, training=False).graph.outputs] == ["y", "m2", "v2"]
    dropped = model_of([node("Dropout", ["x", "ratio", "mode"], ["y"])], [port("x", [4])], ["y"],
                       {"ratio": np.float32(0.25), "mode": np.array(True)})
    assert imported(dropped, training=None).graph.nodes[0].op.attributes()["training_mode"]
    assert imported(dropped, training=False).graph.nodes[0].op.attributes()["ratio"] == 0.25


def test_batch_norm_statistics_through_identity() -> None:
    proto = normalised()
    proto.graph.node.insert(0, node("Identity", ["mean"], ["same mean"]))
    proto.graph.node[1].input[3] = "same mean"
    result = imported(proto, batch=2, training=True)
    assert result.graph.state("mean").kind == "buffer"
    assert result.graph.state("mean").output is not None


# ---- operators and their old forms --------------------------------------------------------------------------------------

X = f4(2, 3, 4)
FORMS: list[tuple[Any, ...]] = [
    ("Clip", [6, 7, 10], {"x": X}, {}, {"min": -0.5, "max": 0.5}),
    ("Clip", [11, 12, 13], {"x": X}, {"low": np.float32(-0.5), "high": np.float32(0.5)}, {}),
    ("Squeeze", [7, 11], {"x": f4(2, 1, 3, 1)}, {}, {"axes": [1, 3]}),
    ("Squeeze", [11, 13, NEWEST], {"x": f4(2, 1, 3, 1)}, {}, {}),
    ("Squeeze", [13, NEWEST], {"x": f4(2, 1, 3, 1)}, {"axes": i8(-1, 1)}, {}),
    ("Unsqueeze", [7, 11], {"x": X}, {}, {"axes": [0, 4]}),
    ("Unsqueeze", [13, NEWEST], {"x": X}, {"axes": i8(-1, 0)}, {}),
    ("ReduceSum", [7, 11], {"x": X}, {}, {"axes": [-1], "keepdims": 0}),
    ("ReduceSum", [13, NEWEST], {"x": X}, {"axes": i8(0, 2)}, {"keepdims": 1}),
    ("ReduceSum", [13], {"x": X}, {}, {"noop_with_empty_axes": 1}),
    ("ReduceMean", [7, 13, 17], {"x": X}, {}, {"axes": [1, 2]}),
    ("ReduceMean", [7, 18], {"x": X}, {}, {}),
    ("ReduceMean", [18, NEWEST], {"x": X}, {"axes": i8(1)}, {"keepdims": 0}),
    ("Softmax", [7, 11], {"x": X}, {}, {"axis": 2}),
    ("Softmax", [13, NEWEST], {"x": X}, {}, {"axis": 1}),
    ("LogSoftmax", [13, NEWEST], {"x": X}, {}, {}),
    ("Split", [7, 11], {"x": f4(5, 2)}, {}, {"split": [2, 3]}),
    ("Split", [13], {"x": f4(5, 2)}, {"split": i8(1, 4)}, {}),
    ("Split", [11, 13], {"x": f4(4, 2)}, {}, {"axis": -2}),
    ("Split", [18], {"x": f4(5, 2)}, {}, {"num_outputs": 2}),
    ("Slice", [7, 9], {"x": X}, {}, {"starts": [1, -3], "ends": [9, -1], "axes": [1, 2]}),
    ("Slice", [10, 13], {"x": X}, {"s": i8(3, 0), "e": i8(-99, 2), "a": i8(2, 0), "t": i8(-2, 1)}, {}),
    ("Pad", [7, 10], {"x": X}, {}, {"pads": [0, 1, 0, 0, 0, 2], "value": 1.5}),
    ("Pad", [11, 13, 18], {"x": X}, {"p": i8(0, 1, 0, 0, 0, 2), "v": np.float32(2)}, {}),
    ("Pad", [18, NEWEST], {"x": X}, {"p": i8(1, 2), "v": np.float32(2), "a": i8(-1)}, {}),
    ("Reshape", [7, 13, NEWEST], {"x": X}, {"s": i8(0, -1)}, {}),
    ("Reshape", [14], {"x": f4(2, 3)}, {"s": i8(3, 2)}, {"allowzero": 1}),
    ("Expand", [8, 13], {"x": f4(3, 1)}, {"s": i8(2, 1, 4)}, {}),
    ("Cast", [7, 9, 13, 19, NEWEST], {"x": X * 3}, {}, {"to": TensorProto.INT32}),
    ("Transpose", [7, NEWEST], {"x": X}, {}, {}),
    ("Flatten", [7, 9, NEWEST], {"x": X}, {}, {"axis": 2}),
    ("Concat", [7, NEWEST], {"x": X, "z": f4(2, 5, 4)}, {}, {"axis": 1}),
    ("Pow", [7], {"x": np.abs(X)}, {"p": np.float32(2.5)}, {}),
    ("Pow", [12, NEWEST], {"x": X}, {"p": np.int64(2)}, {}),
    ("Sum", [8, NEWEST], {"x": X, "u": X, "z": f4(4)}, {}, {}),
    ("Max", [8, NEWEST], {"x": X, "z": f4(4)}, {}, {}),
    ("Gemm", [7, 11, NEWEST], {"x": f4(4, 2)}, {"w": f4(3, 4), "c": f4(3)}, {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("Gemm", [11, NEWEST], {"x": f4(2, 4)}, {"w": f4(4, 3)}, {}),
    ("MatMul", [7, NEWEST], {"x": f4(5, 2, 4)}, {"w": f4(4, 3)}, {}),
    ("Conv", [7, 11, NEWEST], {"x": f4(1, 2, 7)}, {"w": f4(4, 1, 3), "b": f4(4)},
     {"group": 2, "strides": [2], "auto_pad": "SAME_UPPER"}),
    ("Conv", [11], {"x": f4(1, 2, 7, 6)}, {"w": f4(4, 2, 3, 2)}, {"dilations": [2, 1], "pads": [1, 0, 2, 1]}),
    ("MaxPool", [7, 8, 10, 12, NEWEST], {"x": f4(1, 2, 6, 5)}, {}, {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 1, 0, 1]}),
    ("AveragePool", [7, 10, 19, NEWEST], {"x": f4(1, 2, 6, 5)}, {},
     {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "count_include_pad": 1}),
    ("GlobalAveragePool", [7, NEWEST], {"x": f4(2, 3, 4, 5)}, {}, {}),
    ("LeakyRelu", [7, NEWEST], {"x": X}, {}, {"alpha": 0.2}),
    ("Neg", [7, NEWEST], {"x": X}, {}, {}),
    ("Div", [7, 14], {"x": X, "z": f4(3, 1)}, {}, {}),
]


@pytest.mark.parametrize(("op", "opset", "feeds", "weights", "attributes"),
                         [(op, o, *rest) for op, opsets, *rest in FORMS for o in opsets if o >= 7],
                         ids=[f"{op}-{o}-{i}" for i, (op, opsets, *_) in enumerate(FORMS) for o in opsets if o >= 7])
def test_operator_forms(op: str, opset: int, feeds: dict[str, np.ndarray], weights: dict[str, Any], attributes: dict[str, Any]) -> None:
    outputs = ["y1", "y2"] if op == "Split" else ["y"]
    proto = model_of([node(op, [*feeds, *weights], outputs, **attributes)], [port(n, a.shape, a.dtype.name) for n, a in feeds.items()],
                     outputs, weights, opset)
    compare(proto, feeds)


@pytest.mark.parametrize(("axis", "opset"), [(None, 7), (0, 11), (1, 12), (-2, 11), (2, 9)])
def test_softmax_was_flattened(axis: int | None, opset: int) -> None:
    """Until opset 13 all dimensions from `axis` (1 by default) on are one; ONNX's evaluator has only the later meaning."""
    kept = 1 if axis is None else axis % 3
    flat = X.reshape(int(np.prod(X.shape[:kept])), -1).astype(np.float64)
    wanted = (np.exp(flat) / np.exp(flat).sum(1, keepdims=True)).reshape(X.shape)
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    for op, oracle in (("Softmax", wanted), ("LogSoftmax", np.log(wanted))):
        proto = model_of([node(op, ["x"], ["y"], **attributes)], [port("x", X.shape)], ["y"], opset=opset)
        np.testing.assert_allclose(run(imported(proto), {"x": X})[0], oracle, rtol=1e-5)


def test_computed_clip_bounds() -> None:
    proto = model_of([node("Clip", ["x", "", "top"], ["y"])], [port("x", [4]), port("top", [])], ["y"])
    compare(proto, {"x": f4(4), "top": np.array(0.1, np.float32)})


def test_optional_inputs_and_unread_outputs() -> None:
    pool: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    proto = model_of([node("MaxPool", ["x"], ["y", "unread"], **pool)], [port("x", [1, 1, 4, 4])], ["y"])
    assert run(imported(proto), {"x": f4(1, 1, 4, 4)})[0].shape == (1, 1, 2, 2)


# ---- what is evaluated at import ----------------------------------------------------------------------------------------

def test_shape_arithmetic_vanishes() -> None:
    """x.view(x.size(0), -1) and x.flatten(2) as exporters write them."""
    nodes = [node("Shape", ["x"], ["s"]), node("Constant", [], ["zero"], value_int=0), node("Gather", ["s", "zero"], ["n"]),
             node("Constant", [], ["axes"], value_ints=[0]), node("Unsqueeze", ["n", "axes"], ["n1"]),
             node("Constant", [], ["rest"], value=tensor("", i8(-1))), node("Concat", ["n1", "rest"], ["target"], axis=0),
             node("Reshape", ["x", "target"], ["flat"]),
             node("Slice", ["s", "one", "three"], ["tail"]), node("ReduceProd", ["tail"], ["p"], keepdims=1),
             node("Cast", ["p"], ["pf"], to=TensorProto.FLOAT), node("Div", ["flat", "pf"], ["y"])]
    proto = model_of(nodes, [port("x", ["N", 3, 4])], ["y"], {"one": i8(1), "three": i8(3)})
    result = compare(proto, {"x": f4(2, 3, 4)}, batch=2)
    assert [n.op.name for n in result.graph.nodes] == ["Reshape", "Div"]


FOLDED = [
    ("Add", [i8(1, 2), i8(3)], {}), ("Sub", [i8(1, 2), i8(3)], {}), ("Mul", [i8(1, 2), i8(3)], {}), ("Div", [i8(-7, 7), i8(2)], {}),
    ("Mod", [i8(-7, 7), i8(3)], {}), ("Neg", [i8(3)], {}), ("Abs", [i8(-3)], {}), ("Min", [i8(3), i8(4)], {}), ("Max", [i8(3), i8(4)], {}),
    ("Equal", [i8(3, 4), i8(3)], {}), ("Greater", [i8(3, 4), i8(3)], {}), ("Less", [i8(3, 4), i8(4)], {}),
    ("Not", [np.array([True, False])], {}), ("And", [np.array([True, False]), np.array([True, True])], {}),
    ("Where", [np.array([True, False]), i8(1, 2), i8(3, 4)], {}), ("Gather", [i8(5, 6, 7), i8(-1)], {}),
    ("Concat", [i8(1), i8(2)], {"axis": 0}),
    ("Unsqueeze", [i8(1, 2), i8(0, 2)], {}), ("Squeeze", [i8([1]), i8(0)], {}), ("Slice", [i8(1, 2, 3), i8(2), i8(-9), i8(0), i8(-1)], {}),
    ("Cast", [i8(1, 2)], {"to": TensorProto.FLOAT}), ("ConstantOfShape", [i8(2, 2)], {"value": tensor("", i8(7))}),
    ("ConstantOfShape", [i8(2)], {}), ("Range", [np.int64(2), np.int64(11), np.int64(4)], {}), ("Reshape", [i8(1, 2, 3, 4), i8(2, -1)], {}),
    ("Transpose", [i8([1, 2], [3, 4])], {}), ("Expand", [i8(1), i8(3)], {}), ("Tile", [i8(1, 2), i8(2)], {}), ("NonZero", [i8(0, 3)], {}),
    ("ReduceProd", [i8(2, 3)], {"keepdims": 0}), ("ReduceSum", [i8([1, 2], [3, 4]), i8(1)], {}), ("Split", [i8(1, 2, 3), i8(1, 2)], {}),
    ("Size", [i8(1, 2)], {}), ("Shape", [i8([1, 2])], {"start": -1}),
    ("Floor", [np.array([1.5], np.float32)], {}), ("Sqrt", [np.array([4], np.float32)], {}),
    ("Flatten", [i8([1, 2])], {"axis": 0}), ("ScatterND", [i8(1, 2, 3), i8([1]), i8(9)], {}),
    ("GatherElements", [i8([1, 2, 3], [4, 5, 6]), i8([1, 0, -1], [2, 2, 0])], {"axis": 1}),
    ("GatherND", [i8([1, 2], [3, 4]), i8([0, 1], [-1, 0])], {}), ("GatherND", [i8([1, 2], [3, 4]), i8([1], [0])], {}),
    ("CumSum", [i8([1, 2, 3], [4, 5, 6]), np.array(1)], {}), ("CumSum", [i8([1, 2, 3]), np.array(-1)], {"exclusive": 1, "reverse": 1}),
    ("CastLike", [i8(1), np.array([0], np.float32)], {}),
]


@pytest.mark.parametrize(("op", "arrays", "attributes"), FOLDED, ids=[f"{op}-{i}" for i, (op, *_) in enumerate(FOLDED)])
def test_folding(op: str, arrays: list[np.ndarray], attributes: dict[str, Any]) -> None:
    """Known operands: the result is a constant of the graph."""
    outputs = ["y1", "y2"] if op == "Split" else ["y"]
    constants = [node("Constant", [], [f"c{i}"], value=tensor("", a)) for i, a in enumerate(arrays)]
    proto = model_of([*constants, node(op, [f"c{i}" for i in range(len(arrays))], outputs, **attributes)], [port("x", [1])], outputs)
    result = imported(proto)
    assert {n.op.name for n in result.graph.nodes} == {"Identity"}
    for got, wanted in zip(run(result, {"x": f4(1)}), expected(proto, {"x": f4(1)}), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


def test_gather_elements_of_a_part() -> None:
    """Indices may span less of the other axes than the data (ONNX's own evaluator does not know)."""
    proto = model_of([node("GatherElements", ["data", "index"], ["y"])], [port("x", [1])], ["y"],
                     {"data": i8([1, 2, 3], [4, 5, 6]), "index": i8([1, 0])})
    np.testing.assert_array_equal(run(imported(proto), {"x": f4(1)})[0], [[4, 2]])


@pytest.mark.parametrize("index", [i8([0, 1], [-1, 0], [1, -1]), i8([1], [0]), i8([[0, 1, 3], [1, 1, 0]], [[0, 0, 0], [1, 0, 1]])])
def test_gather_nd_of_known_places(index: np.ndarray) -> None:
    """A weight is read through plain rows, which have a gradient."""
    proto = model_of([node("GatherND", ["w", "index"], ["g"]), node("Mul", ["g", "x"], ["y"])], [port("x", [1])], ["y"],
                     {"w": f4(2, 2, 4), "index": index})
    assert compare(proto, {"x": f4(1)}).graph.parameters


def test_gather_nd_outside_of_its_data() -> None:
    proto = model_of([node("GatherND", ["x", "index"], ["y"])], [port("x", [2, 3])], ["y"], {"index": i8([0, 3])})
    with pytest.raises(ShapeError, match=r"indices outside of \[2, 3\]"):
        imported(proto)


@pytest.mark.parametrize("nodes", [
    [node("ConstantOfShape", ["huge"], ["y"])], [node("Expand", ["one", "huge"], ["y"])], [node("Tile", ["one", "huge"], ["y"])],
    [node("Range", ["zero", "end", "step"], ["y"])],
])
def test_folding_takes_no_endless_memory(nodes: list[onnx.NodeProto]) -> None:
    proto = model_of(nodes, [port("x", [1])], ["y"], {"huge": i8(10**12), "one": i8(1), "zero": np.int64(0), "end": np.int64(10**15),
                                                      "step": np.int64(1)})
    with pytest.raises(ModelError, match="may take 1024 MiB in all") as caught:
        imported(proto)
    one_sentence(caught.value)


@pytest.mark.parametrize(("nodes", "match"), [
    ([node("Div", ["one", "zero"], ["y"])], "integer division by zero"),
    ([node("Gather", ["one", "far"], ["y"])], "out of bounds"),
    ([node("ConstantOfShape", ["minus"], ["y"])], "cannot be negative"),
])
def test_folding_errors(nodes: list[onnx.NodeProto], match: str) -> None:
    proto = model_of(nodes, [port("x", [1])], ["y"], {"one": i8(1), "zero": i8(0), "far": i8(99), "minus": i8(-3)})
    with pytest.raises(ModelError, match=match) as caught:
        imported(proto)
    one_sentence(caught.value)


def test_known_branch_is_taken() -> None:
    two = tensor("two", np.float32(2))
    then = helper.make_graph([node("Mul", ["x", "two"], ["t"])], "then", [], [port("t", None)], [two])
    other = helper.make_graph([node("Neg", ["x"], ["e"])], "else", [], [port("e", None)])
    choice = node("If", ["flag"], ["y"], then_branch=then, else_branch=other)
    for flag in (True, False):
        compare(model_of([choice], [port("x", [3])], ["y"], {"flag": np.array(flag)}), {"x": f4(3)})
    proto = model_of([choice], [port("x", [3]), port("flag", [], "bool")], ["y"])
    node_, = imported(proto).graph.nodes
    assert node_.op.name == "If"                                          # not known: both become regions
    assert [v.name for v in node_.operands] == ["flag", "x"]


def test_branches_may_use_names_again() -> None:
    """A constant of one branch must not shadow a computed value of the next."""
    first = helper.make_graph([node("Constant", [], ["t"], value_float=1.0), node("Add", ["x", "t"], ["u"])], "first", [], [port("u", None)])
    second = helper.make_graph([node("Neg", ["a"], ["t"]), node("Add", ["a", "t"], ["v"])], "second", [], [port("v", None)])
    nodes = [node("If", ["yes"], ["a"], then_branch=first, else_branch=first), node("If", ["yes"], ["y"], then_branch=second, else_branch=second)]
    proto = model_of(nodes, [port("x", [3])], ["y"], {"yes": np.array(True)})
    np.testing.assert_array_equal(run(imported(proto), {"x": f4(3)})[0], np.zeros(3, np.float32))


def test_shapes_that_come_from_data() -> None:
    for op, dtype, rank in (("ConstantOfShape", "int64", 1), ("Range", "float32", 0)):
        names = ["a"] if rank else ["a", "b", "c"]
        proto = model_of([node(op, names, ["y"])], [port(n, [2] * rank, dtype) for n in names], ["y"])
        with pytest.raises(UnsupportedError, match="its output's shape is computed while the model runs") as caught:
            imported(proto)
        assert caught.value.names == set(names)                                # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError, match="Python runs it, between compiled programs"):
        imported(model_of([node("NonZero", ["x"], ["y"])], [port("x", [3])], ["y"]))


def test_weights_that_no_output_needs_are_left_out() -> None:
    proto = model_of([node("Mul", ["x", "w"], ["unread"]), node("Add", ["x", "b"], ["y"])], [port("x", [3])], ["y"], {"w": f4(3), "b": f4(3)})
    assert [s.name for s in imported(proto).graph.states] == ["b"]


def test_values_of_inputs_may_be_given() -> None:
    proto = model_of([node("Reshape", ["x", "s"], ["y"])], [port("x", [2, 3]), port("s", [2], "int64")], ["y"])
    with pytest.raises(UnsupportedError, match=r"Reshape\(y\).*operand shape \('s'\) is computed") as caught:
        imported(proto)
    assert caught.value.names == {"s"}                                         # type: ignore[attr-defined]
    result = imported(proto, values={"s": i8(3, 2)})
    assert [v.name for v in result.graph.inputs] == ["x"]
    assert result.graph.outputs[0].shape == (3, 2)


def test_model_functions_and_onnx_functions() -> None:
    body = helper.make_function("mine", "AddScaled", ["a", "b"], ["out"],
                                [node("Mul", ["a", "b"], ["t"]), node("LeakyRelu", ["t"], ["u"]), node("Add", ["a", "u"], ["out"])],
                                [helper.make_opsetid("", 17)], ["alpha"])
    slope = body.node[1].attribute.add()
    slope.name, slope.ref_attr_name, slope.type = "alpha", "alpha", onnx.AttributeProto.FLOAT
    proto = model_of([node("AddScaled", ["x", "w"], ["t"], domain="mine", alpha=0.3),
                      node("AddScaled", ["t", "w"], ["y"], domain="mine", alpha=0.1)],
                     [port("x", [2, 3])], ["y"], {"w": f4(3)}, domains=["mine"])
    proto.functions.append(body)
    result, x = imported(proto), f4(2, 3)
    wanted = x
    for alpha in (0.3, 0.1):
        scaled = wanted * result.weights["w"]
        wanted = wanted + np.where(scaled < 0, np.float32(alpha) * scaled, scaled)
    np.testing.assert_allclose(run(result, {"x": x})[0], wanted, rtol=1e-6)
    assert {n.origin.sources for n in result.graph.nodes} == {("AddScaled(t)",), ("AddScaled(y)",)}
    compare(model_of([node("MeanVarianceNormalization", ["x"], ["y"])], [port("x", [2, 3, 2, 2])], ["y"]), {"x": f4(2, 3, 2, 2)})


def test_endless_functions_are_refused() -> None:
    bodies = [helper.make_function("mine", f"F{i}", ["a"], ["b"], [node(f"F{i + 1}", ["a"], ["t"], domain="mine"),
                                                                  node(f"F{i + 1}", ["t"], ["b"], domain="mine")],
                                   [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]) for i in range(40)]
    bodies.append(helper.make_function("mine", "F40", ["a"], ["b"], [node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 17)]))
    proto = model_of([node("F0", ["x"], ["y"], domain="mine")], [port("x", [1])], ["y"], domains=["mine"])
    proto.functions.extend(bodies)
    with pytest.raises(ModelError, match="its functions unfold into 3,298,534,883,327 nodes, and the file holds 82; tileflow takes up to 28,200"):
        imported(proto)
    for body in proto.functions:
        del body.node[1:]
        body.output[0] = body.node[0].output[0]
    with pytest.raises(ModelError, match="nested more than 32 deep"):
        imported(proto)
    proto.functions[3].node[0].op_type = "F1"
    with pytest.raises(ModelError, match="its function 'F1' calls itself, directly or through others"):
        imported(proto)


# ---- outputs ------------------------------------------------------------------------------------------------------------

def test_outputs_keep_their_names() -> None:
    """Outputs that are inputs, weights, constants, or one value twice."""
    nodes = [node("Identity", ["x"], ["same"]), node("Neg", ["x"], ["n"]), node("Identity", ["n"], ["again"]),
             node("Constant", [], ["c"], value_float=2.0),
             node("Identity", ["w"], ["weight"]), node("Dropout", ["n"], ["dropped"])]
    proto = model_of(nodes, [port("x", [2])], ["same", "n", "again", "c", "weight", "dropped"], {"w": f4(2)})
    result = compare(proto, {"x": f4(2)})
    assert [v.name for v in result.graph.outputs] == ["same", "n", "again", "c", "weight", "dropped"]


def test_names_of_the_file_win_over_ours() -> None:
    proto = model_of([node("Softmax", ["x"], ["y"]), node("Neg", ["y"], ["y.reshape"]), node("Add", ["y", "y.reshape"], ["softmax"])],
                     [port("x", [2, 3, 4])], ["softmax", "y.reshape"], opset=11)
    assert [v.name for v in imported(proto).graph.outputs] == ["softmax", "y.reshape"]


# ---- unsupported --------------------------------------------------------------------------------------------------------

def test_everything_unsupported_is_named_at_once() -> None:
    nodes = [node("Tokenizer", ["x", "x"], ["a"], "fused", domain="com.microsoft"), node("Relu", ["a"], ["b"]),
             node("NonMaxSuppression", ["b", "b"], ["c"], "nms"), node("StringNormalizer", ["c"], ["d"]), node("Neg", ["x"], ["e"])]
    proto = model_of(nodes, [port("x", [2, 2])], ["d", "e"], domains=["com.microsoft"])
    with pytest.raises(UnsupportedError) as caught:
        imported(proto)
    text = one_sentence(caught.value)
    assert "has 3 nodes that tileflow cannot take" in text
    assert "com.microsoft::Tokenizer node 'fused'" in text
    assert "NonMaxSuppression node 'nms'" in text
    assert "StringNormalizer node 'StringNormalizer(d)'" in text
    many = model_of([node("NonMaxSuppression", ["x", "x"], [f"y{i}"]) for i in range(25)], [port("x", [2, 2])], ["y0"])
    with pytest.raises(UnsupportedError, match=r"has 25 nodes .*and 15 more"):
        imported(many)


def test_unsupported_attributes_outputs_and_types() -> None:
    spatial = model_of([node("BatchNormalization", ["x", "a", "a", "a", "a"], ["y"], spatial=0)], [port("x", [1, 2])], ["y"],
                       {"a": f4(2)}, 7)
    with pytest.raises(UnsupportedError, match=r"BatchNormalization.*spatial=0"):
        imported(spatial)
    norm = model_of([node("BatchNormalization", ["x", "a", "a", "a", "a"], ["y", "mean", "b", "c", "d"])], [port("x", [1, 2])],
                    ["y", "c"], {"a": f4(2)}, 9)
    with pytest.raises(UnsupportedError, match=r"reads output 3 of BatchNormalization node 'BatchNormalization\(y\)'"):
        imported(norm)
    text = model_of([node("Identity", ["x"], ["y"])], [helper.make_tensor_value_info("x", TensorProto.STRING, [1])], ["y"])
    with pytest.raises(UnsupportedError, match=r"'x: STRING\[1\]' has a type that tileflow does not have"):
        imported(text)


def test_shape_errors_name_the_node() -> None:
    proto = model_of([node("Add", ["x", "w"], ["y"], "plus")], [port("x", [2, 3])], ["y"], {"w": f4(4)})
    with pytest.raises(ShapeError, match="plus") as caught:
        imported(proto)
    one_sentence(caught.value)


def test_unused_domains_do_not_matter() -> None:
    proto = model_of([node("Neg", ["x"], ["y"])], [port("x", [2])], ["y"], domains=["com.microsoft", "ai.onnx.training"])
    compare(proto, {"x": f4(2)})


# ---- damaged and hostile files ------------------------------------------------------------------------------------------

def refused(path: Path, match: str) -> None:
    with pytest.raises(ModelError, match=match) as caught:
        load_model(path)
    assert str(path) in one_sentence(caught.value)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    refused(tmp_path / "missing.onnx", "does not exist: check the path")
    refused(tmp_path, "is a folder: give the .onnx file")
    empty = tmp_path / "empty.onnx"
    empty.touch()
    refused(empty, "is empty")
    for i, content in enumerate((b"\x00" * 100, b"PK\x03\x04 zip", b"\x08\x07", b"{}", os.urandom(300), b"\xff" * 50)):
        garbage = tmp_path / f"garbage{i}.onnx"
        garbage.write_bytes(content)
        refused(garbage, "is not an ONNX model|holds no graph|names no opset|opset|not valid ONNX")
    refused(Path("/dev/null"), "is not a regular file")


def test_truncated_files(tmp_path: Path) -> None:
    """Every cut of a small model is refused in one sentence or, where the rest is a model by itself, loads."""
    content = mnist_cnn().SerializeToString()
    path = tmp_path / "cut.onnx"
    for size in [*range(1, 200, 7), *range(200, len(content), len(content) // 60), len(content) - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(ModelError) as caught:
            load_model(path)
        one_sentence(caught.value)


def test_flipped_bytes(tmp_path: Path) -> None:
    """A damaged model is refused with one of our errors or still imports; nothing else happens."""
    content = bytearray(mnist_cnn().SerializeToString())
    rng = np.random.default_rng(0)
    head = len(content) - 400
    for _ in range(150):
        damaged = bytearray(content)
        for at in (*rng.integers(0, len(content), 2), rng.integers(head, len(content)), *rng.integers(0, 600, 2)):
            damaged[at] = int(rng.integers(256))
        path = tmp_path / "damaged.onnx"
        path.write_bytes(damaged)
        try:
            import_graph(load_model(path), batch=2)
        except TileflowError as error:
            one_sentence(error)


NUMBERS = (0, 1, -1, 2, 7, -2, 10**6, 2**31, 2**62, -2**63)


def mutate(proto: ModelProto, rng: np.random.Generator) -> None:
    """Change one thing that a parser accepts: an attribute, an operand, a weight, a shape, an opset."""
    def pick(items: Any) -> Any:
        return items[int(rng.integers(len(items)))]
    chosen, names = pick(proto.graph.node), [t.name for t in proto.graph.initializer] + [p.name for p in proto.graph.input] + [""]
    kind = int(rng.integers(8))
    if kind == 0 and chosen.attribute:
        attribute = pick(chosen.attribute)
        if attribute.type == onnx.AttributeProto.INT:
            attribute.i = pick(NUMBERS)
        elif attribute.ints:
            attribute.ints[int(rng.integers(len(attribute.ints)))] = pick(NUMBERS)
    elif kind == 1 and proto.graph.initializer:
        weight = pick(proto.graph.initializer)
        array = onnx.numpy_helper.to_array(weight)
        weight.CopyFrom(tensor(weight.name, pick((array.reshape(-1), array[None], array.astype(pick(("f8", "i8", "?"))), np.full(3, pick(NUMBERS))))))
    elif kind == 2 and chosen.input:
        chosen.input[int(rng.integers(len(chosen.input)))] = pick(names)
    elif kind == 3:
        chosen.input.append(pick(names))
    elif kind == 4 and chosen.input:
        del chosen.input[-1]
    elif kind == 5:
        chosen.op_type = pick(FORMS)[0]
    elif kind == 6:
        proto.opset_import[0].version = int(rng.integers(5, NEWEST + 1))
    elif proto.graph.input[0].type.tensor_type.shape.dim:
        pick(proto.graph.input[0].type.tensor_type.shape.dim).dim_value = pick(NUMBERS[:8])


def test_mutated_models() -> None:
    """Models that are wrong in meaning: every one is imported, or refused with one of our errors."""
    rng = np.random.default_rng(1)
    models = [mnist_cnn(7), mnist_cnn(13, batch=1), normalised(9), normalised(15), weighted()]
    models += [model_of([node(op, [*feeds, *weights], ["y1", "y2"] if op == "Split" else ["y"], **attributes)],
                        [port(n, a.shape, a.dtype.name) for n, a in feeds.items()], ["y1" if op == "Split" else "y"], weights, opsets[-1])
               for op, opsets, feeds, weights, attributes in FORMS]
    refusals = 0
    for _ in range(1500):
        proto = ModelProto()
        proto.CopyFrom(models[int(rng.integers(len(models)))])
        for _ in range(int(rng.integers(1, 3))):
            mutate(proto, rng)
        try:
            imported(proto, batch=(None, 2)[int(rng.integers(2))], training=bool(rng.integers(2)))
        except TileflowError as error:
            one_sentence(error)
            refusals += 1
    assert 500 < refusals < 1500


@pytest.mark.parametrize(("dims", "data", "match"), [
    ([10**12], b"\0" * 4, "declares float32.*4000000000000 bytes, but holds 4"),
    ([2**40, 2**40], b"", "but holds 0"),
    ([-4], b"", "cannot be negative"),
    ([3], b"\0" * 16, "12 bytes, but holds 16"),
])
def test_declared_sizes_are_not_trusted(dims: list[int], data: bytes, match: str, tmp_path: Path) -> None:
    proto = mnist_cnn()
    weight = proto.graph.initializer[0]
    del weight.dims[:]
    weight.dims.extend(dims)
    weight.raw_data = data
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    refused(path, match)


def test_huge_values_are_refused() -> None:
    proto = model_of([node("Add", ["x", "z"], ["y"])], [port("x", [2**20, 1]), port("z", [1, 2**22])], ["y"])
    with pytest.raises(ModelError, match="bytes; check the sizes"):
        imported(proto)


def test_cycles_and_missing_values() -> None:
    def check(nodes: list[onnx.NodeProto], match: str) -> None:
        with pytest.raises(ModelError, match=match) as caught:
            wrap_model(model_of(nodes, [port("x", [2])], ["y"]))
        one_sentence(caught.value)
    check([node("Add", ["x", "b"], ["a"], "one"), node("Neg", ["a"], ["b"], "two"), node("Neg", ["b"], ["y"])],
          r"Add node 'one' reads 'b' before Neg node 'two' makes it, in a cycle through 'b' <- 'a'")
    check([node("Neg", ["a"], ["y"]), node("Neg", ["x"], ["a"])], r"before Neg node 'Neg\(a\)' makes it; a model must list")
    check([node("Add", ["x", "ghost"], ["y"])], "reads 'ghost', which nothing in the model makes")
    check([node("Neg", ["x"], ["z"])], "nothing makes the output 'y'")
    check([node("Neg", ["x"], ["y"]), node("Relu", ["x"], ["y"])], "makes 'y', which exists already")


def test_versions() -> None:
    for opset, match in ((6, "uses opset 6.*version_converter"), (999, "uses opset 999.*install a newer onnx")):
        with pytest.raises(ModelError, match=match):
            wrap_model(mnist_cnn(opset))
    proto = mnist_cnn()
    proto.ir_version = 999
    with pytest.raises(ModelError, match="IR version 999"):
        wrap_model(proto)


def test_checker_messages_are_short() -> None:
    proto = mnist_cnn()
    proto.graph.node[0].attribute.append(helper.make_attribute("bogus", 1))
    with pytest.raises(ModelError, match=r"is not valid ONNX .*bogus") as caught:
        wrap_model(proto)
    assert len(one_sentence(caught.value)) < 500


# ---- external data ------------------------------------------------------------------------------------------------------

def external_model(folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(mnist_cnn(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_external_data(tmp_path: Path) -> None:
    result = import_graph(load_model(external_model(tmp_path)), batch=2)
    x = f4(2, 1, 28, 28)
    np.testing.assert_allclose(run(result, {"image": x})[0], expected(mnist_cnn(), {"image": x})[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("key", "value", "match"), [
    ("location", "/etc/passwd", "outside the model's folder"), ("location", "../weights.bin", "outside the model's folder"),
    ("location", "", "outside the model's folder"), ("location", "gone.bin", "which is not in"),
    ("location", "link.bin", "a link that leaves"),
    ("offset", "-1", "does not belong to this model"), ("offset", "99999999999", "is cut off"), ("length", "3", "does not belong"),
    ("length", "many", "does not belong"), ("length", "99999999999999", "does not belong"),
])
def test_hostile_external_data(key: str, value: str, match: str, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    path = external_model(folder)
    (tmp_path / "weights.bin").write_bytes(b"secret")
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    proto = ModelProto.FromString(path.read_bytes())
    entries = {e.key: e for e in proto.graph.initializer[0].external_data}
    entry = entries.get(key) or proto.graph.initializer[0].external_data.add(key=key)
    entry.value = value
    path.write_bytes(proto.SerializeToString())
    refused(path, match)


def downloaded(tmp_path: Path, folder: str = "onnx") -> Path:
    """A model as caches of downloads hold it: links in folders of their own to files that are called by their content."""
    blobs, links = tmp_path / "blobs", tmp_path / "snapshots/1" / folder
    blobs.mkdir()
    links.mkdir(parents=True)
    model = external_model(tmp_path)
    for path, name in ((model, "a1"), (tmp_path / "weights.bin", "b2")):
        (links / path.name).symlink_to(os.path.relpath(path.rename(blobs / name), links))
    return links / model.name


def test_external_data_beside_a_link(tmp_path: Path) -> None:
    x = f4(2, 1, 28, 28)
    path = downloaded(tmp_path)
    wanted = expected(mnist_cnn(), {"image": x})[0]
    np.testing.assert_allclose(run(import_graph(load_model(path), batch=2), {"image": x})[0], wanted, rtol=1e-5, atol=1e-6)
    export_model(load_model(path), {}, tmp_path / "out.onnx")
    np.testing.assert_allclose(run(import_graph(load_model(tmp_path / "out.onnx"), batch=2), {"image": x})[0], wanted, rtol=1e-5, atol=1e-6)


def test_external_data_beside_the_file_that_a_link_shows(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "mine").mkdir()
    link = tmp_path / "mine/link.onnx"
    link.symlink_to(external_model(tmp_path / "models"))
    x = f4(2, 1, 28, 28)
    np.testing.assert_allclose(run(import_graph(load_model(link), batch=2), {"image": x})[0], expected(mnist_cnn(), {"image": x})[0],
                               rtol=1e-5, atol=1e-6)


def test_links_to_other_folders_than_the_models_are_refused(tmp_path: Path) -> None:
    path = downloaded(tmp_path)
    secret = tmp_path / "elsewhere"
    secret.mkdir()
    (path.parent / "weights.bin").unlink()
    (path.parent / "weights.bin").symlink_to((tmp_path / "blobs/b2").rename(secret / "b2"))
    refused(path, "a link that leaves the model's folder")


def test_cut_external_data(tmp_path: Path) -> None:
    path = external_model(tmp_path)
    data = tmp_path / "weights.bin"
    data.write_bytes(data.read_bytes()[:-10])
    refused(path, "is cut off")


def test_external_data_without_a_file() -> None:
    proto = mnist_cnn()
    onnx.external_data_helper.set_external_data(proto.graph.initializer[0], "weights.bin")
    proto.graph.initializer[0].ClearField("raw_data")
    with pytest.raises(ModelError, match="did not come from a file"):
        wrap_model(proto)


# ---- inspection ---------------------------------------------------------------------------------------------------------

def test_inspect_counts_weights_in_constant_nodes() -> None:
    """Paddle's exporter keeps them there: "0 parameters" was said of such files. Single numbers are no weights."""
    proto = mnist_cnn()
    wanted = inspect_model(wrap_model(proto)).parameters
    held = [t for t in proto.graph.initializer if t.data_type == TensorProto.FLOAT]
    for t in held:
        proto.graph.initializer.remove(t)
        proto.graph.node.insert(0, helper.make_node("Constant", [], [t.name], value=t))
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["epsilon"], value=numpy_helper.from_array(np.float32(1e-5))))
    assert inspect_model(wrap_model(proto)).parameters == wanted > 0


def test_inspect(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(mnist_cnn(), path)
    report = inspect_model(load_model(path))
    text = report.text()
    assert report.parameters == sum(a.size for a in imported(mnist_cnn(), batch=1).weights.values())
    assert report.operators["Relu"] == 3
    assert report.graph is not None
    for words in (str(path), "opset       ai.onnx 17", "input       image: float32[N, 1, 28, 28]", "Every operator is supported"):
        assert words in text
    assert "%log_probabilities" in report.text(verbose=True)


def test_inspect_names_what_is_missing() -> None:
    nodes = [node("NonMaxSuppression", ["x", "x"], ["a"], "nms"), node("Neg", ["a"], ["b"]),
             node("Strange", ["b"], ["y"], "odd", domain="other")]
    proto = model_of(nodes, [port("x", ["N", "seq"])], ["y"], domains=["other"])
    report = inspect_model(wrap_model(proto))
    assert [name for name, _ in report.unsupported] == ["other::Strange node 'odd'"]
    assert any("'seq'" in note for note in report.notes)
    assert "Unsupported (1)" in report.text()
    known = inspect_model(wrap_model(proto), dims={"seq": 3})
    assert known.unsupported == report.unsupported
    assert any("in pieces" in note and "'nms'" in note for note in known.notes)
    trained = inspect_model(wrap_model(proto), dims={"seq": 3}, training=True)
    assert [name for name, _ in trained.unsupported] == ["NonMaxSuppression node 'nms'", "other::Strange node 'odd'"]


@pytest.mark.parametrize(("kernel", "strides"), [((9, 9), (9, 9)), ((4, 5), (2, 1))])
def test_one_window_over_everything(kernel: tuple[int, int], strides: tuple[int, int]) -> None:
    """ceil_mode lets a window reach past the end, as transformers' EfficientNet pools: it is the mean of what is there."""
    proto = model_of([node("AveragePool", ["x"], ["y"], ceil_mode=1, count_include_pad=1, kernel_shape=kernel, strides=strides)],
                     [port("x", [2, 3, 4, 5])], ["y"], opset=20)
    x = f4(2, 3, 4, 5)
    np.testing.assert_allclose(run(imported(proto), {"x": x})[0], x.mean((2, 3), keepdims=True), rtol=1e-5, atol=1e-7)
    torch = needs("torch")
    np.testing.assert_allclose(torch.nn.functional.avg_pool2d(torch.from_numpy(x), kernel, strides, ceil_mode=True).numpy(),
                               x.mean((2, 3), keepdims=True), rtol=1e-5, atol=1e-7)
