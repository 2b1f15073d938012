"""The input gradient, the transposed convolution: turned weights times output gradients, folded back onto the image."""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ...elementwise.epilogue import Epilogue
from ...gemm.micro import outer
from ...isa import cpu
from ...isa.vector import itemsize
from ...machine.call import Call, In, Out, Work
from ...machine.leaf import Leaf, Numbers, generic
from ...machine.places import address_of, clear, word_at
from ..panels import WeightPanels
from ..problem import UNITS, ConvProblem
from .geometry import CACHE, Geometry, Unfolding, cost, geometry, planes, time
from .product import panels_of, products
from .unfold import HEAD, fold_planes, form_of, gathers, table

__all__ = ["calls", "cost", "panels", "serves"]


@dataclass(frozen=True)
class TransposeWeightSizes(Numbers):
    """Channels, taps and filters of a group, weights of a filter, elements from one turned row to the next."""

    c: int
    kh: int
    kw: int
    oc: int
    k: int
    pitch: int


@dataclass(frozen=True)
class TransposeSizes(Numbers):
    """Of a convolution; channels of a unit of range, elements from one row of turned weights to the next."""

    c: int
    kh: int
    oc: int
    oh: int
    groups: int
    channels: int
    pitch: int
    in_place: int


@generic("T[:], T[:], numbers, lo, hi", numbers=TransposeWeightSizes)
def conv_turned(w: Any, turned: Any, s: Any, lo: int, hi: int) -> None:
    """Weights [groups][oc][c, kh, kw] as rows [groups][kh][c][kw] of oc elements, `pitch` apart; a unit of range is one row."""
    c, kh, kw, oc, k, pitch = s.c, s.kh, s.kw, s.oc, s.k, s.pitch
    for unit in range(lo, hi):
        kx, channel = unit % kw, unit // kw % c
        ky, group = unit // (kw * c) % kh, unit // (kw * c * kh)
        source, row = group * oc * k + (channel * kh + ky) * kw + kx, turned[unit * pitch:unit * pitch + oc]
        for o in range(oc):
            row[o] = w[source + o * k]


@functools.cache
def _input_gradient(dtype: str, path: cpu.Cpu, form: int) -> Leaf:
    size = itemsize(dtype)
    multiply, fold, writes = outer(dtype), fold_planes(dtype, path, form), gathers(path, form)

    def conv_input_gradient(g, turned, dx, table, u, s, lo, hi):                                                            # type: ignore
        c, kh, oc, oh, groups, channels, in_place = s.c, s.kh, s.oc, s.oh, s.groups, s.channels, s.in_place
        h, w, ow, kw, sh, pitch = (word_at(table, 0), word_at(table, 1), word_at(table, 2), word_at(table, 3),
                                   word_at(table, 4), word_at(table, 11))
        parts = (c + channels - 1) // channels
        covered = (in_place != 0 and kh == 1) or (in_place == 0 and writes and sh == 1)
        accumulate = in_place == 0 or kh > 1
        for unit in range(lo, hi):
            first, plane = unit % parts * channels, unit // parts
            count = min(channels, c - first)
            at = (plane * c + first) * h * w
            image = address_of(dx) + at * size
            target = image
            if not covered:
                clear(image, count * h * w * size)
            if in_place == 0:
                target = address_of(u)
                clear(target, count * kw * pitch * size)
            for ky in range(kh):
                row = ((plane % groups * kh + ky) * c + first) * kw
                multiply(count * kw, oh * ow, oc, address_of(turned) + row * s.pitch * size, s.pitch * size, size,
                         address_of(g) + plane * oc * oh * ow * size, oh * ow * size,
                         target + word_at(table, HEAD + ky * kw), pitch * size, accumulate)
            if in_place == 0:
                fold(image, count, u, table)

    signature = "T[:], T[:], T[:], i8[:], T[w,:], numbers, lo, hi"
    return Leaf(conv_input_gradient, signature.replace("T", dtype), key=f"{path.name} {form}",
                    numbers=TransposeSizes)


def _flipped(g: Geometry) -> Geometry | None:
    """The input gradient as a convolution of dy with flipped weights, where that multiplies few zeros: stride 1, little padding lost."""
    top, left = (g.kh - 1) * g.dh - g.top, (g.kw - 1) * g.dw - g.left
    if g.sh != 1 or g.sw != 1 or top < 0 or left < 0 or g.h * g.w > 1.15 * g.oh * g.ow:
        return None
    return Geometry(g.n, g.groups, g.oc, g.oh, g.ow, g.c, g.h, g.w, g.kh, g.kw, 1, 1, g.dh, g.dw, top, left)


def serves(p: ConvProblem, dtype: str, path: cpu.Cpu) -> bool:
    """Every input gradient over planes."""
    return planes(p, dtype) and p.turned


def panels(p: ConvProblem, dtype: str, path: cpu.Cpu) -> WeightPanels:
    """How the weights are laid out."""
    g = geometry(p)
    if (flipped := _flipped(g)) is not None:
        return panels_of(flipped, dtype, path, (g.kh * g.kw, g.k, 1))
    elements, weights = g.groups * g.k * _pitch(g), g.groups * g.oc * g.k
    args = (In(0, (weights,)), Out(0, (elements,)), TransposeWeightSizes(g.c, g.kh, g.kw, g.oc, g.k, _pitch(g)))
    return WeightPanels(elements, (Call(conv_turned[dtype], args, g.groups * g.k, 16, weights * 1.0),))


def _pitch(g: Geometry) -> int:
    """Elements from one row of turned weights to the next: rows a power of two apart would share cache sets."""
    return g.oc if g.oc < 64 else g.oc + 16


def calls(p: ConvProblem, dtype: str, path: cpu.Cpu, *, biased: bool = False, epilogue: Epilogue | None = None,
          packed: int = 0) -> list[Call]:
    """dx (output 0) from dy (input 0) and the weights (1); `packed`: as `panels` made them. A gradient has no bias."""
    assert not biased
    g, size = geometry(p), itemsize(dtype)
    after = [epilogue.after((p.n, p.groups * p.oc, p.pixels_out), 1)] if epilogue else []
    laid = None if packed else panels(p, dtype, path)
    if (flipped := _flipped(g)) is not None:
        return [*products(flipped, dtype, path, False, laid), *after]
    un = Unfolding(g, g.oh)
    channels = g.c
    while channels > 1 and not g.in_place and un.elements(channels) * size > CACHE:
        channels = -(-channels // 2)
    wanted = -(-UNITS // max(1, g.n * g.groups))
    channels = min(channels, max(-(-g.c // wanted), min(g.c, 4)))
    turned = In(1, (g.groups * g.k * _pitch(g),)) if laid is None else laid.work(dtype)
    args = (In(0, (g.n * g.groups * g.oc * g.oh * g.ow,)), turned, Out(0, (g.n * g.groups * g.c * g.h * g.w,)),
            table(un, 1, size), Work("unfolded", (1 if g.in_place else un.elements(channels),), dtype),
            TransposeSizes(g.c, g.kh, g.oc, g.oh, g.groups, channels, _pitch(g), int(g.in_place)))
    leaf = _input_gradient(dtype, path, form_of(g.step))
    before = [] if laid is None else laid.inside(dtype)
    return [*before, Call(leaf, args, g.n * g.groups * -(-g.c // channels), 1, time(g, size, path)), *after]
