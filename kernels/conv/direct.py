"""Channels-last convolution: images [n, *spatial, c] times panels of weights, without unfolding; and its input gradient.

A unit of range is some pixels times some panels of output channels. It writes its table of addresses, then goes through the sums in
blocks of a depth: for each block, panel by panel, the pixels in register blocks. So a panel stays in the first-level cache and the
pixels in the second.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass

from ..elementwise.epilogue import Epilogue, arguments, finisher
from ..gemm.micro import copy, transpose
from ..isa import cpu
from ..isa.half import HALVES, stored
from ..isa.vector import itemsize
from ..machine.call import Call, In, Out, Work
from ..machine.called import CALLED
from ..machine.leaf import Leaf, Numbers
from ..machine.places import address_of
from .brgemm import brgemm_rows, width
from .indirection import fill_table, phase_pixels, phase_taps, taps_before
from .panels import WeightPanels
from .problem import UNITS, ConvProblem, speed

DEPTH = 320               # products summed in registers at a time, about: longer chains of sums lose accuracy
POINTWISE = 192           # likewise where the kernel is one pixel: PyTorch's errors there are those of matrix products, 0.8 of chains of 256
IMAGE = 160 * 1024        # bytes of the pixels that a unit reads, about
MOST = 384                # pixels of a unit at most
TURNED = 128              # weights of a filter that are turned at a time, about
RATE = {False: 1.4, True: 1.35}
"""Speed as a part of `speed`, of a convolution and of an input gradient: ResNet's shapes on one AVX2 core."""
AHEAD = 24                # pixels that are asked for ahead of a register block, where images lie beyond the caches
SHORT = 256               # bytes of such a pixel at most: longer ones are streams to the hardware
STRIP = 96                # pixels that all panels meet in turn, so that rows of C are written while they are near


@dataclass(frozen=True)
class DirectWeightSizes(Numbers):
    """Of the call that lays weights out: filters and channels of a group, filters of a panel, elements between weights."""

    oc: int
    wide: int
    c: int
    o_step: int
    c_step: int
    group_step: int


@dataclass(frozen=True)
class DirectSizes(Numbers):
    """Of a problem, and how a unit of range cuts it: pixels and panels, taps and channels that are summed at a time.

    `step` elements lead from one pixel of the image to the next; `ahead` pixels are asked for beforehand.
    """

    n: int
    c: int
    oc: int
    groups: int
    taps: int
    pixels: int
    part: int
    taps_deep: int
    deep: int
    biased: int
    step: int
    ahead: int


@functools.cache
def _panels(dtype: str, path: cpu.Cpu) -> Leaf:
    bits = "f2" if dtype in HALVES else dtype
    size, turn, move = itemsize(dtype), transpose(bits), copy(bits)

    def conv_panels(w, panels, order, block, s, lo, hi):                                                                    # type: ignore
        """Weights as panels [group][panel][tap, phase by phase][c][wide], filled up with zeros; a unit of range is a panel.

        Weight (o, c, tap) of a group lies at o * o_step + c * c_step + tap. Blocks of the source pass through `block`, turned.
        """
        c, wide, o_step, c_step = s.c, s.wide, s.o_step, s.c_step
        tiles, taps, deep = (s.oc + wide - 1) // wide, order.shape[0], block.shape[0] // (order.shape[0] * wide)
        for unit in range(lo, hi):
            o = unit % tiles * wide
            count = min(wide, s.oc - o)
            source = unit // tiles * s.group_step + o * o_step
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

    return Leaf(conv_panels, "T[:], T[:], i8[:], T[w,:], numbers, lo, hi".replace("T", dtype), key=path.name,
                numbers=DirectWeightSizes)


@functools.cache
def _leaf(dtype: str, path: cpu.Cpu, rows: int) -> Leaf:
    size, wide = itemsize(dtype), width(dtype, path)
    multiply, finish = brgemm_rows(dtype, path, rows, path.tile.vectors), finisher()

    def conv_direct(x, panels, bias, y, indirection, table, spare, s, lo, hi, epilogue, rest):  # type: ignore
        c, oc, groups = s.c, s.oc, s.groups
        tiles, pitch = (oc + wide - 1) // wide, (s.pixels + rows - 1) // rows * rows
        parts = (tiles + s.part - 1) // s.part
        blocks = (s.n * phase_pixels(indirection, 0) + s.pixels - 1) // s.pixels
        addresses, zero = address_of(table), address_of(spare)
        for i in range(c):
            spare[i] = 0
        for unit in range(lo, hi):
            first_tile, first = unit % parts * s.part, unit // parts % blocks * s.pixels
            group, phase = unit // (parts * blocks) % groups, unit // (parts * blocks * groups)
            count = min(s.pixels, s.n * phase_pixels(indirection, phase) - first)
            if count <= 0:
                continue
            fill_table(indirection, phase, first, count, address_of(x) + group * c * size, s.step * size,
                       address_of(y) + group * oc * size, groups * oc * size, zero, zero + c * size, table, pitch)
            met, before = phase_taps(indirection, phase), taps_before(indirection, phase)
            for c0 in range(0, c, s.deep):
                for t0 in range(0, max(met, 1), s.taps_deep):
                    for strip in range(0, count, STRIP):
                        for tile in range(first_tile, min(first_tile + s.part, tiles)):
                            o = tile * wide
                            panel = address_of(panels) + (((group * tiles + tile) * s.taps + before + t0) * c + c0) * wide * size
                            addend = address_of(bias) + (group * oc + o) * size if s.biased != 0 and c0 + t0 == 0 else 0
                            multiply(min(STRIP, count - strip), min(wide, oc - o), min(s.taps_deep, met - t0),
                                     min(s.deep, c - c0) * size, addresses + ((1 + t0) * pitch + strip) * 8, pitch * 8,
                                     c0 * size, panel, c * wide * size, addend, addresses + strip * 8, o * size,
                                     c0 + t0 > 0, s.ahead * s.step * size, s.ahead * groups * oc * size)
            o = first_tile * wide
            finish(epilogue, rest, count, min(s.part * wide, oc - o), address_of(y), (first * groups + group) * oc + o,
                   groups * oc, group * oc + o)

    signature = "T[:], T[:], T[:], T[:], i8[:], i8[w,:], T[w,:], numbers, lo, hi"
    return Leaf(conv_direct, signature.replace("T", dtype) + CALLED, key=f"{path.name} {rows}",
                numbers=DirectSizes)


