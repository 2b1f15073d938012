"""Where things lie, inside of leaf bodies: addresses of arrays, and the part of a strided walk that stays on an axis."""
from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from ..isa.paths import PATHS
from ..isa.vector import BIT, WORD, Emitter, as_intrinsic
from .inner import register_jitable


@register_jitable
def address_of(x: Any) -> Any:
    """The address of an array, signed: mixed with Numba's unsigned one, sums would become floats."""
    return np.intp(x.ctypes.data)


@intrinsic
def word_at(_typing: Any, address: Any, index: Any) -> Any:
    """A whole number (int64) of an array, by its address and index."""
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.load(builder.gep(builder.inttoptr(args[0], WORD.as_pointer()), [args[1]]))
    return types.intp(types.intp, types.intp), generate


def _clear(e: Emitter, address: Any, nbytes: Any) -> None:
    pointer = e.b.inttoptr(address, ir.IntType(8).as_pointer())
    e.call("llvm.memset.p0.i64", ir.VoidType(), [pointer, ir.Constant(ir.IntType(8), 0), nbytes, ir.Constant(BIT, 0)])


clear = as_intrinsic("tileflow_clear", "address, nbytes", PATHS["generic"], _clear)
"""clear(address, nbytes): zeros, none where there are no bytes."""


@register_jitable
def within(first: int, count: int, step: int, limit: int) -> tuple[int, int]:
    """The part i0..i1 of i < count for which first + i * step is in 0..limit."""
    i0 = min(count, max(0, (step - 1 - first) // step))
    i1 = min(count, max(i0, (limit - 1 - first) // step + 1))
    return i0, i1


@intrinsic
def shaped(_typing: Any, x: Any, shape: Any) -> Any:
    """The elements of an array in order of memory as an array of another shape (a tuple), which has at most as many of
    them."""
    kind = types.Array(x.dtype, len(shape), "C")

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        source = make_array(x)(context, builder, args[0])
        sizes = cgutils.unpack_tuple(builder, args[1], len(shape))
        strides = [source.itemsize]
        for n in sizes[:0:-1]:
            strides.insert(0, builder.mul(strides[0], n, flags=["nsw"]))
        made = make_array(kind)(context, builder)
        populate_array(made, data=source.data, shape=sizes, strides=strides, itemsize=source.itemsize, meminfo=None)
        return made._getvalue()

    return kind(x, types.UniTuple(types.intp, len(shape))), generate
