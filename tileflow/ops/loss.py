"""Losses: cross entropy and negative log-likelihood with integer labels, elementwise losses, and the mark of a loss of one's own."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import LETTERS, Axis, Operand, Reduce, Work, counted
from ..kernels.elementwise.expr import Const, Expr, Var, abs_, exp, log, log1p, maximum, sigmoid, sign, where
from ..kernels.elementwise.expr import evaluate as evaluate_expr
from ..kernels.elementwise.loops import elementwise_call
from ..kernels.loss import Labels
from ..kernels.machine.call import Call, In, Out
from ..kernels.machine.call import Work as Scratch
from ..kernels.move import copy_call
from ..kernels.reduce import reduce_calls
from ..kernels.rows import row_calls
from ..memory.types import FLOATS, TensorType
from ..system.errors import DataError, OptionError, ShapeError, TypeMismatchError
from .elementwise import apply
from .functions import applications, functions
from .places import INDICES
from .shape import Shape, present
from .softmax import log_softmax, softmax

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu

REDUCTIONS = ("none", "sum", "mean")


def check_reduction(reduction: str) -> None:
    """Raise OptionError unless it is one of REDUCTIONS."""
    if reduction not in REDUCTIONS:
        raise OptionError(f"reduction {reduction!r} is unknown; it must be one of {', '.join(REDUCTIONS)}.")


def reduced(x: TensorType, reduction: str) -> TensorType:
    """The type of a loss with a value for each element of `x`."""
    return x if reduction == "none" else x.with_shape(())


def reduce_loss(b: Builder, each: Value, reduction: str) -> Value:
    """The losses of all elements as they are, added up, or averaged."""
    if reduction == "none":
        return each
    return (b.ReduceMean if reduction == "mean" else b.ReduceSum)(each, keepdims=0)


def _loss_work(shape: Shape, dtypes: Sequence[str], reduction: str, flops: float, error: Expr | None = None) -> Work:
    """Every element read once; reduced to a scalar unless `reduction` is none."""
    names = tuple(LETTERS[:len(shape)])
    kind = "parallel" if reduction == "none" else "reduce"
    return Reduce(tuple(Axis(a, n, kind) for a, n in zip(names, shape, strict=True)), tuple(Operand(names, t) for t in dtypes),
                  (Operand(names if reduction == "none" else (), dtypes[0]),), flops, combine="add" if reduction == "sum" else "",
                  functions=() if error is None else functions(error))


# ---- losses with integer labels ------------------------------------------------------------------------------------------

@dataclass(frozen=True, repr=False)
class _WithLabels(Op):
    """Base: scores [N, C, d…], labels int32 or int64 [N, d…], optional class weights [C]."""

    reduction: str = "mean"
    ignore_index: int | None = None

    leaf: ClassVar[str]
    functions: ClassVar[Sequence[str]] = ()
    """What is done with a score, as planners of tiles call it."""

    def check(self, scores: TensorType, labels: TensorType, weights: TensorType | None) -> None:
        """Raise an error that names what does not fit."""
        check_reduction(self.reduction)
        if scores.dtype not in FLOATS:
            raise TypeMismatchError(f"the scores are {scores.dtype}; they must be {' or '.join(FLOATS)}.")
        if labels.dtype not in INDICES:
            raise TypeMismatchError(f"the labels are {labels.dtype}; they must be class numbers of type int32 or int64.")
        if scores.rank < 2 or labels.shape != scores.shape[:1] + scores.shape[2:]:
            raise ShapeError(f"scores {list(scores.shape)} and labels {list(labels.shape)} do not fit: scores are [N, C, ...] "
                             "for labels [N, ...].")
        if weights is not None and (weights.shape != scores.shape[1:2] or weights.dtype != scores.dtype):
            raise ShapeError(f"the class weights are {weights}; for scores {scores} they must be {scores.dtype}[{scores.shape[1]}].")

    def counted(self, labels: np.ndarray, classes: int) -> np.ndarray:
        """Which labels count. Raises DataError for one that is neither a class nor ignored."""
        counts = np.ones(labels.shape, bool) if self.ignore_index is None else labels != self.ignore_index
        bad = counts & ((labels < 0) | (labels >= classes))
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            ignored = "" if self.ignore_index is None else f" or {self.ignore_index} (ignored)"
            raise DataError(f"Label {labels[at]} of row {at[0]} is not a class: labels must be 0..{classes - 1}{ignored}.")
        return counts

    def per_label(self, scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """The weight of each label (0: ignored) and the labels with the ignored ones replaced by 0."""
        counts = self.counted(labels, scores.shape[1])
        safe = np.where(counts, labels, 0)
        weight = np.ones(labels.shape) if weights is None else weights.astype(np.float64)[safe]
        return np.where(counts, weight, 0.0), safe

    def parts(self, b: Builder, scores: Value, labels: Value, weights: Value | None) -> tuple[Value, Value, Value | None]:
        """Of `scores`' rank, as simpler operators: where [N, C, ...] the label is, its weight [N, 1, ...], which are ignored."""
        rank, classes = scores.type.rank, scores.shape[1]
        column = b.Reshape(labels, shape=(labels.shape[0], 1, *labels.shape[1:]), allowzero=1)
        numbers = b.constant(np.arange(classes, dtype=labels.type.numpy).reshape(1, classes, *[1] * (rank - 2)))
        one, zero = b.scalar(1.0, scores), b.scalar(0.0, scores)
        onehot = b.Where(b.Equal(column, numbers), one, zero)
        weight = b.ReduceSum(onehot if weights is None else b.Mul(onehot, b.Reshape(weights, shape=numbers.shape, allowzero=1)), axes=(1,))
        if self.ignore_index is None:
            return onehot, weight, None
        ignored = b.Equal(column, b.constant(np.array(self.ignore_index, labels.type.numpy)))
        return onehot, b.Where(ignored, zero, weight), ignored

    def labels(self, inputs: Types, scores: int) -> Labels:
        """The kernels over these inputs; `scores` is the position of the scores."""
        x, labels = present(inputs[scores]), present(inputs[scores + 1])
        weighted = len(inputs) > scores + 2 and inputs[scores + 2] is not None
        dims = (x.shape[0], x.shape[1], math.prod(x.shape[2:]))
        return Labels(x.code, labels.code, dims, weighted, self.ignore_index, scores)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = present(inputs[0])
        names = tuple(LETTERS[:x.rank])
        kind = "parallel" if self.reduction == "none" else "reduce"
        axes = tuple(Axis(a, n, "reduce" if i == 1 else kind) for i, (a, n) in enumerate(zip(names, x.shape, strict=True)))
        per_row = (names[0], *names[2:])
        weights = (Operand((None,), x.dtype),) if len(inputs) > 2 and inputs[2] is not None else ()
        return Reduce(axes, (Operand(names, x.dtype), Operand(per_row, present(inputs[1]).dtype), *weights),
                      (Operand(per_row if self.reduction == "none" else (), x.dtype),
                       *(Operand(names, x.dtype) for _ in outputs[1:])), 4.0, functions=counted(self.functions, x.dtype))


