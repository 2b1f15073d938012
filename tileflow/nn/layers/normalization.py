"""Normalisation layers."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...system.errors import OptionError
from .. import functional as F
from ..functional.normalization import instance_norm
from ..module import Module
from ..parameter import Buffer, Parameter
from ..tensor import Tensor


class BatchNorm(Module):
    """Normalises each channel of [N, C, ...] over the micro-batch; keeps running statistics for inference.

    running = (1 - momentum) * running + momentum * batch, PyTorch's convention, with the unbiased variance.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        self.weight = Parameter(np.ones(num_features, np.float32))
        self.bias = Parameter(np.zeros(num_features, np.float32))
        self.running_mean = Buffer(np.zeros(num_features, np.float32), statistic=True)
        self.running_var = Buffer(np.ones(num_features, np.float32), statistic=True)
        self.eps, self.momentum = eps, momentum

    def forward(self, x: Tensor) -> Tensor:
        if not x.trace.training:
            return x.apply("BatchNormalization", self.weight, self.bias, self.running_mean, self.running_var, epsilon=self.eps)
        y, mean, variance, _ = x.apply("BatchNormalization", self.weight, self.bias, None, None, epsilon=self.eps, training_mode=1)
        n = math.prod(x.shape) // x.shape[1]
        self._remember(x, self.running_mean, mean)
        self._remember(x, self.running_var, variance * (n / max(1, n - 1)))
        return y

    def _remember(self, x: Tensor, buffer: Buffer, batch: Tensor) -> None:
        buffer.follow((buffer * (1 - self.momentum) + batch * self.momentum).type_as(buffer))


class BatchNorm1d(BatchNorm):
    """BatchNorm over [N, C] or [N, C, L]."""


class BatchNorm2d(BatchNorm):
    """BatchNorm over [N, C, H, W]."""


class BatchNorm3d(BatchNorm):
    """BatchNorm over [N, C, D, H, W]."""


def _ones(shape: tuple[int, ...]) -> Parameter:
    return Parameter(np.ones(shape, np.float32))


def _zeros(shape: tuple[int, ...]) -> Parameter:
    return Parameter(np.zeros(shape, np.float32))


class LayerNorm(Module):
    """weight * (x - mean) / sqrt(variance + eps) + bias over the last axes, which have the shape `normalized_shape`."""

    def __init__(self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True) -> None:
        self.shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.weight = _ones(self.shape) if elementwise_affine else None
        self.bias = _zeros(self.shape) if elementwise_affine and bias else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.shape, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """weight * x / sqrt(mean(x^2) + eps) over the last axes, which have the shape `normalized_shape` (Zhang and Sennrich, arXiv:1910.07467).

    eps=None: the spacing of numbers at 1 in the element type, as PyTorch has it.
    """

    def __init__(self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True) -> None:
        self.shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.weight = _ones(self.shape) if elementwise_affine else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.shape, self.weight, self.eps)


class GroupNorm(Module):
    """Normalises groups of channels of each sample of [N, C, ...] (Wu and He, arXiv:1803.08494); weight and bias [C]."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise OptionError(f"GroupNorm: num_groups={num_groups} must divide num_channels={num_channels}.")
        self.num_groups, self.eps = num_groups, eps
        self.weight = _ones((num_channels,)) if affine else None
        self.bias = _zeros((num_channels,)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class InstanceNorm(Module):
    """Normalises each channel of each sample of [N, C, ...] by its own mean and variance; with `affine` weight and bias [C]."""

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = False) -> None:
        self.eps = eps
        self.weight = _ones((num_features,)) if affine else None
        self.bias = _zeros((num_features,)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        return instance_norm(x, self.weight, self.bias, self.eps)


class InstanceNorm1d(InstanceNorm):
    """InstanceNorm over [N, C, L]."""


class InstanceNorm2d(InstanceNorm):
    """InstanceNorm over [N, C, H, W]."""


class InstanceNorm3d(InstanceNorm):
    """InstanceNorm over [N, C, D, H, W]."""
