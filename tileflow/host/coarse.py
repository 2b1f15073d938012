"""Products whose sums are kept in float16, as the tile machine's units keep them: rounded after every 16 products.

Convolutions become products of the patches that each tap meets, laid side by side; where the taps of an input's gradient meet, float16 numbers are
added one after the other.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..graph.builder import Builder
from ..graph.graph import Value
from ..graph.op import Types
from ..kernels.isa.cpu import Cpu
from ..kernels.machine.call import Call
from ..memory.types import TensorType
from ..ops.conv import Conv, ConvInputGrad, ConvWeightGrad
from ..ops.matmul import FusedMatMul, Gemm, Product
from ..ops.shape import present
from ..ops.window import Windows
from .form import ALONE, Blockwise, HostForm, HostOp, blockwise, calls, coarse

STEP = 16
"""Products that are added before a sum is rounded."""


class CoarseProducts(HostOp):
    """A product with sums in float16. Made after the fork of the street only."""

    name: ClassVar[str] = "CoarseProducts"
    halves: ClassVar[bool] = True

    def __init__(self, op: Product | Gemm) -> None:
        self.op = op

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        return self.op.infer(*types)

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        return calls(self, ALONE, inputs, outputs, cpu)

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        """The sums of 16 products in float32, one after the other; factor and addend, in float32, at the end."""
        a, b = present(inputs[0]).astype(np.float32), present(inputs[1]).astype(np.float32)
        gemm = isinstance(self.op, Gemm)
        trans_a, trans_b, alpha = (bool(self.op.transA), bool(self.op.transB), self.op.alpha) if isinstance(self.op, Gemm) else self.op.flags()
        a, b = (np.swapaxes(a, -1, -2) if trans_a and a.ndim > 1 else a), (np.swapaxes(b, -1, -2) if trans_b and b.ndim > 1 else b)
        k = a.shape[-1]
        total = np.zeros(np.matmul(a[..., :0], b[:0] if b.ndim == 1 else b[..., :0, :]).shape, np.float32)
        for at in range(0, k, STEP):
            part = np.matmul(a[..., at:at + STEP], b[at:at + STEP] if b.ndim == 1 else b[..., at:at + STEP, :])
            total = (total + part).astype(np.float16).astype(np.float32)
        y = np.float32(alpha) * total
        if gemm and len(inputs) > 2 and inputs[2] is not None and self.op.beta != 0:                  # type: ignore[union-attr]
            y = y + np.float32(self.op.beta) * inputs[2].astype(np.float32)                          # type: ignore[union-attr]
        return (np.asarray(y).astype(present(inputs[0]).dtype),)

    def __str__(self) -> str:
        return f"{self.op} with sums in float16"


@blockwise.register(CoarseProducts)
def _(op: CoarseProducts, form: HostForm) -> Blockwise | None:
    return Blockwise(-1)


@calls.register(CoarseProducts)
def _(op: CoarseProducts, form: HostForm, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
    problem = op.op.problem(present(inputs[0]), present(inputs[1]))
    return op.op.calls(problem, inputs, outputs, False, form.epilogue, partials="f2")


@coarse.register(Product)
@coarse.register(Gemm)
def _(op: Product | Gemm, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
    return b.emit(CoarseProducts(op), *inputs)


def _product(b: Builder, x: Value, y: Value, **flags: int) -> Value:
    return b.emit(CoarseProducts(FusedMatMul(**flags)), x, y)[0]


@coarse.register(Conv)
def _(op: Conv, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
    x, w = present(inputs[0]), present(inputs[1])
    win = op.windows(x.shape, w.shape)
    y = _product(b, _weights(b, w, op.group), _patches(b, x, win, op.group))
    y = b.Reshape(y, shape=(x.shape[0], w.shape[0], *win.out), allowzero=1)
    bias = inputs[2] if len(inputs) > 2 else None
    return [y if bias is None else b.Add(y, b.Reshape(bias, shape=(-1, *[1] * len(win.out))))]


@coarse.register(ConvWeightGrad)
def _(op: ConvWeightGrad, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
    x, g = present(inputs[0]), present(inputs[1])
    win = op.windows(x.shape)
    across = [b.Reshape(b.Transpose(v, perm=(1, 2, 0, 3)), shape=(v.shape[1], v.shape[2], v.shape[0] * v.shape[3]), allowzero=1)
              for v in (_grouped(b, g, op.group), _patches(b, x, win, op.group))]
    dw = b.Reshape(_product(b, *across, transB=1), shape=(g.shape[1], x.shape[1] // op.group, *win.kernel), allowzero=1)
    return [dw, b.ReduceSum(g, axes=(0, *range(2, g.type.rank)), keepdims=0)] if op.biased else [dw]


@coarse.register(ConvInputGrad)
def _(op: ConvInputGrad, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
    g, w = present(inputs[0]), present(inputs[1])
    win, n, channels = op.windows(w.shape), g.shape[0], w.shape[1] * op.group
    patches = _product(b, _weights(b, w, op.group), _grouped(b, g, op.group), transA=1)
    taps = math.prod(win.kernel)
    patches = b.Reshape(patches, shape=(n, channels, taps, math.prod(win.out)), allowzero=1)
    whole = tuple(size + before + after for size, before, after in zip(op.shape, win.begin, win.end, strict=True))
    total: Value | None = None
    for i, at in enumerate(np.ndindex(*win.kernel)):
        one = b.Reshape(b.Slice(patches, starts=(i,), ends=(i + 1,), axes=(2,), steps=(1,)), shape=(n, channels, *win.out), allowzero=1)
        met = b.SliceGrad(one, shape=(n, channels, *whole), **_cut(win, at))
        total = met if total is None else b.Add(total, met)
    assert total is not None
    inner = dict(starts=tuple(win.begin), ends=tuple(p + s for p, s in zip(win.begin, op.shape, strict=True)))
    return [b.Slice(total, **inner, axes=tuple(range(2, g.type.rank)), steps=(1,) * len(whole))]


def _weights(b: Builder, w: Value, group: int) -> Value:
    """[group, outputs / group, channels / group * taps]."""
    return b.Reshape(w, shape=(group, w.shape[0] // group, math.prod(w.shape[1:])), allowzero=1)


def _grouped(b: Builder, y: Value, group: int) -> Value:
    """[n, group, outputs / group, pixels]."""
    return b.Reshape(y, shape=(y.shape[0], group, y.shape[1] // group, math.prod(y.shape[2:])), allowzero=1)


def _patches(b: Builder, x: Value, win: Windows, group: int) -> Value:
    """What each tap meets: [n, group, channels / group * taps, pixels]."""
    n, channels, pixels = x.shape[0], x.shape[1], math.prod(win.out)
    padded = b.Pad(x, pads=(0, 0, *win.begin, 0, 0, *win.end)) if any((*win.begin, *win.end)) else x
    taps = [b.Reshape(b.Slice(padded, **_cut(win, at)), shape=(n, channels, 1, pixels), allowzero=1) for at in np.ndindex(*win.kernel)]
    stacked = taps[0] if len(taps) == 1 else b.Concat(*taps, axis=2)
    return b.Reshape(stacked, shape=(n, group, channels // group * len(taps), pixels), allowzero=1)


def _cut(win: Windows, at: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The attributes of the Slice of a padded image that a tap meets."""
    cuts = win.tap(tuple(at))
    return dict(starts=tuple(c.start for c in cuts), ends=tuple(c.stop for c in cuts), axes=tuple(range(2, 2 + len(cuts))),
                steps=tuple(c.step for c in cuts))
