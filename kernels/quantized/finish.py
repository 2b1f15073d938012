"""Epilogues of integer products: expressions over blocks of sums in a worker's scratch, whose results go elsewhere and may have another type."""
from __future__ import annotations

import functools
from typing import Any

from ..dtypes import CODES
from ..elementwise.epilogue import Epilogue, Form
from ..elementwise.loops import COLUMN, FULL, ROW, SCALAR, Loops
from ..elementwise.tabulated import Tabulated
from ..elementwise.values import loaded
from ..gemm.problem import flat
from ..isa import cpu
from ..isa.vector import WORD, Emitter, itemsize, word
from ..machine.call import Address, Const, Out
from ..machine.called import caller
from ..machine.emitted import EmittedLeaf, signature_of, words_of
from ..machine.leaf import Leaf, parse

WORDS = "rest, lines, rows, cols, block, block_line, block_row, start, line, row, channel"
"""What an integer product hands its epilogue."""


def finisher() -> Any:
    """The function of an integer product's epilogue: `finish(epilogue, *WORDS)`, all intp.

    epilogue, rest: the leaf's words of the Call's `arguments`; nothing is done without an epilogue. Sum (l, i, j),
    which is variable 0, is the int32 number l * block_line + i * block_row + j from the address `block` on, and its
    result the number start + l * line + i * row + j of the product. channel: that of the first column or, with
    channels="rows", of the first row of each line.
    """
    return caller("integer_epilogue", WORDS)


def arguments(epilogue: Epilogue | None, c: Out, channels: str) -> tuple[Out | Const, list[Any]]:
    """What a Call takes for its sums, int32, and for the end, `CALLED`, of its signature. With an epilogue, of one
    expression, sums are in scratch memory only, and c is what the epilogue writes. channels: what of a block they
    are, "columns" or "rows"."""
    assert channels in ("columns", "rows"), channels
    if epilogue is None:
        return flat(c), [Address()]
    form = epilogue.form
    assert len(form.exprs) == 1
    names = [f"{CODES[form.exprs[0].dtype]}[:]", *([form.signature] if form.signature else [])]
    leaf = _leaf(form, channels == "columns", epilogue.looked_up, cpu.current())
    follows = Address(leaf, parse(", ".join(names)))
    return Const.of([0], "i4"), [follows, flat(c), *epilogue.args]


@functools.cache
def _leaf(form: Form, by_column: bool, table: Tabulated | None, path: cpu.Cpu) -> Leaf:
    kinds, dtypes, result = form.kinds, ["int32", *form.dtypes], form.exprs[0].dtype
    lies = {"full": FULL, "scalar": SCALAR, "channel": ROW if by_column else COLUMN}
    how = (FULL, *(lies[kind] for kind in kinds))
    loops = Loops(form.exprs, tuple(range(len(how))), tuple(dtypes), how, 2, table)

    def place(e: Emitter, base: Any, index: Any, dtype: str) -> Any:
        return e.address(base, e.times(index, itemsize(CODES[dtype])))

    def integer_epilogue(e: Emitter, at_words: Any, _lo: Any, _hi: Any) -> None:
        rest, lines, rows, cols, block, block_line, block_row, start, line, row, channel = words_of(e, at_words, WORDS)
        zero = word(0)
        c, *operands = [e.load(e.address(rest, 16 * i), WORD) for i in range(1 + len(kinds))]
        scalars = loaded(e, e.address(rest, 16 * (1 + len(kinds))), form.exprs)
        tables = loops.tables(e, [block, *operands], scalars)

        def one(_: Any, at: list[Any]) -> list[Any]:
            offsets = {"full": at[1], "channel": at[2], "scalar": zero}
            sources = [place(e, block, at[0], "int32"), *(place(e, a, offsets[k], d) for a, k, d in zip(operands, kinds, form.dtypes, strict=True))]
            loops.row(e, cols, sources, [place(e, c, at[1], result)], scalars, tables=tables)
            return [e.b.add(at[0], block_row), e.b.add(at[1], row), at[2] if by_column else e.address(at[2], 1)]

        def lying(_: Any, at: list[Any]) -> list[Any]:
            e.loop(0, rows, 1, [*at, channel], one)
            return [e.b.add(at[0], block_line), e.b.add(at[1], line)]
        e.loop(0, lines, 1, [zero, start], lying)
    by = ("columns" if by_column else "rows") + ("_looked_up" if table else "")
    return EmittedLeaf(integer_epilogue, signature_of(WORDS), key=f"{form.key}_{by}_{path.name}", path=path)
