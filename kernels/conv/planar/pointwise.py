"""1x1 convolution over planes: matrix products over the pixels of each image, with the weights as the left operand."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...elementwise.epilogue import Epilogue
from ...gemm.blocking import Problem
from ...gemm.float32 import Bias, matmul_calls
from ...machine.call import Call, In, Out, Work
from ...machine.leaf import generic
from .correlate import add_shares
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


def serves_weights(g: Geometry) -> bool:
    """Likewise for the weight gradient, whose products of each image must be few beside its pixels."""
    return serves(g) and 8 * g.c * g.oc <= max(g.c, g.oc) * g.h * g.w


@generic("T[:,:,:], T[r,:], lo, hi")
def add_turned(products: Any, total: Any, lo: int, hi: int) -> None:
    """total[i, j] = the sum over images of products[:, j, i], in order."""
    for i in range(total.shape[0]):
        for j in range(total.shape[1]):
            value = products[0, j, lo + i]
            for image in range(1, products.shape[0]):
                value += products[image, j, lo + i]
            total[i, j] = value


def weight_gradient(g: Geometry, dtype: str) -> list[Call]:
    """dw (output 0) from x (input 0) and dy (1): a product for each image, whose right operand, laid out anew, is the smaller one."""
    pixels, n, weights = g.h * g.w, g.n, g.oc * g.c
    x, dy = In(0, (n * g.c * pixels,)), In(1, (n * g.oc * pixels,))
    (rows, a), (cols, b) = sorted([(g.oc, dy), (g.c, x)], key=lambda operand: -operand[0])
    p = Problem(rows, cols, pixels, trans_b=True, batch=(n,), a_step=(rows * pixels,), b_step=(cols * pixels,))
    calls = matmul_calls(dtype, p, a, b, Work("products", (n * weights,), dtype))
    if a is dy:
        return [*calls, Call(add_shares[dtype], (Work("products", (n, weights), dtype), Out(0, (weights,))), weights, 1024, n * weights * 0.1)]
    products = Work("products", (n, g.c, g.oc), dtype)
    return [*calls, Call(add_turned[dtype], (products, Out(0, (g.oc, g.c))), g.oc, 4, n * weights * 1.0)]
