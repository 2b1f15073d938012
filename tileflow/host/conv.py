"""Convolution and its gradients: over planar or channels-last images, with weights in panels, finished and pooled in
cache."""
from __future__ import annotations

from collections.abc import Sequence

from ..graph.op import Types
from ..kernels.conv import CHANNELS_LAST, PLANAR, STEM, Algorithm, ConvProblem, algorithms, choose, choose_weights
from ..kernels.conv import pools as pays
from ..kernels.conv.algorithms import saved, saved_by_stem
from ..kernels.conv.planar import product
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call
from ..memory.types import TensorType
from ..ops.conv import Conv, ConvInputGrad, ConvWeightGrad, zeros
from ..ops.shape import present
from .channels_last import to_channels_last
from .form import (
    Blockwise,
    ChannelsLast,
    HostForm,
    Packed,
    blockwise,
    calls,
    channels_last,
    packed,
    pools,
    takes_halves,
)
from .hosted import over_channels_last

Outputs = Sequence[TensorType]


def _problem(op: Conv | ConvInputGrad, inputs: Types, outputs: Outputs) -> ConvProblem:
    """The numbers of the problem. Some of its images hold elements."""
    image = outputs[0] if isinstance(op, ConvInputGrad) else present(inputs[0])
    return op.problem(image.shape, present(inputs[1]).shape)


def _among(form: HostForm) -> Sequence[Algorithm]:
    """The algorithms of the layout."""
    return PLANAR if not form.turned else CHANNELS_LAST if any(form.turned_inputs) else STEM


def _is_empty(inputs: Types, outputs: Outputs) -> bool:
    return outputs[0].size == 0 or present(inputs[0]).size == 0


@blockwise.register(Conv)
def _(op: Conv, form: HostForm) -> Blockwise | None:
    return Blockwise(-1 if form.turned else 1)


@blockwise.register(ConvInputGrad)
def _(op: ConvInputGrad, form: HostForm) -> Blockwise | None:
    """Over planar images; channels-last ones are made in a piece for each phase of the strides, as no epilogue
    expects."""
    return None if form.turned else Blockwise(1)


@pools.register(Conv)
def _(op: Conv, form: HostForm, inputs: Types, outputs: Outputs, cpu: Cpu) -> bool:
    return not form.turned and outputs[0].size > 0 and pays(_problem(op, inputs, outputs), outputs[0].code, cpu)


@packed.register(Conv)
@packed.register(ConvInputGrad)
def _(op: Conv | ConvInputGrad, form: HostForm, inputs: Types, outputs: Outputs, cpu: Cpu) -> Packed | None:
    """The weights, if the algorithm wants that."""
    if _is_empty(inputs, outputs):
        return None
    p, code, weights = _problem(op, inputs, outputs), outputs[0].code, present(inputs[1])
    algorithm = choose(p, code, cpu, _among(form))
    panels = algorithm.panels(p, code, cpu)
    if panels is None:
        return None
    laid = weights.with_shape((panels.elements,))
    return Packed(1, weights, laid.with_dtype("float32") if laid.is_half else laid, panels.calls, algorithm.keeps)


@calls.register(Conv)
@calls.register(ConvInputGrad)
def _(op: Conv | ConvInputGrad, form: HostForm, inputs: Types, outputs: Outputs, cpu: Cpu) -> list[Call]:
    """A kernel that needs weights as they were, beside those in panels, finds them after the operator's own inputs."""
    y = outputs[0]
    if _is_empty(inputs, outputs):
        lying = to_channels_last(y.shape) if form.turned else y.shape
        after = [form.epilogue.after(lying, -1 if form.turned else 1)] if form.epilogue and y.size else []
        return [*op.kernel(inputs, outputs, cpu), *after]
    p, biased = _problem(op, inputs, outputs), len(inputs) > 2 and inputs[2] is not None
    laid = len(inputs) if form.packed else 0
    if form.pooling is not None:
        return product.calls(p, y.code, cpu, biased=biased, epilogue=form.epilogue, packed=laid, pooling=form.pooling)
    way = choose(p, y.code, cpu, _among(form))
    return way.calls(p, y.code, cpu, biased=biased, epilogue=form.epilogue, packed=laid)


@calls.register(ConvWeightGrad)
def _(op: ConvWeightGrad, form: HostForm, inputs: Types, outputs: Outputs, cpu: Cpu) -> list[Call]:
    """x and dy are channels-last; dw and dbias are as they always are."""
    x, g, w = present(inputs[0]), present(inputs[1]), outputs[0]
    if w.size == 0 or x.size == 0 or g.size == 0:
        return zeros(outputs)
    p = op.problem(x.shape, w.shape)
    return choose_weights(p, x.code, cpu, biased=op.biased).calls(p, x.code, cpu, biased=op.biased)


# ---- channels last

@channels_last.register(Conv)
def _(op: Conv, inputs: Types, outputs: Outputs, cpu: Cpu) -> ChannelsLast | None:
    """The stem's form, from few planar channels to channels-last results, where it serves; else both sides."""
    p, code, rest = _problem(op, inputs, outputs), present(inputs[0]).code, (False,) * (len(inputs) - 1)
    if STEM[0].serves(p, code, cpu):
        return over_channels_last(op, (False, *rest), (True,), saved_by_stem(p, code, cpu))
    return over_channels_last(op, (True, *rest), (True,), saved(p, code, cpu))


@channels_last.register(ConvInputGrad)
def _(op: ConvInputGrad, inputs: Types, outputs: Outputs, cpu: Cpu) -> ChannelsLast | None:
    return over_channels_last(op, (True, False), (True,), saved(_problem(op, inputs, outputs), outputs[0].code, cpu))


@channels_last.register(ConvWeightGrad)
def _(op: ConvWeightGrad, inputs: Types, outputs: Outputs, cpu: Cpu) -> ChannelsLast | None:
    x, w = present(inputs[0]), outputs[0]
    gain = saved(op.problem(x.shape, w.shape), x.code, cpu, of_weights=True)
    return over_channels_last(op, (True, True), (False,) * len(outputs), gain)


# ---- 16-bit floats

@takes_halves.register(Conv)
@takes_halves.register(ConvInputGrad)
def _(op: Conv | ConvInputGrad, inputs: Types, outputs: Outputs, cpu: Cpu) -> bool:
    return algorithms.takes_halves(_problem(op, inputs, outputs), present(inputs[0]).code, cpu)


@takes_halves.register(ConvWeightGrad)
def _(op: ConvWeightGrad, inputs: Types, outputs: Outputs, cpu: Cpu) -> bool:
    x, w = present(inputs[0]), outputs[0]
    return algorithms.takes_halves(op.problem(x.shape, w.shape), x.code, cpu, of_weights=True)
