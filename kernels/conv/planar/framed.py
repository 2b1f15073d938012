"""The forward convolution over planes whose taps are many beside its filters: images are framed, not unfolded.

Unfolding copies an element for each tap of a kernel row, and what is copied meets one vector for each tap of a column and each filter: with few
filters, or rows of hundreds of taps, the copies take longer than the products. A frame (see depthwise.py) holds each element once, its
padding included and columns apart by their remainder modulo the stride, so that what a tap meets along a row of outputs follows one
another in it: row (channel, tap) of the im2col matrix begins at an offset that is the same for all rows of outputs.

A unit of range is a band of output rows times some panels of filters; a register block is filters x pixels of one row.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from ...elementwise.epilogue import Epilogue, arguments, finisher
from ...isa import cpu
from ...isa.vector import itemsize
from ...machine.call import Address, Call, Const, In, Out, Work
from ...machine.called import CALLED
from ...machine.leaf import Leaf, Numbers
from ...machine.places import address_of
from ..panels import WeightPanels
from ..problem import UNITS, ConvProblem, speed
from .depthwise import Frame, frame, framed, tap_offsets
from .geometry import CACHE, geometry, planes
from .product import DEPTH, multiplier, panels_of, pools, product_tile, register_blocks

USES = 32                 # of an unfolded element, taps of a column times filters, up to which a frame is better
TAPS = 3                  # of a row, from which it is
NARROWEST = 24            # outputs of a row: fewer leave the vectors of a block half empty
RATE = 1.0
"""Measured speed as a part of a path's rate, to be compared with the other kernels'."""


@dataclass(frozen=True)
class FramedSizes(Numbers):
    """Of a convolution, and how a unit of range cuts it: output rows, channels that are summed at a time, panels of so
    many filters; elements of a channel's frame, and from one of its rows to the next; then what `framed` reads of a
    `Frame`."""

    c: int
    oc: int
    groups: int
    taps: int
    band: int
    channels: int
    part: int
    rows: int
    elements: int
    row: int
    biased: int
    h: int
    w: int
    oh: int
    ow: int
    kh: int
    kw: int
    sy: int
    sx: int
    dy: int
    dx: int
    top: int
    left: int


@functools.cache
def _leaf(dtype: str, path: cpu.Cpu) -> Leaf:
    size, copy, multiply, finish = itemsize(dtype), framed(dtype, path), multiplier(), finisher()

    def conv_framed(x, panels, bias, y, offsets, frame, s, lo, hi, registers, epilogue, rest):          # type: ignore
        c, oc, oh, ow, band, rows = s.c, s.oc, s.oh, s.ow, s.band, s.rows
        columns = (ow - 1) * s.sx + (s.kw - 1) * s.dx + 1
        phase, bands, tiles = s.row // s.sx, (oh + band - 1) // band, (oc + rows - 1) // rows
        parts = (tiles + s.part - 1) // s.part
        for unit in range(lo, hi):
            first, row, plane = unit % parts * s.part, unit // parts % bands * band, unit // (parts * bands)      # a plane of each group
            count = min(band, oh - row)
            for c0 in range(0, c, s.channels):
                some = min(s.channels, c - c0)
                for i in range(some * s.elements):
                    frame[i] = 0
                for i in range(some):
                    copy(x, (plane * c + c0 + i) * s.h * s.w, frame[i * s.elements:(i + 1) * s.elements], row * s.sy,
                         (count - 1) * s.sy + (s.kh - 1) * s.dy + 1, phase, columns, s)
                for tile in range(first, min(first + s.part, tiles)):
                    o = min(tile * rows, oc - rows)
                    panel = address_of(panels) + ((plane % s.groups * tiles + tile) * c + c0) * s.taps * rows * size
                    to = address_of(y) + ((plane * oc + o) * oh + row) * ow * size
                    multiply(registers, count, ow, some * s.taps, panel, address_of(offsets), address_of(frame),
                             s.sy * s.row * size, address_of(bias) + (plane % s.groups * oc + o) * size,
                             s.biased != 0 and c0 == 0, to, ow * size, oh * ow * size, c0 > 0, tile * rows - o)
            o = first * rows
            finish(epilogue, rest, min(s.part * rows, oc - o), count * ow, address_of(y),
                   ((plane * oc + o) * oh + row) * ow, oh * ow, plane % s.groups * oc + o)

    signature = "T[:], T[:], T[:], T[:], i8[:], T[w,:], numbers, lo, hi"
    return Leaf(conv_framed, signature.replace("T", dtype) + ", i8" + CALLED, key=path.name,
                numbers=FramedSizes)


def serves(p: ConvProblem, dtype: str, path: cpu.Cpu) -> bool:
    """Taps along the width, few uses of an unfolded element, outputs enough in a row; whole planes that may be pooled are left to product.py."""
    if not planes(p, dtype) or p.turned or p.depthwise or pools(p, dtype, path):
        return False
    f = frame(p)
    return f.kw >= TAPS and f.kh * p.oc <= USES and f.ow >= NARROWEST


def cost(p: ConvProblem, dtype: str, path: cpu.Cpu) -> float:
    """Estimated nanoseconds on one core, from measured rates, to be compared with other kernels'."""
    return p.flops / (speed(dtype, path) * RATE)


