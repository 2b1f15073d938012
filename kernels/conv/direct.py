"""Channels-last convolution: images [n, *spatial, c] times panels of weights, without unfolding; and its input gradient.

A unit of range is some pixels times some panels of output channels. It writes its table of addresses, then goes through the sums in
blocks of a depth: for each block, panel by panel, the pixels in register blocks. So a panel stays in the first-level cache and the
pixels in the second.
"""
from __future__ import annotations

import functools

from ..elementwise.epilogue import Epilogue, Form, finisher, name, tail
from ..gemm.micro import copy, transpose
from ..isa import cpu
from ..isa.half import HALVES, stored
from ..isa.vector import itemsize
from ..machine.call import Call, In, Out, Work
from ..machine.leaf import Leaf
from ..machine.places import address_of
from .brgemm import brgemm, width
from .indirection import Sites, fill_table, phase_pixels, phase_taps, sites_call, sites_work, tap_order, taps_before
from .panels import Panels
from .planar.geometry import UNITS

DEPTH = 320               # products summed in registers at a time, about: longer chains of sums lose accuracy
POINTWISE = 192           # likewise where the kernel is one pixel: PyTorch's errors there are those of matrix products, 0.8 of chains of 256
IMAGE = 160 * 1024        # bytes of the pixels that a unit reads, about
MOST = 384                # pixels of a unit at most
TURNED = 128              # weights of a filter that are turned at a time, about
STRIP = 96                # pixels that all panels meet in turn, so that rows of C are written while they are near


@functools.cache
def _panels(dtype: str, path: cpu.Cpu) -> Leaf:
    bits = "f2" if dtype in HALVES else dtype
    size, turn, move = itemsize(dtype), transpose(bits), copy(bits)

    def conv_last_panels(w, panels, sites, order, block, oc, wide, c, o_step, c_step, group_step, lo, hi):                   # type: ignore
        """Weights as panels [group][panel][tap, phase by phase][c][wide], filled up with zeros; a unit of range is a panel.

        Weight (o, c, tap) of a group lies at o * o_step + c * c_step + tap. Blocks of the source pass through `block`, turned.
        """
        tiles, taps, deep = (oc + wide - 1) // wide, order.shape[0], block.shape[0] // (order.shape[0] * wide)
        tap_order(sites, order)
        for unit in range(lo, hi):
            o = unit % tiles * wide
            count = min(wide, oc - o)
            source = unit // tiles * group_step + o * o_step
            target = address_of(panels) + unit * taps * c * wide * size
            if count < wide:
                for i in range(block.shape[0]):
                    block[i] = 0
            for first in range(0, c, deep):
                last = min(first + deep, c)
                at = address_of(w) + (source + first * c_step) * size
                if o_step == 1 and taps == 1:                   # of one channel, filters follow one another
                    move(last - first, count, at, c_step * size, address_of(block), wide * size)
                elif c_step == taps:                            # of one filter, channels and taps do
                    turn(count, (last - first) * taps, at, o_step * size, address_of(block), wide * size)
                else:                                           # of one channel, filters and their taps do
                    for k in range(first, last):
                        turn(count, taps, at + (k - first) * c_step * size, o_step * size,
                             address_of(block) + (k - first) * taps * wide * size, wide * size)
                for i in range(taps):
                    move(last - first, wide, address_of(block) + order[i] * wide * size, taps * wide * size,
                         target + (i * c + first) * wide * size, wide * size)

    signature = "T[:], T[:], i8[:], i8[w,:], T[w,:], i8, i8, i8, i8, i8, i8, lo, hi"
    return Leaf(conv_last_panels, signature.replace("T", dtype), key=path.name)


@functools.cache
def _leaf(dtype: str, path: cpu.Cpu, rows: int, form: Form | None) -> Leaf:
    size, wide = itemsize(dtype), width(dtype, path)
    multiply, finish = brgemm(dtype, path, rows), finisher(form)

    def conv_last(x, panels, bias, y, sites, table, spare, n, c, oc, groups, taps, pixels, part, taps_deep, deep, biased, step, lo, hi, rest):   # type: ignore
        tiles, pitch = (oc + wide - 1) // wide, (pixels + rows - 1) // rows * rows
        parts = (tiles + part - 1) // part
        blocks = (n * phase_pixels(sites, 0) + pixels - 1) // pixels
        addresses, zero = address_of(table), address_of(spare)
        for i in range(c):
            spare[i] = 0
        for unit in range(lo, hi):
            first_tile, first = unit % parts * part, unit // parts % blocks * pixels
            group, phase = unit // (parts * blocks) % groups, unit // (parts * blocks * groups)
            count = min(pixels, n * phase_pixels(sites, phase) - first)
            if count <= 0:
                continue
            fill_table(sites, phase, first, count, address_of(x) + group * c * size, step * size,
                       address_of(y) + group * oc * size, groups * oc * size, zero, zero + c * size, table, pitch)
            met, before = phase_taps(sites, phase), taps_before(sites, phase)
            for c0 in range(0, c, deep):
                for t0 in range(0, max(met, 1), taps_deep):
                    for strip in range(0, count, STRIP):
                        for tile in range(first_tile, min(first_tile + part, tiles)):
                            o = tile * wide
                            panel = address_of(panels) + (((group * tiles + tile) * taps + before + t0) * c + c0) * wide * size
                            addend = address_of(bias) + (group * oc + o) * size if biased != 0 and c0 + t0 == 0 else 0
                            for p in range(strip, min(strip + STRIP, count), rows):
                                multiply(min(wide, oc - o), min(taps_deep, met - t0), min(deep, c - c0) * size,
                                         addresses + ((1 + t0) * pitch + p) * 8, pitch * 8, c0 * size, panel, c * wide * size, addend,
                                         addresses + p * 8, o * size, c0 + t0 > 0)
            o = first_tile * wide
            finish(rest, count, min(part * wide, oc - o), address_of(y), (first * groups + group) * oc + o, groups * oc, group * oc + o)

    signature = "T[:], T[:], T[:], T[:], i8[:], i8[w,:], T[w,:]" + ", i8" * 11 + ", lo, hi"
    return Leaf(conv_last, signature.replace("T", dtype) + tail(form), key=f"{path.name} {rows} {name(form)}")


