"""Replicated tensor sharding: of R replicas each keeps a share of optimizer state, and of weights where that is asked for, and updates that share.

A tensor of N elements is cut, in the order of its elements, into R shares of ceil(N / R), the last one padded with zeros (PopART). Gradients then
need not be summed everywhere: each replica gets the sum of its share (reduce-scatter). New weights are put together again (all-gather) after the
update, or, where the weights are shared out too, before each pass that uses them.

The update is rewritten on the shares' types, so that memory, places and cycles follow as for any program. An update whose operators do not go
through with shares, or whose state the micro-batches change (a combined velocity), stays whole.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ...graph import Graph, Node, Op, State, TensorType, Value
from ...graph.op import Types
from ...graph.work import Axis, Map, Operand, Work
from ...program.program import Program
from ...system.errors import TileflowError

SHARDED_FROM = 8192
"""Elements from which on a tensor is shared out where nothing else is said (PopART, `minElementsForReplicatedTensorSharding`)."""
SUFFIX = ".shard"
"""Of the name of a weight's share."""


@dataclass(frozen=True)
class ShareMove(Op):
    """From a tensor to a replica's share of it, or back. Which elements travel, and what that takes, is a collective's."""

    name: ClassVar[str] = "Piece"
    shape: tuple[int, ...]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        (x,) = types
        assert x is not None
        return TensorType(x.dtype, self.shape),

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        """Nothing on the tiles."""
        return Map((Axis("none", 0),), tuple(None if t is None else Operand((None,) * len(t.shape), t.dtype) for t in inputs),
                   tuple(Operand((None,) * len(t.shape), t.dtype) for t in outputs))


@dataclass(frozen=True)
class Shares:
    """What is shared out.

    elements: of the share of each weight, by its name. weights: whether weights are kept as shares, too; else their optimizer state only.
    alike: the values of each weight's update that are given to it as shares; they lie on the tiles alike.
    norms: sums over shares, which replicas add up.
    """

    replicas: int = 1
    elements: Mapping[str, int] = field(default_factory=dict)
    weights: frozenset[str] = frozenset()
    alike: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    norms: int = 0

    def padded(self, name: str) -> int:
        """Elements of all shares of a weight together."""
        return self.elements[name] * self.replicas


