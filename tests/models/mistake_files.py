"""Files for the table of mistakes, by name: a command that names one finds it made."""
from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx_models import model_of, node, port


def linear(path: Path) -> None:
    """x [N, 4] -> y [N, 3]: one Gemm with a weight."""
    weight = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    onnx.save(model_of([node("Gemm", ["x", "w", "b"], ["y"], "fc")], [port("x", ["N", 4])], [port("y", ["N", 3])],
                       {"w": weight, "b": np.zeros(3, np.float32)}), path)


def bytes_in(path: Path) -> None:
    """x [N, 4], bytes -> the same as numbers."""
    onnx.save(model_of([node("Cast", ["x"], ["y"], "cast", to=1)], [port("x", ["N", 4], "uint8")], [port("y", ["N", 4])], {}), path)


def winners(path: Path) -> None:
    """The class of the largest score comes first, as whole numbers."""
    weight = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    onnx.save(model_of([node("MatMul", ["x", "w"], ["y"], "fc"), node("ArgMax", ["y"], ["best"], "best", axis=1, keepdims=0)],
                       [port("x", ["N", 4])], [port("best", ["N"], "int64"), port("y", ["N", 3])], {"w": weight}), path)


def flowers(path: Path) -> None:
    """64 rows of 4 numbers, classes 0..2."""
    rng = np.random.default_rng(1)
    np.savez(path, x=rng.standard_normal((64, 4)).astype(np.float32), y=rng.integers(0, 3, 64))


def open_sized(path: Path) -> None:
    """x [N, T, 4] -> the mean over T -> y [N, 3], T open."""
    onnx.save(model_of([node("ReduceMean", ["x"], ["m"], "mean", axes=[1], keepdims=0), node("MatMul", ["m", "w"], ["y"], "fc")],
                       [port("x", ["N", "T", 4])], [port("y", ["N", 3])], {"w": np.ones((4, 3), np.float32)}), path)


def sequences(path: Path) -> None:
    """32 rows of 7 steps of 4 numbers, classes 0..2."""
    np.savez(path, x=np.random.default_rng(2).standard_normal((32, 7, 4)).astype(np.float32), y=np.arange(32) % 3)


def unscoped(path: Path) -> None:
    """x [2, 4] -> y [2, 4]: one matrix read by two products whose names tell nothing."""
    onnx.save(model_of([node("MatMul", ["x", "w"], ["h"], "MatMul_1"), node("MatMul", ["h", "w"], ["y"], "MatMul_2")],
                       [port("x", [2, 4])], [port("y", [2, 4])], {"w": np.eye(4, dtype=np.float32)}), path)


def no_such_operator(path: Path) -> None:
    """A product, and an operator that nobody has."""
    onnx.save(model_of([node("MatMul", ["x", "w"], ["h"], "fc"), node("Tokenize", ["h"], ["y"], "words", domain="com.example")],
                       [port("x", [2, 4])], [port("y", [2, 4])], {"w": np.ones((4, 4), np.float32)}, domains=["com.example"]), path)


def outer(path: Path) -> None:
    """x [N, 1] -> every row times every row, [N, N]: 170 bytes that need as much memory as one likes."""
    onnx.save(model_of([node("Transpose", ["x"], ["t"], "turn"), node("MatMul", ["x", "t"], ["y"], "product")],
                       [port("x", ["N", 1])], [port("y", ["N", "N"])], {}), path)


def parts(path: Path) -> None:
    """64 rows to train with and 32 to measure with, as flowers."""
    rng = np.random.default_rng(3)
    np.savez(path, x_train=rng.standard_normal((64, 4)).astype(np.float32), y_train=np.arange(64) % 3,
             x_test=rng.standard_normal((32, 4)).astype(np.float32), y_test=np.arange(32) % 3)


def far_flowers(path: Path) -> None:
    """The same in other units."""
    rng = np.random.default_rng(1)
    np.savez(path, x=100 * rng.standard_normal((64, 4)).astype(np.float32), y=rng.integers(0, 3, 64))


def fifo(path: Path) -> None:
    os.mkfifo(path)


def column(path: Path) -> None:
    """x [N, 4] -> y [N, 1]."""
    weight = np.random.default_rng(0).standard_normal((4, 1)).astype(np.float32)
    onnx.save(model_of([node("MatMul", ["x", "w"], ["y"], "fc")], [port("x", ["N", 4])], [port("y", ["N", 1])], {"w": weight}), path)


