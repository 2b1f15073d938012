"""Pooling over channels-last images with one or two spatial axes."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from ..graph.op import Op, Types
from ..graph.types import TensorType
from ..kernels.machine.call import Call
from ..kernels.pool import channels_last as kernels
from ..kernels.pool.planar import Pool
from ..kernels.reduce import reduce_calls
from .last import ChannelsLast
from .shape import present

if TYPE_CHECKING:
    from ..kernels.isa.cpu import Cpu


class PoolLast(ChannelsLast):
    """A pool of these sizes, of images [n, channels, ...]; all operands and results are channels-last.

    limits: where taps count for an average.
    """

    def __init__(self, op: Op, p: Pool, image: TensorType, operands: int = 1, results: int = 1,
                 limits: tuple[int, int, int, int] = (0, 0, 0, 0)) -> None:
        super().__init__(op, (True,) * operands, (True,) * results)
        self.p, self.n, self.channels, self.limits = p, image.shape[0], image.shape[1], limits

    @property
    def fits(self) -> bool:
        """A winner's number fits a byte, and every element knows its windows."""
        return self.p.kh * self.p.kw < kernels.NOBODY and self.p.dh == self.p.dw == 1


class MaxPoolLast(PoolLast):
    """MaxPool without indices, or with winners."""

    name: ClassVar[str] = "MaxPoolLast"

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        y = outputs[0]
        return kernels.max_pool(self.p, self.n, self.channels, y.code, cpu, len(outputs) > 1) if y.size else []


class MaxUnpoolLast(PoolLast):
    """MaxUnpool."""

    name: ClassVar[str] = "MaxUnpoolLast"

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = outputs[0]
        return kernels.max_unpool(self.p, self.n, self.channels, x.code, cpu) if x.size else []


class AveragePoolLast(PoolLast):
    """AveragePool."""

    name: ClassVar[str] = "AveragePoolLast"

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        return kernels.average(self.p, self.limits, self.n, self.channels, outputs[0].code, cpu) if outputs[0].size else []


class AveragePoolGradLast(PoolLast):
    """AveragePoolGrad."""

    name: ClassVar[str] = "AveragePoolGradLast"

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        return kernels.average_gradient(self.p, self.limits, self.n, self.channels, outputs[0].code, cpu) if outputs[0].size else []


class GlobalAverageLast(ChannelsLast):
    """GlobalAveragePool."""

    name: ClassVar[str] = "GlobalAverageLast"

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x = present(inputs[0])
        spatial = range(1, x.rank - 1)
        return reduce_calls("sum", x.code, x.shape, spatial, math.prod(x.shape[i] for i in spatial)) if outputs[0].size else []
