"""Convolution and its gradients over channels-last tensors [n, *spatial, channels], as the host's lowering may choose them."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from ..graph.op import Op, Packed, Types
from ..graph.types import TensorType
from ..kernels import conv as kernels
from ..kernels.conv import Axis, Sites
from ..kernels.gemm.tiles import FLOPS_PER_NS, products
from ..kernels.isa.half import HALVES
from ..kernels.machine.call import Call, In, Out
from ..kernels.machine.call import Work as Scratch
from ..kernels.move import Axis as MoveAxis
from ..kernels.move import fill_call, move
from .last import ChannelsLast, to_first, to_last
from .shape import present
from .window import Shape, Windows

if TYPE_CHECKING:
    from ..kernels.elementwise.epilogue import Epilogue
    from ..kernels.isa.cpu import Cpu
    from .conv import Conv, ConvInputGrad, ConvWeightGrad


PLANAR = {"forward": 0.8, "input": 0.85, "weights": 0.9}
LAST = {"forward": 1.4, "input": 1.35, "weights": 1.25}
"""Speed of the two forms, as parts of the path's rate: ResNet's shapes on one AVX2 core."""
POINTWISE = {"forward": 1.2, "input": 1.2, "weights": 0.9}
"""Likewise of planar 1x1 convolutions without strides whose rows of pixels fill whole vectors."""
FEW = 512
"""Input times output channels from which widening an image part by part is no slower than widening it whole (16 x 16: 0.90, 16 x 32: 0.99)."""
TURN = 0.15
"""Nanoseconds a byte to turn a tensor, as the layout pass counts them."""
DEPTHWISE = (0.45, 0.4)
STRIDED = {"forward": (0.25, 0.22), "input": (0.05, 0.22), "weights": (0.25, 0.22)}
"""Likewise of depthwise convolutions and their gradients, planar and channels-last, without and with strides."""


def sites_of(x: Shape, w: Shape, win: Windows, group: int) -> Sites:
    """The numbers of a convolution for the kernels, from its planar shapes."""
    axes = [Axis(n, out, k, s, 1, -p, d) for n, out, k, s, p, d in
            zip(win.size, win.out, win.kernel, win.strides, win.begin, win.dilations, strict=True)]
    axes = [Axis(1, 1, 1)] * (3 - len(axes)) + axes
    return Sites(x[0], group, w[1], w[0] // group, (axes[0], axes[1], axes[2]))


def _in_tiles(s: Sites, what: str, code: str, path: Cpu) -> bool:
    """Whether the channels-last form of a `forward`, `input` or `weights` is done in bfloat16 tiles."""
    if s.depthwise:
        return False
    if what == "weights":
        return kernels.tiles_weights.pays(s, code, path)
    return kernels.tiles.pays(s if what == "forward" else s.gradient, code, path)


def takes_halves(s: Sites, what: str, code: str, path: Cpu) -> bool:
    """Whether a `forward`, `input` or `weights` of 16-bit floats reads and writes these itself.

    With few channels float32 does better, widened before, and so it does where it needs fewer products (winograd.py).
    """
    if s.depthwise or what == "weights":
        return (s.groups if s.depthwise else s.c) >= kernels.tiles.NARROWEST
    problem = s if what == "forward" else s.gradient
    if _in_tiles(s, what, code, path):
        return True
    return s.c * s.oc >= FEW and problem.c >= kernels.tiles.NARROWEST and not kernels.winograd.pays(problem, "f4", path)


def gain(s: Sites, what: str, code: str, path: Cpu) -> float:
    """Estimated nanoseconds that the channels-last form of a `forward`, `input` or `weights` saves on one core, from measured rates.

    Tiles have no planar form; 16-bit floats have none either, planar images are turned before and after. Register blocks lose what `oc`
    (or, for `weights`, `c`) lacks to whole panels, and a little per tap.
    """
    if not s.flops:                                          # no batch, no channels or no pixels
        return 0.0
    if code in HALVES:
        return 1.2 * TURN * 2 * s.n * s.groups * (s.c * s.pixels_in + s.oc * s.pixels_out)
    speed = path.rates.convolutions * 4 / int(code[1:])
    if s.depthwise:
        planar, last = STRIDED[what] if any(a.in_step > 1 for a in s.axes) else DEPTHWISE
        if s.axes[0].taps > 1:                               # planar volumes are turned
            planar = STRIDED["input"][0]
        return s.flops / speed * (1 / planar - 1 / last)
    if what == "weights":
        used, rows = s.c, s.oc
    else:
        used, rows = (s.oc, s.c) if what == "forward" else (s.c, s.oc)
    wide = kernels.panel_width(code, path)
    planar = PLANAR[what]
    if s.taps == s.groups == 1 and s.pixels_in == s.pixels_out:
        planar = max(0.5, POINTWISE[what] * s.pixels_out / (-(-s.pixels_out // wide) * wide))
    if _in_tiles(s, what, code, path):
        return s.flops * (1 / (speed * planar) - 1 / FLOPS_PER_NS[products(code, path)])
    problem = s.gradient if what == "input" else s
    if what != "weights" and kernels.winograd.pays(problem, code, path):
        return s.flops / speed / planar - kernels.winograd.cost(problem, code, path)
    return s.flops / speed * (1 / planar - 1 / (LAST[what] * filled(used, rows, code, path)))


def filled(used: int, rows: int, code: str, path: Cpu) -> float:
    """How much of the register blocks' work is not lost, where `used` is what fills panels and `rows` are summed for a tap."""
    wide = kernels.panel_width(code, path)
    return used / (-(-used // wide) * wide) * (rows / (rows + 3))


def zeros(outputs: Sequence[TensorType]) -> list[Call]:
    """Sums of nothing."""
    return [fill_call(Out(i, (t.size,)), 0, t.size, t.itemsize) for i, t in enumerate(outputs) if t.size]


class WithPanels(Op):
    """A convolution or its input gradient whose weights, of type `weights`, are laid out already. Made by `Op.packed` only.

    Where it `keeps` the weights, they are its last input.
    """

    name: ClassVar[str] = "WithPanels"

    def __init__(self, op: Convolves, weights: TensorType, keeps: bool) -> None:
        self.op, self.weights, self.keeps = op, weights, keeps

    @property
    def epilogues(self) -> int | None:                                                     # type: ignore[override]
        """Those of the operator."""
        return self.op.epilogues

    def pools(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> bool:
        return self.op.pools([inputs[0], self.weights, *inputs[2:]], outputs, cpu)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, epilogue: Epilogue | None = None,
               **more: Any) -> list[Call]:
        own = len(inputs) - self.keeps
        return self.op.calls([inputs[0], self.weights, *inputs[2:own]], outputs, cpu, epilogue, packed=own, **more)

    def __str__(self) -> str:
        return f"{self.op} with weights in panels"


class Convolves(Protocol):
    """A convolution or its input gradient, in either layout."""

    epilogues: ClassVar[int | None]

    def pools(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> bool:
        """As `Op.pools`; `calls` then takes `pooling`."""

    @property
    def calls(self) -> Callable[..., list[Call]]:
        """`calls(inputs, outputs, cpu, epilogue, packed)`: the kernel. Where `packed` is not 0 the weights are laid out; a kernel that
        needs them as they were, too, finds them as that input."""


def with_panels(op: Convolves, weights: TensorType, panels: kernels.Panels, keeps: bool = False) -> Packed:
    """The operator with its weights laid out beforehand."""
    laid = weights.with_shape((panels.elements,))
    return Packed(1, laid.with_dtype("float32") if laid.is_half else laid, panels.calls, WithPanels(op, weights, keeps), keeps)


class ConvLast(ChannelsLast):
    """Conv: x [n, *spatial, c], weights [o, c / group, *kernel] and an optional bias to y [n, *out, o]."""

    op: Conv
    name: ClassVar[str] = "ConvLast"
    epilogues: ClassVar[int | None] = -1

    def __init__(self, op: Conv, operands: int = 3) -> None:
        super().__init__(op, (True, False, False)[:operands], (True,))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, epilogue: Epilogue | None = None) -> list[Call]:
        return self.calls(inputs, outputs, cpu, epilogue, packed=0)

    def calls(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, epilogue: Epilogue | None, packed: int) -> list[Call]:
        """The kernel; see `Convolves`."""
        x, w = present(self.logical(inputs)[0]), present(inputs[1])
        if outputs[0].size == 0:
            return []
        s = self.op.sites(x.shape, w.shape)
        return _way(s, "forward", x.code, cpu).forward(s, x.code, cpu, len(inputs) > 2 and inputs[2] is not None, epilogue, packed)

    def packed(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Packed | None:
        x, w = present(self.logical(inputs)[0]), present(inputs[1])
        if outputs[0].size == 0:
            return None
        s = self.op.sites(x.shape, w.shape)
        way = _way(s, "forward", x.code, cpu)
        return with_panels(self, w, way.forward_panels(s, x.code, cpu), way is kernels.winograd)


class ConvInputGradLast(ChannelsLast):
    """ConvInputGrad: (dy [n, *out, o], weights) to dx [n, *spatial, c]."""

    op: ConvInputGrad
    name: ClassVar[str] = "ConvInputGradLast"

    def __init__(self, op: ConvInputGrad) -> None:
        super().__init__(op, (True, False), (True,))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        return self.calls(inputs, outputs, cpu, None, packed=0)

    def calls(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu, epilogue: Epilogue | None, packed: int) -> list[Call]:
        """The kernel; see `Convolves`."""
        g, w, x = present(inputs[0]), present(inputs[1]), outputs[0]
        if x.size == 0 or g.size == 0:
            return zeros(outputs)
        s = self.op.sites(to_first(x.shape), w.shape)
        return _way(s, "input", x.code, cpu).input_gradient(s, x.code, cpu, packed)

    def packed(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Packed | None:
        g, w, x = present(inputs[0]), present(inputs[1]), outputs[0]
        if x.size == 0 or g.size == 0:
            return None
        s = self.op.sites(to_first(x.shape), w.shape)
        way = _way(s, "input", x.code, cpu)
        return with_panels(self, w, way.gradient_panels(s, x.code, cpu), way is kernels.winograd)


def _way(s: Sites, what: str, code: str, path: Cpu) -> Any:
    """The kernels of a convolution (`forward`) and of its input gradient (`input`)."""
    if s.depthwise:
        return kernels.depthwise
    if _in_tiles(s, what, code, path):
        return kernels.tiles
    if code in HALVES:
        return kernels.half
    return kernels.winograd if kernels.winograd.pays(s if what == "forward" else s.gradient, code, path) else kernels.direct


class ConvWeightGradLast(ChannelsLast):
    """ConvWeightGrad: (x [n, *spatial, c], dy [n, *out, o]) to dw or (dw, dbias), as they always are."""

    op: ConvWeightGrad
    name: ClassVar[str] = "ConvWeightGradLast"

    def __init__(self, op: ConvWeightGrad) -> None:
        super().__init__(op, (True, True), (False,) * (2 if op.biased else 1))

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, g, w = present(self.logical(inputs)[0]), present(inputs[1]), outputs[0]
        if w.size == 0 or x.size == 0 or g.size == 0:
            return zeros(outputs)
        s = self.op.sites(x.shape, w.shape)
        way: Any = kernels.depthwise if s.depthwise else kernels.weights
        if _in_tiles(s, "weights", x.code, cpu):
            way = kernels.tiles_weights
        return cast(list[Call], way.weight_gradient(s, x.code, cpu, self.op.biased))


def planar_calls(form: ChannelsLast, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
    """The calls of `form` over planar images: each is turned into scratch memory, or out of it."""
    moved = [t.with_shape(to_last(t.shape)) if t is not None and last else t for t, last in zip(inputs, form.inputs, strict=False)]
    results = [t.with_shape(to_last(t.shape)) if last else t for t, last in zip(outputs, form.outputs, strict=True)]
    before, after = [], []
    renamed: dict[tuple[type, int], Scratch] = {}
    for i, last in enumerate(form.inputs):
        if not last:
            continue
        t = present(inputs[i])
        renamed[In, i] = Scratch(f"input {i}", (t.size,), t.code)
        before += move(In(i, (t.size,)), renamed[In, i], turned(t, False), t.itemsize)
    for i, last in enumerate(form.outputs):
        if not last:
            continue
        t = outputs[i]
        renamed[Out, i] = Scratch(f"output {i}", (t.size,), t.code)
        after += move(renamed[Out, i], Out(i, (t.size,)), turned(t, True), t.itemsize)
    middle = []
    for call in form.kernel(moved, results, cpu):
        args = [replace(renamed[type(a), a.index], shape=a.shape) if isinstance(a, In | Out) and (type(a), a.index) in renamed else a
                for a in call.args]
        middle.append(replace(call, args=args))
    return [*before, *middle, *after]


def turned(t: TensorType, back: bool) -> list[MoveAxis]:
    """The axes of the move from planar images of type `t` to channels-last ones, or `back`."""
    n, c, pixels = t.shape[0], t.shape[1], math.prod(t.shape[2:])
    if back:
        return [MoveAxis(n, c * pixels, c * pixels), MoveAxis(c, 1, pixels), MoveAxis(pixels, c, 1)]
    return [MoveAxis(n, c * pixels, c * pixels), MoveAxis(pixels, 1, c), MoveAxis(c, pixels, 1)]
