"""Small ONNX models for the importer's tests, and ways to run them."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from evaluate import evaluate
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tileflow.importers.onnx import Imported, import_graph, wrap_model

NEWEST = onnx.defs.onnx_opset_version()


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], name: str | None = None, *, domain: str | None = None,
         **attributes: Any) -> NodeProto:
    """A node, of ONNX's own domain by default."""
    return helper.make_node(op, inputs, outputs, name, domain=domain, **attributes)


def tensor(name: str, array: Any) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def port(name: str, shape: Sequence[int | str | None] | None, dtype: str = "float32") -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def model_of(nodes: Sequence[NodeProto], inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[str | onnx.ValueInfoProto],
             weights: Mapping[str, Any] | None = None, opset: int = 17, domains: Sequence[str] = (), **fields: Any) -> ModelProto:
    """A model; outputs named by text have no declared shape, and a type that nothing checks."""
    named = [port(o, None) if isinstance(o, str) else o for o in outputs]
    graph = helper.make_graph(list(nodes), "test", list(inputs), named, [tensor(n, a) for n, a in (weights or {}).items()])
    opsets = [helper.make_opsetid("", opset)] + [helper.make_opsetid(d, 1) for d in domains]
    return helper.make_model(graph, opset_imports=opsets, **{"producer_name": "tests", "ir_version": 8, **fields})


def mnist_cnn(opset: int = 17, batch: int | str = "N", flatten: bool = False, seed: int = 0) -> ModelProto:
    """The CNN of the tutorial: two 5x5 convolutions with pooling, two fully connected layers, log-probabilities of 10 classes."""
    rng = np.random.default_rng(seed)
    shapes = {"conv1.weight": (10, 1, 5, 5), "conv1.bias": (10,), "conv2.weight": (20, 10, 5, 5), "conv2.bias": (20,),
              "fc1.weight": (256, 320), "fc1.bias": (256,), "fc2.weight": (10, 256), "fc2.bias": (10,)}
    weights: dict[str, Any] = {n: (rng.standard_normal(s) * 0.1).astype(np.float32) for n, s in shapes.items()}
    if not flatten:
        weights["shape"] = np.array([batch if isinstance(batch, int) else -1, 320], np.int64)
    pool: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        node("Conv", ["image", "conv1.weight", "conv1.bias"], ["c1"], "conv1", kernel_shape=[5, 5]),
        node("MaxPool", ["c1"], ["p1"], "pool1", **pool), node("Relu", ["p1"], ["r1"], "relu1"),
        node("Conv", ["r1", "conv2.weight", "conv2.bias"], ["c2"], "conv2"),
        node("MaxPool", ["c2"], ["p2"], "pool2", **pool), node("Relu", ["p2"], ["r2"], "relu2"),
        node("Flatten", ["r2"], ["f"], "flat") if flatten else node("Reshape", ["r2", "shape"], ["f"], "flat"),
        node("Gemm", ["f", "fc1.weight", "fc1.bias"], ["h1"], "fc1", transB=1), node("Relu", ["h1"], ["h2"], "relu3"),
        node("Gemm", ["h2", "fc2.weight", "fc2.bias"], ["logits"], "fc2", transB=1),
        node("LogSoftmax", ["logits"], ["log_probabilities"], "log_softmax", axis=1),
    ]
    return model_of(nodes, [port("image", [batch, 1, 28, 28])], [port("log_probabilities", [batch, 10])], weights, opset)


def imported(proto: ModelProto, **options: Any) -> Imported:
    return import_graph(wrap_model(proto), **options)


def run(graph: Imported, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of an imported graph by the operators' references."""
    values = evaluate(graph.graph, {**graph.weights, **feeds})
    return [values[v.name] for v in graph.graph.outputs]


def expected(proto: ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs by ONNX's reference evaluator."""
    return [np.asarray(a) for a in ReferenceEvaluator(proto).run(None, dict(feeds))]


def compare(proto: ModelProto, feeds: Mapping[str, np.ndarray], rtol: float = 1e-5, atol: float = 1e-6, **options: Any) -> Imported:
    """Import, run, and compare with ONNX's reference evaluator; returns the import."""
    graph = imported(proto, **options)
    for got, wanted in zip(run(graph, feeds), expected(proto, feeds), strict=True):
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol)
    return graph
