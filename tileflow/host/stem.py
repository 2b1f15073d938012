"""The convolution that a network begins with: planar images with few channels to channels-last results."""
from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..graph.op import Types
from ..graph.types import TensorType
from ..kernels import conv as kernels
from ..kernels.conv import choice
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call
from ..ops.conv import Conv
from ..ops.shape import present
from .conv import ConvChannelsLast
from .form import Finish, Form, channels_last


class ConvStem(ConvChannelsLast):
    """Conv: x [n, c, *spatial], weights [o, c, *kernel] and an optional bias to y [n, *out, o]."""

    name: ClassVar[str] = "ConvStem"

    def __init__(self, op: Conv, operands: int = 3) -> None:
        super().__init__(op, operands)
        self.inputs = (False,) * operands

    def convolve(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, finish: Finish, packed: int) -> list[Call]:
        x, w = present(inputs[0]), present(inputs[1])
        if outputs[0].size == 0:
            return []
        biased = len(inputs) > 2 and inputs[2] is not None
        return kernels.stem.forward(self.op.sites(x.shape, w.shape), x.code, cpu, biased, finish.epilogue, packed)

    def panels(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> tuple[kernels.Panels, bool] | None:
        x, w = present(inputs[0]), present(inputs[1])
        if outputs[0].size == 0:
            return None
        return kernels.stem.forward_panels(self.op.sites(x.shape, w.shape), x.code, cpu), False

    def __str__(self) -> str:
        return f"{self.op} from planes to channels last"


@channels_last.register(Conv)
def _(op: Conv, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Form | None:
    """The stem's form where it serves, else channels last on both sides."""
    x, w = present(inputs[0]), present(inputs[1])
    sites = op.sites(x.shape, w.shape)
    if kernels.stem.serves(sites):
        return ConvStem(op, len(inputs)).form(choice.stem_gain(sites, x.code, cpu))
    return ConvChannelsLast(op, len(inputs)).form(choice.gain(sites, "forward", x.code, cpu))
