"""The weight gradient of channels-last convolution: output gradients times the image, summed over pixels.

The register block is filters x channels: filters are broadcast from a packed copy of dy, channels are vectors of the image, read where it
lies through the table of addresses. A unit of range is a share of all pixels for some channels; it goes through them in blocks and adds
up its own blocks of weights [channel panel][tap][filter][channel]; few channels share a panel with those of the next
tap. Meanwhile it asks for what the next block reads. A last call adds the shares in order and writes ONNX's order.

16-bit numbers are widened on the way; where the CPU multiplies pairs of bfloat16, two pixels are a word instead
(gemm/pairs.py).
"""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ..gemm.micro import LINE, copy, transpose
from ..gemm.pairs import LANES, weave
from ..isa import cpu
from ..isa.half import HALVES, summed, widen_rows
from ..isa.vector import itemsize
from ..machine.call import Call, In, Out, Work
from ..machine.leaf import Leaf, Numbers
from ..machine.places import address_of
from .brgemm import Block, over_pixels
from .direct import filled
from .gather import gather_channels, gather_columns
from .indirection import fill_table
from .panels import rounded_results
from .planar.correlate import add_shares
from .problem import UNITS, ConvProblem, speed

PIXELS = 256              # pixels that are summed in registers at a time, about
FILTERS = 192 * 1024      # bytes of a packed block of dy, about
ROWS, MORE = 144, 400     # products (taps times channels) for which a unit packs dy at least; MORE of many pixels
MANY = 3                  # pixels to each of all products, from which on they are many
RATE = 1.35               # speed as a part of `speed`: ResNet's shapes on one AVX2 core
NEAR = 1024               # bytes of a pixel that is read where it lies, at most
BESIDE = 0.16             # what a register block of filters takes beside them, in filters
TOGETHER = 16             # filters that are written together


@dataclass(frozen=True)
class GradientSizes(Numbers):
    """Of a problem, and how the sums over pixels are cut: shares of blocks of pixels, channels of a unit, taps of a
    panel."""

    c: int
    oc: int
    groups: int
    taps: int
    shares: int
    blocks: int
    pixels: int
    channels: int
    shared: int
    biased: int


@dataclass(frozen=True)
class Panelled(Numbers):
    """Of the shares of the weights: [share][group][panel of `wide` channels][taps that are `shared`][filter][tap of
    them][channel]."""

    shares: int
    groups: int
    c: int
    oc: int
    taps: int
    filters: int
    wide: int
    shared: int


@functools.cache
def sum_rows(dtype: str, path: cpu.Cpu) -> Any:
    """The function `sum_rows(g, at, pixels, step, oc, total, accumulate, block)`: total[o] (+)= the sum of `pixels` rows of g, each of `oc`
    elements, `step` apart, from g[at] on; through 2 * oc elements `block`. 16-bit numbers are summed as float32."""
    size, as_float = itemsize(dtype), widen_rows(dtype) if dtype in HALVES else None

    def as_it_lies(g, at, oc, _block):                                                                                      # type: ignore
        return g[at:at + oc]

    def widened(g, at, oc, block):                                                                                          # type: ignore
        as_float(1, oc, address_of(g) + at * size, 0, address_of(block) + oc * 4, 0)
        return block[oc:2 * oc]

    row_of = as_it_lies if as_float is None else widened

    def sum_rows(g, at, pixels, step, oc, total, accumulate, block):                                                        # type: ignore
        for o in range(oc):
            block[o] = 0
        for p in range(pixels):
            row = row_of(g, at + p * step, oc, block)
            for o in range(oc):
                block[o] += row[o]
        for o in range(oc):
            total[o] = total[o] + block[o] if accumulate else block[o]
    return sum_rows


def in_pairs(dtype: str, path: cpu.Cpu) -> bool:
    """Whether pixels are multiplied two at a time."""
    return dtype == "b2" and path.pairs


