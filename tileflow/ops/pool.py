"""Pooling over one or two spatial axes: maximum and average over windows or over whole planes, and their gradients."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import Axis, Operand, Reduce, Window, Work
from ..kernels.machine.call import Call
from ..kernels.pool import average as kernels
from ..kernels.pool.maximum import max_gradient, max_pool, max_pool_with_indices
from ..kernels.pool.planar import AverageWindow, PoolWindow
from ..memory.types import TensorType
from ..system.errors import ShapeError, TypeMismatchError, UnsupportedError
from .shape import present
from .window import Shape, Windows, windows

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu


def _check(x: TensorType, name: str) -> None:
    if not x.is_float:
        raise TypeMismatchError(f"{name} takes float tensors, not {x.dtype}; cast the input.")
    if x.rank not in (3, 4):
        raise UnsupportedError(f"{name} over {max(0, x.rank - 2)} spatial axes (input {list(x.shape)}) is not supported; "
                               f"only 1 or 2 axes are.")
    if 0 in x.shape[2:]:
        raise ShapeError(f"the spatial axes of the input {list(x.shape)} may not be empty.")


def pool_of(win: Windows) -> PoolWindow:
    """Windows for the kernels; one spatial axis is a plane of one row."""
    def pair(values: Shape, missing: int) -> tuple[int, int]:
        return (missing, values[0]) if len(values) == 1 else (values[0], values[1])

    return PoolWindow(*pair(win.size, 1), *pair(win.out, 1), *pair(win.kernel, 1), *pair(win.strides, 1),
                      *pair(win.dilations, 1), *pair(win.begin, 0))


def planes_of(x: TensorType) -> int:
    return x.shape[0] * x.shape[1]


def _positions(win: Windows) -> list[np.ndarray]:
    """Per axis [out, kernel]: where each tap of each window lies, counted from the first element."""
    return [np.arange(o)[:, None] * s + np.arange(k) * d - b for o, k, s, d, b in
            zip(win.out, win.kernel, win.strides, win.dilations, win.begin, strict=True)]


def taps_of(win: Windows) -> tuple[np.ndarray, np.ndarray]:
    """[windows, taps]: the flat place of each tap in the plane, and whether it lies inside. Row-major windows and taps."""
    rank = len(win.size)
    places, inside = np.zeros((1,) * (2 * rank), np.int64), np.ones((1,) * (2 * rank), bool)
    for i, at in enumerate(_positions(win)):
        shape = [1] * (2 * rank)
        shape[i], shape[rank + i] = at.shape
        places = places * win.size[i] + at.reshape(shape)
        inside = inside & ((at >= 0) & (at < win.size[i])).reshape(shape)
    size = (math.prod(win.out), math.prod(win.kernel))
    return np.where(inside, places, 0).reshape(size), np.broadcast_to(inside, (*win.out, *win.kernel)).reshape(size)


def winners_of(x: np.ndarray, win: Windows) -> tuple[np.ndarray, np.ndarray]:
    """[n * c, windows]: maxima, and their flat places in the plane (-1: no element)."""
    flat = x.reshape(-1, math.prod(win.size))
    places, inside = taps_of(win)
    best = np.full((flat.shape[0], len(places)), -np.inf, x.dtype)
    where = np.full(best.shape, -1, np.int64)
    for t in range(places.shape[1]):
        v = flat[:, places[:, t]]
        take = inside[:, t] & ((v > best) | (np.isnan(v) & ~np.isnan(best)) | (where < 0))
        best, where = np.where(take, v, best), np.where(take, places[:, t], where)
    return best, where


def _work(x: TensorType, win: Windows, backward: bool = False) -> Work:
    """A reduction over the taps of each window; backward, over the windows of each tap."""
    rank = len(win.size)
    spatial, taps = [f"o{i}" for i in range(rank)], [f"k{i}" for i in range(rank)]
    axes = (Axis("n", x.shape[0]), Axis("c", x.shape[1]),
            *(Axis(name, size, "reduce" if backward else "parallel") for name, size in zip(spatial, win.out, strict=True)),
            *(Axis(name, size, "whole") for name, size in zip(taps, win.kernel, strict=True)))
    images = tuple(Window(spatial[i], taps[i], win.strides[i], win.dilations[i], win.begin[i]) for i in range(rank))
    image, pooled = Operand(("n", "c", *images), x.dtype), Operand(("n", "c", *spatial), x.dtype)
    return Reduce(axes, (pooled,), (image,), 1.0, combine="add") if backward else Reduce(axes, (image,), (pooled,), 1.0)


@dataclass(frozen=True, repr=False)
class Windowed(Op):
    """Base of the pools: where the windows lie."""

    kernel_shape: Shape = ()
    strides: Shape | None = None
    pads: Shape | None = None
    dilations: Shape | None = None
    auto_pad: str = "NOTSET"
    ceil_mode: int = 0

    def windows(self, x: Shape) -> Windows:
        """The windows over the spatial axes of a tensor of shape `x`."""
        return windows(x[2:], self.kernel_shape, self.strides, self.pads, self.dilations, self.auto_pad, self.ceil_mode)

    def same(self) -> dict[str, Any]:
        """The attributes that say where the windows lie, for the gradient operator."""
        return {f.name: getattr(self, f.name) for f in fields(Windowed)}

    def image(self, inputs: Types, outputs: Sequence[TensorType]) -> TensorType:
        """What the windows slide over."""
        return present(inputs[0])

    def part(self, box: Mapping[str, tuple[int, int]], inputs: Types, outputs: Sequence[TensorType]) -> Op:
        """The same windows with the padding that the part's own windows meet."""
        image = self.image(inputs, outputs)
        begin, end = self.windows(image.shape).padding([box[f"o{i}"] for i in range(image.rank - 2)])
        return replace(self, pads=begin + end, auto_pad="NOTSET", ceil_mode=0)


