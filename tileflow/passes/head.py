"""The last layer of a network, for those who train nothing else."""
from __future__ import annotations

from ..graph import Graph, State, Value
from ..system.errors import OptionError

HEAD = "head"
"""The word that stands for the last layer among name patterns of parameters."""


def last_layer(graph: Graph) -> list[State]:
    """The parameters of the last operator before the first output that has a weight, and those that are read behind it (a bias that is added).

    What an operand is for is what its operator declares (`Op.roles`).

    Raises:
        OptionError: no operator before the output has a parameter as its weight.
    """
    parameters = {s.input: s for s in graph.parameters}
    moved: dict[Value, State] = {}
    for node in graph.nodes:                                     # a weight may be turned or cast before it is read
        operands = node.operands
        if len(operands) == 1 and (state := parameters.get(operands[0]) or moved.get(operands[0])) is not None:
            moved.update(dict.fromkeys(node.outputs, state))
    needed, found = {graph.outputs[0]}, dict[str, State]()
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.outputs):
            continue
        read = [None if v is None else parameters.get(v) or moved.get(v) for v in node.inputs]
        found |= {state.name: state for state in read if state is not None}
        if any(state is not None and role == "weight" for state, role in zip(read, node.op.roles, strict=False)):
            return list(found.values())
        needed.update(node.operands)
    raise OptionError("Option trainable: the word head stands for the last layer with weights, and nothing before the first output has any; name "
                      "parameters.")


def split_head(patterns: tuple[str, ...], names: list[str]) -> tuple[tuple[str, ...], bool]:
    """The patterns without the word `head`, and whether it was among them; a parameter of that very name makes it a pattern."""
    told = HEAD in patterns and HEAD not in names
    return tuple(p for p in patterns if not told or p != HEAD), told
