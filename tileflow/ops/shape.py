"""Operators that move elements without computing: reshapes (views), transposes, slices, concatenation, gathers, padding."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ..errors import ShapeError, TypeMismatchError, UnsupportedError
from ..graph.op import Op, Types, op
from ..graph.types import TensorType, broadcast_shapes
from ..kernels import move as moves
from ..kernels.call import Call, In, Out
from ..kernels.move import Axis, copy_call, fill_call, move, strides
from ..work import LETTERS, Map, Move, Operand, Scatter, Work, map_work
from ..work import Axis as WorkAxis
from ..work import Gather as GatherWork

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.cpu import Cpu

Shape = tuple[int, ...]
T = TypeVar("T")
INDICES = ("int32", "int64")


def present(x: T | None) -> T:
    """An input (its type, array or value) that is not optional."""
    assert x is not None
    return x


def normal_axis(axis: int, rank: int) -> int:
    """`axis` counted from the front. Raises ShapeError outside -rank..rank-1."""
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} does not exist in a tensor of {rank} dimensions; axes go from {-rank} to {rank - 1}.")
    return axis % rank


def normal_axes(axes: Sequence[int], rank: int) -> Shape:
    """`axes` counted from the front, in the order given. Raises ShapeError for an axis that does not exist or repeats."""
    found = tuple(normal_axis(a, rank) for a in axes)
    if len(set(found)) < len(found):
        raise ShapeError(f"axes {list(axes)} name an axis twice in a tensor of {rank} dimensions.")
    return found


def zeros(b: Builder, like: Value) -> Value:
    """Zeros of `like`'s type (a missing gradient)."""
    return b.Expand(b.scalar(0.0, like), shape=like.shape) if like.shape else b.scalar(0.0, like)


def _met(shape: Shape, box: Mapping[str, tuple[int, int]]) -> Shape:
    """What is in `box` of a tensor whose dimensions are the axes of the work, in order; -1 stays."""
    return tuple(n if n < 0 else box[a][1] - box[a][0] for n, a in zip(shape, LETTERS, strict=False))


