"""Batch and layer normalisation."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import LETTERS, Axis, Operand, Reduce, Work, counted
from ..kernels.elementwise.expr import Var, cast, sqrt
from ..kernels.elementwise.loops import elementwise_call
from ..kernels.machine.call import Call, In, Out
from ..kernels.machine.call import Work as Scratch
from ..kernels.move import fill_call
from ..kernels.norm.planar import CHANNELS, ROWS, norm_leaf, own_scratch
from ..kernels.reduce import reduce_calls
from ..memory.types import TensorType, type_of
from ..system.errors import ShapeError, TypeMismatchError, UnsupportedError
from .shape import Shape, check_float, normal_axis, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu


def _work(x: TensorType, kept: Shape, arrays: int, smalls: int, outputs: int, small_outputs: int, flops: float, name: str,
          per: Sequence[Shape] = ()) -> Work:
    """Statistics over all axes but `kept`: full tensors and tensors over the kept axes, in and out; further inputs lie over the axes `per` names.
    `name`: what is done, as planners of tiles call it."""
    names = tuple(LETTERS[:x.rank])
    axes = tuple(Axis(a, n, "parallel" if i in kept else "reduce") for i, (a, n) in enumerate(zip(names, x.shape, strict=True)))
    full, small = Operand(names, x.dtype), Operand(tuple(names[i] for i in kept), x.dtype)
    others = tuple(Operand(tuple(names[i] for i in own), x.dtype) for own in per)
    return Reduce(axes, (full,) * arrays + (small,) * smalls + others, (full,) * outputs + (small,) * small_outputs, flops,
                  functions=counted((name,), x.dtype))


def _typed(work: Work, inputs: Types, outputs: Sequence[TensorType]) -> Work:
    """The work with the element types of these inputs (those that are present) and outputs."""
    given = [t for t in inputs if t is not None]
    return replace(work, inputs=tuple(replace(o, dtype=t.dtype) for o, t in zip(work.inputs, given, strict=True) if o is not None),
                   outputs=tuple(replace(o, dtype=t.dtype) for o, t in zip(work.outputs, outputs, strict=True)))


def statistics_of(x: TensorType) -> TensorType:
    """The type of the statistics per channel of x [N, C, d…]: float32 for 16-bit x, whose squares need not fit its type."""
    return TensorType("float32" if x.is_half else x.dtype, (x.shape[1],))


# ---- batch normalisation -------------------------------------------------------------------------------------------------

def _channels(x: TensorType) -> tuple[int, int, int]:
    """(batch, channels, inner) of [N, C, d…]; a vector or matrix counts as one channel axis where ONNX does."""
    return x.shape[0], x.shape[1], math.prod(x.shape[2:])


def _per_channel(v: np.ndarray, rank: int) -> np.ndarray:
    """[C] as [1, C, 1…]."""
    return v.reshape(1, -1, *[1] * (rank - 2))


def moments(b: Builder, x: Value, axes: Shape, epsilon: float) -> tuple[Value, Value, Value, Value]:
    """Over axes: the mean, x less the mean, the variance, and one over the deviation (`epsilon` in its root)."""
    mean = b.ReduceMean(x, axes=axes)
    centred = b.Sub(x, mean)
    var = b.ReduceMean(b.Mul(centred, centred), axes=axes)
    return mean, centred, var, b.Reciprocal(b.Sqrt(b.Add(var, b.scalar(epsilon, var))))


def _other_axes(rank: int) -> Shape:
    return (0, *range(2, rank))


def _batch_calls(name: str, x: TensorType, arrays: Sequence[In | Out | Scratch], extra: tuple[float, ...]) -> list[Call]:
    """The Calls of a kernel per channel: `name`, or `name`_flat where channels are contiguous."""
    n, channels, inner = _channels(x)
    if inner != 1:
        cost = x.size * 0.3 + channels * n * 8.0
        return [Call(norm_leaf(name, x.code), (*arrays, *own_scratch(x.code), n, inner, *extra), channels, 1, cost)]
    sums = [Scratch("sums", (CHANNELS,), "f8")] + [Scratch("products", (CHANNELS,), "f8")] * name.endswith("grad")
    return [Call(norm_leaf(name + "_flat", x.code), (*arrays, *sums, n, *extra), -(-channels // CHANNELS), 1, x.size * 0.6)]


@op("BatchNormalization")
class BatchNormalization(Op):
    """scale * (x - mean) / sqrt(var + epsilon) + B per channel (axis 1) of x [N, C, d…].

    Inputs: x, scale [C], B [C], mean [C], var [C]. `training_mode` 0 uses the given mean and var and has one output.
    With 1 they come from the batch (the variance is the population's), the given ones may be absent, and the outputs are
    y, batch mean, batch variance, 1 / sqrt(variance + epsilon): running statistics are updated by nodes outside, where
    `momentum` belongs to. Statistics of 16-bit x are float32: those that it makes, and those it is given may be, as may scale and B (of one type).
    """

    no_gradient = "mean and var are running statistics, which training keeps"

    roles = ("data", "scale", "bias", "statistic", "statistic")
    epsilon: float = 1e-5
    momentum: float = 0.9
    training_mode: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 4, 7, 6), (4,), (4,), (4,), (4,)), sample((2, 4, 7, 6), (4,), (4,), None, None, training_mode=1)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        check_float(x)
        if x.rank < 2:
            raise ShapeError(f"the input is {x}; it must have at least two dimensions, [N, C, ...].")
        own, statistic = TensorType(x.dtype, (x.shape[1],)), statistics_of(x)
        for what, t in zip(("scale", "B", "mean", "var"), (*types[1:], None, None), strict=False):
            wanted = (types[1],) if what == "B" else (own, statistic)
            if t not in wanted and (t is not None or what in ("scale", "B") or not self.training_mode):
                raise ShapeError(f"{what} is {t or 'absent'}; for the input {x} it must be {own}.")
        return (x, statistic, statistic, statistic) if self.training_mode else (x,)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x, scale, shift = map(present, inputs[:3])
        wide = x.astype(np.float64)
        if self.training_mode:
            with np.errstate(invalid="ignore", divide="ignore"):
                count = np.float64(x.size // max(1, x.shape[1]))
                mean = np.sum(wide, _other_axes(x.ndim)) / count
                var = np.sum((wide - _per_channel(mean, x.ndim)) ** 2, _other_axes(x.ndim)) / count
        else:
            mean, var = present(inputs[3]).astype(np.float64), present(inputs[4]).astype(np.float64)
        inverse = 1 / np.sqrt(var + self.epsilon)
        y = (wide - _per_channel(mean, x.ndim)) * _per_channel(inverse * scale, x.ndim) + _per_channel(shift, x.ndim)
        found = (mean, var, inverse) if self.training_mode else ()
        return (y.astype(x.dtype), *(a.astype(statistics_of(type_of(x)).numpy) for a in found))

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        if any(g is not None for g in grads[1:]):
            raise UnsupportedError("The batch statistics of BatchNormalization have no gradient; only its first output has.")
        x, scale, g = present(inputs[0]), present(inputs[1]), grads[0]
        if g is None:
            return [None] * len(inputs)
        if self.training_mode:
            return [*b.BatchNormalizationGrad(g, x, scale, outputs[1], outputs[3]), None, None][:len(inputs)]
        shape, axes = (-1, *[1] * (x.type.rank - 2)), _other_axes(x.type.rank)
        if x.type.is_half:
            found = self._inference_gradients(b, [b.cast(v, "float32") for v in (g, x, scale, *map(present, inputs[3:5]))], shape, axes)
            return [*(b.cast(v, t) for v, t in zip(found, (x.dtype, scale.dtype, scale.dtype), strict=True)), None, None]
        return [*self._inference_gradients(b, [g, x, scale, present(inputs[3]), present(inputs[4])], shape, axes), None, None]

    def _inference_gradients(self, b: Builder, given: Sequence[Value], shape: Shape, axes: Shape) -> list[Value]:
        """Of x, scale and B from (g, x, scale, mean, var)."""
        g, x, scale, mean, var = given
        std = b.Sqrt(b.Add(var, b.scalar(self.epsilon, var)))
        centred = b.Sub(x, b.Reshape(mean, shape=shape))
        dscale = b.Div(b.ReduceSum(b.Mul(g, centred), axes=axes, keepdims=0), std)
        return [b.Mul(g, b.Reshape(b.Div(scale, std), shape=shape)), dscale, b.ReduceSum(g, axes=axes, keepdims=0)]

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        """Inference: a factor per channel, then one expression, of 16-bit x in float32. The factor is rounded as the kernel rounds it."""
        if self.training_mode:
            return None
        x, scale, shift, mean, var = map(present, inputs)
        v = statistics_of(x.type).dtype
        inverse = cast(1 / sqrt(cast(Var(0, var.dtype), "float64") + self.epsilon), v)
        factor = b.Map(var, scale, exprs=(inverse * cast(Var(1, scale.dtype), v),))
        column = (x.shape[1], *[1] * (x.type.rank - 2))
        columns = [a if a.shape == column else b.Reshape(a, shape=column, allowzero=1) for a in (mean, factor, shift)]
        e = [cast(Var(i, a.dtype), v) for i, a in enumerate((x, *columns))]
        return [b.Map(x, *columns, exprs=(cast((e[0] - e[1]) * e[2] + e[3], x.dtype),))]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = present(inputs[0])
        if not self.training_mode:
            found = _typed(_work(x, (1,), 1, 4, 1, 0, 2.0, "scale and shift"), inputs, outputs)
            return replace(found, axes=tuple(Axis(a.name, a.size) for a in found.axes))
        return _typed(_work(x, (1,), 1, len([t for t in inputs[1:] if t]), 1, 3, 6.0, "batch norm"), inputs, outputs)

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        x, scale, shift = map(present, inputs[:3])
        axes, column, half = _other_axes(x.type.rank), (1, x.shape[1], *[1] * (x.type.rank - 2)), x.type.is_half
        own = x.dtype
        x, scale, shift = ((b.cast(v, "float32") for v in (x, scale, shift)) if half else (x, scale, shift))
        mean, centred, var, inverse = moments(b, x, axes, self.epsilon)
        factor = b.Mul(inverse, b.Reshape(scale, shape=column, allowzero=1))
        y = b.Add(b.Mul(centred, factor), b.Reshape(shift, shape=column, allowzero=1))
        return [b.Cast(y, to=own) if half else y, *(b.Reshape(v, shape=scale.shape, allowzero=1) for v in (mean, var, inverse))]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[0])
        n, channels, inner = _channels(x)
        full, small = (x.size,), (channels,)
        if self.training_mode:
            arrays: list[In | Out | Scratch] = [In(0, full), In(1, small), In(2, small), Out(0, full), *[Out(i, small) for i in (1, 2, 3)]]
            return _batch_calls("batch_norm", x, arrays, (self.epsilon,)) if channels else []
        if not x.size:
            return []
        inverse = Scratch("inverse", small, x.code)
        first = Call(norm_leaf("inverse_std", x.code), (In(4, small), inverse, self.epsilon), channels, 256, channels * 5.0)
        v, scale, shift, mean, factor = (Var(i, x.dtype) for i in range(5))
        column = (channels, 1)
        operands: list[In | Scratch] = [In(0, (n, channels, inner)), *[In(i, column) for i in (1, 2, 3)]]
        operands.append(replace(inverse, shape=column))
        return [first, elementwise_call([(v - mean) * (factor * scale) + shift], operands, [Out(0, (n, channels, inner))])]


@op("BatchNormalizationGrad", onnx=False)
class BatchNormalizationGrad(Op):
    """(g, x, scale, batch mean, 1 / std) to the gradients of x, scale and B of BatchNormalization in training mode."""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 4, 7, 6), (2, 4, 7, 6), (4,), (4,), (4,))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, scale = present(types[1]), present(types[2])
        assert types[0] == x, types
        check_float(x)
        if not types[3] == types[4] == statistics_of(x):
            raise TypeMismatchError(f"the statistics are {types[3]} and {types[4]}; for the input {x} they must be {statistics_of(x)}.")
        return x, scale, scale

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        dtypes = [present(inputs[i]).dtype for i in (0, 2, 2)]
        g, x, scale, mean, inverse = (present(a).astype(np.float64) for a in inputs)
        axes, count = _other_axes(x.ndim), np.float64(x.size // max(1, x.shape[1]))
        normal = (x - _per_channel(mean, x.ndim)) * _per_channel(inverse, x.ndim)
        dscale, dshift = np.sum(g * normal, axes), np.sum(g, axes)
        with np.errstate(invalid="ignore"):
            pulled = g - _per_channel(dshift / count, x.ndim) - normal * _per_channel(dscale / count, x.ndim)
        return tuple(a.astype(t) for a, t in zip((pulled * _per_channel(scale * inverse, x.ndim), dscale, dshift), dtypes, strict=True))

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        return _typed(_work(present(inputs[1]), (1,), 2, 3, 1, 2, 8.0, "batch norm grad"), inputs, outputs)

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        g, x, scale, mean, inverse = map(present, inputs)
        if x.type.is_half:
            wide = self.partials(b, [b.cast(v, "float32") for v in (g, x, scale, mean, inverse)]) or ()
            return [b.cast(v, t) for v, t in zip(wide, (x.dtype, scale.dtype, scale.dtype), strict=True)]
        axes, column = _other_axes(x.type.rank), (1, x.shape[1], *[1] * (x.type.rank - 2))
        scale, mean, inverse = (b.Reshape(v, shape=column, allowzero=1) for v in (scale, mean, inverse))
        normal = b.Mul(b.Sub(x, mean), inverse)
        dscale, dshift = b.ReduceSum(b.Mul(g, normal), axes=axes), b.ReduceSum(g, axes=axes)
        count = b.scalar(x.type.size // max(1, x.shape[1]), x)
        pulled = b.Sub(b.Sub(g, b.Div(dshift, count)), b.Mul(normal, b.Div(dscale, count)))
        return [b.Mul(pulled, b.Mul(scale, inverse)), *(b.Reshape(v, shape=(x.shape[1],), allowzero=1) for v in (dscale, dshift))]

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        return self.partials(b, inputs)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[1])
        full, small = (x.size,), (x.shape[1],)
        if not x.size:
            return [fill_call(Out(i, small), 0, x.shape[1], x.itemsize) for i in (1, 2)]
        arrays: list[In | Out | Scratch] = [In(0, full), In(1, full), *[In(i, small) for i in (2, 3, 4)], Out(0, full), Out(1, small), Out(2, small)]
        return _batch_calls("batch_norm_grad", x, arrays, ())


# ---- layer normalisation -------------------------------------------------------------------------------------------------

@dataclass(frozen=True, repr=False)
class RowNorm(Op):
    """Shared by normalisations of rows and their gradients: rows are the axes before `axis`, columns the others."""

    axis: int = -1

    def table(self, x: TensorType) -> tuple[int, int]:
        """(rows, columns)."""
        axis = normal_axis(self.axis, x.rank)
        return math.prod(x.shape[:axis]), math.prod(x.shape[axis:])

    def statistic(self, x: TensorType) -> TensorType:
        """The type of a number per row, as ONNX shapes it."""
        axis = normal_axis(self.axis, x.rank)
        return x.with_shape(x.shape[:axis] + (1,) * (x.rank - axis))

    def operands(self, x: TensorType) -> tuple[tuple[Axis, ...], Operand, Operand, Operand]:
        """The axes of the work; how x, a tensor over the columns, and a statistic of the rows are indexed."""
        names, axis = tuple(LETTERS[:x.rank]), normal_axis(self.axis, x.rank)
        axes = tuple(Axis(a, n, "parallel" if i < axis else "reduce") for i, (a, n) in enumerate(zip(names, x.shape, strict=True)))
        rows = (*names[:axis], *[None] * (x.rank - axis))
        return axes, Operand(names, x.dtype), Operand(names[axis:], x.dtype), Operand(rows, x.dtype)


@op("LayerNormalization")
class LayerNormalization(RowNorm):
    """scale * (x - mean) / sqrt(variance + epsilon) + B, statistics over `axis` and all axes after it.

    Inputs: x, scale and optional B of shape x.shape[axis:]. Outputs: y, mean, 1 / sqrt(variance + epsilon), the last two with
    the reduced axes as size 1.
    """

    roles = ("data", "scale", "bias")
    epsilon: float = 1e-5

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4, 5), (5,), (5,)), sample((3, 4, 5), (4, 5), axis=1)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        check_float(x)
        wanted = x.with_shape(x.shape[normal_axis(self.axis, x.rank):])
        for what, t in zip(("scale", "B"), types[1:], strict=False):
            if t != wanted and (t is not None or what == "scale"):
                raise ShapeError(f"{what} is {t or 'absent'}; for the input {x} and axis {self.axis} it must be {wanted}.")
        return x, self.statistic(x), self.statistic(x)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x, scale = present(inputs[0]), present(inputs[1])
        axes = tuple(range(normal_axis(self.axis, x.ndim), x.ndim))
        wide = x.astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            count = np.float64(math.prod(x.shape[axes[0]:]))
            mean = np.sum(wide, axes, keepdims=True) / count
            inverse = 1 / np.sqrt(np.sum((wide - mean) ** 2, axes, keepdims=True) / count + self.epsilon)
        y = (wide - mean) * inverse * scale
        if len(inputs) > 2 and inputs[2] is not None:
            y = y + inputs[2]
        return tuple(a.astype(x.dtype) for a in (y, mean, inverse))

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        if any(g is not None for g in grads[1:]):
            raise UnsupportedError("The statistics of LayerNormalization have no gradient; only its first output has.")
        if grads[0] is None:
            return [None] * len(inputs)
        found = b.LayerNormalizationGrad(grads[0], inputs[0], inputs[1], outputs[1], outputs[2], axis=self.axis)
        return [None if v is None else g for v, g in zip(inputs, found, strict=False)]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = present(inputs[0])
        axes, full, columns, rows = self.operands(x)
        return Reduce(axes, (full, *(columns if t else None for t in inputs[1:])), (full, rows, rows), 7.0,
                      functions=counted(("group norm",), x.dtype))

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        x, scale = present(inputs[0]), present(inputs[1])
        axes = tuple(range(normal_axis(self.axis, x.type.rank), x.type.rank))
        mean, centred, _, inverse = moments(b, x, axes, self.epsilon)
        y = b.Mul(b.Mul(centred, inverse), scale)
        return [y if len(inputs) < 3 or inputs[2] is None else b.Add(y, inputs[2]), mean, inverse]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[0])
        rows, n = self.table(x)
        if not rows:
            return []
        has_shift = len(inputs) > 2 and inputs[2] is not None
        shift: In | Scratch = In(2, (n,)) if has_shift else Scratch("zeros", (n,), x.code)
        first = [] if has_shift else [fill_call(shift, 0, n, x.itemsize)]
        args = (In(0, (rows, n)), In(1, (n,)), shift, Out(0, (rows, n)), Out(1, (rows,)), Out(2, (rows,)), *own_scratch(x.code), self.epsilon)
        return [*first, Call(norm_leaf("layer_norm", x.code), args, rows, max(1, 2048 // max(1, n)), x.size * 0.4 + rows * 30.0)]


@op("LayerNormalizationGrad", onnx=False)
class LayerNormalizationGrad(RowNorm):
    """(g, x, scale, mean, 1 / std) to the gradients of x, scale and B of LayerNormalization."""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4, 5), (3, 4, 5), (5,), (3, 4, 1), (3, 4, 1))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, scale = present(types[1]), present(types[2])
        assert types[0] == x, types
        check_float(x)
        assert types[3] == types[4] == self.statistic(x), types
        return x, scale, scale

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        dtype = present(inputs[0]).dtype
        g, x, scale, mean, inverse = (present(a).astype(np.float64) for a in inputs)
        axis = normal_axis(self.axis, x.ndim)
        columns, rows = tuple(range(axis, x.ndim)), tuple(range(axis))
        normal, h = (x - mean) * inverse, g * scale
        with np.errstate(invalid="ignore", divide="ignore"):
            count = np.float64(math.prod(x.shape[axis:]))
            level = np.sum(h, columns, keepdims=True) / count
            tilt = np.sum(h * normal, columns, keepdims=True) / count
        dx = inverse * (h - level - normal * tilt)
        return tuple(a.astype(dtype) for a in (dx, np.sum(g * normal, rows), np.sum(g, rows)))

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = present(inputs[1])
        axes, full, columns, rows = self.operands(x)
        return Reduce(axes, (full, full, columns, rows, rows), (full, columns, columns), 10.0,
                      functions=counted(("group norm grad",), x.dtype))

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        g, x, scale, mean, inverse = map(present, inputs)
        axis = normal_axis(self.axis, x.type.rank)
        axes, rows = tuple(range(axis, x.type.rank)), tuple(range(axis))
        normal, h = b.Mul(b.Sub(x, mean), inverse), b.Mul(g, scale)
        dx = b.Mul(inverse, b.Sub(b.Sub(h, b.ReduceMean(h, axes=axes)), b.Mul(normal, b.ReduceMean(b.Mul(h, normal), axes=axes))))
        small = [b.ReduceSum(v, axes=rows, noop_with_empty_axes=1) for v in (b.Mul(g, normal), g)]
        return [dx, *(b.Reshape(v, shape=scale.shape, allowzero=1) for v in small)]

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        return self.partials(b, inputs)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[1])
        rows, n = self.table(x)
        if not n:
            return []
        if not rows:
            return [fill_call(Out(i, (n,)), 0, n, x.itemsize) for i in (1, 2)]
        table = (rows, n)
        units = -(-rows // ROWS)
        parts = [Scratch(f"parts of {name}", (units, n), x.code) for name in ("scale", "shift")]
        args = (In(0, table), In(1, table), In(2, (n,)), In(3, (rows,)), In(4, (rows,)), Out(0, table), *parts, *own_scratch(x.code),
                Scratch("spare", (1,), x.code))
        calls = [Call(norm_leaf("layer_norm_grad", x.code), args, units, 1, x.size * 0.6 + rows * 40.0)]
        for i, part in enumerate(parts):
            calls += reduce_calls("sum", x.code, (units, n), (0,), source=replace(part, shape=(units * n,)), target=Out(i + 1, (n,)))
        return calls


