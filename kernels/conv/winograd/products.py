"""Channels-last 3x3 convolution of stride 1 by Winograd's F(2x2, 3x3), and its input gradient.

A tile of 2 x 2 outputs takes 16 products per channel in place of 36 (Lavin and Gray, arXiv:1509.09308): Y = A^T [(G g G^T) * (B^T d B)] A.
Over the channels these products are 16 matrix products, one for each element of the transformed tile. Their sums are nine times
shorter than those of the direct way, so errors are no larger. An output depends on the pixels of its own window only, but
differences of infinities are NaN: outputs that are not finite are computed again, as they are defined.

A unit of range is some tiles times some panels of output channels: its pixels are transformed once, then meet the weights element by element.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass

from ...elementwise.epilogue import Epilogue, arguments, finisher
from ...gemm.micro import panels as panel_products
from ...gemm.micro import transpose
from ...isa import cpu
from ...isa.vector import itemsize
from ...machine.call import Call, In, Out, Work
from ...machine.called import CALLED
from ...machine.leaf import Leaf, Numbers
from ...machine.places import address_of
from ..brgemm import width
from ..indirection import AXIS, BASE, OUT, SIZE, fill_table
from ..panels import WeightPanels
from ..problem import ConvAxis, ConvProblem, speed
from .transforms import ELEMENTS, pixels_in, pixels_out, weights_in

TILES = 24                # tiles of a unit at least: fewer would read the weights too often
PIXELS = 400 * 1024       # bytes of the transformed pixels of a unit, about
DEPTH = 256               # channels whose weights, of one panel, stay in the first-level cache for all tiles
TOGETHER = 2048           # elements from which rows of pixels that follow one another are handed to the epilogue
UNITS = 4                 # units of range wanted at least
CHANNELS = 32             # channels on both sides from which the transformations cost little
REUSED, ANEW = 12, 96
"""Tiles from which the transformation of the weights pays: that of a forward pass, which mostly serves many runs, and that of a gradient."""
SPEED = 0.79              # of the products, as a part of a register kernel's
MOVE = 0.3                # nanoseconds an element of the transformed pixels and products
NEAR, FAR = 1 << 20, 12 << 20
"""Bytes of transformed weights that stay in a core's own cache, and in the one that cores share, from pass to pass."""
READ, AGAIN = 0.045, 0.01
"""Nanoseconds a byte to read weights that are not near, the first time and from the shared cache, asked for ahead: 0.13 and 0.035 without that.

One image of 512 channels, 7 x 7, weights from memory: 2.00 ms asked for ahead, 2.35 without, direct 3.25; in AVX2's vectors 2.38, 3.10, 3.87.
"""


@dataclass(frozen=True)
class WinogradWeightSizes(Numbers):
    """Of the call that transforms weights: filters, channels, elements between weights; `flip` reverses the taps."""

    oc: int
    c: int
    o_step: int
    c_step: int
    flip: int


@dataclass(frozen=True)
class WinogradSizes(Numbers):
    """All tiles, channels, filters; tiles and panels of a unit of range; elements between weights, and from tap to tap in pixels."""

    total: int
    c: int
    oc: int
    count: int
    part: int
    o_step: int
    c_step: int
    step: int
    biased: int


def serves(p: ConvProblem, dtype: str, path: cpu.Cpu) -> bool:
    """A 3x3 kernel of stride 1, and channels and tiles enough. The same for laid-out weights: so are the bits."""
    first, *others = p.axes
    plane = (first.size, first.out, first.taps, first.base) == (1, 1, 1, 0)
    served = plane and p.phases == p.groups == 1 and all((a.taps, a.in_step, abs(a.tap_step)) == (3, 1, 1) for a in others)
    return served and dtype == "f4" and path.fma and min(p.c, p.oc) >= CHANNELS and _tiles(p) >= (ANEW if p.turned else REUSED)


def cost(p: ConvProblem, dtype: str, path: cpu.Cpu) -> float:
    """Estimated nanoseconds on one core, with laid-out weights."""
    flops = 2.0 * ELEMENTS * _tiles(p) * p.c * p.oc
    moved = ELEMENTS * _tiles(p) * (p.c + p.oc)
    return flops / (SPEED * speed(dtype, path) * 1.9) + MOVE * moved + _reading(p, dtype, path)


