"""A whole Program on the tiles: the parts of a call in the order of its schedule."""
from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..graph import Graph, Node, Regional, Value
from ..program.program import Program
from ..program.schedule import Begin, Commit, Fold, Moment, Run, folded, per, unrolled
from ..system.errors import DataError
from ..tiles.plans.plan import OpPlan, Phases, node_name
from .tiles import Tiles, Traffic
from .vertex import Streams

Array = np.ndarray
Watch = Callable[[Node, OpPlan, list[Array | None], tuple[Array, ...], Traffic], None]
"""Called after each operator with its inputs, its outputs and what it did."""


@dataclass
class Result:
    """What a call gives.

    outputs: by name, [micro-batches, *micro-batch shape]. states: by name, after the last update. contributions: what the last
    micro-batch gave beyond its outputs (gradients), by name. arena: the most bytes that any tile's arena held.
    """

    outputs: dict[str, Array]
    states: dict[str, Array]
    contributions: dict[str, Array] = field(default_factory=dict)
    arena: int = 0


def execute(program: Program, plans: Mapping[Node, OpPlan], feeds: Mapping[str, Array], states: Mapping[str, Array],
            tiles: Tiles, *, scalars: Callable[[int], Mapping[str, float]] | None = None, seed: int = 0,
            watch: Watch | None = None, turns: int | None = None) -> Result:
    """Run the first call of a program on the tiles, each operator split as its plan says. Views without a plan move
    nothing.

    Args:
        feeds: the program's inputs by name, [rows of a call, ...].
        states: weights, buffers and optimizer states by name; those that are missing start with what they say (`State.fill`).
        scalars: the optimizer's hyper-parameters at an update index.
        turns: as `schedule.unrolled` takes it; `feeds` may then have the rows of `micro_batches` only.

    Raises:
        TileMemoryError: a part of an operator does not fit a tile.
        DataError: an input is missing or has another shape.
    """
    return _Call(program, plans, tiles, scalars, watch, seed).run(feeds, states, turns)


def micro_batches(program: Program, turns: int | None) -> int:
    """Of a call of so many turns; None: all."""
    if turns is None:
        return program.batching.micro_batches
    return 1 + max(moment.micro_batch for moment in unrolled(program.schedule, turns))


