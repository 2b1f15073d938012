"""Windows taken apart and put together, grids that are sampled, channels that change places, and pooling by a norm."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...system.errors import OptionError, ShapeError
from ..tensor import Tensor, stack
from .pooling import pool
from .shape import pad
from .sizes import Size, per_axis


def unfold(input: Tensor, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1) -> Tensor:
    """The windows of [N, C, H, W] as columns: [N, C kh kw, windows]."""
    if len(input.shape) != 4:
        raise ShapeError(f"unfold takes [N, C, H, W], got {list(input.shape)}.")
    kernel, spread, steps, around = _windows(kernel_size, dilation, stride, padding, "unfold")
    x = pad(input, (around[1], around[1], around[0], around[0])) if any(around) else input
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, k, d, s in zip(x.shape[2:], kernel, spread, steps, strict=True)]
    if min(counts) < 1:
        raise ShapeError(f"unfold: a window of {list(kernel)} does not fit into {list(x.shape[2:])}.")
    taps = [x[:, :, i * spread[0]:i * spread[0] + steps[0] * (counts[0] - 1) + 1:steps[0],
              j * spread[1]:j * spread[1] + steps[1] * (counts[1] - 1) + 1:steps[1]] for i in range(kernel[0]) for j in range(kernel[1])]
    return stack(taps, 2).reshape(x.shape[0], x.shape[1] * len(taps), math.prod(counts))


def fold(input: Tensor, output_size: Size, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1) -> Tensor:
    """Columns [N, C kh kw, windows] added up where their windows lie in an image [N, C, *output_size]."""
    if len(input.shape) != 3:
        raise ShapeError(f"fold takes [N, C kh kw, windows], got {list(input.shape)}.")
    kernel, spread, steps, around = _windows(kernel_size, dilation, stride, padding, "fold")
    return input.apply("Col2Im", image_shape=per_axis(output_size, 2, "output_size of fold"), block_shape=kernel, dilations=spread,
                       pads=around + around, strides=steps)


def _windows(kernel: Size, dilation: Size, stride: Size, padding: Size, what: str) -> tuple[tuple[int, ...], ...]:
    named = {"kernel_size": kernel, "dilation": dilation, "stride": stride, "padding": padding}
    return tuple(per_axis(size, 2, f"{name} of {what}") for name, size in named.items())


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """[N, C, ...] with the channels of `groups` groups dealt out in turn (Zhang et al., arXiv:1707.01083)."""
    if groups < 1 or input.shape[1] % groups:
        raise ShapeError(f"channel_shuffle: groups={groups} must divide the channels of {list(input.shape)}.")
    split = input.reshape(input.shape[0], groups, input.shape[1] // groups, *input.shape[2:])
    return split.transpose(1, 2).reshape(*input.shape)


SAMPLING = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}
"""ONNX's words for PyTorch's."""


def grid_sample(input: Tensor, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False) -> Tensor:
    """[N, C, H, W] at the places of a grid [N, h, w, 2] of x and y from -1 to 1 (volumes: [N, d, h, w, 3]): [N, C, h, w]."""
    if mode not in SAMPLING:
        raise OptionError(f"grid_sample: mode {mode!r} is unknown; it is one of {', '.join(SAMPLING)}.")
    if mode == "bicubic" and padding_mode == "border":
        raise OptionError("grid_sample: bicubic is for padding_mode zeros or reflection; ONNX, whose operator this is, takes other elements at a "
                          "border than PyTorch does.")
    return input.apply("GridSample", grid, mode=SAMPLING[mode], padding_mode=padding_mode, align_corners=int(align_corners))


def affine_grid(theta: Tensor, size: tuple[int, ...] | list[int], align_corners: bool = False) -> Tensor:
    """The grid of `grid_sample` for affine maps theta [N, 2, 3] (volumes: [N, 3, 4]) and an output of this size, [N, C, H, W]."""
    if align_corners and 1 in tuple(size)[2:]:
        raise OptionError(f"affine_grid: with align_corners an axis of one element has no ends; got size {list(size)}.")
    return theta.apply("AffineGrid", size=tuple(size), align_corners=int(align_corners))


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x / (k + alpha * mean of the squares of `size` neighbouring channels)^beta for [N, C, ...] (Krizhevsky et al., 2012).

    An even size looks one channel further back than ahead, as in PyTorch.
    """
    if len(input.shape) < 3 or size < 1:
        raise ShapeError(f"local_response_norm takes [N, C, ...] and at least one channel, got {list(input.shape)} and size={size}.")
    squares = (input * input).reshape(input.shape[0], 1, input.shape[1], -1)
    means = pool("AveragePool", pad(squares, (0, 0, size // 2, (size - 1) // 2)), 2, (size, 1), 1, 0)
    return input / (means.reshape(*input.shape) * alpha + k) ** beta


def lp_pool(input: Tensor, norm_type: float, kernel_size: Size, stride: Size | None, ceil_mode: bool, rank: int) -> Tensor:
    """(sum of |x|^p)^(1/p) of each window over `rank` spatial axes; a negative sum of x^p gives 0, as in PyTorch."""
    kernel = per_axis(kernel_size, rank, "kernel_size of pooling")
    means = pool("AveragePool", input ** norm_type, rank, kernel, stride, 0, ceil_mode=int(ceil_mode), count_include_pad=1)
    return (means.sign() * means.abs().relu() * float(np.prod(kernel))) ** (1.0 / norm_type)


def lp_pool1d(input: Tensor, norm_type: float, kernel_size: Size, stride: Size | None = None, ceil_mode: bool = False) -> Tensor:
    """The p-norm of each window of [N, C, L]."""
    return lp_pool(input, norm_type, kernel_size, stride, ceil_mode, 1)


def lp_pool2d(input: Tensor, norm_type: float, kernel_size: Size, stride: Size | None = None, ceil_mode: bool = False) -> Tensor:
    """The p-norm of each window of [N, C, H, W]."""
    return lp_pool(input, norm_type, kernel_size, stride, ceil_mode, 2)


def lp_pool3d(input: Tensor, norm_type: float, kernel_size: Size, stride: Size | None = None, ceil_mode: bool = False) -> Tensor:
    """The p-norm of each window of [N, C, D, H, W]."""
    return lp_pool(input, norm_type, kernel_size, stride, ceil_mode, 3)
