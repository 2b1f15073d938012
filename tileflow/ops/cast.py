"""Cast: the same numbers in another element type; and how updates round to 16 bits: at random, or with what is lost kept beside the numbers."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..graph import CODES, HALVES, NARROW, Op, TensorType, op
from ..graph.op import Types
from ..graph.sample import Sample, sample
from ..graph.work import Move, Work, map_work
from ..kernels.elementwise import expr as scalar
from ..kernels.elementwise import narrow
from ..kernels.elementwise.expr import Expr, cast
from ..kernels.elementwise.loops import elementwise_call
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call, In, Out
from ..kernels.move import copy_call
from ..kernels.random import SPAN, position_bits
from ..memory.types import packing
from ..system.errors import ShapeError, TypeMismatchError
from .elementwise import ANY, Elementwise
from .shape import Shape, present


@op("Cast")
class Cast(Elementwise):
    """The input as element type `to` (NumPy's name; ONNX files hold a number, which the importer maps).

    Float to integer truncates, saturates out of range and makes NaN 0; a wider integer wraps; bool is `x != 0`. Narrow floats round to nearest,
    ties to even, from the number as it is (float8_e8m0fnu: as `round_mode` says, by way of float32); what is beyond the largest number becomes it or,
    without `saturate`, infinity or NaN.
    """

    roles = ("moved",)
    accepts = (*ANY, *NARROW)
    to: str
    saturate: int = 1
    round_mode: str = "up"

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), to="int32"), sample((3, 4), to="float8_e4m3fn"), sample(("float8_e5m2", (3, 4), -9, 9), to="float32"),
                sample(("int4", (3, 4), -8, 8), to="int8")]

    def check(self, types: Sequence[TensorType]) -> None:
        super().check(types)
        if self.to not in CODES:
            raise TypeMismatchError(f"it cannot cast to {self.to!r}; element types are: {', '.join(CODES)}.")
        if self.round_mode not in narrow.ROUNDINGS:
            raise TypeMismatchError(f"its round_mode is {self.round_mode!r}; it can be: {', '.join(narrow.ROUNDINGS)}.")

    def expr(self, *x: Expr) -> Expr:
        return cast(x[0], self.to, bool(self.saturate), self.round_mode)

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return cast(g, x[0].dtype)


@op("BitCast")
class BitCast(Op):
    """The bits of the input as another element type of the same width."""

    halves = True
    no_gradient = "bits are no numbers that could be differentiated"
    to: str

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), to="int32"), sample(("uint8", (5,), 0, 200), to="float8_e5m2"), sample(("int4", (3, 4), -8, 8), to="uint4")]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        if self.to not in CODES:
            raise TypeMismatchError(f"it cannot make {self.to!r}; element types are: {', '.join(CODES)}.")
        y = x.with_dtype(self.to)
        if (x.itemsize, packing(x.dtype)) != (y.itemsize, packing(y.dtype)):
            raise TypeMismatchError(f"the elements of {x} and {self.to} have different numbers of bits; take a type of the same width.")
        return (y,)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return (np.ascontiguousarray(present(inputs[0])).copy().view(self.to),)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x, y = present(inputs[0]), outputs[0]
        work = map_work([x.shape], y.shape, y.dtype, 0.0, Move)
        return replace(work, inputs=(replace(work.inputs[0], dtype=x.dtype),))        # type: ignore[arg-type, type-var]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        n = outputs[0].size
        return [copy_call(In(0, (n,)), Out(0, (n,)), n, outputs[0].itemsize)] if n else []


@op("StochasticCast", onnx=False)
class StochasticCast(Elementwise):
    """The float32 input as 16-bit floats, rounded up or down at random so that the mean of many roundings is the input.

    A number between two neighbours of the type becomes the upper one with the probability that is its distance from the lower one; what
    the type holds, infinities and NaN stay as they are. Element i draws at position `at + i` of the Philox stream (seed, `stream`) at the
    micro-batch's global index; `at` is a multiple of 64.

    `whole` and `start` say of which tensor the input is a part, and where in it. Only `reference` computes a part.
    """

    random = True
    accepts = ("float32",)
    to: str
    stream: int = 0
    at: int = 0
    whole: Shape = ()
    start: Shape = ()

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), to="bfloat16"), sample((3, 70), to="float16", stream=3, at=128)]

    @property
    def position(self) -> int:            # type: ignore[override]
        return self.at

    def check(self, types: Sequence[TensorType]) -> None:
        super().check(types)
        if self.to not in HALVES:
            raise TypeMismatchError(f"it cannot round to {self.to!r} at random; the types of 16 bits are {' and '.join(HALVES)}.")
        if self.at < 0 or self.at % SPAN:
            raise ShapeError(f"it cannot draw from position {self.at} on; positions begin at multiples of {SPAN}.")

    def expr(self, *x: Expr) -> Expr:
        return scalar.stochastic(x[0], self.to, self.stream)

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return cast(g, x[0].dtype)

    def part(self, box: Mapping[str, tuple[int, int]], inputs: Types, outputs: Sequence[TensorType]) -> Op:
        return replace(self, whole=outputs[0].shape, start=tuple(lo for lo, _ in box.values()))

    def reference(self, *inputs: np.ndarray | None, seed: int = 0, micro: int = 0) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        shape = self.whole or x.shape
        words = position_bits(math.prod(shape), self.at, seed, self.stream, micro).reshape(shape)
        if self.whole:
            words = words[tuple(slice(s, s + n) for s, n in zip(self.start, x.shape, strict=True))]
        return (scalar.evaluate(self.expressions([TensorType("float32", x.shape)])[0], [x], {self.stream: np.ascontiguousarray(words)}),)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        assert not self.whole, "the kernels count from the first element of the memory they get"
        x = present(inputs[0])
        return [elementwise_call(self.expressions(inputs), [In(0, (x.size,))], [Out(0, (x.size,))], self.at)] if x.size else []


@op("CastAway", onnx=False)
class CastAway(Elementwise):
    """The float32 input as the nearest bfloat16, ties away from zero: what a Remainder beside it can be told from."""

    accepts = ("float32",)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4))]

    def expr(self, *x: Expr) -> Expr:
        return scalar.away(x[0])

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return cast(g, x[0].dtype)


@op("Remainder", onnx=False)
class Remainder(Elementwise):
    """What the second input, 16-bit floats (of Cast to float16 or CastAway to bfloat16), lacks of the first, float32: int16.

    bfloat16: the low 16 bits of the float32 number, so that `Joined` gives it back exactly. float16: the distance in 2^-15 of the rounded number's
    last place: exact from 2^-16 up, and to the nearest multiple of 2^-39 below.
    """

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), ("bfloat16", (3, 4))), sample((3, 4), ("float16", (3, 4)))]

    def check(self, types: Sequence[TensorType]) -> None:
        if len(types) != 2 or types[0].dtype != "float32" or not types[1].is_half:
            raise TypeMismatchError(f"it takes float32 numbers and the same rounded to 16 bits, not {' and '.join(map(str, types))}.")

    def expr(self, *x: Expr) -> Expr:
        return scalar.remainder(x[0], x[1])


@op("Joined", onnx=False)
class Joined(Elementwise):
    """The float32 numbers that 16-bit floats and their Remainder stand for."""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample(("bfloat16", (3, 4)), ("int16", (3, 4))), sample(("float16", (3, 4)), ("int16", (3, 4)))]

    def check(self, types: Sequence[TensorType]) -> None:
        if len(types) != 2 or not types[0].is_half or types[1].dtype != "int16":
            raise TypeMismatchError(f"it takes 16-bit floats and their int16 remainders, not {' and '.join(map(str, types))}.")

    def expr(self, *x: Expr) -> Expr:
        return scalar.joined(x[0], x[1])

    def pullback(self, index: int, x: Sequence[Expr], y: Expr, g: Expr) -> Expr:
        return cast(g, x[0].dtype)
