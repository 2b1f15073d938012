"""Products and convolutions of bytes: epilogues on their blocks, which may give another element type, and operands laid out beforehand."""
from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..graph import Builder, Index, Node, Value
from ..graph.op import Types
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call, In, Out
from ..kernels.quantized import conv
from ..kernels.quantized.product import panels
from ..memory.types import TensorType, dtype_of
from ..ops.conv import Conv
from ..ops.integer import ByteProduct, IntegerConv
from ..ops.shape import present
from .form import ALONE, Blockwise, HostForm, HostOp, Packed, blockwise, calls, packed
from .rewrite import Replacement, composite_rule, node_of


@blockwise.register(ByteProduct)
def _(op: ByteProduct, form: HostForm) -> Blockwise | None:
    """Channels are columns, or rows."""
    return Blockwise(-2 if op.by_row else -1, retypes=True)


@packed.register(ByteProduct)
def _(op: ByteProduct, form: HostForm, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Packed | None:
    a, b = present(inputs[0]), present(inputs[1])
    problem = op.problem(a, b)
    if op.by_row or problem.count * problem.m * problem.n * problem.k == 0:
        return None
    laid = panels(b.code, problem)
    return Packed(1, b, TensorType(dtype_of(laid.dtype), (laid.elements,)), laid.calls)


@calls.register(ByteProduct)
def _(op: ByteProduct, form: HostForm, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
    a, b = present(inputs[0]), present(inputs[1])
    laid, codes = form.packed is not None, (a.code, b.code)
    return op.calls(op.problem(a, b), codes, form.laid(inputs), outputs, laid, form.epilogue)


# ---- convolutions

class ByteConv(HostOp):
    """The exact sums of an integer convolution over one or two axes: x [n, c, *spatial], weights and their zero points (int32, each may be absent;
    those of weights one, or one for each output channel) to int32 [n, o, *out]."""

    name: ClassVar[str] = "ByteConv"

    def __init__(self, op: IntegerConv) -> None:
        self.op = op

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return (self.op.image(present(types[0]), present(types[1])),)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        """In float64: sums of products of bytes are far from 2 ** 53."""
        x, w, zx, zw = (None if a is None else a.astype(np.float64) for a in [*inputs, None, None][:4])
        x, w = present(x), present(w)
        image = x if zx is None else x - zx.reshape(-1)[0]
        weights = w if zw is None else w - zw.reshape(-1, *[1] * (w.ndim - 1))
        own = Conv(strides=self.op.strides or None, pads=self.op.pads or None, dilations=self.op.dilations or None, group=self.op.group,
                   auto_pad=self.op.auto_pad)
        return (own.reference(image, weights)[0].astype(np.int64).astype(np.int32),)

    def problem(self, x: TensorType, w: TensorType) -> conv.ByteConvProblem:
        """The sizes."""
        win = self.op.windows(x.shape, w.shape)
        axes = [conv.ByteConvAxis(*of)
                for of in zip(win.size, win.out, win.kernel, win.strides, win.dilations, win.begin, strict=True)]
        rows, columns = [conv.ByteConvAxis(1, 1, 1)] * (2 - len(axes)) + axes
        return conv.ByteConvProblem(x.shape[0], self.op.group, w.shape[1], w.shape[0] // self.op.group, rows, columns)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        return calls(self, ALONE, inputs, outputs, cpu)

    def __str__(self) -> str:
        return f"ByteConv of {self.op}"


@blockwise.register(ByteConv)
def _(op: ByteConv, form: HostForm) -> Blockwise | None:
    return Blockwise(1, retypes=True)


@packed.register(ByteConv)
def _(op: ByteConv, form: HostForm, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> Packed | None:
    x, w = present(inputs[0]), present(inputs[1])
    if outputs[0].size == 0:
        return None
    laid = conv.panels(w.code, op.problem(x, w))
    return Packed(1, w, TensorType(dtype_of(laid.dtype), (laid.elements,)), laid.calls)


@calls.register(ByteConv)
def _(op: ByteConv, form: HostForm, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
    x, w, *zeros = inputs
    x, w, lying = present(x), present(w), present(form.laid(inputs)[1])
    zx, zw = (None if t is None else In(i, t.shape or (1,)) for i, t in enumerate([*zeros, None, None][:2], 2))
    return conv.calls((x.code, w.code), op.problem(x, w), In(0, x.shape), In(1, lying.shape), zx, zw,
                      Out(0, outputs[0].shape), packed=form.packed is not None, epilogue=form.epilogue)


class HostConv(HostOp):
    """An operator of ONNX whose sums a ByteConv gives. Made by `by_strips` only, and taken apart at once."""

    name: ClassVar[str] = "HostConv"

    def __init__(self, op: IntegerConv) -> None:
        self.op = op

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return self.op.infer(*types)

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x, w, *zeros = self.op.operands(inputs)
        wide = [None if z is None else b.Cast(z if z.type.size > 1 else b.Reshape(z, shape=(), allowzero=1), to="int32") for z in zeros]
        total, = b.emit(ByteConv(self.op), x, w, *wide)
        return self.op.finish(b, inputs, total, (w.shape[0], *(1,) * (x.type.rank - 2)))

    def __str__(self) -> str:
        return f"{self.op} by strips"


def serves(op: IntegerConv, x: TensorType, w: TensorType) -> bool:
    """Whether a ByteConv computes the sums: over one or two axes, nothing cut away."""
    return x.rank in (3, 4) and min(op.windows(x.shape, w.shape).pads) >= 0


@composite_rule
def by_strips(index: Index, node: Node) -> Replacement | None:
    """ConvInteger and QLinearConv: the same exact sums, in another order, which makes no difference to integers modulo 2 ** 32."""
    if not isinstance(node.op, IntegerConv):
        return None
    types = [None if v is None else v.type for v in node.inputs]
    x, w, *_ = node.op.operands(node.inputs)
    if not serves(node.op, x.type, w.type) or node.op.infer(*types)[0].size == 0:
        return None
    return Replacement(frozenset((node,)), ((node, (node_of(HostConv(node.op), node.inputs, node.origin, node.outputs),)),))
