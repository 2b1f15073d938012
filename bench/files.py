"""ONNX files of ResNet-18 and BERT-mini as exporters write them, with random weights: for inference against ONNX Runtime, for `tileflow train`."""
from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from .networks import BERT_SIZES, VOCABULARY, ResNet

OPSET, IR_VERSION = 17, 8


class _File:
    """Nodes and initializers in the making."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.rng = np.random.default_rng(seed)

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """A node's output, named after the node."""
        name = f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name, **attributes))
        return name

    def array(self, name: str, values: Any) -> str:
        """An initializer."""
        self.initializers.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def normal(self, name: str, *shape: int, std: float) -> str:
        """An initializer of normal numbers."""
        return self.array(name, (std * self.rng.standard_normal(shape)).astype(np.float32))

    def linear(self, x: str, name: str, inputs: int, outputs: int) -> str:
        """x @ W + b over the last axis."""
        product = self.add("MatMul", x, self.normal(f"{name}.weight", inputs, outputs, std=1 / math.sqrt(inputs)))
        return self.add("Add", product, self.normal(f"{name}.bias", outputs, std=0.02))

    def norm(self, x: str, name: str, size: int) -> str:
        """Layer normalisation over the last axis."""
        scale = self.array(f"{name}.weight", (1 + 0.1 * self.rng.standard_normal(size)).astype(np.float32))
        return self.add("LayerNormalization", x, scale, self.normal(f"{name}.bias", size, std=0.02), axis=-1, epsilon=1e-5)

    def model(self, name: str, inputs: list[Any], output: str, shape: list[Any]) -> ModelProto:
        """The file, with one output."""
        self.nodes.append(helper.make_node("Identity", [output], ["scores"], "scores"))
        graph = helper.make_graph(self.nodes, name, inputs, [helper.make_tensor_value_info("scores", TensorProto.FLOAT, shape)], self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="tileflow bench")


def resnet18(classes: int = 1000, image: int = 224) -> ModelProto:
    """Input image [batch, 3, image, image]; output scores [batch, classes]."""
    f = _File(18)

    def block(x: str, name: str, inputs: int, outputs: int, kernel: int, stride: int = 1) -> str:
        weight = f.normal(f"{name}.conv.weight", outputs, inputs, kernel, kernel, std=math.sqrt(2 / (inputs * kernel * kernel)))
        y = f.add("Conv", x, weight, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4)
        statistics = {"weight": 1 + 0.1 * f.rng.standard_normal(outputs), "bias": 0.1 * f.rng.standard_normal(outputs),
                      "running_mean": 0.1 * f.rng.standard_normal(outputs), "running_var": 0.5 + f.rng.random(outputs)}
        return f.add("BatchNormalization", y, *(f.array(f"{name}.norm.{k}", a.astype(np.float32)) for k, a in statistics.items()), epsilon=1e-5)
    x = f.add("Relu", block("image", "stem", 3, 64, 7, 2))
    x, width = f.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 64
    for stage, count in enumerate(ResNet.BLOCKS[18][1]):
        for i in range(count):
            outputs, stride, name = 64 * 2 ** stage, 2 if stage and not i else 1, f"blocks.{stage}.{i}"
            y = f.add("Relu", block(x, f"{name}.0", width, outputs, 3, stride))
            y = block(y, f"{name}.1", outputs, outputs, 3)
            x = f.add("Relu", f.add("Add", y, x if stride == 1 and width == outputs else block(x, f"{name}.shortcut", width, outputs, 1, stride)))
            width = outputs
    x = f.add("Flatten", f.add("GlobalAveragePool", x))
    scores = f.add("Gemm", x, f.normal("head.weight", classes, width, std=1 / math.sqrt(width)), f.normal("head.bias", classes, std=0.02), transB=1)
    return f.model("resnet18", [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, image, image])], scores, ["batch", classes])


