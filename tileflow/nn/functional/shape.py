"""Padding, resizing, and moving channels into space and back."""
from __future__ import annotations

from collections.abc import Sequence

from ...system.errors import OptionError, ShapeError
from ..tensor import Tensor
from .pooling import adaptive_avg_pool
from .sizes import Size, per_axis

PADDING = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
"""ONNX's words for PyTorch's."""
RESIZING = {"nearest": "nearest", "nearest-exact": "nearest", "linear": "linear", "bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}
"""ONNX's words for PyTorch's."""


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """More elements around: `pad` has (before, after) of the last axis, then of the one before it, and so on; negative ones cut.

    mode: "constant" (`value`, 0), "reflect", "replicate" or "circular".
    """
    if mode not in PADDING:
        raise OptionError(f"pad: mode {mode!r} is unknown; it is one of {', '.join(PADDING)}.")
    rank = len(input.shape)
    if len(pad) % 2 or len(pad) > 2 * rank:
        raise ShapeError(f"pad: {list(pad)} must hold two numbers for each of at most {rank} axes of {list(input.shape)}.")
    pairs = [(0, 0)] * (rank - len(pad) // 2) + list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    pads = (*(before for before, _ in pairs), *(after for _, after in pairs))
    return input.apply("Pad", pads=pads, mode=PADDING[mode], value=value or 0.0)


def interpolate(input: Tensor, size: Size | None = None, scale_factor: float | Sequence[float] | None = None, mode: str = "nearest",
                align_corners: bool = False, antialias: bool = False) -> Tensor:
    """[N, C, *spatial] with other spatial sizes, given as such or by factors; which neighbours make an element is what PyTorch's modes say.

    mode: nearest, nearest-exact, linear, bilinear, trilinear, bicubic or area.
    """
    rank = len(input.shape) - 2
    if (size is None) == (scale_factor is None):
        raise OptionError(f"interpolate takes either size or scale_factor, got size={size} and scale_factor={scale_factor}.")
    if size is None:
        assert scale_factor is not None
        factors = (float(scale_factor),) * rank if isinstance(scale_factor, (int, float)) else tuple(scale_factor)
        if len(factors) != rank:
            raise OptionError(f"interpolate: scale_factor {list(factors)} must have a number for each of {rank} axes.")
        sizes = tuple(int(n * f) for n, f in zip(input.shape[2:], factors, strict=True))
    else:
        sizes = per_axis(size, rank, "size of interpolate")
    if mode == "area":
        return adaptive_avg_pool(input, sizes, rank)
    if mode not in RESIZING:
        raise OptionError(f"interpolate: mode {mode!r} is unknown; it is one of {', '.join(RESIZING)}, area.")
    where = "asymmetric" if mode == "nearest" else "align_corners" if align_corners else "half_pixel"
    sized = {"sizes": sizes} if size is not None else {"scales": factors}
    return input.apply("Resize", **sized, axes=tuple(range(2, rank + 2)), mode=RESIZING[mode], coordinate_transformation_mode=where,
                       nearest_mode="floor" if mode == "nearest" else "round_prefer_ceil", antialias=int(antialias))


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """[N, C r^2, H, W] -> [N, C, H r, W r] (Shi et al., arXiv:1609.05158)."""
    n, channels, height, width = input.shape
    r = upscale_factor
    if r < 1 or channels % (r * r):
        raise ShapeError(f"pixel_shuffle: the channels of {list(input.shape)} do not divide by {r} x {r}.")
    split = input.reshape(n, channels // (r * r), r, r, height, width)
    return split.permute(0, 1, 4, 2, 5, 3).reshape(n, channels // (r * r), height * r, width * r)


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """[N, C, H r, W r] -> [N, C r^2, H, W]: what `pixel_shuffle` undoes."""
    n, channels, height, width = input.shape
    r = downscale_factor
    if r < 1 or height % r or width % r:
        raise ShapeError(f"pixel_unshuffle: the last axes of {list(input.shape)} do not divide by {r}.")
    split = input.reshape(n, channels, height // r, r, width // r, r)
    return split.permute(0, 1, 3, 5, 2, 4).reshape(n, channels * r * r, height // r, width // r)
