"""Sums, means, products, maxima and minima over axes, and where the best element lies."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import LETTERS, Axis, Operand, Reduce, Work
from ..kernels.best_index import index_calls
from ..kernels.dtypes import BITS
from ..kernels.machine.call import Call, Out
from ..kernels.move import fill_call
from ..kernels.reduce import reduce_calls
from ..memory.types import FLOATS, TensorType
from ..system.errors import ShapeError, TypeMismatchError
from .shape import Shape, normal_axes, normal_axis, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu


def _work(x: TensorType, axes: Shape, keepdims: bool, dtype: str, combine: str = "", kind: str = "reduce") -> Reduce:
    """The reduction of `x` over `axes` (of this kind) to elements of `dtype`; partials of a split axis are brought together by `combine`."""
    names = LETTERS[:x.rank]
    kept = tuple(None if i in axes else a for i, a in enumerate(names) if keepdims or i not in axes)
    space = tuple(Axis(a, n, kind if i in axes else "parallel") for i, (a, n) in enumerate(zip(names, x.shape, strict=True)))
    return Reduce(space, (Operand(tuple(names), x.dtype),), (Operand(kept, dtype),), 1.0, combine=combine)


@dataclass(frozen=True, repr=False)
class Reduction(Op):
    """Base of the reductions: `axes` (None: all, unless `noop_with_empty_axes`) go, or stay with size 1 if `keepdims`."""

    axes: Shape | None = None
    keepdims: int = 1
    noop_with_empty_axes: int = 0

    dtypes: ClassVar[tuple[str, ...]] = FLOATS
    combine: ClassVar[str] = ""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4, 5), axes=(1,)), sample((3, 4, 5), axes=(0, 2), keepdims=0)]

    def reduced(self, rank: int) -> Shape:
        """The reduced axes, ascending."""
        if not self.axes:
            return () if self.noop_with_empty_axes else tuple(range(rank))
        return tuple(sorted(normal_axes(self.axes, rank)))

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        if x.dtype not in self.dtypes:
            raise TypeMismatchError(f"the input is {x.dtype}; it must be one of {', '.join(self.dtypes)}.")
        axes = self.reduced(x.rank)
        return (x.with_shape(tuple(1 if i in axes else n for i, n in enumerate(x.shape) if self.keepdims or i not in axes)),)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = present(inputs[0])
        return _work(x, self.reduced(x.rank), bool(self.keepdims), outputs[0].dtype, self.combine)

    def count(self, shape: Shape) -> int:
        """How many elements are reduced to one."""
        return math.prod(shape[a] for a in self.reduced(len(shape)))

    def restored(self, b: Builder, small: Value, shape: Shape) -> Value:
        """A value of the output's type with the reduced axes back as size 1."""
        axes = self.reduced(len(shape))
        return b.Reshape(small, shape=tuple(1 if i in axes else n for i, n in enumerate(shape)), allowzero=1)


@dataclass(frozen=True, repr=False)
class _Sum(Reduction):
    """Shared by sum and mean."""

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        x, g = present(inputs[0]), grads[0]
        if g is None:
            return [None]
        divisor = self.divisor(x.shape)
        if divisor != 1:
            g = b.Div(g, b.scalar(divisor, g))
        return [b.Expand(self.restored(b, g, x.shape), shape=x.shape)]

    def divisor(self, shape: Shape) -> int:
        """What the sum is divided by."""
        return 1

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, y = present(inputs[0]), outputs[0]
        if not y.size:
            return []
        return reduce_calls("sum", x.code, x.shape, self.reduced(x.rank), self.divisor(x.shape))


@op("ReduceSum")
class ReduceSum(_Sum):
    """The sum over axes; integers wrap."""

    combine = "add"

    dtypes = (*FLOATS, "int32", "int64", "uint32", "uint64")

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        return (np.asarray(np.sum(x, self.reduced(x.ndim), _wide(x), keepdims=bool(self.keepdims))).astype(x.dtype),)


@op("ReduceMean")
class ReduceMean(_Sum):
    """The mean over axes; of no elements NaN."""

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        x = present(inputs[0])
        total = b.ReduceSum(x, axes=self.axes, keepdims=self.keepdims, noop_with_empty_axes=self.noop_with_empty_axes)
        return [b.Div(total, b.scalar(self.count(x.shape), x))]

    def divisor(self, shape: Shape) -> int:
        return self.count(shape)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        total = np.asarray(np.sum(x, self.reduced(x.ndim), _wide(x), keepdims=bool(self.keepdims)))
        with np.errstate(invalid="ignore"):
            return ((total / np.float64(self.count(x.shape))).astype(x.dtype),)


def _wide(x: np.ndarray) -> type | None:
    """The type a reference adds in."""
    return np.float64 if x.dtype.kind == "f" else x.dtype.type