@op("MaxPool")
class MaxPool(Windowed):
    """The largest element of each window; padding never wins. With `indices` also its place in the whole tensor (int64).

    Places count the elements in row-major order; with storage_order=1 those of each plane column by column.
    NaN wins over every number, and of equal elements the first.
    """

    storage_order: int = 0
    indices: bool = False

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 4, 7, 6), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1)),
                sample((2, 4, 9), kernel_shape=(3,), indices=True)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        _check(x, "MaxPool")
        y = x.with_shape((*x.shape[:2], *self.windows(x.shape).out))
        return (y, y.with_dtype("int64")) if self.indices else (y,)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        win = self.windows(x.shape)
        best, where = winners_of(x, win)
        shape = (*x.shape[:2], *win.out)
        planes = np.arange(len(where))[:, None] * math.prod(win.size)
        if self.storage_order and len(win.size) == 2:
            h, w = win.size
            where = np.where(where < 0, -1, where % w * h + where // w)
        where = np.where(where < 0, -1, where + planes)
        return (best.reshape(shape), where.reshape(shape)) if self.indices else (best.reshape(shape),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        return [None if grads[0] is None else b.MaxPoolGrad(grads[0], inputs[0], **self.same())]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = present(inputs[0])
        made = _work(x, self.windows(x.shape))
        if not self.indices:
            return made
        index = Operand(made.outputs[0].dims, "int64")            # counted in the whole tensor, which a part does not know
        return Reduce(tuple(Axis(a.name, a.size, "whole") for a in made.axes), made.inputs, (*made.outputs, index), 1.0)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[0])
        if outputs[0].size == 0:
            return []
        p = pool_of(self.windows(x.shape))
        by_columns = self.storage_order == 1 and x.rank == 4
        return max_pool_with_indices(p, planes_of(x), x.code, cpu, by_columns) if self.indices else max_pool(p, planes_of(x), x.code, cpu)


@op("MaxPoolGrad", onnx=False)
class MaxPoolGrad(Windowed):
    """Gradient of MaxPool: (gradient of y, x) to dx. The winners are found again, unless MaxPool writes them down (`host.pool`)."""

    no_gradient = "which elements are the largest does not change smoothly"

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 4, 4, 6), (2, 4, 7, 6), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        g, x = present(types[0]), present(types[1])
        _check(x, self.name)
        _check_gradient(g, x, self.windows(x.shape))
        return (x,)

    def image(self, inputs: Types, outputs: Sequence[TensorType]) -> TensorType:
        return outputs[0]

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        g, x = present(inputs[0]), present(inputs[1])
        _, where = winners_of(x, self.windows(x.shape))
        dx = np.zeros((len(where), math.prod(x.shape[2:])), x.dtype)
        planes, wins = np.nonzero(where >= 0)
        np.add.at(dx, (planes, where[planes, wins]), g.reshape(where.shape)[planes, wins])
        return (dx.reshape(x.shape),)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = outputs[0]
        made = _work(x, self.windows(x.shape), backward=True)
        return Reduce(made.axes, (*made.inputs, made.outputs[0]), made.outputs, 2.0, combine="add")

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = outputs[0]
        return max_gradient(pool_of(self.windows(x.shape)), planes_of(x), x.code, cpu) if x.size else []

