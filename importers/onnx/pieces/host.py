"""A step that Python runs: the node's attributes and operands, its inner graphs as functions, and a sentence for what goes wrong."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import GraphProto

from tileflow.system.errors import ModelError, ShapeError, TileflowError, UnsupportedError
from tileflow.system.text import one_line

from ..checker import schema_of
from ..hosted import Attributes, Datum, hosted_form
from ..model import title
from ..site import python_value
from ..tensors import SHOWN
from .steps import Frame, Step

RunBody = Callable[[Frame, Sequence[Datum]], list[Datum]]
"""Runs a body on the data of its inputs."""


class Body:
    """An inner graph as a function of the data of its inputs. results: its outputs as the file declares them."""

    def __init__(self, frame: Frame, run: RunBody, where: str) -> None:
        self._frame, self._run, self._where, self.results = frame, run, where, frame.results

    def __call__(self, *data: Datum) -> list[Datum]:
        if len(data) != len(self._frame.formals):
            raise ModelError(f"{self._where} gives its inner graph {len(data)} inputs, and that has {len(self._frame.formals)}; "
                             f"export the model again")
        return self._run(self._frame, data)


def run_hosted(step: Step, data: Mapping[str, Datum], run: RunBody) -> dict[str, Datum]:
    """What a step makes, by name.

    Raises:
        TileflowError: a sentence that names the node.
    """
    node = step.node
    form = hosted_form(node.op_type, node.domain)
    assert form is not None
    try:
        with np.errstate(all="ignore"):
            found = form.function(_attributes(step, run), *[data[name] if name else None for name in node.input])
    except TileflowError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, AttributeError, np.exceptions.AxisError) as error:
        raise ShapeError(f"{title(node)} cannot be computed from what it is given ({one_line(error, SHOWN)}).") from None
    if len(found) < len(node.output):
        raise UnsupportedError(f"{title(node)} has {len(node.output)} outputs, and tileflow computes {len(found)}.")
    return {name: array for name, array in zip(node.output, found, strict=False) if name}


def _attributes(step: Step, run: RunBody) -> Attributes:
    node = step.node
    opset = step.opset.get("" if node.domain == "ai.onnx" else node.domain, 0)
    if step.attributes is None:
        schema = schema_of(node, opset)
        step.attributes = {name: python_value(a.default_value)
                           for name, a in (schema.attributes if schema is not None else {}).items()
                           if a.default_value.name}
        step.attributes |= {a.name: python_value(a) for a in node.attribute}
    values = {name: Body(step.body(name), run, title(node)) if isinstance(value, GraphProto) else value
              for name, value in step.attributes.items()}
    return Attributes(values, title(node), opset, list(node.output))
