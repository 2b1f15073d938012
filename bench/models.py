"""The tutorial's network with PyTorch's initial weights, as an ONNX file and in layers."""
from __future__ import annotations

import math

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tileflow import nn

SHAPES = {"conv1.weight": (10, 1, 5, 5), "conv1.bias": (10,), "conv2.weight": (20, 10, 5, 5), "conv2.bias": (20,),
          "fc1.weight": (256, 320), "fc1.bias": (256,), "fc2.weight": (10, 256), "fc2.bias": (10,)}


def initial_weights(seed: int) -> dict[str, np.ndarray]:
    """float32 weights and biases, uniform within 1/sqrt(fan_in) as PyTorch's layers draw them."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    weights = {}
    for name, shape in SHAPES.items():
        fan_in = math.prod(SHAPES[name.replace("bias", "weight")][1:])
        weights[name] = rng.uniform(-1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in), shape).astype(np.float32)
    return weights


def tutorial_cnn(weights: dict[str, np.ndarray]) -> ModelProto:
    """conv 5x5 x10 - pool - relu - conv 5x5 x20 - pool - relu - 320 -> 256 - relu - 256 -> 10; input image [batch, 1, 28, 28]."""
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [helper.make_node("Conv", ["image", "conv1.weight", "conv1.bias"], ["c1"], "conv1", kernel_shape=[5, 5]),
             helper.make_node("MaxPool", ["c1"], ["p1"], "pool1", **pool), helper.make_node("Relu", ["p1"], ["r1"], "relu1"),
             helper.make_node("Conv", ["r1", "conv2.weight", "conv2.bias"], ["c2"], "conv2", kernel_shape=[5, 5]),
             helper.make_node("MaxPool", ["c2"], ["p2"], "pool2", **pool), helper.make_node("Relu", ["p2"], ["r2"], "relu2"),
             helper.make_node("Flatten", ["r2"], ["f"], "flatten"),
             helper.make_node("Gemm", ["f", "fc1.weight", "fc1.bias"], ["h1"], "fc1", transB=1), helper.make_node("Relu", ["h1"], ["h2"], "relu3"),
             helper.make_node("Gemm", ["h2", "fc2.weight", "fc2.bias"], ["logits"], "fc2", transB=1)]
    graph = helper.make_graph(nodes, "tutorial_cnn", [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 28, 28])],
                              [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
                              [numpy_helper.from_array(a, n) for n, a in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="tileflow bench")


class TutorialNet(nn.Module):
    """The same network in layers, its parameters under the names of `SHAPES`; image [batch, 28, 28] or [batch, 1, 28, 28]."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.fc1, self.fc2 = nn.Linear(320, 256), nn.Linear(256, 10)
        self.pool = nn.MaxPool2d(2)
        self.load_state_dict(weights)

    def forward(self, image: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        x = self.pool(self.conv1(image.reshape(-1, 1, 28, 28))).relu()
        x = self.pool(self.conv2(x)).relu()
        return self.fc2(self.fc1(x.flatten()).relu())
