"""Channels-last convolution by bfloat16 tiles, and its input gradient: the tile way of products (tiled.py) over gathered pixels.

A is the image, a row to an output pixel and a column to a tap and a channel. A unit of range is a block of pixels times some
panels of output channels; for each run of sums it gathers its pixels through the table of addresses, and goes on like a matrix product.
A convolution of one tap that meets every pixel once is such a product, and its rows are read where they lie. An input gradient
over strides has several phases, each with taps of its own: it stays with the vectors.
"""
from __future__ import annotations

import functools
from typing import Any

from .. import cpu, tiled
from ..amx import SIDE, TERMS, closer, opener
from ..call import Call, In, Out, Work
from ..epilogue import Epilogue, Form, finisher, name, tail
from ..inner import register_jitable
from ..leaf import Leaf
from ..places import address_of
from ..tiled import DEPTH
from ..vector import WORD, Emitter, as_intrinsic, vector, word
from .last import weight_panels
from .panels import Panels
from .sites import Sites, fill_table, sites_call, sites_work

NARROWEST = 16            # channels from which gathering a pixel costs little beside splitting it
GATHERED = DEPTH * 4 + tiled.SKEW
"""Bytes from one gathered row to the next."""


def pays(s: Sites, dtype: str, path: cpu.Cpu) -> bool:
    """Whether the problem `s` is served, and faster in tiles than in vectors. The same for laid-out weights: so are the bits."""
    if not path.amx or dtype != "f4" or s.phases != 1 or s.c < NARROWEST:
        return False
    return tiled.pays(s.phase_pixels, s.oc, s.c * s.taps, tiled.products(dtype, path))


def straight(s: Sites) -> bool:
    """Whether the image is the left operand as it lies."""
    return s.taps == 1 and all(a.in_step == a.out_step == 1 and a.base == 0 and a.size == a.out for a in s.axes)


@functools.cache
def gather_rows(path: cpu.Cpu) -> Any:
    """Numba-callable `gather_rows(rows, count, sources, shift, target, row)`: float32 [rows, count], `row` bytes apart, from the rows
    whose addresses are the words at sources + 8 * i, plus `shift`."""
    lanes = path.lanes(4)
    kind = vector("f4", lanes)

    def emit(e: Emitter, rows: Any, count: Any, sources: Any, shift: Any, target: Any, row: Any) -> None:
        whole = e.b.and_(count, word(-lanes))
        mask = e.first(e.b.sub(count, whole), lanes)

        def line(_i: Any, state: list[Any]) -> list[Any]:
            table, to = state
            at = e.address(e.load(table, WORD), shift)

            def move(j: Any, _state: list[Any]) -> None:
                e.store(e.load(e.address(at, e.times(j, 4)), kind), e.address(to, e.times(j, 4)))
            e.loop(0, whole, lanes, [], move)
            with e.b.if_then(e.b.icmp_signed("!=", whole, count)):
                end = e.times(whole, 4)
                e.store(e.load(e.address(at, end), kind, mask), e.address(to, end), mask)
            return [e.address(table, 8), e.address(to, row)]
        e.loop(0, rows, 1, [sources, target], line)
    return as_intrinsic(f"tileflow_gather_rows_{path.name}", "rows, count, sources, shift, target, row", path, emit)