def sums_at_a_time(p: ConvProblem) -> tuple[int, int]:
    """Taps and channels of one block of sums."""
    if p.taps == 1 and p.c > POINTWISE:
        return 1, -(-p.c // -(-p.c // POINTWISE))
    if p.c > 1.25 * DEPTH:
        return 1, -(-p.c // -(-p.c // DEPTH))
    blocks = -(-p.taps // max(1, round(DEPTH / p.c)))
    return -(-p.taps // blocks), p.c


def unit_of_range(p: ConvProblem, size: int, rows: int, tiles: int) -> tuple[int, int]:
    """Pixels and panels of one unit: pixels that fit the cache with all their channels, and units enough to share."""
    most = max(8 * rows, min(MOST, IMAGE // (p.c * size)))
    blocks = -(-p.phase_pixels // most)
    pixels = -(-p.phase_pixels // (blocks * rows)) * rows
    units = -(-p.phase_pixels // pixels) * p.groups * p.phases
    part = -(-tiles // min(tiles, -(-UNITS // units)))
    return pixels, part


def serves(p: ConvProblem, dtype: str, path: cpu.Cpu) -> bool:
    """Everything but 16-bit floats."""
    return dtype not in HALVES


def cost(p: ConvProblem, dtype: str, path: cpu.Cpu) -> float:
    """Estimated nanoseconds on one core, with laid-out weights, from measured rates."""
    used = filled(p.oc, p.c, width(dtype, path), path.lanes(itemsize(dtype)))
    return p.flops / (speed(dtype, path) * RATE[p.turned] * used)


def filled(used: int, rows: int, wide: int, least: int) -> float:
    """How much of the register blocks' work is not lost, where `used` fills panels of `wide`, the last of which may be
    one of `least`, and `rows` are summed for a tap."""
    rest = used % wide
    return used / (used - rest + (0 if rest == 0 else least if rest <= least else wide)) * (rows / (rows + 3))


def panels(p: ConvProblem, dtype: str, path: cpu.Cpu) -> WeightPanels:
    """How the weights are laid out."""
    return weight_panels(p, dtype, path, width(dtype, path))


def weight_panels(p: ConvProblem, dtype: str, path: cpu.Cpu, wide: int) -> WeightPanels:
    """The panels of a problem, `wide` channels each."""
    tiles = -(-p.oc // wide)
    elements = p.groups * tiles * wide * p.c * p.taps
    block = Work("block", (min(p.c, max(1, TURNED // p.taps)) * p.taps * wide,), stored(dtype))
    sizes = DirectWeightSizes(p.oc, wide, p.c, *p.order, p.oc * p.c * p.taps)
    args = (In(0, (p.weights,)), Out(0, (elements,)), p.tap_order, block, sizes)
    return WeightPanels(elements, (Call(_panels(dtype, path), args, p.groups * tiles, 1, p.weights * 0.4),))


def calls(p: ConvProblem, dtype: str, path: cpu.Cpu, *, biased: bool = False, epilogue: Epilogue | None = None,
          packed: int = 0) -> list[Call]:
    """y [n, *out, groups * oc] (output 0) from x [n, *in, groups * c] (input 0), weights (1) and a bias (2).

    With `packed`, input 1 is what `panels` made of the weights.
    """
    return products(p, dtype, path, biased, None if packed else panels(p, dtype, path), epilogue)


def products(p: ConvProblem, dtype: str, path: cpu.Cpu, biased: bool, laid: WeightPanels | None,
             epilogue: Epilogue | None, image: Work | None = None, step: int = 0) -> list[Call]:
    """The calls of a problem: of those of `laid` first, or with laid-out weights as input 1.

    The pixels may lie in an `image` other than input 0, with `step` elements from one to the next.
    """
    size, wide, rows = itemsize(dtype), width(dtype, path), path.tile.rows
    tiles = -(-p.oc // wide)
    weights = In(1, (p.groups * tiles * wide * p.c * p.taps,)) if laid is None else laid.work(dtype)
    pixels, part = unit_of_range(p, size, rows, tiles)
    taps_deep, deep = sums_at_a_time(p)
    pitch = -(-pixels // rows) * rows
    sizes = DirectSizes(p.n, p.c, p.oc, p.groups, p.taps, pixels, part, taps_deep, deep, int(biased),
                        step or p.groups * p.c, AHEAD if p.far(dtype) and p.c * size <= SHORT else 0)
    args = (image or In(0, (p.elements_in,)), weights, In(2, (p.groups * p.oc,)) if biased else weights, Out(0, (p.elements_out,)),
            p.indirection, Work("table", ((1 + p.taps) * pitch,), "i8"), Work("spare", (p.c + p.oc,), dtype), sizes,
            *arguments(epilogue))
    units = -(-p.phase_pixels // pixels) * p.groups * p.phases * -(-tiles // part)
    estimate = p.flops / speed(dtype, path) + (epilogue.cost if epilogue else 0.0)
    before = [] if laid is None else laid.inside(dtype)
    return [*before, Call(_leaf(dtype, path, rows), args, units, 1, estimate)]
