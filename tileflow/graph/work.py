"""What an operator does, as data: enough for a planner to split it and to count its FLOPs and bytes, with no operator named.

Axes are named by the letters of the operator's own index space. An `Operand` says which letters index each dimension of a
tensor, and with which halo: a convolution reads input rows `oh * stride + kh * dilation`.
"""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Axis:
    """One axis of the index space.

    kind: "parallel" (the parts of a split write disjoint outputs, and add up in an output that does not have the axis),
        "reduce" (the parts give partials), "staged" (what the parts give is put together: `Staged`), "whole" (never
        split).
    """

    name: str
    size: int
    kind: str = "parallel"


@dataclass(frozen=True)
class Window:
    """A tensor dimension read through a sliding window: index = out * stride + tap * dilation - pad."""

    out: str
    tap: str
    stride: int = 1
    dilation: int = 1
    pad: int = 0

    def nested(self, sizes: Mapping[str, int]) -> bool:
        """Whether each element belongs to one pair of indices, such as those of a group and of a channel in it."""
        return self.stride == sizes.get(self.tap) and self.dilation == 1 and not self.pad

    def range(self, box: Mapping[str, tuple[int, int]], size: int) -> tuple[int, int]:
        """The elements of a dimension of `size` that the points of `box` (a range per axis) meet, padding left out."""
        (first, last), (tap, final) = box[self.out], box[self.tap]
        start = first * self.stride + tap * self.dilation - self.pad
        stop = (last - 1) * self.stride + (final - 1) * self.dilation - self.pad + 1
        lo = min(max(start, 0), size)
        return lo, max(lo, min(stop, size))


@dataclass(frozen=True)
class Nested(Window):
    """A tensor dimension that two axes index together, the inner one `stride` long: index = out * stride + tap. Groups of channels are such."""


def indexed_by(dim: str | Window | None) -> tuple[str, ...]:
    """The axes of which each point has elements of the dimension to itself: those of a window that slides share theirs."""
    return (dim,) if isinstance(dim, str) else (dim.out, dim.tap) if isinstance(dim, Nested) else ()


@dataclass(frozen=True)
class Operand:
    """How a tensor is indexed: per dimension an axis name, a Window, or None (the whole dimension is needed).

    whole: elements of the None dimensions together, where somebody has filled them in (`sized`).
    """

    dims: tuple[str | Window | None, ...]
    dtype: str = "float32"
    whole: int = 1


@dataclass(frozen=True)
class Work:
    """Base: the index space, the operands in and out, FLOPs per point of the space; of what is computed element by element the scalar functions
    by name, the element type each computes in, and how often for one point (empty: arithmetic, or nothing that has a name)."""

    axes: tuple[Axis, ...] = ()
    inputs: tuple[Operand | None, ...] = ()
    outputs: tuple[Operand, ...] = ()
    flops_per_point: float = 0.0
    notes: dict[str, int] = field(default_factory=dict, compare=False)
    functions: tuple[tuple[str, str, int], ...] = field(default=(), kw_only=True)

    @property
    def space(self) -> tuple[Axis, ...]:
        """The axes whose points are computed."""
        return self.axes

    @property
    def points(self) -> int:
        return math.prod(a.size for a in self.space)

    @property
    def flops(self) -> float:
        """Floating-point operations of the whole operator."""
        return self.points * self.flops_per_point


@dataclass(frozen=True)
class Contraction(Work):
    """Sum of products over the reduce axes: matmul, convolution and their gradients. Two FLOPs a point by default.

    Output 0 is alpha * sum(input 0 * input 1) + beta * input 2 (where it is there); output 1, if any, is the sum of input 1.
    A None dimension of an operand has one element, which all points share.
    serial: (axis, pieces) that are to be done one after the other, whatever a planner would choose.
    """

    flops_per_point: float = 2.0
    alpha: float = 1.0
    beta: float = 1.0
    serial: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Map(Work):
    """Every output element from the same elements of the (broadcast) inputs."""


@dataclass(frozen=True)
class Staged(Map):
    """A Map with a "staged" axis: its parts are computed by themselves, then what they found is put together.

    joined: how. "select": outputs lack the axis, and have the best of what the parts have; "scan": outputs have it, and
        each part takes in what all parts before it come to (`Op.joined` does both); "add", "fmin", "fmax": outputs lack
        it, and add up, or are the least or largest that is a number; "": `Op.partials` says which simpler operators
        tiles run where it is cut.
    once: inputs that only the first part has as they are, and the others as zeros.
    """

    joined: str = "add"
    once: tuple[int, ...] = ()

    @property
    def staged(self) -> Axis:
        return next(a for a in self.axes if a.kind == "staged")


