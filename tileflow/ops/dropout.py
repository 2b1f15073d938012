"""Dropout: its mask is drawn anew in the backward pass, from the same counters, and never stored."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import Work, map_work
from ..kernels.machine.call import Call, In, Micro, Out, Seed
from ..kernels.machine.leaf import scalar_word
from ..kernels.move import copy_call, fill_call
from ..kernels.random import UNIT, dropout, dropout_mask, threshold, uniform_bits
from ..memory.types import TensorType
from ..system.errors import OptionError
from .shape import Shape, check_float, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu


@dataclass(frozen=True, repr=False)
class _Masked(Op):
    """Shared by dropout and its gradient: x / (1 - ratio) where the mask keeps it, 0 elsewhere.

    `whole` and `start` say of which tensor the input is a part, and where in it: elements are counted in the whole one. Only
    `reference` computes a part.
    """

    random = True
    halves: ClassVar[bool] = True

    ratio: float = 0.5
    stream: int = 0
    whole: Shape = ()
    start: Shape = ()

    def check(self, x: TensorType) -> None:
        """Raise an error that names what does not fit."""
        check_float(x)
        if not 0 <= self.ratio <= 1:
            raise OptionError(f"ratio {self.ratio} is not a share of the elements; it must lie from 0 to 1.")

    @property
    def scale(self) -> float:
        """What kept elements are multiplied by."""
        return 0.0 if self.ratio == 1 else 1.0 / (1.0 - self.ratio)

    def kept(self, x: np.ndarray, seed: int, micro: int) -> np.ndarray:
        """The mask."""
        if self.ratio in (0, 1):
            return np.full(x.shape, self.ratio == 0)
        shape = self.whole or x.shape
        kept = (uniform_bits(math.prod(shape), seed, self.stream, micro) >= np.uint32(threshold(self.ratio))).reshape(shape)
        return kept[tuple(slice(s, s + n) for s, n in zip(self.start, x.shape, strict=True))] if self.whole else kept

    def part(self, box: Mapping[str, tuple[int, int]], inputs: Types, outputs: Sequence[TensorType]) -> Op:
        return replace(self, whole=outputs[0].shape, start=tuple(lo for lo, _ in box.values()))

    def masked(self, x: np.ndarray, seed: int, micro: int) -> np.ndarray:
        """x times mask and scale, 16-bit numbers in float32 and rounded once; a dropped NaN is 0."""
        wide = x.astype(np.float32) if x.itemsize == 2 else x
        return np.where(self.kept(x, seed, micro), wide * wide.dtype.type(self.scale), wide.dtype.type(0)).astype(x.dtype)

    def mask_calls(self, x: TensorType) -> list[Call]:
        """The Calls from input 0 to output 0."""
        assert not self.whole, "the kernels count from the first element of the memory they get"
        if not x.size:
            return []
        flat = (x.size,)
        if self.ratio == 0:
            return [copy_call(In(0, flat), Out(0, flat), x.size, x.itemsize)]
        if self.ratio == 1:
            return [fill_call(Out(0, flat), 0, x.size, x.itemsize)]
        n = -(-x.size // UNIT)
        scale = scalar_word("f8" if x.code == "f8" else "f4", self.scale)
        args = (In(0, flat), Out(0, flat), Seed(), Micro(), self.stream, threshold(self.ratio), scale)
        return [Call(dropout(x.code), args, n, 32, n * 25.0)]


@op("Dropout")
class Dropout(_Masked):
    """The input with a share `ratio` of its elements set to 0 and the others scaled by 1 / (1 - ratio), in training mode.

    Element i is dropped by word i of the Philox stream (seed, `stream`) at the micro-batch's global index; `stream` is fixed
    when the model is imported. Without `training_mode`, or with ratio 0, it is the identity. With `mask` a second output (bool)
    says what was kept.
    """

    roles = ("moved",)
    training_mode: int = 0
    mask: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), training_mode=1), sample((3, 4)), sample((3, 4), training_mode=1, mask=1)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        self.check(x)
        return (x, x.with_dtype("bool")) if self.mask else (x,)

    @property
    def active(self) -> bool:
        """Whether anything can be dropped."""
        return bool(self.training_mode) and self.ratio > 0

    @property
    def alias(self) -> int | None:          # type: ignore[override]
        """The identity is a view."""
        return None if self.active or self.mask else 0

    def reference(self, *inputs: np.ndarray | None, seed: int = 0, micro: int = 0) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        y = self.masked(x, seed, micro) if self.active else x.copy()
        if not self.mask:
            return (y,)
        return y, self.kept(x, seed, micro) if self.active else np.ones(x.shape, bool)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        g = grads[0]
        if g is None or not self.active:
            return [g]
        return [b.DropoutGrad(g, ratio=self.ratio, stream=self.stream)]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = present(inputs[0])
        made = map_work([x.shape], x.shape, x.dtype, 2.0 if self.active else 0.0)
        return replace(made, outputs=tuple(replace(made.outputs[0], dtype=t.dtype) for t in outputs))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[0])
        if not x.size:
            return []
        flat = (x.size,)
        calls = self.mask_calls(x) if self.active else [copy_call(In(0, flat), Out(0, flat), x.size, x.itemsize)]
        if self.mask and self.active and self.ratio < 1:
            n = -(-x.size // UNIT)
            args = (Out(1, flat), Seed(), Micro(), self.stream, threshold(self.ratio))
            calls.append(Call(dropout_mask(), args, n, 32, n * 25.0))
        elif self.mask:
            calls.append(fill_call(Out(1, flat), int(not self.active), x.size, 1))
        return calls


@op("DropoutGrad", onnx=False)
class DropoutGrad(_Masked):
    """The gradient of Dropout in training mode: the same mask and scale on the gradient."""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        g = present(types[0])
        self.check(g)
        return (g,)

    def reference(self, *inputs: np.ndarray | None, seed: int = 0, micro: int = 0) -> tuple[np.ndarray, ...]:
        return (self.masked(present(inputs[0]), seed, micro),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        return [None if grads[0] is None else b.DropoutGrad(grads[0], ratio=self.ratio, stream=self.stream)]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        g = outputs[0]
        return map_work([g.shape], g.shape, g.dtype, 2.0)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        return self.mask_calls(outputs[0])
