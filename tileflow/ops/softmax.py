"""Softmax and log-softmax along one axis."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import LETTERS, Axis, Operand, Reduce, Work, counted
from ..kernels.machine.call import Call
from ..kernels.rows import row_calls
from ..memory.types import TensorType
from .shape import check_float, normal_axis, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """exp(x) / sum(exp(x)), shifted by the maximum."""
    with np.errstate(invalid="ignore"):
        e = np.exp(x - np.max(x, axis, keepdims=True, initial=-np.inf))
        return e / np.sum(e, axis, keepdims=True)


def log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """x - log(sum(exp(x))), shifted by the maximum."""
    with np.errstate(invalid="ignore", divide="ignore"):
        shifted = x - np.max(x, axis, keepdims=True, initial=-np.inf)
        return shifted - np.log(np.sum(np.exp(shifted), axis, keepdims=True))


def shifted(b: Builder, x: Value, axis: int) -> Value:
    """x less its maximum along `axis`."""
    return b.Sub(x, b.ReduceMax(x, axes=(axis,)))


@dataclass(frozen=True, repr=False)
class _AlongAxis(Op):
    """Base: `arity` inputs of one float type and shape to one output of the same; rows along `axis` are independent."""

    axis: int = -1

    leaf: ClassVar[str]
    arity: ClassVar[int] = 1
    flops: ClassVar[float] = 5.0
    functions: ClassVar[Sequence[str]] = ()
    """What is done with an element, as planners of tiles call it."""

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        check_float(x)
        normal_axis(self.axis, x.rank)
        assert all(t == x for t in types), types
        return (x,)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = present(inputs[0])
        axis, names = normal_axis(self.axis, x.rank), LETTERS[:x.rank]
        space = tuple(Axis(a, n, "reduce" if i == axis else "parallel") for i, (a, n) in enumerate(zip(names, x.shape, strict=True)))
        operand = Operand(tuple(names), x.dtype)
        return Reduce(space, (operand,) * len(inputs), (operand,), self.flops, functions=counted(self.functions, x.dtype))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        y = outputs[0]
        return row_calls(self.leaf, y.code, y.shape, normal_axis(self.axis, y.rank), self.arity)


@op("Softmax")
class Softmax(_AlongAxis):
    """exp(x) / sum(exp(x)) along `axis` (the meaning of ONNX opset 13 and later). A row with NaN or +inf becomes NaN."""

    leaf, functions = "softmax", ("softmax",)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4)), sample((3, 4, 5), axis=0)]

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        e = b.Exp(shifted(b, present(inputs[0]), self.axis))
        return [b.Div(e, b.ReduceSum(e, axes=(self.axis,)))]

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return (softmax(present(inputs[0]), self.axis),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        return [None if grads[0] is None else b.SoftmaxGrad(grads[0], outputs[0], axis=self.axis)]


@op("LogSoftmax")
class LogSoftmax(_AlongAxis):
    """x - log(sum(exp(x))) along `axis` (the meaning of ONNX opset 13 and later). A row with NaN or +inf becomes NaN."""

    leaf, functions = "log_softmax", ("softmax",)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4))]

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        x = shifted(b, present(inputs[0]), self.axis)
        return [b.Sub(x, b.Log(b.ReduceSum(b.Exp(x), axes=(self.axis,))))]

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return (log_softmax(present(inputs[0]), self.axis),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        return [None if grads[0] is None else b.LogSoftmaxGrad(grads[0], outputs[0], axis=self.axis)]


@op("SoftmaxGrad", onnx=False)
class SoftmaxGrad(_AlongAxis):
    """(g, y) to (g - sum(g * y)) * y: the gradient through y = softmax(x)."""

    leaf, arity, functions = "softmax_grad", 2, ("softmax grad",)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), (3, 4))]

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        g, y = map(present, inputs)
        return [b.Mul(b.Sub(g, b.ReduceSum(b.Mul(g, y), axes=(self.axis,))), y)]

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        g, y = map(present, inputs)
        with np.errstate(invalid="ignore"):
            return ((g - np.sum(g * y, self.axis, keepdims=True)) * y,)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        g, y, d = inputs[0], inputs[1], grads[0]
        if d is None:
            return [None, None]
        axes = (self.axis,)
        dot = b.ReduceSum(b.Mul(g, y), axes=axes)
        pull = b.ReduceSum(b.Mul(d, y), axes=axes)
        dy = b.Sub(b.Mul(d, b.Sub(g, dot)), b.Mul(g, pull))
        return [b.SoftmaxGrad(d, y, axis=self.axis), dy]


@op("LogSoftmaxGrad", onnx=False)
class LogSoftmaxGrad(_AlongAxis):
    """(g, y) to g - sum(g) * exp(y): the gradient through y = log_softmax(x)."""

    leaf, arity, functions = "log_softmax_grad", 2, ("log softmax grad",)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), (3, 4))]

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        g, y = map(present, inputs)
        return [b.Sub(g, b.Mul(b.ReduceSum(g, axes=(self.axis,)), b.Exp(y)))]

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        g, y = map(present, inputs)
        with np.errstate(invalid="ignore"):
            return (g - np.sum(g, self.axis, keepdims=True) * np.exp(y),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        g, y, d = inputs[0], inputs[1], grads[0]
        if d is None:
            return [None, None]
        axes, e = (self.axis,), b.Exp(y)
        total, pull = b.ReduceSum(g, axes=axes), b.ReduceSum(b.Mul(d, e), axes=axes)
        return [b.Sub(d, pull), b.Neg(b.Mul(d, b.Mul(total, e)))]
