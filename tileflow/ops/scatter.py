"""Operators that write elements at places by index; of several for one place all count, in the order of the index."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import LETTERS, Operand, Scatter, Work
from ..graph.work import Axis as WorkAxis
from ..kernels.dtypes import BITS
from ..kernels.elementwise.expr import Const, Expr, Var, cast, where
from ..kernels.machine.call import Call, In, Out
from ..kernels.move import copy_call
from ..kernels.scatter import LANES, REDUCTIONS, STRIP, scatter_along, scatter_rows
from ..memory.types import TensorType
from ..system.errors import OptionError, ShapeError, TypeMismatchError
from .gather_nd import row_places
from .places import check_indices, element_places, known_place
from .shape import normal_axis, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu

UFUNCS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


@dataclass(frozen=True, repr=False)
class _Reducing(Op):
    """What becomes of an element when one for its place comes: it gives way ("none"), or takes it in ("add", "mul", "min", "max")."""

    roles = ("moved",)

    reduction: str = "none"

    def check(self, data: TensorType, index: TensorType, updates: TensorType) -> None:
        """Raise an error that names what does not fit."""
        if self.reduction not in REDUCTIONS:
            raise OptionError(f"reduction {self.reduction!r} is unknown; it must be one of {', '.join(REDUCTIONS)}.")
        check_indices(index)
        if updates.dtype != data.dtype:
            raise TypeMismatchError(f"the data is {data} and the updates are {updates}; cast them to one type.")


@dataclass(frozen=True, repr=False)
class _Table(_Reducing):
    """Shared by those that write a table: rows of it, or elements along its second axis.

    along: the axis that an index names.
    """

    along: ClassVar[int]

    @property
    def halves(self) -> bool:          # type: ignore[override]
        """What only moves is moved by its bits."""
        return self.reduction == "none"

    def picked(self, b: Builder, table: Value, index: Value) -> Value:
        """What lies at the places of the index."""
        raise NotImplementedError

    def put_call(self, data: TensorType, index: TensorType, updates: TensorType) -> Call:
        """The call that puts updates, of which there are some, onto a copy of the data."""
        raise NotImplementedError

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        data, index, updates = map(present, inputs)
        if not data.size:
            return []
        copy = copy_call(In(0, (data.size,)), Out(0, (data.size,)), data.size, data.itemsize)
        if not updates.size:
            return [copy]
        return [copy, self.put_call(data, index, updates)]

    def put(self, b: Builder, table: Value, index: Value, updates: Value, reduction: str = "none") -> Value:
        """This operator with another reduction, on other operands."""
        return b.emit(replace(self, reduction=reduction), table, index, updates)[0]

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        data, index, updates = map(present, inputs)
        g, y = grads[0], outputs[0]
        if g is None:
            return [None, None, None]
        return getattr(self, f"_{self.reduction}_gradients")(b, g, data, index, updates, y)

    def _none_gradients(self, b: Builder, g: Value, data: Value, index: Value, updates: Value, y: Value) -> Sequence[Value | None]:
        """Of several updates for one place only the last one is seen."""
        mine = self.picked(b, g, index)
        known = b.graph.constants.get(index)
        if known is None or _meet(known, data.shape[self.along], self.along):
            order = b.constant(np.arange(math.prod(index.shape)).reshape(index.shape))
            places = data.shape if self.along else data.shape[:1]
            last = self.put(b, b.Expand(b.constant(np.int64(0)), shape=places), index, order)
            seen = b.Equal(self.picked(b, last, index), order)
            seen = b.Reshape(seen, shape=index.shape + (1,) * (updates.type.rank - index.type.rank), allowzero=1)
            mine = b.Where(seen, mine, b.scalar(0.0, mine))
        return [self.put(b, g, index, b.Expand(b.scalar(0.0, g), shape=updates.shape)), None, mine]

    def _add_gradients(self, b: Builder, g: Value, data: Value, index: Value, updates: Value, y: Value) -> Sequence[Value | None]:
        return [g, None, self.picked(b, g, index)]

    def _mul_gradients(self, b: Builder, g: Value, data: Value, index: Value, updates: Value, y: Value) -> Sequence[Value | None]:
        """The product of the others: without a division by 0, also where one of them is 0."""
        zero, one = b.scalar(0.0, data), b.scalar(1.0, data)
        ones, zeros = (b.Expand(v, shape=data.shape) for v in (one, zero))
        is_zero = b.Equal(updates, zero)
        rest = b.Where(is_zero, one, updates)
        product = self.picked(b, b.Mul(g, self.put(b, data, index, rest, "mul")), index)
        count = self.picked(b, self.put(b, zeros, index, b.Where(is_zero, one, zero), "add"), index)
        others = b.Where(is_zero, b.Where(b.Equal(count, one), product, zero), b.Where(b.Equal(count, zero), b.Div(product, rest), zero))
        return [b.Mul(g, self.put(b, ones, index, updates, "mul")), None, others]

    def _best_gradients(self, b: Builder, g: Value, data: Value, index: Value, updates: Value, y: Value) -> Sequence[Value | None]:
        """Ties share, as they do in reductions."""
        zero, one = b.scalar(0.0, data), b.scalar(1.0, data)
        kept = b.Where(b.Equal(data, y), one, zero)
        taken = b.Where(b.Equal(updates, self.picked(b, y, index)), one, zero)
        share = b.Div(g, self.put(b, kept, index, taken, "add"))
        return [b.Mul(kept, share), None, b.Mul(taken, self.picked(b, share, index))]

    _min_gradients = _max_gradients = _best_gradients

    def put_work(
        self,
        data: TensorType,
        index: TensorType,
        updates: TensorType,
        table: Sequence[str | None],
        places: Sequence[str],
    ) -> Scatter:
        """The work of a table and an index of these dimensions."""
        names = LETTERS[:updates.rank]
        axes = tuple(
            WorkAxis(a, n, "parallel" if a in table else "reduce") for a, n in zip(names, updates.shape, strict=True)
        )
        whole = Operand(tuple(table), data.dtype)
        return Scatter(
            axes,
            (whole, Operand(tuple(places), index.dtype), Operand(tuple(names), updates.dtype)),
            (whole,),
            1.0,
            {"rows": data.shape[self.along]},
            combine=self.reduction,
            onto=True,
        )

    def elements(self, data: TensorType) -> tuple[str, str]:
        """The letter of what a leaf moves or combines, and how."""
        if self.reduction == "none" or data.dtype == "bool":
            return BITS[data.itemsize], {"add": "max", "mul": "min"}.get(self.reduction, self.reduction)
        return data.code, self.reduction


def _meet(places: np.ndarray, n: int, axis: int) -> bool:
    """Whether two known places along an axis of n elements are one; those of the first axis are all of one lane."""
    found = np.sort(places % max(n, 1), axis if axis else None, kind="stable")
    found = np.moveaxis(found, axis, 0) if axis else found
    return bool((found[1:] == found[:-1]).any())


@op("ScatterRows", onnx=False)
class ScatterRows(_Table):
    """The data [n, ...] with updates [*index, ...] at the rows that the index [...] names; negative ones count from the
    end.

    Extremes of NaN are NaN; booleans are added by "or" and multiplied by "and". An index out of range stops the run
    with status INDEX_OUT_OF_RANGE.
    """

    along = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        twice = np.array([[2, 0], [-1, 2]])
        return [sample((4, 3), twice, (2, 2, 3), reduction=r) for r in REDUCTIONS] + [
            sample((5,), np.array([1, 1, 4], np.int32), (3,))
        ]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        data, index, updates = map(present, types)
        self.check(data, index, updates)
        if not data.rank or updates.shape != index.shape + data.shape[1:]:
            raise ShapeError(
                f"updates {list(updates.shape)} for rows of {list(data.shape)} at indices {list(index.shape)}; "
                f"they must be {[*index.shape, *data.shape[1:]]}."
            )
        return (data,)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        data, index, updates = map(present, inputs)
        if index.size and not (-len(data) <= index.min() and index.max() < len(data)):
            raise ShapeError(f"indices {index.min()} to {index.max()} are not all among {len(data)} rows.")
        y = data.copy()
        if self.reduction == "none":
            for at, row in zip(index.reshape(-1), updates.reshape(index.size, *data.shape[1:]), strict=True):
                y[at] = row
        else:
            UFUNCS[self.reduction].at(y, index, updates)
        return (y,)

    def picked(self, b: Builder, table: Value, index: Value) -> Value:
        return b.Gather(table, index, axis=0)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        data, index, updates = map(present, inputs)
        names = LETTERS[:updates.rank]
        return self.put_work(data, index, updates, (None, *names[index.rank:]), names[:index.rank])

    def put_call(self, data: TensorType, index: TensorType, updates: TensorType) -> Call:
        (code, reduction), inner = self.elements(data), math.prod(data.shape[1:])
        args = (In(1, (index.size,)), In(2, (index.size, inner)), Out(0, (data.shape[0], inner)))
        return Call(scatter_rows(code, index.code, reduction), args, -(-inner // STRIP), 1,
                    updates.nbytes * 0.1 + index.size * 3.0)


@op("ScatterAlong", onnx=False)
class ScatterAlong(_Table):
    """The data [outer, n, inner] with updates [outer, k, inner], each at the place along the second axis that its index
    names, and at its own place along the others; negative ones count from the end. As ScatterRows otherwise.
    """

    along = 1

    @classmethod
    def samples(cls) -> list[Sample]:
        twice = np.array([[[2, 0, 1], [-1, 2, 1]], [[0, 0, 0], [0, 1, -4]]])
        return [sample((2, 4, 3), twice, (2, 2, 3), reduction=r) for r in REDUCTIONS] + [
            sample((1, 5, 2), ("int32", (1, 7, 2), -5, 5), (1, 7, 2))
        ]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        data, index, updates = map(present, types)
        self.check(data, index, updates)
        if data.rank != 3 or updates.shape != index.shape or index.shape[::2] != data.shape[::2]:
            raise ShapeError(
                f"indices {list(index.shape)} and updates {list(updates.shape)} for {list(data.shape)}: they must be "
                "alike, and differ from it along the second of three axes only."
            )
        return (data,)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        data, index, updates = map(present, inputs)
        if index.size and not (-data.shape[1] <= index.min() and index.max() < data.shape[1]):
            raise ShapeError(f"indices {index.min()} to {index.max()} are not all among {data.shape[1]} places.")
        y = data.copy()
        for o, k, i in np.ndindex(index.shape):
            at, new = (o, index[o, k, i], i), updates[o, k, i]
            y[at] = new if self.reduction == "none" else UFUNCS[self.reduction](y[at], new)
        return (y,)

    def picked(self, b: Builder, table: Value, index: Value) -> Value:
        return b.GatherElements(table, index, axis=1)

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        data, index, updates = map(present, inputs)
        return self.put_work(data, index, updates, (LETTERS[0], None, LETTERS[2]), LETTERS[:3])

    def put_call(self, data: TensorType, index: TensorType, updates: TensorType) -> Call:
        code, reduction = self.elements(data)
        units = data.shape[0] * -(-data.shape[2] // LANES)
        args = (In(1, index.shape), In(2, updates.shape), Out(0, data.shape))
        return Call(scatter_along(code, index.code, reduction), args, units, 1, index.size * 3.0)


@op("ScatterElements")
class ScatterElements(_Reducing):
    """The data with each update at the place that its index names along `axis`, and its own place along the others."""

    axis: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        twice = ("int64", (2, 4), -3, 3)
        return [sample((3, 4), twice, (2, 4), axis=0, reduction=r) for r in REDUCTIONS] + [
            sample((2, 3, 4), ("int32", (2, 2, 3), -3, 3), (2, 2, 3), axis=1), sample((3, 4), np.array([[1, 3], [0, -4]]), (2, 2), axis=-1),
            sample(("bool", (5,)), ("int64", (4,), 0, 5), ("bool", (4,))), sample((6,), ("int64", (4,), -6, 6), (4,), reduction="add")]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        data, index, updates = map(present, types)
        self.check(data, index, updates)
        axis = normal_axis(self.axis, data.rank)
        fits = index.rank == data.rank and all(n <= m or i == axis for i, (n, m) in enumerate(zip(index.shape, data.shape, strict=True)))
        if not fits or updates.shape != index.shape:
            raise ShapeError(f"indices {list(index.shape)} and updates {list(updates.shape)} for {list(data.shape)}: they must be alike, "
                             f"and not larger than it but along axis {axis}.")
        return (data,)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        data, index, updates = map(present, inputs)
        axis = normal_axis(self.axis, data.type.rank)
        if all(i == axis or n == m for i, (n, m) in enumerate(zip(index.shape, data.shape, strict=True))):
            return [self._along(b, data, index, updates, axis)]
        places = element_places(b, index, data.shape, axis)
        flat = b.ScatterRows(b.Reshape(data, shape=(data.type.size,), allowzero=1), places, updates, reduction=self.reduction)
        return [b.Reshape(flat, shape=data.shape, allowzero=1)]

    def _along(self, b: Builder, data: Value, index: Value, updates: Value, axis: int) -> Value:
        """Where the other axes are the data's, each element stays in its lane."""
        known = b.graph.constants.get(index)
        if known is not None:
            index = b.constant(known_place(known, data.shape[axis], data.shape), "places")
        lanes = [
            (math.prod(v.shape[:axis]), v.shape[axis], math.prod(v.shape[axis + 1 :])) for v in (data, index, updates)
        ]
        table, places, new = (
            b.Reshape(v, shape=shape, allowzero=1) for v, shape in zip((data, index, updates), lanes, strict=True)
        )
        return b.Reshape(b.ScatterAlong(table, places, new, reduction=self.reduction), shape=data.shape, allowzero=1)


