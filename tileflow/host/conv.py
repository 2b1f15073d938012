"""Convolution and its gradients: forms over channels-last tensors [n, *spatial, channels], and weights laid out in panels."""
from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..graph.op import Types
from ..graph.types import TensorType
from ..kernels.conv import CHANNELS_LAST, PLANAR, Algorithm, ConvProblem, algorithms, choose, choose_weights, pools
from ..kernels.conv.algorithms import saved
from ..kernels.conv.planar import product
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call
from ..ops.conv import Conv, ConvInputGrad, ConvWeightGrad, zeros
from ..ops.shape import present
from .channels_last import ChannelsLast, to_channels_first
from .form import AsItStands, Blockwise, Finish, Form, Packed, blockwise, channels_last, packed, takes_halves


class Convolution(Blockwise):
    """A convolution or its input gradient, in either layout, whose weights may be laid out already.

    among: the algorithms of that layout.
    """

    op: Conv | ConvInputGrad
    among: ClassVar[Sequence[Algorithm]] = CHANNELS_LAST

    def problem(self, inputs: Types, outputs: Sequence[TensorType]) -> ConvProblem:
        """The numbers of the problem. Some of its images hold elements."""
        raise NotImplementedError

    def convolve(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, finish: Finish, packed: int) -> list[Call]:
        """As `calls`. Where `packed` is not 0 the weights are laid out; a kernel that needs them as they were, too, finds them as that input."""
        code = outputs[0].code
        if outputs[0].size == 0 or present(inputs[0]).size == 0:
            after = [finish.epilogue.after(outputs[0].shape, self.epilogue or 0)] if finish.epilogue and outputs[0].size else []
            return [*self.op.kernel(inputs, outputs, cpu), *after]
        p, biased = self.problem(inputs, outputs), len(inputs) > 2 and inputs[2] is not None
        if finish.pooling is not None:
            return product.calls(p, code, cpu, biased=biased, epilogue=finish.epilogue, packed=packed, pooling=finish.pooling)
        return choose(p, code, cpu, self.among).calls(p, code, cpu, biased=biased, epilogue=finish.epilogue, packed=packed)

    def packed(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Packed | None:
        """The operator with its weights laid out beforehand, if its algorithm wants that."""
        if outputs[0].size == 0 or present(inputs[0]).size == 0:
            return None
        p, code, weights = self.problem(inputs, outputs), outputs[0].code, present(inputs[1])
        algorithm = choose(p, code, cpu, self.among)
        panels = algorithm.panels(p, code, cpu)
        if panels is None:
            return None
        laid = weights.with_shape((panels.elements,))
        kind = laid.with_dtype("float32") if laid.is_half else laid
        return Packed(1, kind, panels.calls, WithPanels(self, weights, algorithm.keeps), algorithm.keeps)

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


@packed.register(Convolution)
def _(op: Convolution, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Packed | None:
    return op.packed(inputs, outputs, cpu)


# ---- planar images

class ConvPlanar(AsItStands, Convolution):
    """Conv as it stands: x [n, c, *spatial], weights [o, c / group, *kernel] and an optional bias to y [n, o, *out]."""

    op: Conv
    name: ClassVar[str] = "ConvPlanar"
    among: ClassVar[Sequence[Algorithm]] = PLANAR
    epilogue: ClassVar[int | None] = 1

    def __init__(self, op: Conv) -> None:
        self.op = op

    def pools(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> bool:
        return outputs[0].size > 0 and pools(self.problem(inputs, outputs), outputs[0].code, cpu)

    def problem(self, inputs: Types, outputs: Sequence[TensorType]) -> ConvProblem:
        return self.op.problem(present(inputs[0]).shape, present(inputs[1]).shape)


class ConvInputGradPlanar(AsItStands, Convolution):
    """ConvInputGrad as it stands: (dy [n, o, *out], weights) to dx [n, c, *spatial]."""

    op: ConvInputGrad
    name: ClassVar[str] = "ConvInputGradPlanar"
    among: ClassVar[Sequence[Algorithm]] = PLANAR
    epilogue: ClassVar[int | None] = 1

    def __init__(self, op: ConvInputGrad) -> None:
        self.op = op

    def problem(self, inputs: Types, outputs: Sequence[TensorType]) -> ConvProblem:
        return self.op.problem(outputs[0].shape, present(inputs[1]).shape)


@blockwise.register(Conv)
def _(op: Conv) -> Blockwise | None:
    return ConvPlanar(op)


@blockwise.register(ConvInputGrad)
def _(op: ConvInputGrad) -> Blockwise | None:
    return ConvInputGradPlanar(op)


@packed.register(Conv)
def _(op: Conv, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Packed | None:
    return ConvPlanar(op).packed(inputs, outputs, cpu)


@packed.register(ConvInputGrad)
def _(op: ConvInputGrad, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Packed | None:
    return ConvInputGradPlanar(op).packed(inputs, outputs, cpu)


# ---- channels last

class ConvChannelsLast(ChannelsLast, Convolution):
    """Conv: x [n, *spatial, c], weights [o, c / group, *kernel] and an optional bias to y [n, *out, o]."""

    op: Conv
    name: ClassVar[str] = "ConvChannelsLast"
    epilogue: ClassVar[int | None] = -1

    def __init__(self, op: Conv, operands: int = 3) -> None:
        super().__init__(op, (True, False, False)[:operands], (True,))

    def problem(self, inputs: Types, outputs: Sequence[TensorType]) -> ConvProblem:
        return self.op.problem(present(self.logical(inputs)[0]).shape, present(inputs[1]).shape)


class ConvInputGradChannelsLast(ChannelsLast, Convolution):
    """ConvInputGrad: (dy [n, *out, o], weights) to dx [n, *spatial, c]."""

    op: ConvInputGrad
    name: ClassVar[str] = "ConvInputGradChannelsLast"

    def __init__(self, op: ConvInputGrad) -> None:
        super().__init__(op, (True, False), (True,))

    def problem(self, inputs: Types, outputs: Sequence[TensorType]) -> ConvProblem:
        return self.op.problem(to_channels_first(outputs[0].shape), present(inputs[1]).shape)


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
        p = self.op.problem(x.shape, w.shape)
        return choose_weights(p, x.code, cpu, biased=self.op.biased).calls(p, x.code, cpu, biased=self.op.biased)


@channels_last.register(ConvInputGrad)
def _(op: ConvInputGrad, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Form | None:
    w, x = present(inputs[1]), outputs[0]
    return ConvInputGradChannelsLast(op).form(saved(op.problem(x.shape, w.shape), x.code, cpu))


@channels_last.register(ConvWeightGrad)
def _(op: ConvWeightGrad, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Form | None:
    x, w = present(inputs[0]), outputs[0]
    return ConvWeightGradChannelsLast(op).form(saved(op.problem(x.shape, w.shape), x.code, cpu, of_weights=True))


# ---- 16-bit floats

@takes_halves.register(Conv)
def _(op: Conv, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> bool:
    x, w = present(inputs[0]), present(inputs[1])
    return algorithms.takes_halves(op.problem(x.shape, w.shape), x.code, cpu)


@takes_halves.register(ConvInputGrad)
def _(op: ConvInputGrad, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> bool:
    w, x = present(inputs[1]), outputs[0]
    return algorithms.takes_halves(op.problem(x.shape, w.shape), x.code, cpu)


@takes_halves.register(ConvWeightGrad)
def _(op: ConvWeightGrad, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> bool:
    x, w = present(inputs[0]), outputs[0]
    return algorithms.takes_halves(op.problem(x.shape, w.shape), x.code, cpu, of_weights=True)
