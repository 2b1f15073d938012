"""Normalisation of rows, groups and channels, dropout, and distances."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...system.errors import OptionError, ShapeError
from ..tensor import Tensor

SPACING = {"float32": 2.0 ** -23, "float64": 2.0 ** -52, "float16": 2.0 ** -10, "bfloat16": 2.0 ** -7}
"""From 1 to the next number of each element type."""


def _rows(input: Tensor, normalized_shape: int | Sequence[int], what: str) -> tuple[int, ...]:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or input.shape[-len(shape):] != shape:
        raise ShapeError(f"{what}: the last axes of {list(input.shape)} are not {list(shape)}.")
    return shape


def layer_norm(input: Tensor, normalized_shape: int | Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    """weight * (x - mean) / sqrt(variance + eps) + bias over the last axes, which have the shape `normalized_shape`."""
    shape = _rows(input, normalized_shape, "layer_norm")
    scale = np.ones(shape) if weight is None else weight
    return input.apply("LayerNormalization", scale, bias, axis=-len(shape), epsilon=eps)[0]


def rms_norm(input: Tensor, normalized_shape: int | Sequence[int], weight: Any = None, eps: float | None = None) -> Tensor:
    """weight * x / sqrt(mean(x^2) + eps) over the last axes (Zhang and Sennrich, arXiv:1910.07467); eps=None: the numbers' spacing at 1."""
    shape = _rows(input, normalized_shape, "rms_norm")
    scale = np.ones(shape) if weight is None else weight
    return input.apply("RMSNormalization", scale, axis=-len(shape), epsilon=SPACING[input.dtype] if eps is None else eps)[0]


def instance_norm(input: Tensor, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    """Each channel of each sample of [N, C, ...] by its own mean and variance."""
    channels = input.shape[1]
    return input.apply("InstanceNormalization", np.ones(channels) if weight is None else weight,
                       np.zeros(channels) if bias is None else bias, epsilon=eps)


def group_norm(input: Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    """Groups of channels of each sample of [N, C, ...] by their own mean and variance (Wu and He, arXiv:1803.08494); weight and bias [C]."""
    if len(input.shape) < 2 or num_groups < 1 or input.shape[1] % num_groups:
        raise ShapeError(f"group_norm: num_groups={num_groups} must divide the channels of {list(input.shape)}.")
    channels = input.shape[1]
    return input.apply("GroupNormalization", np.ones(channels) if weight is None else weight,
                       np.zeros(channels) if bias is None else bias, num_groups=num_groups, epsilon=eps)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x / max(|x|_p, eps) along an axis."""
    return input / input.norm(p, dim, True).clamp(min=eps)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """x1 . x2 / (max(|x1|, eps) max(|x2|, eps)) along an axis."""
    return (x1 * x2).sum(dim) / (x1.norm(2, dim).clamp(min=eps) * x2.norm(2, dim).clamp(min=eps))


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """|x1 - x2 + eps|_p along the last axis."""
    return (x1 - x2 + eps).norm(p, -1, keepdim)


def dropout(input: Tensor, p: float = 0.5, training: bool | None = None) -> Tensor:
    """Zeroes each element with probability p and scales the others by 1 / (1 - p).

    training: None, unlike PyTorch, means in training models only; True means in inference models, too.
    """
    if not 0 <= p < 1:
        raise OptionError(f"Dropout: p must be in [0, 1), got {p}.")
    if not (input.trace.training if training is None else training) or p == 0:
        return input
    return input.apply("Dropout", ratio=p, training_mode=True, stream=input.trace.stream())


def feature_dropout(input: Tensor, p: float = 0.5, training: bool | None = None) -> Tensor:
    """Dropout of whole channels of [N, C, ...]."""
    kept = dropout(input.lift(np.ones((*input.shape[:2], *[1] * (len(input.shape) - 2)))), p, training)
    return input if p == 0 or not (input.trace.training if training is None else training) else input * kept


dropout1d = dropout2d = dropout3d = feature_dropout


SATURATED = -1.7580993408473766
"""What SELU gives for very negative numbers: -scale * alpha (Klambauer et al., arXiv:1706.02515)."""


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool | None = None) -> Tensor:
    """Each element becomes SELU's lowest value with probability p; mean and variance stay, as a scale and a shift see to."""
    return _saturating(input, input.shape, p, training)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool | None = None) -> Tensor:
    """`alpha_dropout` of whole channels of [N, C, ...]."""
    return _saturating(input, (*input.shape[:2], *[1] * (len(input.shape) - 2)), p, training)


def _saturating(input: Tensor, shape: Sequence[int], p: float, training: bool | None) -> Tensor:
    kept = dropout(input.lift(np.ones(shape)), p, training)
    if p == 0 or not (input.trace.training if training is None else training):
        return input
    kept = kept * (1 - p)
    scale = 1 / math.sqrt((1 - p) * (1 + p * SATURATED ** 2))
    return (input * kept + (1 - kept) * SATURATED) * scale - scale * SATURATED * p