def _packer(dtype: str, path: cpu.Cpu, rows: int) -> Any:
    """The function `pack(g, at, pixels, step, oc, packed)`: filters [set of `rows`][pixel][filter], the last set filled
    up with zeros."""
    given, size, gather = itemsize(dtype), itemsize(summed(dtype)), gather_columns(dtype, path, rows)
    convert = widen_rows(dtype) if dtype in HALVES else copy(dtype)

    def pack(g, at, pixels, step, oc, packed):                                                                              # type: ignore
        whole = oc // rows * rows
        for o in range(0, whole, rows):
            gather(pixels, address_of(g) + (at + o) * given, step * given, address_of(packed) + o * pixels * size)
        if whole < oc:
            convert(pixels, oc - whole, address_of(g) + (at + whole) * given, step * given, address_of(packed) + whole * pixels * size, rows * size)
            for p in range(pixels):
                packed[whole * pixels + p * rows + oc - whole:whole * pixels + (p + 1) * rows] = 0

    return pack


def _pair_packer(path: cpu.Cpu, rows: int) -> Any:
    """Likewise of bfloat16 in words of two pixels. Each row of words is written with zeros up to LANES of them: those
    of the next follow."""
    woven = weave(path)

    def pack(g, at, pixels, step, oc, packed):                                                                              # type: ignore
        for o in range(0, oc, rows):
            woven(pixels, min(rows, oc - o), address_of(g) + (at + o) * 2, step * 2,
                  address_of(packed) + o * ((pixels + 1) // 2) * 4, rows * 4)

    return pack


@functools.cache
def _leaf(dtype: str, path: cpu.Cpu, of: _Block) -> Leaf:
    rows, vectors, lies = of.rows, of.vectors, of.lies
    given, made, pairs = itemsize(dtype), summed(dtype), in_pairs(dtype, path)
    size, add_rows, grain = itemsize(made), sum_rows(dtype, path), 2 if pairs else 1
    wide = of.wide(dtype, path)
    multiply = over_pixels(dtype if pairs else made, path, rows, vectors, lies)
    pack = _pair_packer(path, rows) if pairs else _packer(dtype, path, rows)
    spread = gather_channels(dtype, path, pairs)

    def conv_weights(x, g, dw, db, indirection, table, packed, strip, spare, s, lo, hi):                                    # type: ignore
        c, oc, groups, taps, shares, pixels = s.c, s.oc, s.groups, s.taps, s.shares, s.pixels
        parts, filters = (c + s.channels - 1) // s.channels, (oc + rows - 1) // rows * rows
        panels, sets, total = (c + wide - 1) // wide, (taps + s.shared - 1) // s.shared, g.shape[0] // (groups * oc)
        zero, row = address_of(spare), oc * given if groups == 1 else 0               # else most is of other groups
        whole = x.shape[0] * given if groups == 1 and parts <= 2 else 0             # likewise of other channels
        for i in range(c):
            spare[i] = 0
        for unit in range(lo, hi):
            part, group, share = unit % parts, unit // parts % groups, unit // (parts * groups)
            for block in range(s.blocks * share // shares, s.blocks * (share + 1) // shares):
                first, accumulate = block * pixels, block > s.blocks * share // shares
                count = min(pixels, total - first)
                terms = (count + grain - 1) // grain
                pitch = terms * grain
                fill_table(indirection, 0, first, count, address_of(x) + group * c * given, groups * c * given, 0, 0,
                           zero, 0, table, pitch)
                at = first * groups * oc + group * oc
                after = min(total, first + 2 * pixels)                            # the block that comes next
                lines, lines_g = address_of(x) + whole * (first + count) // total, address_of(g) + (first + count) * row
                end, end_g = address_of(x) + whole * after // total, address_of(g) + after * row
                pack(g, at, count, groups * oc, oc, packed)
                if s.biased != 0 and part == 0:
                    add_rows(g, at, count, groups * oc, oc, db[(share * groups + group) * oc:], accumulate, spare[c:])
                for k in range(part * s.channels, min((part + 1) * s.channels, c), wide):
                    panel = ((share * groups + group) * panels + k // wide) * sets
                    for number in range(sets):
                        to = address_of(dw) + (panel + number) * filters * wide * size
                        for i in range(0 if lies else min(s.shared, taps - number * s.shared)):
                            tap = number * s.shared + i
                            spread(c - k, terms, address_of(table) + (1 + tap) * pitch * 8, k * given,
                                   address_of(strip) + wide // s.shared * i * size, s.shared - 1)
                        for o in range(0, filters, rows):
                            ahead = address_of(packed)
                            if lines_g < end_g:
                                ahead, lines_g = lines_g, lines_g + terms * LINE
                            elif lines < end:
                                ahead, lines = lines, lines + terms * LINE
                            at_b = address_of(table) + (1 + number) * pitch * 8 if lies else address_of(strip)
                            multiply(terms, address_of(packed) + o * terms * size, at_b, k * given,
                                     to + o * wide * size, accumulate, ahead)

    signature = f"{dtype}[:], {dtype}[:], T[:], T[:], i8[:], i8[w,:], T[w,:], T[w,:], T[w,:], numbers, lo, hi"
    return Leaf(conv_weights, signature.replace("T", made), key=f"{path.name} {rows} {vectors} {pairs} {lies}",
                numbers=GradientSizes)


@functools.cache
def _unpanel(dtype: str, path: cpu.Cpu) -> Leaf:
    size, turn = itemsize(dtype), transpose(dtype)

    def conv_unpanel(work, dw, block, s, lo, hi):  # type: ignore
        """dw [group, filter][c][tap] = the sum over shares of work, as `Panelled` says.

        A unit of range is TOGETHER filters of one group; `filters` counts those of `work`.
        """
        c, oc, taps, filters, wide = s.c, s.oc, s.taps, s.filters, s.wide
        panels, sets = (c + wide - 1) // wide, (oc + TOGETHER - 1) // TOGETHER
        joined = (taps + s.shared - 1) // s.shared
        for unit in range(lo, hi):
            group, first = unit // sets, unit % sets * TOGETHER
            for o in range(first, min(first + TOGETHER, oc)):
                for panel in range(panels):
                    k, count = panel * wide, min(wide, c - panel * wide)
                    for tap in range(taps):
                        total = block[tap * wide:tap * wide + count]
                        for share in range(s.shares):
                            at = (((share * s.groups + group) * panels + panel) * joined + tap // s.shared) * filters
                            at = (at + o) * wide + tap % s.shared * (wide // s.shared)
                            row = work[at:at + count]
                            if share == 0:
                                for i in range(count):
                                    total[i] = row[i]
                            else:
                                for i in range(count):
                                    total[i] += row[i]
                    turn(taps, count, address_of(block), wide * size,
                         address_of(dw) + ((group * oc + o) * c + k) * taps * size, taps * size)

    return Leaf(conv_unpanel, "T[:], T[:], T[w,:], numbers, lo, hi".replace("T", dtype), key=path.name,
                numbers=Panelled)


def serves(p: ConvProblem, dtype: str, path: cpu.Cpu) -> bool:
    """Every channels-last problem."""
    return True


def cost(p: ConvProblem, dtype: str, path: cpu.Cpu) -> float:
    """Estimated nanoseconds on one core, from measured rates."""
    wide = _block(p, dtype, path).wide(dtype, path)
    rate = speed(dtype if in_pairs(dtype, path) else summed(dtype), path)
    return p.flops / (rate * RATE * filled(p.c, p.oc, wide, wide))


@dataclass(frozen=True)
class _Block(Block):
    """Of filters by channels. lies: channels are read where they lie."""

    lies: bool


def _block(p: ConvProblem, dtype: str, path: cpu.Cpu) -> _Block:
    """Channels are read where they lie if they are whole vectors of pixels so short that those of a block are near.

    Rows are as many as the registers hold, or two thirds of that where fewer then are of no filter; of pairs, with sums
    enough for the latency of an instruction.
    """
    size, whole = itemsize(summed(dtype)), path.tile.vectors
    lanes = path.lanes(size)
    lies = dtype == summed(dtype) and p.c % lanes == 0 and p.c * size <= NEAR
    vectors = 1 if lies and p.c % (whole * lanes) else whole
    most = path.tile.rows * whole // vectors
    rows = min((most, most * 2 // 3), key=lambda rows: -(-p.oc // rows) * (rows + BESIDE))
    return _Block(LANES // whole if in_pairs(dtype, path) else rows, vectors, lies)


def _channels(p: ConvProblem, wide: int) -> int:
    """Channels of a unit, whole panels of `wide` each: the more, the seldomer dy is packed, and the more shares of the
    weights there are to be summed, which counts where pixels are few beside weights of a filter."""
    panels = -(-p.c // wide)
    rows = MORE if p.n * p.pixels_out >= MANY * p.c * p.taps else ROWS
    return max(-(-panels // UNITS), min(panels, -(-rows // (p.taps * wide)))) * wide


def _cut(p: ConvProblem, dtype: str, path: cpu.Cpu) -> tuple[int, int, int]:
    """In how many blocks pixels are summed, of how many shares the sums are, and pixels of a block: bits follow from
    these."""
    of, made, total = _block(p, dtype, path), summed(dtype), p.n * p.pixels_out
    grain = 2 if in_pairs(dtype, path) else 1
    filters, parts = -(-p.oc // of.rows) * of.rows, -(-p.c // _channels(p, of.wide(dtype, path)))
    blocks = -(-total // max(64, min(PIXELS, FILTERS // (filters * itemsize(made)))))
    pixels = -(-total // (blocks * grain)) * grain
    blocks = blocks if grain == 1 else -(-total // pixels)
    return blocks, min(blocks, max(1, -(-UNITS // (parts * p.groups)))), pixels


def calls(p: ConvProblem, dtype: str, path: cpu.Cpu, *, biased: bool) -> list[Call]:
    """dw [groups * oc, c, *taps] (output 0) and, when `biased`, db (1) of the convolution `p` from x (input 0) and dy (1)."""
    made, of = summed(dtype), _block(p, dtype, path)
    wide, rows = of.wide(dtype, path), of.rows
    filters, panels, total = -(-p.oc // rows) * rows, -(-p.c // wide), p.n * p.pixels_out
    blocks, shares, pixels = _cut(p, dtype, path.yardstick)
    channels = _channels(p, wide)
    parts = -(-p.c // channels)
    shared = of.vectors if p.c * of.vectors <= wide else 1
    block = p.groups * panels * -(-p.taps // shared) * filters * wide
    biases = p.groups * p.oc
    dw = Work("weights", (shares * block,), made)
    db: Any = dw if not biased else Work("bias", (shares * biases,), made) if shares > 1 else Out(1, (biases,))
    args = (In(0, (p.elements_in,)), In(1, (total * biases,)), dw, db, p.indirection,
            Work("table", ((1 + p.taps) * pixels,), "i8"), Work("packed", (filters * pixels + LANES,), made),
            Work("strip", (1 if of.lies else wide * pixels,), made), Work("spare", (p.c + 2 * p.oc,), made),
            GradientSizes(p.c, p.oc, p.groups, p.taps, shares, blocks, pixels, channels, shared, int(biased)))
    last = (dw, Out(0, (p.weights,)), Work("turned", (p.taps * wide,), made),
            Panelled(shares, p.groups, p.c, p.oc, p.taps, filters, wide, shared))
    leaf = _leaf(dtype, path, of)
    done = [Call(leaf, args, parts * p.groups * shares, 1, p.flops / speed(made, path)),
            Call(_unpanel(made, path), last, p.groups * -(-p.oc // TOGETHER), 1, p.weights * shares * 0.5)]
    if biased and shares > 1:
        done.append(Call(add_shares[made], (Work("bias", (shares, biases), made), Out(1, (biases,))), biases, 1024, shares * biases * 0.1))
    return rounded_results(done, dtype)
