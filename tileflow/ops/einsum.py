"""Einstein's summation: products of any tensors, summed over some of their axes, by transposes, matrix products and sums."""
from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..graph.op import Op, op
from ..graph.sample import Sample, sample
from ..memory.types import TensorType
from ..system.errors import OptionError, ShapeError, TypeMismatchError
from .elementwise import NUMBERS
from .shape import Shape, present

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value

Labels = tuple[str, ...]
"""The names of a tensor's axes: letters, and ".0", ".1" ... for the axes of an ellipsis, counted from the right."""
MOST = 52
"""Operands."""


@dataclass(frozen=True)
class Parsed:
    """An equation over tensors of known shapes: the labels of the operands and of the output, and each label's size."""

    operands: tuple[Labels, ...]
    output: Labels
    sizes: dict[str, int]


def parsed(equation: str, shapes: Sequence[Shape]) -> Parsed:
    """Read an equation. Raises OptionError where it is none, ShapeError where the shapes do not fit it."""
    text = equation.replace(" ", "")
    if not re.fullmatch(r"[a-zA-Z.,]*(->[a-zA-Z.]*)?", text):
        raise OptionError(f"the equation {equation!r:.80} must hold letters, '...', commas and one '->' at most.")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise OptionError(f"the equation {equation!r:.80} has {len(terms)} operands and {len(shapes)} are given.")
    if len(terms) > MOST:
        raise OptionError(f"the equation has {len(terms)} operands; at most {MOST} are taken.")
    operands = tuple(_labels(term, len(shape), equation) for term, shape in zip(terms, shapes, strict=True))
    sizes: dict[str, int] = {}
    for labels, shape in zip(operands, shapes, strict=True):
        for label, n in zip(labels, shape, strict=True):
            if sizes.setdefault(label, n) != n:
                if 1 not in (n, sizes[label]):
                    raise ShapeError(f"in {equation!r:.80} axes called {label} have {sizes[label]} and {n} elements.")
                sizes[label] = max(n, sizes[label]) if 0 not in (n, sizes[label]) else 0
    dots = max((sum(label[0] == "." for label in labels) for labels in operands), default=0)
    ellipsis = tuple(f".{k}" for k in reversed(range(dots)))
    if arrow:
        output = _labels(right, dots + len(right.replace("...", "")), equation) if "..." in right else tuple(right)
    else:
        letters = "".join(terms).replace(".", "")
        output = ellipsis + tuple(sorted(c for c in set(letters) if letters.count(c) == 1))
    if len(set(output)) < len(output) or not set(output) <= sizes.keys():
        raise OptionError(f"the output of {equation!r:.80} must name axes of the operands, each once.")
    return Parsed(operands, output, sizes)


def _labels(term: str, rank: int, equation: str) -> Labels:
    """The labels of a term for a tensor of that rank."""
    before, dots, after = term.partition("...")
    spread = rank - len(before) - len(after)
    if "." in before + after or spread < 0 or (spread and not dots):
        raise OptionError(f"in {equation!r:.80} the term {term!r} does not fit a tensor of {rank} dimensions.")
    return (*before, *(f".{k}" for k in reversed(range(spread))), *after)


@dataclass
class _Term:
    """A tensor and the labels of its axes, each once."""

    value: Value
    labels: Labels


@op("Einsum")
class Einsum(Op):
    """The sum over all axes that the output does not name of the product of the operands, by an equation such as "bij,bjk->bik".

    Letters are axes; the same ones belong together, twice in one operand they are its diagonal; "..." stands for any more axes, which
    broadcast, as do sizes of 1. Without "->" the output has the ellipsis, then the letters that occur once, in their order.

    Two operands at a time are contracted: the pair whose result is smallest against what it replaces.
    """

    equation: str = ""

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((3, 4), (4, 5), equation="ij,jk->ik"), sample((2, 3, 4), (2, 5, 4), equation="bik, bjk -> bij"),
                sample((3, 4), equation="ij->ji"),
                sample((3, 3, 2), equation="iij->ij"), sample((3, 3), equation="ii"), sample((2, 3), (3, 4), (4, 5), equation="ab,bc,cd->ad"),
                sample((2, 1, 3, 4), (1, 5, 4, 6), equation="...ij,...jk"),
                sample((3,), (4,), equation="i,j->ij"), sample((3,), (3,), equation="i,i"),
                sample((2, 3, 4), equation="...i->..."), sample(("int32", (3, 4), -9, 9), ("int32", (4, 2), -9, 9), equation="ij,jk->ki"),
                sample((4, 2, 3), (5, 4, 2), equation="kba,ckb->ac"), sample(("int8", (3,), -9, 9), ("int8", (3,), -9, 9), equation="i,i->i")]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        given = [present(t) for t in types]
        if len({t.dtype for t in given}) > 1 or given[0].dtype not in NUMBERS:
            raise TypeMismatchError(f"the operands are {', '.join(map(str, given))}; they must all be of one type of numbers: cast them.")
        found = parsed(self.equation, [t.shape for t in given])
        return (given[0].with_shape(tuple(found.sizes[label] for label in found.output)),)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        values = [present(v) for v in inputs]
        found = parsed(self.equation, [v.shape for v in values])
        narrow = {"int8": "int32", "int16": "int32", "uint8": "uint32", "uint16": "uint32"}.get(values[0].dtype)
        wide = [v if narrow is None else b.Cast(v, to=narrow) for v in values]
        terms = [_plain(b, v, labels, found.sizes) for v, labels in zip(wide, found.operands, strict=True)]
        while len(terms) > 1:
            i, k = _cheapest(terms, found)
            first, second = terms[i], terms[k]
            rest = [t for n, t in enumerate(terms) if n not in (i, k)]
            needed = {*found.output, *(label for t in rest for label in t.labels)}
            others = {label for t in (second, *rest) for label in t.labels}
            first = _summed(b, first, {*found.output, *others})
            second = _summed(b, second, {*needed, *first.labels})
            terms = [*rest, _product(b, first, second, needed)]
        last = _summed(b, terms[0], set(found.output))
        y = _ordered(b, last, found.output).value
        y = y if narrow is None else b.Cast(y, to=values[0].dtype)
        return [b.Identity(y) if y in values else y]


