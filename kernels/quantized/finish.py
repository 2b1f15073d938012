"""Epilogues of integer products: expressions over blocks of sums in a worker's scratch, whose results go elsewhere and may have another type."""
from __future__ import annotations

import functools
from typing import Any

from ..dtypes import CODES
from ..elementwise.epilogue import Form, name
from ..elementwise.loops import COLUMN, FULL, ROW, SCALAR, Loops, loaded
from ..isa import cpu
from ..isa.vector import WORD, Emitter, as_intrinsic, itemsize, word
from ..machine.inner import register_jitable


@register_jitable
def _nothing(rest: int, rows: int, cols: int, block: int, pitch: int, c: int, start: int, row: int, channel: int) -> None:
    """The `apply` of no epilogue."""


def finisher(form: Form | None, channels: str = "columns") -> Any:
    """The Numba-callable `apply(rest, rows, cols, block, pitch, c, start, row, channel)`, all intp, as `elementwise.epilogue.finisher` but for the
    product (variable 0), which it reads from rows of `pitch` int32 at `block`. It has one expression."""
    assert form is None or len(form.exprs) == 1
    return _nothing if form is None else _finisher(form, channels == "columns", cpu.current())


@functools.cache
def _finisher(form: Form, by_column: bool, path: cpu.Cpu) -> Any:
    kinds, dtypes, result = form.kinds, ["int32", *form.dtypes], form.exprs[0].dtype
    lies = {"full": FULL, "scalar": SCALAR, "channel": ROW if by_column else COLUMN}
    loops = Loops(form.exprs, tuple(range(len(kinds) + 1)), tuple(dtypes), (FULL, *(lies[kind] for kind in kinds)), 2)

    def place(e: Emitter, base: Any, index: Any, dtype: str) -> Any:
        return e.address(base, e.times(index, itemsize(CODES[dtype])))

    def emit(e: Emitter, rest: Any, rows: Any, cols: Any, block: Any, pitch: Any, c: Any, start: Any, row: Any, channel: Any) -> None:
        zero = word(0)
        operands = [e.load(e.address(rest, 16 * i), WORD) for i in range(len(kinds))]
        scalars = loaded(e, e.address(rest, 16 * len(kinds)), form.exprs)

        def one(_: Any, at: list[Any]) -> list[Any]:
            offsets = {"full": at[1], "channel": at[2], "scalar": zero}
            sources = [place(e, block, at[0], "int32"), *(place(e, a, offsets[k], d) for a, k, d in zip(operands, kinds, form.dtypes, strict=True))]
            loops.row(e, cols, sources, [place(e, c, at[1], result)], scalars)
            return [e.b.add(at[0], pitch), e.b.add(at[1], row), at[2] if by_column else e.address(at[2], 1)]
        e.loop(0, rows, 1, [zero, start, channel], one)
    by = "columns" if by_column else "rows"
    return as_intrinsic(f"integer_epilogue_{name(form)}_{by}_{path.name}", "rest, rows, cols, block, pitch, c, start, row, channel", path, emit)