def _check_gradient(g: TensorType, x: TensorType, win: Windows) -> None:
    wanted = x.with_shape((*x.shape[:2], *win.out))
    if g != wanted:
        raise ShapeError(f"the gradient is {g}, but the pool of {x} gives {wanted}.")


@dataclass(frozen=True, repr=False)
class Average(Windowed):
    """Base of AveragePool and its gradient: which taps count."""

    count_include_pad: int = 0

    def limits(self, win: Windows) -> list[tuple[int, int]]:
        """Per axis, the positions in which a tap counts: the elements, or also the declared padding."""
        if not self.count_include_pad:
            return [(0, n) for n in win.size]
        end = win.end if self.auto_pad not in ("NOTSET", "") or self.pads is None else tuple(self.pads)[len(win.size):]
        if self.auto_pad == "VALID" or (self.auto_pad in ("NOTSET", "") and self.pads is None):
            end = (0,) * len(win.size)
        return [(-b, n + e) for b, n, e in zip(win.begin, win.size, end, strict=True)]

    def shares(self, win: Windows) -> np.ndarray:
        """How many taps count, for each window in row-major order; at least 1."""
        counts = np.ones((1,), np.int64)
        for at, (low, high) in zip(_positions(win), self.limits(win), strict=True):
            counts = np.multiply.outer(counts, ((at >= low) & (at < high)).sum(1)).reshape(-1)
        return np.maximum(counts, 1)

    def part(self, box: Mapping[str, tuple[int, int]], inputs: Types, outputs: Sequence[TensorType]) -> Op:
        """As `Windowed.part`; what a window reaches beyond the declared padding does not count, so it is no padding here either."""
        image = self.image(inputs, outputs)
        win, rank = self.windows(image.shape), image.rank - 2
        begin, reach = win.padding([box[f"o{i}"] for i in range(rank)])
        end = reach
        if self.count_include_pad:
            end = tuple(max(0, min(r, high - n)) for r, n, (_, high) in zip(reach, win.size, self.limits(win), strict=True))
        return replace(self, pads=begin + end, auto_pad="NOTSET", ceil_mode=int(end != reach))

    def averaged(self, win: Windows) -> AverageWindow:
        """Windows for the kernels, as `pool_of`, with their limits."""
        found = self.limits(win)
        rows, columns = found if len(found) == 2 else [(0, 1), found[0]]
        return AverageWindow(*(*pool_of(win).words(), *rows, *columns))


