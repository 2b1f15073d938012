"""How an update writes 16-bit states: by stochastic rounding, or with the bits that a weight lacks kept beside it.

Both rewrite the finished update graph, in which arithmetic is float32 and a state's new value is cast to the state's type at the end.
"""
from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

from ..graph import Builder, Graph, Node, Origin, State, Value
from ..memory.alignment import blocks
from ..system.errors import OptionError

OWN = 1 << 31
"""Streams of rounding have this bit, those of dropout do not."""


def stochastic(update: Graph) -> None:
    """Round every 16-bit state that the update writes at random (`ops.cast.StochasticCast`), but for weights with a remainder.

    An element's random word belongs to its state: the stream is the role, the position that of the owner among all owners, each taking whole
    blocks of elements, as memory has them; so equal updates of neighbours stay one row.

    Raises:
        OptionError: the update writes no 16-bit state.
    """
    exact = {s.owner for s in update.states if s.role == "remainder"}
    rounded = [s for s in update.states if s.input.type.is_half and s.output is not None and s.name not in exact]
    at, casts = _positions(rounded), {}
    for state in rounded:
        stream = OWN | zlib.crc32(state.role.encode()) & (OWN - 1)
        casts.update({node: (at[state.owner or state.name], stream) for node in _rounded(state)})
    if not casts and not exact:
        raise OptionError("Option stochastic_rounding has nothing to round: no weight and no state of the optimizer has 16 bits; choose a precision "
                          "such as bf16-true, or 16-bit types of the optimizer's states, or leave it out.")
    b, new = Builder(update), {}
    for node, (start, stream) in casts.items():
        with b.at(node.origin):
            new[node] = b.StochasticCast(node.inputs[0], to=node.outputs[0].dtype, stream=stream, at=start)
    _put_in_place(update, new)


def keep_remainders(update: Graph) -> None:
    """Give every 16-bit weight that the update writes a state that holds what the weight lacks of a float32 number (`ops.cast.Remainder`),
    and let the update read and write that number.

    Raises:
        OptionError: the update writes no 16-bit weight.
    """
    weights = [s for s in update.states if s.kind == "parameter" and s.input.type.is_half and s.output is not None]
    if not weights:
        raise OptionError("Option master_weights='remainder' has no 16-bit weight to complete; choose the precision 16-true or bf16-true, or "
                          "leave it out: other weights are whole.")
    for state in weights:
        _complete(update, state)


def _complete(update: Graph, weight: State) -> None:
    name, type = f"{weight.name}.remainder", weight.input.type
    b = Builder(update, Origin((weight.known_as,), "update"))
    rest = State(name, "optimizer", Value(b.name(name), type.with_dtype("int16")), group=f"{weight.group}.remainder", owner=weight.name,
                 role="remainder")
    update.states.append(rest)
    whole = b.Joined(weight.input, rest.input)
    wide = {n: whole for n in update.nodes if _is_cast(n, weight.input, "float32")}
    narrow, others = {}, {weight.input: rest.input}
    for node in _rounded(weight):
        number = node.inputs[0]
        with b.at(node.origin):
            rounded = b.CastAway(number) if type.dtype == "bfloat16" else node.outputs[0]
            others[node.outputs[0]] = b.Remainder(number, rounded)
        if rounded is not node.outputs[0]:
            narrow[node] = rounded
    assert len(others) > 1, f"{weight.name} is not rounded where it is written"
    rest.output = _mirrored(b, weight.output, others)
    _put_in_place(update, {**wide, **narrow})


def _mirrored(b: Builder, value: Value | None, others: dict[Value, Value]) -> Value:
    """What the remainder becomes where the weight becomes `value`: the same selection among what belongs to the others."""
    assert value is not None
    if value not in others:
        node = value.producer
        assert node is not None, f"{value!r} is no new weight"
        assert node.op.name == "Where", f"{value!r} is made by {node!r}"
        condition, yes, no = node.operands
        with b.at(node.origin):
            others[value] = b.Where(condition, _mirrored(b, yes, others), _mirrored(b, no, others))
    return others[value]


def _rounded(state: State) -> list[Node]:
    """The casts to 16 bits that end in the state's new value, be it by a selection between new and old."""
    found: dict[Node, None] = {}
    waiting = [state.output]
    while waiting:
        value = waiting.pop()
        node = None if value is None else value.producer
        if node is not None and node.op.name == "Where":
            waiting += node.operands[1:]
        elif node is not None and node.op.name == "Cast" and node.operands[0].dtype == "float32":
            found[node] = None
    return list(found)


def _is_cast(node: Node, value: Value, to: str) -> bool:
    return node.op.name == "Cast" and node.operands == [value] and node.outputs[0].dtype == to


def _positions(states: Sequence[State]) -> dict[str, int]:
    """Where the elements of each owner of states begin among all of them."""
    sizes: dict[str, int] = {}
    for s in states:
        owner = s.owner or s.name
        sizes[owner] = max(sizes.get(owner, 0), blocks(s.input.type.size))
    at, positions = 0, {}
    for owner, size in sizes.items():
        positions[owner] = at
        at += size
    return positions


def _put_in_place(graph: Graph, new: dict[Node, Value]) -> None:
    """Let values take the place of what nodes make, and the nodes that were added stand where what they read is made."""
    replaced = {node.outputs[0]: value for node, value in new.items()}
    for state in graph.states:
        if state.output is not None:
            state.output = replaced.get(state.output, state.output)
    for node in graph.nodes:
        node.inputs = [v if v is None else replaced.get(v, v) for v in node.inputs]
    graph.outputs = [replaced.get(v, v) for v in graph.outputs]
    graph.nodes = _in_order(node for node in graph.nodes if node not in new)


def _in_order(nodes: Iterable[Node]) -> list[Node]:
    """The nodes as they stand, but each after those that make what it reads."""
    left = dict.fromkeys(nodes)
    order: list[Node] = []
    stack = list(reversed(left))
    while stack:
        node = stack[-1]
        missing = [v.producer for v in node.operands if v.producer in left] if node in left else []
        if missing:
            stack += [maker for maker in missing if maker is not None]
            continue
        stack.pop()
        if node in left:
            order.append(node)
            del left[node]
    return order
