"""Pooling: the largest element of each window or its mean."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, helper

from tileflow.graph import Builder, Value
from tileflow.graph.op import OPS

from .base import NodeProblem, beside_largest, numbers


class Pool(NodeProblem):
    """Windows of k x k elements of images, over padding that does not count; `training`: and the gradient. operator: MaxPool or AveragePool."""

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__(shape)
        self.which, self.size, self.k, self.stride, self.pad = (shape[x] for x in ("pass", "shape", "k", "stride", "pad"))
        self.operator = shape.get("operator", "MaxPool")
        self.out = tuple((n + 2 * self.pad - self.k) // self.stride + 1 for n in self.size[2:])
        self.name = f"{self.operator.lower()} {self.which} {'x'.join(map(str, self.size))} {self.k}x{self.k} stride {self.stride}"
        self.attributes = {"kernel_shape": (self.k,) * 2, "strides": (self.stride,) * 2, "pads": (self.pad,) * 4}
        self._operator = OPS[self.operator](**self.attributes)

    def arrays(self) -> dict[str, np.ndarray]:
        x = {"x": numbers("x", tuple(self.size))}
        return x | ({"g": numbers("g", (*self.size[:2], *self.out))} if self.which == "training" else {})

    def build(self, b: Builder, v: Mapping[str, Value]) -> list[Value]:
        made = b.emit(self._operator, v["x"])
        if self.which == "forward":
            return [made[0]]
        gradient = self._operator.vjp(b, [v["g"], *[None] * (len(made) - 1)], [v["x"]], list(made))[0]
        assert gradient is not None
        return [made[0], gradient]

    def peer(self, torch: Any, t: Mapping[str, Any]) -> Callable[[], Any]:
        where = ([self.k] * 2, [self.stride] * 2, [self.pad] * 2)
        aten = torch.ops.aten
        if self.operator == "AveragePool":
            how = (*where, False, False, None)

            def means() -> Any:
                y = aten.avg_pool2d(t["x"], *how)
                return y if self.which == "forward" else (y, aten.avg_pool2d_backward(t["g"], t["x"], *how))
            return means
        if self.which == "forward":
            pool = torch.max_pool2d
            return lambda: pool(t["x"], *where)
        forward, backward = aten.max_pool2d_with_indices, aten.max_pool2d_with_indices_backward

        def both() -> Any:
            y, indices = forward(t["x"], *where)
            return y, backward(t["g"], t["x"], *where, [1, 1], False, indices)
        return both

    def graph(self) -> GraphProto:
        """The ONNX graph of the one node."""
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, size)
                for name, size in (("x", self.size), ("y", [*self.size[:2], *self.out])))
        return helper.make_graph([helper.make_node(self.operator, ["x"], ["y"], **self.attributes)], "bench", [x], [y])

    def deviation(self, arrays: Mapping[str, np.ndarray], outputs: list[np.ndarray]) -> float:
        """Of the first image's pooled values (maxima are exact on both sides)."""
        exact = self._operator.reference(arrays["x"][:1].astype(np.float64))[0]
        return beside_largest(outputs[0][:1], exact)

    def nbytes(self) -> float:
        x, y = math.prod(self.size), math.prod(self.size[:2]) * math.prod(self.out)
        return 4.0 * (x + y) * (2 if self.which == "training" else 1)
