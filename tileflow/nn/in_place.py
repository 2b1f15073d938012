"""Writing in place: what buffers have besides the methods of tensors. In a network's `forward` it is recorded as what the next micro-batch finds."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..graph import Graph, Value
from ..system.errors import ShapeError, TileflowError, TypeMismatchError
from .tensor import Tensor

KINDS = "biuf"
"""Truth values, whole numbers and floats: a result does not become a kind before its own by itself."""
VIEWS = {"Detach", "Expand", "Flatten", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
"""Operators whose results PyTorch would have in their operand's own memory."""


class InPlace(Tensor):
    """A tensor with a place of its own, and PyTorch's ways to write there. Where a method has no way of its own here, `x.name_(...)` writes what
    `x.name(...)` gives."""

    def write(self, new: Tensor) -> Self:
        """Let this be `new`, of its type and shape, from here on."""
        raise NotImplementedError

    def _called(self) -> str:
        raise NotImplementedError

    def _written(self, new: Any) -> Self:
        """Write a result of an operator, which must have this one's shape and no richer kind of elements."""
        new = self.lift(new)
        if new.shape != self.shape:
            raise ShapeError(f"{self._called()} has shape {list(self.shape)} and is written in place, so that it cannot become {list(new.shape)}.")
        if KINDS.index(new._kind) > KINDS.index(self._kind):
            raise TypeMismatchError(f"{self._called()} is {self.dtype} and is written in place, so that it cannot become {new.dtype}; "
                                    f"use copy_(...) to cast, or let it begin as {new.dtype}.")
        return self.write(new.type_as(self))

    def copy_(self, src: Any) -> Self:
        """Let this be `src` (a tensor, an array or a number), broadcast to its shape and cast to its type."""
        src = self.lift(src)
        return self.write((src if src.shape == self.shape else src.expand(*self.shape)).type_as(self))

    def fill_(self, value: Any) -> Self:
        """Let each element be one number."""
        return self.copy_(value)

    def zero_(self) -> Self:
        """Let each element be zero."""
        return self.copy_(0)

    def add_(self, other: Any, *, alpha: float = 1) -> Self:
        """Add `other` times alpha."""
        return self._written(self + (other if alpha == 1 else self.lift(other) * alpha))

    def sub_(self, other: Any, *, alpha: float = 1) -> Self:
        """Subtract `other` times alpha."""
        return self._written(self - (other if alpha == 1 else self.lift(other) * alpha))

    def mul_(self, other: Any) -> Self:
        return self._written(self * other)

    def div_(self, other: Any) -> Self:
        return self._written(self / other)

    def lerp_(self, end: Any, weight: Any) -> Self:
        """Go this share of the way to `end`: x + weight (end - x)."""
        return self._written(self + (self.lift(end) - self) * weight)

    def __iadd__(self, other: Any) -> Self: return self._written(self + other)
    def __isub__(self, other: Any) -> Self: return self._written(self - other)
    def __imul__(self, other: Any) -> Self: return self._written(self * other)
    def __itruediv__(self, other: Any) -> Self: return self._written(self / other)
    def __ifloordiv__(self, other: Any) -> Self: return self._written(self // other)
    def __imod__(self, other: Any) -> Self: return self._written(self % other)
    def __ipow__(self, other: Any) -> Self: return self._written(self ** other)          # type: ignore[misc]
    def __imatmul__(self, other: Any) -> Self: return self._written(self @ other)
    def __iand__(self, other: Any) -> Self: return self._written(self & other)
    def __ior__(self, other: Any) -> Self: return self._written(self | other)
    def __ixor__(self, other: Any) -> Self: return self._written(self ^ other)

    def __setitem__(self, key: Any, value: Any) -> None:          # type: ignore[override]
        """Write the elements that an index names, as reading by it gives them."""
        places = self.lift(np.arange(self.numel()).reshape(self.shape))[key]
        new = self.lift(value).type_as(self)
        new = new if new.shape == places.shape else new.expand(*places.shape)
        flat = self.reshape(-1).scatter(0, places.reshape(-1), new.reshape(-1))
        self.write(flat.reshape(*self.shape))

    if not TYPE_CHECKING:
        def __getattr__(self, name: str) -> Any:
            plain = name.removesuffix("_")
            if plain == name or name.startswith("_") or not callable(getattr(Tensor, plain, None)):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return lambda *args, **named: self._written(getattr(self, plain)(*args, **named))


@dataclass(frozen=True)
class Write:
    """One write into a buffer: which, what it was before, and how many nodes were recorded by then."""

    name: str
    old: Value
    nodes: int


def refuse_old_views(graph: Graph, writes: Sequence[Write]) -> None:
    """Views are values here, and do not see what is written later.

    Raises:
        TileflowError: one that was taken of a buffer before a write is read after it, where PyTorch would show what was written.
    """
    for write in writes:
        views: set[Value] = set()
        for node in graph.nodes[:write.nodes]:
            if node.op.name in VIEWS and (node.inputs[0] is write.old or node.inputs[0] in views):
                views.update(node.outputs)
        read = {v for node in graph.nodes[write.nodes:] for v in node.operands}.union(graph.outputs) if views else set()
        if not views.isdisjoint(read):
            raise TileflowError(f"A view of the buffer {write.name!r} (a part of it, or it in another shape) is taken before forward() writes the "
                                "buffer and read after that, where PyTorch would show what was written. Take it again after the write, or take it of "
                                "clone() to have what was there before.")
