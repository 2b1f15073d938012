"""Reverse-mode differentiation, graph to graph. Each operator's own `vjp` emits its part; no operator is named here."""
from __future__ import annotations

from collections.abc import Sequence

from .errors import UnsupportedError
from .graph import Builder, Graph, Node, Origin, Value
from .graph.backward import NoGradientError, backward, backward_origin, between

TRAINING = "the trained weights and the loss"


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


def barriers(graph: Graph, loss: Value, value: Value) -> list[Node]:
    """The nodes between a value and the loss beyond which it counts as a constant."""
    downstream, floating, upstream = {value}, {value}, {loss}
    ends = []
    for node in graph.nodes:
        if any(v in downstream for v in node.operands):
            downstream.update(node.outputs)
        if any(v in floating for v in node.operands):
            passed = [] if node.op.stops_gradient else [v for v in node.outputs if v.type.is_float]
            floating.update(passed)
            if not passed:
                ends.append(node)
    for node in reversed(graph.nodes):
        if any(v in upstream for v in node.outputs):
            upstream.update(v for v in node.operands if v in downstream)
    return [node for node in ends if any(v in upstream for v in node.outputs)]


def _seed(b: Builder, loss: Value, seed: Value | float) -> Value:
    one = b.scalar(seed, loss) if not isinstance(seed, Value) else b.cast(seed, loss.dtype)
    return one if loss.shape == () else b.Expand(one, shape=loss.shape)
