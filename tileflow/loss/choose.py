"""Which loss `auto` means: decided by what the model ends in and by the labels, with the reason; asked for where that leaves a doubt."""
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

from ..memory.types import TensorType
from ..options.options import Options
from ..system.errors import DataError, ModelError, OptionError, see
from .base import Build, Loss
from .classes import ClassLoss, class_axes
from .head import Ending, Output, ending_of
from .labels import Labels
from .named import find
from .numbers import NumberLoss
from .soft import SoftClassLoss
from .weighted import SeveralLosses, WeightedLoss

if TYPE_CHECKING:
    from ..graph import Value


@dataclass(frozen=True)
class ChosenLoss:
    """A loss, why it is that one, and what to say about it.

    one_hot: the axis of a row's label along which one-hot labels become class numbers; None: the labels stay as they are.
    weighted: rows have weights. softened: class numbers become probabilities, so that rows can be mixed. more: of
    further outputs, by their names.
    """

    loss: Loss
    reason: str
    notes: tuple[str, ...] = ()
    one_hot: int | None = None
    weighted: bool = False
    softened: bool = False
    more: Mapping[str, ChosenLoss] = field(default_factory=dict)


    @property
    def minimised(self) -> Loss:
        """What training minimises: the loss, by the rows' weights where they have some."""
        return WeightedLoss(self._measured) if self.weighted else self._measured

    @property
    def _measured(self) -> Loss:
        return self.loss.for_like_labels() if self.softened and isinstance(self.loss, ClassLoss) else self.loss

    @property
    def of_label(self) -> ChosenLoss:
        """The loss that the data's label is for, where others have labels of their own."""
        return replace(self, loss=self.loss.parts[0].loss) if isinstance(self.loss, SeveralLosses) else self


AS_CHOSEN = "as chosen"
"""The reason for a loss that was asked for."""
_MEANINGS = {
    "mse": "mse for numbers to be predicted",
    "l1": "l1 for numbers with outliers",
    "bce": "bce for yes or no",
    "bce_with_logits": "bce_with_logits for yes or no",
    "cross_entropy": "cross_entropy for one class of several",
    "identity": "identity for a model that computes its loss itself",
}


def choose(loss: str | Build | Loss, options: Options, outputs: Sequence[Value | Output],
           labels: Labels | None) -> ChosenLoss:
    """The loss for a model with these outputs and these labels.

    Raises:
        OptionError: `auto`, and more than one loss would do; the sentence names them.
        DataError: no labels where there must be some, or labels that fit no loss.
        ModelError: the output that a loss reads is of whole numbers, which have no gradient.
    """
    if isinstance(loss, str) and loss != "identity" and not outputs[0].type.is_float:
        raise ModelError(f"The model's first output, which a loss reads, is {outputs[0].name}: {outputs[0].type}, which has no gradient; cut the "
                         "model so that the output to train comes first, for example with onnx.utils.extract_model.")
    if loss != "auto":
        return _fitted(find(loss, options), AS_CHOSEN, outputs, labels)
    if labels is None:
        raise DataError("The data have no labels: name them with the option label, or set loss='identity' for a model that computes its loss.")
    name, reason = _auto(outputs[0], labels)
    return _fitted(find(name, options), reason, outputs, labels)


def without_labels(output: Value | Output) -> str:
    """The loss that a model is most likely trained with, where there are no labels to look at: for plans and costs, not for training."""
    if not output.type.rank:
        return "identity"
    if (head := ending_of(output)) is not None and head.kind == "sigmoid":
        return "bce"
    return "cross_entropy" if output.type.rank > 1 and math.prod(output.shape[1:]) > 1 else "mse"


def _auto(output: Value | Output, labels: Labels) -> tuple[str, str]:
    """The loss by name, and the reason."""
    head = ending_of(output)
    ends = f"the model ends in {head.function}" if head else ""
    if not output.type.rank:
        _ask("the model's first output is a single number per batch, not one per row", ("identity",))
    sample = output.shape[1:]
    if math.prod(sample) != math.prod(labels.sample):
        return _of_classes(output, labels, head)
    what = "one number per row" if math.prod(sample) == 1 else f"{list(sample)} numbers per row"
    given = f"the model gives {what} and the labels are {labels}"
    if labels.classes is not None and len(labels.classes) != 2:
        raise DataError(f"Data {labels.data}: the labels are {labels}, and {what} tells two apart; for more the model needs an output for each.")
    if labels.classes is not None and head is None:
        return "bce_with_logits", f"{given}, of which {labels.classes[-1]} counts as yes"
    if labels.one_hot is not None and (head is None or head.kind != "sigmoid"):
        return "cross_entropy", f"the labels are one-hot, one of {labels.sample[labels.one_hot]} classes each{f', and {ends}' if head else ''}"
    if head is None:
        if labels.binary:
            _ask(f"{given}, which may be yes and no or numbers", ("bce_with_logits", "mse"))
        return "mse", given
    if head.kind == "sigmoid":
        if labels.binary:
            return "bce", f"{ends} and the labels are {labels}"
        among = ("bce", "mse") if labels.low >= 0 and labels.high <= 1 else ("mse", "l1")
        _ask(f"{ends}, whose outputs lie between 0 and 1, and the labels are {labels}", among)
    if labels.shares:
        return "cross_entropy", f"the labels are probabilities, and {ends}"
    _ask(f"{ends}, whose outputs are the probabilities of classes, and the labels have the output's shape but are not one-hot", ("mse", "l1"))


