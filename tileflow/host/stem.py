"""The convolution that a network begins with: planar images with few channels to channels-last results."""
from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..graph.op import Types
from ..graph.types import TensorType
from ..kernels.conv import STEM, Algorithm
from ..kernels.conv.algorithms import saved, saved_by_stem
from ..kernels.isa.cpu import Cpu
from ..ops.conv import Conv
from ..ops.shape import present
from .conv import ConvChannelsLast
from .form import Form, channels_last


class ConvStem(ConvChannelsLast):
    """Conv: x [n, c, *spatial], weights [o, c, *kernel] and an optional bias to y [n, *out, o]."""

    name: ClassVar[str] = "ConvStem"
    among: ClassVar[Sequence[Algorithm]] = STEM

    def __init__(self, op: Conv, operands: int = 3) -> None:
        super().__init__(op, operands)
        self.inputs = (False,) * operands

    def __str__(self) -> str:
        return f"{self.op} from planes to channels last"


@channels_last.register(Conv)
def _(op: Conv, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Form | None:
    """The stem's form where it serves, else channels last on both sides."""
    x, w = present(inputs[0]), present(inputs[1])
    p = op.problem(x.shape, w.shape)
    if STEM[0].serves(p, x.code, cpu):
        return ConvStem(op, len(inputs)).form(saved_by_stem(p, x.code, cpu))
    return ConvChannelsLast(op, len(inputs)).form(saved(p, x.code, cpu))
