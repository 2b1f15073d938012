"""What a cell does to one row of a step: scalar expressions over named vectors, compiled to one function of their addresses."""
from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..dtypes import CODES
from ..elementwise.coefficients import letters, lift
from ..elementwise.expr import Expr, Number, Var, cast, flops, key, substitute, variables
from ..elementwise.loops import FULL, Loops
from ..elementwise.values import loaded
from ..isa import cpu
from ..isa.vector import Emitter, inlined_code, itemsize

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
    def form(self) -> RowPass:
        """What of the pass shapes code: its expressions are lifted."""
        return replace(self, exprs=lift(self.exprs).exprs)

    @property
    def coefficients(self) -> tuple[Number, ...]:
        """The values of the form's coefficients."""
        return lift(self.exprs).values

    @property
    def key(self) -> str:
        """A text that names the pass."""
        return hashlib.sha1(repr((key(*self.exprs), self.inputs, self.outputs)).encode()).hexdigest()[:16]


class Vectors:
    """Variables by name, and the pass over those that its expressions read. `held`: arrays whose memory has another
    type than `dtype`, in which everything is computed."""

    def __init__(self, dtype: str, held: Mapping[str, str]) -> None:
        self.dtype, self._held = dtype, held
        self._known: dict[Name, Expr] = {}

    def __call__(self, array: str, k: int = 0) -> Expr:
        """The k-th vector of an array's row."""
        return cast(self._known.setdefault((array, k), Var(len(self._known), self._held.get(array, self.dtype))),
                    self.dtype)

    def row_pass(self, outputs: dict[Name, Expr]) -> RowPass:
        """The pass that computes `outputs`."""
        read = variables(*outputs.values())
        names = [name for name, v in self._known.items() if v in read.values()]
        new = {int(self._known[name].value or 0): Var(i, self._known[name].dtype) for i, name in enumerate(names)}
        written = [cast(e, self._held.get(array, self.dtype)) for (array, _), e in outputs.items()]
        return RowPass(tuple(names), tuple(outputs), tuple(substitute(e, new) for e in written))


def row_functions(forms: Sequence[RowPass], arrays: Sequence[str], wide: str, dtype: str, path: cpu.Cpu) -> list[Any]:
    """A function `f(n, apart, step, rest, <address of the row of each of the arrays>)` for each of a leaf's passes, of
    which these are the forms: it runs the pass over n elements of vectors.

    The k-th vector of a row begins k * apart elements after its address; in the array `wide` it is k * step bytes.
    dtype: names the code. rest: the word of that name of the leaf, whose signature ends with `tail`.
    """
    before = itertools.accumulate((len(letters(*f.exprs)) for f in forms), initial=0)
    return [_row_function(form, at, tuple(arrays), wide, dtype, path) for form, at in zip(forms, before, strict=False)]


def tail(forms: Sequence[RowPass]) -> str:
    """What a leaf's signature ends with: the word `rest` for its body, then the coefficients of its passes."""
    return ", ".join([", rest", *(letter for form in forms for letter in letters(*form.exprs))])


@functools.cache
def _row_function(what: RowPass, at: int, arrays: tuple[str, ...], wide: str, dtype: str, path: cpu.Cpu) -> Any:
    """at: words of the block between `rest` and the pass's own."""
    read = tuple(v.dtype for v in variables(*what.exprs).values())
    loops = Loops(what.exprs, tuple(range(len(what.inputs))), read, (FULL,) * len(what.inputs), 1)

    def emit(e: Emitter, n: Any, apart: Any, step: Any, rest: Any, *rows: Any) -> None:
        row = dict(zip(arrays, rows, strict=True))

        def places(names: Sequence[Name], dtypes: Iterable[str]) -> list[Any]:
            found = []
            for (array, k), dtype in zip(names, dtypes, strict=True):
                to_next = step if array == wide else e.times(apart, itemsize(CODES[dtype]))
                found.append(e.address(row[array], e.times(to_next, k)) if k else row[array])
            return found
        scalars = loaded(e, e.address(rest, 8 * at), what.exprs)
        loops.row(e, n, places(what.inputs, read), places(what.outputs, (x.dtype for x in what.exprs)), scalars)

    name = f"recurrent_{what.key}_{at}_{'_'.join(arrays)}_{dtype}_{path.name}"
    return inlined_code(name, ", ".join(["n", "apart", "step", "rest", *(f"at_{a}" for a in arrays)]), path, emit)