def share(elements: int, replicas: int) -> int:
    """Elements of each share: ceil(N / R)."""
    return -(-elements // replicas)


def shared_out(program: Program, replicas: int, least: int, of_weights: int | None) -> tuple[Program, Shares]:
    """The program as one of several replicas runs it.

    Args:
        least: elements of a weight from which on its optimizer state is shared out.
        of_weights: elements from which on the weights are, too; None: they are whole.
    """
    graph = program.parts.get("update")
    if graph is None or replicas < 2:
        return program, Shares(replicas)
    elsewhere = {name for part, other in program.parts.items() if part != "update" for s in other.states for name in (s.name, s.start)}
    states: dict[str, list[State]] = {}
    for s in graph.states:
        if s.kind == "optimizer" and s.owner:
            states.setdefault(s.owner, []).append(s)
    chosen = {s.name: s for s in graph.states if s.kind == "parameter" and s.output is not None and s.input.shape and s.input.type.size >= least
              and not any(m.name in elsewhere for m in states.get(s.name, []))}
    while chosen:
        made = _Rewritten(graph, chosen, states, replicas, of_weights)
        unfit = made.run()
        if not unfit:
            shares = Shares(replicas, made.elements, frozenset(made.renamed), made.given, made.norms)
            return program.with_parts({"update": made.graph()}), shares
        chosen = {name: s for name, s in chosen.items() if name not in unfit}
    return program, Shares(replicas)


class _Rewritten:
    """An update on shares."""

    def __init__(self, graph: Graph, chosen: Mapping[str, State], states: Mapping[str, list[State]], replicas: int, of_weights: int | None) -> None:
        self.old, self.chosen = graph, chosen
        self.elements = {name: share(s.input.type.size, replicas) for name, s in chosen.items()}
        self.renamed = {name for name, s in chosen.items() if of_weights is not None and s.input.type.size >= of_weights}
        self.given: dict[str, list[Value]] = {name: [] for name in chosen}
        self.norms = 0
        self.new: dict[Value, Value] = {}
        """Values of the old graph as they are now; shares of tensors among them."""
        self.owner: dict[Value, str] = {}
        """Whose share a new value is."""
        self.whole: dict[Value, str] = {}
        """Values of the old graph that are there as a whole, and of which shares are taken: gradients, weights."""
        for name, s in chosen.items():
            (self._given if name in self.renamed else self._taken)(s.input, name)
            for moment in states.get(name, []):
                if moment.input.shape == s.input.shape:
                    self._given(moment.input, name)
        for s in graph.states:
            if s.kind == "accumulator" and s.owner in chosen and s.input.shape == chosen[s.owner].input.shape:
                self._taken(s.input, s.owner)
        inputs = {*graph.inputs}
        for node in graph.nodes:
            for name in [n for n in node.origin.sources if n in chosen][:1]:
                for v in node.operands:
                    if v in inputs and v not in self.whole and v.shape == chosen[name].input.shape:
                        self._taken(v, name)
        self.nodes: list[Node] = []

    def _shape(self, name: str) -> tuple[int, ...]:
        return (*(1,) * (len(self.chosen[name].input.shape) - 1), self.elements[name])

    def _given(self, value: Value, name: str) -> None:
        """A state of which only the share is there."""
        self._as(value, Value(value.name, TensorType(value.dtype, self._shape(name))), name)
        self.given[name].append(self.new[value])

    def _taken(self, value: Value, name: str) -> None:
        self.whole[value] = name

    def _as(self, value: Value, made: Value, name: str) -> None:
        self.new[value], self.owner[made] = made, name

    def run(self) -> set[str]:
        """Rewrite all nodes; gives the weights whose update cannot be."""
        for node in self.old.nodes:
            mixed = {self.whole[v] for v in node.operands if v in self.whole} | {
                self.owner[self.new[v]] for v in node.operands if v in self.new and self.new[v] in self.owner}
            if not mixed and not any(v in self.new for v in node.operands):
                self.nodes.append(node)
                continue
            for v in node.operands:
                if v in self.whole and v not in self.new:
                    self._piece(v, node)
            inputs = [None if v is None else self.new.get(v, v) for v in node.inputs]
            try:
                types = node.op.infer(*[None if v is None else v.type for v in inputs])
            except TileflowError:
                return mixed
            made = Node(node.op, inputs, [], node.origin)
            for v, t in zip(node.outputs, types, strict=True):
                fresh = Value(v.name, t, made)
                made.outputs.append(fresh)
                name = next(iter(mixed)) if len(mixed) == 1 else None
                if name is not None and v.shape == self.chosen[name].input.shape and t.size == self.elements[name]:
                    self._as(v, fresh, name)
                elif t == v.type:
                    self.new[v] = fresh
                    self.norms += bool(mixed)
                else:
                    return mixed or set(self.chosen)
            made.set_inferred()
            self.nodes.append(made)
        return {name for name in self.chosen if self._result(name) not in self.owner}

    def _piece(self, value: Value, node: Node) -> None:
        name = self.whole[value]
        made = Node(ShareMove(self._shape(name)), [value], [], replace(node.origin, sources=(name,)))
        made.outputs.append(Value(f"{value.name}{SUFFIX}", TensorType(value.dtype, self._shape(name)), made))
        made.set_inferred()
        self._as(value, made.outputs[0], name)
        self.given[name].append(made.outputs[0])
        self.nodes.append(made)

    def _result(self, name: str) -> Value:
        """A weight's new value, as it is now."""
        output = self.chosen[name].output
        assert output is not None
        return self.new.get(output, output)

    def graph(self) -> Graph:
        """The new update."""
        states = [self._state(s) for s in self.old.states]
        outputs = [self.new.get(v, v) for v in self.old.outputs]
        return Graph(self.old.name, list(self.old.inputs), outputs, self.nodes, dict(self.old.constants), states)

    def _state(self, state: State) -> State:
        output = None if state.output is None else self.new.get(state.output, state.output)
        if state.name not in self.chosen:
            return replace(state, input=state.input if state.input in self.whole else self.new.get(state.input, state.input), output=output)
        if state.name in self.renamed:
            return replace(state, name=f"{state.name}{SUFFIX}", owner=state.name, input=self.new[state.input], output=output)
        result = self._result(state.name)
        assert result.producer is not None
        whole = Node(ShareMove(state.input.shape), [result], [], replace(result.producer.origin, sources=(state.name,)))
        whole.outputs.append(Value(f"{state.name}.new", TensorType(result.dtype, state.input.shape), whole))
        whole.set_inferred()
        self.nodes.insert(self.nodes.index(result.producer) + 1, whole)
        return replace(state, output=whole.outputs[0])

