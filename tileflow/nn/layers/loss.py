"""Losses as layers, with PyTorch's names, arguments and formulas: `tileflow.nn.functional` has the formulas."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...loss import ClassLoss, Loss
from ...loss.numbers import NumberLoss
from ...system.errors import OptionError
from .. import functional as F
from ..criterion import Criterion
from ..tensor import Tensor


def _weights(weight: Any, what: str) -> np.ndarray | None:
    """Given weights as an array."""
    if weight is None:
        return None
    array = np.asarray(weight, np.float64)
    if not np.isfinite(array).all():
        raise OptionError(f"{what} must be finite numbers.")
    return array


@dataclass(eq=False)
class CrossEntropyLoss(Criterion):
    """-log softmax(x) at the label: x [N, C, ...], labels int64 [N, ...] or probabilities of x's shape; weight [C].

    The mean is over labels that count, each with its class's weight.
    """

    weight: Any = None
    ignore_index: int = -100
    reduction: str = "mean"
    label_smoothing: float = 0.0

    takes = "classes"

    def __post_init__(self) -> None:
        self.weight = _weights(self.weight, "CrossEntropyLoss: the weights")

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing)

    def named(self) -> Loss | None:
        if self.reduction != "mean":
            return None
        return ClassLoss("cross_entropy", False, self.ignore_index, () if self.weight is None else tuple(map(float, self.weight)),
                         self.label_smoothing, 1)


@dataclass(eq=False)
class NLLLoss(Criterion):
    """-x at the label for log-probabilities x [N, C, ...]; labels int64 [N, ...]; weight [C]."""

    weight: Any = None
    ignore_index: int = -100
    reduction: str = "mean"

    takes = "classes"

    def __post_init__(self) -> None:
        self.weight = _weights(self.weight, "NLLLoss: the weights")

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.nll_loss(input, target, self.weight, self.ignore_index, self.reduction)

    def named(self) -> Loss | None:
        if self.reduction != "mean":
            return None
        return ClassLoss("nll", True, self.ignore_index, () if self.weight is None else tuple(map(float, self.weight)), 0.0, 1)


@dataclass(eq=False)
class MSELoss(Criterion):
    """(x - t)^2."""

    reduction: str = "mean"

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(input, target, self.reduction)

    def named(self) -> Loss | None:
        return NumberLoss("mse", "MSELoss") if self.reduction == "mean" else None


@dataclass(eq=False)
class L1Loss(Criterion):
    """|x - t|."""

    reduction: str = "mean"

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.l1_loss(input, target, self.reduction)

    def named(self) -> Loss | None:
        return NumberLoss("l1", "L1Loss") if self.reduction == "mean" else None


@dataclass(eq=False)
class BCELoss(Criterion):
    """-t log p - (1 - t) log(1 - p) for probabilities p."""

    weight: Any = None
    reduction: str = "mean"

    def __post_init__(self) -> None:
        self.weight = _weights(self.weight, "BCELoss: the weights")

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy(input, target, self.weight, self.reduction)

    def named(self) -> Loss | None:
        return NumberLoss("bce", "BCELoss", "BCEWithLogitsLoss") if self.reduction == "mean" and self.weight is None else None


@dataclass(eq=False)
class BCEWithLogitsLoss(Criterion):
    """The binary cross entropy of sigmoid(x), without overflow; `pos_weight` weighs the targets' ones."""

    weight: Any = None
    reduction: str = "mean"
    pos_weight: Any = None

    def __post_init__(self) -> None:
        self.weight = _weights(self.weight, "BCEWithLogitsLoss: the weights")
        self.pos_weight = _weights(self.pos_weight, "BCEWithLogitsLoss: pos_weight")

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(input, target, self.weight, self.reduction, self.pos_weight)

    def named(self) -> Loss | None:
        plain = self.reduction == "mean" and self.weight is None and self.pos_weight is None
        return NumberLoss("bce_with_logits", "BCEWithLogitsLoss", "BCEWithLogitsLoss") if plain else None


@dataclass(eq=False)
class SmoothL1Loss(Criterion):
    """d^2 / (2 beta) for d = |x - t| below beta, else d - beta / 2."""

    reduction: str = "mean"
    beta: float = 1.0

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.smooth_l1_loss(input, target, self.reduction, self.beta)


