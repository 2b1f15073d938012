"""Running sums and products."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import LETTERS, Axis, Map, Operand, Staged, Work
from ..kernels.machine.call import Call, In, Out
from ..kernels.machine.leaf import Generic
from ..kernels.scan import STRIP, TYPES, running_product, running_product_gradient, running_sum
from ..memory.types import CODES, FLOATS, HALVES, TensorType
from ..system.errors import TypeMismatchError
from .shape import normal_axis, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu

DTYPES = (*(dtype for dtype, code in CODES.items() if code in TYPES), *HALVES)


@dataclass(frozen=True, repr=False)
class _Running(Op):
    """Shared by running sums, products and their gradients."""

    axis: int = 0
    exclusive: int = 0
    reverse: int = 0

    dtypes: ClassVar[tuple[str, ...]] = DTYPES
    combine: ClassVar[np.ufunc | None] = None
    """How what comes before a part is taken into it; None: it is not, and the axis is whole."""

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        normal_axis(self.axis, x.rank)
        if x.dtype not in self.dtypes:
            raise TypeMismatchError(f"the input is {x.dtype}; it must be one of {', '.join(self.dtypes)}.")
        return (x,)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = outputs[0]
        names, axis = LETTERS[:x.rank], normal_axis(self.axis, x.rank)
        whole, kind = Operand(tuple(names), x.dtype), "whole" if self.combine is None else "staged"
        axes = tuple(
            Axis(a, n, kind if i == axis else "parallel") for i, (a, n) in enumerate(zip(names, x.shape, strict=True))
        )
        operands = (whole,) * len(inputs), (whole,), float(len(inputs))
        return Map(axes, *operands) if self.combine is None else Staged(axes, *operands, joined="scan")

    def part(self, box: Mapping[str, tuple[int, int]], inputs: Types, outputs: Sequence[TensorType]) -> Op:
        """Parts include their own elements, so that the last one is what the next begins with."""
        axis = normal_axis(self.axis, outputs[0].rank)
        whole = self.combine is None or box[LETTERS[axis]] == (0, outputs[0].shape[axis])
        return self if whole or not self.exclusive else replace(self, exclusive=0)

    def joined(self, starts: Sequence[int], made: Sequence[tuple[np.ndarray, ...]]) -> list[tuple[np.ndarray, ...]]:
        """Each part with all that comes before it taken in."""
        assert self.combine is not None
        axis, order = normal_axis(self.axis, made[0][0].ndim), slice(None, None, -1 if self.reverse else 1)
        last = [0 if self.reverse else -1]
        before = np.full_like(np.take(made[0][0], last, axis), self.combine.identity)
        found: list[tuple[np.ndarray, ...]] = []
        for y, in made[order]:
            y = self.combine(before, y) if found else y
            after = np.take(y, last, axis)
            if self.exclusive:
                rest = np.take(y, range(1, y.shape[axis]) if self.reverse else range(y.shape[axis] - 1), axis)
                y = np.concatenate([rest, before] if self.reverse else [before, rest], axis)
            found.append((y,))
            before = after
        return found[order]


def _scanned(x: np.ndarray, op: _Running, scan: Callable[..., np.ndarray], neutral: int) -> np.ndarray:
    """The running sums or products of an array by NumPy's function."""
    axis = normal_axis(op.axis, x.ndim)
    x = np.flip(x, axis) if op.reverse else x
    y = scan(x, axis, dtype=x.dtype)
    if op.exclusive:
        y = np.concatenate([np.full_like(np.take(y, [0][:y.shape[axis]], axis), neutral), np.take(y, range(y.shape[axis] - 1), axis)], axis)
    return np.ascontiguousarray(np.flip(y, axis) if op.reverse else y)


def _scan_calls(leaf: Generic, op: _Running, x: TensorType) -> list[Call]:
    if not x.size:
        return []
    axis = normal_axis(op.axis, x.rank)
    shape = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1:])
    units = shape[0] * -(-shape[2] // STRIP)
    args = (In(0, shape), Out(0, shape), int(bool(op.exclusive)), int(bool(op.reverse)))
    return [Call(leaf[x.code], args, units, max(1, 1024 // shape[1]), x.size * (1.2 if shape[2] == 1 else 0.3))]


@op("CumSum")
class CumSum(_Running):
    """The sum of all elements up to each one along `axis`, that one included unless `exclusive`; from the end if `reverse`. Integers wrap."""

    combine = np.add

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4, 5), axis=1), sample((3, 4), axis=-1, exclusive=1), sample((3, 4), axis=0, reverse=1),
                sample((3, 4), axis=1, exclusive=1, reverse=1), sample(("int64", (3, 4), -9, 9), axis=1), sample(("uint32", (5,), 0, 9))]

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return (_scanned(present(inputs[0]), self, np.cumsum, 0),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        """An element is in the sums of all that come after it."""
        return [None if grads[0] is None else b.emit(replace(self, reverse=int(not self.reverse)), grads[0])[0]]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        return _scan_calls(running_sum, self, outputs[0])


@op("CumProd")
class CumProd(_Running):
    """The product of all elements up to each one along `axis`, that one included unless `exclusive`; from the end if `reverse`. Integers wrap."""

    combine = np.multiply

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4, 5), axis=1), sample((3, 4), axis=-1, exclusive=1), sample((3, 4), axis=0, reverse=1),
                sample((3, 4), axis=1, exclusive=1, reverse=1), sample(("int32", (3, 4), -3, 4), axis=1),
                sample(np.array([[0.5, 0, -2, 3], [0, 1, 0, 2]], np.float32), axis=1)]

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return (_scanned(present(inputs[0]), self, np.cumprod, 1),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        if grads[0] is None:
            return [None]
        return [b.CumProdGrad(grads[0], inputs[0], axis=self.axis, exclusive=self.exclusive, reverse=self.reverse)]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        return _scan_calls(running_product, self, outputs[0])


@op("CumProdGrad", onnx=False)
class CumProdGrad(_Running):
    """The gradient of CumProd's input from its output's and the input, also where elements are 0."""

    dtypes = FLOATS
    no_gradient = "second derivatives of running products are not written out"

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4, 5), (3, 4, 5), axis=1), sample((3, 4), (3, 4), axis=1, exclusive=1), sample((3, 4), (3, 4), axis=0, reverse=1),
                sample((3, 4), (3, 4), axis=1, exclusive=1, reverse=1)]

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        g, x = (np.moveaxis(present(a), self.axis, 0) for a in inputs)
        if self.reverse:
            g, x = g[::-1], x[::-1]
        before = np.cumprod(np.concatenate([np.ones_like(x[:1]), x[:-1]]), 0, dtype=x.dtype)
        back = np.zeros_like(g)
        for k in reversed(range(len(x))):
            last = k + 1 == len(x)
            own = np.zeros_like(g[0]) if self.exclusive and last else g[k + 1] if self.exclusive else g[k]
            back[k] = own if last else own + x[k + 1] * back[k + 1]
        d = before * back
        return (np.ascontiguousarray(np.moveaxis(d[::-1] if self.reverse else d, 0, self.axis)),)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = outputs[0]
        if not x.size:
            return []
        axis = normal_axis(self.axis, x.rank)
        shape = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1:])
        args = (In(0, shape), In(1, shape), Out(0, shape), int(bool(self.exclusive)), int(bool(self.reverse)))
        return [Call(running_product_gradient[x.code], args, shape[0] * shape[2], max(1, 1024 // shape[1]), x.size * 3.0)]
