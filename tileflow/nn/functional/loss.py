"""Losses with PyTorch's formulas, as values in `forward`; `identity_loss` marks the one that training minimises, and so does each
that is reduced to one number."""
from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import numpy as np

from ...system.errors import OptionError, ShapeError
from ..tensor import Tensor, where
from .normalization import cosine_similarity, pairwise_distance

P = ParamSpec("P")


def marks(loss: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """The loss, whose one number is marked as what training with loss="identity" minimises (`loss.own`)."""
    @wraps(loss)
    def marked(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        y = loss(*args, **kwargs)
        if not y.shape:
            y.trace.graph.losses.append(y.value)
        return y
    return marked


def identity_loss(x: Tensor, reduction: str = "mean") -> Tensor:
    """The tensor as what training with loss="identity" minimises: its mean, its sum, or ("none") itself, each element with a gradient of one.

    `forward` may return it anywhere, or not at all. One that feeds another is a part of that; two that do not are an error.
    """
    return x.apply("IdentityLoss", reduction=reduction)


def reduced(each: Tensor, reduction: str) -> Tensor:
    """The losses of all elements as they are ("none"), added up ("sum") or averaged ("mean").

    Raises:
        OptionError: another reduction.
    """
    if reduction not in ("none", "mean", "sum"):
        raise OptionError(f"reduction {reduction!r} is unknown; it must be none, mean or sum.")
    return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()


def _weighted(each: Tensor, weight: Any, reduction: str) -> Tensor:
    return reduced(each if weight is None else each * weight, reduction)


# ---- classes


@marks
def cross_entropy(input: Tensor, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean",
                  label_smoothing: float = 0.0) -> Tensor:
    """-log softmax(x) at the label: x [N, C, ...] or [C]; labels int64 [N, ...], or probabilities of x's shape; weight [C].

    The mean is over labels that count, each with its class's weight; over rows where targets are probabilities.
    label_smoothing: the share of each label that is spread evenly over all classes.
    """
    if not 0 <= label_smoothing <= 1:
        raise OptionError(f"cross_entropy: label_smoothing must be in [0, 1], got {label_smoothing}.")
    labels = input.lift(target)
    if len(input.shape) == 1:
        y = cross_entropy(input.unsqueeze(0), labels.unsqueeze(0), weight, ignore_index, reduction, label_smoothing)
        return y.squeeze(0) if reduction == "none" else y
    if labels.value.type.is_float:
        return _soft_cross_entropy(input, labels, weight, reduction, label_smoothing)
    if not label_smoothing:
        return input.apply("SoftmaxCrossEntropyLoss", labels, weight, ignore_index=ignore_index, reduction=reduction)
    logs = input.log_softmax(1)
    spread = -(logs if weight is None else logs * _column(input, weight)).sum(1) / float(input.shape[1])
    ignored = labels == ignore_index
    each = (1 - label_smoothing) * nll_loss(logs, labels, weight, ignore_index, "none") + label_smoothing * where(ignored, 0, spread)
    if reduction != "mean":
        return reduced(each, reduction)
    counted = where(ignored, 0, _label_weights(input, labels, ignored, weight))
    return each.sum() / counted.sum()


@marks
def nll_loss(input: Tensor, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """-x at the label for log-probabilities x [N, C, ...] or [C]; labels int64 [N, ...]; weight [C]."""
    labels = input.lift(target)
    if len(input.shape) == 1:
        y = nll_loss(input.unsqueeze(0), labels.unsqueeze(0), weight, ignore_index, reduction)
        return y.squeeze(0) if reduction == "none" else y
    return input.apply("NegativeLogLikelihoodLoss", labels, weight, ignore_index=ignore_index, reduction=reduction)


def _column(input: Tensor, weight: Any) -> Tensor:
    """Weights of classes [C] beside [N, C, ...]."""
    return input.lift(weight).reshape(1, -1, *[1] * (len(input.shape) - 2))


def _label_weights(input: Tensor, labels: Tensor, ignored: Tensor, weight: Any) -> Tensor:
    if weight is None:
        return input.lift(np.ones(labels.shape))
    return input.lift(weight).apply("Gather", where(ignored, 0, labels), axis=0)


def _soft_cross_entropy(input: Tensor, target: Tensor, weight: Any, reduction: str, smoothing: float) -> Tensor:
    if target.shape != input.shape:
        raise ShapeError(f"cross_entropy: targets of floats are probabilities of the scores' shape {list(input.shape)}, got {list(target.shape)}.")
    if smoothing:
        target = target * (1 - smoothing) + smoothing / input.shape[1]
    logs = input.log_softmax(1)
    each = -(target * (logs if weight is None else logs * _column(input, weight))).sum(1)
    return each.sum() / float(max(1, each.numel())) if reduction == "mean" else reduced(each, reduction)


# ---- numbers


@marks
def mse_loss(input: Tensor, target: Any, reduction: str = "mean") -> Tensor:
    """(x - t)^2, both of one shape."""
    return input.apply("MSELoss", target, reduction=reduction)


@marks
def l1_loss(input: Tensor, target: Any, reduction: str = "mean") -> Tensor:
    """|x - t|, both of one shape."""
    return input.apply("L1Loss", target, reduction=reduction)


@marks
def smooth_l1_loss(input: Tensor, target: Any, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """d^2 / (2 beta) for d = |x - t| below beta, else d - beta / 2."""
    if beta < 0:
        raise OptionError(f"smooth_l1_loss: beta must not be negative, got {beta}.")
    if not beta:
        return l1_loss(input, target, reduction)
    d = _difference(input, target, "smooth_l1_loss").abs()
    return reduced(where(d < beta, d * d * (0.5 / beta), d - 0.5 * beta), reduction)


@marks
def huber_loss(input: Tensor, target: Any, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """d^2 / 2 for d = |x - t| below delta, else delta (d - delta / 2)."""
    if delta <= 0:
        raise OptionError(f"huber_loss: delta must be positive, got {delta}.")
    d = _difference(input, target, "huber_loss").abs()
    return reduced(where(d < delta, d * d * 0.5, delta * (d - 0.5 * delta)), reduction)


def _difference(input: Tensor, target: Any, what: str) -> Tensor:
    other = input.lift(target)
    if other.shape != input.shape:
        raise ShapeError(f"{what}: the prediction {list(input.shape)} and the target {list(other.shape)} must have one shape.")
    return input - other


@marks
def poisson_nll_loss(input: Tensor, target: Any, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean") -> Tensor:
    """e^x - t x, or with log_input=False x - t log(x + eps); `full` adds Stirling's t log t - t + log(2 pi t) / 2 where t > 1."""
    t = input.lift(target)
    each = input.exp() - t * input if log_input else input - t * (input + eps).log()
    if full:
        safe = where(t > 1, t, 1)
        each = each + where(t > 1, safe * safe.log() - safe + 0.5 * (2 * math.pi * safe).log(), 0)
    return reduced(each, reduction)


@marks
def gaussian_nll_loss(input: Tensor, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> Tensor:
    """(log v + (x - t)^2 / v) / 2 with v = max(var, eps), which has no gradient below eps; `full` adds log(2 pi) / 2."""
    given = input.lift(var)
    if given.shape != input.shape and given.shape == input.shape[:-1]:
        given = given.unsqueeze(-1)
    v = given + (given.clamp(min=eps) - given).detach()          # as PyTorch's: the gradient passes the clamp
    each = 0.5 * (v.log() + (input - target) ** 2 / v)
    return reduced(each + 0.5 * math.log(2 * math.pi) if full else each, reduction)


# ---- probabilities


@marks
def binary_cross_entropy(input: Tensor, target: Any, weight: Any = None, reduction: str = "mean") -> Tensor:
    """-t log p - (1 - t) log(1 - p); logarithms are at least -100."""
    if weight is None:
        return input.apply("BCELoss", target, reduction=reduction)
    return _weighted(input.apply("BCELoss", target, reduction="none"), weight, reduction)


@marks
def binary_cross_entropy_with_logits(input: Tensor, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> Tensor:
    """-w (q t log sigmoid(x) + (1 - t) log(1 - sigmoid(x))) with the weight w and pos_weight q, which broadcast."""
    if pos_weight is None:
        if weight is None:
            return input.apply("BCEWithLogitsLoss", target, reduction=reduction)
        return _weighted(input.apply("BCEWithLogitsLoss", target, reduction="none"), weight, reduction)
    t = input.lift(target)
    factor = 1 + (input.lift(pos_weight) - 1) * t
    return _weighted((1 - t) * input + factor * (-input).apply("Softplus"), weight, reduction)


@marks
def kl_div(input: Tensor, target: Any, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """t (log t - x) for log-probabilities x; with log_target t is a logarithm, too. reduction="batchmean": the sum over the rows' number."""
    t = input.lift(target)
    if log_target:
        each = t.exp() * (t - input)
    else:
        positive = t > 0
        each = where(positive, t * where(positive, t, 1).log(), 0) - t * input
    return each.sum() / float(max(1, each.shape[0])) if reduction == "batchmean" else reduced(each, reduction)


@marks
def soft_margin_loss(input: Tensor, target: Any, reduction: str = "mean") -> Tensor:
    """log(1 + e^(-t x)) for t of 1 or -1."""
    return reduced((-input.lift(target) * input).apply("Softplus"), reduction)


@marks
def multilabel_soft_margin_loss(input: Tensor, target: Any, weight: Any = None, reduction: str = "mean") -> Tensor:
    """The mean over classes, the last axis, of the binary cross entropy of scores."""
    each = input.apply("BCEWithLogitsLoss", target, reduction="none")
    return reduced((each if weight is None else each * weight).mean(-1), reduction)


# ---- distances


@marks
def hinge_embedding_loss(input: Tensor, target: Any, margin: float = 1.0, reduction: str = "mean") -> Tensor:
    """x where t is 1, max(0, margin - x) where it is -1."""
    return reduced(where(input.lift(target) == 1, input, (margin - input).relu()), reduction)


@marks
def margin_ranking_loss(input1: Tensor, input2: Tensor, target: Any, margin: float = 0.0, reduction: str = "mean") -> Tensor:
    """max(0, -t (x1 - x2) + margin)."""
    return reduced((-input1.lift(target) * (input1 - input2) + margin).relu(), reduction)


@marks
def cosine_embedding_loss(input1: Tensor, input2: Tensor, target: Any, margin: float = 0.0, reduction: str = "mean") -> Tensor:
    """1 - cos(x1, x2) where t is 1, max(0, cos(x1, x2) - margin) where it is -1."""
    cosine = cosine_similarity(input1, input2, -1)
    return reduced(where(input1.lift(target) == 1, 1 - cosine, (cosine - margin).relu()), reduction)


@marks
def triplet_margin_loss(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6,
                        reduction: str = "mean") -> Tensor:
    """max(0, |a - p| - |a - n| + margin)."""
    near, far = pairwise_distance(anchor, positive, p, eps), pairwise_distance(anchor, negative, p, eps)
    return reduced((near - far + margin).relu(), reduction)


@marks
def triplet_margin_with_distance_loss(anchor: Tensor, positive: Tensor, negative: Tensor, *,
                                      distance_function: Callable[[Tensor, Tensor], Tensor] | None = None, margin: float = 1.0, swap: bool = False,
                                      reduction: str = "mean") -> Tensor:
    """max(0, d(a, p) - d(a, n) + margin) for a distance d; swap: d(p, n) in place of d(a, n) where that is smaller."""
    d = pairwise_distance if distance_function is None else distance_function
    far = d(anchor, negative)
    if swap:
        far = far.apply("Min", d(positive, negative))
    return reduced((d(anchor, positive) - far + margin).relu(), reduction)


@marks
def multi_margin_loss(input: Tensor, target: Any, p: int = 1, margin: float = 1.0, weight: Any = None, reduction: str = "mean") -> Tensor:
    """The mean over classes i other than the label y of max(0, margin - x_y + x_i)^p, times the label's weight: x [N, C], labels [N]."""
    if p not in (1, 2):
        raise OptionError(f"multi_margin_loss: p must be 1 or 2, got {p}.")
    if len(input.shape) != 2:
        raise ShapeError(f"multi_margin_loss takes scores [N, C], got {list(input.shape)}.")
    labels = input.lift(target)
    each = (margin - input.gather(1, labels.unsqueeze(1)) + input).relu()
    if weight is not None:
        each = (each * each if p == 2 else each) * input.lift(weight).apply("Gather", labels, axis=0).unsqueeze(1)
    elif p == 2:
        each = each * each
    own = labels.unsqueeze(1) == np.arange(input.shape[1])
    return reduced(where(own, 0, each).sum(1) / float(input.shape[1]), reduction)
