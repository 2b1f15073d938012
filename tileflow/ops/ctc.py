"""Connectionist temporal classification: its loss, and the search for the likeliest labellings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..graph import FLOATS, Builder, Op, TensorType, Value, op
from ..graph.op import Types
from ..graph.sample import Sample, sample
from ..graph.work import Axis, Operand, Work
from ..kernels.ctc import ctc_beams, ctc_gradient, ctc_loss
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call, In, Out
from ..kernels.machine.call import Work as Scratch
from ..system.errors import OptionError, ShapeError, TypeMismatchError
from .hosted import counted_whole
from .shape import present

Array = np.ndarray
STEP_NS = 30.0
"""Of one state at one step."""


def _sizes(types: Types) -> tuple[int, int, int, int]:
    """Steps, rows, classes and labels of [T, N, C], [N, S], [N], [N]."""
    probs, targets, steps, lengths = map(present, types[:4])
    if probs.dtype not in FLOATS or any(t.dtype != "int64" for t in (targets, steps, lengths)):
        raise TypeMismatchError(
            f"CTC takes log-probabilities in floats, and targets and lengths in int64, not "
            f"{', '.join(map(str, types[:4]))}."
        )
    rows = probs.shape[1] if probs.rank == 3 else -1
    if targets.rank != 2 or not targets.shape[0] == rows or steps.shape != (rows,) or lengths.shape != (rows,):
        raise ShapeError(
            "CTC takes log-probabilities [T, N, C], targets [N, S] and lengths [N], [N], not "
            f"{', '.join(map(str, types[:4]))}."
        )
    return probs.shape[0], rows, probs.shape[2], targets.shape[1]


def _by_rows(inputs: Types, outputs: Sequence[TensorType], states: int, flops: float) -> Work:
    """Rows are aligned by themselves: the second dimension of input 0, and the first of all others; `flops` for each of
    the states of a row, for each element of the first output."""
    work = counted_whole(inputs, outputs, flops, frozenset(range(1, len(inputs) + len(outputs))))
    given = (Operand((None, "d0", None), present(inputs[0]).dtype), *work.inputs[1:])
    return replace(work, inputs=given, axes=(*work.axes, *[Axis("states", states, "whole")] * (states > 1)))


def _checked_blank(blank: int, classes: int) -> None:
    if not 0 <= blank < classes:
        raise OptionError(f"blank is one of {classes} classes, not {blank}.")


def _twin(leaf: Any, *args: Any) -> None:
    """Run a kernel's body as Python."""
    with np.errstate(all="ignore"):
        leaf["f8"].twin(*args)


@dataclass(frozen=True, repr=False)
class _Aligning(Op):
    """Shared by the loss and its gradient: their first operands and attributes, and one table or two of all states."""

    blank: int = 0
    zero_infinity: int = 0

    def _twin(self, leaf: Any, inputs: Sequence[Array | None], result: Array, tables: int) -> Array:
        """The kernel's body, run as Python; `result` float64, which it fills."""
        probs, targets, steps, lengths, *upper = map(present, inputs)
        states = [np.zeros((len(probs) + 1, 2 * targets.shape[1] + 1)) for _ in range(tables)]
        upper = [g.astype(np.float64) for g in upper]
        _twin(leaf, probs.astype(np.float64), targets, steps, lengths, *self._flags(), *upper, result, *states, 0)
        return result.astype(probs.dtype)

    def _args(self, inputs: Types, result: Out, tables: Sequence[str]) -> list[Any]:
        """The kernel's arguments."""
        steps, rows, classes, labels = _sizes(inputs)
        operands = [In(0, (steps, rows, classes)), In(1, (rows, labels)), In(2, (rows,)), In(3, (rows,))]
        upper = [In(i, (rows,)) for i in range(4, len(inputs))]
        states = [Scratch(name, (steps + 1, 2 * labels + 1), "f8") for name in tables]
        return [*operands, *self._flags(), *upper, result, *states]

    def _flags(self) -> tuple[int, int]:
        return self.blank, 1 - self.zero_infinity


@op("CTCLoss", onnx=False)
class CTCLoss(_Aligning):
    """-log p(targets) of each row [N], of log-probabilities [T, N, C], targets [N, S], steps [N] and lengths [N] of
    targets.

    zero_infinity: rows that no alignment fits have a loss and gradients of 0, not infinity and NaN.
    """

    @classmethod
    def samples(cls) -> list[Sample]:
        targets = np.array([[1, 2, 2], [3, 1, 0]])
        operands = ("float32", (7, 2, 4), -2.5, -0.5), targets, np.array([7, 5]), np.array([3, 2])
        return [
            sample(*operands),
            sample(
                ("float64", (3, 2, 4), -2.5, -0.5),
                np.array([[0, 1], [2, 0]]),
                np.array([3, 2]),
                np.array([2, 0]),
                blank=3,
                zero_infinity=1,
            ),
        ]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        _, rows, classes, _ = _sizes(types)
        _checked_blank(self.blank, classes)
        return (present(types[0]).with_shape((rows,)),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return (self._twin(ctc_loss, inputs, np.zeros(present(inputs[0]).shape[1]), 1),)

    def vjp(
        self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None], outputs: Sequence[Value]
    ) -> Sequence[Value | None]:
        if grads[0] is None:
            return [None] * 4
        made = b.CTCLossGrad(*inputs, grads[0], blank=self.blank, zero_infinity=self.zero_infinity)
        return [b.Transpose(made, perm=(1, 0, 2)), None, None, None]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        steps, _, _, labels = _sizes(inputs)
        return _by_rows(inputs, outputs, 2 * labels + 1, 20.0 * steps)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        steps, rows, _, labels = _sizes(inputs)
        if not rows:
            return []
        args = self._args(inputs, Out(0, (rows,)), ("alpha",))
        return [Call(ctc_loss[outputs[0].code], args, rows, 1, STEP_NS * rows * steps * (2 * labels + 1))]