class View(Op):
    """Base of the operators whose output is the input's memory under another shape: subclasses say which (`result`)."""

    alias = 0

    def result(self, shape: Shape) -> Shape:
        """The output's shape."""
        raise NotImplementedError

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        return (x.with_shape(self.result(x.shape)),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        return (x.reshape(self.result(x.shape)).copy(),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        x, g = present(inputs[0]), grads[0]
        return [None if g is None else b.Reshape(g, shape=x.shape, allowzero=1)]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        y = outputs[0]
        return map_work([y.shape], y.shape, y.dtype, 0.0, Move)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        n = outputs[0].size
        return [copy_call(In(0, (n,)), Out(0, (n,)), n, outputs[0].itemsize)] if n else []


@op("Identity")
class Identity(View):
    """The input."""

    def result(self, shape: Shape) -> Shape:
        return shape


@op("Reshape")
class Reshape(View):
    """The same elements as `shape`; one -1 stands for what is left, 0 for the input's own size there (unless `allowzero`)."""

    shape: Shape = ()
    allowzero: int = 0

    def result(self, shape: Shape) -> Shape:
        wanted = list(self.shape)
        for i, n in enumerate(wanted):
            if n == 0 and not self.allowzero:
                if i >= len(shape):
                    raise ShapeError(f"shape {list(self.shape)} copies dimension {i} of {list(shape)}, which has only {len(shape)}.")
                wanted[i] = shape[i]
        if wanted.count(-1) > 1 or any(n < -1 for n in wanted):
            raise ShapeError(f"shape {list(self.shape)} may hold one -1 and no other negative number.")
        size = math.prod(shape)
        if -1 in wanted:
            known = -math.prod(wanted)
            if known == 0 or size % known:
                raise ShapeError(f"{list(shape)} with {size} elements does not divide into shape {list(self.shape)}.")
            wanted[wanted.index(-1)] = size // known
        if math.prod(wanted) != size:
            raise ShapeError(f"{list(shape)} has {size} elements, shape {wanted} has {math.prod(wanted)}.")
        return tuple(wanted)


@op("Flatten")
class Flatten(View):
    """A matrix: the axes before `axis` make its rows, the others its columns."""

    axis: int = 1

    def result(self, shape: Shape) -> Shape:
        rank = len(shape)
        if not -rank <= self.axis <= rank:
            raise ShapeError(f"axis {self.axis} does not fit a tensor of {rank} dimensions; it goes from {-rank} to {rank}.")
        axis = self.axis + rank if self.axis < 0 else self.axis
        return math.prod(shape[:axis]), math.prod(shape[axis:])


@op("Squeeze")
class Squeeze(View):
    """Without the axes of size 1 in `axes` (None: all of them)."""

    axes: Shape | None = None

    def result(self, shape: Shape) -> Shape:
        if self.axes is None:
            return tuple(n for n in shape if n != 1)
        axes = normal_axes(self.axes, len(shape))
        for a in axes:
            if shape[a] != 1:
                raise ShapeError(f"axis {a} of {list(shape)} has {shape[a]} elements, so it cannot be squeezed; only size 1 can.")
        return tuple(n for i, n in enumerate(shape) if i not in axes)


@op("Unsqueeze")
class Unsqueeze(View):
    """With new axes of size 1 at `axes`, positions in the output."""

    axes: Shape = ()

    def result(self, shape: Shape) -> Shape:
        axes = normal_axes(self.axes, len(shape) + len(self.axes))
        rest = iter(shape)
        return tuple(1 if i in axes else next(rest) for i in range(len(shape) + len(axes)))


@op("Transpose")
class Transpose(Op):
    """Axis i of the output is axis `perm[i]` of the input (None: reversed)."""

    perm: Shape | None = None

    def _perm(self, rank: int) -> Shape:
        perm = tuple(range(rank))[::-1] if self.perm is None else self.perm
        if sorted(perm) != list(range(rank)):
            raise ShapeError(f"perm {list(perm)} is not an order of the {rank} axes of the input.")
        return perm

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        return (x.with_shape(tuple(x.shape[a] for a in self._perm(x.rank))),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        return (np.ascontiguousarray(x.transpose(self._perm(x.ndim))).reshape([x.shape[a] for a in self._perm(x.ndim)]),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        g = grads[0]
        if g is None:
            return [None]
        return [b.Transpose(g, perm=tuple(int(a) for a in np.argsort(self._perm(g.type.rank))))]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x, y = present(inputs[0]), outputs[0]
        names = LETTERS[:x.rank]
        perm = self._perm(x.rank)
        return Move(tuple(WorkAxis(names[a], x.shape[a]) for a in perm), (Operand(tuple(names), x.dtype),),
                    (Operand(tuple(names[a] for a in perm), y.dtype),))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, y = present(inputs[0]), outputs[0]
        step = strides(x.shape)
        axes = [Axis(n, step[a], s) for n, a, s in zip(y.shape, self._perm(x.rank), strides(y.shape), strict=True)]
        return move(In(0, (x.size,)), Out(0, (y.size,)), axes, x.itemsize)


@op("Concat")
class Concat(Op):
    """The inputs one after the other along `axis`."""

    axis: int = 0

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        first = present(types[0])
        axis = normal_axis(self.axis, first.rank)
        total = 0
        for i, t in enumerate(map(present, types)):
            if t.dtype != first.dtype:
                raise TypeMismatchError(f"input 0 is {first.dtype} and input {i} {t.dtype}; cast them to one type.")
            if t.rank != first.rank or t.shape[:axis] + t.shape[axis + 1:] != first.shape[:axis] + first.shape[axis + 1:]:
                raise ShapeError(f"inputs may differ only along axis {axis}, but input 0 is {list(first.shape)} "
                                 f"and input {i} {list(t.shape)}.")
            total += t.shape[axis]
        return (first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1:])),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return (np.concatenate([x for x in inputs if x is not None], self.axis),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        g = present(grads[0])
        axis = normal_axis(self.axis, g.type.rank)
        parts = b.Split(g, axis=axis, sizes=tuple(v.shape[axis] for v in inputs if v is not None))
        return [parts] if len(inputs) == 1 else list(parts)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        y = outputs[0]
        return map_work([t and t.shape for t in inputs], y.shape, y.dtype, 0.0, Move)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        y = outputs[0]
        axis, at, calls = normal_axis(self.axis, y.rank), 0, []
        target = strides(y.shape)
        for i, t in enumerate(map(present, inputs)):
            axes = [Axis(*a) for a in zip(t.shape, strides(t.shape), target, strict=True)]
            calls += move(In(i, (t.size,)), Out(0, (y.size,)), axes, y.itemsize, target_start=at * target[axis])
            at += t.shape[axis]
        return calls


@op("Split")
class Split(Op):
    """The input cut along `axis` into parts of `sizes`, one output each."""

    axis: int = 0
    sizes: Shape = ()

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        axis = normal_axis(self.axis, x.rank)
        if any(n < 0 for n in self.sizes) or sum(self.sizes) != x.shape[axis]:
            raise ShapeError(f"parts of {list(self.sizes)} do not add up to the {x.shape[axis]} elements of axis {axis} "
                             f"of {list(x.shape)}.")
        return tuple(x.with_shape((*x.shape[:axis], n, *x.shape[axis + 1:])) for n in self.sizes)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return tuple(y.copy() for y in np.split(present(inputs[0]), np.cumsum(self.sizes)[:-1], self.axis))

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        parts = [zeros(b, y) if g is None else g for g, y in zip(grads, outputs, strict=True)]
        return [b.Concat(*parts, axis=self.axis)]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = present(inputs[0])
        axis, names = normal_axis(self.axis, x.rank), LETTERS[:x.rank]
        axes = tuple(WorkAxis(a, n, "whole" if i == axis else "parallel") for i, (a, n) in enumerate(zip(names, x.shape, strict=True)))
        part = Operand(tuple(None if i == axis else a for i, a in enumerate(names)), x.dtype)
        return Move(axes, (Operand(tuple(names), x.dtype),), (part,) * len(outputs))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[0])
        axis, at, calls = normal_axis(self.axis, x.rank), 0, []
        source = strides(x.shape)
        for i, y in enumerate(outputs):
            axes = [Axis(*a) for a in zip(y.shape, source, strides(y.shape), strict=True)]
            calls += move(In(0, (x.size,)), Out(i, (y.size,)), axes, x.itemsize, source_start=at * source[axis])
            at += y.shape[axis]
        return calls


@dataclass(frozen=True, repr=False)
class _Cut(Op):
    """Shared by Slice and its gradient: which elements of a tensor a slice takes."""

    starts: Shape = ()
    ends: Shape = ()
    axes: Shape | None = None
    steps: Shape | None = None

    def slices(self, shape: Shape) -> tuple[slice, ...]:
        """One NumPy slice per axis, starts inside of the tensor where it takes anything."""
        axes = normal_axes(range(len(self.starts)) if self.axes is None else self.axes, len(shape))
        steps = (1,) * len(axes) if self.steps is None else self.steps
        if not len(self.starts) == len(self.ends) == len(axes) == len(steps) or 0 in steps:
            raise ShapeError(f"starts {list(self.starts)}, ends {list(self.ends)}, axes {list(axes)} and steps {list(steps)} must be "
                             "of one length, and no step may be 0.")
        found = [slice(0, n, 1) for n in shape]
        for a, start, end, step in zip(axes, self.starts, self.ends, steps, strict=True):
            found[a] = slice(*slice(start, end, step).indices(shape[a]))
        return tuple(found)

    def taken(self, shape: Shape) -> Shape:
        """The shape of what the slice takes."""
        return tuple(len(range(s.start, s.stop, s.step)) for s in self.slices(shape))

    def uncut(self, shape: Shape) -> Shape:
        """`shape` with -1 for the axes of which the slice does not take all elements in order."""
        return tuple(n if s == slice(0, n, 1) else -1 for n, s in zip(shape, self.slices(shape), strict=True))

    def plain(self, shape: Shape) -> dict[str, Shape]:
        """The attributes with only those axes, and places that hold whatever the sizes of the others."""
        cut = [(i, s) for i, (n, s) in enumerate(zip(self.uncut(shape), self.slices(shape), strict=True)) if n < 0]
        ends = tuple(s.stop if s.stop >= 0 else -shape[i] - 1 for i, s in cut)
        return dict(starts=tuple(s.start for _, s in cut), ends=ends, axes=tuple(i for i, _ in cut), steps=tuple(s.step for _, s in cut))

    def box(self, shape: Shape, whole_is_source: bool) -> tuple[list[Axis], int]:
        """The move between the slice of a tensor of `shape` and a dense tensor; the slice's first element in the tensor."""
        taken, slices, step = self.taken(shape), self.slices(shape), strides(shape)
        walk = [s.step * n for s, n in zip(slices, step, strict=True)]
        pairs = zip(walk, strides(taken), strict=True) if whole_is_source else zip(strides(taken), walk, strict=True)
        start = sum(s.start * n for s, n in zip(slices, step, strict=True))
        return [Axis(n, *pair) for n, pair in zip(taken, pairs, strict=True)], start


def _numpy_slices(slices: tuple[slice, ...]) -> tuple[slice, ...]:
    """The same elements for NumPy, which reads a stop of -1 as the last element."""
    return tuple(slice(s.start, None if s.stop < 0 else s.stop, s.step) for s in slices)


@op("Slice")
class Slice(_Cut):
    """Elements starts, starts + steps … before ends along each of `axes` (None: the first axes), clamped as NumPy does."""

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        return (x.with_shape(self.taken(x.shape)),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        return (x[_numpy_slices(self.slices(x.shape))].copy(),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        x, g = present(inputs[0]), grads[0]
        return [None if g is None else
                b.SliceGrad(g, shape=x.shape, starts=self.starts, ends=self.ends, axes=self.axes, steps=self.steps)]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        y = outputs[0]
        return map_work([self.uncut(present(inputs[0]).shape)], y.shape, y.dtype, 0.0, Move)

    def part(self, box: Mapping[str, tuple[int, int]], inputs: Types, outputs: Sequence[TensorType]) -> Op:
        return Slice(**self.plain(present(inputs[0]).shape))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, y = present(inputs[0]), outputs[0]
        axes, start = self.box(x.shape, True)
        return move(In(0, (x.size,)), Out(0, (y.size,)), axes, x.itemsize, source_start=start)


@op("SliceGrad", onnx=False)
class SliceGrad(_Cut):
    """Zeros of `shape` with the input at the places that Slice with the same attributes takes."""

    shape: Shape = ()

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        g = present(types[0])
        assert g.shape == self.taken(self.shape), f"{g} for a slice of {self.taken(self.shape)}"
        return (g.with_shape(self.shape),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        g = present(inputs[0])
        y = np.zeros(self.shape, g.dtype)
        y[_numpy_slices(self.slices(self.shape))] = g
        return (y,)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        g = grads[0]
        return [None if g is None else b.Slice(g, starts=self.starts, ends=self.ends, axes=self.axes, steps=self.steps)]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        y = outputs[0]
        return map_work([self.uncut(y.shape)], y.shape, y.dtype, 0.0, Move)

    def part(self, box: Mapping[str, tuple[int, int]], inputs: Types, outputs: Sequence[TensorType]) -> Op:
        shape = tuple(n if m < 0 else m for n, m in zip(self.shape, _met(self.uncut(self.shape), box), strict=True))
        return SliceGrad(shape=shape, **self.plain(self.shape))          # type: ignore[call-arg]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        g, y = present(inputs[0]), outputs[0]
        if not y.size:
            return []
        axes, start = self.box(y.shape, False)
        return [fill_call(Out(0, (y.size,)), 0, y.size, y.itemsize),
                *move(In(0, (g.size,)), Out(0, (y.size,)), axes, y.itemsize, target_start=start)]


@op("Expand")
class Expand(Op):
    """The input broadcast with `shape`, both ways as NumPy does."""

    shape: Shape = ()

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        shape = broadcast_shapes(x.shape, self.shape)
        if shape is None:
            raise ShapeError(f"{list(x.shape)} does not broadcast to {list(self.shape)}; each dimension must be equal or 1.")
        return (x.with_shape(shape),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        return (np.broadcast_to(x, np.broadcast_shapes(x.shape, self.shape)).copy(),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        x, g = present(inputs[0]), grads[0]
        return [None if g is None else sum_to(b, g, x.shape)]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        y = outputs[0]
        return map_work([present(inputs[0]).shape], y.shape, y.dtype, 0.0, Map)

    def part(self, box: Mapping[str, tuple[int, int]], inputs: Types, outputs: Sequence[TensorType]) -> Op:
        return Expand(shape=_met(outputs[0].shape, box))          # type: ignore[call-arg]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, y = present(inputs[0]), outputs[0]
        shape = (1,) * (y.rank - x.rank) + x.shape
        axes = [Axis(n, 0 if m == 1 else s, t)
                for n, m, s, t in zip(y.shape, shape, strides(shape), strides(y.shape), strict=True)]
        return move(In(0, (x.size,)), Out(0, (y.size,)), axes, x.itemsize)


def sum_to(b: Builder, g: Value, shape: Shape) -> Value:
    """`g` summed over the axes along which a tensor of `shape` was broadcast to it."""
    extra = g.type.rank - len(shape)
    axes = tuple(range(extra)) + tuple(extra + i for i, n in enumerate(shape) if n == 1 and g.shape[extra + i] != 1)
    if axes:
        g = b.ReduceSum(g, axes=axes, keepdims=1)
    return g if g.shape == shape else b.Reshape(g, shape=shape, allowzero=1)


@op("Gather")
class Gather(Op):
    """Slices of the input along `axis` picked by integer indices; negative ones count from the end.

    An index out of range stops the run with status INDEX_OUT_OF_RANGE.
    """

    axis: int = 0

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, index = present(types[0]), present(types[1])
        axis = normal_axis(self.axis, x.rank)
        if index.dtype not in INDICES:
            raise TypeMismatchError(f"indices are {index.dtype}; they must be int32 or int64.")
        return (x.with_shape(x.shape[:axis] + index.shape + x.shape[axis + 1:]),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x, index = map(present, inputs)
        return (np.take(x, index, self.axis),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        x, index = map(present, inputs)
        g = grads[0]
        return [None if g is None else b.GatherGrad(g, index, axis=normal_axis(self.axis, x.type.rank), shape=x.shape), None]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x, index, y = present(inputs[0]), present(inputs[1]), outputs[0]
        names, axis = LETTERS[:y.rank], normal_axis(self.axis, x.rank)
        middle = tuple(names[axis:axis + index.rank])
        return GatherWork(tuple(WorkAxis(*a) for a in zip(names, y.shape, strict=True)),
                          (Operand((*names[:axis], None, *names[axis + index.rank:]), x.dtype), Operand(middle, index.dtype)),
                          (Operand(tuple(names), y.dtype),), notes={"rows": x.shape[axis]})

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, index, y = present(inputs[0]), present(inputs[1]), outputs[0]
        if not y.size:
            return []
        axis = normal_axis(self.axis, x.rank)
        outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1:])
        n = outer * index.size
        leaf = moves.gather(moves.BITS[x.itemsize], index.code)
        args = (In(0, (outer, x.shape[axis], inner)), In(1, (index.size,)), Out(0, (outer, index.size, inner)))
        return [Call(leaf, args, n, max(1, 1024 // inner), y.nbytes * 0.1 + n * 5.0)]


@op("GatherGrad", onnx=False)
class GatherGrad(Op):
    """Zeros of `shape` with each slice of the first input added at its index along `axis`, in the order of the indices."""

    axis: int = 0
    shape: Shape = ()

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return (present(types[0]).with_shape(self.shape),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        g, index = map(present, inputs)
        y = np.zeros(self.shape, g.dtype)
        moved = y.reshape(math.prod(self.shape[:self.axis]), *self.shape[self.axis:])
        for part, rows in zip(moved, g.reshape(len(moved), *g.shape[self.axis:]), strict=True):
            np.add.at(part, index, rows)
        return (y,)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        return [None if grads[0] is None else b.Gather(grads[0], inputs[1], axis=self.axis), None]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        g, index, y = present(inputs[0]), present(inputs[1]), outputs[0]
        names, axis = LETTERS[:g.rank], self.axis
        rows = set(names[axis:axis + index.rank])
        return Scatter(tuple(WorkAxis(a, n, "reduce" if a in rows else "parallel") for a, n in zip(names, g.shape, strict=True)),
                       (Operand(tuple(names), g.dtype), Operand(tuple(names[axis:axis + index.rank]), index.dtype)),
                       (Operand((*names[:axis], None, *names[axis + index.rank:]), y.dtype),), 1.0, {"rows": y.shape[axis]})

    def part(self, box: Mapping[str, tuple[int, int]], inputs: Types, outputs: Sequence[TensorType]) -> Op:
        g, index = present(inputs[0]), present(inputs[1])
        met, (lo, hi) = _met(g.shape, box), box["rows"]
        return GatherGrad(axis=self.axis, shape=(*met[:self.axis], hi - lo, *met[self.axis + index.rank:]))          # type: ignore[call-arg]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        g, index, y = present(inputs[0]), present(inputs[1]), outputs[0]
        if not y.size:
            return []
        outer, inner = math.prod(y.shape[:self.axis]), math.prod(y.shape[self.axis + 1:])
        args = (In(0, (outer, index.size, inner)), In(1, (index.size,)), Out(0, (outer, y.shape[self.axis], inner)))
        n = outer * -(-inner // moves.STRIP)
        return [Call(moves.scatter_add(g.code, index.code), args, n, 1, y.nbytes * 0.05 + g.size * 0.3 + index.size * 5.0 * n)]


@op("Pad")
class Pad(Op):
    """`value` around the input: `pads` are the elements before each axis, then those after each; negative ones cut."""

    pads: Shape = ()
    value: float = 0.0
    mode: str = "constant"

    def _sizes(self, shape: Shape) -> list[tuple[int, int]]:
        if len(self.pads) != 2 * len(shape):
            raise ShapeError(f"pads {list(self.pads)} must hold two numbers for each of the {len(shape)} dimensions of {list(shape)}.")
        return list(zip(self.pads[:len(shape)], self.pads[len(shape):], strict=True))

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        if self.mode != "constant":
            raise UnsupportedError(f"mode {self.mode!r} is not supported; only 'constant' padding is.")
        shape = tuple(n + before + after for n, (before, after) in zip(x.shape, self._sizes(x.shape), strict=True))
        if min(shape, default=0) < 0:
            raise ShapeError(f"pads {list(self.pads)} cut more than there is of {list(x.shape)}.")
        return (x.with_shape(shape),)

    def _kept(self, shape: Shape) -> Slice:
        """The slice of the input that shows in the output."""
        sizes = self._sizes(shape)
        starts = tuple(max(0, -before) for before, _ in sizes)
        return Slice(starts=starts, ends=tuple(max(s, n + min(0, after)) for s, n, (_, after) in zip(starts, shape, sizes, strict=True)))

    def _place(self, shape: Shape) -> Slice:
        """Where that is in the output."""
        sizes, kept = self._sizes(shape), self._kept(shape).taken(shape)
        starts = tuple(max(0, before) for before, _ in sizes)
        return Slice(starts=starts, ends=tuple(s + n for s, n in zip(starts, kept, strict=True)))

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        shape = [n + before + after for n, (before, after) in zip(x.shape, self._sizes(x.shape), strict=True)]
        y = np.full(shape, self.value, x.dtype)
        y[self._place(x.shape).slices(y.shape)] = x[self._kept(x.shape).slices(x.shape)]
        return (y,)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        return [None if grads[0] is None else b.Pad(grads[0], pads=tuple(-n for n in self.pads))]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x, y = present(inputs[0]), outputs[0]
        kept = tuple(-1 if any(sizes) else n for n, sizes in zip(x.shape, self._sizes(x.shape), strict=True))
        return map_work([kept], y.shape, y.dtype, 0.0, Move)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, y = present(inputs[0]), outputs[0]
        if not y.size:
            return []
        bits = int(np.array(self.value, y.numpy).view(moves.BITS[y.itemsize]))
        kept, place = self._kept(x.shape), self._place(x.shape)
        source, source_start = kept.box(x.shape, True)
        target, target_start = place.box(y.shape, False)
        axes = [Axis(s.n, s.source, t.target) for s, t in zip(source, target, strict=True)]
        return [fill_call(Out(0, (y.size,)), bits, y.size, y.itemsize),
                *move(In(0, (x.size,)), Out(0, (y.size,)), axes, y.itemsize, source_start, target_start)]


@op("Tile")
class Tile(Op):
    """The input `repeats[i]` times along each axis i."""

    repeats: Shape = ()

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        if len(self.repeats) != x.rank or min(self.repeats, default=0) < 0:
            raise ShapeError(f"repeats {list(self.repeats)} must hold one number from 0 for each dimension of {list(x.shape)}.")
        return (x.with_shape(tuple(n * r for n, r in zip(x.shape, self.repeats, strict=True))),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return (np.tile(present(inputs[0]), self.repeats),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        x, g = present(inputs[0]), grads[0]
        if g is None:
            return [None]
        pairs = [n for pair in zip(self.repeats, x.shape, strict=True) for n in pair]
        return [b.ReduceSum(b.Reshape(g, shape=tuple(pairs), allowzero=1), axes=tuple(range(0, len(pairs), 2)), keepdims=0)]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        y = outputs[0]
        return map_work([present(inputs[0]).shape], y.shape, y.dtype, 0.0, Move)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, y = present(inputs[0]), outputs[0]
        axes = []
        for n, r, s, t in zip(x.shape, self.repeats, strides(x.shape), strides(y.shape), strict=True):
            axes += [Axis(r, 0, n * t), Axis(n, s, t)]
        return move(In(0, (x.size,)), Out(0, (y.size,)), axes, x.itemsize)


