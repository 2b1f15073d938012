"""Channels-last convolution over gathered pixels, and its input gradient: float32 by bfloat16 tiles, 16-bit floats by tiles or vectors.

A is the image, a row to an output pixel and a column to a tap and a channel. A unit of range is a block of pixels of one phase times some
panels of output channels; for each run of sums it gathers its pixels through the table of addresses, and goes on like a matrix product.
A convolution of one tap that meets every pixel once is such a product, and in tiles its rows are read where they lie. An input gradient
over strides has several phases, each with taps of its own.

Sums are float32. Where the results are 16-bit, or those of a phase lie apart, a block is summed in scratch memory, rounded once and put
where it belongs.
"""
from __future__ import annotations

import functools
from typing import Any

from .. import cpu, tiled
from ..call import Call, In, Out, Work
from ..epilogue import Epilogue, Form, finisher, name, tail
from ..half import HALVES, narrow_rows, stored, widen_rows
from ..inner import register_jitable
from ..leaf import Leaf
from ..micro import copy
from ..places import address_of
from ..vector import itemsize
from .gather import gather_rows
from .panels import Panels
from .sites import Sites, fill_table, phase_pixels, phase_taps, sites_call, sites_work
from .ways import Way

NARROWEST = 16            # channels from which gathering a pixel costs little beside splitting or widening it
SKEW = tiled.SKEW
"""Bytes added to the rows of a block of sums."""


