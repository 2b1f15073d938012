"""Operators that pick elements by their place, slices and gathers, and the gradients that put them back."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import LETTERS, Axis, Move, Operand, Scatter, Window, Work, map_work
from ..graph.work import Gather as GatherWork
from ..kernels import move as moves
from ..kernels.dtypes import BITS
from ..kernels.machine.call import Call, In, Out
from ..kernels.move import MoveAxis, fill_call, strides
from ..memory.types import TensorType
from ..system.errors import ShapeError
from .moving import move
from .places import check_indices
from .shape import Shape, met, normal_axes, normal_axis, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu


LAST = 2 ** 31 - 1
"""The end of a slice that goes to the last element."""


@dataclass(frozen=True, repr=False)
class _Cut(Op):
    """Shared by Slice and its gradient: which elements of a tensor a slice takes."""

    halves = True

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
            first = max(start, -shape[a]) if step < 0 else start          # backwards too, the first element is inside (Python's lies before)
            found[a] = slice(*slice(first, end, step).indices(shape[a]))
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

    def box(self, shape: Shape, whole_is_source: bool) -> tuple[list[MoveAxis], int]:
        """The move between the slice of a tensor of `shape` and a dense tensor; the slice's first element in the tensor."""
        taken, slices, step = self.taken(shape), self.slices(shape), strides(shape)
        walk = [s.step * n for s, n in zip(slices, step, strict=True)]
        pairs = zip(walk, strides(taken), strict=True) if whole_is_source else zip(strides(taken), walk, strict=True)
        start = sum(s.start * n for s, n in zip(slices, step, strict=True))
        return [MoveAxis(n, *pair) for n, pair in zip(taken, pairs, strict=True)], start


def _numpy_slices(slices: tuple[slice, ...]) -> tuple[slice, ...]:
    """The same elements for NumPy, which reads a stop of -1 as the last element."""
    return tuple(slice(s.start, None if s.stop < 0 else s.stop, s.step) if range(s.start, s.stop, s.step) else slice(0, 0) for s in slices)


@op("Slice")
class Slice(_Cut):
    """Elements starts, starts + steps … before ends along each of `axes` (None: the first axes), clamped."""

    roles = ("moved",)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), starts=(0, 1), ends=(3, 4), axes=(0, 1), steps=(1, 2))]

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
        """Which elements are read is said by windows of one tap; of an axis that is read backwards all count."""
        x, y = present(inputs[0]), outputs[0]
        work = map_work([self.uncut(x.shape)], y.shape, y.dtype, 0.0, Move)
        (source,), (target,) = work.inputs, work.outputs
        assert source is not None
        dims = tuple(Window(str(name), "one", s.step, pad=-s.start) if dim is None and s.step > 0 else dim
                     for dim, name, s in zip(source.dims, target.dims, self.slices(x.shape), strict=True))
        return Move((*work.axes, Axis("one", 1, "whole")), (Operand(dims, x.dtype),), work.outputs)

    def part(self, box: Mapping[str, tuple[int, int]], inputs: Types, outputs: Sequence[TensorType]) -> Op:
        own = self.plain(present(inputs[0]).shape)
        ahead = [step > 0 for step in own["steps"]]                      # what is brought begins with the first element read, and ends with the last
        return Slice(starts=tuple(0 if a else n for a, n in zip(ahead, own["starts"], strict=True)),
                     ends=tuple(LAST if a else n for a, n in zip(ahead, own["ends"], strict=True)), axes=own["axes"], steps=own["steps"])

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, y = present(inputs[0]), outputs[0]
        axes, start = self.box(x.shape, True)
        return move(In(0, (x.size,)), Out(0, (y.size,)), axes, x.itemsize, source_start=start)


