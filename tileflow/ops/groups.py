"""Group and instance normalisation: statistics of each sample's each group of neighbouring channels."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import LETTERS, Axis, Nested, Operand, Reduce, Work, counted
from ..kernels.machine.call import Call, Out
from ..kernels.machine.call import Work as Scratch
from ..kernels.move import fill_call
from ..kernels.norm.groups import group_norm_calls, group_norm_grad_calls
from ..memory.types import TensorType, type_of
from ..system.errors import ShapeError, TypeMismatchError, UnsupportedError
from .norm import BatchNormalization, moments, statistics_of
from .shape import Shape, check_float, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu


@dataclass(frozen=True, repr=False)
class _Groups(Op):
    """Shared by normalisations of groups: x [N, C, d…], scale and B [C]; statistics [N, groups]."""

    roles = ("data", "scale", "bias")
    epsilon: float = 1e-5

    def groups(self, x: TensorType) -> int:
        """Into how many groups the channels of x are parted."""
        raise NotImplementedError

    def grouped(self, x: TensorType) -> Shape:
        """x as [N, groups, channels of a group, d…]. Raises ShapeError where that is impossible."""
        count = self.groups(x)
        if count < 1 or x.shape[1] % count:
            raise ShapeError(f"the input {x} has {x.shape[1]} channels; {count} groups do not divide them.")
        return (x.shape[0], count, x.shape[1] // count, *x.shape[2:])

    def kept(self, x: TensorType) -> TensorType:
        """The type of the statistics."""
        return statistics_of(x).with_shape((x.shape[0], self.groups(x)))

    def space(self, x: TensorType) -> tuple[tuple[Axis, ...], tuple[str | Nested | None, ...], tuple[str | None, ...]]:
        """The axes of the work, by the letters of x as [N, groups, channels of a group, d…]; how x and the statistics are indexed."""
        shape = self.grouped(x)
        n, group, channel, *inner = list(LETTERS[:len(shape)])
        left = [a for a in (n, group, channel, *inner) if (a != group or shape[1] > 1) and (a != channel or shape[2] > 1 or shape[1] == 1)]
        axes = tuple(Axis(a, size, "parallel" if a in (n, group) else "reduce") for a, size in zip(LETTERS, shape, strict=False) if a in left)
        both: str | Nested = Nested(group, channel, stride=shape[2]) if {group, channel} <= {*left} else group if group in left else channel
        return axes, (n, both, *inner), (n, group if group in left else None)

    def part(self, box: Mapping[str, tuple[int, int]], inputs: Types, outputs: Sequence[TensorType]) -> Op:
        groups = self.attributes().get("num_groups", 1)
        lo, hi = box.get(LETTERS[1], (0, groups))
        return self if groups == 1 or hi - lo == groups else replace(self, num_groups=hi - lo)        # type: ignore[call-arg]


@dataclass(frozen=True, repr=False)
class _Normalisation(_Groups):
    """scale * (x - mean) / sqrt(variance + epsilon) + B; a second and third output are mean and 1 / sqrt(variance + epsilon), [N, groups]."""

    def training(self) -> Op:
        """The form that also gives the statistics."""
        raise NotImplementedError

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        y = BatchNormalization(training_mode=1).infer(*types)[0]
        self.grouped(y)
        return (y,)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x, scale, shift = map(present, inputs)
        t = type_of(x)
        shape, axes = self.grouped(t), tuple(range(2, x.ndim + 1))
        wide, column = x.astype(np.float64).reshape(shape), (1, *shape[1:3], *[1] * (x.ndim - 2))
        with np.errstate(invalid="ignore", divide="ignore"):
            count = np.float64(math.prod(shape[2:]))
            mean = np.sum(wide, axes, keepdims=True) / count
            inverse = 1 / np.sqrt(np.sum((wide - mean) ** 2, axes, keepdims=True) / count + self.epsilon)
        y = (wide - mean) * inverse * scale.reshape(column) + shift.reshape(column)
        kept = self.kept(t)
        return (y.reshape(x.shape).astype(x.dtype), *(a.reshape(kept.shape).astype(kept.numpy) for a in (mean, inverse)))

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        """From the statistics that the form in training keeps, or computed anew."""
        if any(g is not None for g in grads[1:]):
            raise UnsupportedError("The statistics of a normalisation have no gradient; only its first output has.")
        if grads[0] is None:
            return [None, None, None]
        x, scale = present(inputs[0]), present(inputs[1])
        kept = outputs[1:] or b.emit(self.training(), *inputs)[1:]
        return b.emit(GroupNormalizationGrad(num_groups=self.groups(x.type)), grads[0], x, scale, *kept)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x, scale, shift = map(present, inputs)
        axes, full, kept = self.space(x)
        small = tuple(Operand((full[1],), t.dtype) for t in (scale, shift))
        return Reduce(axes, (Operand(full, x.dtype), *small), (Operand(full, x.dtype), *(Operand(kept, t.dtype) for t in outputs[1:])), 6.0,
                      functions=counted(("group norm",), x.dtype))

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        x, scale, shift = map(present, inputs)
        own, whole, half, kept = x.dtype, x.shape, x.type.is_half, self.kept(x.type)
        shape = self.grouped(x.type)
        axes, column = tuple(range(2, len(shape))), (1, *shape[1:3], *[1] * (len(shape) - 3))
        x, scale, shift = ((b.cast(v, "float32") for v in (x, scale, shift)) if half else (x, scale, shift))
        x = b.Reshape(x, shape=shape, allowzero=1)
        mean, centred, _, inverse = moments(b, x, axes, self.epsilon)
        factor = b.Mul(inverse, b.Reshape(scale, shape=column, allowzero=1))
        y = b.Reshape(b.Add(b.Mul(centred, factor), b.Reshape(shift, shape=column, allowzero=1)), shape=whole, allowzero=1)
        return [b.Cast(y, to=own) if half else y, *(b.Reshape(v, shape=kept.shape, allowzero=1) for v in (mean, inverse))]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[0])
        n, groups, width, *inner = self.grouped(x)
        if not n or (not x.size and len(outputs) == 1):                       # statistics of nothing are there, and are not numbers
            return []
        kept: list[Out | Scratch] = [Out(1, (n * groups,)), Out(2, (n * groups,))]
        if len(outputs) == 1:
            kept = [Scratch(name, (n * groups,), x.code) for name in ("mean", "inverse")]
        return group_norm_calls(n, groups, width, math.prod(inner), x.code, self.epsilon, kept)


@dataclass(frozen=True, repr=False)
class _Inference(_Normalisation):
    """The operator as ONNX has it: one output."""

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return super().reference(*inputs)[:1]

    def differentiable(self, inputs: Types, needed: Sequence[bool]) -> Op | None:
        """Its gradient reads the statistics, which so are not computed twice."""
        return self.training()

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        return (super().partials(b, inputs) or ())[:1]


@dataclass(frozen=True, repr=False)
class _Training(_Normalisation):
    """The operator with the statistics that its gradient reads."""

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, = super().infer(*types)
        return x, self.kept(x), self.kept(x)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        return self.partials(b, inputs)


# ---- groups of channels --------------------------------------------------------------------------------------------------

@dataclass(frozen=True, repr=False)
class _Counted(_Groups):
    """As many groups as an attribute says."""

    num_groups: int = 1

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 6, 7, 6), (6,), (6,), num_groups=2), sample((3, 6), (6,), (6,), num_groups=3)]

    def groups(self, x: TensorType) -> int:
        return self.num_groups

    def training(self) -> Op:
        return GroupNormalizationTraining(**self.attributes())


@op("GroupNormalization")
class GroupNormalization(_Counted, _Inference):
    """scale * (x - mean) / sqrt(variance + epsilon) + B with the statistics of each sample's each group of channels (Wu and He, arXiv:1803.08494).

    Inputs: x [N, C, d…], scale [C], B [C]; `num_groups` divides C, and a group is C / num_groups neighbouring channels. Statistics of 16-bit x are
    float32 (ONNX's stash_type 1), and scale and B may be.
    """

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        """As both exporters of PyTorch write it: files before opset 21 have it so."""
        x, scale, shift = map(present, inputs)
        if not x.type.size or scale.dtype != x.dtype:
            return self.partials(b, inputs)
        ones, zeros = (b.constant(np.full(self.num_groups, n, x.type.numpy)) for n in (1, 0))
        rows = b.Reshape(x, shape=(x.shape[0], self.num_groups, x.type.size // (x.shape[0] * self.num_groups)), allowzero=1)
        y = b.Reshape(b.InstanceNormalization(rows, ones, zeros, epsilon=self.epsilon), shape=x.shape, allowzero=1)
        column = (x.shape[1], *[1] * (x.type.rank - 2))
        scale, shift = (b.Reshape(v, shape=column, allowzero=1) for v in (scale, shift))
        return [b.Add(b.Mul(y, scale), shift)]


@op("GroupNormalizationTraining", onnx=False)
class GroupNormalizationTraining(_Counted, _Training):
    """GroupNormalization that also gives mean and 1 / sqrt(variance + epsilon), [N, num_groups], which its gradient reads."""


@op("GroupNormalizationGrad", onnx=False)
class GroupNormalizationGrad(_Groups):
    """(g, x, scale, mean, 1 / std) to the gradients of x, scale and B of GroupNormalization; the statistics are [N, num_groups]."""

    num_groups: int = 1

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 6, 7, 6), (2, 6, 7, 6), (6,), (2, 2), (2, 2), num_groups=2), sample((3, 6), (3, 6), (6,), (3, 3), (3, 3), num_groups=3)]

    def groups(self, x: TensorType) -> int:
        return self.num_groups

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, scale = present(types[1]), present(types[2])
        assert types[0] == x, types
        check_float(x)
        self.grouped(x)
        if not types[3] == types[4] == self.kept(x):
            raise TypeMismatchError(f"the statistics are {types[3]} and {types[4]}; for the input {x} they must be {self.kept(x)}.")
        return x, scale, scale

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        dtypes, whole = [present(inputs[i]).dtype for i in (0, 2, 2)], present(inputs[1]).shape
        shape = self.grouped(type_of(present(inputs[1])))
        table, column = (*shape[:2], *[1] * (len(shape) - 2)), (1, *shape[1:3], *[1] * (len(shape) - 3))
        shapes = (shape, shape, column, table, table)
        g, x, scale, mean, inverse = (present(a).astype(np.float64).reshape(s) for a, s in zip(inputs, shapes, strict=True))
        axes = tuple(range(2, len(shape)))
        normal, h = (x - mean) * inverse, g * scale
        with np.errstate(invalid="ignore", divide="ignore"):
            count = np.float64(math.prod(shape[2:]))
            level, tilt = (np.sum(v, axes, keepdims=True) / count for v in (h, h * normal))
        small = [np.sum(v, (0, *axes[1:])).reshape(-1) for v in (g * normal, g)]
        dx = (inverse * (h - level - normal * tilt)).reshape(whole)
        return tuple(a.astype(t) for a, t in zip((dx, *small), dtypes, strict=True))

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        _, x, scale, mean, inverse = map(present, inputs)
        axes, full, kept = self.space(x)
        large, column = Operand(full, x.dtype), Operand((full[1],), scale.dtype)
        return Reduce(axes, (large, large, column, *(Operand(kept, t.dtype) for t in (mean, inverse))), (large, column, column), 10.0,
                      functions=counted(("group norm grad",), x.dtype))

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        g, x, scale, mean, inverse = map(present, inputs)
        if x.type.is_half:
            wide = self.partials(b, [b.cast(v, "float32") for v in (g, x, scale, mean, inverse)]) or ()
            return [b.cast(v, t) for v, t in zip(wide, (x.dtype, scale.dtype, scale.dtype), strict=True)]
        shape, whole, channels = self.grouped(x.type), x.shape, scale.shape
        axes, table, column = tuple(range(2, len(shape))), (*shape[:2], *[1] * (len(shape) - 2)), (1, *shape[1:3], *[1] * (len(shape) - 3))
        g, x = (b.Reshape(v, shape=shape, allowzero=1) for v in (g, x))
        mean, inverse = (b.Reshape(v, shape=table, allowzero=1) for v in (mean, inverse))
        normal, h = b.Mul(b.Sub(x, mean), inverse), b.Mul(g, b.Reshape(scale, shape=column, allowzero=1))
        level, tilt = b.ReduceMean(h, axes=axes), b.ReduceMean(b.Mul(h, normal), axes=axes)
        dx = b.Mul(inverse, b.Sub(b.Sub(h, level), b.Mul(normal, tilt)))
        small = [b.ReduceSum(v, axes=(0, *axes[1:])) for v in (b.Mul(g, normal), g)]
        return [b.Reshape(dx, shape=whole, allowzero=1), *(b.Reshape(v, shape=channels, allowzero=1) for v in small)]

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        return self.partials(b, inputs)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[1])
        n, groups, width, *inner = self.grouped(x)
        if not x.size:
            return [fill_call(Out(i, (groups * width,)), 0, groups * width, x.itemsize) for i in (1, 2)]
        return group_norm_grad_calls(n, groups, width, math.prod(inner), x.code)


# ---- every channel by itself ---------------------------------------------------------------------------------------------

@dataclass(frozen=True, repr=False)
class _Alone(_Groups):
    """As many groups as channels."""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 4, 7, 6), (4,), (4,))]

    def groups(self, x: TensorType) -> int:
        return max(1, x.shape[1])

    def training(self) -> Op:
        return InstanceNormalizationTraining(**self.attributes())


@op("InstanceNormalization")
class InstanceNormalization(_Alone, _Inference):
    """scale * (x - mean) / sqrt(variance + epsilon) + B with the statistics of each sample's each channel; x [N, C, d…]."""


@op("InstanceNormalizationTraining", onnx=False)
class InstanceNormalizationTraining(_Alone, _Training):
    """InstanceNormalization that also gives mean and 1 / sqrt(variance + epsilon), [N, C], which its gradient reads."""
