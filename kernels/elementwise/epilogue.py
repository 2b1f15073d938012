"""Epilogues: elementwise expressions that run over blocks of a product while they are still in cache.

    finish = finisher()

    def body(a, b, c, m, n, k, lo, hi, epilogue, rest):
        ...                                                     # a block of C, `rows` by `cols`, first element C[i, j], is finished
        finish(epilogue, rest, rows, cols, c.ctypes.data, i * n + j, n, j)

    leaf = Leaf(body, "f4[:], f4[:], f4[:], i8, i8, i8, lo, hi" + CALLED)
    Call(leaf, [a, b, c, m, n, k, *arguments(epilogue)], n=units)

An epilogue is a leaf of its own, which the product's calls by its address (`machine/called.py`), once for a unit of
work: a few thousand elements, so that a call costs nothing beside them. A product is compiled once, whatever follows
it, and what follows once for all products.

The code of a vector is that of the elementwise leaves, each operation rounded to its dtype: a product with an epilogue has
the bits of the product and an elementwise pass after it.
"""
from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..dtypes import CODES
from ..isa import cpu
from ..isa.vector import WORD, Emitter, word
from ..machine.call import Address, Call, In, Out
from ..machine.called import caller
from ..machine.emitted import EmittedLeaf, signature_of, words_of
from ..machine.leaf import Leaf, parse
from .coefficients import letters, lift
from .expr import Expr, flops, key, variables
from .loops import COLUMN, FULL, ROW, SCALAR, Loops, elementwise_call
from .tabulated import Tabulated, tabulated_for
from .values import loaded

KINDS = ("full", "channel", "scalar")


@dataclass(frozen=True)
class Along:
    """An operand of an epilogue: an element per element of the product ("full"), per output channel ("channel"), or one ("scalar")."""

    arg: In
    kind: str

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind


@dataclass(frozen=True)
class Form:
    """What of an epilogue shapes the code: its lifted expressions and the kinds of its operands."""

    exprs: tuple[Expr, ...]
    kinds: tuple[str, ...]

    @property
    def dtypes(self) -> list[str]:
        """Element types of the operands."""
        read = variables(*self.exprs)
        return [read[i + 1].dtype for i in range(len(self.kinds))]

    @property
    def signature(self) -> str:
        """What its leaf finds at `rest`: the operands, then the outputs but the first, then the coefficients."""
        arrays = [*self.dtypes, *(e.dtype for e in self.exprs[1:])]
        return ", ".join([*(f"{CODES[d]}[:]" for d in arrays), *letters(*self.exprs)])

    @property
    def key(self) -> str:
        """A hash of all of it."""
        return hashlib.sha1(repr((key(*self.exprs), self.kinds)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Epilogue:
    """What is done to each of the `size` elements of a product.

    Variable 0 is the finished element of the product, of output 0's dtype; variable i is operands[i - 1], and all are read. The
    product is computed in the memory of output 0, where exprs[0] replaces it; exprs[k] goes to output own - 1 + k, `own` being how
    many outputs the operator has itself. All of them have the product's shape and lie alike.
    """

    exprs: tuple[Expr, ...]
    operands: tuple[Along, ...]
    size: int
    own: int = 1
    retyped: bool = False              # the product is not computed in the memory of output 0: exprs[0], the only one, may have another type

    def __post_init__(self) -> None:
        read = variables(*self.exprs)
        assert list(read) == list(range(len(self.operands) + 1)), (read, self.operands)
        assert self.retyped or read[0].dtype == self.exprs[0].dtype, "the product is replaced where it lies"

    @property
    def looked_up(self) -> Tabulated | None:
        """What follows from an 8-bit number, if that is looked up."""
        form = self.form
        fixed = frozenset(i + 1 for i, kind in enumerate(form.kinds) if kind == "scalar")
        return tabulated_for(self.size, form.exprs, fixed)

    @property
    def form(self) -> Form:
        """What shapes the code."""
        return Form(lift(self.exprs).exprs, tuple(o.kind for o in self.operands))

    @property
    def args(self) -> list[Any]:
        """The Call's arguments for the parameters that `Form.signature` names."""
        return [*(replace(o.arg, shape=(math.prod(o.arg.shape),)) for o in self.operands),
                *(Out(self.own - 1 + k, (self.size,)) for k in range(1, len(self.exprs))), *lift(self.exprs).values]

    @property
    def cost(self) -> float:
        """Nanoseconds that it adds to the product on one core: operands and further outputs move, the product is in cache."""
        moved = [d for d, o in zip(self.form.dtypes, self.operands, strict=True) if o.kind == "full"]
        moved += [e.dtype for e in self.exprs[1:]]
        arithmetic = 0.28 * flops(*self.exprs) / cpu.current().lanes(4)
        return self.size * (arithmetic + sum(np.dtype(d).itemsize for d in moved) / 40.0)

    def after(self, shape: Sequence[int], axis: int) -> Call:
        """The same as a pass of its own over a product of this shape with its channels along `axis`: for a way without `apply`."""
        axis %= len(shape)
        table = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1:]))
        lies = {"full": table, "channel": (shape[axis], 1), "scalar": ()}
        operands = [replace(o.arg, shape=lies[o.kind]) for o in self.operands]
        return elementwise_call(self.exprs, [Out(0, table), *operands], [Out(k and self.own - 1 + k, table) for k in range(len(self.exprs))])