@op("ScatterND")
class ScatterND(_Reducing):
    """The data with the slices of `updates` at the places that the last axis of the indices holds."""

    @classmethod
    def samples(cls) -> list[Sample]:
        twice = ("int64", (4, 1), -3, 3)
        return [sample((3, 4), twice, (4, 4), reduction=r) for r in REDUCTIONS] + [
            sample((3, 4), ("int64", (5, 2), -3, 3), (5,), reduction="add"), sample((3, 4), np.array([[0, 1], [2, -1]]), (2,))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        data, index, updates = map(present, types)
        self.check(data, index, updates)
        depth = index.shape[-1] if index.rank else 0
        if not 0 < depth <= data.rank or updates.shape != index.shape[:-1] + data.shape[depth:]:
            raise ShapeError(f"indices {list(index.shape)} and updates {list(updates.shape)} for {list(data.shape)}: the last axis of the indices "
                             f"names 1 to {data.rank} axes, and an update has the others.")
        return (data,)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        data, index, updates = map(present, inputs)
        places = row_places(b, index, data.shape, 0)
        depth = index.shape[-1]
        rows = b.Reshape(data, shape=(math.prod(data.shape[:depth]), *data.shape[depth:]), allowzero=1)
        return [b.Reshape(b.ScatterRows(rows, places, updates, reduction=self.reduction), shape=data.shape, allowzero=1)]


@op("TensorScatter")
class TensorScatter(Op):
    """The cache with the update along `axis` from each sample's write index on (0 where they are not given).

    mode: "linear" (what does not fit stops the run), or "circular" (what does not fit goes on at the start).
    """

    roles = ("moved",)

    mode: str = "linear"
    axis: int = -2

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 3, 5, 2), (2, 3, 2, 2), ("int64", (2,), 0, 4)), sample((2, 5, 3), (2, 4, 3), ("int64", (2,), 0, 5), mode="circular"),
                sample((2, 3, 4), (2, 3, 2), axis=-1)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        cache, update = present(types[0]), present(types[1])
        axis = normal_axis(self.axis, cache.rank)
        if self.mode not in ("linear", "circular"):
            raise OptionError(f"mode {self.mode!r} is unknown; it must be linear or circular.")
        if axis == 0:
            raise ShapeError("the axis of the sequence is that of the batch, 0; it must come after it.")
        shorter = update.rank == cache.rank and update.shape[axis] <= cache.shape[axis]
        if not shorter or update.with_shape((*update.shape[:axis], cache.shape[axis], *update.shape[axis + 1:])) != cache:
            raise ShapeError(f"the update {update} must be like the cache {cache}, but may be shorter along axis {axis}.")
        if len(types) > 2 and types[2] is not None:
            check_indices(types[2])
            if types[2].shape != cache.shape[:1]:
                raise ShapeError(f"write indices {types[2]} for a batch of {cache.shape[0]}; there must be one for each sample.")
        return (cache,)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        cache, update = present(inputs[0]), present(inputs[1])
        axis = normal_axis(self.axis, cache.type.rank)
        n, prefix = cache.shape[axis], cache.shape[:axis]
        steps = np.arange(update.shape[axis])
        starts = np.arange(math.prod(prefix)).reshape(*prefix, 1) * n
        if len(inputs) < 3 or inputs[2] is None:
            places = b.constant(starts + steps)
        else:
            first = b.Reshape(inputs[2], shape=(prefix[0], *[1] * axis), allowzero=1)
            places = b.Map(first, b.constant(steps), b.constant(starts), exprs=(self._place(first.dtype, n, math.prod(prefix) * n),))
        flat = b.ScatterRows(b.Reshape(cache, shape=(math.prod(prefix) * n, *cache.shape[axis + 1:]), allowzero=1), places, update)
        return [b.Reshape(flat, shape=cache.shape, allowzero=1)]

    def _place(self, index: str, n: int, beyond: int) -> Expr:
        """The row of write index + step, in a prefix's rows."""
        at, start = cast(Var(0, index), "int64") + Var(1, "int64"), Var(2, "int64")
        if self.mode == "linear":
            return where((at < 0) | (at >= n), Const(beyond, "int64"), start + at)
        turn = at - at / n * n                            # quotients are cut towards zero
        return start + where(turn < 0, turn + n, turn)


