"""Padding: more elements around a tensor, or fewer."""
from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import Move, Work, map_work
from ..kernels import move as moves
from ..kernels.dtypes import BITS
from ..kernels.machine.call import Call, In, Out
from ..kernels.machine.call import Work as Scratch
from ..kernels.move import MoveAxis, copy_call, fill_call, strides
from ..memory.types import TensorType
from ..system.errors import ShapeError, TypeMismatchError, UnsupportedError
from .index import Slice
from .moving import move
from .shape import Shape, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu

MOST_BOXES = 256
"""Moves of one padding."""


@op("Pad")
class Pad(Op):
    """More elements around the input: `pads` are the numbers before each axis, then those after each; negative ones cut.

    mode: "constant" (`value`), "edge" (the outermost element), "reflect" (mirrored at it), "wrap" (from the other end).
    """

    pads: Shape = ()
    value: float | int = 0.0
    mode: str = "constant"

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), pads=(1, 0, 0, 2)), sample((3, 4), pads=(-1, 2, 1, -1), value=0.5), sample((3, 4), pads=(2, 1, 1, 9), mode="reflect"),
                sample((3, 4), pads=(2, -1, 1, 3), mode="edge"), sample((3, 4), pads=(1, 0, 2, 9), mode="wrap"),
                sample(("int64", (3,), -9, 9), pads=(1, 1), value=2 ** 60 + 1)]

    def sizes(self, shape: Shape) -> list[tuple[int, int]]:
        """(before, after) of each axis."""
        if len(self.pads) != 2 * len(shape):
            raise ShapeError(f"pads {list(self.pads)} must hold two numbers for each of the {len(shape)} dimensions of {list(shape)}.")
        return list(zip(self.pads[:len(shape)], self.pads[len(shape):], strict=True))

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        if self.mode != "constant" and self.mode not in moves.MODES:
            raise UnsupportedError(f"mode {self.mode!r} is unknown; it must be constant, {', '.join(moves.MODES)}.")
        try:
            np.array(self.value, x.numpy)
        except OverflowError:
            raise TypeMismatchError(f"the value {self.value} is no {x.dtype}.") from None
        shape = tuple(n + before + after for n, (before, after) in zip(x.shape, self.sizes(x.shape), strict=True))
        if min(shape, default=0) < 0:
            raise ShapeError(f"pads {list(self.pads)} cut more than there is of {list(x.shape)}.")
        if self.mode != "constant" and x.size == 0 and 0 not in shape:
            raise ShapeError(f"{list(x.shape)} has no elements to pad with in mode {self.mode!r}.")
        return (x.with_shape(shape),)

    def indices(self, shape: Shape) -> list[tuple[int, np.ndarray]]:
        """(axis, index of the source for each place) of the padded axes, for the modes that repeat elements."""
        found = []
        for axis, (n, (before, after)) in enumerate(zip(shape, self.sizes(shape), strict=True)):
            if before or after:
                places = [moves.source_index(i - before, n, moves.MODES[self.mode]) for i in range(n + before + after)]
                found.append((axis, np.array(places, np.int64)))
        return found

    def _kept(self, shape: Shape) -> Slice:
        """The slice of the input that shows in the output."""
        sizes = self.sizes(shape)
        starts = tuple(max(0, -before) for before, _ in sizes)
        return Slice(starts=starts, ends=tuple(max(s, n + min(0, after)) for s, n, (_, after) in zip(starts, shape, sizes, strict=True)))

    def _place(self, shape: Shape) -> Slice:
        """Where that is in the output."""
        sizes, kept = self.sizes(shape), self._kept(shape).taken(shape)
        starts = tuple(max(0, before) for before, _ in sizes)
        return Slice(starts=starts, ends=tuple(s + n for s, n in zip(starts, kept, strict=True)))

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        if self.mode != "constant":
            for axis, places in self.indices(x.shape):
                x = np.take(x, places, axis)
            return (x.copy(),)
        y = np.full([n + before + after for n, (before, after) in zip(x.shape, self.sizes(x.shape), strict=True)], self.value, x.dtype)
        y[self._place(x.shape).slices(y.shape)] = x[self._kept(x.shape).slices(x.shape)]
        return (y,)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        g, shape = grads[0], present(inputs[0]).shape
        if g is None:
            return [None]
        if self.mode == "constant":
            return [b.Pad(g, pads=tuple(-n for n in self.pads))]
        for axis, places in reversed(self.indices(shape)):
            g = b.GatherGrad(g, b.constant(places), axis=axis, shape=(*g.shape[:axis], shape[axis], *g.shape[axis + 1:]))
        return [g]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x, y = present(inputs[0]), outputs[0]
        kept = tuple(-1 if any(sizes) else n for n, sizes in zip(x.shape, self.sizes(x.shape), strict=True))
        return map_work([kept], y.shape, y.dtype, 0.0, Move)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, y = present(inputs[0]), outputs[0]
        if not y.size:
            return []
        if self.mode != "constant":
            return self._repeating_calls(x, y)
        bits = int(np.array(self.value, y.numpy).view(BITS[y.itemsize]))
        kept, place = self._kept(x.shape), self._place(x.shape)
        source, source_start = kept.box(x.shape, True)
        target, target_start = place.box(y.shape, False)
        axes = [MoveAxis(s.n, s.source, t.target) for s, t in zip(source, target, strict=True)]
        return [fill_call(Out(0, (y.size,)), bits, y.size, y.itemsize),
                *move(In(0, (x.size,)), Out(0, (y.size,)), axes, y.itemsize, source_start, target_start)]

    def _repeating_calls(self, x: TensorType, y: TensorType) -> list[Call]:
        """A move for each box in which the source runs evenly along all axes; where padding goes round too often, a pass per padded axis."""
        sizes, mode = self.sizes(x.shape), moves.MODES[self.mode]
        runs = [_runs([moves.source_index(i - before, n, mode) for i in range(m)]) if before or after else [(0, m, 0, 1)]
                for n, m, (before, after) in zip(x.shape, y.shape, sizes, strict=True)]
        if math.prod(map(len, runs)) > MOST_BOXES:
            return self._passes(x, y)
        calls = []
        source, target = strides(x.shape), strides(y.shape)
        for box in itertools.product(*runs):
            axes = [MoveAxis(n, step * s, t) for (_, n, _, step), s, t in zip(box, source, target, strict=True)]
            begin = sum(first * s for (_, _, first, _), s in zip(box, source, strict=True))
            to = sum(start * t for (start, *_), t in zip(box, target, strict=True))
            calls += move(In(0, (x.size,)), Out(0, (y.size,)), axes, y.itemsize, begin, to)
        return calls

    def _passes(self, x: TensorType, y: TensorType) -> list[Call]:
        """One pass per padded axis, from the first on."""
        shape, bits = list(x.shape), BITS[x.itemsize]
        padded = [(axis, pads) for axis, pads in enumerate(self.sizes(x.shape)) if any(pads)]
        source: In | Scratch = In(0, (x.size,))
        calls = []
        for k, (axis, (before, after)) in enumerate(padded):
            n, outer, inner = shape[axis], math.prod(shape[:axis]), math.prod(shape[axis + 1:])
            shape[axis] = n + before + after
            size = math.prod(shape)
            target: Out | Scratch = Out(0, (size,)) if k == len(padded) - 1 else Scratch(f"padded {axis}", (size,), bits)
            args = (source, target, n, inner, shape[axis], before, moves.MODES[self.mode])
            calls.append(Call(moves.pad_axis[bits], args, outer, max(1, 1024 // (shape[axis] * inner)), size * 1.0))
            if isinstance(target, Scratch):
                source = target
        return calls or [copy_call(In(0, (x.size,)), Out(0, (y.size,)), x.size, x.itemsize)]


def _runs(places: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Where consecutive places go on by one step of -1, 0 or 1: (start, places, the first one, step) of each run."""
    found: list[tuple[int, int, int, int]] = []
    for i, place in enumerate(places):
        start, n, first, step = found[-1] if found else (0, 0, 0, 0)
        new = place - places[i - 1] if i else 2
        if n == 1 and abs(new) <= 1:
            found[-1] = (start, 2, first, new)
        elif n > 1 and new == step:
            found[-1] = (start, n + 1, first, step)
        else:
            found.append((i, 1, place, 1))
    return found
