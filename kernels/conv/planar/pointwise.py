"""1x1 convolution over planes: matrix products over the pixels of each image, with the weights as the left operand."""
from __future__ import annotations

from typing import Any

from ...elementwise.epilogue import Epilogue
from ...gemm import Bias, GemmProblem, matmul_calls
from ...isa import cpu
from ...machine.call import Call, In, Out, Work
from ...machine.leaf import generic
from ..problem import ConvProblem
from .correlate import add_shares
from .geometry import cost, geometry, planes

__all__ = ["calls", "cost", "panels", "serves", "serves_weights", "weight_gradient"]

LEAST = 16                # pixels: fewer would leave the vectors of a product half empty


def serves(p: ConvProblem, dtype: str, path: cpu.Cpu) -> bool:
    """One tap, and an image that is read where it lies."""
    g = geometry(p)
    return planes(p, dtype) and g.in_place and g.kh == 1 and g.groups == 1 and g.h * g.w >= LEAST


def panels(p: ConvProblem, dtype: str, path: cpu.Cpu) -> None:
    """The weights are read as they are."""


def calls(p: ConvProblem, dtype: str, path: cpu.Cpu, *, biased: bool = False, epilogue: Epilogue | None = None,
          packed: int = 0) -> list[Call]:
    """y [n, oc, *out] (output 0) from x (input 0), weights [oc, c, 1..] (1) and bias (2, when `biased`); likewise an input gradient."""
    pixels = p.pixels_in
    m = GemmProblem(p.oc, pixels, p.c, trans_a=p.turned, batch=(p.n,), a_step=(0,), b_step=(p.c * pixels,))
    bias = Bias(In(2, (p.oc,)), 1, 0) if biased else None
    done = matmul_calls(dtype, m, In(1, (p.weights,)), In(0, (p.elements_in,)), Out(0, (p.elements_out,)), beta=1.0, bias=bias)
    return [*done, epilogue.after((p.n, p.oc, pixels), 1)] if epilogue else done


def serves_weights(p: ConvProblem, dtype: str, path: cpu.Cpu) -> bool:
    """Likewise for the weight gradient, whose products of each image must be few beside its pixels."""
    return serves(p, dtype, path) and 8 * p.c * p.oc <= max(p.c, p.oc) * p.pixels_in


@generic("T[:,:,:], T[r,:], lo, hi")
def add_turned(products: Any, total: Any, lo: int, hi: int) -> None:
    """total[i, j] = the sum over images of products[:, j, i], in order."""
    for i in range(total.shape[0]):
        for j in range(total.shape[1]):
            value = products[0, j, lo + i]
            for image in range(1, products.shape[0]):
                value += products[image, j, lo + i]
            total[i, j] = value


def weight_gradient(p: ConvProblem, dtype: str, path: cpu.Cpu, *, biased: bool) -> list[Call]:
    """dw (output 0) from x (input 0) and dy (1): a product for each image, whose right operand, laid out anew, is the smaller one."""
    assert not biased
    pixels, n, weights = p.pixels_in, p.n, p.weights
    x, dy = In(0, (p.elements_in,)), In(1, (p.elements_out,))
    (rows, a), (cols, b) = sorted([(p.oc, dy), (p.c, x)], key=lambda operand: -operand[0])
    m = GemmProblem(rows, cols, pixels, trans_b=True, batch=(n,), a_step=(rows * pixels,), b_step=(cols * pixels,))
    done = matmul_calls(dtype, m, a, b, Work("products", (n * weights,), dtype))
    if a is dy:
        return [*done, Call(add_shares[dtype], (Work("products", (n, weights), dtype), Out(0, (weights,))), weights, 1024, n * weights * 0.1)]
    products = Work("products", (n, p.c, p.oc), dtype)
    return [*done, Call(add_turned[dtype], (products, Out(0, (p.oc, p.c))), p.oc, 4, n * weights * 1.0)]
