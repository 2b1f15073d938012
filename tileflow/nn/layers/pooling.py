"""Pooling layers."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..functional.pooling import adaptive_avg_pool, adaptive_max_pool, largest, pool
from ..functional.sizes import Size
from ..functional.unpooling import max_unpool
from ..module import Module
from ..tensor import Tensor


class _MaxPool(Module):
    rank = 2

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1, return_indices: bool = False,
                 ceil_mode: bool = False) -> None:
        self.kernel_size, self.stride, self.padding, self.dilation = kernel_size, stride, padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, x: Tensor) -> Any:
        return largest(x, self.rank, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices)


class MaxPool1d(_MaxPool):
    """Largest element of each window of [N, C, L]."""

    rank = 1


class MaxPool2d(_MaxPool):
    """Largest element of each window of [N, C, H, W]."""


class MaxPool3d(_MaxPool):
    """Largest element of each window of [N, C, D, H, W]."""

    rank = 3


class _MaxUnpool(Module):
    rank = 2

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def forward(self, x: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return max_unpool(x, indices, self.rank, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool1d(_MaxUnpool):
    """Zeros with maxima where MaxPool1d found them."""

    rank = 1


class MaxUnpool2d(_MaxUnpool):
    """Zeros with maxima where MaxPool2d found them."""


class MaxUnpool3d(_MaxUnpool):
    """Zeros with maxima where MaxPool3d found them."""

    rank = 3


class _AvgPool(Module):
    rank = 2

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True) -> None:
        self.kernel_size, self.stride, self.padding, self.ceil_mode = kernel_size, stride, padding, ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, x: Tensor) -> Tensor:
        return pool("AveragePool", x, self.rank, self.kernel_size, self.stride, self.padding, ceil_mode=int(self.ceil_mode),
                    count_include_pad=int(self.count_include_pad))


class AvgPool1d(_AvgPool):
    """Mean of each window of [N, C, L], padding included unless told."""

    rank = 1


class AvgPool2d(_AvgPool):
    """Mean of each window of [N, C, H, W], padding included unless told."""


class AvgPool3d(_AvgPool):
    """Mean of each window of [N, C, D, H, W]."""

    rank = 3


class _Adaptive(Module):
    rank, largest = 2, False

    def __init__(self, output_size: int | Sequence[int | None] | None) -> None:
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        return (adaptive_max_pool if self.largest else adaptive_avg_pool)(x, self.output_size, self.rank)


class AdaptiveAvgPool1d(_Adaptive):
    """[N, C, L] -> means [N, C, output_size]."""

    rank = 1


class AdaptiveAvgPool2d(_Adaptive):
    """[N, C, H, W] -> means [N, C, *output_size]."""


class AdaptiveAvgPool3d(_Adaptive):
    """[N, C, D, H, W] -> means [N, C, *output_size]."""

    rank = 3


class AdaptiveMaxPool1d(_Adaptive):
    """[N, C, L] -> largest elements [N, C, output_size]."""

    rank, largest = 1, True


class AdaptiveMaxPool2d(_Adaptive):
    """[N, C, H, W] -> largest elements [N, C, *output_size]."""

    largest = True


class AdaptiveMaxPool3d(_Adaptive):
    """[N, C, D, H, W] -> largest elements [N, C, *output_size]."""

    rank, largest = 3, True


class GlobalAvgPool(Module):
    """Mean over all spatial axes: [N, C, ...] -> [N, C, 1, ...]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.apply("GlobalAveragePool")
