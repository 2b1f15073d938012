"""Convolutions of images: forward, gradient of the input, gradient of the weights; dense and depthwise."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tileflow.graph import Builder, Value
from tileflow.graph.op import OPS

from .base import Problem, numbers, some

SAMPLED_CHANNELS = 8
"""Channels of the result that are checked against float64."""


class Conv(Problem):
    """n images [c, h, w], o filters of k x k; `pass`: forward, input or weight (gradients)."""

    bound_by = "flops"
    parameters = ("w",)

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__(shape)
        self.n, self.c, self.h, self.k, self.which = (shape[x] for x in ("n", "c", "h", "k", "pass"))
        self.w, self.depthwise = shape.get("w", self.h), shape.get("depthwise", False)
        self.o = self.c if self.depthwise else shape["o"]
        self.group = self.c if self.depthwise else 1
        self.stride, self.dilation = shape.get("stride", 1), shape.get("dilation", 1)
        self.pad = shape.get("pad", self.k // 2)
        size = f"{self.h}" if self.h == self.w else f"{self.h}x{self.w}"
        self.name = "".join((self.which, " depthwise" * self.depthwise, f" {self.n}x{self.c}x{size}", "" if self.depthwise else f" to {self.o}",
                             f" {self.k}x{self.k}", f" stride {self.stride}" * (self.stride > 1), f" dilation {self.dilation}" * (self.dilation > 1),
                             f" weights {self.weights}" if self.weights else ""))

    @property
    def _out(self) -> tuple[int, int]:
        reach = self.dilation * (self.k - 1) + 1
        return (self.h + 2 * self.pad - reach) // self.stride + 1, (self.w + 2 * self.pad - reach) // self.stride + 1

    @property
    def _attributes(self) -> dict[str, Any]:
        return dict(strides=(self.stride,) * 2, pads=(self.pad,) * 4, dilations=(self.dilation,) * 2)

    def arrays(self) -> dict[str, np.ndarray]:
        x = numbers("x", (self.n, self.c, self.h, self.w))
        w = numbers("w", (self.o, self.c // self.group, self.k, self.k))
        g = numbers("g", (self.n, self.o, *self._out))
        return {"forward": {"x": x, "w": w}, "input": {"g": g, "w": w}, "weight": {"x": x, "g": g}}[self.which]

    def build(self, b: Builder, v: Mapping[str, Value]) -> list[Value]:
        return [getattr(b, self._operator)(v[self._names[0]], v[self._names[1]], group=self.group, **self._special, **self._attributes)]

    @property
    def _names(self) -> str:
        return {"forward": "xw", "input": "gw", "weight": "xg"}[self.which]

    @property
    def _operator(self) -> str:
        return {"forward": "Conv", "input": "ConvInputGrad", "weight": "ConvWeightGrad"}[self.which]

    @property
    def _special(self) -> dict[str, Any]:
        return {"forward": {}, "input": {"shape": (self.h, self.w)}, "weight": {"kernel_shape": (self.k, self.k)}}[self.which]

    def peer(self, torch: Any, t: Mapping[str, Any]) -> Callable[[], Any]:
        stride, pad, dilation = [self.stride] * 2, [self.pad] * 2, [self.dilation] * 2
        if self.which == "forward":
            convolve = torch.nn.functional.conv2d
            return lambda: convolve(t["x"], t["w"], None, stride, pad, dilation, self.group)
        x = t["x"] if "x" in t else torch.zeros(self.n, self.c, self.h, self.w)                           # only its shape counts
        w = t["w"] if "w" in t else torch.zeros(self.o, self.c // self.group, self.k, self.k)
        which = 0 if self.which == "input" else 1
        backward, mask = torch.ops.aten.convolution_backward, [which == 0, which == 1, False]
        return lambda: backward(t["g"], x, w, None, stride, pad, dilation, False, [0, 0], self.group, mask)[which]

    def deviation(self, arrays: Mapping[str, np.ndarray], outputs: list[np.ndarray]) -> float:
        """Some channels of the last image (of some pairs of channels for the weight gradient), over the product of magnitudes."""
        first, second = (arrays[k].astype(np.float64) for k in self._names)
        got, group = outputs[0], self.group
        results, sums = some(self.o, SAMPLED_CHANNELS), some(self.c, SAMPLED_CHANNELS)
        if self.which == "weight":
            first, second = first[:, sums], second[:, results]
            got = got[results] if self.depthwise else got[np.ix_(results, sums)]
        else:
            chosen = results if self.which == "forward" else sums
            first, got = first[-1:], got[-1:, chosen]
            if self.depthwise:
                first = first[:, chosen]
            second = second[chosen] if self.depthwise or self.which == "forward" else second[:, chosen]
        operator = OPS[self._operator](group=len(results) if self.depthwise else group, **self._special, **self._attributes)
        exact, = operator.reference(first, second)
        scale, = operator.reference(np.abs(first), np.abs(second))
        return float((np.abs(got - exact) / np.where(scale > 0, scale, 1.0)).max())

    def flops(self) -> float:
        return 2.0 * self.n * self.o * self._out[0] * self._out[1] * (self.c // self.group) * self.k * self.k

    def nbytes(self) -> float:
        images = self.n * self.c * self.h * self.w + self.n * self.o * self._out[0] * self._out[1]
        return 4.0 * (images + self.o * (self.c // self.group) * self.k * self.k)
