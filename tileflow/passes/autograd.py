"""Reverse-mode differentiation, graph to graph. Each operator's own `vjp` emits its part; no operator is named here."""
from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..graph import Builder, Graph, Node, Origin, Value
from ..graph.backward import NoGradientError, backward, backward_origin, between
from ..system.errors import UnsupportedError

TRAINING = "the trained weights and the loss"
SHOWN = 10
"""Names that a message lists."""


def gradients(graph: Graph, loss: Value, wrt: Sequence[Value], seed: Value | float = 1.0, between: str = TRAINING) -> list[Value]:
    """Append nodes that compute d(seed * sum(loss)) / d(value) for each value of `wrt`, in its type. A seed that is a value is a scalar.

    Gradients of a value with several readers are added in the reverse order of the readers, so the sum has one order.
    A value the loss does not depend on gets a gradient of zeros. Operators without a gradient of their own give way to their expansions.

    Args:
        between: what messages call the values and the loss.

    Raises:
        UnsupportedError: an operator between `wrt` and the loss has no gradient; all such operators are named.
    """
    def start(b: Builder) -> dict[Value, Value]:
        with b.at(backward_origin(loss)):
            return {loss: _seed(b, loss, seed)}
    try:
        b, found = backward(graph, [loss], wrt, start)
    except NoGradientError as error:
        remedy = "; freeze the weights before them (option frozen)" if between == TRAINING else ""
        raise UnsupportedError(f"These operators between {between} have no gradient: {', '.join(error.operators)}{remedy}.") from None
    results = []
    for value in wrt:
        if value not in found:
            with b.at(Origin((value.name,), "backward")):
                found[value] = b.Mul(value, b.scalar(0.0, value))
        results.append(found[value])
    return results


def reached(graph: Graph, loss: Value, values: Sequence[Value]) -> list[bool]:
    """Whether the loss depends on each of the values."""
    read = {loss, *(v for node in between(graph, [loss], set(values)) for v in node.operands)}
    return [v in read for v in values]


@dataclass(frozen=True)
class Barrier:
    """A node that ends gradients: what it makes of floats, and the target reads, is no float, or counts as a constant.

    behind: of which of the values that were asked about the node reads numbers, by place. rounds: it makes other numbers of them, one for one
    (quantises, casts to whole numbers), so that a derivative is lost that the target would have; a comparison or a place has none.
    """

    node: Node
    behind: frozenset[int]
    rounds: bool


def barriers(graph: Graph, target: Value, values: Sequence[Value]) -> list[Barrier]:
    """The nodes between `values` and the target beyond which these count as constants, in graph order."""
    floating = {v: 1 << i for i, v in enumerate(values)}                 # the values on which another one depends by floats, as bits
    ends: list[tuple[Node, int, list[Value]]] = []
    for node in graph.nodes:
        bits = 0
        for v in node.operands:
            bits |= floating.get(v, 0)
        if not bits:
            continue
        stopped = [v for v in node.outputs if node.op.stops_gradient or not v.type.is_float]
        floating.update((v, bits) for v in node.outputs if v not in stopped)
        if stopped:
            ends.append((node, bits, stopped))
    if not ends:
        return []
    upstream = {target}
    for node in reversed(graph.nodes):
        if any(v in upstream for v in node.outputs):
            upstream.update(node.operands)
    found = []
    for node, bits, stopped in ends:
        read = [v for v in stopped if v in upstream]
        if read:
            shapes = {v.shape for v in node.operands if v in floating}
            rounds = any(not v.type.is_float and v.dtype != "bool" and v.shape in shapes for v in read)
            found.append(Barrier(node, frozenset(i for i in range(len(values)) if bits >> i & 1), rounds))
    return found


def losses(graph: Graph, target: Value, values: Sequence[Value], names: Sequence[str]) -> list[str]:
    """Sentences on gradients that end on their way: the values that get none at all, those whose gradient lacks a part, and the nodes that are
    why."""
    found = barriers(graph, target, values)
    if not found:
        return []
    passed = reached(graph, target, values)
    whole = {i for one in found for i in one.behind if not passed[i]}
    part = {i for one in found if one.rounds for i in one.behind} - whole
    sentences = []
    if whole:
        sentences.append(f"Not trained, because no gradient gets there: {_listed([names[i] for i in sorted(whole)])}. It ends at "
                         f"{stops(found, whole)}.")
    if part:
        rounding = [one for one in found if one.rounds]
        sentences.append(f"Their gradients lack a part: {_listed([names[i] for i in sorted(part)])}. What goes through rounded numbers counts as "
                         f"constant; that is at {stops(rounding, part)}.")
    return sentences


def stops(found: Sequence[Barrier], behind: Collection[int]) -> str:
    """The nodes among barriers that end gradients of the values at the places `behind`, and why."""
    nodes = [one.node for one in found if not one.behind.isdisjoint(behind)]
    reasons = dict.fromkeys(node.op.no_gradient or "no gradient passes what is made of whole numbers, booleans or constants" for node in nodes)
    return f"{_listed([f'{node.op.name} ({node.origin})' for node in nodes])}; {'; '.join(reasons)}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _seed(b: Builder, loss: Value, seed: Value | float) -> Value:
    one = b.scalar(seed, loss) if not isinstance(seed, Value) else b.cast(seed, loss.dtype)
    return one if loss.shape == () else b.Expand(one, shape=loss.shape)
