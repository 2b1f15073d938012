"""Convolution over one to three spatial axes, and its gradients."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph.op import Op, Types, op
from ..graph.sample import Sample, sample
from ..graph.work import Axis, Contraction, Nested, Operand, Window, Work
from ..kernels.conv import PLANAR, PLANAR_WEIGHTS, ConvAxis, ConvProblem, choose, choose_weights
from ..kernels.machine.call import Call, Out
from ..kernels.move import fill_call
from ..memory.types import TensorType
from ..system.errors import ShapeError, TypeMismatchError, UnsupportedError
from .shape import present
from .window import Shape, Windows
from .window import windows as find_windows

if TYPE_CHECKING:
    from ..graph.builder import Builder
    from ..graph.graph import Value
    from ..kernels.isa.cpu import Cpu


def problem_of(x: Shape, w: Shape, win: Windows, group: int) -> ConvProblem:
    """The numbers of a convolution for the kernels, from its planar shapes."""
    axes = [ConvAxis(n, out, k, s, 1, -p, d) for n, out, k, s, p, d in
            zip(win.size, win.out, win.kernel, win.strides, win.begin, win.dilations, strict=True)]
    filled = [ConvAxis(1, 1, 1)] * (3 - len(axes)) + axes
    return ConvProblem(x[0], group, w[1], w[0] // group, (filled[0], filled[1], filled[2]), len(axes))


def zeros(outputs: Sequence[TensorType]) -> list[Call]:
    """Sums of nothing."""
    return [fill_call(Out(i, (t.size,)), 0, t.size, t.itemsize) for i, t in enumerate(outputs) if t.size]


def _check(x: TensorType, w: TensorType, group: int) -> None:
    """Raises where a convolution of `x` with weights `w` cannot be."""
    if x.dtype != w.dtype or not x.is_float:
        raise TypeMismatchError(f"the input is {x.dtype} and the weights {w.dtype}; both must be one float type.")
    if x.rank not in _LETTERS:
        raise UnsupportedError(f"a convolution over {max(0, x.rank - 2)} spatial axes (input {list(x.shape)}) is not supported; "
                               f"only 1, 2 or 3 axes are.")
    if w.rank != x.rank:
        raise ShapeError(f"the weights {list(w.shape)} must have as many dimensions as the input {list(x.shape)}.")
    if group < 1 or w.shape[0] % group or x.shape[1] != w.shape[1] * group:
        raise ShapeError(f"the input {list(x.shape)} has {x.shape[1]} channels, but weights {list(w.shape)} in {group} "
                         f"group{'s' if group != 1 else ''} take {w.shape[1] * max(group, 0)} and their {w.shape[0]} output "
                         f"channels must divide among the groups.")
    if 0 in w.shape[1:] or 0 in x.shape[2:]:
        raise ShapeError(f"the weights {list(w.shape)} and the spatial axes of the input {list(x.shape)} may not be empty.")


def _patches(x: np.ndarray, win: Windows) -> np.ndarray:
    """[n, c, *kernel, *out]: a copy of what each tap meets."""
    padded = np.pad(x, [(0, 0), (0, 0), *zip(win.begin, win.end, strict=True)])
    taps = [padded[(slice(None), slice(None), *win.tap(at))] for at in np.ndindex(*win.kernel)]
    return np.stack(taps, 2).reshape(*x.shape[:2], *win.kernel, *win.out)


_LETTERS = {3: ("k", "x"), 4: ("kl", "xy"), 5: ("klm", "xyz")}
"""einsum letters of the kernel's and of the output's spatial axes, by the rank of the image."""


def _work(x: TensorType, w: TensorType, y: TensorType, win: Windows, group: int, names: str, reduced: str) -> Work:
    """The contraction over (image, group, output channel, channel, output pixel, tap): `names` orders two inputs and the output
    among x, w and y; `reduced` are its summed axes."""
    rank = x.rank - 2
    spatial = [f"o{i}" for i in range(rank)]
    taps = [f"k{i}" for i in range(rank)]
    sizes = {"n": x.shape[0], "g": group, "o": w.shape[0] // group, "c": w.shape[1], **dict(zip(spatial, win.out, strict=True)),
             **dict(zip(taps, win.kernel, strict=True))}
    sums = {"w": {"c", *taps}, "n": {"n", *spatial}, "o": {"o", *taps}}[reduced]
    axes = tuple(Axis(name, size, "reduce" if name in sums else "parallel") for name, size in sizes.items() if name != "g" or group > 1)

    def channel(name: str) -> str | Window:
        return name if group == 1 else Nested("g", name, stride=sizes[name])

    images = tuple(Window(spatial[i], taps[i], win.strides[i], win.dilations[i], win.begin[i]) for i in range(rank))
    operands = {"x": Operand(("n", channel("c"), *images), x.dtype), "w": Operand((channel("o"), "c", *taps), x.dtype),
                "y": Operand(("n", channel("o"), *spatial), x.dtype)}
    first, second, result = (operands[name] for name in names)
    return Contraction(axes, (first, second), (result,))


@op("Conv")
class Conv(Op):
    """y[n, o] = bias[o] + sum over channels of the cross-correlation of x[n, c] with weights[o, c].

    Inputs x [n, c, *spatial], weights [o, c / group, *kernel], optionally a bias [o]; output [n, o, *out].
    """

    roles = ("data", "weight", "bias")
    auto_pad: str = "NOTSET"
    dilations: Shape | None = None
    group: int = 1
    kernel_shape: Shape | None = None
    pads: Shape | None = None
    strides: Shape | None = None

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 4, 7, 6), (6, 4, 3, 2), (6,), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1)),
                sample((2, 4, 7, 6), (6, 2, 3, 2), group=2),
                sample((2, 4, 9), (6, 4, 3))]

    def windows(self, x: Shape, w: Shape) -> Windows:
        if self.kernel_shape is not None and tuple(self.kernel_shape) != tuple(w[2:]):
            raise ShapeError(f"kernel_shape {list(self.kernel_shape)} does not match the weights {list(w)}.")
        return find_windows(x[2:], w[2:], self.strides, self.pads, self.dilations, self.auto_pad)

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, w = present(types[0]), present(types[1])
        _check(x, w, self.group)
        bias = types[2] if len(types) > 2 else None
        if bias is not None and bias.dtype != x.dtype:
            raise TypeMismatchError(f"the bias is {bias.dtype} and the input {x.dtype}; cast one of them.")
        if bias is not None and bias.shape != (w.shape[0],):
            raise ShapeError(f"the bias must be [{w.shape[0]}], one element per output channel, not {list(bias.shape)}.")
        return (x.with_shape((x.shape[0], w.shape[0], *self.windows(x.shape, w.shape).out)),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x, w = present(inputs[0]), present(inputs[1])
        bias = inputs[2] if len(inputs) > 2 else None
        win = self.windows(x.shape, w.shape)
        taps, out = _LETTERS[x.ndim]
        parts = [np.einsum(f"nc{taps}{out},oc{taps}->no{out}", p, v) for p, v in
                 zip(np.split(_patches(x, win), self.group, 1), np.split(w, self.group), strict=True)]
        y = np.concatenate(parts, 1)
        return (y if bias is None else y + bias.reshape(-1, *[1] * (x.ndim - 2)),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        g, x, w = grads[0], present(inputs[0]), present(inputs[1])
        if g is None:
            return [None] * len(inputs)
        win = self.windows(x.shape, w.shape)
        attributes: dict[str, Any] = dict(strides=win.strides, pads=win.pads, dilations=win.dilations, group=self.group)
        dx = b.ConvInputGrad(g, w, shape=x.shape[2:], **attributes)
        if len(inputs) > 2 and inputs[2] is not None:
            return [dx, *b.ConvWeightGrad(x, g, kernel_shape=win.kernel, biased=True, **attributes)]
        return [dx, b.ConvWeightGrad(x, g, kernel_shape=win.kernel, **attributes), *[None] * (len(inputs) - 2)]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x, w = present(inputs[0]), present(inputs[1])
        made = _work(x, w, outputs[0], self.windows(x.shape, w.shape), self.group, "xwy", "w")
        if len(inputs) < 3 or inputs[2] is None:
            return made
        bias = Operand((present(made.inputs[1]).dims[0],), x.dtype)
        return Contraction(made.axes, (*made.inputs, bias), made.outputs)

    def problem(self, x: Shape, w: Shape) -> ConvProblem:
        """The numbers of the convolution for the kernels."""
        return problem_of(x, w, self.windows(x, w), self.group)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, w = present(inputs[0]), present(inputs[1])
        if outputs[0].size == 0:
            return []
        p, biased = self.problem(x.shape, w.shape), len(inputs) > 2 and inputs[2] is not None
        return choose(p, x.code, cpu, PLANAR).calls(p, x.code, cpu, biased=biased)


@op("ConvInputGrad", onnx=False)
class ConvInputGrad(Op):
    """Gradient of Conv with respect to its input: (gradient of y, weights) to an image with spatial axes `shape`."""

    shape: Shape = ()
    strides: Shape | None = None
    pads: Shape | None = None
    dilations: Shape | None = None
    group: int = 1

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 6, 4, 6), (6, 4, 3, 2), shape=(7, 6), strides=(2, 1), pads=(1, 0, 1, 1)),
                sample((2, 6, 3, 5), (6, 4, 2, 2), shape=(6, 10), strides=(2, 2)),
                sample((2, 4, 3, 2), (4, 3, 3, 3), shape=(9, 6), strides=(3, 3), group=2),
                sample((1, 3, 2, 3, 4), (3, 2, 2, 1, 2), shape=(4, 3, 8), strides=(2, 1, 2)),
                sample((2, 3, 5), (3, 2, 4), shape=(20,), strides=(4,))]

    def windows(self, w: Shape) -> Windows:
        return find_windows(self.shape, w[2:], self.strides, self.pads, self.dilations)

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        g, w = present(types[0]), present(types[1])
        x = g.with_shape((g.shape[0], w.shape[1] * self.group, *self.shape))
        _check(x, w, self.group)
        wanted = (g.shape[0], w.shape[0], *self.windows(w.shape).out)
        if g.shape != wanted:
            raise ShapeError(f"the gradient {list(g.shape)} must have the convolution's output shape {list(wanted)}.")
        return (x,)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        g, w = present(inputs[0]), present(inputs[1])
        win = self.windows(w.shape)
        taps, out = _LETTERS[g.ndim]
        parts = [np.einsum(f"no{out},oc{taps}->nc{taps}{out}", p, v) for p, v in
                 zip(np.split(g, self.group, 1), np.split(w, self.group), strict=True)]
        patches = np.concatenate(parts, 1)
        padded = np.zeros((*patches.shape[:2], *(n + p + q for n, p, q in zip(self.shape, win.begin, win.end, strict=True))), g.dtype)
        for at in np.ndindex(*win.kernel):
            padded[(slice(None), slice(None), *win.tap(at))] += patches[(slice(None), slice(None), *at)]
        inner = tuple(slice(p, p + n) for p, n in zip(win.begin, self.shape, strict=True))
        return (np.ascontiguousarray(padded[(slice(None), slice(None), *inner)]),)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        dx, g, w = grads[0], present(inputs[0]), present(inputs[1])
        if dx is None:
            return [None, None]
        win = self.windows(w.shape)
        attributes: dict[str, Any] = dict(strides=win.strides, pads=win.pads, dilations=win.dilations, group=self.group)
        return [b.Conv(dx, w, **attributes), b.ConvWeightGrad(dx, g, kernel_shape=win.kernel, **attributes)]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        g, w = present(inputs[0]), present(inputs[1])
        return _work(outputs[0], w, g, self.windows(w.shape), self.group, "ywx", "o")

    def problem(self, x: Shape, w: Shape) -> ConvProblem:
        """The numbers of the gradient for the kernels."""
        return problem_of(x, w, self.windows(w), self.group).turn

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        g, w, x = present(inputs[0]), present(inputs[1]), outputs[0]
        if x.size == 0 or g.size == 0:
            return zeros(outputs)
        p = self.problem(x.shape, w.shape)
        return choose(p, x.code, cpu, PLANAR).calls(p, x.code, cpu)


@op("ConvWeightGrad", onnx=False)
class ConvWeightGrad(Op):
    """Gradient of Conv with respect to its weights, and to its bias when `biased`: (x, gradient of y) to dw or (dw, dbias)."""

    kernel_shape: Shape = ()
    strides: Shape | None = None
    pads: Shape | None = None
    dilations: Shape | None = None
    group: int = 1
    biased: bool = False

    @classmethod
    def samples(cls) -> list[Sample]:
        return [sample((2, 4, 7, 6), (2, 6, 4, 6), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1)),
                sample((2, 4, 7, 6), (2, 6, 4, 6), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1), biased=True)]

    def windows(self, x: Shape) -> Windows:
        return find_windows(x[2:], self.kernel_shape, self.strides, self.pads, self.dilations)

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        x, g = present(types[0]), present(types[1])
        if g.rank != x.rank or g.shape[0] != x.shape[0] or x.shape[1] % self.group:
            raise ShapeError(f"the gradient {list(g.shape)} does not belong to a convolution of {list(x.shape)} in {self.group} groups.")
        w = g.with_shape((g.shape[1], x.shape[1] // self.group, *self.kernel_shape))
        _check(x, w, self.group)
        wanted = (x.shape[0], w.shape[0], *self.windows(x.shape).out)
        if g.shape != wanted:
            raise ShapeError(f"the gradient {list(g.shape)} must have the convolution's output shape {list(wanted)}.")
        return (w, g.with_shape((g.shape[1],))) if self.biased else (w,)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        x, g = present(inputs[0]), present(inputs[1])
        taps, out = _LETTERS[x.ndim]
        parts = [np.einsum(f"nc{taps}{out},no{out}->oc{taps}", p, v) for p, v in
                 zip(np.split(_patches(x, self.windows(x.shape)), self.group, 1), np.split(g, self.group, 1), strict=True)]
        dw = np.concatenate(parts)
        return (dw, g.sum((0, *range(2, g.ndim)))) if self.biased else (dw,)

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        x, g = present(inputs[0]), present(inputs[1])
        win = self.windows(x.shape)
        attributes: dict[str, Any] = dict(strides=win.strides, pads=win.pads, dilations=win.dilations, group=self.group)
        dx = dg = None
        if grads[0] is not None:
            dx = b.ConvInputGrad(g, grads[0], shape=x.shape[2:], **attributes)
            dg = b.Conv(x, grads[0], **attributes)
        if self.biased and grads[1] is not None:
            from_bias = b.Expand(b.Reshape(grads[1], shape=(1, g.shape[1], *[1] * (g.type.rank - 2))), shape=g.shape)
            dg = from_bias if dg is None else b.Add(dg, from_bias)
        return [dx, dg]

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        x, g = present(inputs[0]), present(inputs[1])
        made = _work(x, outputs[0], g, self.windows(x.shape), self.group, "xyw", "n")
        bias = tuple(Operand((made.outputs[0].dims[0],), x.dtype) for _ in outputs[1:])
        return Contraction(made.axes, made.inputs, (*made.outputs, *bias))

    def problem(self, x: Shape, w: Shape) -> ConvProblem:
        """The numbers of the convolution for the kernels."""
        return problem_of(x, w, self.windows(x), self.group)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        x, g, w = present(inputs[0]), present(inputs[1]), outputs[0]
        if w.size == 0 or x.size == 0 or g.size == 0:
            return zeros(outputs)
        p = self.problem(x.shape, w.shape)
        return choose_weights(p, x.code, cpu, PLANAR_WEIGHTS, biased=self.biased).calls(p, x.code, cpu, biased=self.biased)
