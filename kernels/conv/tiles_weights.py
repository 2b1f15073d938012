"""The weight gradient of channels-last convolution by bfloat16 tiles: for each tap a product of the gathered image, turned, and dy.

dy is laid out in tiles once. A unit of range is a share of all pixels for some channels; for each run of pixels it gathers, tap by tap,
what meets them, and adds to its block of weights [tap][channel][filter]. A last call adds the shares in order and writes ONNX's order.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ..gemm import tiles as tiled
from ..gemm.tiles import DEPTH
from ..isa import cpu
from ..isa.amx import ROWS, SIDE, TERMS, closer, opener
from ..isa.vector import itemsize
from ..machine.call import Call, In, Out, Work
from ..machine.leaf import Leaf, Numbers, generic
from ..machine.places import address_of
from .gather import gather_rows
from .indirection import fill_table
from .panels import rounded_results
from .planar.correlate import add_shares
from .problem import UNITS, ConvProblem
from .tiles import NARROWEST, straight
from .weights import TOGETHER, sum_rows

CHANNELS = 64             # of a unit, at most


@dataclass(frozen=True)
class TileGradientSizes(Numbers):
    """Of a problem with `total` pixels; shares of them, channels of a unit; bytes of a panel of dy, of its header, and of the scratch before the
    gathered pixels; whether the image is read as it is."""

    total: int
    c: int
    oc: int
    groups: int
    taps: int
    shares: int
    channels: int
    panel: int
    header: int
    space: int
    plain: int
    biased: int


@dataclass(frozen=True)
class Turned(Numbers):
    """Of the shares of the weights: [share][group][tap][channel][filter]."""

    shares: int
    groups: int
    c: int
    oc: int
    taps: int


def serves(p: ConvProblem, dtype: str, path: cpu.Cpu) -> bool:
    """Whether the CPU has tiles and the weight gradient is large enough for them."""
    if not path.amx or dtype == "f8" or p.c < NARROWEST or p.depthwise:
        return False
    return tiled.pays(p.c * p.taps, p.oc, p.phase_pixels, tiled.products(dtype, path))


def cost(p: ConvProblem, dtype: str, path: cpu.Cpu) -> float:
    """Estimated nanoseconds on one core."""
    return p.flops / tiled.FLOPS_PER_NS[tiled.products(dtype, path)]


@functools.cache
def _leaf(dtype: str, path: cpu.Cpu) -> Leaf:
    begin, end, run, add_rows = opener(), closer(), tiled.tile_run(dtype), sum_rows(dtype, path)
    gather, step, size = gather_rows(dtype, path), tiled.step_bytes(dtype, path), itemsize(dtype)

    def conv_tiles_weights(x, g, packed, dw, db, indirection, table, spare, scratch, s, lo, hi):                           # type: ignore
        c, oc, groups, taps, shares, channels = s.c, s.oc, s.groups, s.taps, s.shares, s.channels
        parts, tiles, runs = (c + channels - 1) // channels, (oc + SIDE - 1) // SIDE, (s.total + DEPTH - 1) // DEPTH
        base = address_of(scratch)
        for i in range(c):
            spare[i] = 0
        begin(0)
        for unit in range(lo, hi):
            part, group, share = unit % parts, unit // parts % groups, unit // (parts * groups)
            k, from_b = part * channels, address_of(packed) + group * tiles * s.panel
            height = min(channels, c - k)
            for number in range(runs * share // shares, runs * (share + 1) // shares):
                first, adding = number * DEPTH, int(number > runs * share // shares)
                count = min(DEPTH, s.total - first)
                if s.plain == 0:
                    fill_table(indirection, 0, first, count, address_of(x) + group * c * size, groups * c * size, 0, 0, address_of(spare), 0,
                               table, count)
                if s.biased != 0 and part == 0:
                    add_rows(g, (first * groups + group) * oc, count, groups * oc, oc, db[(share * groups + group) * oc:], adding != 0, spare[c:])
                for tap in range(taps):
                    a, a_k = address_of(x) + ((first * groups + group) * c + k) * size, groups * c * size
                    if s.plain == 0:
                        a, a_k = base + s.space, channels * size + tiled.SKEW
                        gather(count, height, address_of(table) + (1 + tap) * count * 8, k * size, a, a_k)
                    to = address_of(dw) + (((share * groups + group) * taps + tap) * c + k) * oc * 4
                    run(height, oc, count, a, size, a_k, from_b + s.header + first // TERMS * step, from_b + 4 * number, s.panel,
                        to, oc * 4, adding, base)
        end(0)

    signature = f"{dtype}[:], {dtype}[:], f4[:], f4[:], f4[:], i8[:], i8[w,:], f4[w,:], f4[w,:], numbers, lo, hi"
    return Leaf(conv_tiles_weights, signature, key=str(path), numbers=TileGradientSizes)


@generic("T[:], T[:], numbers, lo, hi", numbers=Turned)
def conv_tiles_unturn(work, dw, s, lo, hi):                                                                                  # type: ignore
    """dw [group][filter][channel][tap] = the sum of work [share][group][tap][channel][filter] over the shares, in order.

    Range: groups * blocks of TOGETHER filters.
    """
    c, oc, taps = s.c, s.oc, s.taps
    blocks = (oc + TOGETHER - 1) // TOGETHER
    for unit in range(lo, hi):
        group, first = unit // blocks, unit % blocks * TOGETHER
        count = min(TOGETHER, oc - first)
        for k in range(c):
            for tap in range(taps):
                for share in range(s.shares):
                    at = (((share * s.groups + group) * taps + tap) * c + k) * oc + first
                    row, target = work[at:at + count], dw[((group * oc + first) * c + k) * taps + tap:]
                    if share == 0:
                        for o in range(count):
                            target[o * c * taps] = row[o]
                    else:
                        for o in range(count):
                            target[o * c * taps] += row[o]


def calls(p: ConvProblem, dtype: str, path: cpu.Cpu, *, biased: bool) -> list[Call]:
    """As `weights.calls`, for problems that it `serves`."""
    total, plain, biases = p.phase_pixels, straight(p), p.groups * p.oc
    channels = -(-p.c // (-(-p.c // CHANNELS) * ROWS)) * ROWS
    parts = -(-p.c // channels)
    shares = min(-(-total // DEPTH), max(1, -(-UNITS // (parts * p.groups))))
    words = tiled.panel_bytes(dtype, path, total) // 4
    packed = Work("panels", (p.groups * -(-p.oc // SIDE) * words,), "f4")
    dw = Work("weights", (shares * p.weights,), "f4")
    db: Any = dw if not biased else Work("bias", (shares * biases,), "f4") if shares > 1 else Out(1, (biases,))
    space = -(-tiled.scratch_bytes(dtype, path, channels) // 64) * 64
    scratch = Work("block", (space // 4 + (0 if plain else DEPTH * (channels * itemsize(dtype) + tiled.SKEW) // 4),), "f4")
    g = In(1, (total * biases,))
    args = (In(0, (p.elements_in,)), g, packed, dw, db, p.indirection, Work("table", ((1 + p.taps) * DEPTH,), "i8"),
            Work("spare", (p.c + 2 * p.oc,), "f4"), scratch,
            TileGradientSizes(total, p.c, p.oc, p.groups, p.taps, shares, channels, words * 4,
                              tiled.header_bytes(total), space, int(plain), int(biased)))
    estimate = cost(p, dtype, path) + 0.35 * total * p.groups * p.c * p.taps
    done = [tiled.pack_call(dtype, path, g, packed, p.oc, total, False, 0, biases, p.oc, p.groups),
            Call(_leaf(dtype, path), args, parts * p.groups * shares, 1, estimate),
            Call(conv_tiles_unturn["f4"], (dw, Out(0, (p.weights,)), Turned(shares, p.groups, p.c, p.oc, p.taps)), p.groups * -(-p.oc // TOGETHER), 1,
                 p.weights * shares * 0.5)]
    if biased and shares > 1:
        done.append(Call(add_shares["f4"], (Work("bias", (shares, biases), "f4"), Out(1, (biases,))), biases, 1024, shares * biases * 0.1))
    return rounded_results(done, dtype)
