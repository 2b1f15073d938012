"""Replicas with buffers of their own: each folds its micro-batches' statistics into its own copies."""
from __future__ import annotations

from dataclasses import replace

from ..graph import Graph, Node, State, Value

REPLICA = "replica"
"""The role of a state that is a later replica's copy of its owner's."""


def own_buffers(fold: Graph, links: dict[Value, Value], replica: int) -> Graph:
    """The fold of a later replica: buffers are copies of its own, called `<name>@<replica>`; accumulators are everybody's.

    `links` gains its inputs, which read what those of `fold` read.
    """
    known: dict[Value, Value] = {v: v for v in fold.constants}

    def fresh(value: Value) -> Value:
        if value not in known:
            known[value] = Value(value.name, value.type)
        return known[value]

    made = Graph(f"{fold.name}.{replica}", constants=dict(fold.constants))
    for v in fold.inputs:
        made.inputs.append(fresh(v))
        links[fresh(v)] = links[v]
    for s in fold.states:
        fresh(s.input)
    for node in fold.nodes:
        inputs = [None if v is None else known[v] for v in node.inputs]
        copy = Node(node.op, inputs, [fresh(v) for v in node.outputs], node.origin)
        for v in copy.outputs:
            v.producer = copy
        copy.set_inferred()
        made.nodes.append(copy)
    made.states = [_own(replace(s, input=known[s.input], output=None if s.output is None else known[s.output]), replica) for s in fold.states]
    made.outputs = [known[v] for v in fold.outputs]
    return made


def is_own(state: State) -> bool:
    """A buffer that each replica may have for itself: micro-batches change it."""
    return state.kind == "buffer" and state.output is not None


def _own(state: State, replica: int) -> State:
    if not is_own(state):
        return state
    return replace(state, name=f"{state.name}@{replica}", group=f"{state.group or state.kind}@{replica}", owner=state.name, role=REPLICA)
