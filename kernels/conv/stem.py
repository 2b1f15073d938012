"""Convolution of planar images with few channels, to channels-last results: the first one of a network.

A channel's plane is a poor row of products, and so are three channels. Once pixels are interleaved, the taps along the width are
neighbours of one another: a kernel row of 7 taps over 3 channels is 21 channels of one pixel. So the images are copied with their pixels
interleaved and their rows padded, and then it is a channels-last convolution (last.py) with taps along the height alone.
"""
from __future__ import annotations

import functools

from ..elementwise.epilogue import Epilogue
from ..gemm.micro import transpose
from ..isa import cpu
from ..isa.vector import itemsize
from ..machine.call import Call, In, Work
from ..machine.leaf import Leaf
from ..machine.places import address_of
from . import direct
from .indirection import Axis, Sites
from .panels import Panels

CHANNELS = 4              # at most
ROWS = 4                  # rows of an image that are copied together
MOVE = 0.6                # nanoseconds to copy an element


def serves(s: Sites) -> bool:
    """Few channels in one group, and taps along the width that are neighbours."""
    return s.groups == 1 and s.c <= CHANNELS and s.axes[2].tap_step == 1 and s.axes[2].out_step == 1 and s.phases == 1


def gathered(s: Sites) -> Sites:
    """The convolution over interleaved pixels whose taps along the width are channels."""
    across = s.axes[2]
    return Sites(s.n, 1, across.taps * s.c, s.oc, (*s.axes[:2], Axis(_pitch(across), across.out, 1, across.in_step)))


def _pitch(across: Axis) -> int:
    """Pixels of an interleaved row: what the taps meet."""
    return (across.out - 1) * across.in_step + across.taps


@functools.cache
def _interleave(dtype: str, path: cpu.Cpu) -> Leaf:
    size, turn = itemsize(dtype), transpose(dtype)

    def conv_stem_rows(x, image, c, h, w, wide, left, lo, hi):                                                                # type: ignore
        """Rows of planar images [n, c, h, w] as rows [n, h, wide, c], from `left` pixels before the first; zero outside."""
        count = max(0, min(w, wide - left))
        for row in range(lo, hi):
            target = image[row * wide * c:(row + 1) * wide * c]
            for i in range(left * c):
                target[i] = 0
            for i in range((left + count) * c, wide * c):
                target[i] = 0
            source = (row // h * c * h + row % h) * w
            turn(c, count, address_of(x) + source * size, h * w * size, address_of(target) + left * c * size, c * size)

    return Leaf(conv_stem_rows, "T[:], T[:], i8, i8, i8, i8, i8, lo, hi".replace("T", dtype), key=path.name)


def forward(s: Sites, dtype: str, path: cpu.Cpu, biased: bool, epilogue: Epilogue | None = None, packed: int = 0) -> list[Call]:
    """y [n, *out, oc] (output 0) from planar x [n, c, *in] (input 0), weights [oc, c, *taps] (1) and a bias (2), where it `serves`.

    With `packed`, input 1 is what `forward_panels` made of the weights.
    """
    across, rows = s.axes[2], s.axes[0].size * s.axes[1].size
    wide = _pitch(across)
    image = Work("image", (s.n * rows * wide * s.c,), dtype)
    args = (In(0, (s.n * s.c * rows * across.size,)), image, s.c, rows, across.size, wide, -across.base)
    before = Call(_interleave(dtype, path), args, s.n * rows, ROWS, s.n * rows * wide * s.c * MOVE)
    panels = None if packed else forward_panels(s, dtype, path)
    return [before, *direct.products(gathered(s), dtype, path, biased, panels, epilogue, image, s.c)]


def forward_panels(s: Sites, dtype: str, path: cpu.Cpu) -> Panels:
    """How the weights of `s` are laid out for `forward`: with the taps along the width next to the channels, as they lie anyway."""
    return direct.forward_panels(s, dtype, path)
