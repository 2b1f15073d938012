"""Layers with PyTorch's names, shapes and initial weights, over ONNX operators."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import OptionError
from .init import uniform
from .module import Module
from .parameter import Buffer, Parameter
from .tensor import Tensor

Size = int | tuple[int, ...]


def _pair(size: Size, rank: int) -> tuple[int, ...]:
    return (size,) * rank if isinstance(size, int) else tuple(size)


class Linear(Module):
    """y = x W^T + b; x [N, in_features], W [out_features, in_features], b [out_features].

    serialization: (mode, factor) does the product and its gradients in pieces, see `tileflow.nn.serialized_matmul`.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, serialization: tuple[str, int] | None = None) -> None:
        self.pieces = {} if serialization is None else dict(zip(("mode", "factor"), serialization, strict=True))
        self.weight = Parameter(uniform((out_features, in_features), in_features))
        self.bias = Parameter(uniform((out_features,), in_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        if len(x.shape) == 2:
            return x.apply("SerializedGemm" if self.pieces else "Gemm", self.weight, self.bias, transB=1, **self.pieces)
        y = x.apply("SerializedMatMul" if self.pieces else "FusedMatMul", self.weight, transB=1, **self.pieces)
        return y if self.bias is None else y + self.bias


class _Conv(Module):
    rank = 2

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0,
                 dilation: Size = 1, groups: int = 1, bias: bool = True) -> None:
        if in_channels % groups or out_channels % groups:
            raise OptionError(f"{type(self).__name__}: groups={groups} must divide in_channels={in_channels} and out_channels={out_channels}.")
        kernel = _pair(kernel_size, self.rank)
        fan_in = in_channels // groups * math.prod(kernel)
        self.weight = Parameter(uniform((out_channels, in_channels // groups, *kernel), fan_in))
        self.bias = Parameter(uniform((out_channels,), fan_in)) if bias else None
        pads = _pair(padding, self.rank)
        self.attributes: dict[str, Any] = dict(strides=_pair(stride, self.rank), pads=pads + pads, dilations=_pair(dilation, self.rank),
                                               group=groups, kernel_shape=kernel)

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        return x.apply("Conv", self.weight, self.bias, **self.attributes)


class Conv1d(_Conv):
    """Convolution over [N, C, L]; W [out_channels, in_channels / groups, kernel]."""

    rank = 1


class Conv2d(_Conv):
    """Convolution over [N, C, H, W]; W [out_channels, in_channels / groups, kh, kw]."""


class _Pool(Module):
    operator = "MaxPool"

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        self.kernel, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        rank = len(x.shape) - 2
        pads = _pair(self.padding, rank)
        extra = {"count_include_pad": 1} if self.operator == "AveragePool" else {}
        return x.apply(self.operator, kernel_shape=_pair(self.kernel, rank), strides=_pair(self.stride, rank), pads=pads + pads, **extra)


class MaxPool2d(_Pool):
    """Largest element of each window of [N, C, H, W]."""


class MaxPool1d(_Pool):
    """Largest element of each window of [N, C, L]."""


class AvgPool2d(_Pool):
    """Mean of each window of [N, C, H, W], padding included."""

    operator = "AveragePool"


class GlobalAvgPool(Module):
    """Mean over all spatial axes: [N, C, ...] -> [N, C, 1, ...]."""

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        return x.apply("GlobalAveragePool")


class BatchNorm(Module):
    """Normalises each channel of [N, C, ...] over the micro-batch; keeps running statistics for inference.

    running = (1 - momentum) * running + momentum * batch, PyTorch's convention, with the unbiased variance.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        self.weight = Parameter(np.ones(num_features, np.float32))
        self.bias = Parameter(np.zeros(num_features, np.float32))
        self.running_mean = Buffer(np.zeros(num_features, np.float32))
        self.running_var = Buffer(np.ones(num_features, np.float32))
        self.eps, self.momentum = eps, momentum

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        if not x.trace.training:
            return x.apply("BatchNormalization", self.weight, self.bias, self.running_mean, self.running_var, epsilon=self.eps)
        y, mean, variance, _ = x.apply("BatchNormalization", self.weight, self.bias, None, None, epsilon=self.eps, training_mode=1)
        n = math.prod(x.shape) // x.shape[1]
        self._remember(x, self.running_mean, mean)
        self._remember(x, self.running_var, variance * (n / max(1, n - 1)))
        return y

    def _remember(self, x: Tensor, buffer: Buffer, batch: Tensor) -> None:
        state = x.trace.state(buffer)
        old = Tensor(x.trace, state.input)
        state.output, state.when = (old * (1 - self.momentum) + batch * self.momentum).value, "micro"


class BatchNorm1d(BatchNorm):
    """BatchNorm over [N, C] or [N, C, L]."""


class BatchNorm2d(BatchNorm):
    """BatchNorm over [N, C, H, W]."""


class Dropout(Module):
    """Zeroes each element with probability `p` while training and scales the others by 1 / (1 - p)."""

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p < 1:
            raise OptionError(f"Dropout: p must be in [0, 1), got {p}.")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        if not x.trace.training or self.p == 0:
            return x
        return x.apply("Dropout", ratio=self.p, training_mode=True, stream=x.trace.stream())


class Flatten(Module):
    """[N, ...] -> [N, product of the rest]."""

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        return x.flatten()


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        return x.relu()


class LeakyReLU(Module):
    """x where positive, else negative_slope * x."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        return x.apply("LeakyRelu", alpha=self.negative_slope)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        return x.sigmoid()


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        return x.tanh()


class Softmax(Module):
    """exp(x) / sum(exp(x)) along an axis."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        return x.apply("Softmax", axis=self.dim)


class LogSoftmax(Module):
    """log(softmax(x)) along an axis, computed without overflow."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        return x.apply("LogSoftmax", axis=self.dim)


class Sequential(Module):
    """Modules one after another; parameters are named by position ("0.weight")."""

    def __init__(self, *modules: Module) -> None:
        self.modules = list(modules)

    def children(self) -> Any:
        return ((str(i), m) for i, m in enumerate(self.modules))

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        for module in self.modules:
            x = module(x)
        return x
