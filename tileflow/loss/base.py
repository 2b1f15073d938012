"""What a loss is: the value that training minimises, the labels it takes, and the loss of each row for measuring."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from ..memory.types import TensorType
from ..metrics.view import OutputMeaning
from ..options.options import Options
from ..system.errors import OptionError

if TYPE_CHECKING:
    from ..graph import Builder, Graph, Value
    from .head import Output

Takes = Literal["classes", "numbers", "nothing", "anything"]
LABELS = "labels"
"""Name of the input that a loss adds."""

Build = Callable[["Builder", Sequence["Value"]], "Value"]
"""Builds a loss from the model's outputs, with the inputs it needs (labels); returns one number per micro-batch."""


class RowLosses(NamedTuple):
    """The loss over any set of rows is sum(total) / sum(weight)."""

    total: Value
    """[rows]: the weighted losses of all that a row holds, added up."""
    weight: Value | float
    """[rows]: what they weigh; a number where all rows weigh the same."""


class Loss:
    """A loss by name. Calling it builds the mean over a micro-batch, the last output of a training program."""

    name: str
    takes: ClassVar[Takes] = "anything"
    """The labels: class numbers (int64), targets in the model's precision, none, or whatever is given."""

    @property
    def takes_each(self) -> tuple[Takes, ...]:
        """The same of each of its arrays."""
        return () if self.takes == "nothing" else (self.takes,)

    @property
    def has_rows(self) -> bool:
        """Each row has a value, and weighs the same whatever its labels are."""
        return self.takes in ("classes", "numbers")

    def __call__(self, b: Builder, outputs: Sequence[Value]) -> Value:
        raise NotImplementedError

    def rows(self, b: Builder, outputs: Sequence[Value]) -> RowLosses | None:
        """The losses of the rows, for a program that measures; None where the loss has no value for a single row."""
        raise NotImplementedError

    def label_type(self, outputs: Sequence[TensorType]) -> TensorType | None:
        """The labels of a micro-batch for these outputs; None where the loss takes none or decides itself."""
        raise NotImplementedError

    def within(self, graph: Graph) -> Loss:
        """The loss for a model with this graph; one that the model computes itself becomes an output of it.

        Raises:
            OptionError: the model computes none, or several.
        """
        return self

    def fitted(self, outputs: Sequence[Value | Output], labels: TensorType | None) -> Loss:
        """The loss for these outputs and labels of this type, where that decides something."""
        return self

    def view(self, outputs: Sequence[Value | Output]) -> OutputMeaning | None:
        """How metrics read the first output and the labels; None where the loss does not say."""
        return None

    def describe(self) -> dict[str, Any]:
        """Everything that shapes its values, in JSON's types."""
        return {"name": self.name}


@runtime_checkable
class AsLoss(Protocol):
    """What can be a loss, such as a layer that computes one."""

    def as_loss(self) -> Loss: ...


@dataclass(frozen=True)
class FunctionLoss(Loss):
    """A loss of the user's own: a function (builder, outputs) -> one number per micro-batch."""

    function: Build

    @property
    def name(self) -> str:          # type: ignore[override]
        return f"{getattr(self.function, '__name__', 'loss')}()"

    def __call__(self, b: Builder, outputs: Sequence[Value]) -> Value:
        return self.function(b, outputs)

    def rows(self, b: Builder, outputs: Sequence[Value]) -> None:
        return None

    def label_type(self, outputs: Sequence[TensorType]) -> None:
        return None


def class_weights(options: Options) -> tuple[float, ...]:
    """One weight for each class, or none (OptionError where they are still to be found)."""
    if isinstance(options.class_weights, str):
        raise OptionError("Option class_weights: balanced follows from the labels of a data set, which tileflow.train "
                          "has; give numbers.")
    return options.class_weights


def per_row(b: Builder, each: Value, rows: int) -> Value:
    """Sums [rows] over the rest of an array whose elements lie row after row."""
    flat = b.Reshape(b.widened(each), shape=(rows, each.type.size // max(1, rows)), allowzero=1)
    return b.ReduceSum(flat, axes=(1,), keepdims=0)
