"""Normalisation kernels: batch statistics per channel of x[n, channels, inner], layer statistics per row, their gradients.

Statistics take two passes (the mean, then squares of differences from it), summed by blocks as in `reduce`, so a mean far
from zero costs no accuracy. All arrays are passed flat.
"""
from __future__ import annotations

import functools
import math
from typing import Any

from numba import njit

from .leaf import Leaf
from .reduce import BLOCK, LANES, block_sum

CHANNELS = 64             # neighbouring channels that one unit handles where inner is 1


@njit(fastmath=LANES)
def _block_squares(x: Any, mean: Any) -> Any:
    total = x.dtype.type(0)
    for i in range(x.shape[0]):
        total += (x[i] - mean) * (x[i] - mean)
    return total


@njit(fastmath=LANES)
def _block_product(g: Any, x: Any, mean: Any) -> Any:
    total = x.dtype.type(0)
    for i in range(x.shape[0]):
        total += g[i] * (x[i] - mean)
    return total


@njit
def _row_sum(x: Any) -> Any:
    total = 0.0
    for first in range(0, x.shape[0], BLOCK):
        total += block_sum(x[first:first + BLOCK])
    return total


@njit
def _row_squares(x: Any, mean: Any) -> Any:
    """Sum of (x - mean)^2."""
    total = 0.0
    for first in range(0, x.shape[0], BLOCK):
        total += _block_squares(x[first:first + BLOCK], mean)
    return total


@njit
def row_product(g: Any, x: Any, mean: Any) -> Any:
    """Sum of g * (x - mean)."""
    total = 0.0
    for first in range(0, x.shape[0], BLOCK):
        total += _block_product(g[first:first + BLOCK], x[first:first + BLOCK], mean)
    return total


@njit(fastmath={"contract"})
def _normalise(x: Any, y: Any, mean: Any, factor: Any, shift: Any) -> None:
    """y = (x - mean) * factor + shift."""
    for i in range(y.shape[0]):
        y[i] = (x[i] - mean) * factor + shift


@njit(fastmath={"contract"})
def pull(g: Any, x: Any, dx: Any, mean: Any, factor: Any, tilt: Any, level: Any) -> None:
    """dx = (g - (x - mean) * tilt - level) * factor."""
    for i in range(dx.shape[0]):
        dx[i] = (g[i] - (x[i] - mean) * tilt - level) * factor


def _batch_norm(x: Any, scale: Any, shift: Any, y: Any, means: Any, variances: Any, inverses: Any, lo: int, hi: int,
                n: int, inner: int, epsilon: float) -> None:
    """Normalise each channel by its own mean and (population) variance; a unit of range is a channel."""
    kind = x.dtype.type
    channels, count = scale.shape[0], float(n * inner)
    for c in range(lo, hi):
        total = 0.0
        for k in range(n):
            at = (k * channels + c) * inner
            total += _row_sum(x[at:at + inner])
        mean = kind(total / count)
        total = 0.0
        for k in range(n):
            at = (k * channels + c) * inner
            total += _row_squares(x[at:at + inner], mean)
        variance = total / count
        inverse = 1.0 / math.sqrt(variance + epsilon)
        means[c], variances[c], inverses[c] = mean, variance, inverse
        for k in range(n):
            at = (k * channels + c) * inner
            _normalise(x[at:at + inner], y[at:at + inner], mean, kind(inverse * scale[c]), shift[c])


def _batch_norm_flat(x: Any, scale: Any, shift: Any, y: Any, means: Any, variances: Any, inverses: Any, sums: Any,
                     lo: int, hi: int, n: int, epsilon: float) -> None:
    """The same with inner = 1; a unit of range is a strip of CHANNELS channels."""
    kind = x.dtype.type
    channels, count = scale.shape[0], float(n)
    for unit in range(lo, hi):
        first = unit * CHANNELS
        width = min(channels - first, CHANNELS)
        mean, total = means[first:first + width], sums[:width]
        for c in range(width):
            total[c] = 0.0
        for k in range(n):
            row = x[k * channels + first:k * channels + first + width]
            for c in range(width):
                total[c] += row[c]
        for c in range(width):
            mean[c] = kind(total[c] / count)
            total[c] = 0.0
        for k in range(n):
            row = x[k * channels + first:k * channels + first + width]
            for c in range(width):
                total[c] += (row[c] - mean[c]) * (row[c] - mean[c])
        factor, offset = inverses[first:first + width], shift[first:first + width]
        for c in range(width):
            variance = total[c] / count
            variances[first + c] = variance
            total[c] = 1.0 / math.sqrt(variance + epsilon)
            factor[c] = kind(total[c] * scale[first + c])
        for k in range(n):
            row = x[k * channels + first:k * channels + first + width]
            target = y[k * channels + first:k * channels + first + width]
            for c in range(width):
                target[c] = (row[c] - mean[c]) * factor[c] + offset[c]
        for c in range(width):
            factor[c] = kind(total[c])


