"""Resizing: nearest elements, or weighted sums of a few, one axis after the other."""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import LETTERS, Map, Move, Operand, Window, Work
from ..graph.work import Axis as WorkAxis
from ..kernels.interpolate import interpolate_points, interpolate_rows
from ..kernels.machine.call import Call, In, Out
from ..kernels.repeat import repeat_calls, repeat_sum_calls
from ..memory.types import TensorType
from ..system.errors import ShapeError, TypeMismatchError, UnsupportedError
from .shape import Shape, check_float, normal_axes, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu

FEW = 8
"""Elements behind an axis up to which it is interpolated element by element."""
NARROW = ("int8", "uint8", "int16", "uint16")
"""Whole numbers that are interpolated in float32, which holds all of them."""


# ---- weighted sums along an axis ------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class SparseRows:
    """A sparse matrix by rows: output j is the sum of weight[t] * x[index[t]] for start[j] <= t < start[j + 1], of `size` elements."""

    size: int
    start: np.ndarray
    index: np.ndarray
    weight: np.ndarray

    @staticmethod
    def of(size: int, rows: Sequence[Sequence[tuple[int, float]]]) -> SparseRows:
        """From the (index, weight) pairs of each output."""
        start = np.cumsum([0, *map(len, rows)])
        pairs = [pair for row in rows for pair in row]
        return SparseRows(size, start.astype(np.int64), np.array([i for i, _ in pairs], np.int64),
                          np.array([w for _, w in pairs], np.float64))

    @property
    def turned(self) -> SparseRows:
        """The transposed matrix: the weights of each input, in the order of the outputs."""
        owner = np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))
        order = np.argsort(self.index, kind="stable")
        start = np.searchsorted(self.index[order], np.arange(self.size + 1))
        return SparseRows(len(self.start) - 1, start.astype(np.int64), owner[order].astype(np.int64),
                          self.weight[order])

    def arrays(self, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.start, self.index, self.weight.astype(dtype)


def interpolated(b: Builder, x: Value, axis: int, table: SparseRows) -> Value:
    """The weighted sums of x along an axis."""
    arrays = (*table.arrays(x.type.numpy), *table.turned.arrays(x.type.numpy))
    return b.Interpolate(x, *(b.constant(a, "table") for a in arrays), axis=axis)      # type: ignore[no-any-return]


@op("Interpolate", onnx=False)
class Interpolate(Op):
    """Weighted sums of x's elements along `axis`, by a sparse matrix: (x, start, index, weight of its rows, and of the transposed one's).

    Output j is the sum of weight[t] * x[index[t]] for start[j] <= t < start[j + 1]. The gradient takes the two matrices the other way round.
    """

    no_gradient = "the weights of resizing are no parameters"

    axis: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        table = SparseRows.of(4, [[(0, 0.25), (1, 0.75)], [(2, 1.5)], [], [(3, 1.0), (0, 2.0), (3, -0.5)],
                                  [(1, 1.0), (2, 2.0)]])
        arrays = (*table.arrays(np.dtype("f4")), *table.turned.arrays(np.dtype("f4")))
        return [sample((3, 4), *arrays, axis=1), sample((4, 9, 2), *arrays, axis=0), sample((2, 4, 2), *arrays, axis=1)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, start, _, weight, back, *_ = map(present, types)
        assert weight.dtype == x.dtype, types
        check_float(x)
        assert back.shape[0] - 1 == x.shape[self.axis], types
        return (x.with_shape((*x.shape[:self.axis], start.shape[0] - 1, *x.shape[self.axis + 1:])),)

    def require(self, inputs: Types, constants: Sequence[np.ndarray | None]) -> None:
        x, y = present(inputs[0]), self.infer(*inputs)[0]
        if not 0 <= self.axis < x.rank:
            raise ShapeError(f"there is no axis {self.axis} in {x}")
        for n, first in ((x.shape[self.axis], 1), (y.shape[self.axis], 4)):
            start, index, weight = *constants[first:first + 2], present(inputs[first + 2])
            if start is None or index is None or (start.dtype, index.dtype) != (np.int64, np.int64):
                raise ShapeError("its places are no constants of int64")
            rows = start.ndim == index.ndim == 1 and start.size > 0 and weight == TensorType(x.dtype, index.shape)
            if not rows or start[0] != 0 or start[-1] != index.size or np.any(start[1:] < start[:-1]):
                raise ShapeError("its places are no rows of a matrix")
            if index.min(initial=0) < 0 or index.max(initial=-1) >= n:
                raise ShapeError(f"it has places {index.min()} to {index.max()} of {n}")

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x, start, index, weight = map(present, inputs[:4])
        moved = np.moveaxis(x, self.axis, 0)
        y = np.zeros((len(start) - 1, *moved.shape[1:]), x.dtype)
        for j, (first, last) in enumerate(itertools.pairwise(start)):
            for k, t in enumerate(range(first, last)):
                y[j] = weight[t] * moved[index[t]] + (y[j] if k else 0)
        return (np.ascontiguousarray(np.moveaxis(y, 0, self.axis)),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        if grads[0] is None:
            return [None] * 7
        return [b.Interpolate(grads[0], *inputs[4:], *inputs[1:4], axis=self.axis), *[None] * 6]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x, index, y = present(inputs[0]), present(inputs[2]), outputs[0]
        names = tuple(LETTERS[:y.rank])
        axes = tuple(WorkAxis(a, n, "whole" if i == self.axis else "parallel") for i, (a, n) in enumerate(zip(names, y.shape, strict=True)))
        source = Operand(tuple(None if i == self.axis else a for i, a in enumerate(names)), x.dtype)
        tables = tuple(Operand((None,), present(t).dtype) for t in inputs[1:])
        return Map(axes, (source, *tables), (Operand(names, y.dtype),), 2.0 * index.size / max(1, y.shape[self.axis]))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, start, index, y = present(inputs[0]), present(inputs[1]), present(inputs[2]), outputs[0]
        if not y.size:
            return []
        outer, inner, m = math.prod(x.shape[:self.axis]), math.prod(x.shape[self.axis + 1:]), y.shape[self.axis]
        tables = In(1, start.shape), In(2, index.shape), In(3, index.shape)
        args = (In(0, (outer, x.shape[self.axis], inner)), *tables, Out(0, (outer, m, inner)))
        each = max(1.0, index.size / m)
        if inner > FEW:
            return [Call(interpolate_rows[x.code], args, outer * m, max(1, 2048 // inner), y.size * each * 0.15)]
        return [Call(interpolate_points[x.code], args, outer, max(1, 2048 // (m * inner)), y.size * each * 0.6)]


# ---- elements repeated ---------------------------------------------------------------------------------------------------------

@op("Repeat", onnx=False)
class Repeat(Op):
    """Each element along `axis` `times` times, and along the axis before it `rows` times: what is nearest where axes become multiples."""

    halves = True

    axis: int = 0
    times: int = 1
    rows: int = 1

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), axis=1, times=2), sample((3, 4, 5), axis=1, times=3), sample(("int64", (3,), -9, 9), times=2),
                sample((2, 3, 4), axis=2, times=2, rows=2), sample((2, 3, 4, 2), axis=2, times=3, rows=2)]

    def grown(self, shape: Shape) -> Shape:
        """The shape of the result."""
        if self.rows > 1 and self.axis < 1:
            raise ShapeError("There is no axis before the first one to repeat.")
        if not 0 <= self.axis < len(shape) or min(self.times, self.rows) < 1:
            raise ShapeError(f"Axis {self.axis} of {list(shape)} cannot be repeated {self.times} times.")
        more = {self.axis: self.times, self.axis - 1: self.rows}
        return tuple(n * more.get(i, 1) for i, n in enumerate(shape))

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        return (x.with_shape(self.grown(x.shape)),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        y = np.repeat(present(inputs[0]), self.times, self.axis)
        return (np.repeat(y, self.rows, self.axis - 1) if self.rows > 1 else y,)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        return [None if grads[0] is None else b.RepeatGrad(grads[0], axis=self.axis, times=self.times, rows=self.rows)]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x, y = present(inputs[0]), outputs[0]
        names, more = LETTERS[:x.rank], {self.axis: ("copies", self.times)} | ({self.axis - 1: ("copied rows", self.rows)} if self.rows > 1 else {})
        axes = (*(WorkAxis(a, n) for a, n in zip(names, x.shape, strict=True)), *(WorkAxis(a, n, "whole") for a, n in more.values()))
        places = tuple(Window(a, more[i][0], stride=more[i][1]) if i in more else a for i, a in enumerate(names))
        return Move(axes, (Operand(tuple(names), x.dtype),), (Operand(places, y.dtype),))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, y = present(inputs[0]), outputs[0]
        if not y.size:
            return []
        outer, n, inner = math.prod(x.shape[:self.axis]), x.shape[self.axis], math.prod(x.shape[self.axis + 1:])
        return repeat_calls(outer, self.rows, n, self.times, inner, x.itemsize)


@op("RepeatGrad", onnx=False)
class RepeatGrad(Op):
    """The gradient of Repeat with these attributes: the sum of what each element became."""

    axis: int = 0
    times: int = 1
    rows: int = 1

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 40), axis=1, times=2), sample((3, 12, 5), axis=1, times=3), sample((2, 12), axis=1, times=12),
                sample((2, 6, 38), axis=2, times=2, rows=2), sample((2, 6, 4, 19), axis=2, times=2, rows=3)]

    def _apart(self, shape: Shape) -> Shape:
        """The shape of a gradient with the copies along axes of their own. Raises ShapeError where there are not as many."""
        if not 0 <= self.axis < len(shape) or min(self.times, self.rows) < 1:
            raise ShapeError(f"There is no axis {self.axis} of {list(shape)} to have been repeated.")
        if (self.rows > 1 and self.axis < 1) or shape[self.axis] % self.times or shape[self.axis - 1] % self.rows:
            raise ShapeError(f"{list(shape)} is nothing {self.times} times along axis {self.axis} and {self.rows} times along the one before it.")
        before = (*shape[:self.axis - 1], shape[self.axis - 1] // self.rows, self.rows) if self.rows > 1 else (*shape[:self.axis], 1)
        return (*before, shape[self.axis] // self.times, self.times, *shape[self.axis + 1:])

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        g = present(types[0])
        check_float(g, "the gradient")
        apart = self._apart(g.shape)
        return (g.with_shape((*apart[:self.axis], apart[self.axis + 1], *apart[self.axis + 3:])),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        return [None if grads[0] is None else b.Repeat(grads[0], axis=self.axis, times=self.times, rows=self.rows)]

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        g = present(inputs[0])
        return [b.ReduceSum(b.Reshape(g, shape=self._apart(g.shape), allowzero=1), axes=(self.axis, self.axis + 2), keepdims=0)]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = outputs[0]
        if not x.size:
            return []
        outer, n, inner = math.prod(x.shape[:self.axis]), x.shape[self.axis], math.prod(x.shape[self.axis + 1:])
        return repeat_sum_calls(outer, self.rows, n, self.times, inner, x.code)


# ---- the operator ---------------------------------------------------------------------------------------------------------------

MODES = ("nearest", "linear", "cubic")
NEAREST: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5), "round_prefer_ceil": lambda x: np.floor(x + 0.5), "floor": np.floor, "ceil": np.ceil,
}
POLICIES = ("stretch", "not_larger", "not_smaller")


@dataclass(frozen=True)
class _Axis:
    """How one axis is resized: from n to m elements, by `scale`, in tf_crop_and_resize from the part lo..hi of it."""

    axis: int
    n: int
    m: int
    scale: float
    lo: float
    hi: float


@op("Resize")
class Resize(Op):
    """x with its axes (or those in `axes`) in `sizes`, or `scales` times as long; elements are the nearest ones, or sums of neighbours.

    mode: "nearest", "linear" or "cubic"; along several axes one after the other. coordinate_transformation_mode: where output elements lie in x.
    antialias: where an axis shrinks, all elements that an output covers are summed. exclude_outside: elements beyond the border do not count
    (else the outermost stand for them). roi: starts and ends of the axes in tf_crop_and_resize, where `extrapolation_value` lies outside.
    keep_aspect_ratio_policy: with `sizes`, one scale for all axes: the smallest ("not_larger") or the largest.
    """

    roles = ("moved",)
    halves = True

    roi: tuple[float, ...] | None = None
    scales: tuple[float, ...] | None = None
    sizes: Shape | None = None
    antialias: int = 0
    axes: Shape | None = None
    coordinate_transformation_mode: str = "half_pixel"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    keep_aspect_ratio_policy: str = "stretch"
    mode: str = "nearest"
    nearest_mode: str = "round_prefer_floor"

    @classmethod
    def samples(cls) -> list[Sample]:
        image, twice = (1, 1, 4, 5), (1.0, 1.0, 2.0, 2.0)
        coordinates = ("align_corners", "asymmetric", "half_pixel_symmetric", "pytorch_half_pixel")
        return [sample(image, scales=twice, mode=mode) for mode in MODES] + [
            *[sample(image, sizes=(7, 3), axes=(2, 3), nearest_mode=nearest) for nearest in NEAREST],
            *[sample(image, scales=(1.0, 1.0, 0.6, 1.5), mode="linear", coordinate_transformation_mode=c) for c in coordinates],
            *[sample(image, sizes=(1, 1, 3, 4), mode=mode, antialias=1) for mode in MODES[1:]],
            sample(image, scales=(0.8, 0.8), axes=(3, 2), mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5),
            *[sample(image, sizes=(7, 8), axes=(2, 3), mode="linear", keep_aspect_ratio_policy=policy) for policy in POLICIES[1:]],
            *[sample(image, sizes=(1, 1, 3, 3), roi=(0.0, 0.0, 0.4, 0.6, 1.0, 1.0, 1.2, 1.7), extrapolation_value=10.0, mode=mode,
                     coordinate_transformation_mode="tf_crop_and_resize") for mode in MODES],
            sample((1, 2, 3, 2, 3), sizes=(5, 3, 2), axes=(2, 3, 4), mode="linear"),
            sample(("uint8", (1, 1, 3, 4), 0, 255), scales=twice, mode="linear"),
            sample(("int64", (3,), -9, 9), scales=(2.5,))]

    def resized(self, shape: Shape) -> list[_Axis]:
        """The axes that change, in the order of `axes`."""
        axes = tuple(range(len(shape))) if self.axes is None else normal_axes(self.axes, len(shape))
        crops = self.coordinate_transformation_mode == "tf_crop_and_resize"
        roi = (0.0,) * len(axes) + (1.0,) * len(axes) if not crops or not self.roi else self.roi
        given = self.scales or self.sizes or ()
        counted = given and len(given) == len(axes) and len(roi) == 2 * len(axes)
        if not counted or (self.scales and self.sizes) or not all(map(math.isfinite, roi)):
            raise ShapeError(f"scales {self.scales} or sizes {self.sizes} (one of them), and roi {self.roi}, must fit the axes {list(axes)}.")
        scales = [float(s) for s in self.scales] if self.scales else [m / max(1, shape[a]) for m, a in zip(given, axes, strict=True)]
        if not all(0 < s < math.inf for s in scales if not self.sizes):
            raise ShapeError(f"scales {scales} must be positive.")
        sizes = [int(s * shape[a]) for s, a in zip(scales, axes, strict=True)] if self.scales else [int(m) for m in given]
        if self.sizes and self.keep_aspect_ratio_policy != "stretch":
            scales = [(min if self.keep_aspect_ratio_policy == "not_larger" else max)(scales)] * len(axes)
            sizes = [int(s * shape[a] + 0.5) for s, a in zip(scales, axes, strict=True)]
        if min(sizes, default=0) < 0 or any(m and not shape[a] for m, a in zip(sizes, axes, strict=True)):
            raise ShapeError(f"{list(shape)} cannot be resized to {sizes} along the axes {list(axes)}.")
        whole = (_Axis(a, shape[a], m, s, roi[k], roi[k + len(axes)]) for k, (a, m, s) in enumerate(zip(axes, sizes, scales, strict=True)))
        return [a for a in whole if a.m != a.n or not math.isclose(a.scale, 1.0) or (a.lo, a.hi) != (0.0, 1.0)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        for name, value, known in (("mode", self.mode, MODES), ("nearest_mode", self.nearest_mode, tuple(NEAREST)),
                                   ("keep_aspect_ratio_policy", self.keep_aspect_ratio_policy, POLICIES),
                                   ("coordinate_transformation_mode", self.coordinate_transformation_mode, COORDINATES)):
            if value not in known:
                raise UnsupportedError(f"{name} {value!r} is unknown; it must be one of {', '.join(known)}.")
        if self.mode == "nearest" and self.antialias:
            raise UnsupportedError("antialias needs mode linear or cubic.")
        if self.mode != "nearest" and not x.is_float and x.dtype not in NARROW:
            raise TypeMismatchError(f"the input is {x.dtype}, which mode {self.mode} does not take; cast it to a float type.")
        shape = list(x.shape)
        for a in self.resized(x.shape):
            shape[a.axis] = a.m
        return (x.with_shape(tuple(shape)),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """First the axes that shrink; the last axis, whose elements are taken one by one, while there are few others."""
        x = y = present(inputs[0])
        axes = sorted(self.resized(x.shape), key=lambda a: (a.m / max(1, a.n), -a.axis if a.m > a.n else a.axis))
        sums = self.mode != "nearest" and bool(axes)
        narrow = sums and x.dtype not in ("float32", "float64")
        if narrow:
            y = b.Cast(y, to="float32")
        outside: list[np.ndarray] = []
        if not sums and self.coordinate_transformation_mode != "tf_crop_and_resize":
            y, axes = self._repeated(b, y, axes)
        for a in axes:
            at = self._coordinates(a)
            if sums:
                y = interpolated(b, y, a.axis, SparseRows.of(a.n, self._rows(a, at)))
            else:
                y = b.Gather(y, b.constant(self._nearest(a, at), "places"), axis=a.axis)
            if self.coordinate_transformation_mode == "tf_crop_and_resize":
                outside.append(((at < 0) | (at > a.n - 1)).reshape(-1, *[1] * (x.type.rank - 1 - a.axis)))
        if any(mask.any() for mask in outside):
            mask = outside[0]
            for other in outside[1:]:
                mask = mask | other
            y = b.Where(b.constant(mask), b.scalar(self.extrapolation_value, y), y)
        if narrow:
            if not x.type.is_float:
                limits = np.iinfo(x.type.numpy)
                y = b.Clip(b.Round(y), min=float(limits.min), max=float(limits.max))
            y = b.Cast(y, to=x.dtype)
        return [y if y is not x else b.Identity(y)]

    def _repeated(self, b: Builder, x: Value, axes: Sequence[_Axis]) -> tuple[Value, list[_Axis]]:
        """x with those axes repeated that become multiples of themselves, two neighbours at once, and the axes that are left."""
        times = {a.axis: a.m // a.n for a in axes if a.n and a.m % a.n == 0 and a.m > a.n
                 and np.array_equal(self._nearest(a, self._coordinates(a)), np.repeat(np.arange(a.n), a.m // a.n))}
        left = [a for a in axes if a.axis not in times]
        while times:
            axis = max(times)
            x = b.Repeat(x, axis=axis, times=times.pop(axis), rows=times.pop(axis - 1, 1))
        return x, left

    def _coordinates(self, a: _Axis) -> np.ndarray:
        """Where the outputs along an axis lie in it."""
        return COORDINATES[self.coordinate_transformation_mode](a, np.arange(a.m, dtype=np.float64))

    def _nearest(self, a: _Axis, at: np.ndarray) -> np.ndarray:
        """The elements that the outputs show."""
        return np.clip(NEAREST[self.nearest_mode](at), 0, a.n - 1).astype(np.int64)

    def _rows(self, a: _Axis, at: np.ndarray) -> list[list[tuple[int, float]]]:
        """The (element, weight) pairs of each output."""
        stretch = max(1.0, 1 / a.scale) if self.antialias and a.m else 1.0
        rows = []
        for x in at.tolist():
            near = _neighbours(x, 2 if self.mode == "linear" else 4, stretch)
            found = [(i, self._weight((i - x) / stretch)) for i in near]
            if self.exclude_outside:
                found = [(i, w) for i, w in found if 0 <= i < a.n]
            total = sum(w for _, w in found) if self.antialias or self.exclude_outside else 1.0
            row = [(min(max(i, 0), a.n - 1), w / total) for i, w in found if w]
            if len(row) == 1 and self.mode == "linear":            # two terms in every row, where there can be: half and half is the same
                row = [(i, w / 2) for i, w in row * 2]
            rows.append(row)
        return rows

    def _weight(self, distance: float) -> float:
        """The weight of an element so far from the output."""
        d, a = abs(distance), self.cubic_coeff_a
        if self.mode == "linear":
            return max(0.0, 1 - d)
        if d <= 1:
            return ((a + 2) * d - (a + 3)) * d * d + 1
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a if d < 2 else 0.0


def _neighbours(x: float, taps: int, stretch: float) -> range:
    """The elements that an output at x may be a sum of: at most half of the taps, stretched, away."""
    reach = taps / 2 * stretch
    return range(math.floor(x - reach) + 1, math.ceil(x + reach))


def _aligned(a: _Axis, y: np.ndarray) -> np.ndarray:
    out = a.scale * a.n
    return np.zeros(a.m) if out == 1 else y * (a.n - 1) / (out - 1)


def _cropped(a: _Axis, y: np.ndarray) -> np.ndarray:
    out = a.scale * a.n
    inner = np.full(a.m, (a.hi - a.lo) * (a.n - 1) / 2) if out == 1 else y * (a.hi - a.lo) * (a.n - 1) / (out - 1)
    return inner + a.lo * (a.n - 1)


def _half_pixel(a: _Axis, y: np.ndarray) -> np.ndarray:
    return (y + 0.5) / a.scale - 0.5


def _symmetric(a: _Axis, y: np.ndarray) -> np.ndarray:
    """The middle of the axis is the middle of the output, whose size may have been rounded."""
    return a.n / 2 * (1 - a.m / (a.scale * a.n)) + _half_pixel(a, y)


COORDINATES: Mapping[str, Callable[[_Axis, np.ndarray], np.ndarray]] = {
    "half_pixel": _half_pixel, "half_pixel_symmetric": _symmetric, "align_corners": _aligned, "asymmetric": lambda a, y: y / a.scale,
    "pytorch_half_pixel": lambda a, y: np.full(a.m, -0.5) if a.scale * a.n == 1 else _half_pixel(a, y),
    "tf_half_pixel_for_nn": lambda a, y: (y + 0.5) / a.scale, "tf_crop_and_resize": _cropped,
}
"""Where output elements y lie in an axis."""
