"""Convolutions and their transposes."""
from __future__ import annotations

import math

from ...system.errors import OptionError
from .. import functional as F
from ..functional.linear import convolution, transposed_convolution
from ..functional.shape import PADDING
from ..functional.sizes import Size, per_axis
from ..init import uniform
from ..module import Module
from ..parameter import Parameter
from ..tensor import Tensor


def _check_groups(layer: Module, groups: int, in_channels: int, out_channels: int) -> None:
    if groups < 1 or in_channels % groups or out_channels % groups:
        raise OptionError(f"{type(layer).__name__}: groups={groups} must divide in_channels={in_channels} and out_channels={out_channels}.")


class _Conv(Module):
    rank = 2

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size | str = 0,
                 dilation: Size = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros") -> None:
        _check_groups(self, groups, in_channels, out_channels)
        kernel = per_axis(kernel_size, self.rank, f"kernel_size of {type(self).__name__}")
        fan_in = in_channels // groups * math.prod(kernel)
        self.weight = Parameter(uniform((out_channels, in_channels // groups, *kernel), fan_in))
        self.bias = Parameter(uniform((out_channels,), fan_in)) if bias else None
        if padding_mode != "zeros" and (padding_mode not in PADDING or isinstance(padding, str)):
            raise OptionError(f"{type(self).__name__}: padding_mode={padding_mode!r} is zeros, or with a padding in numbers reflect, replicate or "
                              "circular.")
        self.stride, self.padding, self.dilation, self.groups, self.padding_mode = stride, padding, dilation, groups, padding_mode

    def forward(self, x: Tensor) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros" and not isinstance(padding, str):
            pads = [n for p in per_axis(padding, self.rank, "padding")[::-1] for n in (p, p)]
            x, padding = F.pad(x, pads, self.padding_mode), 0
        return convolution(x, self.weight, self.bias, self.rank, self.stride, padding, self.dilation, self.groups)


class Conv1d(_Conv):
    """Convolution over [N, C, L]; W [out_channels, in_channels / groups, kernel]."""

    rank = 1


class Conv2d(_Conv):
    """Convolution over [N, C, H, W]; W [out_channels, in_channels / groups, kh, kw]."""


class Conv3d(_Conv):
    """Convolution over [N, C, D, H, W]; W [out_channels, in_channels / groups, kd, kh, kw]."""

    rank = 3


class _ConvTranspose(Module):
    rank = 2

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0, output_padding: Size = 0,
                 groups: int = 1, bias: bool = True, dilation: Size = 1) -> None:
        _check_groups(self, groups, in_channels, out_channels)
        kernel = per_axis(kernel_size, self.rank, f"kernel_size of {type(self).__name__}")
        fan_in = out_channels // groups * math.prod(kernel)          # PyTorch's: of the weight's second axis
        self.weight = Parameter(uniform((in_channels, out_channels // groups, *kernel), fan_in))
        self.bias = Parameter(uniform((out_channels,), fan_in)) if bias else None
        self.stride, self.padding, self.output_padding, self.groups, self.dilation = stride, padding, output_padding, groups, dilation

    def forward(self, x: Tensor) -> Tensor:
        return transposed_convolution(x, self.weight, self.bias, self.rank, self.stride, self.padding, self.output_padding, self.groups,
                                      self.dilation)


class ConvTranspose1d(_ConvTranspose):
    """Transposed convolution over [N, C, L]; W [in_channels, out_channels / groups, kernel]."""

    rank = 1


class ConvTranspose2d(_ConvTranspose):
    """Transposed convolution over [N, C, H, W]; W [in_channels, out_channels / groups, kh, kw]."""


class ConvTranspose3d(_ConvTranspose):
    """Transposed convolution over [N, C, D, H, W]; W [in_channels, out_channels / groups, kd, kh, kw]."""

    rank = 3