def _batch_norm_grad(g: Any, x: Any, scale: Any, means: Any, inverses: Any, dx: Any, dscale: Any, dshift: Any, lo: int, hi: int,
                     n: int, inner: int) -> None:
    """dshift = sum g, dscale = sum g xhat, dx = scale inverse (g - mean(g) - xhat mean(g xhat)); a unit is a channel."""
    kind = x.dtype.type
    channels, count = scale.shape[0], float(n * inner)
    for c in range(lo, hi):
        mean, inverse = means[c], float(inverses[c])
        total, product = 0.0, 0.0
        for k in range(n):
            at = (k * channels + c) * inner
            total += _row_sum(g[at:at + inner])
            product += row_product(g[at:at + inner], x[at:at + inner], mean)
        dshift[c], dscale[c] = total, product * inverse
        factor, tilt = kind(scale[c] * inverse), kind(product * inverse * inverse / count)
        for k in range(n):
            at = (k * channels + c) * inner
            pull(g[at:at + inner], x[at:at + inner], dx[at:at + inner], mean, factor, tilt, kind(total / count))


def _batch_norm_grad_flat(g: Any, x: Any, scale: Any, means: Any, inverses: Any, dx: Any, dscale: Any, dshift: Any, sums: Any,
                          products: Any, lo: int, hi: int, n: int) -> None:
    """The same with inner = 1; a unit of range is a strip of CHANNELS channels."""
    kind = x.dtype.type
    channels, count = scale.shape[0], float(n)
    for unit in range(lo, hi):
        first = unit * CHANNELS
        width = min(channels - first, CHANNELS)
        mean, total, product = means[first:first + width], sums[:width], products[:width]
        for c in range(width):
            total[c], product[c] = 0.0, 0.0
        for k in range(n):
            at = k * channels + first
            gradient, row = g[at:at + width], x[at:at + width]
            for c in range(width):
                total[c] += gradient[c]
                product[c] += gradient[c] * (row[c] - mean[c])
        for c in range(width):
            inverse = float(inverses[first + c])
            dshift[first + c], dscale[first + c] = total[c], product[c] * inverse
            total[c], product[c] = total[c] / count, product[c] * inverse * inverse / count
        for k in range(n):
            at = k * channels + first
            gradient, row, target = g[at:at + width], x[at:at + width], dx[at:at + width]
            for c in range(width):
                pulled = gradient[c] - (row[c] - mean[c]) * kind(product[c]) - kind(total[c])
                target[c] = pulled * (scale[first + c] * inverses[first + c])


def _inverse_std(variance: Any, y: Any, epsilon: float) -> None:
    """y = 1 / sqrt(variance + epsilon)."""
    for c in range(y.shape[0]):
        y[c] = 1.0 / math.sqrt(variance[c] + epsilon)


def _layer_norm(x: Any, scale: Any, shift: Any, y: Any, means: Any, inverses: Any, epsilon: float) -> None:
    """Normalise each row by its own mean and variance, then times `scale` plus `shift` per column."""
    kind = x.dtype.type
    for r in range(y.shape[0]):
        row, target = x[r], y[r]
        count = float(row.shape[0])
        mean = kind(_row_sum(row) / count)
        inverse = kind(1.0 / math.sqrt(_row_squares(row, mean) / count + epsilon))
        means[r], inverses[r] = mean, inverse
        for i in range(target.shape[0]):
            target[i] = (row[i] - mean) * inverse * scale[i] + shift[i]


def _layer_norm_grad(g: Any, x: Any, scale: Any, means: Any, inverses: Any, dx: Any, part: Any) -> None:
    """dx = inverse (h - mean(h) - xhat mean(h xhat)) with h = g scale."""
    kind = x.dtype.type
    for r in range(dx.shape[0]):
        gradient, row, target, mean = g[r], x[r], dx[r], means[r]
        inverse, count = float(inverses[r]), float(row.shape[0])
        for i in range(row.shape[0]):
            part[i] = gradient[i] * scale[i]
        level = kind(_row_sum(part) / count)
        tilt = kind(row_product(part, row, mean) * inverse * inverse / count)
        pull(part, row, target, mean, kind(inverse), tilt, level)


@functools.cache
def norm_leaf(name: str, t: str) -> Leaf:
    """A normalisation leaf for element type `t`; the names are those of the functions above."""
    flat, row, one = f"{t}[:]", f"{t}[r,:]", f"{t}[r]"
    signatures: dict[str, tuple[Any, list[str]]] = {
        "batch_norm": (_batch_norm, [*[flat] * 7, "lo", "hi", "i8", "i8", "f8"]),
        "batch_norm_flat": (_batch_norm_flat, [*[flat] * 7, "f8[w,:]", "lo", "hi", "i8", "f8"]),
        "batch_norm_grad": (_batch_norm_grad, [*[flat] * 8, "lo", "hi", "i8", "i8"]),
        "batch_norm_grad_flat": (_batch_norm_grad_flat, [*[flat] * 8, "f8[w,:]", "f8[w,:]", "lo", "hi", "i8"]),
        "inverse_std": (_inverse_std, [one, one, "f8"]),
        "layer_norm": (_layer_norm, [row, flat, flat, row, one, one, "f8"]),
        "layer_norm_grad": (_layer_norm_grad, [row, row, flat, one, one, row, f"{t}[w,:]"]),
    }
    body, signature = signatures[name]
    return Leaf(body, ", ".join(signature))