def half(path: Path) -> None:
    """The same as linear, its weight in float16."""
    weight = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float16)
    onnx.save(model_of([node("Cast", ["w"], ["wide"], "cast", to=onnx.TensorProto.FLOAT), node("MatMul", ["x", "wide"], ["y"], "fc")],
                       [port("x", ["N", 4])], [port("y", ["N", 3])], {"w": weight}), path)


def patches(path: Path) -> None:
    """x [1, 1, 5, 5] -> y [1, 2, 3, 3]: windows of 2 x 2 side by side, the last ones half in the padding."""
    onnx.save(model_of([node("Conv", ["x", "w"], ["y"], "conv", strides=[2, 2], pads=[0, 0, 1, 1])], [port("x", [1, 1, 5, 5])],
                       [port("y", [1, 2, 3, 3])], {"w": np.ones((2, 1, 2, 2), np.float32)}), path)


def labelled(*labels: object) -> Callable[[Path], None]:
    """As many rows of 4 numbers as labels, 16 times over."""
    def make(path: Path) -> None:
        np.savez(path, x=np.random.default_rng(1).standard_normal((16 * len(labels), 4)).astype(np.float32), y=np.array(labels * 16))
    return make


def altered(change: Callable[[onnx.ModelProto], object]) -> Callable[[Path], None]:
    """x [2] plus a weight, with something changed that exporters never write."""
    def make(path: Path) -> None:
        model = model_of([node("Add", ["x", "w"], ["y"], "sum")], [port("x", [2])], [port("y", [2])], {"w": np.ones(2, np.float32)})
        change(model)
        path.write_bytes(model.SerializeToString())
    return make


def elsewhere(location: str) -> Callable[[onnx.ModelProto], object]:
    """The weight in another file."""
    def change(model: onnx.ModelProto) -> None:
        weight = model.graph.initializer[0]
        weight.ClearField("raw_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=location)
    return change


def borrowing(model: onnx.ModelProto) -> None:
    """An attribute of a caller that there is none of."""
    model.graph.node[0].attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)


def unfolding(path: Path) -> None:
    """Thirty functions that each call the next one twice."""
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("mine", 1)]
    model = model_of([node("F0", ["x"], ["y"], domain="mine")], [port("x", [1])], [port("y", [1])], domains=["mine"])
    for i in range(30):
        calls = [node(f"F{i + 1}", ["a"], ["t"], domain="mine"), node(f"F{i + 1}", ["t"], ["b"], domain="mine")]
        model.functions.append(onnx.helper.make_function("mine", f"F{i}", ["a"], ["b"], calls, opsets))
    model.functions.append(onnx.helper.make_function("mine", "F30", ["a"], ["b"], [node("Neg", ["a"], ["b"])], opsets))
    onnx.save(model, path)


def endless_header(path: Path) -> None:
    """An array of no elements, whose other axis is longer than any."""
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 99999999999999999999), }"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)


def scaled(path: Path) -> None:
    """x [N, 4] -> y [N, 3]: two products with a number between them, as attention has one."""
    nodes = [node("MatMul", ["x", "w"], ["h"], "fc1"), node("Mul", ["h", "half"], ["s"], "scale"), node("MatMul", ["s", "v"], ["y"], "fc2")]
    onnx.save(model_of(nodes, [port("x", ["N", 4])], [port("y", ["N", 3])],
                       {"w": np.ones((4, 5), np.float32), "half": np.float32(0.5), "v": np.ones((5, 3), np.float32)}), path)


def in_training_mode(path: Path) -> None:
    """x [N, 4] -> y [N, 3] with a batch normalisation and a dropout as an export for training has them."""
    ones, zeros = np.ones(5, np.float32), np.zeros(5, np.float32)
    nodes = [node("MatMul", ["x", "w"], ["h"], "fc1"),
             node("BatchNormalization", ["h", "scale", "shift", "mean", "var"], ["n", "new_mean", "new_var"], "norm", training_mode=1),
             node("Dropout", ["n", "ratio", "on"], ["d"], "drop"), node("MatMul", ["d", "v"], ["y"], "fc2")]
    onnx.save(model_of(nodes, [port("x", ["N", 4])], [port("y", ["N", 3])],
                       {"w": np.ones((4, 5), np.float32), "scale": ones, "shift": zeros, "mean": zeros, "var": ones, "ratio": np.float32(0.5),
                        "on": np.array(True), "v": np.ones((5, 3), np.float32)}), path)