def pays(s: Sites, dtype: str, path: cpu.Cpu) -> bool:
    """Whether the problem `s` is faster in tiles than in vectors. The same for laid-out weights: so are the bits."""
    if not path.amx or dtype == "f8" or s.c < NARROWEST:
        return False
    met = [taps for taps in s.taps_of_phases if taps]
    return tiled.pays(s.phase_pixels, s.oc, s.c * sum(met) // max(1, len(met)), tiled.products(dtype, path))


def straight(s: Sites) -> bool:
    """Whether the image is the left operand as it lies."""
    return s.taps == 1 and all(a.in_step == a.out_step == 1 and a.base == 0 and a.size == a.out for a in s.axes)


@functools.cache
def _leaf(way: Way, apart: bool, form: Form | None) -> Leaf:
    dtype, path = way.dtype, way.path
    (begin, end, place, multiply), finish, gather = way.code(), finisher(form), gather_rows(dtype, path, not way.tiles)
    lay, put = (widen_rows(dtype), narrow_rows(dtype)) if dtype in HALVES else (copy("f4"), copy("f4"))
    size, made, side, depth, pixel = itemsize(dtype), itemsize(way.element), way.side, way.depth, way.row

    @register_jitable
    def gather_run(addresses, count, c, p, deep, target):                                                                   # type: ignore
        """Terms p .. p + deep of `count` pixels: channels of one tap or of several."""
        at = p
        while at < p + deep:
            terms = min(c - at % c, p + deep - at)
            gather(count, terms, addresses + (1 + at // c) * count * 8, at % c * size, target + (at - p) * made, pixel)
            at += terms

    def conv_gathered(x, panels, bias, y, sites, table, spare, scratch, n, c, oc, groups, taps, pixels, cols, rows, sums, plain,  # type: ignore
                      biased, lo, hi, rest):
        across, tiles = (oc + cols - 1) // cols, (oc + side - 1) // side
        blocks = (n * phase_pixels(sites, 0) + pixels - 1) // pixels
        base = address_of(scratch)
        for i in range(spare.shape[0]):
            spare[i] = 0
        begin(0)
        for unit in range(lo, hi):
            first, o, group = unit % blocks * pixels, unit // blocks % across * cols, unit // (blocks * across) % groups
            phase = unit // (blocks * across * groups)
            count, width = min(pixels, n * phase_pixels(sites, phase) - first), min(cols, oc - o)
            if count <= 0:
                continue
            k, channel = phase_taps(sites, phase) * c, group * oc + o
            to = first * groups * oc + channel
            if apart or plain == 0:
                fill_table(sites, phase, first, count, address_of(x) + group * c * size, groups * c * size, address_of(y) + channel * size,
                           groups * oc * size, address_of(spare), 0, table, count)
            block, row = (base + sums, cols * 4 + SKEW) if apart else (address_of(y) + to * 4, groups * oc * 4)
            if biased != 0 or k == 0:
                lay(count, width, address_of(bias) + channel * size if biased != 0 else address_of(spare), 0, block, row)
            before, panel = place(sites, phase, c, taps, groups * tiles)
            b = address_of(panels) + before + (group * tiles + o // side) * panel
            for p in range(0, k, depth):
                deep, a, a_row = min(depth, k - p), address_of(x) + ((first * groups + group) * c + p) * size, groups * c * size
                if plain == 0:
                    a, a_row = base + rows, pixel
                    gather_run(address_of(table), count, c, p, deep, a)
                multiply(count, width, k, p, deep, a, a_row, b, panel, block, row, int(p + biased > 0), base)
            if apart:
                for i in range(count):
                    put(1, width, block + i * row, 0, table[i], 0)
            finish(rest, count, width, address_of(y), to, groups * oc, channel)
        end(0)

    signature = "T[:], f4[:], T[:], T[:], i8[:], i8[w,:], T[w,:], f4[w,:]" + ", i8" * 11 + ", lo, hi"
    key = f"{way.tiles} {path if way.tiles else path.name} {apart} {name(form)}"
    return Leaf(conv_gathered, signature.replace("T", dtype) + tail(form), key=key)


def way_of(s: Sites, dtype: str, path: cpu.Cpu) -> Way:
    """How the problem `s` is done: float32 in tiles, 16-bit floats in tiles where that `pays`."""
    return Way(dtype, path, dtype not in HALVES or pays(s, dtype, path))


def forward(s: Sites, dtype: str, path: cpu.Cpu, biased: bool, epilogue: Epilogue | None = None, packed: int = 0) -> list[Call]:
    """As `last.forward`, for 16-bit floats, and for float32 where the problem `pays`."""
    return _products(s, way_of(s, dtype, path), biased, None if packed else forward_panels(s, dtype, path), epilogue)


def input_gradient(s: Sites, dtype: str, path: cpu.Cpu, packed: int = 0) -> list[Call]:
    """As `last.input_gradient`, likewise for the gradient."""
    return _products(s.gradient, way_of(s.gradient, dtype, path), False, None if packed else gradient_panels(s, dtype, path), None)


def forward_panels(s: Sites, dtype: str, path: cpu.Cpu) -> Panels:
    """How the weights of `s` are laid out for `forward`."""
    return way_of(s, dtype, path).panels(s, (s.c * s.taps, s.taps))


def gradient_panels(s: Sites, dtype: str, path: cpu.Cpu) -> Panels:
    """How the weights of `s` are laid out for its input gradient."""
    return way_of(s.gradient, dtype, path).panels(s.gradient, (s.taps, s.c * s.taps))


def _products(s: Sites, way: Way, biased: bool, panels: Panels | None, epilogue: Epilogue | None) -> list[Call]:
    """The calls of a problem: of those of `panels` first, or with laid-out weights as input 1."""
    weights: Any = In(1, (way.words(s),)) if panels is None else panels.work("f4")
    plain, apart = way.tiles and straight(s), way.dtype in HALVES or s.phases > 1
    pixels, cols = way.blocks(s)
    rows = way.scratch_bytes(pixels)
    sums = rows + (0 if plain else pixels * way.row)
    scratch = Work("block", ((sums + (pixels * (cols * 4 + SKEW) if apart else 0)) // 4,), "f4")
    x = In(0, (s.n * s.pixels_in * s.groups * s.c,))
    args = (x, weights, In(2, (s.groups * s.oc,)) if biased else x, Out(0, (s.n * s.pixels_out * s.groups * s.oc,)), sites_work(),
            Work("table", ((1 + s.taps) * pixels,), "i8"), Work("spare", (max(s.c, s.oc),), stored(way.dtype)), scratch,
            s.n, s.c, s.oc, s.groups, s.taps, pixels, cols, rows, sums, int(plain), int(biased), *(epilogue.args if epilogue else []))
    units = s.phases * s.groups * -(-s.phase_pixels // pixels) * -(-s.oc // cols)
    gathered = s.phase_pixels * s.groups * s.c * s.taps * -(-s.oc // cols)
    cost = s.flops / way.flops_per_ns + 0.1 * gathered + (epilogue.cost if epilogue else 0.0)
    before = [sites_call(s)] if panels is None else panels.inside("f4")
    return [*before, Call(_leaf(way, apart, epilogue.form if epilogue else None), args, units, 1, cost)]
