"""Convolutions of 8-bit integers with their zero points over planes (NCHW), as leaf calls: exact int32 sums, whatever the CPU path.

    y[n, o] = sum over channels and taps of (x[n, c] - zx) (w[o, c] - zw[o]); beyond the borders x is zx

The images are laid out once in planes of 32-bit groups with their frame of zero points: four bytes (two words, see `dots`) of neighbouring channels
of a pixel, or, where a group of the convolution has one channel, of the pixels that neighbouring taps of a row meet. Strides are taken apart: a
plane for each remainder. Then what a tap meets along a strip of pixels is a strip of one plane, which the products read there. A strip goes on over
the ends of rows, and the sums in between (as many as a frame is wider than the result) are thrown away.
"""
from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace

import numpy as np

from ..elementwise.epilogue import Epilogue
from ..gemm.problem import Panels, flat
from ..isa import cpu
from ..machine.call import Call, Const, In, Out, Work
from ..machine.called import CALLED
from ..machine.leaf import Leaf, Numbers
from ..machine.places import address_of
from .dots import Way, way_of
from .finish import arguments, finisher
from .frames import Framing, frame_leaf, framed
from .product import SIGNED
from .strips import strip

NEAR, ROWS = 5 << 10, 32
"""Groups of images that a unit of work reads, for the first-level cache, and its output channels, at most."""


@dataclass(frozen=True)
class ByteConvAxis:
    """A spatial axis: elements, results, taps, and how windows move."""

    size: int
    out: int
    taps: int
    stride: int = 1
    dilation: int = 1
    begin: int = 0


@dataclass(frozen=True)
class ByteConvProblem:
    """n images of group * per channels, group * each output channels, two axes."""

    n: int
    group: int
    per: int
    each: int
    y: ByteConvAxis
    x: ByteConvAxis

    @property
    def pixels(self) -> int:
        """Of a plane of the result."""
        return self.y.out * self.x.out


def simplify(p: ByteConvProblem) -> ByteConvProblem:
    """Where taps meet each pixel alone, an image is one row."""
    if all(a.taps == a.stride == 1 and a.begin == 0 and a.out == a.size for a in (p.y, p.x)):
        return replace(p, y=ByteConvAxis(1, 1, 1), x=ByteConvAxis(p.pixels, p.pixels, 1))
    return p


@dataclass(frozen=True)
class Layout:
    """Where things lie, on one CPU path.

    along: "channels" or "taps", of which a group holds neighbours. planes: (first row, first column) of each plane of a set, in the frame.
    rows, columns: of a plane. steps: for each step of the sums, where its groups begin in a set of planes, in groups. where: for each step and
    element of a group the place of the weight among those of an output channel, or -1. height, vectors: of the register block.
    """

    along: str
    sets: int                      # of planes, for a group of the convolution
    planes: tuple[tuple[int, int], ...]
    rows: int
    columns: int
    steps: tuple[int, ...]
    where: tuple[int, ...]
    height: int
    vectors: int

    set: int                       # groups from a set to the next