def _plain(b: Builder, x: Value, labels: Labels, sizes: dict[str, int]) -> _Term:
    """An operand with every label once: diagonals taken, axes that broadcast dropped."""
    kept = tuple(i for i, label in enumerate(labels) if x.shape[i] == sizes[label])
    if len(kept) < len(labels):
        x = b.Reshape(x, shape=tuple(x.shape[i] for i in kept), allowzero=1)
        labels = tuple(labels[i] for i in kept)
    while (twice := next((label for label in labels if labels.count(label) > 1), None)) is not None:
        i = labels.index(twice)
        k = labels.index(twice, i + 1)
        rest = tuple(a for a in range(len(labels)) if a not in (i, k))
        n = x.shape[i]
        x = b.Transpose(x, perm=(i, k, *rest))
        x = b.Reshape(x, shape=(n * n, *x.shape[2:]), allowzero=1)
        x = b.Slice(x, starts=(0,), ends=(n * n,), axes=(0,), steps=(n + 1,))
        labels = (twice, *(labels[a] for a in rest))
    return _Term(x, labels)


def _cheapest(terms: Sequence[_Term], found: Parsed) -> tuple[int, int]:
    """The pair whose result is smallest against the two it replaces; of equals the first."""
    def growth(pair: tuple[int, int]) -> float:
        rest = {label for n, t in enumerate(terms) if n not in pair for label in t.labels} | {*found.output}
        made = {label for i in pair for label in terms[i].labels if label in rest}
        return math.prod(found.sizes[label] for label in made) - sum(terms[i].value.type.size for i in pair)
    return min(itertools.combinations(range(len(terms)), 2), key=growth)


def _summed(b: Builder, t: _Term, needed: set[str]) -> _Term:
    """Without the axes that nobody needs."""
    axes = tuple(i for i, label in enumerate(t.labels) if label not in needed)
    if not axes:
        return t
    return _Term(b.ReduceSum(t.value, axes=axes, keepdims=0), tuple(label for label in t.labels if label in needed))


def _ordered(b: Builder, t: _Term, labels: Labels) -> _Term:
    """With its axes in this order."""
    if t.labels == labels:
        return t
    return _Term(b.Transpose(t.value, perm=tuple(t.labels.index(label) for label in labels)), labels)


def _product(b: Builder, x: _Term, y: _Term, needed: set[str]) -> _Term:
    """The product of two, summed over the labels that both have and nobody else needs."""
    shared = [label for label in x.labels if label in y.labels]
    batch = tuple(label for label in shared if label in needed)
    summed = tuple(label for label in shared if label not in needed)
    left = tuple(label for label in x.labels if label not in shared)
    right = tuple(label for label in y.labels if label not in shared)
    labels = batch + left + right
    if not summed or not x.value.type.is_float:
        rows = _spread(b, _ordered(b, x, batch + left + summed), labels + summed)
        columns = _spread(b, _ordered(b, y, batch + right + summed), labels + summed)
        both = b.Mul(rows, columns)
        axes = tuple(range(len(labels), len(labels) + len(summed)))
        return _Term(b.ReduceSum(both, axes=axes, keepdims=0) if axes else both, labels)
    turned_x, turned_y = x.labels == batch + summed + left != batch + left + summed, y.labels == batch + right + summed != batch + summed + right
    sizes = dict(zip(x.labels, x.value.shape, strict=True)) | dict(zip(y.labels, y.value.shape, strict=True))

    def matrices(t: _Term, rows: Labels, columns: Labels) -> Value:
        made = _ordered(b, t, batch + rows + columns).value
        parts = ([batch] if batch else []) + [rows, columns]
        shape = tuple(math.prod(sizes[label] for label in part) for part in parts)
        return made if made.shape == shape else b.Reshape(made, shape=shape, allowzero=1)
    a = matrices(x, summed, left) if turned_x else matrices(x, left, summed)
    c = matrices(y, right, summed) if turned_y else matrices(y, summed, right)
    plain = not turned_x and not turned_y
    made = b.MatMul(a, c) if plain else b.FusedMatMul(a, c, transA=int(turned_x), transB=int(turned_y))
    shape = tuple(sizes[label] for label in labels)
    return _Term(made if made.shape == shape else b.Reshape(made, shape=shape, allowzero=1), labels)


def _spread(b: Builder, t: _Term, labels: Labels) -> Value:
    """With an axis of size 1 for each label that it has not; its own are in this order."""
    sizes = dict(zip(t.labels, t.value.shape, strict=True))
    shape = tuple(sizes.get(label, 1) for label in labels)
    return t.value if t.value.shape == shape else b.Reshape(t.value, shape=shape, allowzero=1)
