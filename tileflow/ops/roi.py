"""Pooling of regions of interest: RoiAlign and MaxRoiPool."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import Axis, Map, Operand, Work
from ..kernels import roi as kernels
from ..kernels.machine.call import Call, In, Out
from ..kernels.move import fill_call
from ..memory.types import TensorType
from ..system.errors import ShapeError, TypeMismatchError, UnsupportedError
from .shape import Shape, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu

MOST_SAMPLES = 1024
"""Samples of a bin along an axis."""
IMAGE = (2, 3, 4, 5)
BORDERS = ("float32", (3, 4), -2.0, 7.0)
"""Regions of samples: within such an image, leaving it, turned round."""
NUMBERED = ("float32", (3, 5), 0.1, 1.9)
"""Regions of samples with their images' numbers, which are cut to 0 and 1; borders are these numbers, scaled."""


def _check(x: TensorType, rois: TensorType, columns: int, sizes: Sequence[int]) -> None:
    if not x.is_float or rois.dtype != x.dtype:
        raise TypeMismatchError(f"the input is {x.dtype} and the regions {rois.dtype}; both must be one float type.")
    if x.rank != 4 or 0 in x.shape[2:] or rois.rank != 2 or rois.shape[1] != columns or min(sizes) < 1:
        raise ShapeError(f"an input [images, channels, height, width], not {list(x.shape)}, and regions [n, {columns}], not {list(rois.shape)}, are "
                         f"needed, and at least one bin, not {list(sizes)}.")


def _forward_work(x: TensorType, y: TensorType, tables: Sequence[Operand], flops: float) -> Work:
    """Regions and channels are independent."""
    axes = (Axis("r", y.shape[0]), Axis("c", y.shape[1]), Axis("h", y.shape[2], "whole"), Axis("w", y.shape[3], "whole"))
    return Map(axes, (Operand((None, "c", None, None), x.dtype), *tables), (Operand(("r", "c", "h", "w"), x.dtype),), flops)


def _backward_work(x: TensorType, tables: Sequence[Operand], flops: float) -> Work:
    """Channels are independent."""
    axes = tuple(Axis(a, n, "parallel" if a == "c" else "whole") for a, n in zip("nchw", x.shape, strict=True))
    image = Operand(("n", "c", "h", "w"), x.dtype)
    return Map(axes, (Operand((None, "c", None, None), x.dtype), image, *tables), (image,), flops)