@functools.lru_cache(256)
def layout(p: ByteConvProblem, way: Way) -> Layout:
    """The layout of a problem."""
    y, x, taps = p.y, p.x, range(p.x.taps)
    offsets = [t * y.dilation for t in range(y.taps)], [t * x.dilation for t in taps]
    ys = sorted({at % y.stride for at in offsets[0]})
    along = "channels" if p.per > 1 else "taps"
    rows = y.out + offsets[0][-1] // y.stride
    if along == "channels":
        sets, xs = -(-p.per // way.group), sorted({at % x.stride for at in offsets[1]})
        columns = x.out + offsets[1][-1] // x.stride
        met = [(s, ty, tx, offsets[0][ty], offsets[1][tx] % x.stride, offsets[1][tx] // x.stride)
               for s in range(sets) for ty in range(y.taps) for tx in taps]
        elements = [[(way.group * s + j) * y.taps * x.taps + ty * x.taps + tx if way.group * s + j < p.per else -1 for j in range(way.group)]
                    for s, ty, tx, *_ in met]
    else:
        sets, xs = 1, [offsets[1][t] for t in range(0, p.x.taps, way.group)]
        columns = x.out
        met = [(0, ty, tx, offsets[0][ty], offsets[1][tx], 0) for ty in range(y.taps) for tx in range(0, p.x.taps, way.group)]
        elements = [[ty * x.taps + tx + j if tx + j < p.x.taps else -1 for j in range(way.group)] for _, ty, tx, *_ in met]
    planes = tuple(itertools.product(ys, xs))
    every = (-(-len(planes) * rows * columns // way.lanes) + 1) * way.lanes                 # a vector may be written beyond the last plane
    steps = tuple(s * every + (planes.index((row % y.stride, first)) * rows + row // y.stride) * columns + further
                  for s, _, _, row, first, further in met)
    return Layout(along, sets, planes, rows, columns, steps, tuple(itertools.chain(*elements)), *_block(p, way, columns), every)


def _block(p: ByteConvProblem, way: Way, columns: int) -> tuple[int, int]:
    """Rows and vectors of the register block: as little as possible is computed for nothing; of equals the one that loads least."""
    sums = way.path.tile.rows * way.path.tile.vectors
    pixels = (p.y.out - 1) * columns + p.x.out

    def cost(rows: int, vectors: int) -> float:
        width = vectors * way.lanes
        return -(-p.each // rows) * -(-pixels // width) * (rows * vectors + 0.5 * (rows + 2 * vectors))

    return min(((rows, vectors) for rows in (8, 6, 4, 2, 1) for vectors in (6, 4, 3, 2, 1) if rows * vectors <= sums), key=lambda b: cost(*b))


# ---- weights

@dataclass(frozen=True)
class Weighing(Numbers):
    """What the leaf that lays weights out reads. Its range: blocks of output channels, then one of ones."""

    group: int
    each: int
    size: int                     # weights of an output channel
    steps: int


@functools.cache
def _weights_leaf(way: Way, signed: bool, height: int) -> Leaf:
    """[block][step][row], and after each block the sums of its rows."""
    group, shift = way.group, 32 // way.group
    flip, less, mask = (np.int32(n) for n in (*way.left(signed), 0xFF if way.group == 4 else 0xFFFF))

    def lay_weights(w, where, to, s, lo, hi):  # type: ignore[no-untyped-def]
        blocks = (s.each + height - 1) // height
        for unit in range(lo, hi):
            ones, at = unit == s.group * blocks, unit * (s.steps + 1) * height
            rows = 1 if ones else height
            sums = to[at + s.steps * rows:at + (s.steps + 1) * rows]
            for i in range(rows):
                sums[i] = 0
            first = unit // blocks * s.each + unit % blocks * height
            here = 1 if ones else min(height, s.each - unit % blocks * height)
            for q in range(s.steps):
                for i in range(rows):
                    made = np.int32(0)
                    for j in range(group if i < here else 0):
                        place = where[q * group + j]
                        if place >= 0:
                            value = np.int32(1) if ones else np.int32((np.int32(w[(first + i) * s.size + place]) ^ flip) - less)
                            made |= np.int32((value & mask) << np.int32(shift * j))
                            sums[i] += value
                    to[at + q * rows + i] = made
    return Leaf(lay_weights, "u1[:], i8[:], i4[:], numbers, lo, hi", key=f"{way.name}-{signed}-{height}", numbers=Weighing)


def _lay(p: ByteConvProblem, way: Way, code: str, w: In, to: Out | Work) -> Call:
    lies = layout(p, way)
    size, steps = p.per * p.y.taps * p.x.taps, len(lies.steps)
    units = p.group * -(-p.each // lies.height) + 1
    args = (flat(w), Const.of(lies.where), to, Weighing(p.group, p.each, size, steps))
    return Call(_weights_leaf(way, SIGNED[code], lies.height), args, n=units, cost=20.0 + 2.0 * p.group * p.each * size)


def _words(p: ByteConvProblem, way: Way) -> int:
    """Of laid-out weights."""
    lies = layout(p, way)
    return (p.group * -(-p.each // lies.height) * lies.height + 1) * (len(lies.steps) + 1)


def panels(code: str, p: ByteConvProblem) -> Panels:
    """How weights are laid out for `calls(..., packed=True)` on the current CPU path."""
    p, way = simplify(p), way_of(cpu.current())
    words = _words(p, way)
    return Panels(words, "i4", (_lay(p, way, code, In(0, (p.group * p.each * p.per * p.y.taps * p.x.taps,)), Out(0, (words,))),))


# ---- the convolution

@dataclass(frozen=True)
class ByteConvSizes(Numbers):
    """What the leaf of a convolution reads. Its range: units of `part` output channels and `strip` pixels, strips first, then channels, groups and
    images. `zeros`: 0 for one zero point of the weights, 1 for one for each output channel."""

    group: int
    each: int
    rows: int                     # of the result
    columns: int
    pitch: int                    # groups from a row of a plane to the next
    planes: int                   # groups of a group's planes
    steps: int
    count: int                    # products of a sum
    part: int
    strip: int
    zeros: int


@functools.cache
def _conv_leaf(way: Way, x_signed: bool, w_signed: bool, height: int, vectors: int) -> Leaf:
    multiply, one, finish = strip(way, height, vectors), strip(way, 1, vectors), finisher()
    x_moved, w_moved = 128 * x_signed - way.right(x_signed)[1], 128 * w_signed - way.left(w_signed)[1]
    width = vectors * way.lanes

    def integer_conv(x, w, steps, zx, zw, c, terms, block, s, lo, hi, epilogue, rest):  # type: ignore[no-untyped-def]
        flat_pixels = (s.rows - 1) * s.pitch + s.columns
        strips, parts, blocks = (flat_pixels + s.strip - 1) // s.strip, (s.each + s.part - 1) // s.part, (s.each + height - 1) // height
        zero, room = np.int32(zx[0] + x_moved), (s.steps + 1) * height
        for unit in range(lo, hi):
            first, low = unit % strips * s.strip, unit // strips % parts * s.part
            image = unit // (strips * parts)
            group = image % s.group
            pixels, channels = min(s.strip, flat_pixels - first), min(s.part, s.each - low)
            wide = (pixels + width - 1) // width
            source = address_of(x) + 4 * (image * s.planes + first)
            for r in range(0, channels, height):
                at = (group * blocks + (low + r) // height) * room
                for i in range(height):
                    terms[i] = np.int32(-zero * w[at + s.steps * height + i])
                multiply(wide, s.steps, address_of(steps), source, address_of(w) + 4 * at, address_of(terms), address_of(block) + 4 * r * s.strip,
                         4 * s.strip)
            moved = False
            for i in range(channels):
                moved |= zw[(group * s.each + low + i) * s.zeros] + w_moved != 0
            if moved:                                           # sums of the elements themselves, which zero points of weights are times
                sums = block[s.part * s.strip:(s.part + 1) * s.strip]
                terms[0] = np.int32(-s.count * zero)
                ones = address_of(w) + 4 * s.group * blocks * room
                one(wide, s.steps, address_of(steps), source, ones, address_of(terms), address_of(sums), 4 * s.strip)
                for i in range(channels):
                    point, own = np.int32(zw[(group * s.each + low + i) * s.zeros] + w_moved), block[i * s.strip:(i + 1) * s.strip]
                    for j in range(pixels):
                        own[j] -= np.int32(point * sums[j])
            channel = group * s.each + low
            to = (image // s.group * s.group * s.each + channel) * s.rows * s.columns
            at, stop = first, first + pixels
            while at < stop:                                    # whole rows of pixels together, cut ones alone
                y, column = at // s.pitch, at % s.pitch
                lines = max(1, (stop - at + s.pitch - s.columns) // s.pitch) if column == 0 else 1
                cols, place, found = min(s.columns - column, stop - at), to + y * s.columns + column, at - first
                if epilogue == 0:
                    for k in range(lines * channels):
                        i, line = k // lines, k % lines
                        target, source = place + (i * s.rows + line) * s.columns, i * s.strip + found + line * s.pitch
                        for j in range(cols):
                            c[target + j] = block[source + j]
                finish(epilogue, rest, lines, channels, cols, address_of(block) + 4 * found, s.pitch, s.strip, place,
                       s.columns, s.rows * s.columns, channel)
                at = (y + lines) * s.pitch
    signature = "i4[:], i4[:], i8[:], i4[:], i4[:], i4[:], i4[w,:], i4[w,:], numbers, lo, hi" + CALLED
    return Leaf(integer_conv, signature, key=f"{way.name}-{x_signed}-{w_signed}-{height}x{vectors}",
                numbers=ByteConvSizes)


def calls(codes: tuple[str, str], p: ByteConvProblem, x: In, w: In, zx: In | None, zw: In | None, c: Out, *,
          packed: bool = False, epilogue: Epilogue | None = None) -> list[Call]:
    """The calls of a convolution.

    Args:
        codes: "i1" or "u1" of images and of weights.
        zx, zw: int32, one zero point, or one for each output channel; None: 0.
        packed: w is what the calls of `panels` made.
        epilogue: what is done to the sums (variable 0, int32), whose channels are rows; its first expression may have any type.
    """
    way = way_of(cpu.current())
    if p.n * p.group * p.each * p.pixels == 0:
        return []
    p = simplify(p)
    lies, made, zero = layout(p, way), [], Const.of([0], "i4")
    weights: In | Work = flat(w)
    if not packed:
        weights = Work("weights", (_words(p, way),), "i4")
        made.append(_lay(p, way, codes[1], w, weights))
    width, sets = lies.vectors * way.lanes, p.n * p.group * lies.sets
    images = Work("planes", (sets * lies.set + width,), "i4")
    framing = _framing(p, way, lies)
    made.append(Call(frame_leaf(way, SIGNED[codes[0]], p.x.stride),
                     (flat(x), flat(zx) if zx else zero, Const.of(list(itertools.chain(*lies.planes))), images,
                      Work("frame", (framed(way, p.x.stride, framing),), "u1"), framing), n=sets, cost=0.1 * sets * lies.set + 30.0 * sets))
    rows, columns = (1, p.pixels) if lies.columns == p.x.out else (p.y.out, p.x.out)
    pitch = p.pixels if rows == 1 else lies.columns
    flat_pixels = (rows - 1) * pitch + columns
    wide, part = _unit(p, lies, flat_pixels, width)
    sizes = ByteConvSizes(p.group, p.each, rows, columns, pitch, lies.sets * lies.set, len(lies.steps),
                          p.per * p.y.taps * p.x.taps, part, wide,
                  int(zw is not None and zw.shape != () and zw.shape[0] > 1))
    units = p.n * p.group * -(-p.each // part) * -(-flat_pixels // wide)
    products = p.n * p.group * p.each * p.pixels * len(lies.steps) * way.group
    sums, follows = arguments(epilogue, c, "rows")
    block = Work("block", ((-(-part // lies.height) * lies.height + 1) * wide,), "i4")
    args = [images, weights, Const.of([4 * at for at in lies.steps]), flat(zx) if zx else zero,
            flat(zw) if zw else zero, sums, Work("terms", (lies.height,), "i4"), block, sizes, *follows]
    cost = products / way.speed + 80.0 * units + (epilogue.cost if epilogue else 0.0)
    leaf = _conv_leaf(way, SIGNED[codes[0]], SIGNED[codes[1]], lies.height, lies.vectors)
    made.append(Call(leaf, args, n=units, cost=cost))
    return made


def _framing(p: ByteConvProblem, way: Way, lies: Layout) -> Framing:
    taps = lies.along == "taps"
    high = (lies.rows - 1) * p.y.stride + max(y for y, _ in lies.planes) + 1
    wide = (lies.columns - 1) * p.x.stride + max(x for _, x in lies.planes) + 1 + (way.group - 1) * p.x.dilation * taps
    return Framing(lies.sets, lies.set, p.per, p.y.size, p.x.size, max(high, p.y.begin), max(wide, p.x.begin), p.y.begin, p.x.begin, lies.rows,
                   lies.columns, len(lies.planes), p.y.stride, int(not taps), p.x.dilation * taps)


def _unit(p: ByteConvProblem, lies: Layout, pixels: int, width: int) -> tuple[int, int]:
    """Pixels and output channels of a unit."""
    blocks = -(-pixels // width)
    reach = max(lies.steps) - (lies.sets - 1) * lies.set
    most = max(1, min(512, NEAR // lies.sets - reach) // width)
    strips = -(-blocks // most)
    return -(-blocks // strips) * width, min(-(-p.each // lies.height) * lies.height, max(lies.height, ROWS // lies.height * lies.height))
