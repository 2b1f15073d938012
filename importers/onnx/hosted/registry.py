"""Which operators Python runs, and how: a function each, over NumPy arrays (texts are arrays of objects), lists (sequences) and None.

    @hosted("NonZero")
    def nonzero(attrs: Attributes, x: np.ndarray) -> list[Datum]:
        return [np.array(np.nonzero(x), np.int64)]

A function gets the node's operands in order (None where one is left out or is an empty optional) and returns the outputs in order. It raises
TileflowError with a sentence, or ValueError, TypeError and IndexError, from which its caller makes one. It counts sizes before it takes memory.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from tileflow.graph import CODES
from tileflow.graph.op import plain_domain

Datum = Any
"""What a name stands for while a model runs in pieces: an array, a list of such data (a sequence) or None (an empty optional)."""
Function = Callable[..., list[Datum]]


class Attributes(dict[str, Any]):
    """A node's attributes by name, the schema's defaults included.

    title: how messages call the node. opset: of its domain. outputs: names, '' where one is not wanted. dtypes: names of element types by
    attribute, for those that hold ONNX's number of one ('to', 'dtype').
    """

    def __init__(self, values: dict[str, Any], title: str, opset: int, outputs: Sequence[str]) -> None:
        super().__init__(values)
        self.title, self.opset, self.outputs = title, opset, tuple(outputs)


@dataclass(frozen=True)
class PythonHandler:
    """How Python runs an operator. `others`: only where an operand is no tensor of numbers; of numbers the engine has the operator."""

    function: Function
    others: bool


_HOSTED: dict[tuple[str, str], PythonHandler] = {}


def hosted(*names: str, domain: str = "", others: bool = False) -> Callable[[Function], Function]:
    """Register a function for the operators `names`; `others`: see `PythonHandler`."""
    def register(function: Function) -> Function:
        for name in names:
            _HOSTED[domain, name] = PythonHandler(function, others)
        return function
    return register


def hosted_form(op_type: str, domain: str = "") -> PythonHandler | None:
    """How Python runs an operator, or None where it does not."""
    return _HOSTED.get((plain_domain(domain), op_type))


def is_hosted(node: NodeProto) -> bool:
    """Python runs the node, whatever it is given: by its operator, or as it makes texts of numbers."""
    form = hosted_form(node.op_type, node.domain)
    return form is not None and (not form.others or any(a.name == "to" and a.i == TensorProto.STRING for a in node.attribute))


def is_plain(datum: Datum) -> bool:
    """A tensor of numbers or truth values, which compiled code takes."""
    return isinstance(datum, np.ndarray) and _is_number(datum.dtype)


@functools.cache
def _is_number(dtype: np.dtype) -> bool:
    """Whether an element type is one of ours: NumPy takes microseconds to name it, and every step of a loop asks."""
    return dtype.name in CODES
