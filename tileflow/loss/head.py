"""What a model ends in: the softmax or sigmoid that makes its output, found through the graph.

A loss of probabilities is computed from the scores before them, which is the same number with all its digits. That holds only where the
graph says so: between the function and the output there may be nodes that move elements, or give them another float type, and no others.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..memory.types import TensorType

if TYPE_CHECKING:
    from ..graph import Builder, Node, Value


Kind = Literal["softmax", "log_softmax", "sigmoid"]
_KINDS: dict[str, Kind] = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid"}


@dataclass(frozen=True)
class Ending:
    """The function that a model ends in.

    axis: the axis of the output that the probabilities of one choice lie along; None for sigmoid, and where they lie along several or none.
    """

    kind: Kind
    axis: int | None

    @property
    def function(self) -> str:
        """What it is called in a file."""
        return next(name for name, kind in _KINDS.items() if kind == self.kind)


@dataclass(frozen=True)
class Output:
    """A model's output without its graph: all that a loss is chosen by. ending: what makes it, where that is known
    of."""

    name: str
    type: TensorType
    ending: Ending | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @classmethod
    def of(cls, value: Value) -> Output:
        head = head_of(value)
        return cls(value.name, value.type, None if head is None else Ending(head.kind, head.axis))


def ending_of(output: Value | Output) -> Ending | None:
    """The function that makes `output`, or None."""
    return output.ending if isinstance(output, Output) else head_of(output)


@dataclass(frozen=True)
class Head(Ending):
    """`kind` applied to `scores`, then `moves` (first to last), gives the output, as floats of type `dtype`."""

    scores: Value
    moves: tuple[Node, ...]
    dtype: str

    def before(self, b: Builder) -> Value:
        """The scores where the probabilities stand in the output, in its type."""
        x = b.cast(self.scores, self.dtype)
        for node in self.moves:
            x, = b.emit(node.op, x, *node.inputs[1:])
        return x


def head_of(output: Value) -> Head | None:
    """The function that makes `output`, and what it is applied to; or None."""
    moves: list[Node] = []
    node = output.producer
    while node is not None and (_moves(node) or _casts(node)):
        if not _casts(node):
            moves.insert(0, node)
        node = _made(node)
    if node is None:
        return None
    kind = _KINDS.get(node.op.name)
    if node.op.name == "Log" and (inner := _made(node)) is not None and inner.op.name == "Softmax":
        node, kind = inner, "log_softmax"
    if kind is None:
        return None
    scores = node.inputs[0]
    assert scores is not None
    if kind == "sigmoid":
        return Head(kind, None, scores, tuple(moves), output.dtype)
    axis = _follow(node.op.attributes()["axis"] % max(1, scores.type.rank), moves)
    return Head(kind, axis, scores, tuple(moves), output.dtype)


def _made(node: Node) -> Node | None:
    """What makes a node's first input."""
    return None if node.inputs[0] is None else node.inputs[0].producer


def _moves(node: Node) -> bool:
    """A node whose output has the very elements of its first input, perhaps in another order."""
    return node.op.alias == 0 or node.op.name == "Transpose"


def _casts(node: Node) -> bool:
    """A node that gives floats another float type."""
    return node.op.name == "Cast" and node.operands[0].type.is_float and node.outputs[0].type.is_float


def _follow(axis: int, moves: Sequence[Node]) -> int | None:
    """Where an axis of the first node's input is in the last one's output; None where it is not one axis there."""
    for node in moves:
        source, target = node.inputs[0], node.outputs[0]
        assert source is not None
        if node.op.name == "Transpose":
            axis = list(node.op.attributes()["perm"] or reversed(range(source.type.rank))).index(axis)
        elif source.shape != target.shape:
            kept = _same_place(source.shape, target.shape, axis)
            if kept is None:
                return None
            axis = kept
    return axis


def _same_place(source: tuple[int, ...], target: tuple[int, ...], axis: int) -> int | None:
    """The axis of `target` with the same elements before, in and after it as `axis` has in `source`."""
    before, size = _product(source[:axis]), source[axis]
    if size == 1:
        return None
    return next((i for i, n in enumerate(target) if n == size and _product(target[:i]) == before), None)


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for n in sizes:
        total *= n
    return total
