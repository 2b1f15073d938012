"""The loss that a model computes itself: the one that it marks, wherever that is, else its only output of one number."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from ..errors import OptionError
from ..graph import Builder, Graph, TensorType, Value
from ..text import one_line
from .base import Loss

MARK = "IdentityLoss"
"""The operator that marks a loss."""
SHOWN = 8
"""Outputs that a sentence lists."""


@dataclass(frozen=True)
class IdentityLoss(Loss):
    """The model computes its loss itself. A mark of several numbers (reduction "none") is minimised as their sum: its gradient is ones.

    place: which of the model's outputs it is, once it is `within` a graph.
    """

    name: str = "identity"
    place: int | None = None
    takes: ClassVar[Literal["nothing"]] = "nothing"

    def label_type(self, outputs: Sequence[TensorType]) -> None:
        return None

    def within(self, graph: Graph) -> IdentityLoss:
        value = _final(graph)
        if value not in graph.outputs:                                    # a mark need not be returned
            graph.outputs.append(value)
        return replace(self, place=graph.outputs.index(value))

    def __call__(self, b: Builder, outputs: Sequence[Value]) -> Value:
        """The loss, which takes the place of the output that it is."""
        assert self.place is not None, "the loss was not sought in a graph"
        own = outputs[self.place]
        loss: Value = b.IdentityLoss(own, reduction="sum")
        if own.type.size == 1:
            before, b.graph.outputs[self.place] = b.graph.outputs[self.place], loss
            loss.name, before.name = before.name, loss.name
        return loss

    def rows(self, b: Builder, outputs: Sequence[Value]) -> None:
        return None


def _final(graph: Graph) -> Value:
    """What training minimises: the only marked value that feeds no other marked one; without marks the only output of one number.

    Raises:
        OptionError: there is none, or more than one.
    """
    feeding: set[Value] = set()
    found: list[Value] = []
    for node in reversed(graph.nodes):
        marked = node.op.name == MARK
        if marked and node.outputs[0] not in feeding:
            found.append(node.outputs[0])
        if marked or not feeding.isdisjoint(node.outputs):
            feeding.update(node.operands)
    found = found[::-1] or _numbers(graph)
    if len(found) > 1:
        raise OptionError("Multiple independent losses found in graph. Graph must have one final loss. Wrap final graph loss in nn.identity_loss. "
                          f"They are {_listed(found)}.")
    if not found:
        raise OptionError("Couldn't find a loss in graph! With loss='identity' the model computes what training minimises: mark it with "
                          "nn.identity_loss in forward(), or let one output be a single floating-point number; "
                          f"the outputs are {_listed(graph.outputs)}.")
    return found[0]


def _numbers(graph: Graph) -> list[Value]:
    """Outputs of one number, whatever the micro-batch: of a single row [1] may be anything."""
    floats = [v for v in graph.outputs if v.type.is_float]
    single = any(v.type.rank and v.shape[0] == 1 for v in graph.inputs[:1])
    return [v for v in floats if not v.type.rank] or [v for v in floats if v.type.size == 1 and not single]


def _listed(values: Sequence[Value]) -> str:
    more = f" and {len(values) - SHOWN} more" if len(values) > SHOWN else ""
    return ", ".join(f"{one_line(v.name)}: {v.type}" for v in values[:SHOWN]) + more
