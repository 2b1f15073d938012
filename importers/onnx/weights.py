"""Which tensors of a file become states, and of which kind."""
from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

import numpy as np
from onnx import GraphProto

from tileflow.errors import OptionError
from tileflow.graph import FLOATS, State, Value

from .load import OnnxModel
from .tensors import DTYPES

LISTED = 10
"""Weights that a message names."""


class Weights:
    """The rule: floating initializers are parameters, except running statistics (buffers) and 0-d scalars (constants).

    `freeze` and `trainable` are name patterns: a frozen parameter is not trained; what `trainable` names is trained in any case, scalars
    and Constant nodes included.
    """

    def __init__(self, model: OnnxModel, freeze: Sequence[str] = (), trainable: Sequence[str] = ()) -> None:
        self.model, self.freeze, self.trainable = model, tuple(freeze), tuple(trainable)
        self.arrays: dict[str, np.ndarray] = {}
        """The elements of every state made so far, by name."""
        self._statistics = running_statistics(model.proto.graph)

    def __contains__(self, name: str) -> bool:
        """The tensor `name` of the file becomes a state where it is read as a value."""
        tensor = self.model.tensors.get(name)
        if tensor is None or DTYPES.get(tensor.data_type) not in FLOATS:
            return False
        by_rule = name in self.model.initializers and (bool(tensor.dims) or name in self._statistics)
        return by_rule or matches(name, self.trainable)

    def state(self, name: str, value: Value, array: np.ndarray) -> State:
        """The state for the tensor `name`, read through `value`, holding `array` at first."""
        self.arrays[name] = array
        buffer = name in self._statistics
        trainable = not buffer and (matches(name, self.trainable) or not matches(name, self.freeze))
        return State(name, "buffer" if buffer else "parameter", value, trainable=trainable)

    def check_patterns(self) -> None:
        """Raise OptionError for a pattern that matches no weight."""
        for pattern in (*self.freeze, *self.trainable):
            if not any(matches(name, (pattern,)) for name in self.arrays):
                names = [n for n in self.model.tensors if n in self.arrays and n not in self._statistics]
                raise OptionError(f"the pattern '{pattern}' matches no weight; the weights are {', '.join(names[:LISTED]) or 'none'}"
                                  + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "") + ".")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """One of the patterns fits the name."""
    return any(fnmatch.fnmatchcase(name, p) for p in patterns)


def running_statistics(graph: GraphProto) -> set[str]:
    """The tensors that BatchNormalization reads as running mean and variance, also through Identity."""
    same = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Identity" and node.input and node.output}
    found = set()
    for node in graph.node:
        if node.op_type == "BatchNormalization":
            for name in node.input[3:5]:
                while name in same:
                    name = same[name]
                found.add(name)
    return found
