"""Determinants."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import LETTERS, Axis, Map, Operand, Work
from ..kernels.determinant import determinant, determinant_gradient
from ..kernels.machine.call import Call, In, Out
from ..kernels.machine.call import Work as Scratch
from ..memory.types import TensorType
from ..system.errors import ShapeError
from .shape import check_float, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu

LARGEST = 64
"""Rows of a matrix whose gradient is computed: it takes the determinants of as many minors as it has elements."""


def _matrices(x: TensorType) -> tuple[int, int]:
    """How many square matrices, and their rows. Raises an error that names what does not fit."""
    check_float(x)
    if x.rank < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"the last two axes of {list(x.shape)} make no square matrices.")
    return math.prod(x.shape[:-2]), x.shape[-1]


def _work(x: TensorType, forward: bool, flops: float) -> Work:
    """Over matrices, each of which stays whole: from each one number, or from both such a matrix again."""
    names = LETTERS[:x.rank]
    axes = tuple(Axis(a, n, "parallel" if i < x.rank - 2 else "whole") for i, (a, n) in enumerate(zip(names, x.shape, strict=True)))
    whole, one = Operand(tuple(names), x.dtype), Operand(tuple(names[:-2]), x.dtype)
    return Map(axes, (whole,) if forward else (one, whole), (one if forward else whole,), flops)


def _eliminated(x: np.ndarray) -> np.ndarray:
    """Determinants in float64 by the kernel's steps, so that what is not finite comes to the same."""
    n, found = x.shape[-1], []
    for m in x.astype(np.float64).reshape(math.prod(x.shape[:-2]), n, n):
        product = 1.0
        for k in range(n):
            best = max(range(k, n), key=lambda r: np.nan_to_num(abs(m[r, k]), nan=-1.0, posinf=np.inf))
            m[[k, best]] = m[[best, k]]
            product *= m[k, k] if best == k else -m[k, k]
            if m[k, k] == 0:
                break
            factors = m[k + 1:, k:k + 1] / m[k, k]
            m[k + 1:, k + 1:] -= np.where(factors != 0, factors * m[k, k + 1:], 0)
        found.append(product)
    return np.array(found).reshape(x.shape[:-2]).astype(x.dtype)


@op("Det")
class Det(Op):
    """The determinants of matrices [..., n, n], by elimination with the largest pivot of each column."""

    @classmethod
    def samples(cls) -> list[Sample]:
        singular = np.array([[1, 2, 3], [2, 4, 6], [1, 0, 1]], np.float32)
        return [sample((2, 3, 3)), sample((4, 4)), sample(singular), sample((2, 2, 1, 1))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        _matrices(x)
        return (x.with_shape(x.shape[:-2]),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        return (_eliminated(x),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        return [None if grads[0] is None else b.DetGrad(grads[0], inputs[0])]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = present(inputs[0])
        return _work(x, True, 2.0 * x.shape[-1] / 3)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[0])
        count, n = _matrices(x)
        if not count:
            return []
        args = (In(0, (count, n * n)), Out(0, (count,)), Scratch("matrix", (n * n,), x.code), n)
        return [Call(determinant[x.code], args, count, max(1, 512 // max(n, 1) ** 2), count * (n ** 3 * 1.0 + 10.0))]


@op("DetGrad", onnx=False)
class DetGrad(Op):
    """The gradient of matrices from that of their determinants: it, times the cofactors, which a matrix without an inverse has, too."""

    no_gradient = "second derivatives of determinants are not written out"

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2,), (2, 3, 3)), sample((), np.array([[1, 2], [2, 4]], np.float32)), sample((2,), (2, 1, 1))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        g, x = present(types[0]), present(types[1])
        _, n = _matrices(x)
        assert g == x.with_shape(x.shape[:-2]), f"{g} for determinants of {x}"
        if n > LARGEST:
            raise ShapeError(f"the gradient of the determinants of {list(x.shape)}: matrices have up to {LARGEST} rows there.")
        return (x,)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        g, x = present(inputs[0]), present(inputs[1])
        n = x.shape[-1]
        d = np.empty_like(x)
        for r, c in np.ndindex(n, n):
            minor = np.delete(np.delete(x, r, -2), c, -1)
            d[..., r, c] = g * _eliminated(minor) * (-1) ** (r + c)
        return (d,)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        return _work(outputs[0], False, 2.0 * outputs[0].shape[-1] ** 3 / 3)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = outputs[0]
        count, n = _matrices(x)
        if not x.size:
            return []
        args = (In(0, (count,)), In(1, (count, n * n)), Out(0, (count, n * n)), Scratch("minor", (n * n,), x.code), n)
        return [Call(determinant_gradient[x.code], args, count, 1, count * (n ** 5 * 1.0 + 10.0))]