@dataclass(frozen=True, repr=False)
class _LabelLoss(_WithLabels):
    """Base of the two losses."""

    no_gradient = "the weights of the classes are given"

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        scores, labels = present(types[0]), present(types[1])
        self.check(scores, labels, types[2] if len(types) > 2 else None)
        return (reduced(labels.with_dtype(scores.dtype), self.reduction),)

    def log_probabilities(self, scores: np.ndarray) -> np.ndarray:
        """What the loss picks from."""
        return scores

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        scores, labels = present(inputs[0]), present(inputs[1])
        weight, safe = self.per_label(scores, labels, inputs[2] if len(inputs) > 2 else None)
        log_probabilities = self.log_probabilities(scores.astype(np.float64))
        picked = np.take_along_axis(log_probabilities, np.expand_dims(safe, 1), 1)[:, 0]
        loss = np.where(weight != 0, -weight * picked, 0.0)
        if self.reduction != "none":
            loss = np.sum(loss)
        if self.reduction == "mean":
            with np.errstate(invalid="ignore", divide="ignore"):
                loss = loss / np.sum(weight)
        return (np.asarray(loss).astype(scores.dtype),)

    def logs(self, b: Builder, scores: Value) -> Value:
        """`log_probabilities` as an operator."""
        return scores

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        scores, labels = present(inputs[0]), present(inputs[1])
        onehot, weight, _ = self.parts(b, scores, labels, inputs[2] if len(inputs) > 2 else None)
        zero, logs = b.scalar(0.0, scores), self.logs(b, scores)
        picked = b.ReduceSum(b.Where(b.Equal(onehot, zero), zero, logs), axes=(1,))
        loss = b.Where(b.Equal(weight, zero), zero, b.Neg(b.Mul(weight, picked)))
        if self.reduction == "none":
            return [b.Reshape(loss, shape=labels.shape, allowzero=1)]
        total = b.ReduceSum(loss, keepdims=0)
        return [b.Div(total, b.ReduceSum(weight, keepdims=0)) if self.reduction == "mean" else total]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        return self.labels(inputs, 0).loss(self.leaf, self.reduction) if outputs[0].size else []


