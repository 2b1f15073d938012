"""Norms of windows, of images and along axes (the p-th root of a sum of p-th powers), and normalisation by a sum over neighbouring channels."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, op
from ..graph.sample import Sample, sample
from ..kernels.elementwise.expr import Expr, Var, abs_, equal, pow_, sqrt, where
from ..memory.types import TensorType
from ..system.errors import ShapeError, UnsupportedError
from .pool import AveragePool, Windowed
from .pool_volume import average_pool
from .shape import check_float, normal_axis, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value


def _check(x: TensorType, p: int) -> None:
    check_float(x)
    if p < 1:
        raise ShapeError(f"p is {p}; it must be at least 1.")


def _power(b: Builder, x: Value, p: int) -> Value:
    """|x|^p."""
    v = Var(0, x.dtype)
    return b.Map(x, exprs=(abs_(v) if p == 1 else v * v if p == 2 else pow_(abs_(v), float(p)),))      # type: ignore[no-any-return]


def _root(v: Expr, p: int) -> Expr:
    """The p-th root, whose gradient at 0 is taken as 0."""
    return v if p == 1 else where(equal(v, 0), 0, sqrt(v) if p == 2 else pow_(v, 1 / p))


@op("LpPool")
class LpPool(Windowed):
    """The p-th root of the sum of |x|^p over each window; padding counts as zeros."""

    p: int = 2

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 3, 7, 6), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1), p=3),
                sample((2, 3, 9), kernel_shape=(3,), dilations=(2,), p=1),
                sample((1, 2, 7, 6), kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1),
                sample((1, 2, 5, 5), kernel_shape=(2, 2), auto_pad="SAME_LOWER"),
                sample((1, 2, 4, 4, 5), kernel_shape=(2, 2, 2), pads=(0, 1, 1, 0, 0, 1))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        _check(x, self.p)
        if not 3 <= x.rank <= 5:
            raise UnsupportedError(f"LpPool over {max(0, x.rank - 2)} spatial axes (input {list(x.shape)}) is not supported; 1, 2 or 3 axes are.")
        return (x.with_shape((*x.shape[:2], *self.windows(x.shape).out)),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Means of those elements that a window meets, times their number."""
        x = present(inputs[0])
        win = self.windows(x.shape)
        mean = average_pool(b, _power(b, x, self.p), self.same())
        counts = AveragePool(**self.same()).shares(win).reshape(win.out).astype(x.type.numpy)
        return [b.Map(mean, b.constant(counts, "counts"), exprs=(_root(Var(0, x.dtype) * Var(1, x.dtype), self.p),))]


@op("GlobalLpPool")
class GlobalLpPool(Op):
    """The p-th root of the sum of |x|^p over all spatial axes, which become 1."""

    p: int = 2

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 3, 4, 5), p=p) for p in (1, 2, 3)] + [sample((2, 3, 4))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        _check(x, self.p)
        if x.rank < 3:
            raise ShapeError(f"GlobalLpPool needs an input [images, channels, spatial axes ...], not {list(x.shape)}.")
        return (x.with_shape((*x.shape[:2], *[1] * (x.rank - 2))),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x = present(inputs[0])
        total = b.ReduceSum(_power(b, x, self.p), axes=tuple(range(2, x.type.rank)), keepdims=1)
        return [total if self.p == 1 else b.Map(total, exprs=(_root(Var(0, x.dtype), self.p),))]


@op("LpNormalization")
class LpNormalization(Op):
    """x divided by its norm (p 1 or 2) along an axis; what has the norm 0 stays 0."""

    axis: int = -1
    p: int = 2

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample(("float32", (3, 4, 5), 0.2, 2.5), axis=axis, p=p) for axis, p in ((-1, 2), (0, 2), (1, 1))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        _check(x, self.p)
        normal_axis(self.axis, x.rank)
        if self.p > 2:
            raise UnsupportedError(f"p is {self.p}; LpNormalization is defined for 1 and 2.")
        return (x,)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x = present(inputs[0])
        total = b.ReduceSum(_power(b, x, self.p), axes=(normal_axis(self.axis, x.type.rank),), keepdims=1)
        v, norm = Var(0, x.dtype), Var(1, x.dtype)
        return [b.Map(x, total, exprs=(where(equal(norm, 0), 0, v / _root(norm, self.p)),))]


@op("LRN")
class LRN(Op):
    """x / (bias + alpha / size * the sum of x^2 over `size` neighbouring channels) ** beta, of which the middle one is x's own.

    Of an even number one more comes after than before (Krizhevsky et al. 2012; ONNX). x [n, c, *spatial].
    """

    size: int = 1
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((4, 4, 2, 3), size=3, alpha=0.5, bias=2.0), sample((5, 5, 2, 1), size=4, alpha=0.3, beta=0.5), sample((2, 2, 3, 2), size=7)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        _check(x, 1)
        if x.rank < 2 or self.size < 1:
            raise ShapeError(f"LRN needs an input [n, channels, ...], not {list(x.shape)}, and a size of at least 1, not {self.size}.")
        return (x,)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x = present(inputs[0])
        v, mean = Var(0, x.dtype), Var(1, x.dtype)
        planes = (x.shape[0], 1, x.shape[1], math.prod(x.shape[2:]))
        if not x.type.size:
            return [b.Identity(x)]
        before = (self.size - 1) // 2
        reach = min(before, x.shape[1] - 1), min(self.size - 1 - before, x.shape[1] - 1)
        squares = b.Reshape(b.Mul(x, x), shape=planes, allowzero=1)
        taps = sum(reach) + 1
        means = b.AveragePool(squares, kernel_shape=(taps, 1), pads=(reach[0], 0, reach[1], 0), count_include_pad=1)
        means = b.Reshape(means, shape=x.shape, allowzero=1)
        return [b.Map(x, means, exprs=(v / pow_(self.bias + self.alpha * taps / self.size * mean, self.beta),))]


@op("Hardmax")
class Hardmax(Op):
    """1 at the first of the largest elements along an axis, else 0."""

    axis: int = -1
    stops_gradient = True
    no_gradient = "it is constant but where the largest element changes"

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4, 5), axis=axis) for axis in (-1, 0)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        _check(x, 1)
        normal_axis(self.axis, x.rank)
        return (x,)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x = present(inputs[0])
        axis = normal_axis(self.axis, x.type.rank)
        if not x.type.size:
            return [b.Identity(x)]
        places = np.arange(x.shape[axis]).reshape(-1, *[1] * (x.type.rank - 1 - axis))
        return [b.Cast(b.Equal(b.ArgMax(x, axis=axis, keepdims=1), b.constant(places, "places")), to=x.dtype)]