@op("AveragePool")
class AveragePool(Average):
    """The mean of each window, over the elements it meets or, with `count_include_pad`, also over the zeros of the padding."""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 4, 7, 6), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        _check(x, "AveragePool")
        return (x.with_shape((*x.shape[:2], *self.windows(x.shape).out)),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        win = self.windows(x.shape)
        places, inside = taps_of(win)
        met = np.where(inside, x.reshape(-1, math.prod(win.size))[:, places], x.dtype.type(0))
        return ((met.sum(-1) / self.shares(win).astype(x.dtype)).reshape(*x.shape[:2], *win.out),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        shape = present(inputs[0]).shape[2:]
        return [None if grads[0] is None else
                b.AveragePoolGrad(grads[0], shape=shape, count_include_pad=self.count_include_pad, **self.same())]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = present(inputs[0])
        return _work(x, self.windows(x.shape))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[0])
        return kernels.average(self.averaged(self.windows(x.shape)), planes_of(x), x.code,
                               cpu) if outputs[0].size else []


@op("AveragePoolGrad", onnx=False)
class AveragePoolGrad(Average):
    """Gradient of AveragePool: the gradient of y to dx with spatial axes `shape`."""

    shape: Shape = ()

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 4, 4, 6), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1), shape=(7, 6))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        g = present(types[0])
        x = g.with_shape((*g.shape[:2], *self.shape))
        _check(x, self.name)
        _check_gradient(g, x, self.windows(x.shape))
        return (x,)

    def image(self, inputs: Types, outputs: Sequence[TensorType]) -> TensorType:
        return outputs[0]

    def part(self, box: Mapping[str, tuple[int, int]], inputs: Types, outputs: Sequence[TensorType]) -> Op:
        spatial = self.work(inputs, outputs).outputs[0].dims[2:]
        met = [w.range(box, n) for w, n in zip(spatial, self.shape, strict=True) if isinstance(w, Window)]
        return replace(super().part(box, inputs, outputs), shape=tuple(hi - lo for lo, hi in met))       # type: ignore[type-var]

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        g = present(inputs[0])
        win = self.windows((*g.shape[:2], *self.shape))
        places, inside = taps_of(win)
        shares = g.reshape(-1, len(places)) / self.shares(win).astype(g.dtype)
        dx = np.zeros((len(shares), math.prod(self.shape)), g.dtype)
        wins, taps = np.nonzero(inside)
        np.add.at(dx.T, places[wins, taps], shares[:, wins].T)
        return (dx.reshape(*g.shape[:2], *self.shape),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        return [None if grads[0] is None else b.AveragePool(grads[0], count_include_pad=self.count_include_pad, **self.same())]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        return _work(outputs[0], self.windows(outputs[0].shape), backward=True)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = outputs[0]
        return kernels.average_gradient(self.averaged(self.windows(x.shape)), planes_of(x), x.code,
                                        cpu) if x.size else []


class Global(Op):
    """Base of the pools over all spatial axes: each becomes one element."""

    combine: ClassVar[str] = ""

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        if not x.is_float:
            raise TypeMismatchError(f"{self.name} takes float tensors, not {x.dtype}; cast the input.")
        if x.rank < 3 or 0 in x.shape[2:]:
            raise ShapeError(f"{self.name} needs an input [images, channels, spatial axes ...] with elements to pool, not {list(x.shape)}.")
        return (x.with_shape((*x.shape[:2], *[1] * (x.rank - 2))),)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = present(inputs[0])
        axes = [f"x{i}" for i in range(x.rank - 2)]
        sizes = (Axis("n", x.shape[0]), Axis("c", x.shape[1]), *(Axis(a, s, "reduce") for a, s in zip(axes, x.shape[2:], strict=True)))
        return Reduce(sizes, (Operand(("n", "c", *axes), x.dtype),), (Operand(("n", "c", *[None] * len(axes)), x.dtype),), 1.0,
                      combine=self.combine)


@op("GlobalAveragePool")
class GlobalAveragePool(Global):
    """The mean over all spatial axes, which become 1."""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 4, 7, 6))]

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        x = present(inputs[0])
        return [b.ReduceMean(x, axes=tuple(range(2, x.type.rank)), keepdims=1)]

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        return (x.mean(tuple(range(2, x.ndim)), keepdims=True),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        g, x = grads[0], present(inputs[0])
        return [None if g is None else b.Expand(b.Mul(g, b.scalar(1.0 / math.prod(x.shape[2:]), g)), shape=x.shape)]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[0])
        return kernels.means(planes_of(x), math.prod(x.shape[2:]), x.code) if outputs[0].size else []


@op("GlobalMaxPool")
class GlobalMaxPool(Global):
    """The maximum over all spatial axes, which become 1."""

    combine = "max"

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 4, 7, 6))]

    def _flat(self, x: Shape) -> tuple[Windows, Shape]:
        """The pool as one window over one flat axis."""
        size = math.prod(x[2:])
        return windows((size,), (size,)), (*x[:2], size)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        return (x.max(tuple(range(2, x.ndim)), keepdims=True),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        g, x = grads[0], present(inputs[0])
        if g is None:
            return [None]
        win, flat = self._flat(x.shape)
        dx = b.MaxPoolGrad(b.Reshape(g, shape=(*x.shape[:2], 1), allowzero=1), b.Reshape(x, shape=flat, allowzero=1),
                           kernel_shape=win.kernel)
        return [b.Reshape(dx, shape=x.shape, allowzero=1)]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[0])
        return max_pool(pool_of(self._flat(x.shape)[0]), planes_of(x), x.code, cpu) if outputs[0].size else []