@op("SoftmaxCrossEntropyLoss")
class SoftmaxCrossEntropyLoss(_LabelLoss):
    """-log(softmax(scores)[label]), weighted by class, for labels other than `ignore_index`.

    reduction: "none" | "sum" | "mean", the last divided by the weights of the labels that count. With `log_prob` the
    log-probabilities are a second output. A label that is no class stops the run with status LABEL_OUT_OF_RANGE.
    """

    log_prob: int = 0

    leaf, functions = "cross_entropy", ("cross entropy",)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), ("int64", (3,))),
                sample((3, 4), ("int64", (3,)), (4,), reduction="none"),
                sample((3, 4), ("int64", (3,)), log_prob=1)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        loss = super().infer(*types)
        return (*loss, present(types[0])) if self.log_prob else loss

    def log_probabilities(self, scores: np.ndarray) -> np.ndarray:
        return log_softmax(scores, 1)

    def logs(self, b: Builder, scores: Value) -> Value:
        return b.LogSoftmax(scores, axis=1)

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        loss = present(super().partials(b, inputs))
        return [*loss, self.logs(b, present(inputs[0]))] if self.log_prob else loss

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        loss = super().reference(*inputs)
        return (*loss, log_softmax(present(inputs[0]), 1)) if self.log_prob else loss

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        gradient = None
        if grads[0] is not None:
            gradient = b.SoftmaxCrossEntropyLossGrad(grads[0], *inputs, reduction=self.reduction, ignore_index=self.ignore_index)
        if self.log_prob and grads[1] is not None:
            more = b.LogSoftmaxGrad(grads[1], outputs[1], axis=1)
            gradient = more if gradient is None else b.Add(gradient, more)
        return [gradient, *[None] * (len(inputs) - 1)]

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        calls = super().kernel(inputs, outputs, cpu)
        if self.log_prob:
            calls += row_calls("log_softmax", outputs[1].code, outputs[1].shape, 1, 1, output=1)
        return calls


@op("NegativeLogLikelihoodLoss")
class NegativeLogLikelihoodLoss(_LabelLoss):
    """-input[label], weighted by class, for labels other than `ignore_index`; the input holds log-probabilities.

    reduction and labels as in SoftmaxCrossEntropyLoss.
    """

    leaf = "picked"

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), ("int64", (3,)), (4,)), sample((3, 4), ("int64", (3,)), reduction="sum")]

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        if grads[0] is None:
            return [None] * len(inputs)
        g = b.NegativeLogLikelihoodLossGrad(grads[0], *inputs, reduction=self.reduction, ignore_index=self.ignore_index)
        return [g, *[None] * (len(inputs) - 1)]