class _Call:
    def __init__(self, program: Program, plans: Mapping[Node, OpPlan], tiles: Tiles, scalars: Callable[[int], Mapping[str, float]] | None,
                 watch: Watch | None, seed: int) -> None:
        self.program, self.plans, self.tiles, self.scalars, self.watch, self.seed = program, plans, tiles, scalars, watch, seed
        self.values: dict[Value, Array] = {}
        self.at: dict[int, dict[Value, Array]] = {}
        """By micro-batch, of those that are under way."""
        self.states: dict[str, Array] = {}
        self.pending: dict[str, Array] = {}
        """Statistics that wait for the Commit."""
        self.arena = 0

    def run(self, feeds: Mapping[str, Array], states: Mapping[str, Array], turns: int | None) -> Result:
        p = self.program
        self.states = {s.name: np.array(states.get(s.name, np.full(s.input.shape, s.fill)), s.input.type.numpy)
                       for s in p.states.values()}
        rows = {v: self._rows(v, feeds, micro_batches(p, turns)) for v in p.inputs}
        often = per("micro-batch", p.schedule)
        outputs: dict[Value, list[Array]] = {v: [] for name in often if name not in folded(p.schedule) for v in p.parts[name].outputs}
        for moment in unrolled(p.schedule, turns):
            step, values = moment.step, self._values(moment, often)
            if isinstance(step, Begin):
                self._begin(moment.update, step.ipu)
            elif isinstance(step, Commit):
                self.states.update({s.name: self.pending[s.name] for s in p.statistics(step.ipu)})
            elif isinstance(step, Fold):
                found = self._graph(p.parts[step.part], {**self.states, **self.pending}, {}, values)
                self.pending.update({s.name: found[s.name] for s in p.statistics(step.ipu) if s.name in found})
                self.states.update({s.name: found[s.name] for s in p.accumulators(step.ipu) if s.name in found})
            else:
                graph = p.parts[step.part]
                self.tiles.streams = Streams(self.seed, moment.micro_batch)
                given = {v: rows[v][moment.micro_batch] for v in graph.inputs if v in rows}
                self.states.update(self._graph(graph, {**self.states, **self.pending}, given, values))
                for v in graph.outputs:
                    if v in outputs:
                        outputs[v].append(values[v])
        own = p.outputs
        return Result({v.name: np.stack(outputs[v]) for v in own}, self.states, {v.name: a[-1] for v, a in outputs.items() if v not in own},
                      self.arena)

    def _rows(self, v: Value, feeds: Mapping[str, Array], least: int) -> Array:
        """An input of the call as [micro-batches, *micro-batch shape]; it has `least` of them, or all."""
        if v.name not in feeds:
            raise DataError(f"The input {v.name} is missing; the program takes {', '.join(i.name for i in self.program.inputs)}.")
        array, count = np.ascontiguousarray(feeds[v.name], v.type.numpy), self.program.batching.micro_batches
        if array.size == least * v.type.size:
            count = least
        elif array.size != count * v.type.size:
            raise DataError(f"The input {v.name} is {list(np.shape(feeds[v.name]))}; a call takes {count} micro-batches of {list(v.shape)}.")
        return array.reshape(count, *v.shape)

    def _begin(self, update: int, ipu: int) -> None:
        """An update begins: its hyper-parameters, empty accumulators, statistics as they were committed."""
        if self.scalars is not None:
            given = self.scalars(update)
            self.states.update({s.name: np.array(given[s.role], np.float64) for s in self.program.states.values() if s.kind == "scalar"})
        self.states.update({s.name: self.states[s.start].copy() if s.start else np.zeros_like(self.states[s.name])
                            for s in self.program.accumulators(ipu)})
        self.pending.update({s.name: self.states[s.name] for s in self.program.statistics(ipu)})

    def _values(self, moment: Moment, often: Sequence[str]) -> MutableMapping[Value, Array]:
        """What a step sees and leaves: values of its micro-batch, and of what runs once. Stages of a pipeline have several micro-batches at once."""
        if not isinstance(moment.step, Run | Fold):
            return self.values
        if moment.step.part not in often:
            return ChainMap(self.values, self.at.get(max(self.at, default=0), {}))
        own = self.at.setdefault(moment.micro_batch, {})
        for gone in [m for m in self.at if m < moment.micro_batch - len(often)]:
            del self.at[gone]
        return ChainMap(own, self.values)

    def _graph(self, graph: Graph, states: Mapping[str, Array], given: Mapping[Value, Array],
               values: MutableMapping[Value, Array]) -> dict[str, Array]:
        """Run a graph; returns its new states by name. Values stay for the graphs that are linked to them."""
        values.update(graph.constants)
        values.update({s.input: states[s.name] for s in graph.states})
        values.update({v: given[v] if v in given else values[self.program.links[v]] for v in graph.inputs})
        self._nodes(graph, values)
        return {s.name: values[s.output] for s in graph.states if s.output is not None}

    def _nodes(self, graph: Graph, values: MutableMapping[Value, Array]) -> None:
        for node in graph.nodes:
            inputs = [None if v is None else values[v] for v in node.inputs]
            values.update(zip(node.outputs, self._node(node, inputs), strict=True))

    def _region(self, graph: Graph, inputs: Sequence[Array]) -> list[Array]:
        """Run a branch, or a body once."""
        values = {**graph.constants, **dict(zip(graph.inputs, inputs, strict=True))}
        self._nodes(graph, values)
        return [np.array(values[v], order="C") for v in graph.outputs]

    def _node(self, node: Node, inputs: list[Array | None]) -> tuple[Array, ...]:
        if isinstance(node.op, Regional):
            return tuple(node.op.interpret(self._region, inputs))
        plan = self.plans.get(node)
        if plan is None:
            assert node.op.alias is not None, f"{node_name(node)} has no plan"
            view = inputs[node.op.alias]
            assert view is not None
            return (view.reshape(node.outputs[0].shape),)
        outputs = self.tiles.run(node.op, plan, inputs)
        self.arena = max(self.arena, self.tiles.traffic.arena)
        if self.watch is not None:
            self.watch(node, plan, inputs, outputs, self.tiles.traffic)
        return outputs


def alone() -> OpPlan:
    """The plan of an operator that one tile computes whole."""
    return OpPlan({}, "none", Phases(), 0)