@dataclass(eq=False)
class HuberLoss(Criterion):
    """d^2 / 2 for d = |x - t| below delta, else delta (d - delta / 2)."""

    reduction: str = "mean"
    delta: float = 1.0

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.huber_loss(input, target, self.reduction, self.delta)


@dataclass(eq=False)
class KLDivLoss(Criterion):
    """t (log t - x) for log-probabilities x; with log_target t is a logarithm, too. "batchmean": the sum over the rows' number."""

    reduction: str = "mean"
    log_target: bool = False

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.kl_div(input, target, self.reduction, self.log_target)


@dataclass(eq=False)
class PoissonNLLLoss(Criterion):
    """e^x - t x, or with log_input=False x - t log(x + eps); `full` adds Stirling's approximation where t > 1."""

    log_input: bool = True
    full: bool = False
    eps: float = 1e-8
    reduction: str = "mean"

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.poisson_nll_loss(input, target, self.log_input, self.full, self.eps, self.reduction)


@dataclass(eq=False)
class SoftMarginLoss(Criterion):
    """log(1 + e^(-t x)) for t of 1 or -1."""

    reduction: str = "mean"

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.soft_margin_loss(input, target, self.reduction)


@dataclass(eq=False)
class MultiLabelSoftMarginLoss(Criterion):
    """The mean over classes, the last axis, of the binary cross entropy of scores; weight [C]."""

    weight: Any = None
    reduction: str = "mean"

    def __post_init__(self) -> None:
        self.weight = _weights(self.weight, "MultiLabelSoftMarginLoss: the weights")

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.multilabel_soft_margin_loss(input, target, self.weight, self.reduction)


@dataclass(eq=False)
class HingeEmbeddingLoss(Criterion):
    """x where t is 1, max(0, margin - x) where it is -1."""

    margin: float = 1.0
    reduction: str = "mean"

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.hinge_embedding_loss(input, target, self.margin, self.reduction)


# ---- of more inputs than a prediction and a target


@dataclass(eq=False)
class GaussianNLLLoss(Criterion):
    """(log v + (x - t)^2 / v) / 2 for a predicted variance v of at least eps; `full` adds log(2 pi) / 2."""

    full: bool = False
    eps: float = 1e-6
    reduction: str = "mean"

    takes = "nothing"

    def forward(self, input: Tensor, target: Tensor, var: Tensor) -> Tensor:
        return F.gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction)


@dataclass(eq=False)
class MarginRankingLoss(Criterion):
    """max(0, -t (x1 - x2) + margin)."""

    margin: float = 0.0
    reduction: str = "mean"

    takes = "nothing"

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return F.margin_ranking_loss(input1, input2, target, self.margin, self.reduction)


@dataclass(eq=False)
class CosineEmbeddingLoss(Criterion):
    """1 - cos(x1, x2) where t is 1, max(0, cos(x1, x2) - margin) where it is -1."""

    margin: float = 0.0
    reduction: str = "mean"

    takes = "nothing"

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return F.cosine_embedding_loss(input1, input2, target, self.margin, self.reduction)


@dataclass(eq=False)
class TripletMarginLoss(Criterion):
    """max(0, |a - p| - |a - n| + margin) with the p-norm along the last axis."""

    margin: float = 1.0
    p: float = 2.0
    eps: float = 1e-6
    reduction: str = "mean"

    takes = "nothing"

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_loss(anchor, positive, negative, self.margin, self.p, self.eps, self.reduction)


class MultiMarginLoss(Criterion):
    """The mean over other classes of max(0, margin - x_y + x_i)^p; x [N, C], labels [N], weight [C]."""

    def __init__(self, p: int = 1, margin: float = 1.0, weight: Any = None, reduction: str = "mean") -> None:
        self.p, self.margin, self.reduction = p, margin, reduction
        self.weight = _weights(weight, "MultiMarginLoss: the weights")

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.multi_margin_loss(input, target, self.p, self.margin, self.weight, self.reduction)


@dataclass(eq=False)
class TripletMarginWithDistanceLoss(Criterion):
    """max(0, d(a, p) - d(a, n) + margin) for a distance d of tensors, by default the Euclidean one; swap: d(p, n) where that is smaller."""

    distance_function: Any = None
    margin: float = 1.0
    swap: bool = False
    reduction: str = "mean"

    takes = "nothing"

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_with_distance_loss(anchor, positive, negative, distance_function=self.distance_function, margin=self.margin,
                                                   swap=self.swap, reduction=self.reduction)
