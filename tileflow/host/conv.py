"""Convolution and its gradients: forms over channels-last tensors [n, *spatial, channels], and weights laid out in panels."""
from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

from ..graph.op import Types
from ..graph.types import TensorType
from ..kernels import conv as kernels
from ..kernels.conv import choice
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call
from ..ops.conv import Conv, ConvInputGrad, ConvWeightGrad, zeros
from ..ops.shape import present
from .channels_last import ChannelsLast, to_channels_first
from .form import NOTHING, AsItStands, Blockwise, Finish, Form, Packed, blockwise, channels_last, packed, takes_halves


class Convolution(Blockwise):
    """A convolution or its input gradient, in either layout, whose weights may be laid out already."""

    def convolve(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, finish: Finish, packed: int) -> list[Call]:
        """As `calls`. Where `packed` is not 0 the weights are laid out; a kernel that needs them as they were, too, finds them as that input."""
        raise NotImplementedError

    def panels(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> tuple[kernels.Panels, bool] | None:
        """How the weights are laid out, and whether the kernel also reads them as they are; None: it has no use for that."""
        raise NotImplementedError

    def calls(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, finish: Finish) -> list[Call]:
        return self.convolve(inputs, outputs, cpu, finish, 0)


class WithPanels(Blockwise):
    """A convolution or its input gradient whose weights, of type `weights`, are laid out already. Made by `packed` only.

    Where it `keeps` the weights, they are its last input.
    """

    name: ClassVar[str] = "WithPanels"

    def __init__(self, op: Convolution, weights: TensorType, keeps: bool) -> None:
        self.op, self.weights, self.keeps = op, weights, keeps

    @property
    def epilogue(self) -> int | None:                                                      # type: ignore[override]
        """As the operator's."""
        return self.op.epilogue

    def own(self, inputs: Types) -> list[TensorType | None]:
        """The types of the operands as the operator itself has them."""
        return [inputs[0], self.weights, *inputs[2:len(inputs) - self.keeps]]

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return self.op.infer(*self.own(types))

    def pools(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> bool:
        return self.op.pools(self.own(inputs), outputs, cpu)

    def calls(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, finish: Finish) -> list[Call]:
        own = self.own(inputs)
        return self.op.convolve(own, outputs, cpu, finish, len(own))

    def __str__(self) -> str:
        return f"{self.op} with weights in panels"


def _with_panels(op: Convolution, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Packed | None:
    """The operator with its weights laid out beforehand."""
    found = op.panels(inputs, outputs, cpu)
    if found is None:
        return None
    (panels, keeps), weights = found, present(inputs[1])
    laid = weights.with_shape((panels.elements,))
    return Packed(1, laid.with_dtype("float32") if laid.is_half else laid, panels.calls, WithPanels(op, weights, keeps), keeps)


@packed.register(Convolution)
def _(op: Convolution, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Packed | None:
    return _with_panels(op, inputs, outputs, cpu)


# ---- planar images

class ConvPlanar(AsItStands, Convolution):
    """Conv as it stands: x [n, c, *spatial], weights [o, c / group, *kernel] and an optional bias to y [n, o, *out]."""

    op: Conv
    name: ClassVar[str] = "ConvPlanar"
    epilogue: ClassVar[int | None] = 1

    def __init__(self, op: Conv) -> None:
        self.op = op

    def pools(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> bool:
        x, w = present(inputs[0]), present(inputs[1])
        if x.rank != 4 or outputs[0].size == 0 or x.is_half:
            return False
        return kernels.pools(self.op.geometry(x.shape, w.shape), x.code, cpu)

    def convolve(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, finish: Finish, packed: int) -> list[Call]:
        return self.op.calls(inputs, outputs, cpu, finish.epilogue, packed, finish.pooling)

    def panels(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> tuple[kernels.Panels, bool] | None:
        x, w = present(inputs[0]), present(inputs[1])
        if outputs[0].size == 0 or x.rank == 5 or x.is_half:
            return None
        geometry = self.op.geometry(x.shape, w.shape)
        if kernels.planar.depthwise.serves(geometry) or kernels.planar.pointwise.serves(geometry):
            return None
        return kernels.forward_panels(geometry, x.code, cpu), False


class ConvInputGradPlanar(AsItStands, Convolution):
    """ConvInputGrad as it stands: (dy [n, o, *out], weights) to dx [n, c, *spatial]."""

    op: ConvInputGrad
    name: ClassVar[str] = "ConvInputGradPlanar"

    def __init__(self, op: ConvInputGrad) -> None:
        self.op = op

    def convolve(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, finish: Finish, packed: int) -> list[Call]:
        assert finish == NOTHING, finish
        return self.op.calls(inputs, outputs, cpu, packed)

    def panels(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> tuple[kernels.Panels, bool] | None:
        g, w, x = present(inputs[0]), present(inputs[1]), outputs[0]
        if x.size == 0 or g.size == 0 or x.rank == 5 or x.is_half:
            return None
        geometry = self.op.geometry(x.shape, w.shape)
        if kernels.planar.depthwise.serves_gradient(geometry) or kernels.planar.pointwise.serves(geometry):
            return None
        return kernels.gradient_panels(geometry, x.code, cpu), False


@blockwise.register(Conv)
def _(op: Conv) -> Blockwise | None:
    return ConvPlanar(op)


@packed.register(Conv)
def _(op: Conv, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Packed | None:
    return _with_panels(ConvPlanar(op), inputs, outputs, cpu)


@packed.register(ConvInputGrad)
def _(op: ConvInputGrad, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Packed | None:
    return _with_panels(ConvInputGradPlanar(op), inputs, outputs, cpu)


# ---- channels last

class ConvChannelsLast(ChannelsLast, Convolution):
    """Conv: x [n, *spatial, c], weights [o, c / group, *kernel] and an optional bias to y [n, *out, o]."""

    op: Conv
    name: ClassVar[str] = "ConvChannelsLast"
    epilogue: ClassVar[int | None] = -1

    def __init__(self, op: Conv, operands: int = 3) -> None:
        super().__init__(op, (True, False, False)[:operands], (True,))

    def convolve(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, finish: Finish, packed: int) -> list[Call]:
        x, w = present(self.logical(inputs)[0]), present(inputs[1])
        if outputs[0].size == 0:
            return []
        s, biased = self.op.sites(x.shape, w.shape), len(inputs) > 2 and inputs[2] is not None
        return cast(list[Call], choice.way(s, "forward", x.code, cpu).forward(s, x.code, cpu, biased, finish.epilogue, packed))

    def panels(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> tuple[kernels.Panels, bool] | None:
        x, w = present(self.logical(inputs)[0]), present(inputs[1])
        if outputs[0].size == 0:
            return None
        s = self.op.sites(x.shape, w.shape)
        way = choice.way(s, "forward", x.code, cpu)
        return way.forward_panels(s, x.code, cpu), way is kernels.winograd


class ConvInputGradChannelsLast(ChannelsLast, Convolution):
    """ConvInputGrad: (dy [n, *out, o], weights) to dx [n, *spatial, c]."""

    op: ConvInputGrad
    name: ClassVar[str] = "ConvInputGradChannelsLast"

    def __init__(self, op: ConvInputGrad) -> None:
        super().__init__(op, (True, False), (True,))

    def convolve(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, finish: Finish, packed: int) -> list[Call]:
        assert finish == NOTHING, finish
        g, w, x = present(inputs[0]), present(inputs[1]), outputs[0]
        if x.size == 0 or g.size == 0:
            return zeros(outputs)
        s = self.op.sites(to_channels_first(x.shape), w.shape)
        return cast(list[Call], choice.way(s, "input", x.code, cpu).input_gradient(s, x.code, cpu, packed))

    def panels(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> tuple[kernels.Panels, bool] | None:
        g, w, x = present(inputs[0]), present(inputs[1]), outputs[0]
        if x.size == 0 or g.size == 0:
            return None
        s = self.op.sites(to_channels_first(x.shape), w.shape)
        way = choice.way(s, "input", x.code, cpu)
        return way.gradient_panels(s, x.code, cpu), way is kernels.winograd


class ConvWeightGradChannelsLast(ChannelsLast):
    """ConvWeightGrad: (x [n, *spatial, c], dy [n, *out, o]) to dw or (dw, dbias), as they always are."""

    op: ConvWeightGrad
    name: ClassVar[str] = "ConvWeightGradChannelsLast"

    def __init__(self, op: ConvWeightGrad) -> None:
        super().__init__(op, (True, True), (False,) * (2 if op.biased else 1))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, g, w = present(self.logical(inputs)[0]), present(inputs[1]), outputs[0]
        if w.size == 0 or x.size == 0 or g.size == 0:
            return zeros(outputs)
        s = self.op.sites(x.shape, w.shape)
        return cast(list[Call], choice.weights_way(s, x.code, cpu).weight_gradient(s, x.code, cpu, self.op.biased))


@channels_last.register(ConvInputGrad)
def _(op: ConvInputGrad, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Form | None:
    w, x = present(inputs[1]), outputs[0]
    return ConvInputGradChannelsLast(op).form(choice.gain(op.sites(x.shape, w.shape), "input", x.code, cpu))


@channels_last.register(ConvWeightGrad)
def _(op: ConvWeightGrad, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Form | None:
    x, w = present(inputs[0]), outputs[0]
    return ConvWeightGradChannelsLast(op).form(choice.gain(op.sites(x.shape, w.shape), "weights", x.code, cpu))


# ---- 16-bit floats

@takes_halves.register(Conv)
def _(op: Conv, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> bool:
    x, w = present(inputs[0]), present(inputs[1])
    return choice.takes_halves(op.sites(x.shape, w.shape), "forward", x.code, cpu)


@takes_halves.register(ConvInputGrad)
def _(op: ConvInputGrad, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> bool:
    w, x = present(inputs[1]), outputs[0]
    return choice.takes_halves(op.sites(x.shape, w.shape), "input", x.code, cpu)


@takes_halves.register(ConvWeightGrad)
def _(op: ConvWeightGrad, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> bool:
    x, w = present(inputs[0]), outputs[0]
    return choice.takes_halves(op.sites(x.shape, w.shape), "weights", x.code, cpu)
