"""The convolution that a network begins with: planar images with few channels to channels-last results."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from ..graph.op import Packed, Types
from ..graph.types import TensorType
from ..kernels import conv as kernels
from ..kernels.conv import Sites
from ..kernels.machine.call import Call
from .conv_last import LAST, PLANAR, ConvLast, filled, with_panels
from .shape import present

if TYPE_CHECKING:
    from ..kernels.elementwise.epilogue import Epilogue
    from ..kernels.isa.cpu import Cpu
    from .conv import Conv


class ConvStem(ConvLast):
    """Conv: x [n, c, *spatial], weights [o, c, *kernel] and an optional bias to y [n, *out, o]."""

    name: ClassVar[str] = "ConvStem"

    def __init__(self, op: Conv, operands: int = 3) -> None:
        super().__init__(op, operands)
        self.inputs = (False,) * operands

    def calls(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, epilogue: Epilogue | None, packed: int) -> list[Call]:
        """The kernel; see `Convolves`."""
        x, w = present(inputs[0]), present(inputs[1])
        if outputs[0].size == 0:
            return []
        biased = len(inputs) > 2 and inputs[2] is not None
        return kernels.stem.forward(self.op.sites(x.shape, w.shape), x.code, cpu, biased, epilogue, packed)

    def packed(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Packed | None:
        x, w = present(inputs[0]), present(inputs[1])
        if outputs[0].size == 0:
            return None
        return with_panels(self, w, kernels.stem.forward_panels(self.op.sites(x.shape, w.shape), x.code, cpu))

    def __str__(self) -> str:
        return f"{self.op} from planes to channels last"


def stem_gain(s: Sites, code: str, path: Cpu) -> float:
    """Estimated nanoseconds that this form saves on one core against planar results, from measured rates."""
    if not s.flops:
        return 0.0
    speed, inner = path.rates.convolutions * 4 / int(code[1:]), kernels.stem.gathered(s)
    copied = s.n * s.pixels_in * s.c * kernels.stem.MOVE
    return s.flops / speed * (1 / PLANAR["forward"] - 1 / (LAST["forward"] * filled(inner.oc, inner.c, code, path))) - copied
