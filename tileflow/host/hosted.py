"""An operator with what the host adds to it: one class, whatever that is, which derives all that it answers from the
record.

From the inside to the outside: the operator, over channels-last tensors, in 16-bit memory, with an operand laid out,
with an epilogue, with its planes pooled, with an epilogue of these.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..graph.op import Op, Types
from ..kernels.elementwise.epilogue import Along, Epilogue
from ..kernels.elementwise.expr import Expr
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call, In
from ..kernels.streamed import streamed
from ..memory.types import CODES, TensorType
from . import form as families
from .channels_last import to_channels_first, to_channels_last
from .form import ALONE, Blockwise, ChannelsLast, HostForm, HostOp, Packed, elements


@dataclass(frozen=True, eq=False, repr=False)
class Hosted(HostOp):
    """The operator `op` in the `form` that passes chose for it. Made after the fork of the street.

    Inputs: the operator's own, then the packed one as it was if the kernel keeps it, then the operands of epilogues.
    Outputs: the operator's own (the reader's, where it is pooled); an epilogue's first expression replaces the first,
    its others follow the last.
    """

    op: Op
    form: HostForm = ALONE

    @property
    def name(self) -> str:                                                                 # type: ignore[override]
        """The operator's."""
        return self.op.name

    @property
    def random(self) -> bool:                                                              # type: ignore[override]
        """As the operator."""
        return self.op.random

    def also(self, **fields: Any) -> Hosted:
        """The operator with these fields of its form replaced."""
        return replace(self, form=replace(self.form, **fields))

    # ---- what an operator answers

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        form, made = self.form, self.op.infer(*self._own(types))
        held = _appended(form.epilogue, tuple(_held_type(t, i, form) for i, t in enumerate(made)))
        return held if form.pooled is None else _appended(form.pooled.how.then, form.pooled.reader.infer(*held))

    def reference(self, *inputs: np.ndarray | None, **streams: Any) -> tuple[np.ndarray, ...]:
        form, own = self.form, inputs[:self._count(len(inputs))]
        assert form.packed is None, "it reads what only the kernels lay out"
        made = self.op.reference(*[None if a is None else _own_array(a, i, form) for i, a in enumerate(own)], **streams)
        held = _computed(form.epilogue, tuple(_held_array(a, i, form) for i, a in enumerate(made)), inputs)
        return held if form.pooled is None else _computed(form.pooled.how.then, form.pooled.reader.reference(*held),
                                                          inputs)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        form, own = self.form, self._own(inputs)
        made = self.op.infer(*own)
        plain = not (form.turned or form.packed or form.epilogue or form.pooled)
        calls = self.op.kernel(own, made, cpu) if plain else families.calls(self.op, form, own, made, cpu)
        found = over_narrow(calls, form.narrow_inputs, form.narrow_outputs) if form.narrow else calls
        assert found is not None, f"{self} was asked before"
        return found

    def __str__(self) -> str:
        form = self.form
        ports = [*(f"input {i} {dtype}" for i, dtype in form.narrow_inputs.items()),
                 *(f"output {i} {dtype}" for i, dtype in form.narrow_outputs.items()),
                 *([f"input {form.packed.index} laid out"] if form.packed else [])]
        turned = ("" if not form.turned else
                  " over channels last" if any(form.turned_inputs) else " from planes to channels last")
        pooled = [] if form.pooled is None else [str(form.pooled.reader), *_shown(form.pooled.how.then)]
        then = [f" then {step}" for step in (*_shown(form.epilogue), *pooled)]
        return "".join([str(self.op), turned, f" with {', '.join(ports)}" if ports else "", *then])

    # ---- what passes ask

    @property
    def blockwise(self) -> Blockwise | None:
        """How output 0 is made in blocks; None: it takes no (further) epilogue."""
        form = self.form
        if form.pooled is not None:
            return Blockwise(1) if form.pooled.how.then is None else None
        return None if form.epilogue is not None or 0 in form.narrow_outputs else families.blockwise(self.op, form)

    def pools(self, inputs: Types, cpu: Cpu) -> bool:
        """The only result is made in whole planes that may be pooled in cache, and that pays."""
        form, own = self.form, self._own(inputs)
        if form.narrow or form.pooled is not None:
            return False
        return families.pools(self.op, form, own, self.op.infer(*own), cpu)

    def packing(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Packed | None:
        """How an input is laid out beforehand; None: none is. Asked before there is an epilogue."""
        form = self.form
        if form.narrow or form.packed is not None:
            return None
        made = [_logical(t, i, form.turned_outputs) for i, t in enumerate(outputs)]
        return families.packed(self.op, form, self._own(inputs), made, cpu)

    def then(self, exprs: tuple[Expr, ...], inputs: int, outputs: Sequence[TensorType],
             operands: Sequence[tuple[TensorType, str]]) -> Hosted:
        """The operator, of so many inputs and with these outputs, with an epilogue.

        operands: their types, each with how it lies along output 0 (a kind of `Along`).
        """
        assert self.blockwise is not None, f"{self} takes no epilogue"
        along = tuple(Along(In(i, t.shape), kind) for i, (t, kind) in enumerate(operands, inputs))
        epilogue = Epilogue(exprs, along, outputs[0].size, len(outputs), self.blockwise.retypes)
        pooled = self.form.pooled
        if pooled is None:
            return self.also(epilogue=epilogue)
        return self.also(pooled=replace(pooled, how=replace(pooled.how, then=epilogue)))

    # ---- the operator's own operands

    def _count(self, inputs: int) -> int:
        """How many of so many inputs come before the operands of epilogues."""
        form = self.form
        read = [*(form.epilogue.operands if form.epilogue else ()),
                *(form.pooled.how.then.operands if form.pooled and form.pooled.how.then else ())]
        return min((operand.arg.index for operand in read), default=inputs)

    def _own(self, types: Types) -> list[TensorType | None]:
        """The types of the operator's own operands, as it takes them."""
        form, own = self.form, list(types[:self._count(len(types))])
        if form.packed is not None:
            own[form.packed.index] = form.packed.plain
            del own[len(own) - form.packed.keeps:]
        return [None if t is None else _own_type(t, i, form) for i, t in enumerate(own)]


def hosted(op: Op) -> Hosted:
    """The operator as one to which the host may add."""
    return op if isinstance(op, Hosted) else Hosted(op)


def over_channels_last(op: Op, inputs: Sequence[bool], outputs: Sequence[bool], gain: float = 0.0) -> ChannelsLast:
    """The answer to `channels_last` of an operator whose own kernels know that order."""
    turned, made = tuple(inputs), tuple(outputs)
    return ChannelsLast(Hosted(op, HostForm(turned, made)), turned, made, gain)


def over_narrow(calls: Sequence[Call], inputs: Mapping[int, str], outputs: Mapping[int, str]) -> list[Call] | None:
    """Calls of float32 kernels over inputs and outputs in 16-bit memory, each by its index; None: they have no such
    form."""
    return streamed(calls, *({i: CODES[dtype] for i, dtype in side.items()} for side in (inputs, outputs)))


# ---- from the operator to memory and back: operand or result `i`

def _is_turned(i: int, flags: tuple[bool, ...]) -> bool:
    return i < len(flags) and flags[i]


def _logical(t: TensorType, i: int, flags: tuple[bool, ...]) -> TensorType:
    return t.with_shape(to_channels_first(t.shape)) if _is_turned(i, flags) else t


def _own_type(t: TensorType, i: int, form: HostForm) -> TensorType:
    return _logical(t.with_dtype("float32") if i in form.narrow_inputs else t, i, form.turned_inputs)


def _own_array(a: np.ndarray, i: int, form: HostForm) -> np.ndarray:
    a = a.astype(np.float32) if i in form.narrow_inputs else a
    return np.moveaxis(a, -1, 1) if _is_turned(i, form.turned_inputs) else a


def _held_type(t: TensorType, i: int, form: HostForm) -> TensorType:
    t = t.with_shape(to_channels_last(t.shape)) if _is_turned(i, form.turned_outputs) else t
    return t.with_dtype(form.narrow_outputs.get(i, t.dtype))


def _held_array(a: np.ndarray, i: int, form: HostForm) -> np.ndarray:
    a = np.ascontiguousarray(np.moveaxis(a, 1, -1)) if _is_turned(i, form.turned_outputs) else a
    return a.astype(form.narrow_outputs.get(i, a.dtype))


# ---- epilogues

def _shown(epilogue: Epilogue | None) -> list[str]:
    return [] if epilogue is None else [", ".join(map(str, epilogue.exprs))]


def _appended(epilogue: Epilogue | None, made: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """The types of the outputs with those of an epilogue."""
    if epilogue is None:
        return made
    first, *more = (made[0].with_dtype(e.dtype) for e in epilogue.exprs)
    return (first, *made[1:], *more)


def _computed(epilogue: Epilogue | None, made: tuple[np.ndarray, ...],
              inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
    """The outputs with what an epilogue makes of the first."""
    if epilogue is None:
        return made
    operands = [made[0], *(inputs[o.arg.index] for o in epilogue.operands)]
    first, *more = elements(epilogue.exprs, operands, made[0].shape)
    return (first, *made[1:], *more)
