"""What torch has as functions of tensors that pick, place, order and contract elements."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...system.errors import TypeMismatchError
from ..picks import Ranked
from ..tensor import Tensor
from ..tensor import where as _where


def gather(input: Tensor, dim: int, index: Any) -> Tensor:
    """For each element of `index`, whole numbers, the input's at that index along an axis: [shape of index]."""
    return input.gather(dim, index)


def scatter(input: Tensor, dim: int, index: Any, src: Any, reduce: str | None = None) -> Tensor:
    """`input` with elements of `src` at the places that indices name along an axis; of several for one the last."""
    return input.scatter(dim, index, src, reduce)


def scatter_add(input: Tensor, dim: int, index: Any, src: Any) -> Tensor:
    """`input` with elements of `src` added at the places that indices name along an axis."""
    return input.scatter_add(dim, index, src)


def scatter_reduce(input: Tensor, dim: int, index: Any, src: Any, reduce: str) -> Tensor:
    """`input` with elements of `src` taken in at the places that indices name along an axis: "sum", "prod", "amin" or "amax"."""
    return input.scatter_reduce(dim, index, src, reduce)


def index_add(input: Tensor, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Tensor:
    """`input` with slices of `source` added to those along an axis that the index vector names."""
    return input.index_add(dim, index, source, alpha=alpha)


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Ranked:
    """The k largest (or smallest) elements along an axis, in order, and their int64 indices."""
    return input.topk(k, dim, largest, sorted)


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Ranked:
    """All elements along an axis in order, and their int64 indices; equal ones keep their order."""
    return input.sort(dim, descending, stable)


def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """int64, of the input's shape: the indices of all elements along an axis, in the order of the elements."""
    return input.argsort(dim, descending, stable)


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """int64: the index of the largest, the first of equals, along an axis or among all."""
    return input.argmax(dim, keepdim)


def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """int64: the index of the smallest, the first of equals, along an axis or among all."""
    return input.argmin(dim, keepdim)


def cumsum(input: Tensor, dim: int) -> Tensor:
    """Running sums along an axis."""
    return input.cumsum(dim)


def cumprod(input: Tensor, dim: int) -> Tensor:
    """Running products along an axis."""
    return input.cumprod(dim)


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of the last two axes, zero above."""
    return input.tril(diagonal)


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of the last two axes, zero below."""
    return input.triu(diagonal)


def flip(input: Tensor, dims: Sequence[int]) -> Tensor:
    """Axes in reverse."""
    return input.flip(*dims)


def roll(input: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int]) -> Tensor:
    """Elements along axes moved on; those that leave come in at the other end."""
    return input.roll(shifts, dims)


def where(condition: Tensor, input: Any, other: Any) -> Tensor:
    """`input` where the condition holds, else `other`."""
    return _where(condition, input, other)


def det(input: Tensor) -> Tensor:
    """The determinants of the matrices in the last two axes."""
    return input.det()


def einsum(equation: str, *operands: Any) -> Tensor:
    """Products of tensors summed over axes, by an equation such as "bij,bjk->bik"."""
    tensors: Sequence[Any] = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    first = next((t for t in tensors if isinstance(t, Tensor)), None)
    if first is None:
        raise TypeMismatchError("einsum() takes an equation and at least one tensor.")
    lifted = [first.lift(t) for t in tensors]
    return lifted[0].apply("Einsum", *lifted[1:], equation=equation)          # type: ignore[no-any-return]