@dataclass(frozen=True, repr=False)
class _LabelGrad(_WithLabels):
    """Base of the gradients: (gradient of the loss, scores, labels, optional weights) to the gradient of the scores."""

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        scores, labels = present(types[1]), present(types[2])
        self.check(scores, labels, types[3] if len(types) > 3 else None)
        assert types[0] == reduced(labels.with_dtype(scores.dtype), self.reduction), types
        return (scores,)

    def slopes(self, scores: np.ndarray, onehot: np.ndarray) -> np.ndarray:
        """The gradient of one unweighted row's loss."""
        raise NotImplementedError

    def slope(self, b: Builder, scores: Value, onehot: Value) -> Value:
        """`slopes` as simpler operators."""
        raise NotImplementedError

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        g, scores, labels = map(present, inputs[:3])
        onehot, weight, ignored = self.parts(b, scores, labels, inputs[3] if len(inputs) > 3 else None)
        if self.reduction == "mean":
            weight = b.Div(weight, b.ReduceSum(weight))
        if self.reduction == "none":
            g = b.Reshape(g, shape=weight.shape, allowzero=1)
        dx = b.Mul(self.slope(b, scores, onehot), b.Mul(weight, g))
        return [dx if ignored is None else b.Where(ignored, b.scalar(0.0, scores), dx)]

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        return self.partials(b, inputs)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        g, scores, labels = map(present, inputs[:3])
        weight, safe = self.per_label(scores, labels, inputs[3] if len(inputs) > 3 else None)
        if self.reduction == "mean":
            with np.errstate(invalid="ignore", divide="ignore"):
                weight = weight / np.sum(weight)
        onehot = np.expand_dims(safe, 1) == np.arange(scores.shape[1]).reshape(-1, *[1] * (scores.ndim - 2))
        slopes = self.slopes(scores.astype(np.float64), onehot)
        ignored = np.expand_dims(labels == self.ignore_index, 1) if self.ignore_index is not None else np.False_
        return (np.where(ignored, 0.0, slopes * np.expand_dims(weight * g, 1)).astype(scores.dtype),)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        forward = super().work(inputs[1:], outputs)
        return Reduce(forward.axes, (Operand(forward.outputs[0].dims, present(inputs[0]).dtype), *forward.inputs),
                      (present(forward.inputs[0]),), 5.0, functions=forward.functions)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        return self.labels(inputs, 1).gradient(self.leaf, self.reduction) if outputs[0].size else []


@op("SoftmaxCrossEntropyLossGrad", onnx=False)
class SoftmaxCrossEntropyLossGrad(_LabelGrad):
    """(softmax(scores) - onehot(label)) times weight and gradient of the loss."""

    leaf, functions = "cross_entropy", ("cross entropy grad",)

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((), (3, 4), ("int64", (3,)))]

    def slopes(self, scores: np.ndarray, onehot: np.ndarray) -> np.ndarray:
        return softmax(scores, 1) - onehot

    def slope(self, b: Builder, scores: Value, onehot: Value) -> Value:
        return b.Sub(b.Softmax(scores, axis=1), onehot)


@op("NegativeLogLikelihoodLossGrad", onnx=False)
class NegativeLogLikelihoodLossGrad(_LabelGrad):
    """-onehot(label) times weight and gradient of the loss."""

    leaf = "picked"

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((), (3, 4), ("int64", (3,)))]

    def slopes(self, scores: np.ndarray, onehot: np.ndarray) -> np.ndarray:
        return np.where(onehot, -1.0, 0.0)

    def slope(self, b: Builder, scores: Value, onehot: Value) -> Value:
        return b.Neg(onehot)


# ---- elementwise losses --------------------------------------------------------------------------------------------------

