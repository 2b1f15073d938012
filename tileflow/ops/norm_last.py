"""Batch normalisation of training over channels-last images, and its gradient."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from ..graph.op import Types
from ..graph.types import TensorType
from ..kernels.elementwise.epilogue import Epilogue
from ..kernels.machine.call import Call, Out
from ..kernels.move import fill_call
from ..kernels.norm import channels_last as kernels
from .last import ChannelsLast
from .shape import present

if TYPE_CHECKING:
    from ..kernels.isa.cpu import Cpu


def _table(x: TensorType) -> tuple[int, int]:
    """(rows, channels)."""
    channels = x.shape[-1]
    return x.size // max(1, channels), channels


class BatchNormalizationLast(ChannelsLast):
    """BatchNormalization with training_mode 1. What follows it elementwise is done block by block."""

    name: ClassVar[str] = "BatchNormalizationLast"
    epilogues: ClassVar[int | None] = -1

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, epilogue: Epilogue | None = None) -> list[Call]:
        x = present(inputs[0])
        return kernels.batch_norm(*_table(x), x.code, self.op.attributes()["epsilon"], cpu, epilogue)


class BatchNormalizationGradLast(ChannelsLast):
    """BatchNormalizationGrad."""

    name: ClassVar[str] = "BatchNormalizationGradLast"

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, small = present(inputs[1]), (outputs[1].size,)
        if not x.size:
            return [fill_call(Out(i, small), 0, outputs[1].size, x.itemsize) for i in (1, 2)]
        return kernels.batch_norm_grad(*_table(x), x.code, cpu)
