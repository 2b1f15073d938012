"""Row kernels: softmax, log-softmax and their gradients, one row of classes per unit of range."""
from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .call import Call, In, Out, Work
from .leaf import Leaf
from .move import Axis, move
from .reduce import BLOCK, block_sum

F = np.float32
_LOG2E, _LN2_HIGH, _LN2_LOW = F(1.44269504), F(0.693359375), F(-2.12194440e-4)
_ROUND = F(12582912.0)    # 1.5 * 2^23: adding it leaves the rounded integer in the low bits
_LEAST = F(-104.0)        # exp of it rounds to 0
_C5, _C4, _C3, _C2, _C1, _C0 = (F(c) for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2,
                                               1.6666665459e-1, 5.0000001201e-1))


@intrinsic
def _bits(_typing: Any, x: Any) -> Any:
    """The bits of a float32."""
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))
    return types.int32(types.float32), generate


@intrinsic
def _power_of_two(_typing: Any, n: Any) -> Any:
    """2**n as float32 for -126 <= n <= 127."""
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        biased = builder.add(args[0], ir.Constant(ir.IntType(32), 127))
        return builder.bitcast(builder.shl(biased, ir.Constant(ir.IntType(32), 23)), ir.FloatType())
    return types.float32(types.int32), generate


@intrinsic
def _half(_typing: Any, n: Any) -> Any:
    """n >> 1 within 32 bits."""
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.ashr(args[0], ir.Constant(ir.IntType(32), 1))
    return types.int32(types.int32), generate


@intrinsic
def _minus(_typing: Any, a: Any, b: Any) -> Any:
    """a - b within 32 bits (Numba would widen to 64 and halve the vector lanes)."""
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.sub(args[0], args[1])
    return types.int32(types.int32, types.int32), generate


@njit(fastmath={"contract"})
def exp_f4(x: Any) -> Any:
    """exp(x) for x <= 0 in float32, about 1 ulp, denormals and NaN included (Cephes expf's polynomial)."""
    x = _LEAST if x < _LEAST else x
    shifted = x * _LOG2E + _ROUND
    n = shifted - _ROUND
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = ((((_C5 * r + _C4) * r + _C3) * r + _C2) * r + _C1) * r + _C0
    power = _minus(_bits(shifted), _bits(_ROUND))
    first = _half(power)
    return ((p * r * r + r) + F(1)) * _power_of_two(first) * _power_of_two(_minus(power, first))


@njit
def exp_f8(x: Any) -> Any:
    """exp(x) in float64."""
    return math.exp(x)


EXP = {"f4": exp_f4, "f8": exp_f8}


@njit(fastmath={"nnan", "nsz"})
def row_max(x: Any) -> Any:
    """The largest number of a row. With a NaN in the row anything may come out: exp(x - result) has the NaN anyway."""
    best = x[0]
    for i in range(x.shape[0]):
        best = x[i] if x[i] > best else best
    return best


@njit
def row_sum(x: Any) -> Any:
    """The sum of a row in float64, by blocks in the row's type."""
    total = 0.0
    for first in range(0, x.shape[0], BLOCK):
        total += block_sum(x[first:first + BLOCK])
    return total


@functools.cache
def exp_sum(dtype: str) -> Any:
    """The function (x, largest) -> sum of exp(x - largest) of a row."""
    exp = EXP[dtype]

    @njit(fastmath={"reassoc", "nsz"})
    def block(x: Any, largest: Any) -> Any:
        total = x.dtype.type(0)
        for i in range(x.shape[0]):
            total += exp(x[i] - largest)
        return total

    @njit
    def total(x: Any, largest: Any) -> Any:
        found = 0.0
        for first in range(0, x.shape[0], BLOCK):
            found += block(x[first:first + BLOCK], largest)
        return found
    return total


@njit(fastmath={"reassoc", "nsz", "contract"})
def _block_dot(x: Any, y: Any) -> Any:
    total = x.dtype.type(0)
    for i in range(x.shape[0]):
        total += x[i] * y[i]
    return total


@njit
def row_dot(x: Any, y: Any) -> Any:
    """The sum of products of two rows in float64, by blocks in the rows' type."""
    total = 0.0
    for first in range(0, x.shape[0], BLOCK):
        total += _block_dot(x[first:first + BLOCK], y[first:first + BLOCK])
    return total