def _of_classes(output: Value | Output, labels: Labels, head: Ending | None) -> tuple[str, str]:
    """For labels that have fewer elements than the output."""
    fitting = class_axes(output.type, labels.sample)
    if not fitting:
        raise DataError(f"Data {labels.data}: labels of shape {list(labels.sample)} per row fit no loss for an output of shape "
                        f"{list(output.shape[1:])} per row; class numbers have its shape without the axis of the classes, other labels all of it.")
    if not labels.whole or not labels.finite:
        raise DataError(f"Data {labels.data}: the labels are {labels} and have no axis for the model's {output.shape[fitting[0]]} outputs, so they "
                        f"must be class numbers; give whole numbers, or labels of shape {list(output.shape[1:])} per row for mse.")
    classes = output.shape[fitting[0]]
    if head is not None and head.kind == "sigmoid":
        _ask(f"the model ends in Sigmoid, which says yes or no for each of {classes} columns by itself, and the labels are class numbers",
             ("cross_entropy",), "; or give one-hot labels for bce")
    named = f" and the model ends in {head.function}" if head else f" and the model gives {classes} scores for each"
    return "cross_entropy", f"the labels are {labels}{named}"


def _fitted(loss: Loss, reason: str, outputs: Sequence[Value | Output], labels: Labels | None) -> ChosenLoss:
    """The loss for these outputs and labels: the axis of the classes, one-hot labels, what the model ends in."""
    output = outputs[0]
    head = ending_of(output)
    if isinstance(loss, NumberLoss):
        if loss.binary and head is not None and head.kind == "sigmoid":
            return ChosenLoss(loss, reason, (f"The loss {loss.name} is computed from the scores before the Sigmoid "
                                             "that the model ends in.",))
        return ChosenLoss(loss, reason)
    if (isinstance(loss, ClassLoss) and labels is not None and labels.one_hot is None
            and _is_alike(output, labels, loss.least_classes)):
        loss = loss.for_like_labels()
    if isinstance(loss, SoftClassLoss) and labels is not None:
        return ChosenLoss(_of_shares(loss, outputs, labels), reason)
    if not isinstance(loss, ClassLoss) or labels is None:
        return ChosenLoss(loss, reason)
    if loss.ignore_index is not None and math.isnan(labels.low) and labels.finite:
        raise DataError(f"Data {labels.data}: every label is {loss.ignore_index}, the ignore_index, so that there is nothing to learn.")
    sample, one_hot = labels.sample, None
    if labels.one_hot is not None and math.prod(output.shape[1:]) == math.prod(sample):
        one_hot, last = labels.one_hot, len(sample) - 1
        if one_hot not in (0, last):
            raise DataError(f"Data {labels.data}: the labels are one-hot along axis {one_hot + 1}; the classes must be on axis 1 or on the last one.")
        sample = sample[:one_hot] + sample[one_hot + 1:]
        if loss.class_axis is None and last:
            loss = replace(loss, class_axis=1 if one_hot == 0 else -1)
    loss = loss.fitted(outputs, TensorType("int64", (output.shape[0], *sample)))
    loss.check_weights(output.type)
    return ChosenLoss(loss, reason, tuple(_notes(loss, head)), one_hot)


def _is_alike(output: Value | Output, labels: Labels, least: int) -> bool:
    """The labels have the output's shape and cannot be class numbers, of which there are so many at least."""
    numbered = any(output.shape[axis] >= least for axis in class_axes(output.type, labels.sample))
    return math.prod(output.shape[1:]) == math.prod(labels.sample) and labels.classes is None and not numbered


def _of_shares(loss: SoftClassLoss, outputs: Sequence[Value | Output], labels: Labels) -> SoftClassLoss:
    """The loss for labels that are probabilities (DataError where they are none)."""
    fitted, output = loss.fitted(outputs, None), outputs[0]
    if labels.sample != output.shape[1:]:
        raise DataError(f"Data {labels.data}: the loss {loss.name} takes a probability for each class, "
                        f"{list(output.shape[1:])} per row; the labels "
                        f"are {list(labels.sample)} per row.")
    if fitted.axis(output) - 1 not in labels.shares:
        raise DataError(f"Data {labels.data}: the labels are {labels} and do not add up to one in each row, so that "
                        "they are no probabilities of "
                        f"classes, which the loss {loss.name} takes; for yes or no in each column choose "
                        "bce_with_logits.")
    return fitted


def _notes(loss: ClassLoss, head: Ending | None) -> Iterator[str]:
    """What the graph says about a loss of classes."""
    if head is not None and head.kind == "softmax":
        yield f"The loss {loss.name} is computed from the scores before the Softmax that the model ends in."
    elif loss.log_probabilities and (head is None or head.kind == "sigmoid"):
        yield "The loss nll takes log-probabilities, and the model does not end in LogSoftmax; for scores choose --loss cross_entropy."
    elif head is not None and head.kind == "sigmoid":
        yield "The loss cross_entropy takes the outputs of the Sigmoid that the model ends in as scores."


def _ask(why: str, among: Sequence[str], more: str = "") -> NoReturn:
    """Ask for the option."""
    choices = " or ".join(_MEANINGS[name] for name in among)
    raise OptionError(f"The loss cannot be decided: {why}. Choose it with --loss: {choices}{more}.{see('losses')}")
