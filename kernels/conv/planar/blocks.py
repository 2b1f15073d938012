"""Transposed convolutions whose kernels are as large as their strides, over planes: each pixel becomes a block of its own.

The blocks of some lines of the image are one matrix product, [filters x taps, channels] times [channels, pixels], in the worker's scratch; its
rows are then woven into lines of the result, which are written once.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass

from ...elementwise.epilogue import Epilogue
from ...gemm.micro import outer
from ...isa import cpu
from ...isa.vector import itemsize
from ...machine.call import Call, In, Out, Work
from ...machine.leaf import Leaf, Numbers
from ...machine.places import address_of
from ..problem import UNITS, Problem, speed

SCRATCH = 128 << 10
"""Bytes of finished rows: half of a second cache, beside what is read."""
RATE = 1.4
"""Speed of the products as a part of `speed`: 24 to 24 channels over 160 x 160 pixels, 256 to 128 over 16 x 16, on one AVX-512 core."""
WOVEN = 0.085
"""Nanoseconds a byte to weave."""


@dataclass(frozen=True)
class Sizes(Numbers):
    """Of a problem: images, channels and filters of a group, lines (of all planes) and their pixels, taps along each axis; lines and filters of a
    unit of range."""

    groups: int
    c: int
    oc: int
    high: int
    lines: int
    wide: int
    taps_d: int
    taps_h: int
    taps_w: int
    strip: int
    part: int


def serves(p: Problem, dtype: str, path: cpu.Cpu) -> bool:
    """Every pixel of the result belongs to one tap of one pixel."""
    return p.turned and dtype in ("f4", "f8") and p.taps > 1 and all(
        a.out_step == a.taps and a.in_step == 1 and a.out == a.size * a.taps and a.base == 0 and abs(a.tap_step) == 1 for a in p.axes)


def cost(p: Problem, dtype: str, path: cpu.Cpu) -> float:
    """Estimated nanoseconds on one core."""
    return p.flops / (speed(dtype, path) * RATE) + p.elements_out * itemsize(dtype) * WOVEN


@functools.cache
def _leaf(dtype: str, path: cpu.Cpu) -> Leaf:
    size, multiply = itemsize(dtype), outer(dtype)

    def conv_blocks(g, w, y, u, s, lo, hi):                                                                                 # type: ignore
        c, oc, wide = s.c, s.oc, s.wide
        taps = s.taps_d * s.taps_h * s.taps_w
        strips, parts = (s.lines + s.strip - 1) // s.strip, (oc + s.part - 1) // s.part
        row_out, pixels = wide * s.taps_w, s.lines * wide
        for unit in range(lo, hi):
            first_o, first = unit % parts * s.part, unit // parts % strips * s.strip
            plane = unit // (parts * strips)
            filters, lines = min(s.part, oc - first_o), min(s.strip, s.lines - first)
            n = lines * wide
            weights = address_of(w) + (plane % s.groups * c * oc + first_o) * taps * size
            multiply(filters * taps, n, c, weights, size, oc * taps * size, address_of(g) + (plane * c * pixels + first * wide) * size, pixels * size,
                     address_of(u), n * size, 0)
            for o in range(filters):
                image = (plane * oc + first_o + o) * pixels * taps
                for t in range(s.taps_d * s.taps_h):
                    row = (o * s.taps_d * s.taps_h + t) * s.taps_w * n
                    for line in range(lines):
                        z, v = (first + line) // s.high, (first + line) % s.high
                        at = image + ((z * s.taps_d + t // s.taps_h) * s.high * s.taps_h + v * s.taps_h + t % s.taps_h) * row_out
                        target, source = y[at:at + row_out], row + line * wide
                        if s.taps_w == 2:
                            even, odd = u[source:source + wide], u[source + n:source + n + wide]
                            for i in range(wide):
                                target[2 * i] = even[i]
                                target[2 * i + 1] = odd[i]
                        else:
                            for k in range(s.taps_w):
                                for i in range(wide):
                                    target[i * s.taps_w + k] = u[source + k * n + i]

    return Leaf(conv_blocks, "T[:], T[:], T[:], T[w,:], numbers, lo, hi".replace("T", dtype), key=path.name, numbers=Sizes)


def calls(p: Problem, dtype: str, path: cpu.Cpu, *, biased: bool = False, epilogue: Epilogue | None = None, packed: int = 0) -> list[Call]:
    """The result (output 0) from images (input 0) and weights (1) as they lie."""
    assert not biased
    assert epilogue is None
    assert not packed
    size, (d, h, w) = itemsize(dtype), p.axes
    lines, images = d.size * h.size, p.n * p.groups
    part = max(1, min(p.oc, SCRATCH // (2 * p.taps * w.size * size)))
    strip = max(1, min(lines, SCRATCH // (part * p.taps * w.size * size), -(-images * lines * -(-p.oc // part) // UNITS)))
    sizes = Sizes(p.groups, p.c, p.oc, h.size, lines, w.size, d.taps, h.taps, w.taps, strip, part)
    args = (In(0, (p.elements_in,)), In(1, (p.weights,)), Out(0, (p.elements_out,)), Work("blocks", (part * p.taps * strip * w.size,), dtype), sizes)
    units = images * -(-lines // strip) * -(-p.oc // part)
    return [Call(_leaf(dtype, path), args, units, 1, cost(p, dtype, path))]