@op("SliceGrad", onnx=False)
class SliceGrad(_Cut):
    """Zeros of `shape` with the input at the places that Slice with the same attributes takes."""

    shape: Shape = ()

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 2), starts=(1,), ends=(3,), axes=(1,), steps=(1,), shape=(3, 4))]

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
        shape = tuple(n if m < 0 else m for n, m in zip(self.shape, met(self.uncut(self.shape), box), strict=True))
        return SliceGrad(shape=shape, **self.plain(self.shape))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        g, y = present(inputs[0]), outputs[0]
        if not y.size:
            return []
        axes, start = self.box(y.shape, False)
        return [fill_call(Out(0, (y.size,)), 0, y.size, y.itemsize),
                *move(In(0, (g.size,)), Out(0, (y.size,)), axes, y.itemsize, target_start=start)]


@op("Gather")
class Gather(Op):
    """Slices of the input along `axis` picked by integer indices; negative ones count from the end.

    An index out of range stops the run with status INDEX_OUT_OF_RANGE.
    """

    roles = ("table",)
    halves = True

    axis: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), ("int64", (2, 2)), axis=1)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, index = present(types[0]), present(types[1])
        axis = normal_axis(self.axis, x.rank)
        check_indices(index)
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
        return GatherWork(tuple(Axis(*a) for a in zip(names, y.shape, strict=True)),
                          (Operand((*names[:axis], None, *names[axis + index.rank:]), x.dtype), Operand(middle, index.dtype)),
                          (Operand(tuple(names), y.dtype),), notes={"rows": x.shape[axis]})

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, index, y = present(inputs[0]), present(inputs[1]), outputs[0]
        if not y.size:
            return []
        axis = normal_axis(self.axis, x.rank)
        outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1:])
        n = outer * index.size
        leaf = moves.gather(BITS[x.itemsize], index.code)
        args = (In(0, (outer, x.shape[axis], inner)), In(1, (index.size,)), Out(0, (outer, index.size, inner)))
        return [Call(leaf, args, n, max(1, 1024 // inner), y.nbytes * 0.1 + n * 5.0)]


@op("GatherGrad", onnx=False)
class GatherGrad(Op):
    """Zeros of `shape` with each slice of the first input added at its index along `axis`, in the order of the indices."""

    axis: int = 0
    shape: Shape = ()

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), ("int64", (3,)), axis=0, shape=(3, 4))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        g, index = present(types[0]), present(types[1])
        wanted = (*self.shape[:self.axis], *index.shape, *self.shape[self.axis + 1:])
        assert g.shape == wanted, f"{g} for slices of {self.shape} picked by {index}"
        return (g.with_shape(self.shape),)

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
        return Scatter(tuple(Axis(a, n, "reduce" if a in rows else "parallel") for a,
                             n in zip(names, g.shape, strict=True)),
                       (Operand(tuple(names), g.dtype), Operand(tuple(names[axis:axis + index.rank]), index.dtype)),
                       (Operand((*names[:axis], None, *names[axis + index.rank:]), y.dtype),), 1.0, {"rows": y.shape[axis]})

    def part(self, box: Mapping[str, tuple[int, int]], inputs: Types, outputs: Sequence[TensorType]) -> Op:
        g, index = present(inputs[0]), present(inputs[1])
        seen, (lo, hi) = met(g.shape, box), box["rows"]
        return GatherGrad(axis=self.axis, shape=(*seen[:self.axis], hi - lo, *seen[self.axis + index.rank:]))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        g, index, y = present(inputs[0]), present(inputs[1]), outputs[0]
        if not y.size:
            return []
        outer, inner = math.prod(y.shape[:self.axis]), math.prod(y.shape[self.axis + 1:])
        args = (In(0, (outer, index.size, inner)), In(1, (index.size,)), Out(0, (outer, y.shape[self.axis], inner)))
        n = outer * -(-inner // moves.STRIP)
        return [Call(moves.scatter_add(g.code, index.code), args, n, 1, y.nbytes * 0.05 + g.size * 0.3 + index.size * 5.0 * n)]
