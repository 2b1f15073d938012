"""A step that Python runs: the node's attributes and operands, its inner graphs as functions, and a sentence for what goes wrong."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import GraphProto

from tileflow.graph.op import plain_domain
from tileflow.system.errors import ModelError, ShapeError, TileflowError, UnsupportedError
from tileflow.system.text import one_line

from ..checker import schema_of
from ..hosted import Attributes, Datum, hosted_form
from ..model import title
from ..site import python_value
from ..tensors import SHOWN
from .steps import Frame, Step
from .turns import TurnsMade

RunBody = Callable[[Frame, Sequence[Datum]], list[Datum]]
"""Runs a body on the data of its inputs."""
TryBody = Callable[[Frame, Sequence[Datum], bool], "list[Datum] | None"]
"""The same where all of the body is one program; None where it is none. Where the last argument is true also None where
that program fails."""


class Body:
    """An inner graph as a function of the data of its inputs. results: its outputs as the file declares them."""

    def __init__(self, step: Step, frame: Frame, run: RunBody, attempt: TryBody) -> None:
        self._step, self._frame, self._run, self._attempt, self.results = step, frame, run, attempt, frame.results

    def __call__(self, *data: Datum) -> list[Datum]:
        if len(data) != len(self._frame.formals):
            raise ModelError(f"{title(self._step.node)} gives its inner graph {len(data)} inputs, and that has "
                             f"{len(self._frame.formals)}; export the model again")
        return self._run(self._frame, data)

    def turns(self, turn: int, most: int, state: Sequence[Datum]) -> TurnsMade | None:
        """For the body of a Loop: what turns from this one on come to, at least one and at most so many, in one
        program; None where there is none."""
        together = self._step.turns()
        if together is None:
            return None
        many, frame = together
        made = self._attempt(frame, many.given(most, turn, state), many.guessed)
        return None if made is None else many.found(turn, state, made)


def run_hosted(step: Step, data: Mapping[str, Datum], run: RunBody, attempt: TryBody) -> dict[str, Datum]:
    """What a step makes, by name.

    Raises:
        TileflowError: a sentence that names the node.
    """
    node = step.node
    form = hosted_form(node.op_type, node.domain)
    assert form is not None
    try:
        with np.errstate(all="ignore"):
            operands = [data[name] if name else None for name in node.input]
            found = form.function(_attributes(step, run, attempt), *operands)
    except TileflowError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, AttributeError, np.exceptions.AxisError) as error:
        raise ShapeError(f"{title(node)} cannot be computed from what it is given ({one_line(error, SHOWN)}).") from None
    if len(found) < len(node.output):
        raise UnsupportedError(f"{title(node)} has {len(node.output)} outputs, and tileflow computes {len(found)}.")
    return {name: array for name, array in zip(node.output, found, strict=False) if name}


def _attributes(step: Step, run: RunBody, attempt: TryBody) -> Attributes:
    node = step.node
    opset = step.opset.get(plain_domain(node.domain), 0)
    if step.attributes is None:
        schema = schema_of(node, opset)
        step.attributes = {name: python_value(a.default_value)
                           for name, a in (schema.attributes if schema is not None else {}).items()
                           if a.default_value.name}
        step.attributes |= {a.name: python_value(a) for a in node.attribute}
    values = {name: Body(step, step.body(name), run, attempt) if isinstance(value, GraphProto) else value
              for name, value in step.attributes.items()}
    return Attributes(values, title(node), opset, list(node.output))
