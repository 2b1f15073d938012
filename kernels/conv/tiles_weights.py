"""The weight gradient of channels-last convolution by bfloat16 tiles: for each tap a product of the gathered image, turned, and dy.

dy is laid out in tiles once. A unit of range is a share of all pixels for some channels; for each run of pixels it gathers, tap by tap,
what meets them, and adds to its block of weights [tap][channel][filter]. A last call adds the shares in order and writes ONNX's order.
"""
from __future__ import annotations

import functools
from typing import Any

from ..gemm import tiles as tiled
from ..gemm.tiles import DEPTH
from ..isa import cpu
from ..isa.amx import ROWS, SIDE, TERMS, closer, opener
from ..isa.vector import itemsize
from ..machine.call import Call, In, Out, Work
from ..machine.inner import register_jitable
from ..machine.leaf import Leaf, generic
from ..machine.places import address_of
from .gather import gather_rows
from .indirection import Sites, fill_table, sites_call, sites_work
from .panels import rounded_results
from .planar.correlate import add_shares
from .planar.geometry import UNITS
from .tiles import NARROWEST, straight
from .weights import TOGETHER, sum_rows

CHANNELS = 64             # of a unit, at most


def pays(s: Sites, dtype: str, path: cpu.Cpu) -> bool:
    """Whether the weight gradient of `s` is served, and faster in tiles than in vectors."""
    if not path.amx or dtype == "f8" or s.c < NARROWEST:
        return False
    return tiled.pays(s.c * s.taps, s.oc, s.phase_pixels, tiled.products(dtype, path))


@functools.cache
def _leaf(dtype: str, path: cpu.Cpu) -> Leaf:
    begin, end, run, add_rows = opener(), closer(), register_jitable(tiled.tile_run(dtype)), sum_rows(dtype, path)
    gather, step, size = gather_rows(dtype, path), tiled.step_bytes(dtype, path), itemsize(dtype)

    def conv_tiles_weights(x, g, packed, dw, db, sites, table, spare, scratch, total, c, oc, groups, taps, shares, channels, panel, header,  # type: ignore
                           space, plain, biased, lo, hi):
        parts, tiles, runs = (c + channels - 1) // channels, (oc + SIDE - 1) // SIDE, (total + DEPTH - 1) // DEPTH
        base = address_of(scratch)
        for i in range(c):
            spare[i] = 0
        begin(0)
        for unit in range(lo, hi):
            part, group, share = unit % parts, unit // parts % groups, unit // (parts * groups)
            k, from_b = part * channels, address_of(packed) + group * tiles * panel
            height = min(channels, c - k)
            for number in range(runs * share // shares, runs * (share + 1) // shares):
                first, adding = number * DEPTH, int(number > runs * share // shares)
                count = min(DEPTH, total - first)
                if plain == 0:
                    fill_table(sites, 0, first, count, address_of(x) + group * c * size, groups * c * size, 0, 0, address_of(spare), 0, table, count)
                if biased != 0 and part == 0:
                    add_rows(g, (first * groups + group) * oc, count, groups * oc, oc, db[(share * groups + group) * oc:], adding != 0, spare[c:])
                for tap in range(taps):
                    a, a_k = address_of(x) + ((first * groups + group) * c + k) * size, groups * c * size
                    if plain == 0:
                        a, a_k = base + space, channels * size + tiled.SKEW
                        gather(count, height, address_of(table) + (1 + tap) * count * 8, k * size, a, a_k)
                    to = address_of(dw) + (((share * groups + group) * taps + tap) * c + k) * oc * 4
                    run(height, oc, count, a, size, a_k, from_b + header + first // TERMS * step, from_b + 4 * number, panel,
                        to, oc * 4, adding, base)
        end(0)

    signature = f"{dtype}[:], {dtype}[:], f4[:], f4[:], f4[:], i8[:], i8[w,:], f4[w,:], f4[w,:]" + ", i8" * 12 + ", lo, hi"
    return Leaf(conv_tiles_weights, signature, key=str(path))


@generic("T[:], T[:], i8, i8, i8, i8, i8, lo, hi")
def conv_tiles_unturn(work, dw, shares, groups, c, oc, taps, lo, hi):                                                        # type: ignore
    """dw [group][filter][channel][tap] = the sum of work [share][group][tap][channel][filter] over the shares, in order.

    Range: groups * blocks of TOGETHER filters.
    """
    blocks = (oc + TOGETHER - 1) // TOGETHER
    for unit in range(lo, hi):
        group, first = unit // blocks, unit % blocks * TOGETHER
        count = min(TOGETHER, oc - first)
        for k in range(c):
            for tap in range(taps):
                for share in range(shares):
                    at = (((share * groups + group) * taps + tap) * c + k) * oc + first
                    row, target = work[at:at + count], dw[((group * oc + first) * c + k) * taps + tap:]
                    if share == 0:
                        for o in range(count):
                            target[o * c * taps] = row[o]
                    else:
                        for o in range(count):
                            target[o * c * taps] += row[o]


def weight_gradient(s: Sites, dtype: str, path: cpu.Cpu, biased: bool) -> list[Call]:
    """As `last_weights.weight_gradient`, for problems that `pays`."""
    total, plain, biases = s.phase_pixels, straight(s), s.groups * s.oc
    channels = -(-s.c // (-(-s.c // CHANNELS) * ROWS)) * ROWS
    parts = -(-s.c // channels)
    shares = min(-(-total // DEPTH), max(1, -(-UNITS // (parts * s.groups))))
    weights = s.groups * s.oc * s.c * s.taps
    words = tiled.panel_bytes(dtype, path, total) // 4
    packed = Work("panels", (s.groups * -(-s.oc // SIDE) * words,), "f4")
    dw = Work("weights", (shares * weights,), "f4")
    db: Any = dw if not biased else Work("bias", (shares * biases,), "f4") if shares > 1 else Out(1, (biases,))
    space = -(-tiled.scratch_bytes(dtype, path, channels) // 64) * 64
    scratch = Work("block", (space // 4 + (0 if plain else DEPTH * (channels * itemsize(dtype) + tiled.SKEW) // 4),), "f4")
    g = In(1, (total * biases,))
    args = (In(0, (s.n * s.pixels_in * s.groups * s.c,)), g, packed, dw, db, sites_work(), Work("table", ((1 + s.taps) * DEPTH,), "i8"),
            Work("spare", (s.c + 2 * s.oc,), "f4"), scratch, total, s.c, s.oc, s.groups, s.taps, shares, channels, words * 4,
            tiled.header_bytes(total), space, int(plain), int(biased))
    cost = s.flops / tiled.FLOPS_PER_NS[tiled.products(dtype, path)] + 0.35 * total * s.groups * s.c * s.taps
    calls = [sites_call(s), tiled.pack_call(dtype, path, g, packed, s.oc, total, False, 0, biases, s.oc, s.groups),
             Call(_leaf(dtype, path), args, parts * s.groups * shares, 1, cost),
             Call(conv_tiles_unturn["f4"], (dw, Out(0, (weights,)), shares, s.groups, s.c, s.oc, s.taps), s.groups * -(-s.oc // TOGETHER), 1,
                  weights * shares * 0.5)]
    if biased and shares > 1:
        calls.append(Call(add_shares["f4"], (Work("bias", (shares, biases), "f4"), Out(1, (biases,))), biases, 1024, shares * biases * 0.1))
    return rounded_results(calls, dtype)
