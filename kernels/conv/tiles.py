"""Channels-last convolution by bfloat16 tiles, and its input gradient: the tile way of products (gemm/tiles.py) over gathered pixels.

A is the image, a row to an output pixel and a column to a tap and a channel. A unit of range is a block of pixels of one phase times some
panels of output channels; for each run of sums it gathers its pixels through the table of addresses, and goes on like a matrix product.
A convolution of one tap that meets every pixel once is such a product, and its rows are read where they lie. An input gradient over
strides has several phases, each with taps and panels of its own.

Sums are float32. Where the results are 16-bit, or those of a phase lie apart, a block is summed in scratch memory, rounded once and put
where it belongs.
"""
from __future__ import annotations

import functools
from typing import Any

from ..elementwise.epilogue import Epilogue, Form, finisher, name, tail
from ..gemm import tiles as tiled
from ..gemm.micro import copy
from ..gemm.tiles import DEPTH, SKEW
from ..isa import cpu
from ..isa.amx import SIDE, TERMS, closer, opener
from ..isa.half import HALVES, narrow_rows, stored, widen_rows
from ..isa.vector import itemsize
from ..machine.call import Call, In, Out, Work
from ..machine.inner import register_jitable
from ..machine.leaf import Leaf
from ..machine.places import address_of
from .direct import weight_panels
from .gather import gather_rows
from .indirection import Sites, fill_table, phase_pixels, phase_taps, sites_call, sites_work
from .panels import Panels

NARROWEST = 16            # channels from which gathering a pixel costs little beside splitting it


