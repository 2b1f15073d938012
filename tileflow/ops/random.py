"""Random numbers from counter-based streams: uniform, normal, and draws by given probabilities.

A number depends on the seed, the stream of its operator, its own place and the micro-batch, and on nothing else (`kernels/random.py`). A `seed` of an
operator's own takes the place of the run's.
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import LETTERS, Axis, Map, Operand, Work, map_work
from ..kernels.elementwise.expr import Expr, Var, cast, cos, log, maximum, sqrt
from ..kernels.machine.call import Call, In, Micro, Out, Seed
from ..kernels.random import UNIT, first_above, random_bits, uniform_bits
from ..memory.types import FLOATS, TensorType
from ..system.errors import OptionError, ShapeError, TypeMismatchError
from .shape import Shape, check_float, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu

DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24}
"""Bits of a uniform number, as many as the type holds of numbers below 1: it never is rounded up to 1. float64 has 32 + 21 of two words."""
WORDS = {"float64": 2}
"""Random words for a uniform number, where it takes more than one."""


OWN = 0x5EED
"""The stream of operators that have a seed of their own: equal ones draw the same numbers."""


def seed_number(seed: float) -> int:
    """ONNX's seeds are floats: the integer that a stream is keyed by."""
    return int(seed) if float(seed).is_integer() and abs(seed) < 2 ** 62 else int(np.float64(seed).view(np.int64))


@op("RandomBits", onnx=False)
class RandomBits(Op):
    """Random uint32 of `shape`: element i is word i of the Philox stream (seed, `stream`) at the micro-batch's global index.

    `whole` and `start` say of which tensor this is a part, and where in it: elements are counted in the whole one. Only `reference` computes a part.
    """

    random = True

    shape: Shape = ()
    stream: int = 0
    seed: int | None = None
    whole: Shape = ()
    start: Shape = ()

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample(shape=(3, 70)), sample(shape=(5,), stream=3, seed=7)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return (TensorType("uint32", self.shape),)

    def reference(self, *inputs: np.ndarray | None, seed: int = 0, micro: int = 0) -> tuple[np.ndarray, ...]:
        shape = self.whole or self.shape
        bits = uniform_bits(math.prod(shape), seed if self.seed is None else self.seed, self.stream, micro).reshape(shape)
        return (bits[tuple(slice(s, s + n) for s, n in zip(self.start, self.shape, strict=True))] if self.whole else bits,)

    def part(self, box: Mapping[str, tuple[int, int]], inputs: Types, outputs: Sequence[TensorType]) -> Op:
        ranges = list(box.values())
        return replace(self, shape=tuple(hi - lo for lo, hi in ranges), whole=self.shape, start=tuple(lo for lo, _ in ranges))

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        return map_work([], self.shape, "uint32", 30.0)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        assert not self.whole, "the kernel counts from the first element of the memory it gets"
        size = outputs[0].size
        n = -(-size // UNIT)
        args = (Out(0, (size,)), Seed() if self.seed is None else self.seed, Micro(), self.stream)
        return [Call(random_bits(), args, n, 32, n * 25.0)] if size else []


def _unit(words: Sequence[Expr], dtype: str) -> Expr:
    """A number from 0 to 1, 1 left out, of as many bits as the type holds."""
    if dtype == "float64":
        return cast(words[0], dtype) * 2.0 ** -32 + cast(words[1] & (0xFFFFFFFF << 11 & 0xFFFFFFFF), dtype) * 2.0 ** -64
    digits = DIGITS[dtype]
    return cast(words[0] & (0xFFFFFFFF << (32 - digits) & 0xFFFFFFFF), "float32") * 2.0 ** -32


@dataclass(frozen=True, repr=False)
class _Drawn(Op):
    """Base of what is computed from random words of its own, one set for each element of `shape`."""

    random = True

    shape: Shape = ()
    dtype: str = "float32"
    stream: int = 0
    seed: int | None = None

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        if self.dtype not in FLOATS:
            raise TypeMismatchError(f"random numbers of type {self.dtype}; it must be one of {', '.join(FLOATS)}.")
        return (TensorType(self.dtype, self.shape),)

    def drawn(self, b: Builder, words: int) -> list[Value]:
        """So many random words for each element."""
        bits = b.RandomBits(shape=(words, *self.shape), stream=self.stream, seed=self.seed)
        parts = b.Split(bits, axis=0, sizes=(1,) * words) if words > 1 else (bits,)
        return [b.Reshape(part, shape=self.shape, allowzero=1) for part in parts]


@op("RandomUniform")
class RandomUniform(_Drawn):
    """Numbers from `low` to `high`, all equally likely."""

    low: float = 0.0
    high: float = 1.0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample(shape=(3, 4)), sample(shape=(5,), low=-2.0, high=3.0, dtype="float64"),
                sample(shape=(4,), dtype="float16", seed=3, stream=OWN)]

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        words = self.drawn(b, WORDS.get(self.dtype, 1))
        unit = _unit([Var(i, "uint32") for i in range(len(words))], self.dtype)
        return [b.Map(*words, exprs=(cast(unit * (self.high - self.low) + self.low, self.dtype),))]


