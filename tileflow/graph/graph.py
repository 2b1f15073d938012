"""The graph: values in single assignment, nodes in execution order, constants, states."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal

import numpy as np

from ..memory.types import TensorType
from ..system.text import one_line
from .hints import NOTHING, Hints
from .op import Op

SHOWN = 300
"""Characters of a name in listings and messages."""
WRITTEN = "written"
"""The role of a buffer that the model's own operators write, other than running statistics."""
PARTIAL = "partial"
"""The role of an accumulator that each replica has for itself, of its own micro-batches in an update."""
Role = Literal["forward", "backward", "update", "recompute"]


@dataclass(frozen=True)
class Origin:
    """Where a node came from: names of the source (ONNX) nodes or layers it stands for, its role in training, what was
    asked of it."""

    sources: tuple[str, ...] = ()
    role: Role = "forward"
    hints: Hints = NOTHING

    def asking(self, hints: Hints) -> Origin:
        """The same, of which these hints are asked as well; they go before its own."""
        return replace(self, hints=hints.over(self.hints))

    def merged(self, *others: Origin) -> Origin:
        """The origin of a node that replaces several."""
        sources = dict.fromkeys(name for origin in (self, *others) for name in origin.sources)
        hints = self.hints.merged([o.hints for o in others], latest=self.role == "forward")
        return Origin(tuple(sources), self.role, hints)

    def __str__(self) -> str:
        return one_line(", ".join(self.sources), SHOWN) or "unnamed"


class Value:
    """One tensor of a graph: a name for people, a type, the node that makes it (None: input, constant or state)."""

    __slots__ = ("name", "producer", "type")

    def __init__(self, name: str, type: TensorType, producer: Node | None = None) -> None:
        self.name, self.type, self.producer = name, type, producer

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def shown(self) -> str:
        """How listings call it."""
        return f"%{one_line(self.name, SHOWN)}"

    def __repr__(self) -> str:
        return f"{self.shown}: {self.type}"


class Node:
    """An operator applied to values."""

    __slots__ = ("_inferred", "inputs", "op", "origin", "outputs")

    def __init__(self, op: Op, inputs: list[Value | None], outputs: list[Value], origin: Origin) -> None:
        self.op, self.inputs, self.outputs, self.origin = op, inputs, outputs, origin
        self._inferred: list[object] = []

    def ask(self, hints: Hints) -> None:
        """Ask these hints of this node; they go before its own."""
        self.origin = self.origin.asking(hints)

    def set_inferred(self) -> None:
        """The types of the outputs are what the operator infers from those of the inputs."""
        self._inferred = self._typing()

    def is_inferred(self) -> bool:
        """Nothing has changed since `set_inferred`."""
        return self._inferred == self._typing()

    def _typing(self) -> list[object]:
        return [self.op, *[None if v is None else v.type for v in self.inputs], None, *[v.type for v in self.outputs]]

    @property
    def operands(self) -> list[Value]:
        """The inputs that are present."""
        return [v for v in self.inputs if v is not None]

    def __repr__(self) -> str:
        left = ", ".join(map(repr, self.outputs))
        return f"{left} = {self.op}({', '.join('-' if v is None else v.shown for v in self.inputs)})"


