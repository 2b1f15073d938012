"""Pooling: the largest or the mean of windows."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ops.pool_volume import average_pool, max_pool
from ...system.errors import ShapeError
from ..tensor import Tensor
from .sizes import Size, per_axis


def pool(operator: str, input: Tensor, rank: int, kernel_size: Size, stride: Size | None, padding: Size, **attributes: Any) -> Tensor:
    """MaxPool or AveragePool over `rank` spatial axes; the stride is by default the kernel's size."""
    if len(input.shape) != rank + 2:
        raise ShapeError(f"{operator} of rank {rank} takes [N, C, ...] with {rank} spatial axes, got {list(input.shape)}.")
    kernel = per_axis(kernel_size, rank, "kernel_size of pooling")
    pads = per_axis(padding, rank, "padding of pooling")
    steps = kernel if stride is None else per_axis(stride, rank, "stride of pooling")
    given = {"kernel_shape": kernel, "strides": steps, "pads": pads + pads, **attributes}
    if rank < 3:
        return input.apply(operator, **given)
    b, x = input.trace.builder, input.value
    return Tensor(input.trace, max_pool(b, x, given)[0] if operator == "MaxPool" else average_pool(b, x, given))


def largest(input: Tensor, rank: int, kernel_size: Size, stride: Size | None, padding: Size, dilation: Size, ceil_mode: bool,
            return_indices: bool) -> Any:
    """The largest of each window; with `return_indices` also its place in its plane."""
    more = {"dilations": per_axis(dilation, rank, "dilation of pooling"), "ceil_mode": int(ceil_mode)}
    if not return_indices:
        return pool("MaxPool", input, rank, kernel_size, stride, padding, **more)
    if len(input.shape) != rank + 2:
        raise ShapeError(f"MaxPool of rank {rank} takes [N, C, ...] with {rank} spatial axes, got {list(input.shape)}.")
    kernel, pads = per_axis(kernel_size, rank, "kernel_size of pooling"), per_axis(padding, rank, "padding of pooling")
    steps = kernel if stride is None else per_axis(stride, rank, "stride of pooling")
    given = {"kernel_shape": kernel, "strides": steps, "pads": pads + pads, **more}
    y, places = (Tensor(input.trace, v) for v in max_pool(input.trace.builder, input.value, given, indices=True))
    starts = np.arange(math.prod(input.shape[:2])) * math.prod(input.shape[2:])             # ONNX counts places in the whole tensor
    return y, places - starts.reshape(*input.shape[:2], *[1] * rank)


def _mean(input: Tensor, rank: int, kernel_size: Size, stride: Size | None, padding: Size, ceil_mode: bool, count_include_pad: bool) -> Tensor:
    return pool("AveragePool", input, rank, kernel_size, stride, padding, ceil_mode=int(ceil_mode), count_include_pad=int(count_include_pad))