@dataclass(frozen=True)
class Reduce(Work):
    """Sums, means, maxima, normalisations: reduce axes without products of two tensors.

    combine: what makes one result of the partials that a split reduce axis gives: "add", "mul", "max", "min", or "" where they do
        not just combine; then the operator's `partials` says which simpler operators run instead.
    """

    combine: str = ""


@dataclass(frozen=True)
class Gather(Work):
    """Rows of input 0 picked by input 1. `notes["rows"]` is the size of the indexed dimension (None in the operand), which a plan
    may split as the reduce axis "rows": each tile then picks what it has."""


@dataclass(frozen=True)
class Scatter(Work):
    """Rows of input 0 added by the index in input 1 to a table of zeros; "rows" as for Gather.

    onto: the table is input 0, and the rows are input 2. combine: what becomes of a place for which several rows come:
    "add", "mul", "min", "max", or "none", where the last one counts.
    """

    combine: str = "add"
    onto: bool = False

    @property
    def once(self) -> tuple[int, ...]:
        """Inputs that, of several parts of one result, one takes in as they are, and the others as what changes nothing
        (as `Staged.once`)."""
        return (0,) if self.onto else ()


@dataclass(frozen=True)
class Move(Work):
    """Data in another order or shape; no arithmetic."""


@dataclass(frozen=True)
class Stepwise(Work):
    """Steps one after the other, each of which needs what the one before made of all units: recurrent layers and their gradients.

    Axes: "d" directions, "b" rows and "n" units are parallel, but units of one row need each other's results at each step; "t" the steps, "g" the
    vectors of a unit that weights [d, g * n, k] make, and "k" the units as they are read, are whole. Others name vectors of other operands.

    products: for each product of a step, of how many of the vectors g. added: a product gives partial sums for all units (a gradient); else it gives
        a unit's own vectors from the state of all. `functions` and `elementwise` (operations): of all vectors of one unit in one step.
    """

    flops_per_point: float = 2.0
    products: tuple[int, ...] = (1,)
    added: bool = False
    elementwise: float = 0.0

    @property
    def space(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.axes if a.name in ("d", "t", "b", "g", "n", "k"))


def sized(work: Work, inputs: Sequence[tuple[int, ...] | None], outputs: Sequence[tuple[int, ...]]) -> Work:
    """The work of operands of these shapes, each knowing how many elements its None dimensions have: every part of the work needs, or writes, them
    all. Lookups name theirs (`Gather`); in contractions they have one."""
    if not isinstance(work, (Map, Reduce)):          # those of tables are rows
        return work

    def filled(operand: Operand | None, shape: tuple[int, ...] | None) -> Operand | None:
        if operand is None or shape is None or len(operand.dims) != len(shape):
            return operand
        whole = math.prod(n for dim, n in zip(operand.dims, shape, strict=True) if dim is None)
        return operand if whole == operand.whole else replace(operand, whole=whole)
    found = (tuple(map(filled, work.inputs, (*inputs, *[None] * (len(work.inputs) - len(inputs))))),
             tuple(map(filled, work.outputs, (*outputs, *[None] * (len(work.outputs) - len(outputs))))))
    return work if found == (work.inputs, work.outputs) else replace(work, inputs=found[0], outputs=found[1])      # type: ignore[arg-type]


def counted(names: Iterable[str], dtype: str) -> tuple[tuple[str, str, int], ...]:
    """`Work.functions` of functions that all compute in one type; a name as often as it is applied."""
    return tuple((name, dtype, n) for name, n in sorted(Counter(names).items()))


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def map_work(shapes: list[tuple[int, ...] | None], out: tuple[int, ...], dtype: str, flops_per_point: float,
             kind: type[Work] = Map) -> Work:
    """The work of a broadcasting elementwise operator."""
    names = [LETTERS[i % 26] + str(i // 26 or "") for i in range(len(out))]
    axes = tuple(Axis(n, s) for n, s in zip(names, out, strict=True))
    inputs: list[Operand | None] = []
    for shape in shapes:
        if shape is None:
            inputs.append(None)
            continue
        shift = len(out) - len(shape)
        inputs.append(Operand(tuple(names[shift + i] if n == out[shift + i] else None for i, n in enumerate(shape)), dtype))
    return kind(axes, tuple(inputs), (Operand(tuple(names), dtype),), flops_per_point)