@dataclass(frozen=True, repr=False)
class _Best(Reduction):
    """Shared by maximum and minimum: NaN wins; of no elements the worst value of the type; ties share the gradient equally."""

    largest: ClassVar[bool]
    dtypes = (*FLOATS, "int8", "uint8", "int16", "uint16", "int32", "int64", "uint32", "uint64", "bool")

    def worst(self, dtype: np.dtype) -> np.ndarray:
        """What no element is worse than."""
        if dtype.kind == "f":
            return np.array(-np.inf if self.largest else np.inf, dtype)
        if dtype.kind == "b":
            return np.array(not self.largest)
        return np.array(np.iinfo(dtype).min if self.largest else np.iinfo(dtype).max, dtype)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        reduce = np.max if self.largest else np.min
        return (np.asarray(reduce(x, self.reduced(x.ndim), keepdims=bool(self.keepdims), initial=self.worst(x.dtype).item())),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        x, g = present(inputs[0]), grads[0]
        if g is None:
            return [None]
        best = b.Equal(x, self.restored(b, outputs[0], x.shape))
        shares = b.Where(best, b.scalar(1.0, x), b.scalar(0.0, x))
        ties = b.ReduceSum(shares, axes=self.reduced(x.type.rank), keepdims=1) if self.reduced(x.type.rank) else shares
        return [b.Mul(shares, b.Div(self.restored(b, g, x.shape), ties))]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, y = present(inputs[0]), outputs[0]
        if not y.size:
            return []
        if not x.size:
            bits = int(self.worst(x.numpy).view(BITS[x.itemsize]))
            return [fill_call(Out(0, (y.size,)), bits, y.size, y.itemsize)]
        code = "u1" if x.dtype == "bool" else x.code
        return reduce_calls("max" if self.largest else "min", code, x.shape, self.reduced(x.rank))


@op("ReduceMax")
class ReduceMax(_Best):
    """The maximum over axes; of booleans whether one holds."""

    combine = "max"

    largest = True

    @classmethod
    def samples(cls) -> list[Sample]:
        return [*super().samples(), sample(("bool", (3, 4)), axes=(1,))]


@op("ReduceMin")
class ReduceMin(_Best):
    """The minimum over axes; of booleans whether all hold."""

    combine = "min"

    largest = False

    @classmethod
    def samples(cls) -> list[Sample]:
        return [*super().samples(), sample(("bool", (3, 4)), axes=(1,))]


@op("ReduceProd")
class ReduceProd(Reduction):
    """The product over axes; of no elements 1; integers wrap."""

    dtypes = (*FLOATS, "int32", "int64", "uint32", "uint64")
    combine = "mul"

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        return (np.asarray(np.prod(x, self.reduced(x.ndim), _wide(x), keepdims=bool(self.keepdims))).astype(x.dtype),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        """The product of the others: y / x, but where x is 0 the product of the rest, unless a second one is 0."""
        x, g = present(inputs[0]), grads[0]
        if g is None:
            return [None]
        axes = self.reduced(x.type.rank)
        if not axes:
            return [g]
        zero, one = b.scalar(0.0, x), b.scalar(1.0, x)
        is_zero = b.Equal(x, zero)
        rest = b.Where(is_zero, one, x)
        product = b.ReduceProd(rest, axes=axes)
        zeros = b.ReduceSum(b.Where(is_zero, one, zero), axes=axes)
        others = b.Where(is_zero, b.Where(b.Equal(zeros, one), product, zero), b.Where(b.Equal(zeros, zero), b.Div(product, rest), zero))
        return [b.Mul(self.restored(b, g, x.shape), others)]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, y = present(inputs[0]), outputs[0]
        return reduce_calls("product", x.code, x.shape, self.reduced(x.rank)) if y.size else []


@dataclass(frozen=True, repr=False)
class _IndexOfBest(Op):
    """The index along `axis` of the best element, the first of equals or with `select_last_index` the last; NaN is best of all."""

    axis: int = 0
    keepdims: int = 1
    select_last_index: int = 0

    largest: ClassVar[bool]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        axis = normal_axis(self.axis, x.rank)
        if x.dtype not in _Best.dtypes or x.dtype == "bool":
            raise TypeMismatchError(f"the input is {x.dtype}; it must be one of {', '.join(t for t in _Best.dtypes if t != 'bool')}.")
        if x.shape[axis] == 0:
            raise ShapeError(f"axis {axis} of {list(x.shape)} is empty, so no element of it is the best.")
        return (TensorType("int64", x.shape[:axis] + (1,) * bool(self.keepdims) + x.shape[axis + 1:]),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        best = np.argmax if self.largest else np.argmin
        if self.select_last_index:
            found = x.shape[self.axis] - 1 - best(np.flip(x, self.axis), self.axis, keepdims=bool(self.keepdims))
        else:
            found = best(x, self.axis, keepdims=bool(self.keepdims))
        return (np.asarray(found, np.int64),)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = present(inputs[0])
        return _work(x, (normal_axis(self.axis, x.rank),), bool(self.keepdims), outputs[0].dtype)

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        """The best element, then the first or last place where it is; a NaN is the best, wherever there is one."""
        x = present(inputs[0])
        axis, rank = normal_axis(self.axis, x.type.rank), x.type.rank
        n = x.shape[axis]
        best = (b.ReduceMax if self.largest else b.ReduceMin)(x, axes=(axis,))
        found = b.Equal(x, best)
        if x.type.is_float:
            found = b.Or(found, b.IsNaN(x))
        places = b.constant(np.arange(n).reshape([n if i == axis else 1 for i in range(rank)]))
        last = bool(self.select_last_index)
        elsewhere = b.constant(np.full((1,) * rank, -1 if last else n))
        chosen = b.Where(found, places, elsewhere)
        return [(b.ReduceMax if last else b.ReduceMin)(chosen, axes=(axis,), keepdims=self.keepdims)]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[0])
        if not x.size:
            return []
        return index_calls(x.code, x.shape, normal_axis(self.axis, x.rank), self.largest, bool(self.select_last_index), cpu)


@op("ArgMax")
class ArgMax(_IndexOfBest):
    """The index of the maximum along an axis."""

    largest = True

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), axis=1), sample(("int16", (3, 4), -9, 9), select_last_index=1)]


@op("ArgMin")
class ArgMin(_IndexOfBest):
    """The index of the minimum along an axis."""

    largest = False

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), keepdims=0)]
