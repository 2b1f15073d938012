"""Recurrent layers: the recurrent weights laid out once, for the forward and for the backward pass."""
from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..graph.op import Types
from ..graph.types import TensorType
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call, In, Out
from ..ops.recurrence import Recurrence
from ..ops.recurrence_grad import RecurrenceGrad
from ..ops.shape import present
from .form import HostOp, Packed, packed


class PackedRecurrence(HostOp):
    """The steps of a recurrent layer, or their gradient, whose recurrent weights, input `index` of type `weights`, lie in panels."""

    name: ClassVar[str] = "PackedRecurrence"

    def __init__(self, op: Recurrence | RecurrenceGrad, index: int, weights: TensorType) -> None:
        self.op, self.index, self.weights = op, index, weights

    def plain(self, types: Types) -> list[TensorType | None]:
        """The types as the operator itself has them."""
        return [self.weights if i == self.index else t for i, t in enumerate(types)]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return self.op.infer(*self.plain(types))

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        raise AssertionError("it reads what only the kernels lay out")

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        return self.op.calls(self.plain(inputs), outputs, In(self.index, (present(inputs[self.index]).size,)), cpu)

    def __str__(self) -> str:
        return f"{self.op} with R in panels"


@packed.register(Recurrence)
@packed.register(RecurrenceGrad)
def _(op: Recurrence | RecurrenceGrad, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Packed | None:
    index = op.weights
    size = op.packed_elements(inputs, cpu)
    if not size:
        return None
    weights = present(inputs[index])
    kind = TensorType(weights.dtype, (size,))
    calls = op.packing(In(0, (weights.size,)), Out(0, (size,)), inputs, cpu)
    return Packed(index, kind, tuple(calls), PackedRecurrence(op, index, weights))
