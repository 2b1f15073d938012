"""Split a step into the graphs of a Program: prologue (weights only), micro-step, fold (in global order)."""
from __future__ import annotations

from collections.abc import Container

from ..graph import Builder, Graph, Node, State, Value, needed_for


def hoist(graph: Graph, links: dict[Value, Value], written: Container[str] = ()) -> Graph:
    """Move what depends only on constants and on states that nobody writes meanwhile into a prologue; returns it.

    Results of the step stay in it.

    `links` gains, for each value the step still reads, its new input -> the prologue's value. written: names of states that other graphs write for
    each micro-batch.
    """
    prologue = Graph("prologue")
    fixed = {v for v in graph.constants}
    fixed |= {s.input for s in graph.states if s.output is None and s.kind != "scalar" and s.name not in written}
    results = set(graph.results())
    stay: list[Node] = []
    for node in graph.nodes:
        if node.operands and all(v in fixed for v in node.operands) and not node.op.random and results.isdisjoint(node.outputs):
            prologue.nodes.append(node)
            fixed.update(node.outputs)
        else:
            stay.append(node)
    graph.nodes = stay
    if not prologue.nodes:
        return prologue
    needed = {v for node in stay for v in node.operands}
    prologue.outputs = [v for node in prologue.nodes for v in node.outputs if v in needed]
    graph.replace({v: _link(v, graph, links) for v in prologue.outputs})
    _share_leaves(graph, prologue)
    return prologue


def split_fold(graph: Graph, links: dict[Value, Value]) -> Graph:
    """Move the chains that update per-micro-batch states out of the step into a fold graph, but for what the step's outputs need; returns it.

    A step that reads such a state sees what the fold made of it for the micro-batch before, so these follow one another (`Program.ordered`).
    """
    fold = Graph("fold")
    for state in graph.states:
        if state.output is state.input:
            state.output = None
    states = [s for s in graph.states if _is_folded(s)]
    if not states:
        return fold
    old = {s.input for s in states}
    seen = {s.name: _shown(s.output) for s in states if s.output is not None}
    exchanged = [s.output for s in states if s.output is not None and seen[s.name] in old and seen[s.name] is not s.input]
    here, _ = needed_for([*graph.outputs, *exchanged], graph.nodes)                # what exchanges values is read before the fold writes any
    dependent, stay, needed = set(old), list[Node](), set(here)
    for node in graph.nodes:
        if node not in needed and any(v in dependent for v in node.operands):
            dependent.update(node.outputs)
            fold.nodes.append(node)
        else:
            stay.append(node)
    graph.nodes = stay
    made = {v for node in stay for v in node.outputs} | set(graph.inputs) | set(exchanged)
    read = dict.fromkeys([v for node in fold.nodes for v in node.operands] + [s.output for s in states if s.output])
    b = Builder(graph)
    carried = {v: v if v.producer is not None else b.Identity(v) for v in read if v in made}       # an input's memory is the caller's
    operands = {v for node in graph.nodes for v in node.operands}
    graph.states = [s.read_only() if _is_folded(s) else s for s in graph.states if not _is_folded(s) or s.input in operands]
    fold.states = states
    fold.replace({v: _link(c, fold, links) for v, c in carried.items()})
    _share_leaves(graph, fold)
    own, b = {v for node in fold.nodes for v in node.outputs}, Builder(fold)
    for state in states:                                                       # a node for each, by which cutting finds its place
        if state.output is not None and state.output not in own:
            state.output = b.Identity(state.output)
    return fold


def _shown(value: Value) -> Value:
    """The value whose elements a view has; any other itself."""
    while value.producer is not None and value.producer.op.alias is not None:
        viewed = value.producer.inputs[value.producer.op.alias]
        assert viewed is not None
        value = viewed
    return value


def _is_folded(state: State) -> bool:
    return state.when == "micro" and state.output is not None


def _link(value: Value, reader: Graph, links: dict[Value, Value]) -> Value:
    crossing = Value(value.name, value.type)
    reader.inputs.append(crossing)
    links[crossing] = value
    return crossing


def _share_leaves(source: Graph, target: Graph) -> None:
    """Give `target` its own constants and (read-only) states for the leaves of `source` that its nodes read.

    Values of constants and states may be shared between graphs: the memory behind them is found by identity or by name.
    """
    read = {v for node in target.nodes for v in node.operands} | set(target.results())
    own = {s.input for s in target.states}
    target.constants.update({v: a for v, a in source.constants.items() if v in read})
    target.states += [s.read_only() for s in source.states if s.input in read and s.input not in own]
