"""Elementwise leaves that look at what they compute: the status is NOT_FINITE where a watched expression is NaN or infinite.

    call = guarded_call([], [w - rate * g], [In(0, (n,)), In(1, (n,)), In(2, (1,))], [])     # writes nothing: a check beforehand
    call = guarded_call([new], [new], operands, [Out(0, (n,))])                              # writes what it watches

The arithmetic is that of the elementwise leaves: the same bits, whoever watches.
"""
from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llvmlite import ir

from ..dtypes import CODES
from ..isa import cpu
from ..isa.vector import BIT, WORD, Emitter
from ..machine.call import Call, In, Out
from ..machine.emitted import EmittedLeaf
from ..machine.status import NOT_FINITE
from .coefficients import letters, lift
from .expr import Expr, draws, key, variables
from .loops import FULL, GRAIN, SCALAR, Loops, Space, cost_of, drawn, lanes_of


def guarded_call(outputs: Sequence[Expr], watched: Sequence[Expr], inputs: Sequence[In], results: Sequence[Out], start: int = 0) -> Call:
    """One pass that computes `outputs[k]` into `results[k]` and watches floats, variable i being inputs[i]; `start` as `elementwise_call` has it.

    Args:
        inputs, results: arrays of one shape, inputs also of one element. A result may lie in the memory of an input of its shape
            and item size.
    """
    assert all(w.is_float for w in watched), watched
    read = variables(*outputs, *watched)
    arrays = [inputs[i] for i in read]
    counts = [math.prod(a.shape) for a in arrays]
    n = max([*counts, *(math.prod(r.shape) for r in results)])
    lies = tuple(SCALAR if count == 1 < n else FULL for count in counts)
    assert all(count in (1, n) for count in counts), inputs
    lifted = lift((*outputs, *watched))
    leaf = _leaf(lifted.exprs[:len(outputs)], lifted.exprs[len(outputs):], tuple(read), lies, cpu.current())
    args: list[Any] = [replace(a, shape=(1,) if how == SCALAR else (n,)) for a, how in zip(arrays, lies, strict=True)]
    cost = cost_of([*outputs, *watched], outputs, read, lies, Space((n,), ((1,),) * len(arrays)))
    drawing = drawn([*outputs, *watched], start)
    args += [*(replace(r, shape=(n,)) for r in results), *lifted.values, *drawing]
    return Call(leaf, args, n, GRAIN, cost, flat=True)


@functools.cache
def _leaf(outputs: tuple[Expr, ...], watched: tuple[Expr, ...], read: tuple[int, ...], lies: tuple[str, ...], path: cpu.Cpu) -> EmittedLeaf:
    name = hashlib.sha1(repr((key(*outputs), key(*watched), read, lies, path.name)).encode()).hexdigest()[:16]
    dtypes = tuple(v.dtype for v in variables(*outputs, *watched).values())
    words = [f"{CODES[dtype]}[r]" if how == FULL else f"{CODES[dtype]}[:]" for dtype, how in zip(dtypes, lies, strict=True)]
    words += [*(f"{CODES[o.dtype]}[r]" for o in outputs), *letters(*outputs, *watched)]
    words += ["i8"] * (3 if draws(*outputs, *watched) else 0)

    def guarded(e: Emitter, block: Any, lo: Any, hi: Any) -> Any:
        return _Watching(outputs, read, dtypes, lies, 1, watched=watched).emit_status(e, block, lo, hi)
    return EmittedLeaf(guarded, ", ".join(words), key=name, path=path, checked=True)


@dataclass(frozen=True)
class _Watching(Loops):
    """Loops that remember whether a watched value was not finite, per lane, until the end."""

    watched: tuple[Expr, ...] = ()
    seen: dict[int, Any] = field(default_factory=dict, compare=False)       # lanes -> where their bits are kept

    @property
    def computed(self) -> tuple[Expr, ...]:
        return (*self.outputs, *self.watched)

    def emit_status(self, e: Emitter, block: Any, lo: Any, hi: Any) -> Any:
        """The function body; the status."""
        for lanes in {lanes_of(self.computed, e.path), 1}:
            kind = ir.VectorType(BIT, lanes)
            self.seen[lanes] = e.b.alloca(kind)
            e.b.store(ir.Constant(kind, None), self.seen[lanes])
        self.emit(e, block, lo, hi)
        bad: Any = ir.Constant(BIT, 0)
        for lanes, slot in self.seen.items():
            bad = e.b.or_(bad, e.call(f"llvm.vector.reduce.or.v{lanes}i1", BIT, [e.b.load(slot)]))
        return e.b.select(bad, ir.Constant(WORD, NOT_FINITE), ir.Constant(WORD, 0))

    def look(self, e: Emitter, values: Sequence[Any], mask: Any) -> None:
        for value in values:
            rest = e.b.fsub(value, value)                  # 0 where it is finite, else NaN
            found = e.b.fcmp_unordered("uno", rest, rest)
            if mask is not None:
                found = e.b.and_(found, mask)
            slot = self.seen[value.type.count]
            e.b.store(e.b.or_(e.b.load(slot), found), slot)