def max_pool1d(input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
               ceil_mode: bool = False, return_indices: bool = False) -> Any:
    """The largest of each window of [N, C, L]; with `return_indices` also its place in its plane."""
    return largest(input, 1, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
               ceil_mode: bool = False, return_indices: bool = False) -> Any:
    """The largest of each window of [N, C, H, W]; with `return_indices` also its place in its plane."""
    return largest(input, 2, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool3d(input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
               ceil_mode: bool = False, return_indices: bool = False) -> Any:
    """The largest of each window of [N, C, D, H, W]; with `return_indices` also its place in its plane."""
    return largest(input, 3, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def avg_pool1d(input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
               count_include_pad: bool = True) -> Tensor:
    """The mean of each window of [N, C, L]."""
    return _mean(input, 1, kernel_size, stride, padding, ceil_mode, count_include_pad)


def avg_pool2d(input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
               count_include_pad: bool = True) -> Tensor:
    """The mean of each window of [N, C, H, W]."""
    return _mean(input, 2, kernel_size, stride, padding, ceil_mode, count_include_pad)


def avg_pool3d(input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
               count_include_pad: bool = True) -> Tensor:
    """The mean of each window of [N, C, D, H, W]."""
    return _mean(input, 3, kernel_size, stride, padding, ceil_mode, count_include_pad)


def _windows(n: int, m: int) -> list[tuple[int, int]]:
    """Where the m windows over n elements begin and end."""
    return [(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]


def _outputs(input: Tensor, output_size: int | Sequence[int | None] | None, rank: int) -> list[int]:
    wanted = [output_size] * rank if output_size is None or isinstance(output_size, int) else list(output_size)
    if len(wanted) != rank or len(input.shape) < rank + 1 or any(m is not None and m < 1 for m in wanted):
        raise ShapeError(f"Adaptive pooling over {rank} axes needs so many sizes of at least 1, got {output_size} for {list(input.shape)}.")
    return [n if m is None else m for m, n in zip(wanted, input.shape[-rank:], strict=True)]


def adaptive_avg_pool(input: Tensor, output_size: int | Sequence[int | None] | None, rank: int) -> Tensor:
    """Means of as many windows along each of the last `rank` axes as `output_size` says (None: as many as elements)."""
    sizes = _outputs(input, output_size, rank)
    if set(sizes) == {1} and len(input.shape) == rank + 2:
        return input.apply("GlobalAveragePool")
    if rank < 3 and len(input.shape) == rank + 2 and all(n % m == 0 for n, m in zip(input.shape[2:], sizes, strict=True)):
        kernel = tuple(n // m for n, m in zip(input.shape[2:], sizes, strict=True))
        return pool("AveragePool", input, rank, kernel, None, 0)
    for axis, m in zip(range(-rank, 0), sizes, strict=True):
        n = input.shape[axis]
        shares = np.zeros((n, m))
        for i, (low, high) in enumerate(_windows(n, m)):
            shares[low:high, i] = 1 / (high - low)
        input = (input.transpose(axis, -1) @ shares).transpose(axis, -1)
    return input


def adaptive_max_pool(input: Tensor, output_size: int | Sequence[int | None] | None, rank: int) -> Tensor:
    """The largest of as many windows along each of the last `rank` axes as `output_size` says (None: as many as elements)."""
    for axis, m in zip(range(-rank, 0), _outputs(input, output_size, rank), strict=True):
        n = input.shape[axis]
        windows = _windows(n, m)
        widest = max(high - low for low, high in windows)
        places = np.array([[min(low + k, high - 1) for k in range(widest)] for low, high in windows])          # a window's last stands for more
        picked = input.index_select(axis, places.reshape(-1))
        input = picked.unflatten(axis, (m, widest)).amax(axis)
    return input


def adaptive_avg_pool1d(input: Tensor, output_size: int | Sequence[int]) -> Tensor:
    """[N, C, L] -> means of as equal windows as can be: [N, C, output_size]."""
    return adaptive_avg_pool(input, output_size, 1)


def adaptive_avg_pool2d(input: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
    """[N, C, H, W] -> means of as equal windows as can be: [N, C, *output_size]."""
    return adaptive_avg_pool(input, output_size, 2)


def adaptive_avg_pool3d(input: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
    """[N, C, D, H, W] -> means of as equal windows as can be: [N, C, *output_size]."""
    return adaptive_avg_pool(input, output_size, 3)


def adaptive_max_pool1d(input: Tensor, output_size: int | Sequence[int]) -> Tensor:
    """[N, C, L] -> largest elements of as equal windows as can be: [N, C, output_size]."""
    return adaptive_max_pool(input, output_size, 1)


def adaptive_max_pool2d(input: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
    """[N, C, H, W] -> largest elements of as equal windows as can be: [N, C, *output_size]."""
    return adaptive_max_pool(input, output_size, 2)


def adaptive_max_pool3d(input: Tensor, output_size: int | Sequence[int | None] | None) -> Tensor:
    """[N, C, D, H, W] -> largest elements of as equal windows as can be: [N, C, *output_size]."""
    return adaptive_max_pool(input, output_size, 3)
