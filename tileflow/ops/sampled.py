"""Weighted sums of elements at places that are computed while the model runs: what GridSample and DeformConv are made of.

The three operators are the derivatives of one form, the sum of g[b, c, p] * weight[b, t, p] * x[b, c, index[b, t, p]], so each one's
gradients are the others.
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import Axis, Map, Operand, Work
from ..kernels import sampled as kernels
from ..kernels.elementwise.expr import Expr, Var, cast, floor, maximum, minimum, round_, where
from ..kernels.machine.call import Call, In, Out
from ..memory.types import TensorType
from ..system.errors import ShapeError, TypeMismatchError
from .elementwise import apply
from .shape import present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu

PLACES = ("int64", (2, 3, 6), -1, 10)
"""The indices of samples, some of which lie outside of nine elements."""


def _check(index: TensorType, *floats: TensorType) -> None:
    if index.dtype != "int64" or len({t.dtype for t in floats}) > 1 or not floats[0].is_float:
        raise TypeMismatchError(f"indices are {index.dtype} and must be int64; the others are {' and '.join(map(str, floats))} and must be of one "
                                "float type.")
    if any(t.rank != 3 or t.shape[0] != index.shape[0] for t in (index, *floats)):
        raise ShapeError(f"{index} and {' and '.join(map(str, floats))} must have three dimensions, of which the first is alike.")


def _places(index: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The places as such of x, and which lie in it."""
    inside = (index >= 0) & (index < size)
    return np.where(inside, index, 0), inside