@dataclass(frozen=True, repr=False)
class _Elementwise(Op):
    """Base: prediction and target of one type and shape; the loss of each element is a scalar expression."""

    reduction: str = "mean"

    def error(self, x: Expr, t: Expr) -> Expr:
        """The loss of one element."""
        raise NotImplementedError

    def slope(self, x: Expr, t: Expr) -> tuple[Expr, Expr]:
        """Its derivatives by prediction and target."""
        raise NotImplementedError

    def each(self, b: Builder, x: Value, t: Value) -> Value:
        """The losses of all elements by ONNX's operators."""
        raise NotImplementedError

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """For files: ONNX has the parts only."""
        return [reduce_loss(b, self.each(b, present(inputs[0]), present(inputs[1])), self.reduction)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, t = map(present, types)
        check_reduction(self.reduction)
        if x.dtype not in FLOATS:
            raise TypeMismatchError(f"the prediction is {x.dtype}; it must be {' or '.join(FLOATS)}.")
        if x != t:
            raise ShapeError(f"prediction {x} and target {t} must have one type and shape.")
        return (reduced(x, self.reduction),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x, t = map(present, inputs)
        wide = [x.astype(np.float64), t.astype(np.float64)]
        loss = np.asarray(evaluate_expr(self.error(Var(0, "float64"), Var(1, "float64")), wide))
        if self.reduction != "none":
            loss = np.sum(loss)
        if self.reduction == "mean":
            with np.errstate(invalid="ignore"):
                loss = loss / np.float64(x.size)
        return (np.asarray(loss).astype(x.dtype),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        x, t, g = present(inputs[0]), present(inputs[1]), grads[0]
        if g is None:
            return [None, None]
        scale = 1.0 / max(1, x.type.size) if self.reduction == "mean" else 1.0
        factor = Var(2, x.dtype) * Const(scale, x.dtype)
        return [apply(b, slope * factor, [x, t, g]) for slope in self.slope(Var(0, x.dtype), Var(1, x.dtype))]

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        each, = b.emit(replace(self, reduction="none"), *inputs)
        return [reduce_loss(b, each, self.reduction)]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = present(inputs[0])
        error = self.error(Var(0, x.dtype), Var(1, x.dtype))
        return _loss_work(x.shape, (x.dtype, x.dtype), self.reduction, applications(functions(error)) + 1, error)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[0])
        arrays, error = [In(0, x.shape), In(1, x.shape)], self.error(Var(0, x.dtype), Var(1, x.dtype))
        if self.reduction == "none":
            return [elementwise_call([error], arrays, [Out(0, x.shape)])] if x.size else []
        each = Scratch("error", (x.size,), x.code)
        count = x.size if self.reduction == "mean" else 1.0
        calls = [elementwise_call([error], arrays, [Scratch("error", x.shape, x.code)])] if x.size else []
        return [*calls, *reduce_calls("sum", x.code, (x.size,), (0,), count, source=each)]


@op("MSELoss", onnx=False)
class MSELoss(_Elementwise):
    """(prediction - target)^2; the mean is over all elements."""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), (3, 4)), sample((3, 4), (3, 4), reduction="none")]

    def error(self, x: Expr, t: Expr) -> Expr:
        return (x - t) * (x - t)

    def slope(self, x: Expr, t: Expr) -> tuple[Expr, Expr]:
        return (x - t) * 2, (t - x) * 2

    def each(self, b: Builder, x: Value, t: Value) -> Value:
        difference = b.Sub(x, t)
        return b.Mul(difference, difference)


@op("L1Loss", onnx=False)
class L1Loss(_Elementwise):
    """|prediction - target|; the mean is over all elements; the gradient at equality is 0."""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), (3, 4), reduction="sum")]

    def error(self, x: Expr, t: Expr) -> Expr:
        return abs_(x - t)

    def slope(self, x: Expr, t: Expr) -> tuple[Expr, Expr]:
        return sign(x - t), sign(t - x)

    def each(self, b: Builder, x: Value, t: Value) -> Value:
        return b.Abs(b.Sub(x, t))


