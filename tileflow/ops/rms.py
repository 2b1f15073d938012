"""Root-mean-square normalisation."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Types, op
from ..graph.sample import Sample, sample
from ..graph.work import Reduce, Work, counted
from ..kernels.elementwise.expr import Var
from ..kernels.elementwise.loops import elementwise_call
from ..kernels.machine.call import Call, In, Out
from ..kernels.machine.call import Work as Scratch
from ..kernels.move import fill_call
from ..kernels.norm.rms import rms_leaf
from ..kernels.reduce import reduce_calls
from ..memory.types import TensorType
from ..system.errors import ShapeError, UnsupportedError
from .norm import RowNorm
from .shape import check_float, normal_axis, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu


def mean_of(x: np.ndarray, axis: int) -> np.ndarray:
    """The mean over `axis` and all axes after it, NaN where there is nothing."""
    axes = tuple(range(axis, x.ndim))
    return np.asarray(np.sum(x, axes, keepdims=True) / np.float64(math.prod(x.shape[axis:])))


@op("RMSNormalization")
class RMSNormalization(RowNorm):
    """scale * x / sqrt(mean(x^2) + epsilon), the mean over `axis` and all axes after it.

    Inputs: x and scale of shape x.shape[axis:]. Outputs: y, and 1 / sqrt(mean(x^2) + epsilon) with the reduced axes as size 1.
    """

    roles = ("data", "scale")
    epsilon: float = 1e-5

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4, 5), (5,)), sample((3, 4, 5), (4, 5), axis=1)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, scale = present(types[0]), present(types[1])
        check_float(x)
        wanted = x.with_shape(x.shape[normal_axis(self.axis, x.rank):])
        if scale != wanted:
            raise ShapeError(f"scale is {scale}; for the input {x} and axis {self.axis} it must be {wanted}.")
        return x, self.statistic(x)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x, scale = present(inputs[0]), present(inputs[1])
        wide = x.astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            inverse = 1 / np.sqrt(mean_of(wide * wide, normal_axis(self.axis, x.ndim)) + self.epsilon)
            return (wide * inverse * scale).astype(x.dtype), inverse.astype(x.dtype)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        if grads[1] is not None:
            raise UnsupportedError("The statistics of RMSNormalization have no gradient; only its first output has.")
        if grads[0] is None:
            return [None, None]
        found: Sequence[Value] = b.RMSNormalizationGrad(grads[0], inputs[0], inputs[1], outputs[1], axis=self.axis)
        return found

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        axes, full, columns, rows = self.operands(present(inputs[0]))
        return Reduce(axes, (full, columns), (full, rows), 4.0, functions=counted(("rms norm",), full.dtype))

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        x, scale = present(inputs[0]), present(inputs[1])
        mean = b.ReduceMean(b.Mul(x, x), axes=tuple(range(normal_axis(self.axis, x.type.rank), x.type.rank)))
        inverse = b.Reciprocal(b.Sqrt(b.Add(mean, b.scalar(self.epsilon, mean))))
        return [b.Mul(b.Mul(x, inverse), scale), inverse]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[0])
        rows, n = self.table(x)
        args = (In(0, (rows, n)), In(1, (n,)), Out(0, (rows, n)), Out(1, (rows,)), self.epsilon)
        return [Call(rms_leaf(x.code, False), args, rows, max(1, 2048 // max(1, n)), x.size * 0.3 + rows * 20.0)] if rows else []


@op("RMSNormalizationGrad", onnx=False)
class RMSNormalizationGrad(RowNorm):
    """(g, x, scale, 1 / rms) to the gradients of x and scale of RMSNormalization."""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4, 5), (3, 4, 5), (5,), (3, 4, 1))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, scale = present(types[1]), present(types[2])
        assert types[0] == x, types
        check_float(x)
        assert types[3] == self.statistic(x), types
        return x, scale

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        dtype = present(inputs[0]).dtype
        g, x, scale, inverse = (present(a).astype(np.float64) for a in inputs)
        axis = normal_axis(self.axis, x.ndim)
        normal, h = x * inverse, g * scale
        with np.errstate(invalid="ignore", divide="ignore"):
            dx = inverse * (h - normal * mean_of(h * normal, axis))
        return dx.astype(dtype), np.sum(g * normal, tuple(range(axis))).astype(dtype)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        axes, full, columns, rows = self.operands(present(inputs[1]))
        return Reduce(axes, (full, full, columns, rows), (full, columns), 8.0, functions=counted(("rms norm grad",), full.dtype))

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        g, x, scale, inverse = map(present, inputs)
        axis = normal_axis(self.axis, x.type.rank)
        normal, h = b.Mul(x, inverse), b.Mul(g, scale)
        dx = b.Mul(inverse, b.Sub(h, b.Mul(normal, b.ReduceMean(b.Mul(h, normal), axes=tuple(range(axis, x.type.rank))))))
        dscale = b.ReduceSum(b.Mul(g, normal), axes=tuple(range(axis)), noop_with_empty_axes=1)
        return [dx, b.Reshape(dscale, shape=scale.shape, allowzero=1)]

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        return self.partials(b, inputs)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[1])
        rows, n = self.table(x)
        if not rows or not n:
            return [fill_call(Out(1, (n,)), 0, n, x.itemsize)] if n else []
        table, column = (rows, n), (rows, 1)
        args = (In(0, table), In(1, table), In(2, (n,)), In(3, (rows,)), Out(0, table), Scratch("part", (n,), x.code))
        calls = [Call(rms_leaf(x.code, True), args, rows, max(1, 2048 // n), x.size * 0.5 + rows * 30.0)]
        g, v, inverse = (Var(i, x.dtype) for i in range(3))
        calls.append(elementwise_call([g * (v * inverse)], [In(0, table), In(1, table), In(3, column)], [Scratch("products", table, x.code)]))
        return calls + reduce_calls("sum", x.code, table, (0,), source=Scratch("products", (x.size,), x.code), target=Out(1, (n,)))