def bert_mini(sequence: int = 128, classes: int = 2) -> ModelProto:
    """Input tokens [batch, sequence]; output scores [batch, classes] from the first token, attention and GELU spelled out."""
    f = _File(4)
    layers, hidden, heads = BERT_SIZES["mini"]
    size = hidden // heads
    x = f.add("Gather", f.normal("tokens.weight", VOCABULARY, hidden, std=0.02), "tokens")
    x = f.norm(f.add("Add", x, f.normal("positions.weight", sequence, hidden, std=0.02)), "norm", hidden)
    split, joined = f.array("split", np.array([0, sequence, heads, size])), f.array("joined", np.array([0, sequence, hidden]))
    root, half, one, two = (f.array(name, np.float32(v)) for name, v in
                            (("size.root", math.sqrt(size)), ("half", 0.5), ("one", 1.0), ("two.root", math.sqrt(2))))
    for i in range(layers):
        q, k, v = (f.add("Transpose", f.add("Reshape", f.linear(x, f"layers.{i}.{name}", hidden, hidden), split), perm=perm)
                   for name, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])))
        seen = f.add("MatMul", f.add("Softmax", f.add("Div", f.add("MatMul", q, k), root), axis=-1), v)
        y = f.add("Reshape", f.add("Transpose", seen, perm=[0, 2, 1, 3]), joined)
        x = f.norm(f.add("Add", x, f.linear(y, f"layers.{i}.out", hidden, hidden)), f"layers.{i}.norm1", hidden)
        y = f.linear(x, f"layers.{i}.wide", hidden, 4 * hidden)
        y = f.add("Mul", f.add("Mul", y, f.add("Add", f.add("Erf", f.add("Div", y, two)), one)), half)
        x = f.norm(f.add("Add", x, f.linear(y, f"layers.{i}.narrow", 4 * hidden, hidden)), f"layers.{i}.norm2", hidden)
    first = f.add("Gather", x, f.array("first", np.int64(0)), axis=1)
    scores = f.linear(f.add("Tanh", f.linear(first, "pooler", hidden, hidden)), "head", hidden, classes)
    return f.model("bert_mini", [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", sequence])], scores, ["batch", classes])


def quantised(layers: int, size: int = 64, rows: int = 8) -> ModelProto:
    """A chain of products of 8-bit integers, each between QuantizeLinear and DequantizeLinear with scales of its
    own."""
    file = _File(seed=0)

    def scaled(what: str, x: str, scale: float, *operators: str) -> str:
        at = file.array(f"{what}.scale", np.float32(scale)), file.array(f"{what}.zero", np.int8(0))
        for operator in operators:
            x = file.add(operator, x, *at)
        return x
    x = "x"
    for i in range(layers):
        weight = file.array(f"weight{i}", file.rng.integers(-9, 9, (size, size)).astype(np.int8))
        data = scaled(f"data{i}", x, 0.01 * (1 + i), "QuantizeLinear", "DequantizeLinear")
        product = file.add("MatMul", data, scaled(f"weight{i}", weight, 1 + 0.01 * (1 + i), "DequantizeLinear"))
        x = file.add("Relu", product)
    return file.model("quantised", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, size])], x,
                      [rows, size])


def quantised_images(size: tuple[int, int] = (24, 40)) -> ModelProto:
    """Convolutions of bytes, plain, by channels and of single pixels, a sum, means and a last product, as ONNX Runtime
    writes them: each tensor between QuantizeLinear and DequantizeLinear, weights with a scale for each filter."""
    file = _File(seed=0)

    def data(x: str) -> str:
        name = f"data{len(file.nodes)}"
        at = file.array(f"{name}.scale", np.float32(0.02)), file.array(f"{name}.zero", np.int8(-3))
        return file.add("DequantizeLinear", file.add("QuantizeLinear", x, *at), *at)

    def weights(*shape: int) -> tuple[str, str]:
        """Bytes, and a bias of 32 bits, as numbers."""
        name = f"weights{len(file.nodes)}"
        scale = file.array(f"{name}.scale", np.full(shape[0], 0.01, np.float32))
        zero = file.array(f"{name}.zero", np.zeros(shape[0], np.int8))
        values = file.array(name, file.rng.integers(-99, 99, shape).astype(np.int8))
        bias = [file.array(f"{name}.bias", file.rng.integers(-99, 99, shape[0]).astype(np.int32)),
                file.array(f"{name}.bias.scale", np.full(shape[0], 2e-4, np.float32)),
                file.array(f"{name}.bias.zero", np.zeros(shape[0], np.int32))]
        return (file.add("DequantizeLinear", values, scale, zero, axis=0),
                file.add("DequantizeLinear", *bias, axis=0))

    def convolved(x: str, outputs: int, inputs: int, k: int, stride: int, groups: int = 1) -> str:
        return file.add("Conv", x, *weights(outputs, inputs // groups, k, k), kernel_shape=[k, k], group=groups,
                        pads=[k // 2] * 4, strides=[stride, stride])
    x = data(file.add("Relu", convolved(data("x"), 16, 3, 3, 2)))
    for a, b, k, stride in ((16, 24, 3, 1), (24, 24, 5, 2), (24, 64, 3, 1)):
        deep = data(file.add("Relu", convolved(x, a, a, k, stride, groups=a)))
        made = data(file.add("Relu", convolved(deep, b, a, 1, 1)))
        x = data(file.add("Add", made, deep)) if a == b else made
    x = data(file.add("Relu", convolved(x, 64, 64, 3, 1)))
    means = data(file.add("ReduceMean", x, axes=[2, 3], keepdims=0))
    scores = data(file.add("Gemm", means, *weights(10, 64), transB=1))
    images = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, *size])
    return file.model("quantised images", [images], scores, [1, 10])


def in_float64(model: ModelProto) -> ModelProto:
    """The same model with float64 weights, inputs and outputs."""
    wide = ModelProto()
    wide.CopyFrom(model)
    for i, tensor in enumerate(wide.graph.initializer):
        if tensor.data_type == TensorProto.FLOAT:
            wide.graph.initializer[i].CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for value in [*wide.graph.input, *wide.graph.output]:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    return wide
