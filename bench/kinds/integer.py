"""Products and convolutions of 8-bit integers, beside ONNX Runtime: the same operator of ONNX with weights known beforehand."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, helper, numpy_helper

from tileflow.graph import Builder, Value

from .base import NodeProblem

ZERO, RIGHT_ZERO, SCALES = 7, 3, (0.02, 0.01, 0.9)


class IntegerProblem(NodeProblem):
    """One operator; `left` and `right` are the element types of activations and weights."""

    bound_by = "flops"
    operator: str
    parameters = ("w",)

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__({"weights": "once", **shape})
        self.left, self.right = shape.get("left", "uint8"), shape.get("right", "int8")

    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of activations and weights."""
        raise NotImplementedError

    def attributes(self) -> dict[str, Any]:
        """Of the operator."""
        return {}

    def constants(self) -> list[Any]:
        """The operands in the operator's order: "x", "w", and arrays."""
        raise NotImplementedError

    def arrays(self) -> dict[str, np.ndarray]:
        found = {}
        for i, (name, dtype, shape) in enumerate(zip("xw", (self.left, self.right), self.sizes(), strict=True)):
            info = np.iinfo(dtype)
            found[name] = np.random.default_rng(i).integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
        return found

    def build(self, b: Builder, v: Mapping[str, Value]) -> list[Value]:
        operands = [v[c] if isinstance(c, str) else b.constant(c) for c in self.constants()]
        attributes = {k: tuple(a) if isinstance(a, list) else a for k, a in self.attributes().items()}
        return [getattr(b, self.operator)(*operands, **attributes)]

    def graph(self) -> GraphProto:
        """The ONNX graph of the one node."""
        arrays, names, stored = self.arrays(), [], []
        for i, c in enumerate(self.constants()):
            names.append(c if isinstance(c, str) else f"c{i}")
            if not isinstance(c, str):
                stored.append(numpy_helper.from_array(c, names[-1]))
        stored.append(numpy_helper.from_array(arrays["w"], "w"))
        kind = helper.np_dtype_to_tensor_dtype(arrays["x"].dtype)
        result = TensorProto.INT32 if self.operator == "MatMulInteger" else kind
        x, y = helper.make_tensor_value_info("x", kind, self.sizes()[0]), helper.make_tensor_value_info("y", result, None)
        return helper.make_graph([helper.make_node(self.operator, names, ["y"], **self.attributes())], "bench", [x], [y], stored)


class IntegerMatMul(IntegerProblem):
    """MatMulInteger with zero points, int32 sums."""

    operator = "MatMulInteger"

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__(shape)
        self.m, self.n, self.k = shape["m"], shape["n"], shape["k"]
        self.name = f"{self.m}x{self.n}x{self.k} {self.left} {self.right}"

    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (self.m, self.k), (self.k, self.n)

    def constants(self) -> list[Any]:
        return ["x", "w", np.array(ZERO, self.left), np.array(RIGHT_ZERO, self.right)]

    def deviation(self, arrays: Mapping[str, np.ndarray], outputs: list[np.ndarray]) -> float:
        """Of exact numbers: any difference counts."""
        wanted = (arrays["x"].astype(np.float64) - ZERO) @ (arrays["w"].astype(np.float64) - RIGHT_ZERO)
        return float(np.abs(outputs[0].reshape(wanted.shape) - wanted).max())

    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    def nbytes(self) -> float:
        return float(self.m * self.k + self.k * self.n + 4 * self.m * self.n)


class IntegerConv(IntegerProblem):
    """QLinearConv of one image with scales of the output channels: c channels of size x size to oc, kernel x kernel."""

    operator = "QLinearConv"

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__(shape)
        self.c, self.oc, self.size, self.taps = shape["c"], shape["oc"], shape["size"], shape["kernel"]
        self.group = shape.get("group", 1)
        self.name = f"{self.c} to {self.oc}, {self.size}x{self.size}, {self.taps}x{self.taps}" + f" in {self.group} groups" * (self.group > 1)

    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (1, self.c, self.size, self.size), (self.oc, self.c // self.group, self.taps, self.taps)

    def attributes(self) -> dict[str, Any]:
        return {"pads": [self.taps // 2] * 4, "group": self.group}

    def constants(self) -> list[Any]:
        x, w, y = (np.array(s, np.float32) for s in SCALES)
        middle = np.array(128, self.left)
        return ["x", x, middle, "w", np.full(self.oc, w), np.zeros(self.oc, self.right), np.asarray(y * np.float32(self.taps)), middle]

    def deviation(self, arrays: Mapping[str, np.ndarray], outputs: list[np.ndarray]) -> float:
        """In steps of the result, at the centre of the image."""
        x, w, at = arrays["x"].astype(np.float64) - 128, arrays["w"].astype(np.float64), self.size // 2
        half, per = self.taps // 2, self.oc // self.group
        patch = x[0, :, at - half:at - half + self.taps, at - half:at - half + self.taps]
        inputs = [patch[o // per * w.shape[1]:(o // per + 1) * w.shape[1]] for o in range(self.oc)]
        sums = np.array([(i * w[o]).sum() for o, i in enumerate(inputs)])
        wanted = np.clip(np.rint(sums * (SCALES[0] * SCALES[1] / (SCALES[2] * self.taps))) + 128, 0, 255)
        return float(np.abs(outputs[0].reshape(1, self.oc, self.size, self.size)[0, :, at, at] - wanted).max())

    def flops(self) -> float:
        return 2.0 * self.oc * self.size ** 2 * self.taps ** 2 * self.c / self.group

    def nbytes(self) -> float:
        return float((self.c + self.oc) * self.size ** 2)
