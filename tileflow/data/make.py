"""Makes the files of this folder: `python tileflow/data/make.py` (needs scikit-learn for the digits).

digits.npz      x_train [1438, 8, 8] and x_test [359, 8, 8] uint8 0..16, y_train and y_test int64, in a fixed random order
digits_cnn.onnx an untrained convolutional network for them: input "image" float32 [batch, 1, 8, 8], output "logits" [batch, 10]
"""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
TRAIN_ROWS = 1438


def make_digits(path: Path) -> None:
    """Write the UCI digits as scikit-learn has them, in a fixed order, four fifths of them for training."""
    from sklearn.datasets import load_digits

    from tileflow.runtime.data.dataset import permutation
    x, y = load_digits(return_X_y=True)
    order = permutation(len(x), seed=0, epoch=0)
    images = x[order].reshape(-1, 8, 8).astype(np.uint8)
    labels = y[order].astype(np.int64)
    np.savez_compressed(path, x_train=images[:TRAIN_ROWS], y_train=labels[:TRAIN_ROWS],
                        x_test=images[TRAIN_ROWS:], y_test=labels[TRAIN_ROWS:])


def make_digits_cnn(seed: int = 0) -> onnx.ModelProto:
    """Two convolutions with pooling and two fully connected layers, He-initialised (normal, variance 2 / fan-in)."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    weights = []
    nodes = []

    def layer(op: str, x: str, name: str, shape: tuple[int, ...], out: str, **attributes: Any) -> None:
        fan_in = int(np.prod(shape[1:]))
        weights.append(numpy_helper.from_array(
            (rng.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32), f"{name}.weight"))
        weights.append(numpy_helper.from_array(np.zeros(shape[0], np.float32), f"{name}.bias"))
        nodes.append(helper.make_node(op, [x, f"{name}.weight", f"{name}.bias"], [out], name, **attributes))

    def plain(op: str, x: str, out: str, **attributes: Any) -> None:
        nodes.append(helper.make_node(op, [x], [out], out, **attributes))

    layer("Conv", "image", "conv1", (16, 1, 3, 3), "c1", pads=[1, 1, 1, 1], kernel_shape=[3, 3])
    plain("Relu", "c1", "r1")
    plain("MaxPool", "r1", "p1", kernel_shape=[2, 2], strides=[2, 2])
    layer("Conv", "p1", "conv2", (32, 16, 3, 3), "c2", pads=[1, 1, 1, 1], kernel_shape=[3, 3])
    plain("Relu", "c2", "r2")
    plain("MaxPool", "r2", "p2", kernel_shape=[2, 2], strides=[2, 2])
    plain("Flatten", "p2", "flat", axis=1)
    layer("Gemm", "flat", "fc1", (64, 128), "f1", transB=1)
    plain("Relu", "f1", "r3")
    layer("Gemm", "r3", "fc2", (10, 64), "logits", transB=1)
    graph = helper.make_graph(
        nodes, "digits_cnn",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="tileflow")
    onnx.checker.check_model(model, full_check=True)
    return model


if __name__ == "__main__":
    make_digits(HERE / "digits.npz")
    onnx.save(make_digits_cnn(), HERE / "digits_cnn.onnx")
