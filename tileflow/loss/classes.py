"""Losses whose labels are class numbers: cross entropy of scores, negative log-likelihood of log-probabilities. PyTorch's formulas."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ..memory.types import TensorType
from ..metrics.view import OutputMeaning
from ..options.options import Options
from ..system.errors import OptionError, ShapeError
from .base import LABELS, Loss, RowLosses, class_weights, per_row
from .head import Output, ending_of, head_of
from .soft import SoftClassLoss, form_of

if TYPE_CHECKING:
    from ..graph import Builder, Value


def class_axes(output: TensorType, sample: tuple[int, ...]) -> tuple[Literal[1, -1], ...]:
    """Which axes of the output may be that of the classes for labels of shape `sample` per row; sizes of 1 do not count."""
    def essential(sizes: tuple[int, ...]) -> list[int]:
        return [n for n in sizes if n != 1]
    axes: list[Literal[1, -1]] = []
    if output.rank > 1 and essential(output.shape[2:]) == essential(sample):
        axes.append(1)
    if output.rank > 2 and essential(output.shape[1:-1]) == essential(sample):
        axes.append(-1)
    return tuple(axes)


@dataclass(frozen=True)
class ClassLoss(Loss):
    """Scores [N, C, ...] or [N, ..., C] and int64 labels [N, ...].

    The mean is over the labels that count, each with its class's weight. A model that ends in Softmax or LogSoftmax is trained on the
    scores before it.

    log_probabilities: the outputs are those already (nll), unless the graph says that they are probabilities.
    ignore_index: labels of this number do not count.
    class_weights: one per class; empty: all weigh 1.
    label_smoothing: share of each label that is spread evenly over all classes.
    class_axis: 1 or -1, the axis of the classes; None: by the shapes, 1 where both would do.
    """

    name: str = "cross_entropy"
    log_probabilities: bool = False
    ignore_index: int | None = None
    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0
    class_axis: Literal[1, -1] | None = None

    takes: ClassVar[Literal["classes"]] = "classes"
    least_classes: ClassVar[int] = 1

    @property
    def has_rows(self) -> bool:
        return not self.class_weights and self.ignore_index is None

    # ---- shapes

    def axis(self, output: TensorType) -> int:
        """The axis of the classes, 0 or more."""
        if output.rank < 2:
            raise ShapeError(f"A class loss needs scores [N, C, ...] or [N, ..., C], the model's first output is {output}.")
        return output.rank - 1 if self.class_axis == -1 else 1

    def classes(self, output: TensorType) -> int:
        """How many classes there are."""
        return output.shape[self.axis(output)]

    def check_weights(self, output: TensorType) -> None:
        """OptionError unless there is one weight for each class, or none."""
        if self.class_weights and len(self.class_weights) != self.classes(output):
            raise OptionError(f"Option class_weights has {len(self.class_weights)} numbers; the model has {self.classes(output)} classes.")

    def label_type(self, outputs: Sequence[TensorType]) -> TensorType:
        axis = self.axis(outputs[0])
        return TensorType("int64", outputs[0].shape[:axis] + outputs[0].shape[axis + 1:])

    def fitted(self, outputs: Sequence[Value | Output], labels: TensorType | None) -> ClassLoss:
        """With the axis of the classes, by the labels' shape and, where that leaves two, by the softmax that the model ends in.

        Raises:
            OptionError: both axes would do.
        """
        if self.class_axis is not None or labels is None:
            return self
        output = outputs[0]
        axes = class_axes(output.type, labels.shape[1:])
        if len(axes) == 2:
            head = ending_of(output)
            if head is None or head.axis not in (1, output.type.rank - 1):
                raise OptionError(f"The scores are {list(output.shape[1:])} per row and the labels {list(labels.shape[1:])}, so the classes may be "
                                  "on axis 1 or on the last one; set class_axis (--class-axis) to 1 or -1.")
            axes = (1,) if head.axis == 1 else (-1,)
        return replace(self, class_axis=axes[0]) if axes else self

    def for_like_labels(self) -> Loss:
        """The loss of the same name for labels of the outputs' shape, probabilities of the classes.

        Raises:
            OptionError: it has none, or none with an ignore_index.
        """
        if type(self) is not ClassLoss:
            raise OptionError(f"The loss {self.name} takes class numbers, not their probabilities; choose "
                              "cross_entropy or kl for these.")
        if self.ignore_index is not None:
            raise OptionError("Option ignore_index is for labels that are class numbers; labels that are probabilities "
                              "have none.")
        return SoftClassLoss("soft_cross_entropy", False, self.log_probabilities, self.class_weights,
                             self.label_smoothing, self.class_axis)

    def uncounted(self, labels: np.ndarray) -> str:
        """What all of these labels are, where none of them counts; '' where one does."""
        counts = np.ones(labels.shape, bool) if self.ignore_index is None else labels != self.ignore_index
        if not counts.any():
            return f"{self.ignore_index}, the ignore_index"
        if self.class_weights and not np.array(self.class_weights)[labels[counts]].any():
            ignored = "" if counts.all() else " or the ignore_index"
            return f"of classes that weigh 0{ignored}"
        return ""

    # ---- the graph

    def __call__(self, b: Builder, outputs: Sequence[Value]) -> Value:
        if self.label_smoothing:
            return self._mean(b, outputs[0])
        return self._loss(b, *self._operands(b, outputs[0]), reduction="mean")

    def _mean(self, b: Builder, output: Value) -> Value:
        """The mean of the labels' losses, by their weights."""
        each, weight = self._each(b, output)
        each = b.widened(each)
        if isinstance(weight, int | float):
            count = b.scalar(each.type.size * weight, each)
        else:
            count = b.ReduceSum(b.widened(weight), keepdims=0)
        return b.Div(b.ReduceSum(each, keepdims=0), count)

    def rows(self, b: Builder, outputs: Sequence[Value]) -> RowLosses:
        count = outputs[0].shape[0]
        each, weight = self._each(b, outputs[0])
        if isinstance(weight, int | float):
            return RowLosses(per_row(b, each, count), each.type.size // max(1, count) * weight)
        return RowLosses(per_row(b, each, count), per_row(b, weight, count))

    def _operands(self, b: Builder, output: Value) -> tuple[Value, Value, Value | None, bool]:
        """Scores [M, C, ...], labels [M, ...], class weights, and whether the scores are log-probabilities.

        Classes on the last axis become the second one by reshaping alone.
        """
        self.check_weights(output.type)
        axis = self.axis(output.type)
        scores, logs = self._scores(b, output, axis)
        labels = b.input(LABELS, self.label_type([output.type]))
        if axis > 1:
            scores = b.Reshape(scores, shape=(labels.type.size, scores.shape[-1]), allowzero=1)
            labels = b.Reshape(labels, shape=(labels.type.size,), allowzero=1)
        weights = b.constant(np.array(self.class_weights, scores.type.numpy)) if self.class_weights else None
        return scores, labels, weights, logs

    def _scores(self, b: Builder, output: Value, axis: int) -> tuple[Value, bool]:
        """What the loss is computed from: the scores before a softmax, log-probabilities as they are."""
        head = head_of(output)
        if head is None or head.kind == "sigmoid":
            return output, self.log_probabilities
        if head.axis != axis:
            along = "an axis of its own" if head.axis is None else f"axis {head.axis}"
            raise ShapeError(f"The model ends in {head.function} along {along}, the classes for the loss {self.name} are on axis {axis} "
                             f"of its output {output.type}; set class_axis to the axis of the classes.")
        if self.log_probabilities and head.kind == "log_softmax":
            return output, True
        return head.before(b), False

    def _loss(self, b: Builder, scores: Value, labels: Value, weights: Value | None, logs: bool, **attributes: Any) -> Any:
        operator = b.NegativeLogLikelihoodLoss if logs else b.SoftmaxCrossEntropyLoss
        return operator(scores, labels, *([] if weights is None else [weights]), ignore_index=self.ignore_index, **attributes)

    def _each(self, b: Builder, output: Value) -> tuple[Value, Value | float]:
        """The weighted loss of each label, and its weight."""
        scores, labels, weights, logs = self._operands(b, output)
        if not self.label_smoothing:
            each = self._loss(b, scores, labels, weights, logs, reduction="none")
            return each, self._weight(b, labels, weights, each)
        each, probabilities = self._loss(b, scores, labels, weights, logs, reduction="none", log_prob=1)          # only scores are smoothed
        share = self.label_smoothing
        if weights is not None:
            probabilities = b.Mul(probabilities, b.Reshape(weights, shape=(1, weights.shape[0], *[1] * (scores.type.rank - 2)), allowzero=1))
        spread = b.Mul(b.ReduceSum(probabilities, axes=(1,), keepdims=0), b.scalar(-share / scores.shape[1], scores))
        if self.ignore_index is not None:
            spread = b.Where(self._ignored(b, labels), b.scalar(0.0, scores), spread)
        each = b.Add(b.Mul(each, b.scalar(1 - share, scores)), spread)
        return each, self._weight(b, labels, weights, each)

    def _ignored(self, b: Builder, labels: Value) -> Value:
        assert self.ignore_index is not None
        return b.Equal(labels, b.constant(np.array(self.ignore_index)))

    def _weight(self, b: Builder, labels: Value, weights: Value | None, like: Value) -> Value | float:
        """The weight of each label; a number where all weigh the same."""
        if weights is None and self.ignore_index is None:
            return 1.0
        one, zero = b.scalar(1.0, like), b.scalar(0.0, like)
        if self.ignore_index is None:
            return b.Gather(weights, labels, axis=0)
        ignored = self._ignored(b, labels)
        if weights is None:
            return b.Where(ignored, zero, b.Expand(one, shape=labels.shape))
        return b.Where(ignored, zero, b.Gather(weights, b.Where(ignored, b.constant(np.array(0)), labels), axis=0))

    def view(self, outputs: Sequence[Value | Output]) -> OutputMeaning:
        return OutputMeaning("classes", form_of(outputs[0], self.log_probabilities), self.axis(outputs[0].type),
                             self.ignore_index)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "ignore_index": self.ignore_index, "class_weights": list(self.class_weights),
                "label_smoothing": self.label_smoothing, "class_axis": self.class_axis}


def cross_entropy(o: Options) -> Loss:
    """Mean softmax cross entropy."""
    return ClassLoss("cross_entropy", False, o.ignore_index, class_weights(o), o.label_smoothing, o.class_axis)


def nll(o: Options) -> Loss:
    """Mean negative log-likelihood of log-probabilities."""
    return ClassLoss("nll", True, o.ignore_index, class_weights(o), o.label_smoothing, o.class_axis)