@op("RoiAlign")
class RoiAlign(Op):
    """The bins of regions of x [images, channels, height, width]: [regions, channels, output_height, output_width].

    rois [n, 4] are x1, y1, x2, y2, times `spatial_scale`; batch_indices [n] their images. A bin is the mean ("avg") of samples that are linear
    between elements, or ("max") the largest of their terms, as ONNX defines it; `sampling_ratio` samples along each axis, 0: one per element.
    coordinate_transformation_mode: elements have their centres at halves ("half_pixel"), or regions are at least one element ("output_half_pixel").
    """

    no_gradient = "borders of regions are places, which pooling takes as given"
    roles = ("moved",)

    coordinate_transformation_mode: str = "half_pixel"
    mode: str = "avg"
    output_height: int = 1
    output_width: int = 1
    sampling_ratio: int = 0
    spatial_scale: float = 1.0

    @classmethod
    def samples(cls) -> list[Sample]:
        at, forms = ("int64", (3,), 0, 2), ((0, "avg", True), (2, "avg", False), (0, "max", True), (2, "max", True))
        return [*[sample(IMAGE, BORDERS, at, output_height=2, output_width=3, sampling_ratio=ratio, mode=mode,
                         coordinate_transformation_mode="half_pixel" if half else "output_half_pixel") for ratio, mode, half in forms],
                sample(IMAGE, BORDERS, at, spatial_scale=0.5)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, rois, batch = map(present, types)
        _check(x, rois, 4, (self.output_height, self.output_width))
        for name, value, known in (("mode", self.mode, ("avg", "max")),
                                   ("coordinate_transformation_mode", self.coordinate_transformation_mode, ("half_pixel", "output_half_pixel"))):
            if value not in known:
                raise UnsupportedError(f"{name} {value!r} is unknown; it must be {' or '.join(known)}.")
        if batch != TensorType("int64", rois.shape[:1]):
            raise ShapeError(f"batch_indices are {batch}; for the regions {rois} they must be {TensorType('int64', rois.shape[:1])}.")
        if not 0 <= self.sampling_ratio <= MOST_SAMPLES:
            raise UnsupportedError(f"sampling_ratio {self.sampling_ratio} is not supported; it must be 0 to {MOST_SAMPLES}.")
        return (x.with_shape((rois.shape[0], x.shape[1], self.output_height, self.output_width)),)

    def terms(self, x: Shape, roi: np.ndarray, bin: tuple[int, int]) -> tuple[list[tuple[int, float]], float]:
        """The (place, weight) terms that a bin of a region is made of, and how many samples it has; (-1, 0): a sample that meets nothing."""
        along = []
        for axis in (0, 1):
            offset = 0.5 * (self.coordinate_transformation_mode == "half_pixel")
            start, end = (float(roi[i]) * self.spatial_scale - offset for i in (1 - axis, 3 - axis))
            size = end - start if offset else max(end - start, 1.0)
            size /= (self.output_height, self.output_width)[axis]
            count = self.sampling_ratio or max(math.ceil(size), 0)
            along.append([_corner(start + bin[axis] * size + (i + 0.5) * size / count, x[2 + axis]) for i in range(count)])
        found = [(-1, 0.0) if p is None or q is None else (a * x[3] + c, v * w) for p in along[0] for q in along[1]
                 for a, v in (p or [(0, 0.0)]) for c, w in (q or [(0, 0.0)])]
        return found, max(len(along[0]) * len(along[1]), 1)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x, rois, batch = map(present, inputs)
        flat = x.reshape(*x.shape[:2], x.shape[2] * x.shape[3])
        y = np.full((len(rois), x.shape[1], self.output_height, self.output_width), np.nan, x.dtype)
        for r, i, j in np.ndindex(len(rois), *y.shape[2:]):
            if np.isfinite(rois[r]).all():
                terms, count = self.terms(x.shape, rois[r], (i, j))
                values = np.stack([flat[batch[r], :, at] * w if at >= 0 else np.zeros(x.shape[1]) for at, w in terms] or [np.zeros(x.shape[1])])
                y[r, :, i, j] = values.sum(0) / count if self.mode == "avg" else values.max(0)
        return (y,)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        return [None if grads[0] is None else b.RoiAlignGrad(grads[0], *inputs, **self.attributes()), None, None]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = present(inputs[0])
        return _forward_work(x, outputs[0], (Operand(("r", None), x.dtype), Operand(("r",), "int64")), 8.0 * (self.sampling_ratio or 2) ** 2)

    def sizes(self, x: Shape) -> kernels.Align:
        return kernels.Align(x[2], x[3], self.output_height, self.output_width, self.sampling_ratio,
                             int(self.coordinate_transformation_mode == "half_pixel"), int(self.mode == "max"))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, y = present(inputs[0]), outputs[0]
        if not y.size:
            return []
        flat, n = (*x.shape[:2], math.prod(x.shape[2:])), y.shape[0]
        args = (In(0, flat), In(1, (n, 4)), In(2, (n,)), Out(0, (*y.shape[:2], y.shape[2] * y.shape[3])), self.spatial_scale, self.sizes(x.shape))
        return [Call(kernels.align_leaf(x.code, False), args, n, 1, y.size * 12.0 * (self.sampling_ratio or 2) ** 2)]


def _gradient(types: Types, pooled: TensorType) -> tuple[TensorType, ...]:
    """Of types (gradient of what was pooled, image, ...): the image's."""
    g, x = present(types[0]), present(types[1])
    if g != pooled:
        raise ShapeError(f"the gradient is {g}, but the pool of {x} gives {pooled}.")
    return (x,)


def _corner(at: float, n: int) -> list[tuple[int, float]] | None:
    """The elements that a place along an axis lies between, with their weights; None for a place outside."""
    if not -1 <= at <= n:
        return None
    at = max(at, 0.0)
    low = int(at)
    return [(n - 1, 1.0), (n - 1, 0.0)] if low >= n - 1 else [(low, 1 - (at - low)), (low + 1, at - low)]


@op("RoiAlignGrad", onnx=False)
class RoiAlignGrad(RoiAlign):
    """The gradient of RoiAlign by x: (gradient of y, x, rois, batch_indices) to dx."""

    no_gradient = "borders of regions are places, and the gradient of a maximum is not differentiated again"

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 3, 2, 3), IMAGE, BORDERS, ("int64", (3,), 0, 2), output_height=2, output_width=3, mode=mode, sampling_ratio=ratio)
                for mode, ratio in (("avg", 0), ("max", 2))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return _gradient(types, *super().infer(*types[1:]))

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        g, x, rois, batch = map(present, inputs)
        dx, flat = np.zeros((*x.shape[:2], x.shape[2] * x.shape[3]), x.dtype), x.reshape(*x.shape[:2], x.shape[2] * x.shape[3])
        for r, i, j in np.ndindex(len(rois), *g.shape[2:]):
            terms, count = self.terms(x.shape, rois[r], (i, j)) if np.isfinite(rois[r]).all() else ([], 1.0)
            for c in range(x.shape[1] if terms else 0):
                values = [flat[batch[r], c, at] * w if at >= 0 else 0.0 for at, w in terms]
                best = int(np.argmax(values))
                for at, w in [terms[best]] if self.mode == "max" else [(at, w / count) for at, w in terms]:
                    if at >= 0:
                        dx[batch[r], c, at] += g[r, c, i, j] * w
        return (dx.reshape(x.shape),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        """Of the maximum there is none here."""
        return [None if grads[0] is None or self.mode == "max" else b.RoiAlign(grads[0], *inputs[2:], **self.attributes()), None, None, None]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x, n = outputs[0], present(inputs[2]).shape[0]
        points = n * self.output_height * self.output_width
        tables = Operand((None, None), x.dtype), Operand((None,), "int64")
        return _backward_work(x, tables, 8.0 * points * (self.sampling_ratio or 2) ** 2 / max(1, x.shape[0] * x.shape[2] * x.shape[3]))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        g, x = present(inputs[0]), outputs[0]
        if not x.size:
            return []
        if not g.size:
            return [fill_call(Out(0, (x.size,)), 0, x.size, x.itemsize)]
        flat, n = (*x.shape[:2], math.prod(x.shape[2:])), g.shape[0]
        args = (In(0, (*g.shape[:2], g.shape[2] * g.shape[3])), In(1, flat), In(2, (n, 4)), In(3, (n,)), Out(0, flat), self.spatial_scale,
                self.sizes(x.shape))
        return [Call(kernels.align_leaf(x.code, True), args, x.shape[1], 1, g.size * 15.0 * (self.sampling_ratio or 2) ** 2 + x.size * 0.1)]


@op("MaxRoiPool")
class MaxRoiPool(Op):
    """The maxima of the bins (pooled_shape) of regions of x: rois [n, 5] are an image's number and x1, y1, x2, y2, times `spatial_scale`.

    Borders are rounded to whole elements; a bin without elements is 0, one of a region whose borders are no numbers is none (Girshick 2015).
    """

    no_gradient = "borders of regions are places, which pooling takes as given"
    roles = ("moved",)

    pooled_shape: Shape = ()
    spatial_scale: float = 1.0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample(IMAGE, NUMBERED, pooled_shape=(2, 3), spatial_scale=scale) for scale in (1.0, 3.5)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, rois = map(present, types)
        if len(self.pooled_shape) != 2:
            raise ShapeError(f"pooled_shape {list(self.pooled_shape)} must be two numbers.")
        _check(x, rois, 5, self.pooled_shape)
        return (x.with_shape((rois.shape[0], x.shape[1], *self.pooled_shape)),)

    def winners(self, x: np.ndarray, rois: np.ndarray) -> np.ndarray:
        """[regions, channels, bins]: the place of each maximum in its plane, -1 for an empty bin."""
        rows, columns = self.pooled_shape
        found = np.full((len(rois), x.shape[1], rows * columns), -1, np.int64)
        for r, i, j in np.ndindex(len(rois), rows, columns):
            if not np.isfinite(rois[r]).all():
                continue
            x1, y1, x2, y2 = (int(math.copysign(math.floor(abs(v) + 0.5), v)) for v in (rois[r, 1:].astype(float) * self.spatial_scale).tolist())
            spans = [(math.floor(b * (n / k)) + s, math.ceil((b + 1) * (n / k)) + s, limit) for s, n, b, k, limit in
                     ((y1, max(y2 - y1 + 1, 1), i, rows, x.shape[2]), (x1, max(x2 - x1 + 1, 1), j, columns, x.shape[3]))]
            (top, bottom), (left, right) = ((min(max(a, 0), m), min(max(b, 0), m)) for a, b, m in spans)
            if top < bottom and left < right:
                part = x[int(rois[r, 0]), :, top:bottom, left:right]
                at = part.reshape(len(part), (bottom - top) * (right - left)).argmax(1)
                found[r, :, i * columns + j] = (at // (right - left) + top) * x.shape[3] + at % (right - left) + left
        return found

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x, rois = map(present, inputs)
        told = np.isfinite(rois).all(1)
        at, images = self.winners(x, rois), np.where(told, rois[:, 0], 0).astype(np.int64)
        found = np.take_along_axis(x.reshape(*x.shape[:2], x.shape[2] * x.shape[3])[images], np.maximum(at, 0), 2)
        y = np.where(told[:, None, None], np.where(at < 0, x.dtype.type(0), found), x.dtype.type(np.nan))
        return (y.reshape(*y.shape[:2], *self.pooled_shape),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        return [None if grads[0] is None else b.MaxRoiPoolGrad(grads[0], *inputs, **self.attributes()), None]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = present(inputs[0])
        return _forward_work(x, outputs[0], (Operand(("r", None), x.dtype),), 4.0)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, y = present(inputs[0]), outputs[0]
        if not y.size:
            return []
        flat, n = (*x.shape[:2], math.prod(x.shape[2:])), y.shape[0]
        args = (In(0, flat), In(1, (n, 5)), Out(0, (*y.shape[:2], y.shape[2] * y.shape[3])), self.spatial_scale, *x.shape[2:], *self.pooled_shape)
        return [Call(kernels.max_pool[x.code], args, n, 1, y.size * 20.0)]


@op("MaxRoiPoolGrad", onnx=False)
class MaxRoiPoolGrad(MaxRoiPool):
    """The gradient of MaxRoiPool by x: (gradient of y, x, rois) to dx; of equal elements the first takes it."""

    no_gradient = "borders of regions are places, and the gradient of a maximum is not differentiated again"

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 3, 2, 3), IMAGE, NUMBERED, pooled_shape=(2, 3), spatial_scale=3.5)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return _gradient(types, *super().infer(*types[1:]))

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        g, x, rois = map(present, inputs)
        dx = np.zeros((*x.shape[:2], x.shape[2] * x.shape[3]), x.dtype)
        at, flat = self.winners(x, rois), g.reshape(*g.shape[:2], g.shape[2] * g.shape[3])
        for r, c, o in zip(*np.nonzero(at >= 0), strict=True):
            dx[int(rois[r, 0]), c, at[r, c, o]] += flat[r, c, o]
        return (dx.reshape(x.shape),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        return [None] * 3

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = outputs[0]
        return _backward_work(x, (Operand((None, None), x.dtype),), 4.0)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        g, x = present(inputs[0]), outputs[0]
        if not x.size:
            return []
        if not g.size:
            return [fill_call(Out(0, (x.size,)), 0, x.size, x.itemsize)]
        flat, n = (*x.shape[:2], math.prod(x.shape[2:])), g.shape[0]
        args = (In(0, (*g.shape[:2], math.prod(self.pooled_shape))), In(1, flat), In(2, (n, 5)), Out(0, flat), self.spatial_scale, *x.shape[2:],
                *self.pooled_shape)
        return [Call(kernels.max_pool_grad[x.code], args, x.shape[1], 1, g.size * 25.0 + x.size * 0.1)]