WORDS = "rest, rows, cols, c, start, row, channel"
"""What a product hands its epilogue."""


def finisher() -> Any:
    """The function `finish(epilogue, rest, rows, cols, c, start, row, channel)`, all intp, that finishes a block.

    epilogue, rest: the leaf's words of the Call's `arguments`. rows, cols: the size of the block. c: the address of
    output 0's first element. start: how many elements lie before the block's first one. row: elements from one row of
    the block to the next; columns are neighbours. channel: the output channel of the block's first column or, with
    channels="rows", of its first row. Without an epilogue nothing is done.
    """
    return caller("epilogue", WORDS)


def arguments(epilogue: Epilogue | None, channels: str = "columns") -> list[Any]:
    """The Call's arguments for the end, `CALLED`, of a signature; channels: a block's "columns" or "rows"."""
    assert channels in ("columns", "rows"), channels
    if epilogue is None:
        return [Address()]
    form = epilogue.form
    leaf = _leaf(form, channels == "columns", epilogue.looked_up, cpu.current())
    return [Address(leaf, parse(form.signature)), *epilogue.args]


@functools.cache
def _leaf(form: Form, by_column: bool, table: Tabulated | None, path: cpu.Cpu) -> Leaf:
    kinds, dtypes = ["full", *form.kinds], [form.exprs[0].dtype, *form.dtypes]
    lies = {"full": FULL, "scalar": SCALAR, "channel": ROW if by_column else COLUMN}
    loops = Loops(form.exprs, tuple(range(len(kinds))), tuple(dtypes), tuple(lies[kind] for kind in kinds), 2, table)

    def epilogue(e: Emitter, block: Any, _lo: Any, _hi: Any) -> None:
        rest, rows, cols, c, start, row, channel = words_of(e, block, WORDS)
        words = [e.load(e.address(rest, 16 * i), WORD) for i in range(len(form.kinds) + len(form.exprs) - 1)]
        scalars = loaded(e, e.address(rest, 16 * len(words)), form.exprs)
        sources, targets = [c, *words[:len(form.kinds)]], [c, *words[len(form.kinds):]]
        tables = loops.tables(e, sources, scalars)
        if "channel" not in kinds:                                 # rows that abut are one
            abut = e.b.icmp_signed("==", row, cols)
            rows, cols = e.b.select(abut, word(1), rows), e.b.select(abut, e.b.mul(rows, cols), cols)

        def one(_: Any, at: list[Any]) -> list[Any]:
            offsets = {"full": at[0], "channel": at[1], "scalar": word(0)}
            loops.row(e, cols, [_element(e, a, offsets[k], d) for a, k, d in zip(sources, kinds, dtypes, strict=True)],
                      [_element(e, a, at[0], x.dtype) for a, x in zip(targets, form.exprs, strict=True)], scalars,
                      tables=tables)
            return [e.b.add(at[0], row), at[1] if by_column else e.address(at[1], 1)]
        e.loop(0, rows, 1, [start, channel], one)
    by = ("columns" if by_column else "rows") + ("_looked_up" if table else "")
    return EmittedLeaf(epilogue, signature_of(WORDS), key=f"{form.key}_{by}_{path.name}", path=path)


def _element(e: Emitter, base: Any, index: Any, dtype: str) -> Any:
    """The address of an element."""
    return e.address(base, e.times(index, np.dtype(dtype).itemsize))