def _tile(p: ConvProblem, f: Frame, dtype: str, path: cpu.Cpu) -> tuple[int, int]:
    """Rows and vectors of the register block."""
    return product_tile(p.oc, f.ow, dtype, path)


def panels(p: ConvProblem, dtype: str, path: cpu.Cpu) -> WeightPanels:
    """How the weights are laid out."""
    g, (rows, _) = geometry(p), _tile(p, frame(p), dtype, path)
    return panels_of(g, dtype, path, (g.k, g.kh * g.kw, 0), rows)


@functools.lru_cache(1024)
def _offsets(f: Frame, size: int, channels: int, elements: int) -> Const:
    """The bytes from an output's place in the first channel's frame to what (channel, tap) reads."""
    taps = tap_offsets(f, size).array()
    return Const.of(np.add.outer(np.arange(channels) * elements * size, taps).ravel())


def calls(p: ConvProblem, dtype: str, path: cpu.Cpu, *, biased: bool = False, epilogue: Epilogue | None = None,
          packed: int = 0) -> list[Call]:
    """y [n, groups * oc, *out] (output 0) from x (input 0), weights [groups * oc, c, *taps] (1) and bias (2, when `biased`).

    With `packed`, input 1 is what `panels` made of the weights.
    """
    f, size, count = frame(p), itemsize(dtype), p.n * p.groups
    rows, vectors = _tile(p, f, dtype, path)
    tiles = -(-p.oc // rows)
    channels = -(-p.c // -(-p.c * p.taps // DEPTH)) if p.taps < DEPTH else 1
    band = f.oh
    while band > 1 and f.depth(band) * f.pitch * channels * size > CACHE:
        band = -(-band // 2)
    band = max(1, min(band, -(-f.oh // -(-UNITS // count))))
    part = -(-tiles // min(tiles, -(-UNITS // (count * -(-f.oh // band)))))
    elements = f.depth(band) * f.pitch
    laid = None if packed else panels(p, dtype, path)
    weights = In(1, (p.groups * tiles * rows * p.c * p.taps,)) if laid is None else laid.work(dtype)
    sizes = FramedSizes(p.c, p.oc, p.groups, p.taps, band, channels, part, rows, elements, f.pitch, int(biased),
                        f.h, f.w, f.oh, f.ow, f.kh, f.kw, f.sy, f.sx, f.dy, f.dx, f.top, f.left)
    args = (In(0, (p.elements_in,)), weights, In(2, (p.groups * p.oc,)) if biased else weights, Out(0, (p.elements_out,)),
            _offsets(f, size, channels, elements), Work("frame", (channels * elements + path.lanes(size),), dtype), sizes,
            Address(register_blocks(dtype, path, rows, vectors)), *arguments(epilogue, channels="rows"))
    leaf = _leaf(dtype, path)
    estimate = 0.5 * cost(p, dtype, path) + 0.3 * p.elements_in + (epilogue.cost if epilogue else 0.0)
    before = [] if laid is None else laid.inside(dtype)
    return [*before, Call(leaf, args, count * -(-f.oh // band) * -(-tiles // part), 1, estimate)]