def _reading(p: ConvProblem, dtype: str, path: cpu.Cpu) -> float:
    """Nanoseconds that weights take which are too many to stay near: they are read once for the tiles of each unit, and are 16/9 of the direct
    way's, so with many channels and few pixels that one is faster."""
    weights = ELEMENTS * p.c * p.oc * itemsize(dtype)
    passes = -(-_tiles(p) // _blocks(p, itemsize(dtype), path, 1)[0])
    if weights <= NEAR:
        return 0.0
    return weights * (READ + (passes - 1) * (AGAIN if weights <= FAR else READ))


def _tiles(p: ConvProblem) -> int:
    return p.n * -(-p.axes[1].out // 2) * -(-p.axes[2].out // 2)


def _of_tiles(p: ConvProblem) -> ConvProblem:
    """The 4 x 4 pixels that each tile reads, as a convolution of stride 2."""
    down, across = (ConvAxis(a.size, -(-a.out // 2), 4, 2, 1, a.base + min(0, 2 * a.tap_step)) for a in p.axes[1:])
    return ConvProblem(p.n, 1, p.c, p.oc, (ConvAxis(1, 1, 1), down, across))


@functools.cache
def _panels(dtype: str, path: cpu.Cpu) -> Leaf:
    size, wide = itemsize(dtype), width(dtype, path)
    turn, change = transpose(dtype), weights_in(dtype, path)

    def conv_winograd_panels(w, panels, block, s, lo, hi):                                                                  # type: ignore
        """Transformed weights [16][panel][c][wide], filled up with zeros; a unit of range is a panel.

        Weight (o, c, tap) lies at o * o_step + c * c_step + tap; `flip` reverses the taps.
        """
        oc, c, o_step, c_step = s.oc, s.c, s.o_step, s.c_step
        tiles = (oc + wide - 1) // wide
        deep = block.shape[0] // (9 * wide)
        for tile in range(lo, hi):
            o = tile * wide
            count = min(wide, oc - o)
            if count < wide:
                for i in range(block.shape[0]):
                    block[i] = 0
            for first in range(0, c, deep):
                last = min(first + deep, c)
                at = address_of(w) + (o * o_step + first * c_step) * size
                if c_step == 9:                                 # of one filter, channels and taps follow one another
                    turn(count, (last - first) * 9, at, o_step * size, address_of(block), wide * size)
                else:                                           # of one channel, filters and their taps do
                    for k in range(first, last):
                        turn(count, 9, at + (k - first) * c_step * size, o_step * size, address_of(block) + (k - first) * 9 * wide * size,
                             wide * size)
                change(last - first, address_of(block) + s.flip * 8 * wide * size, (1 - 2 * s.flip) * wide * size,
                       address_of(panels) + (tile * c + first) * wide * size, tiles * c * wide * size)

    return Leaf(conv_winograd_panels, "T[:], T[:], T[w,:], numbers, lo, hi".replace("T", dtype), key=path.name,
                numbers=WinogradWeightSizes)


def _again(x, w, bias, y, indirection, s, image, row, column, o, until):                                                    # type: ignore
    """The outputs o..until of a pixel, those that are not finite, as they are defined: one sum over taps and channels."""
    h, across, c = indirection[AXIS + SIZE], indirection[2 * AXIS + SIZE], s.c
    for k in range(o, until):
        to = ((image * indirection[AXIS + OUT] + row) * indirection[2 * AXIS + OUT] + column) * s.oc + k
        if y[to] - y[to] == 0:
            continue
        total = bias[k] if s.biased != 0 else y.dtype.type(0)
        for tap in range(9):
            at0 = row + indirection[AXIS + BASE] + tap // 3 * s.step
            at1 = column + indirection[2 * AXIS + BASE] + tap % 3 * s.step
            if at0 >= 0 and at0 < h and at1 >= 0 and at1 < across:
                source = ((image * h + at0) * across + at1) * c
                for i in range(c):
                    total += x[source + i] * w[k * s.o_step + i * s.c_step + tap]
        y[to] = total


@functools.cache
def _leaf(dtype: str, path: cpu.Cpu) -> Leaf:
    size, wide = itemsize(dtype), width(dtype, path)
    multiply, enter, leave, finish = panel_products(dtype), pixels_in(dtype, path), pixels_out(dtype, path), finisher()

    def conv_winograd(x, panels, w, bias, y, indirection, tiles, table, pixels, products, spare, flags,   # type: ignore
                      s, lo, hi, epilogue, rest):
        c, oc, count, part = s.c, s.oc, s.count, s.part
        high, wide_out, down, across = indirection[AXIS + OUT], indirection[2 * AXIS + OUT], tiles[AXIS + OUT], tiles[2 * AXIS + OUT]
        all_panels = (oc + wide - 1) // wide
        parts = (all_panels + part - 1) // part
        pitch = pixels.shape[0] // (16 * count)
        for i in range(c):
            spare[i] = 0
        zero, dump = address_of(spare), address_of(spare) + c * size
        for unit in range(lo, hi):
            first_panel, first = unit % parts * part, unit // parts * count
            some, panel_count = min(count, s.total - first), min(part, all_panels - first_panel)
            o, row = first_panel * wide, part * wide * size
            cols = min(panel_count * wide, oc - o)
            fill_table(tiles, 0, first, some, address_of(x), c * size, 0, 0, zero, dump, table, count)
            for t in range(some):
                enter(c, address_of(table) + (count + t) * 8, count * 8, address_of(pixels) + t * pitch * size, count * pitch * size)
            for element in range(16):
                for panel in range(panel_count):
                    for k in range(0, c, DEPTH):
                        multiply(some, wide, min(DEPTH, c - k), address_of(pixels) + (element * count * pitch + k) * size, pitch * size, size,
                                 address_of(panels) + ((element * all_panels + first_panel + panel) * c + k) * wide * size, wide * size,
                                 address_of(products) + element * count * row + panel * wide * size, row, k)
            done, waiting, begin = 0, 0, 0                      # pixels that wait for the epilogue, from `begin` on
            while done < some:                                  # tiles of one row of tiles at a time
                at = first + done
                column, line, image = at % across * 2, at // across % down * 2, at // (across * down)
                run = min(across - at % across, some - done)
                flags[0] = 0
                start = (image * high + line) * wide_out + column
                below = line + 1 < high
                for t in range(run):
                    to = address_of(y) + ((start + 2 * t) * oc + o) * size
                    right = column + 2 * t + 1 < wide_out
                    leave(cols, address_of(products) + (done + t) * row, count * row, address_of(bias) + o * size, s.biased, to,
                          to + oc * size if right else dump, to + wide_out * oc * size if below else dump,
                          to + (wide_out + 1) * oc * size if right and below else dump, address_of(flags))
                width_run = min(2 * run, wide_out - column)
                for i in range(1 + below):
                    if flags[0] != 0:
                        for j in range(width_run):
                            _again(x, w, bias, y, indirection, s, image, line + i, column + j, o, o + cols)
                    if begin + waiting != start + i * wide_out or waiting * cols >= TOGETHER:
                        finish(epilogue, rest, waiting, cols, address_of(y), begin * oc + o, oc, o)
                        begin, waiting = start + i * wide_out, 0
                    waiting += width_run
                done += run
            finish(epilogue, rest, waiting, cols, address_of(y), begin * oc + o, oc, o)

    signature = "T[:], T[:], T[:], T[:], T[:], i8[:], i8[:], i8[w,:], T[w,:], T[w,:], T[w,:], i8[w,:], numbers, lo, hi"
    return Leaf(conv_winograd, signature.replace("T", dtype) + CALLED, key=path.name, numbers=WinogradSizes)


def _blocks(p: ConvProblem, size: int, path: cpu.Cpu, panels: int) -> tuple[int, int]:
    """Tiles and panels of one unit. The tiles fill register blocks, but for the last unit's."""
    total, rows = _tiles(p), path.tile.rows
    blocks = -(-total // max(TILES, PIXELS // (ELEMENTS * _pitch(p) * size)))
    if blocks > 1:
        blocks = -(-blocks // UNITS) * UNITS if blocks > UNITS // 2 else 2
    count = min(total, -(-total // (blocks * rows)) * rows)
    part = -(-panels // min(panels, -(-UNITS // -(-total // count))))
    return count, part


def _pitch(p: ConvProblem) -> int:
    """Elements from one transformed pixel to the next: rows a power of two apart would share cache sets."""
    return -(-p.c // 16) * 16 + 16


def panels(p: ConvProblem, dtype: str, path: cpu.Cpu) -> WeightPanels:
    """How the weights are laid out: transformed."""
    wide = width(dtype, path)
    tiles = -(-p.oc // wide)
    elements = ELEMENTS * tiles * wide * p.c
    block = Work("block", (min(p.c, 16) * 9 * wide,), dtype)
    args = (In(0, (p.weights,)), Out(0, (elements,)), block, WinogradWeightSizes(p.oc, p.c, *p.order, int(p.turned)))
    return WeightPanels(elements, (Call(_panels(dtype, path), args, tiles, 1, elements * 0.35),))


def calls(p: ConvProblem, dtype: str, path: cpu.Cpu, *, biased: bool = False, epilogue: Epilogue | None = None,
          packed: int = 0) -> list[Call]:
    """y [n, h, w, oc] (output 0) from x [n, h, w, c] (input 0), weights (1) and a bias (2), where it `serves`.

    With `packed`, input 1 is what `panels` made of the weights and the weights themselves are that input.
    """
    size, wide, made = itemsize(dtype), width(dtype, path), panels(p, dtype, path)
    tiles = -(-p.oc // wide)
    count, part = _blocks(p, size, path, tiles)
    laid = In(1, (made.elements,)) if packed else made.work(dtype)
    args = (In(0, (p.elements_in,)), laid, In(packed or 1, (p.weights,)), In(2, (p.oc,)) if biased else laid, Out(0, (p.elements_out,)),
            p.indirection, _of_tiles(p).indirection, Work("table", (17 * count,), "i8"),
            Work("pixels", (ELEMENTS * count * _pitch(p),), dtype), Work("products", (ELEMENTS * count * part * wide,), dtype),
            Work("spare", (p.c + p.oc,), dtype), Work("flags", (1,), "i8"),
            WinogradSizes(_tiles(p), p.c, p.oc, count, part, *p.order, p.axes[1].tap_step, int(biased)),
            *arguments(epilogue))
    units = -(-_tiles(p) // count) * -(-tiles // part)
    estimate = cost(p, dtype, path) + (epilogue.cost if epilogue else 0.0)
    leaf = _leaf(dtype, path)
    return [*([] if packed else made.inside(dtype)), Call(leaf, args, units, 1, estimate)]