@op("CTCLossGrad", onnx=False)
class CTCLossGrad(_Aligning):
    """The gradient [N, T, C] of the log-probabilities of a CTCLoss, by the operands of that and the gradient [N] of its
    output. (It is that of the probabilities alone; softmax before them adds what it adds to any.)"""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [
            sample(
                ("float32", (7, 2, 4), -2.5, -0.5),
                np.array([[1, 2, 2], [3, 1, 0]]),
                np.array([7, 5]),
                np.array([3, 2]),
                (2,),
            )
        ]

    no_gradient = "it is a gradient itself"

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        steps, rows, classes, _ = _sizes(types)
        _checked_blank(self.blank, classes)
        return (present(types[0]).with_shape((rows, steps, classes)),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        steps, rows, classes = present(inputs[0]).shape
        return (self._twin(ctc_gradient, inputs, np.zeros((rows, steps, classes)), 2),)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        _, _, classes, labels = _sizes(inputs)
        return _by_rows(inputs, outputs, 1, 50.0 * (2 * labels + 1) / max(1, classes))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        steps, rows, classes, labels = _sizes(inputs)
        if not outputs[0].size:
            return []
        args = self._args(inputs, Out(0, (rows, steps, classes)), ("alpha", "beta"))
        return [Call(ctc_gradient[outputs[0].code], args, rows, 1, 2 * STEP_NS * rows * steps * (2 * labels + 1))]


@op("CTCBeamSearchDecoder", onnx=False)
class CTCBeamSearchDecoder(Op):
    """The likeliest labellings of log-probabilities [T, N, C] with steps [N] that a beam search of prefixes finds:
    their log-probabilities [N, P], lengths [N, P] and classes [N, P, T] (0 behind their ends).

    beam_width: prefixes that are kept after each step. top_paths: P. Where fewer are found, -infinity and lengths of 0.
    """

    blank: int = 0
    beam_width: int = 100
    top_paths: int = 1

    no_gradient = "which labellings are likeliest changes in steps"

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample(("float32", (5, 2, 3), -3.0, -0.2), np.array([5, 3]), beam_width=4, top_paths=2)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        probs, steps = map(present, types)
        if probs.dtype not in FLOATS or probs.rank != 3 or steps.dtype != "int64" or steps.shape != probs.shape[1:2]:
            raise ShapeError(
                f"the decoder takes log-probabilities [T, N, C] in floats and int64 lengths [N], not {probs}, {steps}."
            )
        _checked_blank(self.blank, probs.shape[2])
        if not 1 <= self.top_paths <= self.beam_width:
            raise OptionError(
                f"the decoder keeps {self.beam_width} beams and is to give {self.top_paths} paths; it gives from 1 to "
                "as many as it keeps."
            )
        found = (probs.shape[1], self.top_paths)
        counted = TensorType("int64", found)
        return probs.with_shape(found), counted, counted.with_shape((*found, probs.shape[0]))

    def _scratch(self, steps: int, classes: int) -> tuple[tuple[int, int], ...]:
        candidates = self.beam_width * classes + classes
        return (5, candidates), (5, 1 + steps * self.beam_width), (5, candidates)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        probs, steps = map(present, inputs)
        types = self.infer(TensorType(probs.dtype.name, probs.shape), TensorType("int64", steps.shape))
        logs, counts, paths = (
            np.zeros(types[0].shape),
            np.zeros(types[1].shape, np.int64),
            np.zeros(types[2].shape, np.int64),
        )
        scores, tree, places = self._scratch(len(probs), probs.shape[2])
        _twin(
            ctc_beams,
            probs.astype(np.float64),
            steps,
            self.blank,
            self.beam_width,
            logs,
            counts,
            paths,
            np.zeros(scores),
            np.zeros(tree, np.int64),
            np.zeros(places, np.int64),
            0,
        )
        return logs.astype(probs.dtype), counts, paths

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        steps, _, classes = present(inputs[0]).shape
        return _by_rows(inputs, outputs, classes * self.beam_width, 30.0 * steps / self.top_paths)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        steps, rows, classes = present(inputs[0]).shape
        if not rows:
            return []
        kinds = zip(("scores", "tree", "places"), self._scratch(steps, classes), ("f8", "i8", "i8"), strict=True)
        args = [
            In(0, (steps, rows, classes)),
            In(1, (rows,)),
            self.blank,
            self.beam_width,
            Out(0, outputs[0].shape),
            Out(1, outputs[1].shape),
            Out(2, outputs[2].shape),
            *(Scratch(name, shape, kind) for name, shape, kind in kinds),
        ]
        cost = rows * steps * self.beam_width * classes * (20.0 + 2.0 * self.beam_width)
        return [Call(ctc_beams[outputs[0].code], args, rows, 1, cost)]
