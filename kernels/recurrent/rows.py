"""What a cell does to one row of a step: scalar expressions over named vectors, compiled to one function of their addresses."""
from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..dtypes import ELEMENTS
from ..elementwise.expr import Expr, Var, flops, key, substitute, variables
from ..elementwise.loops import FULL, Loops
from ..isa import cpu
from ..isa.vector import Emitter, as_intrinsic, itemsize

Name = tuple[str, int]
"""The k-th vector of the row of an array: its letters, and k."""


@dataclass(frozen=True)
class RowPass:
    """Expressions over the vectors of a row (variable i is inputs[i]) and where their values go. Outputs may lie where inputs do."""

    inputs: tuple[Name, ...]
    outputs: tuple[Name, ...]
    exprs: tuple[Expr, ...]

    @property
    def flops(self) -> float:
        """Operations for one element."""
        return flops(*self.exprs)

    @property
    def key(self) -> str:
        """A text that names the pass."""
        return hashlib.sha1(repr((key(*self.exprs), self.inputs, self.outputs)).encode()).hexdigest()[:16]


class Vectors:
    """Variables by name, and the pass over those that its expressions read."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self._known: dict[Name, Expr] = {}

    def __call__(self, array: str, k: int = 0) -> Expr:
        """The k-th vector of an array's row."""
        return self._known.setdefault((array, k), Var(len(self._known), self.dtype))

    def row_pass(self, outputs: dict[Name, Expr]) -> RowPass:
        """The pass that computes `outputs`."""
        read = variables(*outputs.values())
        names = [name for name, v in self._known.items() if v in read.values()]
        new = {int(self._known[name].value or 0): Var(i, self.dtype) for i, name in enumerate(names)}
        return RowPass(tuple(names), tuple(outputs), tuple(substitute(e, new) for e in outputs.values()))


def row_function(what: RowPass, arrays: Sequence[str], wide: str, dtype: str, path: cpu.Cpu) -> Any:
    """The Numba-callable `f(n, step, <address of the row of each of the arrays>)` that runs a pass over vectors of n elements.

    The k-th vector of a row begins k * n elements after its address; in the array `wide` it is k * step bytes.
    """
    return _row_function(what, tuple(arrays), wide, dtype, path)


@functools.cache
def _row_function(what: RowPass, arrays: tuple[str, ...], wide: str, dtype: str, path: cpu.Cpu) -> Any:
    element, size = ELEMENTS[dtype].name, itemsize(dtype)
    loops = Loops(what.exprs, tuple(range(len(what.inputs))), (element,) * len(what.inputs), (FULL,) * len(what.inputs), 1)

    def emit(e: Emitter, n: Any, step: Any, *rows: Any) -> None:
        row, apart = dict(zip(arrays, rows, strict=True)), e.times(n, size)

        def place(name: Name) -> Any:
            array, k = name
            return e.address(row[array], e.times(step if array == wide else apart, k)) if k else row[array]
        loops.row(e, n, [place(name) for name in what.inputs], [place(name) for name in what.outputs])

    name = f"recurrent_{what.key}_{'_'.join(arrays)}_{dtype}_{path.name}"
    return as_intrinsic(name, ", ".join(["n", "step", *(f"at_{a}" for a in arrays)]), path, emit)
