"""Products with weights, lookups, convolutions."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...system.errors import OptionError, ShapeError
from ..tensor import Tensor, where
from .sizes import Size, per_axis


def linear(input: Tensor, weight: Any, bias: Any = None) -> Tensor:
    """x W^T + b: x [..., in], W [out, in], b [out]."""
    if len(input.shape) == 2:
        return input.apply("Gemm", weight, bias, transB=1)
    y: Tensor = input.apply("FusedMatMul", weight, transB=1)
    return y if bias is None else y + y.lift(bias).type_as(y)


def bilinear(input1: Tensor, input2: Tensor, weight: Any, bias: Any = None) -> Tensor:
    """x1^T W x2 + b: x1 [..., in1], x2 [..., in2], W [out, in1, in2], b [out]."""
    w = input1.lift(weight)
    out, first, second = w.shape
    products = input1 @ w.permute(1, 0, 2).reshape(first, out * second)
    y = (products.reshape(*input1.shape[:-1], out, second) * input2.unsqueeze(-2)).sum(-1)
    return y if bias is None else y + y.lift(bias).type_as(y)


def embedding(input: Tensor, weight: Any, padding_idx: int | None = None) -> Tensor:
    """Rows of a table [rows, size] by whole numbers [...]: [..., size]; the row `padding_idx` gets no gradient."""
    table = input.lift(weight)
    rows: Tensor = table.apply("Gather", input, axis=0)
    if padding_idx is None:
        return rows
    if not -table.shape[0] <= padding_idx < table.shape[0]:
        raise OptionError(f"embedding: padding_idx={padding_idx} is no row of a table of {table.shape[0]}.")
    return where((input == padding_idx % table.shape[0]).unsqueeze(-1), rows.detach(), rows)


def embedding_bag(input: Tensor, weight: Any, *, mode: str = "mean", per_sample_weights: Any = None, padding_idx: int | None = None) -> Tensor:
    """The sum, mean or maximum of the rows of a table that each bag [N, bag] of whole numbers names: [N, size].

    per_sample_weights [N, bag]: factors on the rows (sum only). padding_idx: a row that counts for nothing and gets no gradient; a bag of nothing
    else is zeros.
    """
    if mode not in ("sum", "mean", "max"):
        raise OptionError(f"embedding_bag: mode {mode!r} is unknown; it is sum, mean or max.")
    if len(input.shape) != 2:
        raise ShapeError(f"embedding_bag takes bags of one length, [N, bag], got {list(input.shape)}; fill short ones up with padding_idx.")
    if per_sample_weights is not None and mode != "sum":
        raise OptionError(f"embedding_bag: per_sample_weights are for mode='sum', not {mode!r}.")
    rows = embedding(input, weight, padding_idx)
    if per_sample_weights is not None:
        rows = rows * rows.lift(per_sample_weights).unsqueeze(-1)
    if padding_idx is None:
        return rows.sum(1) if mode == "sum" else rows.mean(1) if mode == "mean" else rows.amax(1)
    counts = (input != padding_idx % rows.lift(weight).shape[0]).unsqueeze(-1)
    if mode == "max":
        found = where(counts, rows, rows.lift(np.array(-np.inf))).amax(1)
        return where(counts.sum(1) > 0, found, 0)
    total = where(counts, rows, 0).sum(1)
    return total if mode == "sum" else total / counts.type_as(rows).sum(1).clamp(min=1)


def one_hot(input: Tensor, num_classes: int) -> Tensor:
    """int64: 1 at the place that each whole number [...] names along a new last axis, else 0. A number that is no class has no 1."""
    return (input.unsqueeze(-1) == np.arange(num_classes)).long()


def _pads(padding: Size | str, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...], what: str) -> tuple[int, ...]:
    """ONNX's pads: before each axis, then after."""
    rank = len(kernel)
    if not isinstance(padding, str):
        pads = per_axis(padding, rank, f"padding of {what}")
        return pads + pads
    if padding not in ("valid", "same"):
        raise OptionError(f"{what}: padding {padding!r} is unknown; it is a number, one for each axis, 'valid' or 'same'.")
    if padding == "same" and set(stride) != {1}:
        raise OptionError(f"{what}: padding='same' needs a stride of 1, got {list(stride)}.")
    both = [d * (k - 1) * (padding == "same") for k, d in zip(kernel, dilation, strict=True)]
    return (*(n // 2 for n in both), *(n - n // 2 for n in both))


def convolution(input: Tensor, weight: Any, bias: Any, rank: int, stride: Size = 1, padding: Size | str = 0, dilation: Size = 1,
                groups: int = 1) -> Tensor:
    """A convolution over `rank` spatial axes: x [N, C, *spatial], W [out, C / groups, *kernel], b [out]."""
    what = f"conv{rank}d"
    if len(input.shape) != rank + 2:
        raise ShapeError(f"{what} takes [N, C{', ...' * bool(rank)}] with {rank} spatial axes, got {list(input.shape)}.")
    w = input.lift(weight)
    kernel = w.shape[2:]
    steps, spread = per_axis(stride, rank, f"stride of {what}"), per_axis(dilation, rank, f"dilation of {what}")
    return input.apply("Conv", w, bias, strides=steps, pads=_pads(padding, kernel, steps, spread, what), dilations=spread,
                       group=groups, kernel_shape=kernel)


def conv1d(input: Tensor, weight: Any, bias: Any = None, stride: Size = 1, padding: Size | str = 0, dilation: Size = 1, groups: int = 1) -> Tensor:
    """Convolution over [N, C, L]; W [out, C / groups, kernel]. padding: a number, "valid" or "same"."""
    return convolution(input, weight, bias, 1, stride, padding, dilation, groups)


def conv2d(input: Tensor, weight: Any, bias: Any = None, stride: Size = 1, padding: Size | str = 0, dilation: Size = 1, groups: int = 1) -> Tensor:
    """Convolution over [N, C, H, W]; W [out, C / groups, kh, kw]. padding: one or two numbers, "valid" or "same"."""
    return convolution(input, weight, bias, 2, stride, padding, dilation, groups)


def conv3d(input: Tensor, weight: Any, bias: Any = None, stride: Size = 1, padding: Size | str = 0, dilation: Size = 1, groups: int = 1) -> Tensor:
    """Convolution over [N, C, D, H, W]; W [out, C / groups, kd, kh, kw]. padding: one or three numbers, "valid" or "same"."""
    return convolution(input, weight, bias, 3, stride, padding, dilation, groups)


def transposed_convolution(input: Tensor, weight: Any, bias: Any, rank: int, stride: Size = 1, padding: Size = 0, output_padding: Size = 0,
                           groups: int = 1, dilation: Size = 1) -> Tensor:
    """The convolution's transpose over `rank` spatial axes: x [N, C, *spatial], W [C, out / groups, *kernel], b [out]."""
    what = f"conv_transpose{rank}d"
    if len(input.shape) != rank + 2:
        raise ShapeError(f"{what} takes [N, C, ...] with {rank} spatial axes, got {list(input.shape)}.")
    pads = per_axis(padding, rank, f"padding of {what}")
    return input.apply("ConvTranspose", weight, bias, strides=per_axis(stride, rank, f"stride of {what}"), pads=pads + pads,
                       dilations=per_axis(dilation, rank, f"dilation of {what}"), group=groups,
                       output_padding=per_axis(output_padding, rank, f"output_padding of {what}"))


def conv_transpose1d(input: Tensor, weight: Any, bias: Any = None, stride: Size = 1, padding: Size = 0, output_padding: Size = 0,
                     groups: int = 1, dilation: Size = 1) -> Tensor:
    """Transposed convolution over [N, C, L]; W [C, out / groups, kernel]."""
    return transposed_convolution(input, weight, bias, 1, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(input: Tensor, weight: Any, bias: Any = None, stride: Size = 1, padding: Size = 0, output_padding: Size = 0,
                     groups: int = 1, dilation: Size = 1) -> Tensor:
    """Transposed convolution over [N, C, H, W]; W [C, out / groups, kh, kw]."""
    return transposed_convolution(input, weight, bias, 2, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(input: Tensor, weight: Any, bias: Any = None, stride: Size = 1, padding: Size = 0, output_padding: Size = 0,
                     groups: int = 1, dilation: Size = 1) -> Tensor:
    """Transposed convolution over [N, C, D, H, W]; W [C, out / groups, kd, kh, kw]."""
    return transposed_convolution(input, weight, bias, 3, stride, padding, output_padding, groups, dilation)
