"""Channels-last convolution of 16-bit floats, and its input gradient, in vectors: the kernels of last.py over a widened part of the image.

A unit of range widens what its pixels meet, from the first to the last, into the worker's scratch, and lets its table of addresses point
there; it sums in float32, likewise in scratch, rounds once and puts the results where they belong. The sums are those of `last` over
float32 images, bit for bit, without float32 images in memory.
"""
from __future__ import annotations

import functools

from ..elementwise.epilogue import Epilogue, Form, finisher, name, tail
from ..isa import cpu
from ..isa.half import narrow_rows, widen_rows
from ..machine.call import Call, In, Out, Work
from ..machine.inner import register_jitable
from ..machine.leaf import Leaf
from ..machine.places import address_of
from .brgemm import brgemm, width
from .direct import STRIP, sums_at_a_time, unit_of_range, weight_panels
from .indirection import Sites, fill_table, phase_pixels, phase_taps, sites_call, sites_work, taps_before
from .panels import Panels, converted

SKEW = 64
"""Bytes added to the rows of a block of sums."""


@functools.cache
def _leaf(dtype: str, path: cpu.Cpu, rows: int, form: Form | None) -> Leaf:
    wide, multiply, finish = width("f4", path), brgemm("f4", path, rows), finisher(form)
    widen, narrow = widen_rows(dtype), narrow_rows(dtype)

    @register_jitable
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

    def conv_last_half(x, panels, bias, y, sites, table, spare, image, sums, n, c, oc, groups, taps, pixels, part, taps_deep,  # type: ignore
                       deep, biased, lo, hi, rest):
        tiles, pitch = (oc + wide - 1) // wide, (pixels + rows - 1) // rows * rows
        parts, row = (tiles + part - 1) // part, part * wide * 4 + SKEW
        blocks = (n * phase_pixels(sites, 0) + pixels - 1) // pixels
        addresses, zero, places = address_of(table), address_of(spare), address_of(table) + (1 + taps) * pitch * 8
        for i in range(c):
            spare[i] = 0
        if biased != 0:
            widen(1, groups * oc, address_of(bias), 0, zero + c * 4, 0)
        block = table[(1 + taps) * pitch:(2 + taps) * pitch]
        for i in range(pitch):
            block[i] = address_of(sums) + i * row
        for unit in range(lo, hi):
            first_tile, first = unit % parts * part, unit // parts % blocks * pixels
            group, phase = unit // (parts * blocks) % groups, unit // (parts * blocks * groups)
            count, o = min(pixels, n * phase_pixels(sites, phase) - first), first_tile * wide
            if count <= 0:
                continue
            met, before, cols = phase_taps(sites, phase), taps_before(sites, phase), min(part * wide, oc - o)
            fill_table(sites, phase, first, count, address_of(x) + group * c * 2, groups * c * 2, address_of(y) + (group * oc + o) * 2,
                       groups * oc * 2, 0, 0, table, pitch)
            widen_met(table[pitch:(1 + met) * pitch], c, groups, address_of(image), zero)
            for c0 in range(0, c, deep):
                for t0 in range(0, max(met, 1), taps_deep):
                    for strip in range(0, count, STRIP):
                        for tile in range(first_tile, min(first_tile + part, tiles)):
                            column = (tile - first_tile) * wide
                            panel = address_of(panels) + (((group * tiles + tile) * taps + before + t0) * c + c0) * wide * 4
                            addend = zero + (c + group * oc + tile * wide) * 4 if biased != 0 and c0 + t0 == 0 else 0
                            for p in range(strip, min(strip + STRIP, count), rows):
                                multiply(min(wide, cols - column), min(taps_deep, met - t0), min(deep, c - c0) * 4,
                                         addresses + ((1 + t0) * pitch + p) * 8, pitch * 8, c0 * 4, panel, c * wide * 4, addend,
                                         places + p * 8, column * 4, c0 + t0 > 0)
            for i in range(count):
                narrow(1, cols, address_of(sums) + i * row, 0, table[i], 0)
            finish(rest, count, cols, address_of(y), (first * groups + group) * oc + o, groups * oc, group * oc + o)

    signature = "T[:], f4[:], T[:], T[:], i8[:], i8[w,:], f4[w,:], f4[w,:], f4[w,:]" + ", i8" * 10 + ", lo, hi"
    return Leaf(conv_last_half, signature.replace("T", dtype) + tail(form), key=f"{path.name} {rows} {name(form)}")


def forward(s: Sites, dtype: str, path: cpu.Cpu, biased: bool, epilogue: Epilogue | None = None, packed: int = 0) -> list[Call]:
    """As `last.forward`, for "f2" and "b2"."""
    return _products(s, dtype, path, biased, None if packed else forward_panels(s, dtype, path), epilogue)


def input_gradient(s: Sites, dtype: str, path: cpu.Cpu, packed: int = 0) -> list[Call]:
    """As `last.input_gradient`, for "f2" and "b2"."""
    return _products(s.gradient, dtype, path, False, None if packed else gradient_panels(s, dtype, path), None)


def forward_panels(s: Sites, dtype: str, path: cpu.Cpu) -> Panels:
    """How the weights of `s` are laid out for `forward`: as float32."""
    return _packing(s, dtype, path, (s.c * s.taps, s.taps))


def gradient_panels(s: Sites, dtype: str, path: cpu.Cpu) -> Panels:
    """How the weights of `s` are laid out for its input gradient."""
    return _packing(s.gradient, dtype, path, (s.taps, s.c * s.taps))


def _packing(s: Sites, dtype: str, path: cpu.Cpu, order: tuple[int, int]) -> Panels:
    count = s.groups * s.oc * s.c * s.taps
    wide, plain = Work("wide", (count,), "f4"), weight_panels(s, "f4", path, order, width("f4", path))
    laid = plain.onto(Out(0, (plain.elements,)), wide)
    return Panels(plain.elements, (converted(In(0, (count,)), dtype, wide, "f4"), *laid))


def _products(s: Sites, dtype: str, path: cpu.Cpu, biased: bool, panels: Panels | None, epilogue: Epilogue | None) -> list[Call]:
    """The calls of a problem: of those of `panels` first, or with laid-out weights as input 1."""
    wide, rows = width("f4", path), path.tile.rows
    tiles = -(-s.oc // wide)
    weights = In(1, (s.groups * tiles * wide * s.c * s.taps,)) if panels is None else panels.work("f4")
    (pixels, part), (taps_deep, deep) = unit_of_range(s, 4, rows, tiles), sums_at_a_time(s)
    pitch = -(-pixels // rows) * rows
    x = In(0, (s.n * s.pixels_in * s.groups * s.c,))
    args = (x, weights, In(2, (s.groups * s.oc,)) if biased else x, Out(0, (s.n * s.pixels_out * s.groups * s.oc,)), sites_work(),
            Work("table", ((2 + s.taps) * pitch,), "i8"), Work("spare", (s.c + s.groups * s.oc,), "f4"),
            Work("image", (s.reach(pixels) * s.c,), "f4"), Work("sums", (pitch * (part * wide + SKEW // 4),), "f4"),
            s.n, s.c, s.oc, s.groups, s.taps, pixels, part, taps_deep, deep, int(biased), *(epilogue.args if epilogue else []))
    units = -(-s.phase_pixels // pixels) * s.groups * s.phases * -(-tiles // part)
    cost = s.flops / path.rates.convolutions + (epilogue.cost if epilogue else 0.0)
    before = [sites_call(s)] if panels is None else panels.inside("f4")
    return [*before, Call(_leaf(dtype, path, rows, epilogue.form if epilogue else None), args, units, 1, cost)]
