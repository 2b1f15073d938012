"""Split a step into the graphs of a Program: prologue (weights only), micro-step, fold (in global order)."""
from __future__ import annotations

from ..errors import UnsupportedError
from ..graph import Builder, Graph, Node, State, Value


def hoist(graph: Graph, links: dict[Value, Value]) -> Graph:
    """Move what depends only on constants and on states that the step does not change into a prologue; returns it.

    Results of the step stay in it.

    `links` gains, for each value the step still reads, its new input -> the prologue's value.
    """
    prologue = Graph("prologue")
    fixed = {v for v in graph.constants} | {s.input for s in graph.states if s.output is None and s.kind != "scalar"}
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
    """Move the chains that update per-micro-batch states out of the step into a fold graph; returns it.

    Raises:
        UnsupportedError: such a chain also feeds the step's outputs, so micro-batches could not run side by side.
    """
    fold = Graph("fold")
    states = [s for s in graph.states if _is_folded(s)]
    if not states:
        return fold
    dependent = {s.input for s in states}
    stay: list[Node] = []
    for node in graph.nodes:
        if any(v in dependent for v in node.operands):
            dependent.update(node.outputs)
            fold.nodes.append(node)
        else:
            stay.append(node)
    leaking = [v for v in graph.outputs if v in dependent]
    if leaking:
        raise UnsupportedError(f"Output {leaking[0].name!r} reads a running statistic that the same step updates; read it after the step.")
    graph.nodes = stay
    graph.states = [s for s in graph.states if not _is_folded(s)]
    fold.states = states
    made = {v for node in stay for v in node.outputs} | set(graph.inputs)
    read = dict.fromkeys([v for node in fold.nodes for v in node.operands] + [s.output for s in states if s.output])
    b = Builder(graph)
    carried = {v: v if v.producer is not None else b.Identity(v) for v in read if v in made}       # an input's memory is the caller's
    fold.replace({v: _link(c, fold, links) for v, c in carried.items()})
    _share_leaves(graph, fold)
    return fold


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