@op("BCEWithLogitsLoss", onnx=False)
class BCEWithLogitsLoss(_Elementwise):
    """-t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)) for logits x and targets t in 0..1; the mean is over all elements."""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), (3, 4))]

    def error(self, x: Expr, t: Expr) -> Expr:
        return where(x > 0, x * (1 - t), -x * t) + log1p(exp(-abs_(x)))

    def slope(self, x: Expr, t: Expr) -> tuple[Expr, Expr]:
        return sigmoid(x) - t, -x

    def each(self, b: Builder, x: Value, t: Value) -> Value:
        one, zero = b.scalar(1, x), b.scalar(0, x)
        line = b.Where(b.Greater(x, zero), b.Mul(x, b.Sub(one, t)), b.Neg(b.Mul(x, t)))
        return b.Add(line, b.Log(b.Add(one, b.Exp(b.Neg(b.Abs(x))))))


@op("BCELoss", onnx=False)
class BCELoss(_Elementwise):
    """-t log(p) - (1 - t) log(1 - p) for probabilities p and targets t in 0..1; the mean is over all elements.

    Logarithms are at least -100 and the slope's denominator at least 1e-12, as in PyTorch. A p outside of 0..1 gives NaN.
    """

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), (3, 4))]

    def error(self, x: Expr, t: Expr) -> Expr:
        return (t - 1) * maximum(log1p(-x), -100) - t * maximum(log(x), -100)

    def slope(self, x: Expr, t: Expr) -> tuple[Expr, Expr]:
        return (x - t) / maximum((1 - x) * x, 1e-12), maximum(log1p(-x), -100) - maximum(log(x), -100)

    def each(self, b: Builder, x: Value, t: Value) -> Value:
        one, least = b.scalar(1, x), b.scalar(-100, x)
        no, yes = b.Max(b.Log(b.Sub(one, x)), least), b.Max(b.Log(x), least)
        return b.Sub(b.Mul(b.Sub(t, one), no), b.Mul(t, yes))


@op("IdentityLoss", onnx=False)
class IdentityLoss(Op):
    """The input as a loss: itself, its sum or its mean. Marks what training minimises."""

    reduction: str = "mean"

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4)), sample((3, 4), reduction="none")]

    @property
    def alias(self) -> int | None:          # type: ignore[override]
        """Not reduced it is a view."""
        return 0 if self.reduction == "none" else None

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x = present(types[0])
        check_reduction(self.reduction)
        if x.dtype not in FLOATS:
            raise TypeMismatchError(f"the loss is {x.dtype}; it must be {' or '.join(FLOATS)}.")
        return (reduced(x, self.reduction),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x = present(inputs[0])
        if self.reduction == "none":
            return (x.copy(),)
        total = np.sum(x, dtype=np.float64)
        with np.errstate(invalid="ignore"):
            return (np.asarray(total / np.float64(x.size) if self.reduction == "mean" else total).astype(x.dtype),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        x, g = present(inputs[0]), grads[0]
        if g is None or self.reduction == "none":
            return [g]
        if self.reduction == "mean":
            g = b.Div(g, b.scalar(max(1, x.type.size), g))
        return [b.Expand(g, shape=x.shape) if x.shape else g]

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """For files: ONNX has the parts only."""
        return [reduce_loss(b, present(inputs[0]), self.reduction)]

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        return self.expand(b, inputs)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x = present(inputs[0])
        return _loss_work(x.shape, (x.dtype,), self.reduction, 0.0 if self.reduction == "none" else 1.0)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[0])
        if self.reduction == "none":
            return [copy_call(In(0, (x.size,)), Out(0, (x.size,)), x.size, x.itemsize)] if x.size else []
        return reduce_calls("sum", x.code, x.shape, tuple(range(x.rank)), x.size if self.reduction == "mean" else 1.0)
