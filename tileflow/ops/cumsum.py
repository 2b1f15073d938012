"""Running sums."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..errors import TypeMismatchError
from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.types import CODES, HALVES, TensorType
from ..kernels.machine.call import Call, In, Out
from ..kernels.scan import STRIP, TYPES, running_sum
from ..work import LETTERS, Axis, Map, Operand, Work
from .shape import normal_axis, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu

DTYPES = (*(dtype for dtype, code in CODES.items() if code in TYPES), *HALVES)


@op("CumSum")
class CumSum(Op):
    """The sum of all elements up to each one along `axis`, that one included unless `exclusive`; from the end if `reverse`. Integers wrap."""

    axis: int = 0
    exclusive: int = 0
    reverse: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4, 5), axis=1), sample((3, 4), axis=-1, exclusive=1), sample((3, 4), axis=0, reverse=1),
                sample((3, 4), axis=1, exclusive=1, reverse=1), sample(("int64", (3, 4), -9, 9), axis=1), sample(("uint32", (5,), 0, 9))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        normal_axis(self.axis, x.rank)
        if x.dtype not in DTYPES:
            raise TypeMismatchError(f"the input is {x.dtype}; it must be one of {', '.join(DTYPES)}.")
        return (x,)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        axis = normal_axis(self.axis, x.ndim)
        x = np.flip(x, axis) if self.reverse else x
        y = np.cumsum(x, axis, dtype=x.dtype)
        if self.exclusive:
            y = np.concatenate([np.zeros_like(np.take(y, [0][:y.shape[axis]], axis)), np.take(y, range(y.shape[axis] - 1), axis)], axis)
        return (np.ascontiguousarray(np.flip(y, axis) if self.reverse else y),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        """An element is in the sums of all that come after it."""
        return [None if grads[0] is None else b.emit(replace(self, reverse=int(not self.reverse)), grads[0])[0]]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = outputs[0]
        names, axis = LETTERS[:x.rank], normal_axis(self.axis, x.rank)
        whole = Operand(tuple(names), x.dtype)
        return Map(tuple(Axis(a, n, "whole" if i == axis else "parallel") for i, (a, n) in enumerate(zip(names, x.shape, strict=True))),
                   (whole,), (whole,), 1.0)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = outputs[0]
        if not x.size:
            return []
        axis = normal_axis(self.axis, x.rank)
        shape = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1:])
        units = shape[0] * -(-shape[2] // STRIP)
        args = (In(0, shape), Out(0, shape), int(bool(self.exclusive)), int(bool(self.reverse)))
        return [Call(running_sum[x.code], args, units, max(1, 1024 // shape[1]), x.size * (1.2 if shape[2] == 1 else 0.3))]
