"""Tensors' methods that move elements and change none: shapes, axes, parts, indexing."""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..system.errors import OptionError, ShapeError
from .indexing import cut
from .methods import Made, Methods

Dim = int | Sequence[int] | None
"""An axis, several axes, or None for all of them; negative ones count from the end."""


def _spread(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes given one by one or as one sequence."""
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes


class Moves(Methods[Made]):
    """What the class of tensors has from here: methods over `shape` and `apply`, named as torch.Tensor's."""

    __slots__ = ()

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one axis."""
        return self.shape if dim is None else self.shape[self._axis(dim)]

    def numel(self) -> int:
        return math.prod(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("A tensor without axes has no length.")
        return self.shape[0]

    def _axis(self, dim: int, extra: int = 0) -> int:
        """An axis counted from the front."""
        rank = max(1, len(self.shape) + extra)
        if isinstance(dim, bool) or not isinstance(dim, (int, np.integer)) or not -rank <= dim < rank:
            raise ShapeError(f"dim={dim!r} is no axis of {list(self.shape)}; they are {-rank} to {rank - 1}.")
        return int(dim) % rank

    def _axes(self, dim: Dim, keepdim: bool = False) -> tuple[int, ...]:
        """Axes counted from the front; all for None."""
        if not isinstance(keepdim, (bool, np.bool_)):
            raise OptionError(f"keepdim must be True or False, got {keepdim!r}; give several axes as a tuple: dim=(0, 1).")
        if dim is None or dim == ():
            return tuple(range(len(self.shape)))
        return tuple(self._axis(d) for d in ((dim,) if isinstance(dim, (int, np.integer)) else dim) if self.shape)

    # ---- shapes

    def reshape(self, *shape: int | Sequence[int]) -> Made:
        """The same elements in another shape; one size may be -1."""
        return self.apply("Reshape", shape=_spread(shape), allowzero=1)

    view = reshape

    def view_as(self, other: Moves[Any]) -> Made:
        return self.reshape(*other.shape)

    def flatten(self, start_dim: int = 1, end_dim: int = -1) -> Made:
        """Axes start_dim to end_dim as one. Unlike PyTorch's, it leaves the batch axis alone unless told: start_dim=0."""
        first, last = self._axis(start_dim), self._axis(end_dim)
        if first == 1 and last == len(self.shape) - 1:
            return self.apply("Flatten", axis=1)
        if last < first:
            raise ShapeError(f"flatten of {list(self.shape)}: end_dim={end_dim} lies before start_dim={start_dim}.")
        return self.reshape(*self.shape[:first], math.prod(self.shape[first:last + 1]), *self.shape[last + 1:])

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Made:
        """One axis as several of these sizes; one may be -1."""
        axis = self._axis(dim)
        known = math.prod(n for n in sizes if n != -1)
        parts = [self.shape[axis] // max(1, known) if n == -1 else n for n in sizes]
        if math.prod(parts) != self.shape[axis]:
            raise ShapeError(f"unflatten: axis {axis} of {list(self.shape)} does not divide into {list(sizes)}.")
        return self.reshape(*self.shape[:axis], *parts, *self.shape[axis + 1:])

    def permute(self, *dims: int | Sequence[int]) -> Made:
        """Axes in another order."""
        return self.apply("Transpose", perm=tuple(self._axis(d) for d in _spread(dims)))

    def transpose(self, dim0: int, dim1: int, *more: int) -> Made:
        """Two axes change places."""
        if more:
            raise OptionError("transpose changes the places of two axes; permute puts all of them into another order.")
        order = list(range(len(self.shape)))
        a, b = self._axis(dim0), self._axis(dim1)
        order[a], order[b] = b, a
        return self.permute(*order)

    def t(self) -> Made:
        """A matrix transposed."""
        if len(self.shape) > 2:
            raise ShapeError(f"t() is for matrices, not for {list(self.shape)}; use transpose or permute.")
        return self.permute(*reversed(range(len(self.shape))))

    @property
    def T(self) -> Made:
        """A matrix transposed."""
        return self.t()

    @property
    def mT(self) -> Made:
        """The last two axes transposed."""
        return self.transpose(-2, -1)

    def squeeze(self, dim: Dim = None) -> Made:
        """Without axes of size 1: all of them, or those of `dim` that have it."""
        axes = [a for a in self._axes(dim) if self.shape[a] == 1]
        return self.reshape(*(n for a, n in enumerate(self.shape) if a not in axes))

    def unsqueeze(self, dim: int) -> Made:
        """With a new axis of size 1 at `dim`."""
        axis = self._axis(dim, 1)
        return self.reshape(*self.shape[:axis], 1, *self.shape[axis:])

    def expand(self, *sizes: int | Sequence[int]) -> Made:
        """Axes of size 1, and new ones in front, repeated to these sizes; -1: as it is."""
        wanted = list(_spread(sizes))
        start = len(wanted) - len(self.shape)
        full = [n if n != -1 or i < start else self.shape[i - start] for i, n in enumerate(wanted)]
        if start < 0 or any(n not in (1, m) for n, m in zip(self.shape, full[start:], strict=False)) or -1 in full:
            raise ShapeError(f"{list(self.shape)} does not expand to {wanted}.")
        return self.apply("Expand", shape=tuple(full))

    def expand_as(self, other: Moves[Any]) -> Made:
        return self.expand(*other.shape)

    def repeat(self, *sizes: int | Sequence[int]) -> Made:
        """The whole tensor side by side, so many times along each axis; more sizes than axes make new ones in front."""
        times = _spread(sizes)
        if len(times) < len(self.shape):
            raise ShapeError(f"repeat: {list(times)} has fewer numbers than {list(self.shape)} has axes.")
        whole: Any = self.reshape(*[1] * (len(times) - len(self.shape)), *self.shape)
        return whole.apply("Tile", repeats=tuple(times))

    def contiguous(self) -> Made:
        """Itself: how a tensor lies in memory is not the network's business."""
        return self          # type: ignore[return-value]

    def clone(self) -> Made:
        """The same numbers; of a buffer, or a view of one, what they are now."""
        return self.apply("Identity")          # type: ignore[no-any-return]

    # ---- parts

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> tuple[Made, ...]:
        """Parts along an axis: of one size (the last may be smaller), or of several."""
        axis = self._axis(dim)
        n = self.shape[axis]
        if isinstance(split_size, int):
            if split_size < 1:
                raise OptionError(f"split: a part must have a size of at least 1, got {split_size}.")
            split_size = [min(split_size, n - at) for at in range(0, max(1, n), split_size)]
        parts = self.apply("Split", axis=axis, sizes=tuple(split_size))
        return parts if isinstance(parts, tuple) else (parts,)

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Made, ...]:
        """At most so many parts of one size (the last may be smaller) along an axis."""
        if chunks < 1:
            raise OptionError(f"chunk: there must be at least 1 part, got {chunks}.")
        return self.split(max(1, -(-self.shape[self._axis(dim)] // chunks)), dim)

    def unbind(self, dim: int = 0) -> tuple[Made, ...]:
        """The slices along an axis, without it."""
        axis = self._axis(dim)
        return tuple(self.select(axis, i) for i in range(self.shape[axis]))

    def __iter__(self) -> Iterator[Made]:
        if not self.shape:
            raise ShapeError("A tensor without axes cannot be iterated over.")
        return iter(self.unbind(0))

    def narrow(self, dim: int, start: int, length: int) -> Made:
        """`length` elements of an axis from `start` on."""
        axis = self._axis(dim)
        begin = start + self.shape[axis] if start < 0 else start
        if not 0 <= begin <= begin + length <= self.shape[axis]:
            raise ShapeError(f"narrow: {length} elements from {start} on are not in axis {axis} of {list(self.shape)}.")
        return self[(slice(None),) * axis + (slice(begin, begin + length),)]

    def select(self, dim: int, index: int) -> Made:
        """One slice along an axis, without it."""
        return self[(slice(None),) * self._axis(dim) + (index,)]

    def index_select(self, dim: int, index: Any) -> Made:
        """Slices along an axis picked by a vector of places."""
        return self[(slice(None),) * self._axis(dim) + (index,)]

    def flip(self, *dims: int | Sequence[int]) -> Made:
        """Axes in reverse."""
        axes = {self._axis(d) for d in _spread(dims)}
        return self[tuple(slice(None, None, -1 if a in axes else 1) for a in range(len(self.shape)))]

    def roll(self, shifts: int | Sequence[int], dims: int | Sequence[int]) -> Made:
        """Elements along one axis or several moved on by `shifts`; those that leave come in at the other end."""
        pairs = zip(_spread((shifts,)), _spread((dims,)), strict=True)
        y: Any = self
        for shift, dim in pairs:
            axis = self._axis(dim)
            at = -shift % max(1, self.shape[axis])
            if at:
                front = (slice(None),) * axis
                y = y[(*front, slice(at, None))].apply("Concat", y[(*front, slice(0, at))], axis=axis)
        return y          # type: ignore[no-any-return]

    def __getitem__(self, key: Any) -> Made:
        """Ints, slices with any step, None, `...`, arrays, lists and tensors of places, and known masks (arrays of booleans).

        Raises:
            ShapeError: what is asked for is not there. TypeMismatchError: a tensor of booleans, or no index at all.
        """
        how = cut(key, self.shape)
        x: Any = self
        cuts = [(a, s) for a, s in enumerate(how.slices) if s != slice(0, self.shape[a], 1)]
        if cuts:
            ends = tuple(s.stop if s.stop >= 0 else -self.shape[a] - 1 for a, s in cuts)
            x = x.apply("Slice", starts=tuple(s.start for _, s in cuts), ends=ends, axes=tuple(a for a, _ in cuts),
                        steps=tuple(s.step for _, s in cuts))
        if x.shape != how.shape:
            x = x.reshape(*how.shape)
        if len(how.places) == 1:
            (axis, places), = how.places
            return x.apply("Gather", x.lift(places), axis=axis)
        return x._at_places(how.places, how.adjacent) if how.places else x

    def _at_places(self, places: Sequence[tuple[int, Any]], adjacent: bool) -> Any:
        """Elements at places along several axes; the places' own axes come where the first of those was, or in front."""
        axes = [a for a, _ in places]
        rest = [a for a in range(len(self.shape)) if a not in axes]
        shape = np.broadcast_shapes(*(p.shape for _, p in places))
        x: Any = self if axes == list(range(len(axes))) else self.permute(*axes, *rest)
        columns = [x.lift(p).to("int64").expand(*shape).unsqueeze(-1) for _, p in places]
        y = x.apply("GatherND", columns[0].apply("Concat", *columns[1:], axis=-1))
        if not adjacent or not axes[0]:
            return y
        front = list(range(len(shape), len(shape) + axes[0]))
        return y.permute(*front, *range(len(shape)), *range(len(shape) + axes[0], len(y.shape)))