def pays(s: Sites, dtype: str, path: cpu.Cpu) -> bool:
    """Whether the problem `s` is served, and faster in tiles than in vectors. The same for laid-out weights: so are the bits."""
    if not path.amx or dtype == "f8" or s.c < NARROWEST:
        return False
    met = [taps for taps in s.taps_of_phases if taps]
    return tiled.pays(s.phase_pixels, s.oc, s.c * sum(met) // max(1, len(met)), tiled.products(dtype, path))


def straight(s: Sites) -> bool:
    """Whether the image is the left operand as it lies."""
    return s.taps == 1 and all(a.in_step == a.out_step == 1 and a.base == 0 and a.size == a.out for a in s.axes)


@functools.cache
def _places(dtype: str, path: cpu.Cpu) -> tuple[Any, Any]:
    """The jitables `header(k)`, bytes of a panel of k terms before its first block, and `place(sites, phase, c, panels)`: bytes before the
    first of the phase's `panels` panels, and from each to the next."""
    header, step = register_jitable(tiled.header_bytes), tiled.step_bytes(dtype, path)

    @register_jitable
    def panel_bytes(k: int) -> int:
        return header(k) + (k + TERMS - 1) // TERMS * step if k else 0

    @register_jitable
    def place(sites, phase, c, panels):                                                                                     # type: ignore
        at = 0
        for before in range(phase):
            at += panels * panel_bytes(phase_taps(sites, before) * c)
        return at, panel_bytes(phase_taps(sites, phase) * c)

    return header, place


@functools.cache
def _leaf(dtype: str, path: cpu.Cpu, apart: bool, form: Form | None) -> Leaf:
    begin, end, run, finish = opener(), closer(), register_jitable(tiled.tile_run(dtype)), finisher(form)
    (header, place), gather = _places(dtype, path), gather_rows(dtype, path)
    lay, put = (widen_rows(dtype), narrow_rows(dtype)) if dtype in HALVES else (copy("f4"), copy("f4"))
    size, step, pixel = itemsize(dtype), tiled.step_bytes(dtype, path), _gathered(dtype)

    @register_jitable
    def gather_run(addresses, count, c, p, deep, target):                                                                   # type: ignore
        """Terms p .. p + deep of `count` pixels: channels of one tap or of several."""
        at = p
        while at < p + deep:
            terms = min(c - at % c, p + deep - at)
            gather(count, terms, addresses + (1 + at // c) * count * 8, at % c * size, target + (at - p) * size, pixel)
            at += terms

    def conv_gathered(x, panels, bias, y, sites, table, spare, scratch, n, c, oc, groups, pixels, cols, rows, sums, plain, biased,  # type: ignore
                      lo, hi, rest):
        across, tiles = (oc + cols - 1) // cols, (oc + SIDE - 1) // SIDE
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
            before, panel = place(sites, phase, c, groups * tiles)
            b = address_of(panels) + before + (group * tiles + o // SIDE) * panel
            for p in range(0, k, DEPTH):
                deep, a, a_row = min(DEPTH, k - p), address_of(x) + ((first * groups + group) * c + p) * size, groups * c * size
                if plain == 0:
                    a, a_row = base + rows, pixel
                    gather_run(address_of(table), count, c, p, deep, a)
                run(count, width, deep, a, a_row, size, b + header(k) + p // TERMS * step, b + 4 * (p // DEPTH), panel, block, row,
                    int(p + biased > 0), base)
            if apart:
                for i in range(count):
                    put(1, width, block + i * row, 0, table[i], 0)
            finish(rest, count, width, address_of(y), to, groups * oc, channel)
        end(0)

    signature = "T[:], f4[:], T[:], T[:], i8[:], i8[w,:], T[w,:], f4[w,:]" + ", i8" * 10 + ", lo, hi"
    return Leaf(conv_gathered, signature.replace("T", dtype) + tail(form), key=f"{path} {apart} {name(form)}")


def forward(s: Sites, dtype: str, path: cpu.Cpu, biased: bool, epilogue: Epilogue | None = None, packed: int = 0) -> list[Call]:
    """As `last.forward`, for problems that `pays`."""
    return _products(s, dtype, path, biased, None if packed else forward_panels(s, dtype, path), epilogue)


def input_gradient(s: Sites, dtype: str, path: cpu.Cpu, packed: int = 0) -> list[Call]:
    """As `last.input_gradient`, for problems whose gradient `pays`."""
    return _products(s.gradient, dtype, path, False, None if packed else gradient_panels(s, dtype, path), None)


def forward_panels(s: Sites, dtype: str, path: cpu.Cpu) -> Panels:
    """How the weights of `s` are laid out for `forward`."""
    return _packing(s, dtype, path, (s.c * s.taps, s.taps))


def gradient_panels(s: Sites, dtype: str, path: cpu.Cpu) -> Panels:
    """How the weights of `s` are laid out for its input gradient."""
    return _packing(s.gradient, dtype, path, (s.taps, s.c * s.taps))


def _gathered(dtype: str) -> int:
    """Bytes from one gathered pixel to the next."""
    return DEPTH * itemsize(dtype) + SKEW


def _words(s: Sites, dtype: str, path: cpu.Cpu) -> int:
    """float32 words of the weights in tiles."""
    return s.groups * -(-s.oc // SIDE) * sum(tiled.panel_bytes(dtype, path, taps * s.c) // 4 for taps in s.taps_of_phases if taps)


def _packing(s: Sites, dtype: str, path: cpu.Cpu, order: tuple[int, int]) -> Panels:
    """Weights in panels [tap, phase by phase][channel][32], as for vectors; those of a phase in each of them then are a matrix laid out in
    tiles: [phase][panel]."""
    plain, panels = weight_panels(s, dtype, path, order, SIDE), s.groups * -(-s.oc // SIDE)
    ordered, target = Work("ordered", (plain.elements,), stored(dtype)), Out(0, (_words(s, dtype, path),))
    calls, first, into = plain.onto(ordered), 0, 0
    for k in [taps * s.c for taps in s.taps_of_phases if taps]:
        calls.append(tiled.pack_call(dtype, path, ordered, target, SIDE, k, False, first * SIDE, SIDE, s.taps * s.c * SIDE, panels, into))
        first, into = first + k, into + panels * tiled.panel_bytes(dtype, path, k)
    return Panels(target.shape[0], tuple(calls))


def _products(s: Sites, dtype: str, path: cpu.Cpu, biased: bool, panels: Panels | None, epilogue: Epilogue | None) -> list[Call]:
    """The calls of a problem: of those of `panels` first, or with laid-out weights as input 1."""
    weights: Any = In(1, (_words(s, dtype, path),)) if panels is None else panels.work("f4")
    plain, apart = straight(s), dtype in HALVES or s.phases > 1
    pixels, cols = tiled.blocks(s.phase_pixels, s.oc)
    rows = -(-tiled.scratch_bytes(dtype, path, pixels) // 64) * 64
    sums = rows + (0 if plain else pixels * _gathered(dtype))
    scratch = Work("block", ((sums + (pixels * (cols * 4 + SKEW) if apart else 0)) // 4,), "f4")
    x = In(0, (s.n * s.pixels_in * s.groups * s.c,))
    args = (x, weights, In(2, (s.groups * s.oc,)) if biased else x, Out(0, (s.n * s.pixels_out * s.groups * s.oc,)), sites_work(),
            Work("table", ((1 + s.taps) * pixels,), "i8"), Work("spare", (max(s.c, s.oc),), stored(dtype)), scratch,
            s.n, s.c, s.oc, s.groups, pixels, cols, rows, sums, int(plain), int(biased), *(epilogue.args if epilogue else []))
    units = s.phases * s.groups * -(-s.phase_pixels // pixels) * -(-s.oc // cols)
    cost = s.flops / tiled.FLOPS_PER_NS[tiled.products(dtype, path)] + 0.1 * s.phase_pixels * s.groups * s.c * s.taps
    before = [sites_call(s)] if panels is None else panels.inside("f4")
    leaf = _leaf(dtype, path, apart, epilogue.form if epilogue else None)
    return [*before, Call(leaf, args, units, 1, cost + (epilogue.cost if epilogue else 0.0))]