def sums_at_a_time(s: Sites) -> tuple[int, int]:
    """Taps and channels of one block of sums."""
    if s.taps == 1 and s.c > POINTWISE:
        return 1, -(-s.c // -(-s.c // POINTWISE))
    if s.c > 1.25 * DEPTH:
        return 1, -(-s.c // -(-s.c // DEPTH))
    blocks = -(-s.taps // max(1, round(DEPTH / s.c)))
    return -(-s.taps // blocks), s.c


def unit_of_range(s: Sites, size: int, rows: int, tiles: int) -> tuple[int, int]:
    """Pixels and panels of one unit: pixels that fit the cache with all their channels, and units enough to share."""
    most = max(8 * rows, min(MOST, IMAGE // (s.c * size)))
    blocks = -(-s.phase_pixels // most)
    pixels = -(-s.phase_pixels // (blocks * rows)) * rows
    units = -(-s.phase_pixels // pixels) * s.groups * s.phases
    part = -(-tiles // min(tiles, -(-UNITS // units)))
    return pixels, part


def forward(s: Sites, dtype: str, path: cpu.Cpu, biased: bool, epilogue: Epilogue | None = None, packed: int = 0) -> list[Call]:
    """y [n, *out, groups * oc] (output 0) from x [n, *in, groups * c] (input 0), weights [groups * oc, c, *taps] (1) and a bias (2).

    With `packed`, input 1 is what `forward_panels` made of the weights.
    """
    return products(s, dtype, path, biased, None if packed else forward_panels(s, dtype, path), epilogue)


def input_gradient(s: Sites, dtype: str, path: cpu.Cpu, packed: int = 0) -> list[Call]:
    """dx (output 0) from dy (input 0) and the weights (1) of the convolution `s`; `packed`: as `gradient_panels` made them."""
    return products(s.gradient, dtype, path, False, None if packed else gradient_panels(s, dtype, path), None)


def forward_panels(s: Sites, dtype: str, path: cpu.Cpu) -> Panels:
    """How the weights of `s` are laid out for `forward`."""
    return weight_panels(s, dtype, path, (s.c * s.taps, s.taps), width(dtype, path))


def gradient_panels(s: Sites, dtype: str, path: cpu.Cpu) -> Panels:
    """How the weights of `s` are laid out for its input gradient."""
    return weight_panels(s.gradient, dtype, path, (s.taps, s.c * s.taps), width(dtype, path))


def weight_panels(s: Sites, dtype: str, path: cpu.Cpu, order: tuple[int, int], wide: int) -> Panels:
    """The panels of a problem, `wide` channels each, with `o_step` and `c_step` of its weights (see `_panels`)."""
    tiles = -(-s.oc // wide)
    weights, elements = s.groups * s.oc * s.c * s.taps, s.groups * tiles * wide * s.c * s.taps
    block = Work("block", (min(s.c, max(1, TURNED // s.taps)) * s.taps * wide,), stored(dtype))
    args = (In(0, (weights,)), Out(0, (elements,)), sites_work(), Work("order", (s.taps,), "i8"), block, s.oc, wide, s.c, *order,
            s.oc * s.c * s.taps)
    return Panels(elements, (sites_call(s), Call(_panels(dtype, path), args, s.groups * tiles, 1, weights * 0.4)))


def products(s: Sites, dtype: str, path: cpu.Cpu, biased: bool, panels: Panels | None, epilogue: Epilogue | None,
             image: Work | None = None, step: int = 0) -> list[Call]:
    """The calls of a problem: of those of `panels` first, or with laid-out weights as input 1.

    The pixels may lie in an `image` other than input 0, with `step` elements from one to the next.
    """
    size, wide, rows = itemsize(dtype), width(dtype, path), path.tile.rows
    tiles = -(-s.oc // wide)
    weights = In(1, (s.groups * tiles * wide * s.c * s.taps,)) if panels is None else panels.work(dtype)
    pixels, part = unit_of_range(s, size, rows, tiles)
    taps_deep, deep = sums_at_a_time(s)
    pitch = -(-pixels // rows) * rows
    args = (image or In(0, (s.n * s.pixels_in * s.groups * s.c,)), weights, In(2, (s.groups * s.oc,)) if biased else weights,
            Out(0, (s.n * s.pixels_out * s.groups * s.oc,)), sites_work(), Work("table", ((1 + s.taps) * pitch,), "i8"),
            Work("spare", (s.c + s.oc,), dtype), s.n, s.c, s.oc, s.groups, s.taps, pixels, part, taps_deep, deep, int(biased),
            step or s.groups * s.c, *(epilogue.args if epilogue else []))
    units = -(-s.phase_pixels // pixels) * s.groups * s.phases * -(-tiles // part)
    cost = s.flops / (path.rates.convolutions * 4 / size) + (epilogue.cost if epilogue else 0.0)
    before = [] if panels is None else panels.inside(dtype)
    if panels is None or image is not None:                   # panels may be of other sites
        before.append(sites_call(s))
    return [*before, Call(_leaf(dtype, path, rows, epilogue.form if epilogue else None), args, units, 1, cost)]
