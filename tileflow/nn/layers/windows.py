"""Layers of windows: taken apart, put together, normed; channels that change places."""
from __future__ import annotations

from dataclasses import dataclass

from .. import functional as F
from ..functional.sizes import Size
from ..functional.windows import lp_pool
from ..module import Module
from ..tensor import Tensor


@dataclass(eq=False)
class Unfold(Module):
    """The windows of [N, C, H, W] as columns: [N, C kh kw, windows]."""

    kernel_size: Size
    dilation: Size = 1
    padding: Size = 0
    stride: Size = 1

    def forward(self, x: Tensor) -> Tensor:
        return F.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)


@dataclass(eq=False)
class Fold(Module):
    """Columns [N, C kh kw, windows] added up where their windows lie in an image [N, C, *output_size]."""

    output_size: Size
    kernel_size: Size
    dilation: Size = 1
    padding: Size = 0
    stride: Size = 1

    def forward(self, x: Tensor) -> Tensor:
        return F.fold(x, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)


@dataclass(eq=False)
class ChannelShuffle(Module):
    """[N, C, ...] with the channels of `groups` groups dealt out in turn (Zhang et al., arXiv:1707.01083)."""

    groups: int

    def forward(self, x: Tensor) -> Tensor:
        return F.channel_shuffle(x, self.groups)


@dataclass(eq=False)
class LocalResponseNorm(Module):
    """x / (k + alpha * mean of the squares of `size` neighbouring channels)^beta for [N, C, ...] (Krizhevsky et al., 2012)."""

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return F.local_response_norm(x, self.size, self.alpha, self.beta, self.k)


class _LPPool(Module):
    rank = 2

    def __init__(self, norm_type: float, kernel_size: Size, stride: Size | None = None, ceil_mode: bool = False) -> None:
        self.norm_type, self.kernel_size, self.stride, self.ceil_mode = norm_type, kernel_size, stride, ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        return lp_pool(x, self.norm_type, self.kernel_size, self.stride, self.ceil_mode, self.rank)


class LPPool1d(_LPPool):
    """The p-norm of each window of [N, C, L]."""

    rank = 1


class LPPool2d(_LPPool):
    """The p-norm of each window of [N, C, H, W]."""


class LPPool3d(_LPPool):
    """The p-norm of each window of [N, C, D, H, W]."""

    rank = 3