def _softmax(exp: Any) -> Any:
    def softmax(x: Any, y: Any) -> None:
        for r in range(y.shape[0]):
            source, target = x[r], y[r]
            largest = row_max(source)
            for i in range(target.shape[0]):
                target[i] = exp(source[i] - largest)
            scale = x.dtype.type(1.0 / row_sum(target))
            for i in range(target.shape[0]):
                target[i] *= scale
    return softmax


def _log_softmax(total: Any) -> Any:
    def log_softmax(x: Any, y: Any) -> None:
        for r in range(y.shape[0]):
            source, target = x[r], y[r]
            largest = row_max(source)
            log = x.dtype.type(math.log(total(source, largest)))
            for i in range(target.shape[0]):
                target[i] = (source[i] - largest) - log
    return log_softmax


def _softmax_grad(g: Any, y: Any, dx: Any) -> None:
    """dx = (g - sum(g * y)) * y per row."""
    for r in range(dx.shape[0]):
        gradient, output, target = g[r], y[r], dx[r]
        dot = g.dtype.type(row_dot(gradient, output))
        for i in range(target.shape[0]):
            target[i] = (gradient[i] - dot) * output[i]


def _log_softmax_grad(exp: Any) -> Any:
    def log_softmax_grad(g: Any, y: Any, dx: Any) -> None:
        """dx = g - sum(g) * exp(y) per row."""
        for r in range(dx.shape[0]):
            gradient, output, target = g[r], y[r], dx[r]
            total = g.dtype.type(row_sum(gradient))
            for i in range(target.shape[0]):
                target[i] = gradient[i] - total * exp(output[i])
    return log_softmax_grad


@functools.cache
def row_leaf(name: str, dtype: str) -> Leaf:
    """One of softmax, log_softmax (x, y), softmax_grad, log_softmax_grad (g, y, dx); all arrays [rows, n]."""
    if name == "softmax":
        return Leaf(_softmax(EXP[dtype]), f"{dtype}[r,:], {dtype}[r,:]")
    if name == "log_softmax":
        return Leaf(_log_softmax(exp_sum(dtype)), f"{dtype}[r,:], {dtype}[r,:]")
    if name == "softmax_grad":
        return Leaf(_softmax_grad, f"{dtype}[r,:], {dtype}[r,:], {dtype}[r,:]")
    assert name == "log_softmax_grad", name
    return Leaf(_log_softmax_grad(EXP[dtype]), f"{dtype}[r,:], {dtype}[r,:], {dtype}[r,:]")


def to_rows(source: In | Work, target: Out | Work, outer: int, n: int, inner: int, itemsize: int) -> list[Call]:
    """Move [outer, n, inner] to [outer, inner, n], both flat."""
    return move(source, target, [Axis(outer, n * inner, n * inner), Axis(inner, 1, n), Axis(n, inner, 1)], itemsize)


def row_calls(name: str, dtype: str, shape: Sequence[int], axis: int, inputs: int, output: int = 0) -> list[Call]:
    """The Calls of a row kernel along `axis` from inputs 0, 1 … to one output, all of `shape`.

    The kernels read contiguous rows: another axis than the last is moved there and back.
    """
    outer, n, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1:])
    size, rows = outer * n * inner, outer * inner
    if size == 0:
        return []
    itemsize = np.dtype(dtype).itemsize
    leaf, grain, cost = row_leaf(name, dtype), max(1, 2048 // n), size * 1.0 + rows * 30.0
    if inner == 1:
        return [Call(leaf, (*[In(i, (rows, n)) for i in range(inputs)], Out(output, (rows, n))), rows, grain, cost)]
    calls: list[Call] = []
    for i in range(inputs):
        calls += to_rows(In(i, (size,)), Work(f"rows of input {i}", (size,), dtype), outer, n, inner, itemsize)
    moved = [Work(f"rows of input {i}", (rows, n), dtype) for i in range(inputs)]
    calls.append(Call(leaf, (*moved, Work("rows of the result", (rows, n), dtype)), rows, grain, cost))
    return [*calls, *to_rows(Work("rows of the result", (size,), dtype), Out(output, (size,)), outer, inner, n, itemsize)]
