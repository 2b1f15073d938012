"""Images made larger: elements repeated (nearest), and transposed convolutions whose kernels are as large as their strides."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, helper, numpy_helper

from tileflow.graph import Builder, Value
from tileflow.graph.op import OPS

from .base import NodeProblem, beside_largest, numbers, pulled

NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


class Upsample(NodeProblem):
    """n images [c, h, w] `times` as high and wide; with `o` output channels a transposed convolution with bias, else nearest elements.

    `pass`: forward, beside ONNX Runtime, or training, beside PyTorch: forward and the gradients of all operands.
    """

    parameters = ("w", "b")

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__({"weights": "once" if shape["pass"] == "forward" else "each", **shape})
        self.which, self.n, self.c, self.h, self.times = (shape[k] for k in ("pass", "n", "c", "h", "times"))
        self.w, self.o = shape.get("w", self.h), shape.get("o", 0)
        what = f"transposed to {self.o}" if self.o else "nearest"
        self.name = f"{self.which} {self.n}x{self.c}x{self.h}x{self.w} {what} by {self.times}"

    def arrays(self) -> dict[str, np.ndarray]:
        made = {"x": numbers("x", (self.n, self.c, self.h, self.w))}
        if self.o:
            made |= {"w": numbers("w", (self.c, self.o, self.times, self.times), scale=self.c ** -0.5), "b": numbers("b", (self.o,))}
        if self.which == "training":
            made["g"] = numbers("g", (self.n, self.o or self.c, self.h * self.times, self.w * self.times))
        return made

    def build(self, b: Builder, v: Mapping[str, Value]) -> list[Value]:
        operands = [v[k] for k in ("x", "w", "b") if k in v]
        start = len(b.graph.nodes)
        op = self._transposed if self.o else self._nearest
        y = op.expand(b, operands)
        assert y is not None
        if self.which == "forward":
            return list(y)
        return [y[0], *pulled(b, start, y[0], v["g"], operands)]

    @property
    def _transposed(self) -> Any:
        return OPS["ConvTranspose"](strides=(self.times,) * 2)

    @property
    def _nearest(self) -> Any:
        return OPS["Resize"](scales=(1.0, 1.0, float(self.times), float(self.times)), **NEAREST)

    def peer(self, torch: Any, t: Mapping[str, Any]) -> Callable[[], Any]:
        functional = torch.nn.functional
        operands = [t[k].requires_grad_() for k in ("x", "w", "b") if k in t]

        def training() -> Any:
            y = functional.conv_transpose2d(*operands, stride=self.times) if self.o else functional.interpolate(operands[0], scale_factor=self.times)
            return [y, *torch.autograd.grad(y, operands, t["g"])]
        return training

    def graph(self) -> GraphProto:
        """The ONNX graph of the one node."""
        arrays = self.arrays()
        size = [self.n, self.o or self.c, self.h * self.times, self.w * self.times]
        x, y = (helper.make_tensor_value_info(*i) for i in (("x", TensorProto.FLOAT, arrays["x"].shape), ("y", TensorProto.FLOAT, size)))
        if self.o:
            node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], strides=[self.times] * 2)
            stored = {k: arrays[k] for k in ("w", "b")}
        else:
            node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **NEAREST)
            stored = {"scales": np.array([1, 1, self.times, self.times], np.float32)}
        return helper.make_graph([node], "bench", [x], [y], [numpy_helper.from_array(a, k) for k, a in stored.items()])

    def deviation(self, arrays: Mapping[str, np.ndarray], outputs: list[np.ndarray]) -> float:
        """Of the first image."""
        x = arrays["x"][:1].astype(np.float64)
        if not self.o:
            return beside_largest(outputs[0][:1], x.repeat(self.times, 2).repeat(self.times, 3))
        blocks = np.einsum("nchw,coij->nohiwj", x, arrays["w"].astype(np.float64), optimize=True)
        exact = blocks.reshape(1, self.o, self.h * self.times, -1) + arrays["b"].astype(np.float64)[:, None, None]
        return beside_largest(outputs[0][:1], exact)

    def flops(self) -> float:
        products = 1 if self.which == "forward" else 3
        return 2.0 * products * self.n * self.c * self.o * self.h * self.w * self.times ** 2

    def nbytes(self) -> float:
        pixels = self.n * self.h * self.w
        return 4.0 * pixels * (self.c + (self.o or self.c) * self.times ** 2) * (1 if self.which == "forward" else 2)
