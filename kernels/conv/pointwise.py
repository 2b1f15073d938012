"""1x1 convolution over planes: matrix products over the pixels of each image, with the weights as the left operand."""
from __future__ import annotations

from collections.abc import Sequence

from ..blocking import Problem
from ..call import Call, In, Out
from ..epilogue import Epilogue
from ..gemm import Bias, matmul_calls
from .geometry import Geometry

LEAST = 16                # pixels: fewer would leave the vectors of a product half empty


def serves(g: Geometry) -> bool:
    """One tap, and an image that is read where it lies."""
    return g.in_place and g.kh == 1 and g.groups == 1 and g.h * g.w >= LEAST


def forward(g: Geometry, dtype: str, biased: bool, epilogue: Epilogue | None, shape: Sequence[int]) -> list[Call]:
    """y of `shape` [n, oc, oh, ow] (output 0) from x (input 0), weights [oc, c, 1, 1] (1) and bias (2, when `biased`)."""
    pixels = g.h * g.w
    p = Problem(g.oc, pixels, g.c, batch=(g.n,), a_step=(0,), b_step=(g.c * pixels,))
    bias = Bias(In(2, (g.oc,)), 1, 0) if biased else None
    calls = matmul_calls(dtype, p, In(1, (g.oc * g.c,)), In(0, (g.n * g.c * pixels,)), Out(0, (g.n * g.oc * pixels,)), beta=1.0, bias=bias)
    return [*calls, epilogue.after(shape, 1)] if epilogue else calls


def input_gradient(g: Geometry, dtype: str) -> list[Call]:
    """dx (output 0) from dy (input 0) and the weights (1)."""
    pixels = g.h * g.w
    p = Problem(g.c, pixels, g.oc, trans_a=True, batch=(g.n,), a_step=(0,), b_step=(g.oc * pixels,))
    return matmul_calls(dtype, p, In(1, (g.oc * g.c,)), In(0, (g.n * g.oc * pixels,)), Out(0, (g.n * g.c * pixels,)))
