"""verify(): what every pass must leave intact. A failure is our bug, so it is an assertion, not a user's error."""
from __future__ import annotations

from ..memory.types import type_of
from .graph import Graph


def verify(graph: Graph, lowered: bool = False) -> Graph:
    """Check single assignment, order, types, names and origins; returns the graph.

    lowered: the graph comes from a pass after the fork of the street. Such graphs share values with the one they were made of, which still is
    what their `producer` says, and only names by which memory is found (inputs, outputs, states) must differ.
    """
    known = set(graph.inputs) | set(graph.constants) | {s.input for s in graph.states}
    names = [v.name for v in known if not (lowered and v in graph.constants)]
    for value, array in graph.constants.items():
        assert value.type == type_of(array), f"{value!r} holds {array.dtype}{array.shape}"
    for node in graph.nodes:
        for v in node.operands:
            assert v in known, f"{graph.name}: {node!r} reads %{v.name} before it is made"
        if not node.is_inferred():                        # once for each operator over these types: the passes leave most nodes as they were
            inferred = node.op.infer(*[None if v is None else v.type for v in node.inputs])
            assert inferred == tuple(v.type for v in node.outputs), f"{graph.name}: {node!r} should be {inferred}"
            for region in node.op.regions:
                assert not region.graph.states, f"{graph.name}: {node!r} has a region with states"
                verify(region.graph, lowered)
            node.set_inferred()
        for v in node.outputs:
            assert v not in known, f"{graph.name}: {v!r} is assigned twice"
            assert lowered or v.producer is node, f"{graph.name}: {v!r} has another producer"
            known.add(v)
            if not lowered:
                names.append(v.name)
    for v in graph.results():
        assert v in known, f"{graph.name}: result %{v.name} is never made"
    for state in graph.states:
        if state.output is not None and state.when == "update":
            assert state.output.type == state.input.type, f"{graph.name}: state {state.name} changes its type"
    assert len(names) == len(set(names)), f"{graph.name}: value names repeat: {sorted(n for n in set(names) if names.count(n) > 1)}"
    assert len({s.name for s in graph.states}) == len(graph.states), f"{graph.name}: state names repeat"
    return graph