@op("RandomNormal")
class RandomNormal(_Drawn):
    """Normal numbers of a `mean` and a standard deviation `scale`.

    By Box and Muller's method (A note on the generation of random normal deviates, 1958).
    """

    mean: float = 0.0
    scale: float = 1.0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample(shape=(3, 4)), sample(shape=(5,), mean=-2.0, scale=3.0, dtype="float64"),
                sample(shape=(4,), dtype="bfloat16", seed=3, stream=OWN)]

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        words = self.drawn(b, 2)
        wide = "float64" if self.dtype == "float64" else "float32"
        radius, angle = (cast(Var(i, "uint32"), wide) * 2.0 ** -32 + 2.0 ** -33 for i in range(2))       # above 0
        normal = sqrt(maximum(log(radius) * -2.0, 0.0)) * cos(angle * (2.0 * math.pi))
        return [b.Map(*words, exprs=(cast(normal * self.scale + self.mean, self.dtype),))]


@op("Bernoulli")
class Bernoulli(Op):
    """1 with the probability that the input says, else 0, in type `dtype` (the input's, if "")."""

    random = True

    dtype: str = ""
    stream: int = 0
    seed: int | None = None

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4)), sample((5,), dtype="bool"), sample(np.array([0.0, 1.0, 0.0, 1.0], np.float32), dtype="int32", seed=5, stream=OWN)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        check_float(x)
        return (x.with_dtype(self.dtype or x.dtype),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x = present(inputs[0])
        wide = "float64" if x.dtype == "float64" else "float32"
        drawn = b.RandomUniform(shape=x.shape, dtype=wide, stream=self.stream, seed=self.seed)
        return [b.Map(x, drawn, exprs=(cast(Var(1, wide) < cast(Var(0, x.dtype), wide), self.dtype or x.dtype),))]


@op("FirstAbove", onnx=False)
class FirstAbove(Op):
    """For each mark [rows, marks] the first place in its row of ascending totals [rows, n] that is above it, or the last (int64)."""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample(np.cumsum(np.ones((2, 5), np.float32), 1), ("float32", (2, 7), -1.0, 7.0))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        totals, marks = present(types[0]), present(types[1])
        assert totals.rank == marks.rank == 2, f"{marks} in {totals}"
        assert (totals.dtype, totals.shape[0]) == (marks.dtype, marks.shape[0]), f"{marks} in {totals}"
        check_float(totals, "the first input")
        return (marks.with_dtype("int64"),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        totals, marks = present(inputs[0]), present(inputs[1])
        low, high = np.zeros(marks.shape, np.int64), np.full(marks.shape, totals.shape[1] - 1)
        while np.any(low < high):                          # the kernel's steps, so that totals that do not ascend come to the same
            middle = (low + high) // 2
            above = (np.take_along_axis(totals, middle, 1) > marks) | (low >= high)
            low, high = np.where(above, low, middle + 1), np.where(above, np.minimum(middle, high), high)
        return (low,)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        totals, marks = present(inputs[0]), present(inputs[1])
        rows, many = LETTERS[0], LETTERS[1]
        return Map((Axis(rows, marks.shape[0]), Axis(many, marks.shape[1])),
                   (Operand((rows, None), totals.dtype), Operand((rows, many), marks.dtype)), (Operand((rows, many), "int64"),),
                   math.log2(totals.shape[1] + 1))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        totals, marks = present(inputs[0]), present(inputs[1])
        if not marks.size:
            return []
        args = (In(0, totals.shape), In(1, marks.shape), Out(0, marks.shape))
        return [Call(first_above[totals.code], args, marks.size, 256, marks.size * 20.0)]


@op("Multinomial")
class Multinomial(Op):
    """`sample_size` classes for each row of logarithms of probabilities [rows, classes], which need not add up to 1."""

    random = True

    sample_size: int = 1
    dtype: str = "int32"
    stream: int = 0
    seed: int | None = None

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), sample_size=5), sample((2, 3), dtype="int64", seed=1, stream=OWN)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        check_float(x)
        if x.rank != 2 or not x.shape[1]:
            raise ShapeError(f"the input {list(x.shape)} must be rows of at least one class.")
        if self.sample_size < 0 or self.dtype not in ("int32", "int64"):
            raise OptionError(f"sample_size {self.sample_size} and dtype {self.dtype}: they must be at least 0, and int32 or int64.")
        return (TensorType(self.dtype, (x.shape[0], self.sample_size)),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x = present(inputs[0])
        wide = "float64" if x.dtype == "float64" else "float32"
        x = x if x.dtype == wide else b.Cast(x, to=wide)
        totals = b.CumSum(b.Exp(b.Sub(x, b.ReduceMax(x, axes=(1,)))), axis=1)
        classes = x.shape[1]
        total = b.Slice(totals, starts=(classes - 1,), ends=(classes,), axes=(1,), steps=(1,))
        drawn = b.RandomUniform(shape=(x.shape[0], self.sample_size), dtype=wide, stream=self.stream, seed=self.seed)
        found = b.FirstAbove(totals, b.Mul(drawn, total))
        return [found if self.dtype == "int64" else b.Cast(found, to=self.dtype)]
