"""Channels-last convolution of 16-bit floats, and its input gradient, in vectors: sums in float32 in the worker's
scratch, rounded once.

A unit of range widens what its pixels meet, from the first to the last, into the worker's scratch, and lets its table of addresses point
there. The sums are those of `direct` over float32 images, bit for bit, without float32 images in memory. Where the CPU
multiplies pairs of bfloat16 and channels are even in number, the image is read as it lies: two channels are a word
(gemm/pairs.py).
"""
from __future__ import annotations

import functools
from typing import Any

from ..elementwise.epilogue import Epilogue, arguments, finisher
from ..gemm.pack import Packing, half_pack_leaf
from ..isa import cpu
from ..isa.half import HALVES, narrow_rows, stored, widen_rows
from ..machine.call import Call, In, Out, Work
from ..machine.called import CALLED
from ..machine.leaf import Leaf
from ..machine.places import address_of
from . import direct
from .brgemm import Block, block, brgemm_rows, width
from .direct import STRIP, DirectSizes, sums_at_a_time, unit_of_range, weight_panels
from .indirection import fill_table, phase_pixels, phase_taps, taps_before
from .panels import WeightPanels, converted
from .problem import ConvProblem, speed

SKEW = 64
"""Bytes added to the rows of a block of sums."""


def in_pairs(p: ConvProblem, dtype: str, path: cpu.Cpu) -> bool:
    """Whether channels are multiplied two at a time."""
    return dtype == "b2" and path.pairs and p.c % 2 == 0 and not p.depthwise


@functools.cache
def _widened(dtype: str, _path: cpu.Cpu) -> Any:
    """Two functions. `outside(zero)`: what a table has where a tap meets padding. `meet(entries, c, groups, image,
    zero)`: the rows that entries point to are widened into `image`, to which they point then."""
    widen = widen_rows(dtype)

    def outside(_zero):  # type: ignore
        return 0

    def widen_met(entries, c, groups, image, zero):                                                                         # type: ignore
        """Widen the rows from the lowest to the highest address among `entries` (0: padding) and let them point to the copies."""
        low, high = 1 << 62, 0
        for i in range(entries.shape[0]):
            if entries[i] != 0:
                low, high = min(low, entries[i]), max(high, entries[i])
        count = (high - low) // (groups * c * 2) + 1 if high != 0 else 0
        if groups == 1:
            widen(1, count * c, low, 0, image, 0)
        else:
            widen(count, c, low, groups * c * 2, image, c * 4)
        for i in range(entries.shape[0]):
            entries[i] = zero if entries[i] == 0 else image + (entries[i] - low) * 2 if groups == 1 else image + (entries[i] - low) * 2 // groups

    return outside, widen_met


@functools.cache
def _as_they_lie() -> Any:
    """Likewise, where the image is read as it is."""
    def outside(zero):  # type: ignore
        return zero

    def lie(_entries, _c, _groups, _image, _zero):  # type: ignore
        pass

    return outside, lie


@functools.cache
def _leaf(dtype: str, path: cpu.Cpu, of: Block, pairs: bool) -> Leaf:
    term, size = (dtype, 2) if pairs else ("f4", 4)
    rows, wide, multiply = of.rows, of.wide(dtype, path), brgemm_rows(term, path, of.rows, of.vectors)
    outside, meet = _as_they_lie() if pairs else _widened(dtype, path)
    widen, narrow, finish = widen_rows(dtype), narrow_rows(dtype), finisher()

    def conv_half(x, panels, bias, y, indirection, table, spare, image, sums, s, lo, hi,  # type: ignore
                  epilogue, rest):
        c, oc, groups = s.c, s.oc, s.groups
        tiles, pitch = (oc + wide - 1) // wide, (s.pixels + rows - 1) // rows * rows
        parts, row = (tiles + s.part - 1) // s.part, s.part * wide * 4 + SKEW
        blocks = (s.n * phase_pixels(indirection, 0) + s.pixels - 1) // s.pixels
        addresses, zero, places = address_of(table), address_of(spare), address_of(table) + (1 + s.taps) * pitch * 8
        for i in range(c):
            spare[i] = 0
        if s.biased != 0:
            widen(1, groups * oc, address_of(bias), 0, zero + c * 4, 0)
        lines = table[(1 + s.taps) * pitch:(2 + s.taps) * pitch]
        for i in range(pitch):
            lines[i] = address_of(sums) + i * row
        for unit in range(lo, hi):
            first_tile, first = unit % parts * s.part, unit // parts % blocks * s.pixels
            group, phase = unit // (parts * blocks) % groups, unit // (parts * blocks * groups)
            count, o = min(s.pixels, s.n * phase_pixels(indirection, phase) - first), first_tile * wide
            if count <= 0:
                continue
            met, before, cols = phase_taps(indirection, phase), taps_before(indirection, phase), min(s.part * wide, oc - o)
            fill_table(indirection, phase, first, count, address_of(x) + group * c * 2, groups * c * 2, address_of(y) + (group * oc + o) * 2,
                       groups * oc * 2, outside(zero), 0, table, pitch)
            meet(table[pitch:(1 + met) * pitch], c, groups, address_of(image), zero)
            for c0 in range(0, c, s.deep):
                for t0 in range(0, max(met, 1), s.taps_deep):
                    for strip in range(0, count, STRIP):
                        for tile in range(first_tile, min(first_tile + s.part, tiles)):
                            column = (tile - first_tile) * wide
                            panel = address_of(panels) + (((group * tiles + tile) * s.taps + before + t0) * c + c0) * wide * size
                            addend = zero + (c + group * oc + tile * wide) * 4 if s.biased != 0 and c0 + t0 == 0 else 0
                            multiply(min(STRIP, count - strip), min(wide, cols - column), min(s.taps_deep, met - t0),
                                     min(s.deep, c - c0) * size,
                                     addresses + ((1 + t0) * pitch + strip) * 8, pitch * 8, c0 * size, panel,
                                     c * wide * size, addend, places + strip * 8, column * 4, c0 + t0 > 0, 0, 0)
            pixel = groups * oc * 2
            if table[count - 1] - table[0] == (count - 1) * pixel:
                narrow(count, cols, address_of(sums), row, table[0], pixel)
            else:
                for i in range(count):
                    narrow(1, cols, address_of(sums) + i * row, 0, table[i], 0)
            finish(epilogue, rest, count, cols, address_of(y), (first * groups + group) * oc + o, groups * oc,
                   group * oc + o)

    signature = "T[:], f4[:], T[:], T[:], i8[:], i8[w,:], f4[w,:], f4[w,:], f4[w,:], numbers, lo, hi"
    return Leaf(conv_half, signature.replace("T", dtype) + CALLED, key=f"{path.name} {of} {pairs}", numbers=DirectSizes)


