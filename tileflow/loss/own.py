"""The loss that a model computes itself: the one that it marks, wherever that is, else its only output of one number.

`nn.identity_loss` marks, and so do the losses of `nn.functional`, reduced to one number, if outputs depend on them other than by `detach`."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from ..memory.types import TensorType
from ..options.options import Options
from ..system.errors import OptionError
from ..system.text import one_line
from .base import Loss

if TYPE_CHECKING:
    from ..graph import Builder, Graph, Value

MARK = "IdentityLoss"
"""The operator that marks a loss."""
DETACH = "Detach"
"""The operator through which nothing is trained."""
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


def identity(_: Options) -> Loss:
    """What the model computes."""
    return IdentityLoss()


def _final(graph: Graph) -> Value:
    """What training minimises: the only marked value that feeds no other marked one; without marks the only output of one number.

    Raises:
        OptionError: there is none, or more than one.
    """
    live = _sources(graph, graph.outputs)
    marked = {node.outputs[0] for node in graph.nodes if node.op.name == MARK}
    losses = marked | live.intersection(graph.losses)
    feeding = _sources(graph, [x for node in graph.nodes if not losses.isdisjoint(node.outputs) for x in node.operands])
    final = [v for node in graph.nodes for v in node.outputs if v in losses and v not in feeding]
    found = final or _numbers(graph)
    if len(found) > 1:
        raise OptionError("Multiple independent losses found in graph. Graph must have one final loss. Wrap final graph loss in nn.identity_loss, "
                          f"and detach() what is only looked at. They are {_listed(found)}.")
    if not found:
        raise OptionError("Couldn't find a loss in graph! With loss='identity' the model computes what training minimises: mark it with "
                          "nn.identity_loss in forward(), or let one output be a single floating-point number; "
                          f"the outputs are {_listed(graph.outputs)}.")
    others = [v for v in _numbers(graph) if v is not found[0] and found[0] in _sources(graph, [v])]
    if others and final and found[0] not in marked:
        raise OptionError(f"The output {_listed(others)} is computed from the loss {_listed(found)}, and nothing says which of the two training "
                          "is to minimise. Wrap final graph loss in nn.identity_loss, and detach() what is only looked at.")
    return found[0]


def _sources(graph: Graph, values: Sequence[Value]) -> set[Value]:
    """These values and all that they are computed from, with a gradient."""
    found = set(values)
    for node in reversed(graph.nodes):
        if node.op.name != DETACH and not found.isdisjoint(node.outputs):
            found.update(node.operands)
    return found


def _numbers(graph: Graph) -> list[Value]:
    """Outputs of one number, whatever the micro-batch: of a single row [1] may be anything."""
    floats = [v for v in graph.outputs if v.type.is_float]
    single = any(v.type.rank and v.shape[0] == 1 for v in graph.inputs[:1])
    return [v for v in floats if not v.type.rank] or [v for v in floats if v.type.size == 1 and not single]


def _listed(values: Sequence[Value]) -> str:
    more = f" and {len(values) - SHOWN} more" if len(values) > SHOWN else ""
    return ", ".join(f"{one_line(v.name)}: {v.type}" for v in values[:SHOWN]) + more
