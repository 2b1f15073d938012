"""Maxima put back where pooling found them."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...system.errors import ShapeError
from ..tensor import Tensor
from .sizes import Size, per_axis


def max_unpool(input: Tensor, indices: Tensor, rank: int, kernel_size: Size, stride: Size | None = None, padding: Size = 0,
               output_size: Sequence[int] | None = None) -> Tensor:
    """Zeros with the elements of `input` at `indices` of each plane, as max pooling over `rank` axes with return_indices told them."""
    if len(input.shape) != rank + 2:
        raise ShapeError(f"max_unpool over {rank} axes takes [N, C, ...] with so many spatial axes, got {list(input.shape)}.")
    kernel = per_axis(kernel_size, rank, "kernel_size of max_unpool")
    steps = kernel if stride is None else per_axis(stride, rank, "stride of max_unpool")
    pads = per_axis(padding, rank, "padding of max_unpool")
    if output_size is None:
        spatial = tuple((n - 1) * s - 2 * p + k for n, s, p, k in zip(input.shape[2:], steps, pads, kernel, strict=True))
    else:
        spatial = tuple(output_size)[-rank:]
    planes, size = math.prod(input.shape[:2]), math.prod(spatial)
    starts = (np.arange(planes) * size).reshape(*input.shape[:2], *[1] * rank)
    zeros = input.lift(0.0).apply("Expand", shape=(planes * size,))
    made = zeros.apply("ScatterElements", (indices + starts).reshape(-1), input.reshape(-1), axis=0)
    return made.reshape(*input.shape[:2], *spatial)            # type: ignore[no-any-return]


def max_unpool1d(input: Tensor, indices: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0,
                 output_size: Sequence[int] | None = None) -> Tensor:
    """What `max_pool1d` with return_indices undoes; all but the maxima are zeros."""
    return max_unpool(input, indices, 1, kernel_size, stride, padding, output_size)


def max_unpool2d(input: Tensor, indices: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0,
                 output_size: Sequence[int] | None = None) -> Tensor:
    """What `max_pool2d` with return_indices undoes; all but the maxima are zeros."""
    return max_unpool(input, indices, 2, kernel_size, stride, padding, output_size)


def max_unpool3d(input: Tensor, indices: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0,
                 output_size: Sequence[int] | None = None) -> Tensor:
    """What `max_pool3d` with return_indices undoes; all but the maxima are zeros."""
    return max_unpool(input, indices, 3, kernel_size, stride, padding, output_size)