def serves(p: ConvProblem, dtype: str, path: cpu.Cpu) -> bool:
    """16-bit floats."""
    return dtype in HALVES


def cost(p: ConvProblem, dtype: str, path: cpu.Cpu) -> float:
    """Estimated nanoseconds on one core, with laid-out weights: those of float32, or half of them."""
    return direct.cost(p, "f4", path) / (2 if in_pairs(p, dtype, path) else 1)


def panels(p: ConvProblem, dtype: str, path: cpu.Cpu) -> WeightPanels:
    """How the weights are laid out: as float32, or as pairs."""
    if in_pairs(p, dtype, path):
        across = width(dtype, path, p.oc)
        plain, count = weight_panels(p, dtype, path, across), p.groups * -(-p.oc // across)
        ordered, words = Work("ordered", (plain.elements,), stored(dtype)), plain.elements // 2
        rows = Packing(across, p.taps * p.c, 0, 0, across, p.taps * p.c * across)
        woven = Call(half_pack_leaf(dtype, path, "pairs"), (ordered, Out(0, (words,)), across, rows), count, 1,
                     plain.elements * 0.1)
        return WeightPanels(words, (*plain.onto(ordered), woven))
    wide, plain = Work("wide", (p.weights,), "f4"), weight_panels(p, "f4", path, width("f4", path))
    laid = plain.onto(Out(0, (plain.elements,)), wide)
    return WeightPanels(plain.elements, (converted(In(0, (p.weights,)), dtype, wide, "f4"), *laid))


def calls(p: ConvProblem, dtype: str, path: cpu.Cpu, *, biased: bool = False, epilogue: Epilogue | None = None,
          packed: int = 0) -> list[Call]:
    """As `direct.calls`, for "f2" and "b2"."""
    pairs = in_pairs(p, dtype, path)
    of, size = block(dtype if pairs else "f4", path, p.oc), 2 if pairs else 4
    laid = None if packed else panels(p, dtype, path)
    rows, wide = of.rows, of.wide(dtype, path)
    tiles = -(-p.oc // wide)
    weights = In(1, (p.groups * tiles * wide * p.c * p.taps * size // 4,)) if laid is None else laid.work("f4")
    (pixels, part), (taps_deep, deep) = unit_of_range(p, size, rows, tiles), sums_at_a_time(p)
    pitch = -(-pixels // rows) * rows
    x = In(0, (p.elements_in,))
    args = (x, weights, In(2, (p.groups * p.oc,)) if biased else x, Out(0, (p.elements_out,)), p.indirection,
            Work("table", ((2 + p.taps) * pitch,), "i8"), Work("spare", (p.c + p.groups * p.oc,), "f4"),
            Work("image", (1 if pairs else p.reach(pixels) * p.c,), "f4"),
            Work("sums", (pitch * (part * wide + SKEW // 4),), "f4"),
            DirectSizes(p.n, p.c, p.oc, p.groups, p.taps, pixels, part, taps_deep, deep + deep % 2 if pairs else deep,
                        int(biased), p.groups * p.c, 0),
            *arguments(epilogue))
    units = -(-p.phase_pixels // pixels) * p.groups * p.phases * -(-tiles // part)
    estimate = p.flops / speed("f4", path) * size / 4 + (epilogue.cost if epilogue else 0.0)
    before = [] if laid is None else laid.inside("f4")
    return [*before, Call(_leaf(dtype, path, of, pairs), args, units, 1, estimate)]
