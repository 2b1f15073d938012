"""Where things lie, inside of leaf bodies: addresses of arrays, and the part of a strided walk that stays on an axis."""
from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from ..isa.inlined import Inlined, over_words
from ..isa.paths import PATHS
from ..isa.vector import BIT, WORD, Emitter, inlined_code
from .values import Array, View


def address_of(x: Any) -> Any:
    """The address of an array."""
    return np.intp(x.ctypes.data)


@over_words(2)
def word_at(b: ir.IRBuilder, address: Any, index: Any) -> Any:
    """A whole number (int64) of an array, by its address and index."""
    return b.load(b.gep(b.inttoptr(address, WORD.as_pointer()), [index]))


def _clear(e: Emitter, address: Any, nbytes: Any) -> None:
    pointer = e.b.inttoptr(address, ir.IntType(8).as_pointer())
    e.call("llvm.memset.p0.i64", ir.VoidType(), [pointer, ir.Constant(ir.IntType(8), 0), nbytes, ir.Constant(BIT, 0)])


clear = inlined_code("tileflow_clear", "address, nbytes", PATHS["generic"], _clear)
"""clear(address, nbytes): zeros, none where there are no bytes."""


def within(first: int, count: int, step: int, limit: int) -> tuple[int, int]:
    """The part i0..i1 of i < count for which first + i * step is in 0..limit."""
    # A table of addresses asks this for each line and tap: a division would be most of what it takes.
    i0, i1 = (-first, limit - first) if step == 1 else ((step - 1 - first) // step, (limit - 1 - first) // step + 1)
    i0 = min(count, max(0, i0))
    return i0, min(count, max(i0, i1))


def _shaped(_b: ir.IRBuilder, x: View, shape: tuple[Any, ...]) -> View:
    return View(Array(x.kind.dtype, len(shape)), x.address, shape)


shaped = Inlined("shaped", _shaped)
"""shaped(x, shape): the elements of an array in order of memory as an array of another shape (a tuple), which has at
most as many of them."""
