"""Tensors' methods that pick, place and order elements: by index, by rank, by running over an axis."""
from __future__ import annotations

from typing import Any, NamedTuple

from ..system.errors import OptionError, ShapeError
from .methods import Made, Methods

REDUCTIONS = {"sum": "add", "prod": "mul", "amin": "min", "amax": "max"}
"""ONNX's words for PyTorch's."""


class Ranked(NamedTuple):
    """What `topk` and `sort` give."""

    values: Any
    indices: Any


class Picks(Methods[Made]):
    """What the class of tensors has from here: methods over `shape` and `apply`, named as torch.Tensor's."""

    __slots__ = ()

    def lift(self, other: Any) -> Any:
        raise NotImplementedError

    def _axis(self, dim: int, extra: int = 0) -> int:
        raise NotImplementedError

    # ---- by index

    def gather(self, dim: int, index: Any) -> Made:
        """y[i][j] = x[index[i][j]][j] for dim 0, and so on: for each element of `index` the one at that place along an axis."""
        axis, index = self._axis(dim), self.lift(index)
        self._fits(index, axis, "gather")
        return self.apply("GatherElements", index, axis=axis)

    def scatter(self, dim: int, index: Any, src: Any, reduce: str | None = None) -> Made:
        """This with each element of `src` (a tensor, or one number) at the place that its index names along an axis; of several for one the last.

        reduce: None, "add" or "multiply".
        """
        if reduce not in (None, "add", "multiply"):
            raise OptionError(f"scatter: reduce {reduce!r} is unknown; it is None, 'add' or 'multiply'.")
        return self._scattered(dim, index, src, {None: "none", "add": "add", "multiply": "mul"}[reduce], "scatter")

    def scatter_add(self, dim: int, index: Any, src: Any) -> Made:
        """This with each element of `src` added at the place that its index names along an axis."""
        return self._scattered(dim, index, src, "add", "scatter_add")

    def scatter_reduce(self, dim: int, index: Any, src: Any, reduce: str) -> Made:
        """This with each element of `src` taken in at the place that its index names along an axis. reduce: "sum", "prod", "amin" or "amax"."""
        if reduce not in REDUCTIONS:
            raise OptionError(f"scatter_reduce: reduce {reduce!r} is unknown; it is one of {', '.join(REDUCTIONS)}.")
        return self._scattered(dim, index, src, REDUCTIONS[reduce], "scatter_reduce")

    def _scattered(self, dim: int, index: Any, src: Any, reduction: str, what: str) -> Any:
        axis, index, src = self._axis(dim), self.lift(index), self.lift(src)
        self._fits(index, axis, what)
        if not src.shape:
            src = src.expand(*index.shape)
        if src.shape != index.shape:
            larger = len(src.shape) == len(index.shape) and all(n >= m for n, m in zip(src.shape, index.shape, strict=True))
            if not larger:
                raise ShapeError(f"{what}: src {list(src.shape)} must be at least as large as the indices {list(index.shape)}.")
            src = src[tuple(slice(0, n) for n in index.shape)]
        return self.apply("ScatterElements", index, src, axis=axis, reduction=reduction)

    def _fits(self, index: Any, axis: int, what: str) -> None:
        """Raise ShapeError unless indices have this tensor's axes and no larger sizes but for one axis."""
        fits = len(index.shape) == len(self.shape) and all(n <= m or a == axis for a, (n, m) in enumerate(zip(index.shape, self.shape, strict=True)))
        if not fits:
            raise ShapeError(f"{what}: indices {list(index.shape)} must have the axes of {list(self.shape)} and no larger sizes but for axis {axis}.")

    def index_add(self, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Made:
        """This with slices of `source`, times alpha, added to the slices along an axis that the index vector names."""
        axis, source = self._axis(dim), self.lift(source)
        source = source if alpha == 1 else source * alpha
        order = (axis, *(a for a in range(len(self.shape)) if a != axis))
        whole: Any = self
        rows = whole.permute(*order).apply("ScatterRows", self.lift(index), source.permute(*order), reduction="add")
        return rows.permute(*(order.index(a) for a in range(len(order))))          # type: ignore[no-any-return]

    # ---- by rank

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Ranked:
        """The k largest (or smallest) elements along an axis, the best first, and their places; the first of equals first."""
        axis = self._axis(dim)
        if not 0 <= k <= self.shape[axis]:
            raise ShapeError(f"topk: k={k} of the {self.shape[axis]} elements of axis {axis} of {list(self.shape)}.")
        return Ranked(*self.apply("TopK", K=int(k), axis=axis, largest=int(largest), sorted=int(sorted)))

    def sort(self, dim: int = -1, descending: bool = False, stable: bool = False) -> Ranked:
        """All elements along an axis in order, and their places; equal ones stay in theirs."""
        axis = self._axis(dim)
        return Ranked(*self.apply("TopK", K=self.shape[axis], axis=axis, largest=int(descending)))

    def argsort(self, dim: int = -1, descending: bool = False, stable: bool = False) -> Made:
        """The places of all elements along an axis in order."""
        return self.sort(dim, descending).indices          # type: ignore[no-any-return]

    # ---- along an axis, and over matrices

    def cumsum(self, dim: int) -> Made:
        """Running sums along an axis."""
        return self.apply("CumSum", axis=self._axis(dim))

    def cumprod(self, dim: int) -> Made:
        """Running products along an axis."""
        return self.apply("CumProd", axis=self._axis(dim))

    def tril(self, diagonal: int = 0) -> Made:
        """The last two axes' lower triangle, zero above."""
        return self.apply("Trilu", upper=0, k=int(diagonal))

    def triu(self, diagonal: int = 0) -> Made:
        """The last two axes' upper triangle, zero below."""
        return self.apply("Trilu", upper=1, k=int(diagonal))

    def det(self) -> Made:
        """The determinants of the matrices in the last two axes."""
        return self.apply("Det")

    def __lshift__(self, other: Any) -> Made:
        return self.apply("BitShift", self.lift(other), direction="LEFT")

    def __rshift__(self, other: Any) -> Made:
        return self.apply("BitShift", self.lift(other), direction="RIGHT")