@dataclass
class State:
    """Memory that outlives a run: read through `input`, replaced by `output` (None: never written by this graph).

    kind:
        parameter  trained by the optimizer         buffer  running statistics and the like
        optimizer  moments, step counters           scalar  a hyper-parameter the host fills before each call
        accumulator  what an update's micro-batches are folded into; when one begins it is zero, or a copy of the state `start`
    when: the output replaces the state after every micro-batch ("micro", folded in global order) or at the update.
    """

    name: str
    kind: Literal["parameter", "buffer", "optimizer", "accumulator", "scalar"]
    input: Value
    output: Value | None = None
    when: Literal["micro", "update"] = "update"
    trainable: bool = True
    group: str = ""
    """States of one group lie side by side in memory, in order, so that equal updates of many weights become one."""
    owner: str = ""
    """Whose it is: the name of a parameter, or "optimizer" for what all share. Empty: its own."""
    role: str = ""
    """What it is to its owner: a moment's or a hyper-parameter's name. WRITTEN: a buffer that the model's own operators
    write. PARTIAL: an accumulator that each replica has for itself, of its own micro-batches."""
    fill: float = 0.0
    """What memory without an initial array starts with. (Accumulators are zero when an update begins, whatever this says.)"""
    start: str = ""
    """Of an accumulator: the state of which it is a copy when an update begins. A call that ends early has not touched that one."""
    called: str = ""
    """Of a parameter: what the network calls it from which its file was exported, where that is another name."""
    aliases: tuple[str, ...] = ()
    """Of a tied parameter: other names that it has there."""

    @property
    def known_as(self) -> str:
        """The name that people know."""
        return self.called or self.name

    def fits(self, pattern: str) -> bool:
        """A name pattern (* and ?) means it, by any of its names."""
        return any(fnmatchcase(name, pattern) for name in (self.name, self.known_as, *self.aliases))

    def read_only(self) -> State:
        """The same for a graph that reads it only."""
        return replace(self, output=None)


@dataclass
class Graph:
    """Values flow from `inputs`, `constants` and states through `nodes` (topological order) to `outputs`."""

    name: str = "graph"
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[Value, np.ndarray] = field(default_factory=dict)
    states: list[State] = field(default_factory=list)
    losses: list[Value] = field(default_factory=list)
    """What losses of the layer API gave while a network was recorded, one number each."""

    def state(self, name: str) -> State:
        """The state called `name` (KeyError where there is none)."""
        for state in self.states:
            if state.name == name:
                return state
        raise KeyError(name)

    @property
    def parameters(self) -> list[State]:
        return [s for s in self.states if s.kind == "parameter"]

    def write_nothing(self) -> None:
        """Let no state be written: whoever runs this sees them as they were before each micro-batch, and leaves them so."""
        for state in self.states:
            state.output = None

    def results(self) -> Iterator[Value]:
        """Everything that must be computed: outputs and new states."""
        yield from self.outputs
        for state in self.states:
            if state.output is not None:
                yield state.output

    def walk(self) -> Iterator[Node]:
        """Every node, in order; those of a node's regions follow it."""
        for node in self.nodes:
            yield node
            for region in node.op.regions:
                yield from region.graph.walk()

    def levels(self) -> Iterator[Graph]:
        """This graph, and those in its nodes, to any depth."""
        yield self
        for node in self.nodes:
            for region in node.op.regions:
                yield from region.graph.levels()

    def with_nodes(self, nodes: Iterable[Node]) -> Graph:
        """A copy with other nodes; all else is shared with this graph."""
        return replace(self, nodes=list(nodes))

    def uses(self) -> dict[Value, int]:
        """How many node inputs and results read each value."""
        count: dict[Value, int] = {}
        for node in self.nodes:
            for v in node.operands:
                count[v] = count.get(v, 0) + 1
        for v in self.results():
            count[v] = count.get(v, 0) + 1
        return count

    def replace(self, new: Mapping[Value, Value]) -> None:
        """Let every reader of a key read what it maps to. An output keeps its public name."""
        for node in self.nodes:
            node.inputs = [v if v is None else new.get(v, v) for v in node.inputs]
        for state in self.states:
            if state.output is not None:
                state.output = new.get(state.output, state.output)
        for old in self.outputs:
            if old in new:
                new[old].name = old.name
        self.outputs = [new.get(v, v) for v in self.outputs]

    def prune(self) -> None:
        """Drop nodes and constants that no result needs."""
        self.nodes, needed = needed_for(self.results(), self.nodes)
        self.constants = {v: a for v, a in self.constants.items() if v in needed}


def needed_for(wanted: Iterable[Value], nodes: Sequence[Node]) -> tuple[list[Node], set[Value]]:
    """Those of the nodes, in their order, on which a wanted value depends; and the values that these read, with the wanted ones."""
    needed, kept = set(wanted), []
    for node in reversed(nodes):
        if any(v in needed for v in node.outputs):
            kept.append(node)
            needed.update(node.operands)
    return kept[::-1], needed
