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
from dataclasses import dataclass
from typing import Any

from ..elementwise.epilogue import Epilogue, arguments, finisher
from ..gemm import tiles as tiled
from ..gemm.micro import copy
from ..gemm.tiles import DEPTH, SKEW
from ..isa import cpu
from ..isa.amx import SIDE, TERMS, closer, opener
from ..isa.half import HALVES, narrow_rows, stored, widen_rows
from ..isa.vector import itemsize
from ..machine.call import Call, In, Out, Work
from ..machine.called import CALLED
from ..machine.leaf import Leaf, Numbers
from ..machine.places import address_of
from .direct import weight_panels
from .gather import gather_rows
from .indirection import fill_table, phase_pixels, phase_taps
from .panels import WeightPanels
from .problem import ConvProblem

NARROWEST = 16            # channels from which gathering a pixel costs little beside splitting it


@dataclass(frozen=True)
class TileSizes(Numbers):
    """Of a problem; pixels and channels of a unit; where gathered rows and sums lie in the scratch; whether the image is read as it is."""

    n: int
    c: int
    oc: int
    groups: int
    pixels: int
    cols: int
    rows: int
    sums: int
    plain: int
    biased: int


def serves(p: ConvProblem, dtype: str, path: cpu.Cpu) -> bool:
    """Whether the CPU has tiles and the problem is large enough for them. The same for laid-out weights: so are the bits."""
    if not path.amx or dtype == "f8" or p.c < NARROWEST or p.depthwise:
        return False
    met = [taps for taps in p.taps_of_phases if taps]
    return tiled.pays(p.phase_pixels, p.oc, p.c * sum(met) // max(1, len(met)), tiled.products(dtype, path))


def cost(p: ConvProblem, dtype: str, path: cpu.Cpu) -> float:
    """Estimated nanoseconds on one core, with laid-out weights."""
    return p.flops / tiled.FLOPS_PER_NS[tiled.products(dtype, path)]


def straight(p: ConvProblem) -> bool:
    """Whether the image is the left operand as it lies."""
    return p.taps == 1 and all(a.in_step == a.out_step == 1 and a.base == 0 and a.size == a.out for a in p.axes)


@functools.cache
def _places(dtype: str, path: cpu.Cpu) -> tuple[Any, Any]:
    """The functions `header(k)`, bytes of a panel of k terms before its first block, and `place(indirection, phase, c, panels)`: bytes before the
    first of the phase's `panels` panels, and from each to the next."""
    header, step = tiled.header_bytes, tiled.step_bytes(dtype, path)

    def panel_bytes(k: int) -> int:
        return header(k) + (k + TERMS - 1) // TERMS * step if k else 0

    def place(indirection, phase, c, panels):                                                                               # type: ignore
        at = 0
        for before in range(phase):
            at += panels * panel_bytes(phase_taps(indirection, before) * c)
        return at, panel_bytes(phase_taps(indirection, phase) * c)

    return header, place


@functools.cache
def _leaf(dtype: str, path: cpu.Cpu, apart: bool) -> Leaf:
    begin, end, run, finish = opener(), closer(), tiled.tile_run(dtype), finisher()
    (header, place), gather = _places(dtype, path), gather_rows(dtype, path)
    lay, put = (widen_rows(dtype), narrow_rows(dtype)) if dtype in HALVES else (copy("f4"), copy("f4"))
    size, step, pixel = itemsize(dtype), tiled.step_bytes(dtype, path), _gathered(dtype)

    def gather_run(addresses, count, c, p, deep, target):                                                                   # type: ignore
        """Terms p .. p + deep of `count` pixels: channels of one tap or of several."""
        at = p
        while at < p + deep:
            terms = min(c - at % c, p + deep - at)
            gather(count, terms, addresses + (1 + at // c) * count * 8, at % c * size, target + (at - p) * size, pixel)
            at += terms

    def conv_tiles(x, panels, bias, y, indirection, table, spare, scratch, s, lo, hi, epilogue, rest):  # type: ignore
        c, oc, groups = s.c, s.oc, s.groups
        across, tiles = (oc + s.cols - 1) // s.cols, (oc + SIDE - 1) // SIDE
        blocks = (s.n * phase_pixels(indirection, 0) + s.pixels - 1) // s.pixels
        base = address_of(scratch)
        for i in range(spare.shape[0]):
            spare[i] = 0
        begin(0)
        for unit in range(lo, hi):
            first, o, group = unit % blocks * s.pixels, unit // blocks % across * s.cols, unit // (blocks * across) % groups
            phase = unit // (blocks * across * groups)
            count, width = min(s.pixels, s.n * phase_pixels(indirection, phase) - first), min(s.cols, oc - o)
            if count <= 0:
                continue
            k, channel = phase_taps(indirection, phase) * c, group * oc + o
            to = first * groups * oc + channel
            if apart or s.plain == 0:
                fill_table(indirection, phase, first, count, address_of(x) + group * c * size, groups * c * size, address_of(y) + channel * size,
                           groups * oc * size, address_of(spare), 0, table, count)
            block, row = (base + s.sums, s.cols * 4 + SKEW) if apart else (address_of(y) + to * 4, groups * oc * 4)
            if s.biased != 0 or k == 0:
                lay(count, width, address_of(bias) + channel * size if s.biased != 0 else address_of(spare), 0, block, row)
            before, panel = place(indirection, phase, c, groups * tiles)
            b = address_of(panels) + before + (group * tiles + o // SIDE) * panel
            for p in range(0, k, DEPTH):
                deep, a, a_row = min(DEPTH, k - p), address_of(x) + ((first * groups + group) * c + p) * size, groups * c * size
                if s.plain == 0:
                    a, a_row = base + s.rows, pixel
                    gather_run(address_of(table), count, c, p, deep, a)
                run(count, width, deep, a, a_row, size, b + header(k) + p // TERMS * step, b + 4 * (p // DEPTH), panel, block, row,
                    int(p + s.biased > 0), base)
            if apart:
                for i in range(count):
                    put(1, width, block + i * row, 0, table[i], 0)
            finish(epilogue, rest, count, width, address_of(y), to, groups * oc, channel)
        end(0)

    signature = "T[:], f4[:], T[:], T[:], i8[:], i8[w,:], T[w,:], f4[w,:], numbers, lo, hi"
    return Leaf(conv_tiles, signature.replace("T", dtype) + CALLED, key=f"{path} {apart}", numbers=TileSizes)


def _gathered(dtype: str) -> int:
    """Bytes from one gathered pixel to the next."""
    return DEPTH * itemsize(dtype) + SKEW


def _words(p: ConvProblem, dtype: str, path: cpu.Cpu) -> int:
    """float32 words of the weights in tiles."""
    return p.groups * -(-p.oc // SIDE) * sum(tiled.panel_bytes(dtype, path, taps * p.c) // 4 for taps in p.taps_of_phases if taps)


def panels(p: ConvProblem, dtype: str, path: cpu.Cpu) -> WeightPanels:
    """Weights in panels [tap, phase by phase][channel][32], as for vectors; those of a phase in each of them then are a matrix laid out in
    tiles: [phase][panel]."""
    plain, count = weight_panels(p, dtype, path, SIDE), p.groups * -(-p.oc // SIDE)
    ordered, target = Work("ordered", (plain.elements,), stored(dtype)), Out(0, (_words(p, dtype, path),))
    calls, first, into = plain.onto(ordered), 0, 0
    for k in [taps * p.c for taps in p.taps_of_phases if taps]:
        calls.append(tiled.pack_call(dtype, path, ordered, target, SIDE, k, False, first * SIDE, SIDE, p.taps * p.c * SIDE, count, into))
        first, into = first + k, into + count * tiled.panel_bytes(dtype, path, k)
    return WeightPanels(target.shape[0], tuple(calls))


def calls(p: ConvProblem, dtype: str, path: cpu.Cpu, *, biased: bool = False, epilogue: Epilogue | None = None,
          packed: int = 0) -> list[Call]:
    """As `direct.calls`, for problems that it `serves`."""
    laid = None if packed else panels(p, dtype, path)
    weights: Any = In(1, (_words(p, dtype, path),)) if laid is None else laid.work("f4")
    plain, apart = straight(p), dtype in HALVES or p.phases > 1
    pixels, cols = tiled.blocks(p.phase_pixels, p.oc)
    rows = -(-tiled.scratch_bytes(dtype, path, pixels) // 64) * 64
    sums = rows + (0 if plain else pixels * _gathered(dtype))
    scratch = Work("block", ((sums + (pixels * (cols * 4 + SKEW) if apart else 0)) // 4,), "f4")
    args = (In(0, (p.elements_in,)), weights, In(2, (p.groups * p.oc,)) if biased else In(0, (p.elements_in,)), Out(0, (p.elements_out,)),
            p.indirection, Work("table", ((1 + p.taps) * pixels,), "i8"), Work("spare", (max(p.c, p.oc),), stored(dtype)), scratch,
            TileSizes(p.n, p.c, p.oc, p.groups, pixels, cols, rows, sums, int(plain), int(biased)),
            *arguments(epilogue))
    units = p.phases * p.groups * -(-p.phase_pixels // pixels) * -(-p.oc // cols)
    before = [] if laid is None else laid.inside("f4")
    leaf = _leaf(dtype, path, apart)
    estimate = cost(p, dtype, path) + 0.1 * p.phase_pixels * p.groups * p.c * p.taps + (epilogue.cost if epilogue else 0.0)
    return [*before, Call(leaf, args, units, 1, estimate)]
