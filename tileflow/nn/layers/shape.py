"""Layers that move, drop, pad or resize."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...system.errors import OptionError
from .. import functional as F
from ..functional.sizes import Size
from ..module import Module
from ..tensor import Tensor


class Identity(Module):
    """x; whatever it is made with counts for nothing, as in PyTorch."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return x


@dataclass(eq=False)
class Flatten(Module):
    """Axes start_dim to end_dim as one: by default all but the first."""

    start_dim: int = 1
    end_dim: int = -1

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(self.start_dim, self.end_dim)


@dataclass(eq=False)
class Unflatten(Module):
    """One axis as several of these sizes; one may be -1."""

    dim: int
    unflattened_size: Sequence[int]

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(self.dim, self.unflattened_size)


class Dropout(Module):
    """Zeroes each element with probability `p` while training and scales the others by 1 / (1 - p)."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        if not 0 <= p < 1:
            raise OptionError(f"{type(self).__name__}: p must be in [0, 1), got {p}.")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p)


class _FeatureDropout(Dropout):
    """Dropout of whole channels of [N, C, ...]."""

    def forward(self, x: Tensor) -> Tensor:
        return F.feature_dropout(x, self.p)


class Dropout1d(_FeatureDropout):
    """Dropout of whole channels of [N, C, L]."""


class Dropout2d(_FeatureDropout):
    """Dropout of whole channels of [N, C, H, W]."""


class Dropout3d(_FeatureDropout):
    """Dropout of whole channels of [N, C, D, H, W]."""


class AlphaDropout(Dropout):
    """Dropout that keeps the mean and variance of what SELU makes (Klambauer et al., arXiv:1706.02515)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.alpha_dropout(x, self.p)


class FeatureAlphaDropout(Dropout):
    """`AlphaDropout` of whole channels of [N, C, ...]."""

    def forward(self, x: Tensor) -> Tensor:
        return F.feature_alpha_dropout(x, self.p)


@dataclass(eq=False)
class Upsample(Module):
    """[N, C, *spatial] with other spatial sizes; see `tileflow.nn.functional.interpolate`."""

    size: Size | None = None
    scale_factor: float | Sequence[float] | None = None
    mode: str = "nearest"
    align_corners: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)


class UpsamplingNearest2d(Upsample):
    """[N, C, H, W] with other spatial sizes: the nearest elements."""

    def __init__(self, size: Size | None = None, scale_factor: float | Sequence[float] | None = None) -> None:
        super().__init__(size, scale_factor)


class UpsamplingBilinear2d(Upsample):
    """[N, C, H, W] with other spatial sizes: between neighbours, corners on corners."""

    def __init__(self, size: Size | None = None, scale_factor: float | Sequence[float] | None = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


@dataclass(eq=False)
class PixelShuffle(Module):
    """[N, C r^2, H, W] -> [N, C, H r, W r] (Shi et al., arXiv:1609.05158)."""

    upscale_factor: int

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(x, self.upscale_factor)


@dataclass(eq=False)
class PixelUnshuffle(Module):
    """[N, C, H r, W r] -> [N, C r^2, H, W]."""

    downscale_factor: int

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_unshuffle(x, self.downscale_factor)


class _Pad(Module):
    rank, mode = 2, "constant"

    def __init__(self, padding: int | Sequence[int], value: float = 0.0) -> None:
        self.padding = [padding] * (2 * self.rank) if isinstance(padding, int) else list(padding)
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, self.padding, self.mode, self.value)


class ConstantPad1d(_Pad):
    """`value` around [N, C, L]: padding (left, right)."""

    rank = 1


class ConstantPad2d(_Pad):
    """`value` around [N, C, H, W]: padding (left, right, top, bottom)."""


class ZeroPad1d(_Pad):
    """Zeros around [N, C, L]: padding (left, right)."""

    rank = 1


class ZeroPad2d(_Pad):
    """Zeros around [N, C, H, W]: padding (left, right, top, bottom)."""


class ConstantPad3d(_Pad):
    """`value` around [N, C, D, H, W]: padding (left, right, top, bottom, front, back)."""

    rank = 3


class ZeroPad3d(_Pad):
    """Zeros around [N, C, D, H, W]: padding (left, right, top, bottom, front, back)."""

    rank = 3


class ReflectionPad1d(_Pad):
    """[N, C, L] mirrored at its ends: padding (left, right)."""

    rank, mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """[N, C, H, W] mirrored at its borders: padding (left, right, top, bottom)."""

    mode = "reflect"


class ReflectionPad3d(_Pad):
    """[N, C, D, H, W] mirrored at its borders: padding (left, right, top, bottom, front, back)."""

    rank, mode = 3, "reflect"


class ReplicationPad1d(_Pad):
    """[N, C, L] with its outermost elements repeated: padding (left, right)."""

    rank, mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """[N, C, H, W] with its outermost elements repeated: padding (left, right, top, bottom)."""

    mode = "replicate"


class ReplicationPad3d(_Pad):
    """[N, C, D, H, W] with its outermost elements repeated: padding (left, right, top, bottom, front, back)."""

    rank, mode = 3, "replicate"


class CircularPad1d(_Pad):
    """[N, C, L] as a circle: padding (left, right)."""

    rank, mode = 1, "circular"


class CircularPad2d(_Pad):
    """[N, C, H, W] as a torus: padding (left, right, top, bottom)."""

    mode = "circular"


class CircularPad3d(_Pad):
    """[N, C, D, H, W] as a torus: padding (left, right, top, bottom, front, back)."""

    rank, mode = 3, "circular"


@dataclass(eq=False)
class CosineSimilarity(Module):
    """The cosine between two tensors along an axis."""

    dim: int = 1
    eps: float = 1e-8

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


@dataclass(eq=False)
class PairwiseDistance(Module):
    """|x1 - x2 + eps|_p along the last axis."""

    p: float = 2.0
    eps: float = 1e-6
    keepdim: bool = False

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.pairwise_distance(x1, x2, self.p, self.eps, self.keepdim)
