"""A program cut along its marks: a part for each stage, links for what one hands to another, and the strategy's schedule.

Both consumers cut after they have chosen: the host has its kernels, layouts and rules by then, so cutting changes no bit.
"""
from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

from ..graph import OPS, Graph, Node, Origin, Value
from ..program.program import Caller, Program
from ..program.staging import Staging
from . import phased, pipelined, sharded
from .order import Parts

BUILDERS = {"pipelined": pipelined.build, "sharded": sharded.build, "serial_phased": phased.build, "parallel_phased": phased.build}


def staged(program: Program) -> Program:
    """The program in the stages that it is marked for; one without stages as it is. The given one stays as it is."""
    staging = program.staging
    if staging is None or program.caller is not None:
        return program
    count = staging.places(program.training)
    where = _places(program.micro, count, staging)
    cut = _Cutter(program.links)
    made = {v: at for node, at in where.items() for v in node.outputs}
    sums = program.parts["fold"]
    together = _together(sums, {v: made.get(program.links[v], 0) for v in sums.inputs if v in program.links})
    micro, strategy = program.micro, staging.strategy
    if strategy == "pipelined" and (written := {s.name: together[n] for n in sums.nodes for s in sums.states if s.output in n.outputs}):
        seen = _seen_in_order(micro, where, written)
        micro, strategy = (micro, "sharded") if seen is None else (seen, strategy)
        made.update((v, at) for node, at in where.items() for v in node.outputs)
    steps = cut.graphs(micro, where, {i: f"stage{i}" for i in range(count)})
    folds = cut.graphs(sums, together, {i: f"fold{i}" for i in sorted({*together.values()})})
    names = {int(name.removeprefix("fold")): name for name in folds}
    reads = tuple(frozenset(made[source] for v in graph.inputs if (source := cut.links.get(v)) in made) for graph in steps.values())
    parts = Parts(tuple(steps), tuple(names.get(i) for i in range(count)), tuple(staging.ipu(i) for i in range(count)),
                  phased.numbers(staging, program.training), staging.liveness != "always_live", reads,
                  pipelined.INTERVALS[staging.pipeline_schedule], program.batching.replicas if program.own else 1,
                  program.own_weights)
    begun = made.get(program.loss, count - 1) if program.loss is not None else count
    checked = next((names[i] for i in sorted(names) if i >= begun), "")
    caller = Caller(tuple(program.inputs), tuple(program.outputs), checked)
    others = {name: graph for name, graph in program.parts.items() if name not in ("micro", "fold")}
    order = BUILDERS[strategy](parts, program.batching, program.training)
    return replace(program, parts={**steps, **others, **folds}, schedule=order, links=cut.links, caller=caller)


def _places(graph: Graph, count: int, staging: Staging) -> dict[Node, int]:
    """The place of each node: its mark's, or later, after all that it reads. Nodes without a mark come as early as that allows."""
    found: dict[Value, int] = {}
    where: dict[Node, int] = {}
    for node in graph.nodes:
        stage = node.origin.hints.stage
        own = 0 if stage is None else stage if node.origin.role == "forward" else staging.backward(stage)
        at = max([min(own, count - 1), *(found.get(v, 0) for v in node.operands)])
        where[node] = at
        found.update(dict.fromkeys(node.outputs, at))
    return where


def _seen_in_order(graph: Graph, where: dict[Node, int], written: Mapping[str, int]) -> Graph | None:
    """The step of a pipeline in which each micro-batch sees what the one before wrote into states: they are read in the place at whose end they are
    written, and later places are handed a copy. None where an earlier place reads one: then micro-batches follow one another.

    Args:
        where: the place of each node, which gains those of new ones.
        written: the place at whose end each state is written, by name.
    """
    copies: list[Node] = []
    handed: dict[Value, tuple[Value, int]] = {}
    for state in graph.states:
        read = [where[node] for node in graph.nodes if state.input in node.operands] if state.name in written else []
        if read and min(read) < written[state.name]:
            return None
        if read and max(read) > written[state.name]:
            copy = Value(f"{state.name}.seen", state.input.type)
            copies.append(Node(OPS["Identity"](), [state.input], [copy], Origin((state.name,))))
            where[copies[-1]] = written[state.name]
            handed[state.input] = copy, written[state.name]
    if not copies:
        return graph
    nodes = list(copies)
    for node in graph.nodes:
        at = where[node]
        inputs = [handed[v][0] if v in handed and at > handed[v][1] else v for v in node.inputs]
        nodes.append(node if inputs == node.inputs else Node(node.op, inputs, node.outputs, node.origin))
        where[nodes[-1]] = at
    return graph.with_nodes(nodes)


def _together(graph: Graph, arriving: Mapping[Value, int]) -> dict[Node, int]:
    """The place of each node of the fold: after the last of what it, and all that shares a sum with it, is given. A sum and what reads it stay
    together, as folds of one micro-batch may be far apart in time."""
    root: dict[Hashable, Hashable] = {}

    def find(item: Hashable) -> Hashable:
        while root.setdefault(item, item) != item:
            root[item] = item = root[root[item]]
        return item
    written = {s.input for s in graph.states if s.output is not None}
    inner = written | {v for node in graph.nodes for v in node.outputs}
    for state in graph.states:
        if state.output is not None:
            root[find(state.output)] = find(state.input)
    for node in graph.nodes:
        for v in (*node.operands, *node.outputs):
            if v in inner:
                root[find(v)] = find(node)
    latest: dict[Hashable, int] = {}
    for node in graph.nodes:
        group = find(node)
        latest[group] = max([latest.get(group, 0), *(arriving.get(v, 0) for v in node.operands)])
    return {node: latest[find(node)] for node in graph.nodes}


class _Cutter:
    """Graphs in pieces. `links` are those of the whole program, and what pieces hand to one another."""

    def __init__(self, links: Mapping[Value, Value]) -> None:
        self.links = dict(links)

    def graphs(self, graph: Graph, where: Mapping[Node, int], names: Mapping[int, str]) -> dict[str, Graph]:
        """The pieces of a graph by name, in order. Values keep their identity in the piece that makes them; what is made nowhere is the first's."""
        made = {v: at for node, at in where.items() for v in node.outputs}
        first = next(iter(names), 0)
        return {name: self._piece(graph, name, at, where, made, first) for at, name in names.items()}

    def _piece(self, graph: Graph, name: str, at: int, where: Mapping[Node, int], made: Mapping[Value, int], first: int) -> Graph:
        nodes = [n for n in graph.nodes if where[n] == at]
        outputs = [v for v in graph.outputs if made.get(v, first) == at]
        written = [s for s in graph.states if s.output is not None and made.get(s.output, first) == at]
        results = [*outputs, *(s.output for s in written if s.output is not None)]
        read = dict.fromkeys([v for node in nodes for v in node.operands] + results)
        entering = {v: Value(v.name, v.type) for v in read if made.get(v, at) != at}
        self.links.update({inner: outer for outer, inner in entering.items()})
        copies = []
        for node in nodes:
            inputs = [None if v is None else entering.get(v, v) for v in node.inputs]
            copies.append(node if inputs == node.inputs else Node(node.op, inputs, node.outputs, node.origin))
        inside = {id(s) for s in written}
        states = [s if id(s) in inside else s.read_only() for s in graph.states if id(s) in inside or s.input in read]
        return Graph(name, [*(v for v in graph.inputs if v in read), *entering.values()], outputs, copies,
                     {v: a for v, a in graph.constants.items() if v in read}, states)
