"""Recurrent layers: the recurrent weights laid out once, for the forward and for the backward pass, and which of 16
bits are multiplied so."""
from __future__ import annotations

from collections.abc import Sequence

from ..graph.op import Types
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call, In, Out
from ..memory.types import TensorType
from ..ops.recurrence import Recurrence
from ..ops.recurrence_grad import RecurrenceGrad
from ..ops.shape import present
from .form import HostForm, Packed, calls, packed, takes_halves


@packed.register(Recurrence)
@packed.register(RecurrenceGrad)
def _(op: Recurrence | RecurrenceGrad, form: HostForm, inputs: Types, outputs: Sequence[TensorType],
      cpu: Cpu) -> Packed | None:
    size = op.packed_elements(inputs, cpu)
    if not size:
        return None
    weights = present(inputs[op.weights])
    laying = op.packing(In(0, (weights.size,)), Out(0, (size,)), inputs, cpu)
    return Packed(op.weights, weights, TensorType(weights.dtype, (size,)), tuple(laying))


@takes_halves.register(Recurrence)
@takes_halves.register(RecurrenceGrad)
def _(op: Recurrence | RecurrenceGrad, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> bool:
    """Products over an even number of hidden units, which are whole pairs."""
    weights = present(inputs[op.weights])
    return weights.dtype == "bfloat16" and cpu.pairs and weights.shape[-1] % 2 == 0


@calls.register(Recurrence)
@calls.register(RecurrenceGrad)
def _(op: Recurrence | RecurrenceGrad, form: HostForm, inputs: Types, outputs: Sequence[TensorType],
      cpu: Cpu) -> list[Call]:
    laid = present(form.packed)
    return op.calls(inputs, outputs, In(laid.index, laid.type.shape), cpu)