@functools.cache
def _leaf(path: cpu.Cpu, form: Form | None) -> Leaf:
    begin, end, run, finish = opener(), closer(), register_jitable(tiled.tile_run("f4")), finisher(form)
    gather, step = gather_rows(path), tiled.step_bytes("f4", path)

    @register_jitable
    def start(y, bias, at, row, first, rows, cols):                                                                         # type: ignore
        """A block of C is the bias."""
        for i in range(rows):
            to = y[at + i * row:at + i * row + cols]
            for j in range(cols):
                to[j] = bias[first + j]

    @register_jitable
    def gather_run(addresses, count, c, p, deep, target):                                                                   # type: ignore
        """Terms p .. p + deep of `count` pixels: channels of one tap or of several."""
        at = p
        while at < p + deep:
            terms = min(c - at % c, p + deep - at)
            gather(count, terms, addresses + (1 + at // c) * count * 8, at % c * 4, target + (at - p) * 4, GATHERED)
            at += terms

    def conv_tiles(x, panels, bias, y, sites, table, spare, scratch, total, c, oc, groups, taps, pixels, cols, panel, header, space,  # type: ignore
                   plain, biased, lo, hi, rest):
        down, across, tiles, k = (total + pixels - 1) // pixels, (oc + cols - 1) // cols, (oc + SIDE - 1) // SIDE, taps * c
        base = address_of(scratch)
        for i in range(c):
            spare[i] = 0
        begin(0)
        for unit in range(lo, hi):
            first, o, group = unit % down * pixels, unit // down % across * cols, unit // (down * across)
            count, width, row = min(pixels, total - first), min(cols, oc - o), groups * oc
            to = first * row + group * oc + o
            if plain == 0:
                fill_table(sites, 0, first, count, address_of(x) + group * c * 4, groups * c * 4, 0, 0, address_of(spare), 0, table, count)
            if biased != 0:
                start(y, bias, to, row, group * oc + o, count, width)
            from_b = address_of(panels) + (group * tiles + o // SIDE) * panel
            for p in range(0, k, DEPTH):
                deep, a, a_row = min(DEPTH, k - p), address_of(x) + ((first * groups + group) * c + p) * 4, groups * c * 4
                if plain == 0:
                    a, a_row = base + space, GATHERED
                    gather_run(address_of(table), count, c, p, deep, a)
                run(count, width, deep, a, a_row, 4, from_b + header + p // TERMS * step, from_b + 4 * (p // DEPTH), panel,
                    address_of(y) + to * 4, row * 4, int(p + biased > 0), base)
            finish(rest, count, width, address_of(y), to, row, group * oc + o)
        end(0)

    signature = "f4[:], f4[:], f4[:], f4[:], i8[:], i8[w,:], f4[w,:], f4[w,:]" + ", i8" * 12 + ", lo, hi"
    return Leaf(conv_tiles, signature + tail(form), key=f"{path} {name(form)}")


def forward(s: Sites, dtype: str, path: cpu.Cpu, biased: bool, epilogue: Epilogue | None = None, packed: bool = False) -> list[Call]:
    """As `last.forward`, for problems that `pays`."""
    return _products(s, path, biased, None if packed else forward_panels(s, dtype, path), epilogue)


def input_gradient(s: Sites, dtype: str, path: cpu.Cpu, packed: bool = False) -> list[Call]:
    """As `last.input_gradient`, for problems whose gradient `pays`."""
    return _products(s.gradient, path, False, None if packed else gradient_panels(s, dtype, path), None)


def forward_panels(s: Sites, dtype: str, path: cpu.Cpu) -> Panels:
    """How the weights of `s` are laid out for `forward`."""
    return _packing(s, path, (s.c * s.taps, s.taps))


def gradient_panels(s: Sites, dtype: str, path: cpu.Cpu) -> Panels:
    """How the weights of `s` are laid out for its input gradient."""
    return _packing(s.gradient, path, (s.taps, s.c * s.taps))


def _elements(s: Sites, path: cpu.Cpu) -> int:
    """Words of the weights in tiles."""
    return s.groups * -(-s.oc // SIDE) * tiled.panel_bytes("f4", path, s.c * s.taps) // 4


def _packing(s: Sites, path: cpu.Cpu, order: tuple[int, int]) -> Panels:
    """Weights in panels [tap, channel][32], as for vectors; each of them then is a matrix laid out in tiles."""
    plain, k, elements = weight_panels(s, "f4", path, order, SIDE), s.c * s.taps, _elements(s, path)
    matrices = s.groups * -(-s.oc // SIDE)
    ordered = Work("ordered", (plain.elements,), "f4")
    calls = plain.onto(ordered)
    calls.append(tiled.pack_call("f4", path, ordered, Out(0, (elements,)), SIDE, k, False, 0, SIDE, k * SIDE, matrices))
    return Panels(elements, tuple(calls))


def _products(s: Sites, path: cpu.Cpu, biased: bool, panels: Panels | None, epilogue: Epilogue | None) -> list[Call]:
    """The calls of a problem: of those of `panels` first, or with laid-out weights as input 1."""
    weights: Any = In(1, (_elements(s, path),)) if panels is None else panels.work("f4")
    k, plain = s.c * s.taps, straight(s)
    pixels, cols = tiled.blocks(s.phase_pixels, s.oc)
    space = -(-tiled.scratch_bytes("f4", path, pixels) // 64) * 64
    scratch = Work("block", (space // 4 + (0 if plain else pixels * GATHERED // 4),), "f4")
    args = (In(0, (s.n * s.pixels_in * s.groups * s.c,)), weights, In(2, (s.groups * s.oc,)) if biased else weights,
            Out(0, (s.phase_pixels * s.groups * s.oc,)), sites_work(), Work("table", ((1 + s.taps) * pixels,), "i8"),
            Work("spare", (s.c,), "f4"), scratch, s.phase_pixels, s.c, s.oc, s.groups, s.taps, pixels, cols,
            tiled.panel_bytes("f4", path, k), tiled.header_bytes(k), space, int(plain), int(biased), *(epilogue.args if epilogue else []))
    units = s.groups * -(-s.phase_pixels // pixels) * -(-s.oc // cols)
    cost = s.flops / tiled.FLOPS_PER_NS[tiled.products("f4", path)] + 0.1 * s.phase_pixels * s.groups * k + (epilogue.cost if epilogue else 0.0)
    before = [sites_call(s)] if panels is None else panels.inside("f4")
    return [*before, Call(_leaf(path, epilogue.form if epilogue else None), args, units, 1, cost)]
