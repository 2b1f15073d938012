"""What a matrix product is in numbers, and what its leaves read: the same for all ways to do it."""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ..machine.call import Call, In
from ..machine.leaf import Numbers

BIASED, ALONG, MORE, COPIED, PANELS = 1, 2, 4, 8, 16
"""Flags of a leaf call: a bias is added; it differs from column to column; C holds a sum already, to which this one is added;
blocks of A are copied; B lies in panels."""


@dataclass(frozen=True)
class GemmProblem:
    """A batch of products C = A @ B with A [m, k] ([k, m] with `trans_a`), B [k, n] ([n, k] with `trans_b`), C [m, n].

    `a_step` and `b_step` are the elements from one matrix to the next along each axis of `batch`, 0 where the operand is broadcast.
    """

    m: int
    n: int
    k: int
    trans_a: bool = False
    trans_b: bool = False
    batch: tuple[int, ...] = ()
    a_step: tuple[int, ...] = ()
    b_step: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Number of matrices."""
        return math.prod(self.batch)


@dataclass(frozen=True)
class Bias:
    """What is added to C: its element [i, j] lies at i * row + j * column of the array `arg`."""

    arg: In
    row: int
    column: int


@dataclass(frozen=True)
class Serial:
    """Do a product in `factor` pieces, one after the other: of the rows ("m") or columns ("n") of C, or of its sums ("k").

    Only the packed copy of B takes memory, so pieces of rows cut that copy as pieces of columns do. Pieces of sums are added
    to C in order: the bits are those of the whole product where a piece is a multiple of the blocking's `depth`.
    """

    axis: str
    factor: int


@dataclass(frozen=True)
class Panels:
    """The right operand of a product laid out beforehand: `elements` of `dtype`; `calls` read it as In(0) and write Out(0)."""

    elements: int
    dtype: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class GemmSizes(Numbers):
    """What the leaf of a product reads. Its range: units = blocks of C of `rows` x `cols`, rows first, then columns, then the batch.

    Strides of A and B are bytes, those of C and the bias elements. `b_col` leads from column to column of B; within a panel it is the
    mean. The batch has two axes, `inner` matrices along the last. `c_at` modulo `c_row` is the piece's first column.
    """

    flags: int
    bias_row: int
    bias_column: int
    m: int
    n: int
    k: int
    rows: int
    cols: int
    depth: int
    a_row: int
    a_k: int
    b_col: int
    inner: int
    a_outer: int
    a_inner: int
    b_outer: int
    b_inner: int
    a_at: int
    b_at: int
    c_at: int
    c_row: int


def simplify(p: GemmProblem) -> GemmProblem:
    """The same products with fewer batch axes: neighbours that step alike become one, or more rows of A where B stays the same."""
    axes: list[tuple[int, int, int]] = []
    for size, a, b in zip(p.batch, p.a_step, p.b_step, strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1] == a * size and axes[-1][2] == b * size:
            axes[-1] = (axes[-1][0] * size, a, b)
        else:
            axes.append((size, a, b))
    if axes and axes[-1][2] == 0 and axes[-1][1] == p.m * p.k and (not p.trans_a or p.m == 1 or p.k == 1):
        p = replace(p, m=p.m * axes.pop()[0], trans_a=False)
    # A matrix of one row or column is the same memory either way round.
    if p.m == 1 or p.k <= 1:
        p = replace(p, trans_a=False)
    if p.n == 1 or p.k <= 1:
        p = replace(p, trans_b=p.k > 1)
    return replace(p, batch=tuple(x[0] for x in axes), a_step=tuple(x[1] for x in axes), b_step=tuple(x[2] for x in axes))


def last_two(values: Sequence[int], fill: int) -> tuple[int, int]:
    """The last two of `values`, filled up in front."""
    first, second = ([fill] * 2 + list(values))[-2:]
    return first, second


def starts(p: GemmProblem) -> Iterator[tuple[int, int, int]]:
    """Starts of A, B (elements) and C (matrices) for each index of the batch axes before the last two."""
    for number, index in enumerate(product(*map(range, p.batch[:-2]))):
        yield (sum(i * s for i, s in zip(index, p.a_step, strict=False)),
               sum(i * s for i, s in zip(index, p.b_step, strict=False)), number * math.prod(p.batch[-2:]))


def flat(arg: Any, size: int | None = None) -> Any:
    """The operand as one axis."""
    return replace(arg, shape=(math.prod(arg.shape) if size is None else size,))
