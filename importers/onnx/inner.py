"""Names within a branch or the body of a loop that becomes a region: its own, and those of the graph around it, which it captures."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
from onnx import GraphProto, NodeProto

from tileflow.graph import Builder, Graph, TensorType, Value
from tileflow.system.errors import UnsupportedError

from .scope import Scope

Results = Sequence["Value | np.ndarray | None"]


class Walker(Protocol):
    """What walks over nodes: the importer, as a node with graphs of its own sees it."""

    def opened(self) -> Inner:
        """A new region within the graph at hand."""

    def around(self, scope: Inner) -> AbstractContextManager[None]:
        """Nodes made within the block are the region's."""

    def fill(self, scope: Inner, graph: GraphProto, opset: Mapping[str, int]) -> Inner:
        """Import a branch or a body into a region."""

    def walk(self, graph: GraphProto, opset: Mapping[str, int]) -> None:
        """Import an inner graph into the scope at hand; its initializers are constants."""

    def depends(self, node: NodeProto, names: Iterable[str]) -> None:
        """A node depends on more than its operands: on what its regions read, on what stands in its place."""


Control = Callable[[Walker], Results]
"""A node with graphs of its own, waiting for what walks over these."""
LARGE = 1 << 10
"""Elements from which a constant is captured, so that it lies in memory once."""


class Inner(Scope):
    """A scope whose graph is that of a region. What is known outside is known here; what is computed there becomes an input of the region.

    captured: values of the graph around -> inputs of the region. read: names of the graph around that were looked up.
    """

    def __init__(self, outer: Scope) -> None:
        self.outer, self.model, self.binding, self.training = outer, outer.model, outer.binding, outer.training
        self._float, self._stored, self.first = outer._float, outer._stored, None
        self.graph = Graph("region")
        self.builder = Builder(self.graph)
        self.warnings, self.weights, self.absent = outer.warnings, outer.weights, outer.absent
        self.sequences = {}
        self.folded_bytes, self.depth = outer.folded_bytes, outer.depth
        self._values, self._known, self._sparse = {}, {}, {}
        self.inputs, self.awaited = {}, set()
        self.captured: dict[Value, Value] = {}
        self.read: set[str] = set()

    def leave(self) -> None:
        """What was spent here counts for the whole model."""
        self.outer.folded_bytes = self.folded_bytes

    def given(self, name: str, type: TensorType) -> Value:
        """A new input of the region, called `name` here."""
        self._check_type(f"the input '{name}' of a region", type)
        value = self.builder.input(name or "given", type)
        if name:
            self._values[name] = value
        return value

    def same(self, name: str, outside: str) -> None:
        """`name` is what the graph around calls `outside`."""
        known = self.outer.known(outside)
        if known is not None:
            self._known[name] = known
        else:
            self._values[name] = self.value(outside)
            self.read.add(name)

    def capture(self, value: Value) -> Value:
        """A value of the graph around as one of the region."""
        if value not in self.captured:
            self.captured[value] = self.builder.input(value.name, value.type)
        return self.captured[value]

    def value(self, name: str) -> Value:
        if name not in self._values:
            known = self.known(name)
            own = name in self._known
            if known is not None and (own or known.size <= LARGE):
                self._values[name] = self.builder.constant(known, name)
            else:
                self.read.add(name)
                self._values[name] = self.capture(self.outer.value(name))
        return self._values[name]

    def type(self, name: str) -> TensorType:
        if name in self._values:
            return self._values[name].type
        return super().type(name) if name in self._known else self.outer.type(name)

    def known(self, name: str) -> np.ndarray | None:
        if name in self._known:
            return self._known[name]
        return None if self._is_own(name) else self.outer.known(name)

    def static(self, name: str) -> np.ndarray | None:
        return self._known.get(name) if name in self._known or self._is_own(name) else self.outer.static(name)

    def _is_own(self, name: str) -> bool:
        """Made here, or given: not by the graph around."""
        return name in self._values and name not in self.read

    def whole(self, name: str) -> Value:
        return self.value(name) if self._is_own(name) else self.capture(self.outer.whole(name))

    def update(self, name: str, new: Value) -> None:
        if self.training:
            raise UnsupportedError("it would update running statistics in a branch or a loop; import it for inference, or take it out of there")

    def next_stream(self) -> int:
        return self.outer.next_stream()

    def results(self, names: Sequence[str]) -> list[Value]:
        """The values that the region gives."""
        return [self.value(name) for name in names]
