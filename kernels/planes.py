"""Pooling of a product's finished planes while they are in cache, so that the product itself is never written to memory.

The kernel computes whole planes of its product into scratch memory, runs its epilogue there, and then `pooler`'s function over them: maxima
of 2 x 2 blocks, their winners if wanted, and what is elementwise afterwards. Its body sees none of the arrays that come out: they follow
those of the epilogue behind the word `rest`.

All of it is the code that the separate leaves run: the bits are those of a product, a pooling and an elementwise pass.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from numba.core import types
from numba.extending import intrinsic, register_jitable

from . import cpu
from .call import Out
from .epilogue import Epilogue, Form, finisher, name, tail
from .max_pool import halves
from .vector import WORD, itemsize


@dataclass(frozen=True)
class Shape:
    """What of a pooling shapes the code: the dtypes of elements and winners ("": not wanted), and what follows."""

    dtype: str
    code: str
    then: Form | None

    @property
    def name(self) -> str:
        """What a leaf's key says of it."""
        return f"{self.dtype} {self.code} {name(self.then)}"

    @property
    def tail(self) -> str:
        """What the signature ends with, after the epilogue's."""
        own = f", {self.dtype}[:]" + (f", {self.code}[:]" if self.code else "")
        return own + tail(self.then).removeprefix(", rest")

    @property
    def outputs(self) -> int:
        """Arrays that the pooling itself writes."""
        return 2 if self.code else 1


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
    def args(self) -> list[Any]:
        """The Call's arguments for the parameters of `Shape.tail`."""
        whole = (self.planes * (self.h // 2) * (self.w // 2),)
        return [*(Out(i, whole) for i in range(self.shape.outputs)), *(self.then.args if self.then else [])]

    @property
    def cost(self) -> float:
        """Nanoseconds that it adds to the product on one core."""
        return self.planes * (self.h // 2) * (4 + self.w // 2 * 0.5) + (self.then.cost if self.then else 0.0)


@intrinsic
def _word(_typing: Any, address: Any) -> Any:
    """The word at an address."""
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], WORD.as_pointer()))
    return types.intp(types.intp), generate


@register_jitable
def _nothing(rest: int, planes: int, h: int, w: int, source: int, plane: int, channel: int) -> None:
    """The `pool` of a kernel that keeps its product."""


def pooler(shape: Shape | None, before: Form | None, path: cpu.Cpu) -> Any:
    """The Numba-callable `pool(rest, planes, h, w, source, plane, channel)`, all intp, that pools finished planes.

    rest: the leaf's word of that name. planes, h, w: how many there are, of which size. source: the address of the first one. plane,
    channel: its number in the product and that of its channel. `before` is the form of the kernel's epilogue.
    """
    arrays = len(before.dtypes) + len(before.exprs) - 1 if before else 0
    return _nothing if shape is None else _pooler(shape, arrays, path)


@functools.cache
def _pooler(shape: Shape, at: int, path: cpu.Cpu) -> Any:
    size, rest_of_then = itemsize(shape.dtype), 16 * (at + shape.outputs)
    halve, finish = halves(shape.dtype, shape.code, path), finisher(shape.then, channels="rows")
    winners = bool(shape.code)

    @register_jitable
    def pool(rest, planes, h, w, source, plane, channel):                                                                 # type: ignore
        block = (h // 2) * (w // 2)
        maxima = _word(rest + 16 * at)
        where = _word(rest + 16 * (at + 1)) + plane * block if winners else 0
        for i in range(planes):
            halve(h // 2, w // 2, source + i * h * w * size, w * size, maxima + (plane + i) * block * size, where + i * block)
        finish(rest + rest_of_then, planes, block, maxima, plane * block, block, channel)
    return pool