def folded(path: Path) -> None:
    """x [N, 1, 1, 4] -> y [N, 3]: a convolution under the names that an exporter gives it when it folds a batch normalisation into it."""
    nodes = [node("Conv", ["x", "onnx::Conv_26", "onnx::Conv_27"], ["/conv1/Conv_output_0"], "/conv1/Conv"),
             node("Flatten", ["/conv1/Conv_output_0"], ["f"]), node("MatMul", ["f", "w"], ["y"])]
    onnx.save(model_of(nodes, [port("x", ["N", 1, 1, 4])], [port("y", ["N", 3])],
                       {"onnx::Conv_26": np.ones((2, 1, 1, 1), np.float32), "onnx::Conv_27": np.zeros(2, np.float32),
                        "w": np.ones((8, 3), np.float32)}), path)


def relu_of(dims: list[int | str]) -> Callable[[Path], None]:
    """A Relu of an input of these sizes."""
    return lambda path: onnx.save(model_of([node("Relu", ["x"], ["y"], "relu")], [port("x", dims)], [port("y", dims)]), path)


def all_cut_off(path: Path) -> None:
    """A slice that leaves nothing, with the largest numbers there are."""
    onnx.save(model_of([node("Slice", ["x", "starts", "ends", "axes"], ["y"], "cut")], [port("x", ["N", 4])], [port("y", ["N", 0])],
                       {"starts": np.array([2**62]), "ends": np.array([-2**63]), "axes": np.array([1])}), path)


def npy_that_claims(shape: tuple[int, ...]) -> Callable[[Path], None]:
    """A header of an array of this shape, and no data."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return lambda path: path.write_bytes(b"\x93NUMPY\x01\x00v\x00" + header)          # type: ignore[return-value]


def folder_of_others(path: Path) -> None:
    """A folder that everybody may write to."""
    path.mkdir()
    path.chmod(0o777)


HOSTILE = "no\x1b[31m\u202esuch\u2066"
"""A name that turns a terminal red and its text around."""


FILES: dict[str, Callable[[Path], None]] = {
    "linear.onnx": linear,
    "bytes.onnx": bytes_in,
    "winners.onnx": winners,
    "flowers.npz": flowers,
    "scaled.onnx": scaled,
    "modes.onnx": in_training_mode,
    "folded.onnx": folded,
    "five.csv": lambda path: path.write_text("a,b,c,y\n1,2,3,0\n4,5,6,1\n"),
    "bare.npz": lambda path: np.savez(path, x=np.ones((64, 4), np.float32)),
    "rows.npz": lambda path: np.savez(path, x=np.ones((32, 1, 1, 4), np.float32), y=np.arange(32) % 3),
    "giant.onnx": relu_of([2**40, 2**40]),
    "outside.onnx": altered(elsewhere("../../etc/passwd")),
    "nothing.onnx": all_cut_off,
    "claims.npy": npy_that_claims((100_000_000, 10_000)),
    "ranks-images-idx3-ubyte": lambda path: path.write_bytes(bytes([0, 0, 8, 200]) + bytes(800)),          # type: ignore[dict-item,return-value]
    f"{HOSTILE}.onnx": linear,
    "open-folder": folder_of_others,
    "empty.onnx": lambda path: path.write_bytes(b""),                    # type: ignore[dict-item,return-value]
    "text.onnx": lambda path: path.write_text("not a model\n"),          # type: ignore[dict-item,return-value]
    "parts.npz": parts,
    "open.onnx": open_sized,
    "sequences.npz": sequences,
    "far.npz": far_flowers,
    "fifo.npz": fifo,
    "column.onnx": column,
    "half.onnx": half,
    "patches.onnx": patches,
    "bits.npz": labelled(0, 1),
    "counts.npz": labelled(7, 0, 12),
    "from-one.npz": labelled(1, 2, 3),
    "shares.npz": labelled(0.25, 1.5),
    "words.npz": labelled("cat", "dog", "cow", "bee"),
    "unscoped.onnx": unscoped,
    "foreign.onnx": no_such_operator,
    "outer.onnx": outer,
    "deep.onnx": relu_of([1] * 40),
    "segment.onnx": altered(lambda model: model.graph.initializer[0].segment.SetInParent()),
    "elsewhere.onnx": altered(elsewhere("a\0b")),
    "borrowing.onnx": altered(borrowing),
    "mute.onnx": altered(lambda model: model.graph.ClearField("output")),
    "unfolding.onnx": unfolding,
    "endless.npy": endless_header,
    "long.npz": lambda path: np.savez(path, x=np.zeros((400_000, 1), np.float32)),
}
"""Makers by the file's name; each gets the path to make."""
