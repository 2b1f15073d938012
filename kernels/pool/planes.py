"""Pooling of a product's finished planes while they are in cache, so that the product itself is never written to memory.

The kernel computes whole planes of its product into scratch memory, runs its epilogue there, and then `pooler`'s function over them: maxima
of 2 x 2 blocks, their winners if wanted, and what is elementwise afterwards. That is a leaf of its own, which the
product's calls by its address as it does its epilogue; the arrays that come out follow those of the epilogue behind the
word `rest`.

All of it is the code that the separate leaves run: the bits are those of a product, a pooling and an elementwise pass.
"""
from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir

from ..elementwise.epilogue import Epilogue, Form
from ..elementwise.loops import FULL, Loops
from ..elementwise.values import loaded, stored
from ..isa import cpu
from ..isa.vector import WORD, Emitter, itemsize, word
from ..machine.call import Address, Out
from ..machine.called import caller
from ..machine.emitted import EmittedLeaf, signature_of, words_of
from ..machine.leaf import Leaf, parse
from .maximum import halve


@dataclass(frozen=True)
class Shape:
    """What of a pooling shapes the code: the dtypes of elements and winners ("": not wanted), and what follows."""

    dtype: str
    code: str
    then: Form | None

    @property
    def key(self) -> str:
        """All of it as a word."""
        return f"{self.dtype}_{self.code}_{self.then.key if self.then else ''}"

    @property
    def signature(self) -> str:
        """What its leaf finds at `rest`."""
        own = f"{self.dtype}[:]" + (f", {self.code}[:]" if self.code else "")
        return f"{own}, {self.then.signature}" if self.then and self.then.signature else own

    @property
    def outputs(self) -> int:
        """Arrays that the pooling itself writes."""
        return 2 if self.code else 1

    @property
    def arrays(self) -> int:
        """Arrays that what follows reads and writes besides the maxima."""
        return len(self.then.kinds) + len(self.then.exprs) - 1 if self.then else 0


@dataclass(frozen=True)
class Pooling:
    """Maxima of the 2 x 2 blocks of `planes` planes [h, w], a last odd row or column left out: output 0, [planes, h // 2, w // 2].

    code: the dtype of the winners (output 1, numbered as in `max_pool`), or "". then: an epilogue of the maxima.
    """

    dtype: str
    planes: int
    h: int
    w: int
    code: str = ""
    then: Epilogue | None = None

    @property
    def shape(self) -> Shape:
        """What shapes the code."""
        return Shape(self.dtype, self.code, self.then.form if self.then else None)

    @property
    def address(self) -> Address:
        """The Call's argument for the word `pooling`."""
        return Address(_leaf(self.shape, cpu.current()), parse(self.shape.signature))

    @property
    def args(self) -> list[Any]:
        """The Call's arguments for the parameters that `Shape.signature` names."""
        whole = (self.planes * (self.h // 2) * (self.w // 2),)
        return [*(Out(i, whole) for i in range(self.shape.outputs)), *(self.then.args if self.then else [])]

    @property
    def cost(self) -> float:
        """Nanoseconds that it adds to the product on one core."""
        return self.planes * (self.h // 2) * (4 + self.w // 2 * 0.5) + (self.then.cost if self.then else 0.0)


WORDS = "rest, planes, h, w, source, plane, channel"
"""What a product hands its pooling."""


def pooler() -> Any:
    """The function `pool(pooling, rest, planes, h, w, source, plane, channel)`, all intp, that pools planes.

    pooling: the leaf's word for `Pooling.address`. rest: the address of the words for `Pooling.args`. planes, h, w:
    how many there are, of which size. source: the address of the first one. plane, channel: its number in the product
    and that of its channel. Nothing is done where the product is kept.
    """
    return caller("pooling", WORDS)


@functools.cache
def _leaf(shape: Shape, path: cpu.Cpu) -> Leaf:
    size = itemsize(shape.dtype)

    def pooling(e: Emitter, at_words: Any, _lo: Any, _hi: Any) -> None:
        rest, planes, h, w, source, plane, channel = words_of(e, at_words, WORDS)

        def array(k: int) -> Any:
            return e.load(e.address(rest, 16 * k), WORD)

        high, wide = e.b.ashr(h, word(1)), e.b.ashr(w, word(1))
        block, maxima = e.b.mul(high, wide), array(0)
        arrays = [array(shape.outputs + k) for k in range(shape.arrays)]
        words = e.address(rest, 16 * (shape.outputs + shape.arrays))
        scalars = loaded(e, words, shape.then.exprs if shape.then else ())

        def one(i: Any, state: list[Any]) -> list[Any]:
            x, done = state

            def put(e: Emitter, best: Any, y: Any) -> None:
                if shape.then is None:
                    e.store(best, y)
                else:
                    index = e.b.sdiv(e.b.sub(y, maxima), word(size))
                    _finish(e, shape.then, best, maxima, index, e.b.add(channel, i), arrays, scalars)

            where = e.address(array(1), done) if shape.code else word(0)
            halve(shape.dtype, shape.code, path, put)(e, high, wide, x, e.times(w, size), e.address(maxima, e.times(done, size)), where)
            return [e.address(x, e.times(e.b.mul(h, w), size)), e.b.add(done, block)]
        e.loop(0, planes, 1, [source, e.b.mul(plane, block)], one)
    return EmittedLeaf(pooling, signature_of(WORDS), key=f"{shape.key}_{path.name}", path=path)


def _finish(e: Emitter, then: Form, best: Any, maxima: Any, index: Any, channel: Any, arrays: Sequence[Any],
            scalars: Sequence[Any]) -> None:
    """What follows the maxima, for one vector of them: number `index` and its neighbours in output 0."""
    lanes, kinds, dtypes = best.type.count, then.kinds, then.dtypes
    raw = [best]
    for base, kind, dtype in zip(arrays[:len(kinds)], kinds, dtypes, strict=True):
        if kind == "full":
            raw.append(e.load(_element(e, base, index, dtype), ir.VectorType(stored(dtype), lanes)))
        else:
            at = channel if kind == "channel" else word(0)
            raw.append(e.splat(e.load(_element(e, base, at, dtype), stored(dtype)), lanes))
    loops = Loops(then.exprs, tuple(range(len(raw))), (then.exprs[0].dtype, *dtypes), (FULL,) * len(raw), 1)
    targets = [maxima, *arrays[len(kinds):]]
    loops.vector(e, lanes, raw, [_element(e, y, index, x.dtype) for y, x in zip(targets, then.exprs, strict=True)],
                 [e.splat(x, lanes) for x in scalars])


def _element(e: Emitter, base: Any, index: Any, dtype: str) -> Any:
    """The address of an element."""
    return e.address(base, e.times(index, np.dtype(dtype).itemsize))
