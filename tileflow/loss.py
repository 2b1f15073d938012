"""Losses by name: what `training_model(loss=...)`, `train()` and the layer API attach to a model's first output."""
from __future__ import annotations

from collections.abc import Callable, Sequence

from .compiler import Loss
from .errors import OptionError, ShapeError
from .graph import Builder, TensorType, Value

LABELS = "labels"
"""Name of the input that a loss adds."""


def _class_labels(b: Builder, scores: Value) -> Value:
    if len(scores.shape) < 2:
        raise ShapeError(f"A class loss needs scores [N, C, ...], the model's first output is {scores.type}.")
    return b.input(LABELS, TensorType("int64", (scores.shape[0], *scores.shape[2:])))


def _targets(b: Builder, output: Value) -> Value:
    return b.input(LABELS, output.type)


def cross_entropy(b: Builder, outputs: Sequence[Value]) -> Value:
    """Mean softmax cross entropy; scores [N, C, ...], int64 labels [N, ...]."""
    return b.SoftmaxCrossEntropyLoss(outputs[0], _class_labels(b, outputs[0]), reduction="mean")


def nll(b: Builder, outputs: Sequence[Value]) -> Value:
    """Mean negative log-likelihood of log-probabilities [N, C, ...], int64 labels [N, ...]."""
    return b.NegativeLogLikelihoodLoss(outputs[0], _class_labels(b, outputs[0]), reduction="mean")


def mse(b: Builder, outputs: Sequence[Value]) -> Value:
    """Mean squared error; targets of the output's type."""
    return b.MSELoss(outputs[0], _targets(b, outputs[0]), reduction="mean")


def l1(b: Builder, outputs: Sequence[Value]) -> Value:
    """Mean absolute error; targets of the output's type."""
    return b.L1Loss(outputs[0], _targets(b, outputs[0]), reduction="mean")


def bce_with_logits(b: Builder, outputs: Sequence[Value]) -> Value:
    """Mean binary cross entropy of logits; targets in [0, 1] of the output's type."""
    return b.BCEWithLogitsLoss(outputs[0], _targets(b, outputs[0]), reduction="mean")


def identity(b: Builder, outputs: Sequence[Value]) -> Value:
    """The model computes its loss itself: the mean of its last output."""
    return b.IdentityLoss(outputs[-1], reduction="mean")


LOSSES: dict[str, Callable[[Builder, Sequence[Value]], Value]] = {
    "cross_entropy": cross_entropy, "nll": nll, "mse": mse, "l1": l1, "bce_with_logits": bce_with_logits, "identity": identity,
}

CLASS_LOSSES = ("cross_entropy", "nll")
"""Losses whose labels are class numbers; those of the others (but identity) are targets of the output's type."""


def find(loss: str | Loss) -> Loss:
    """A loss by name, or the function itself.

    Raises:
        OptionError: no loss has that name.
    """
    if callable(loss):
        return loss
    if loss not in LOSSES:
        raise OptionError(f"There is no loss {loss!r}; choose one of {', '.join(LOSSES)}, or give a function (builder, outputs) -> loss.")
    return LOSSES[loss]