@op("WeightedGather", onnx=False)
class WeightedGather(Op):
    """y[b, c, p] = the sum over t of weight[b, t, p] * x[b, c, index[b, t, p]]; places outside of x contribute nothing."""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 4, 9), PLACES, (2, 3, 6))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, index, weight = map(present, types)
        _check(index, x, weight)
        if index.shape != weight.shape:
            raise ShapeError(f"indices {index} and weights {weight} must have one shape.")
        return (x.with_shape((*x.shape[:2], index.shape[2])),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x, index, weight = map(present, inputs)
        y = np.zeros((*x.shape[:2], index.shape[2]), x.dtype)
        if not x.size:
            return (y,)
        for t in range(index.shape[1]):
            at, inside = _places(index[:, t], x.shape[2])
            y += np.where(inside[:, None], weight[:, t, None] * np.take_along_axis(x, at[:, None], 2), x.dtype.type(0))
        return (y,)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        g, (x, index, weight) = grads[0], map(present, inputs)
        return [None] * 3 if g is None else [b.WeightedScatter(g, index, weight, size=x.shape[2]), None, b.WeightedDots(g, x, index)]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x, index, y = present(inputs[0]), present(inputs[1]), outputs[0]
        axes = tuple(Axis(a, n) for a, n in zip("bcp", y.shape, strict=True))
        tables = Operand(("b", None, "p"), index.dtype), Operand(("b", None, "p"), x.dtype)
        return Map(axes, (Operand(("b", "c", None), x.dtype), *tables), (Operand(("b", "c", "p"), x.dtype),), 2.0 * index.shape[1])

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, index, y = present(inputs[0]), present(inputs[1]), outputs[0]
        if not y.size:
            return []
        args = (In(0, x.shape), In(1, index.shape), In(2, index.shape), Out(0, y.shape))
        return [Call(kernels.gather[x.code], args, y.shape[0] * -(-y.shape[2] // kernels.STRIP), 1, y.size * index.shape[1] * 1.5)]


@op("WeightedScatter", onnx=False)
class WeightedScatter(Op):
    """The gradient of WeightedGather by x, of `size` elements a channel: weight[b, t, p] * g[b, c, p] is added at index[b, t, p]."""

    size: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 4, 6), PLACES, (2, 3, 6), size=9)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        g, index, weight = map(present, types)
        _check(index, g, weight)
        if index.shape != weight.shape or index.shape[2] != g.shape[2]:
            raise ShapeError(f"indices {index} and weights {weight} must have one shape, which ends as that of {g}.")
        return (g.with_shape((*g.shape[:2], self.size)),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        g, index, weight = map(present, inputs)
        dx = np.zeros((*g.shape[:2], self.size), g.dtype)
        for b, t in np.ndindex(*index.shape[:2]):
            at, inside = _places(index[b, t], self.size)
            for c in range(g.shape[1]):
                np.add.at(dx[b, c], at[inside], (weight[b, t] * g[b, c])[inside])
        return (dx,)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        h, (g, index, weight) = grads[0], map(present, inputs)
        return [None] * 3 if h is None else [b.WeightedGather(h, index, weight), None, b.WeightedDots(g, h, index)]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        index, dx = present(inputs[1]), outputs[0]
        axes = (Axis("b", dx.shape[0]), Axis("c", dx.shape[1]), Axis("s", dx.shape[2], "whole"))
        tables = Operand(("b", None, None), index.dtype), Operand(("b", None, None), dx.dtype)
        flops = 2.0 * index.shape[1] * index.shape[2] / max(1, dx.shape[2])
        return Map(axes, (Operand(("b", "c", None), dx.dtype), *tables), (Operand(("b", "c", "s"), dx.dtype),), flops)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        g, index, dx = present(inputs[0]), present(inputs[1]), outputs[0]
        if not dx.size:
            return []
        args = (In(0, g.shape), In(1, index.shape), In(2, index.shape), Out(0, dx.shape))
        return [Call(kernels.scatter[g.code], args, math.prod(dx.shape[:2]), 1, g.size * index.shape[1] * 2.0 + dx.size * 0.1)]


@op("WeightedDots", onnx=False)
class WeightedDots(Op):
    """The gradient of WeightedGather by its weights: the sums over c of g[b, c, p] * x[b, c, index[b, t, p]]."""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 4, 6), (2, 4, 9), PLACES)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        g, x, index = map(present, types)
        _check(index, g, x)
        if g.shape[1] != x.shape[1] or g.shape[2] != index.shape[2]:
            raise ShapeError(f"the gradient {g} must have the channels of {x} and the points of {index}.")
        return (x.with_shape(index.shape),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        g, x, index = map(present, inputs)
        found = np.zeros(index.shape, x.dtype)
        for t in range(index.shape[1] if x.size else 0):
            at, inside = _places(index[:, t], x.shape[2])
            found[:, t] = np.where(inside[:, None], g * np.take_along_axis(x, at[:, None], 2), x.dtype.type(0)).sum(1)
        return (found,)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        h, (g, x, index) = grads[0], map(present, inputs)
        return [None] * 3 if h is None else [b.WeightedGather(x, index, h), b.WeightedScatter(g, index, h, size=x.shape[2]), None]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        g, x, y = present(inputs[0]), present(inputs[1]), outputs[0]
        axes = tuple(Axis(a, n) for a, n in zip("btp", y.shape, strict=True))
        index = Operand(("b", "t", "p"), "int64")
        return Map(axes, (Operand(("b", None, "p"), g.dtype), Operand(("b", None, None), x.dtype), index), (Operand(("b", "t", "p"), x.dtype),),
                   2.0 * g.shape[1])

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        g, x, y = present(inputs[0]), present(inputs[1]), outputs[0]
        if not y.size:
            return []
        args = (In(0, g.shape), In(1, x.shape), In(2, y.shape), Out(0, y.shape))
        return [Call(kernels.dots[x.code], args, y.shape[0] * -(-y.shape[2] // kernels.STRIP), 1, y.size * g.shape[1] * 1.5)]


# ---- from coordinates to places and weights ----------------------------------------------------------------------------------------

CUBIC = -0.75
"""The coefficient of cubic interpolation, as PyTorch and ONNX have it."""
TAPS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}
"""Which neighbours of the element at or before a place are met along an axis."""


def _polynomials(mode: str) -> np.ndarray:
    """[taps, 4]: the weight of each neighbour as a polynomial of how far the place is beyond an element, lowest power first."""
    if mode == "nearest":
        return np.array([[1.0, 0, 0, 0]])
    if mode == "linear":
        return np.array([[1.0, -1, 0, 0], [0, 1, 0, 0]])
    a = CUBIC
    near = np.array([1, 0, -(a + 3), a + 2])                      # by Keys (1981): the two nearer, then, mirrored, the two others
    far = np.array([0, a, -2 * a, a])
    flipped = np.array([[1, 1, 1, 1], [0, -1, -2, -3], [0, 0, 1, 3], [0, 0, 0, -1]])        # of 1 - f
    return np.array([far, near, flipped @ near, flipped @ far])


def _reflected(x: Expr, low: float, high: float) -> Expr:
    """x mirrored at the borders until it lies between them."""
    span = high - low
    if span <= 0:
        return x * 0 + low
    away = where(x < low, low - x, x - low)
    turns = floor(away / span)
    rest = away - turns * span
    return where(turns - 2 * floor(turns / 2) > 0.5, high - rest, low + rest)


def _kept(x: Expr, n: int, padding: str, aligned: bool) -> Expr:
    """A coordinate (or a whole place) after what lies outside of an axis was clamped or mirrored into it."""
    if padding == "zeros":
        return x
    if padding == "reflection":
        x = _reflected(x, 0.0 if aligned else -0.5, n - 1.0 if aligned else n - 0.5)
    return minimum(maximum(x, 0.0), n - 1.0)


def _clamped(x: Expr, n: int, aligned: bool) -> Expr:
    """A place beyond an image's border at its outermost element, as ONNX has it; PyTorch clamps the neighbours only."""
    edge = 0.0 if aligned else 0.5
    return where(x < -edge, x * 0, where(x > n - 1 + edge, x * 0 + (n - 1), x))


def sampled(b: Builder, x: Value, columns: Sequence[Value], mode: str, padding: str = "zeros", aligned: bool = False,
            factor: Value | None = None) -> Value:
    """x [b, c, *spatial] at the coordinates `columns`, [b, 1, p] for each spatial axis: [b, c, p].

    Args:
        mode: a key of TAPS. padding: "zeros", "border" or "reflection". aligned: reflection is at the centres of the outermost elements.
        factor: [b, 1, p], which the elements are multiplied by.
    """
    spatial, dtype = x.shape[2:], x.dtype
    taps = list(itertools.product(TAPS[mode], repeat=len(spatial)))
    polynomials = dict(zip(TAPS[mode], _polynomials(mode), strict=True))
    values: list[Value] = list(columns)

    def constant(numbers: Sequence[float]) -> Expr:
        values.append(b.constant(np.array(numbers, x.type.numpy).reshape(-1, 1)))
        return Var(len(values) - 1, dtype)

    inside: Expr | None = None
    place, weight = cast(Var(0, dtype) * 0, "int64"), None
    for d, n in enumerate(spatial):
        at = Var(d, dtype)
        at = round_(at) if mode == "nearest" else at
        at = _kept(at, n, padding, aligned) if mode != "cubic" else _clamped(at, n, aligned) if padding == "border" else at
        low = at if mode == "nearest" else floor(at)
        beyond = at - low
        met = low if mode == "nearest" else _kept(low + constant([t[d] for t in taps]), n, padding, aligned)
        within = (met >= 0) & (met <= n - 1)
        inside = within if inside is None else inside & within
        place = place * n + cast(met, "int64")
        if mode != "nearest":
            powers = [constant([polynomials[t[d]][k] for t in taps]) for k in range(4 if mode == "cubic" else 2)]
            share = powers[-1]
            for power in powers[-2::-1]:
                share = share * beyond + power
            weight = share if weight is None else weight * share
    assert inside is not None
    index = apply(b, where(inside, place, -1), values)
    if factor is not None:
        values.append(factor)
        weight = Var(len(values) - 1, dtype) if weight is None else weight * Var(len(values) - 1, dtype)
    shape = (index.shape[0], len(taps), index.shape[2])
    weights = b.constant(np.ones((), x.type.numpy)) if weight is None else apply(b, weight, values)
    weights = weights if weights.shape == shape else b.Expand(weights, shape=shape)
    flat = b.Reshape(x, shape=(*x.shape[:2], math.prod(spatial)), allowzero=1)
    return b.WeightedGather(flat, index, weights)          # type: ignore[no-any-return]
