"""The builder: the only place where nodes are made, so that types are inferred and origins kept."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..memory.types import TensorType, type_of
from ..system.errors import TileflowError
from .graph import Graph, Node, Origin, Value
from .hints import NOTHING, Hints
from .op import OPS, Op

if TYPE_CHECKING:
    from .calls import Calls  # made from the registry, for type checkers only
else:
    Calls = object


class Builder(Calls):
    """Appends nodes to a graph. `b.Add(x, y)` applies the operator registered as "Add"; attributes are keywords.

    The result is one Value, or a tuple where the operator has several outputs.
    """

    def __init__(self, graph: Graph, origin: Origin | None = None) -> None:
        self.graph, self.origin = graph, origin or Origin()
        self.begun = NOTHING
        self._next = 0
        self._names: set[str] = set()
        self.collect()

    def collect(self) -> None:
        """Know the names in the graph, those that somebody else gave since among them."""
        graph = self.graph
        self._names |= {v.name for v in graph.inputs} | {v.name for n in graph.nodes for v in n.outputs}
        self._names |= {v.name for v in graph.constants} | {s.input.name for s in graph.states}

    @contextmanager
    def at(self, origin: Origin) -> Iterator[None]:
        """Nodes made within the block carry `origin`."""
        before, self.origin = self.origin, origin
        try:
            yield
        finally:
            self.origin = before

    def scope(self, hints: Hints = NOTHING, source: str | None = None) -> AbstractContextManager[None]:
        """Nodes made within the block are asked these hints, and those of the scopes around it where these ask nothing.

            with b.scope(Hints(partials="float16"), "encoder.fc"):
                y = b.MatMul(x, w)

        Args:
            source: the layer, or the node of a file, that they stand for; by default that of the scope around it.
        """
        origin = self.origin.asking(hints)
        return self.at(origin if source is None else replace(origin, sources=(source,)))

    def begin(self, hints: Hints) -> Hints:
        """Nodes made from here on, whatever their scope, are asked these hints before others, until the next `begin`;
        returns what ends here."""
        ended, self.begun = self.begun, hints
        return ended

    def name(self, stem: str) -> str:
        """A name that no value of the graph has yet."""
        name = stem
        while name in self._names:
            self._next += 1
            name = f"{stem}.{self._next}"
        self._names.add(name)
        return name

    def input(self, name: str, type: TensorType) -> Value:
        """A new graph input."""
        value = Value(self.name(name), type)
        self.graph.inputs.append(value)
        return value

    def constant(self, array: Any, name: str = "const") -> Value:
        """A constant of the graph."""
        array = np.asarray(array)
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array).reshape(array.shape)
        value = Value(self.name(name), type_of(array))
        self.graph.constants[value] = array
        return value

    def scalar(self, number: float, like: Value) -> Value:
        """A 0-d constant of `like`'s element type."""
        return self.constant(np.array(number, like.type.numpy))

    def cast(self, value: Value, dtype: str) -> Value:
        """The value as that element type: itself where it has it."""
        return value if value.dtype == dtype else self.Cast(value, to=dtype)

    def widened(self, value: Value) -> Value:
        """16-bit floats in float32, and others as they are."""
        return self.cast(value, "float32") if value.type.is_half else value

    def emit(self, op: Op, *inputs: Value | None, names: tuple[str, ...] = ()) -> tuple[Value, ...]:
        """Append `op(inputs)`; all outputs, called `names` or after the operator."""
        try:
            types = op.infer(*[None if v is None else v.type for v in inputs])
        except TileflowError as error:
            what = f"{op.name} ({self.origin})" if self.origin.sources else op.name
            raise type(error)(f"{what}: {error}") from None
        node = Node(op, list(inputs), [], self.origin if self.begun is NOTHING else self.origin.asking(self.begun))
        for i, t in enumerate(types):
            stem = names[i] if i < len(names) and names[i] else op.name.lower()
            node.outputs.append(Value(self.name(stem), t, node))
        node.set_inferred()
        self.graph.nodes.append(node)
        return tuple(node.outputs)

    if not TYPE_CHECKING:                   # who checks types knows the operators by name
        def __getattr__(self, name: str) -> Callable[..., Any]:
            if name not in OPS:
                raise AttributeError(f"no operator is called {name}")

            def apply(*inputs: Value | None, **attributes: Any) -> Any:
                outputs = self.emit(OPS[name](**attributes), *inputs)
                return outputs[0] if len(outputs) == 1 else outputs
            return apply
