"""Losses as modules: used in `forward` like other layers, or given to a training model as its loss."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ..graph import Builder, TensorType, Value
from ..loss import LABELS, ClassLoss, Loss, RowLosses
from ..loss.base import per_row
from ..system.errors import OptionError
from .module import Module
from .tensor import Tensor
from .trace import Trace, recording


@dataclass(eq=False)
class Criterion(Module):
    """Base of the losses: prediction and target in, the loss out.

        training_model(net, loss=nn.HuberLoss(delta=0.5))

    Both have one shape where nothing else is said. reduction: "mean" or "sum" over all elements gives one number,
    "none" one for each. Another reduction is an OptionError, shapes that do not fit are a ShapeError, as the network is
    recorded.
    """

    takes: ClassVar[Literal["classes", "numbers", "nothing"]] = "numbers"
    """What a training model's labels are: class numbers, or numbers of the prediction's shape. nothing: it has other inputs than these two."""

    def as_loss(self) -> Loss:
        """The loss for a training model, which gives it the first output and the labels.

        Raises:
            OptionError: it gives no number, or takes other inputs than these.
        """
        name, reduction = type(self).__name__, getattr(self, "reduction", "mean")
        if reduction == "none":
            raise OptionError(f"{name}: reduction='none' gives a loss for each element, and training minimises one number; give mean or sum.")
        if self.takes == "nothing":
            raise OptionError(f"{name} takes more than a prediction and labels; compute it in forward(), mark it with nn.identity_loss(...), "
                              "and set loss='identity'.")
        return self.named() or CriterionLoss(self)

    def named(self) -> Loss | None:
        """The loss of the same formula that the engine has by name, if there is one for these settings."""
        return None


@dataclass(frozen=True)
class CriterionLoss(Loss):
    """A criterion over a model's first output and its labels."""

    criterion: Criterion

    @property
    def name(self) -> str:          # type: ignore[override]
        return type(self.criterion).__name__

    @property
    def takes(self) -> Any:          # type: ignore[override]
        return self.criterion.takes

    def label_type(self, outputs: Sequence[TensorType]) -> TensorType:
        return ClassLoss(class_axis=1).label_type(outputs) if self.takes == "classes" else outputs[0]

    def __call__(self, b: Builder, outputs: Sequence[Value]) -> Value:
        return self._record(b, self.criterion, outputs[0])

    def rows(self, b: Builder, outputs: Sequence[Value]) -> RowLosses | None:
        """Where the loss is the mean of what each element has, that of a row."""
        output = outputs[0]
        if getattr(self.criterion, "reduction", "") != "mean" or not output.type.rank:
            return None
        each = self._record(b, replace(self.criterion, reduction="none"), output)          # type: ignore[call-arg]
        count = output.shape[0]
        if not each.type.rank or each.shape[0] != count:
            return None
        return RowLosses(per_row(b, each, count), float(each.type.size // max(1, count)))

    def _record(self, b: Builder, criterion: Criterion, output: Value) -> Value:
        labels = b.input(LABELS, self.label_type([output.type]))
        trace = Trace(b.graph, training=True, dtype=output.dtype, builder=b)
        with recording(trace):
            made = criterion(Tensor(trace, output), Tensor(trace, labels))
        assert isinstance(made, Tensor)
        return made.value

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, **{k: v if isinstance(v, (bool, int, float, str, type(None))) else [float(x) for x in v.reshape(-1)]
                                      for k, v in vars(self.criterion).items() if not k.startswith("_")}}
