"""Convolution of planar images with few channels, to channels-last results: the first one of a network.

A channel's plane is a poor row of products, and so are three channels. Once pixels are interleaved, the taps along the width are
neighbours of one another: a kernel row of 7 taps over 3 channels is 21 channels of one pixel. So the images are copied with their pixels
interleaved and their rows padded, and then it is a channels-last convolution (direct.py) with taps along the height alone.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass

from ..elementwise.epilogue import Epilogue
from ..gemm.micro import transpose
from ..isa import cpu
from ..isa.vector import itemsize
from ..machine.call import Call, In, Work
from ..machine.leaf import Leaf, Numbers
from ..machine.places import address_of
from . import direct
from .panels import WeightPanels
from .problem import ConvAxis, ConvProblem

CHANNELS = 4              # at most
ROWS = 4                  # rows of an image that are copied together
MOVE = 0.6                # nanoseconds to copy an element


def serves(p: ConvProblem, dtype: str, path: cpu.Cpu) -> bool:
    """Few channels in one group, and taps along the width that are neighbours."""
    return p.groups == 1 and p.c <= CHANNELS and p.axes[2].tap_step == 1 and p.axes[2].out_step == 1 and p.phases == 1


def cost(p: ConvProblem, dtype: str, path: cpu.Cpu) -> float:
    """Estimated nanoseconds on one core, with laid-out weights: the copy's and those of the convolution over it."""
    return p.n * p.pixels_in * p.c * MOVE + direct.cost(across(p), dtype, path)


def across(p: ConvProblem) -> ConvProblem:
    """The convolution over interleaved pixels whose taps along the width are channels."""
    wide = p.axes[2]
    return ConvProblem(p.n, 1, wide.taps * p.c, p.oc, (*p.axes[:2], ConvAxis(_pitch(wide), wide.out, 1, wide.in_step)),
                       p.rank)


def _pitch(wide: ConvAxis) -> int:
    """Pixels of an interleaved row: what the taps meet."""
    return (wide.out - 1) * wide.in_step + wide.taps


@dataclass(frozen=True)
class StemSizes(Numbers):
    """Channels, rows and columns of an image; columns of a row that is made, and those before the image's first."""

    c: int
    h: int
    w: int
    wide: int
    left: int


@functools.cache
def _interleave(dtype: str, path: cpu.Cpu) -> Leaf:
    size, turn = itemsize(dtype), transpose(dtype)

    def conv_stem_rows(x, image, s, lo, hi):                                                                                # type: ignore
        """Rows of planar images [n, c, h, w] as rows [n, h, wide, c], from `left` pixels before the first; zero outside."""
        c, h, w, wide, left = s.c, s.h, s.w, s.wide, s.left
        count = max(0, min(w, wide - left))
        for row in range(lo, hi):
            target = image[row * wide * c:(row + 1) * wide * c]
            for i in range(left * c):
                target[i] = 0
            for i in range((left + count) * c, wide * c):
                target[i] = 0
            source = (row // h * c * h + row % h) * w
            turn(c, count, address_of(x) + source * size, h * w * size, address_of(target) + left * c * size, c * size)

    return Leaf(conv_stem_rows, "T[:], T[:], numbers, lo, hi".replace("T", dtype), key=path.name, numbers=StemSizes)


def panels(p: ConvProblem, dtype: str, path: cpu.Cpu) -> WeightPanels:
    """How the weights are laid out: with the taps along the width next to the channels, as they lie anyway."""
    return direct.panels(p, dtype, path)


def calls(p: ConvProblem, dtype: str, path: cpu.Cpu, *, biased: bool = False, epilogue: Epilogue | None = None,
          packed: int = 0) -> list[Call]:
    """y [n, *out, oc] (output 0) from planar x [n, c, *in] (input 0), weights [oc, c, *taps] (1) and a bias (2), where it `serves`.

    With `packed`, input 1 is what `panels` made of the weights.
    """
    row, rows = p.axes[2], p.axes[0].size * p.axes[1].size
    wide = _pitch(row)
    image = Work("image", (p.n * rows * wide * p.c,), dtype)
    args = (In(0, (p.elements_in,)), image, StemSizes(p.c, rows, row.size, wide, -row.base))
    before = Call(_interleave(dtype, path), args, p.n * rows, ROWS, p.n * rows * wide * p.c * MOVE)
    laid = None if packed else panels(p, dtype, path)
    return [before, *direct.products(across(p), dtype, path, biased, laid, epilogue, image, p.c)]