@op("ReverseSequence")
class ReverseSequence(Op):
    """The first `sequence_lens[i]` elements along `time_axis` of sample i of `batch_axis` in reverse; the others stay.

    One of the axes is 0, the other 1.
    """

    roles = ("moved",)

    batch_axis: int = 1
    time_axis: int = 0

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((4, 3, 2), ("int64", (3,), 0, 5)), sample((3, 4), ("int64", (3,), 1, 5), batch_axis=0, time_axis=1),
                sample((4, 3), np.array([4, 1, 2]))]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, lengths = present(types[0]), present(types[1])
        if {self.batch_axis, self.time_axis} != {0, 1} or x.rank < 2:
            raise ShapeError(f"batch_axis {self.batch_axis} and time_axis {self.time_axis} of {list(x.shape)} must be its axes 0 and 1.")
        check_indices(lengths)
        if lengths.shape != (x.shape[self.batch_axis],):
            raise ShapeError(f"sequence_lens {lengths} for {x.shape[self.batch_axis]} samples; there must be one for each.")
        return (x,)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x, lengths = present(inputs[0]), present(inputs[1])
        n, sizes = x.shape[self.time_axis], x.shape[:2]
        column = tuple(m if i == self.batch_axis else 1 for i, m in enumerate(sizes))
        time = np.arange(n).reshape([n if i == self.time_axis else 1 for i in (0, 1)])
        sample_ = np.arange(sizes[self.batch_axis]).reshape(column)
        step, stride = (sizes[1], 1) if self.time_axis == 0 else (1, sizes[1])
        length, t, s = cast(Var(0, lengths.dtype), "int64"), Var(1, "int64"), Var(2, "int64")
        row = s * stride + where(t < length, length - 1 - t, t) * step
        row = where((length < 0) | (length > n), Const(math.prod(sizes), "int64"), row)
        places = b.Map(b.Reshape(lengths, shape=column, allowzero=1), b.constant(time), b.constant(sample_), exprs=(row,))
        return [b.Gather(b.Reshape(x, shape=(math.prod(sizes), *x.shape[2:]), allowzero=1), places, axis=0)]
