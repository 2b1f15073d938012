"""Depthwise convolution over planes: vectors run along the width.

Each plane is copied into a frame F of its own, in cache, where the padding is zeros, so that the sums need no edges. A stride along
the width lays the columns apart by their remainder ("phases"), so that neighbouring outputs read neighbours. Tap (ky, kx) of output
row r then starts at F[offset[ky, kx] + r * stride_y * pitch]:

- forward: y[r, q] = bias + sum_t w[t] * F[offset[t] + r * row + q];
- input gradient, where no stride was: the same over dy with flipped weights;
- weight gradient: dw[t] = sum over images, r and q of dy[r, q] * F[offset[t] + r * row + q].
"""
from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from llvmlite import ir

from ...elementwise.epilogue import Epilogue, arguments, finisher
from ...isa import cpu
from ...isa.vector import ELEMENTS, WORD, Emitter, inlined_code, itemsize, vector, word
from ...machine.call import Call, Const, In, Out, Work
from ...machine.called import CALLED
from ...machine.leaf import Leaf, Numbers
from ...machine.places import address_of
from ...sums import block_sum
from ..problem import ConvProblem
from .geometry import Geometry, cost, geometry, planes

__all__ = ["calls", "cost", "panels", "serves", "weight_gradient"]

FRAME = 128 * 1024        # bytes of a frame, about: larger planes are done in bands of rows
TOGETHER = 2048           # elements of small planes that are handed to the epilogue at a time, at least
ROWS = 8                  # most output rows of a register block
SUMS = 12                 # most taps of the weight gradient that are summed in registers at a time
SPEED = 0.5               # of a path's rate: a load for each product


@dataclass(frozen=True)
class Frame:
    """How planes [h, w] lie in frames for outputs [oh, ow]: element (i, j) at row i + top, column j + left; `flip` reverses the taps."""

    h: int
    w: int
    oh: int
    ow: int
    kh: int
    kw: int
    sy: int
    sx: int
    dy: int
    dx: int
    top: int
    left: int
    flip: bool = False

    @property
    def columns(self) -> int:
        """Columns that taps meet."""
        return (self.ow - 1) * self.sx + (self.kw - 1) * self.dx + 1

    @property
    def phase(self) -> int:
        """Elements of the columns with one remainder."""
        return -(-self.columns // self.sx)

    @property
    def pitch(self) -> int:
        return self.sx * self.phase

    def depth(self, rows: int) -> int:
        """Rows that the taps of `rows` output rows meet."""
        return (rows - 1) * self.sy + (self.kh - 1) * self.dy + 1

    def blocks(self, size: int) -> tuple[int, int]:
        """Output rows of a band and of a register block."""
        most = (FRAME // (self.pitch * size) - (self.kh - 1) * self.dy - 1) // self.sy + 1
        bands = -(-self.oh // max(ROWS, most))
        band = -(-self.oh // bands)
        return band, -(-band // -(-band // ROWS))

    def sizes(self, n: int, channels: int, band: int, biased: bool) -> PlanarDepthwiseSizes:
        """What a leaf reads."""
        return PlanarDepthwiseSizes(n, channels, band, int(biased), self.h, self.w, self.oh, self.ow, self.kh, self.kw,
                                    self.sy, self.sx, self.dy, self.dx,
                     self.top, self.left, int(self.flip))


@dataclass(frozen=True)
class PlanarDepthwiseSizes(Numbers):
    """Images, channels and output rows of a band, then a `Frame`."""

    n: int
    channels: int
    band: int
    biased: int
    h: int
    w: int
    oh: int
    ow: int
    kh: int
    kw: int
    sy: int
    sx: int
    dy: int
    dx: int
    top: int
    left: int
    flip: int


def frame(p: ConvProblem) -> Frame:
    """The frame of the images that `p` reads."""
    return _gradient_frame(geometry(p)) if p.turned else _frame(geometry(p))


def _frame(g: Geometry) -> Frame:
    """The frame of x."""
    if g.column:                                             # one spatial axis runs along the height: the same memory as one row
        return Frame(1, g.h, 1, g.oh, 1, g.kh, 1, g.sh, 1, g.dh, 0, g.top)
    return Frame(g.h, g.w, g.oh, g.ow, g.kh, g.kw, g.sh, g.sw, g.dh, g.dw, g.top, g.left)


def _gradient_frame(g: Geometry) -> Frame:
    """The frame of dy, for the gradient of x of a convolution without strides."""
    f = _frame(g)
    return replace(f, h=f.oh, w=f.ow, oh=f.h, ow=f.w, top=(f.kh - 1) * f.dy - f.top, left=(f.kw - 1) * f.dx - f.left, flip=True)


def _copy(dtype: str, path: cpu.Cpu) -> Any:
    """target[r, i] = source[r, i], i < n. Up to a vector of zeros is written behind rows shorter than a vector."""
    size, lanes = itemsize(dtype), path.lanes(itemsize(dtype))
    kind = vector(dtype, lanes)

    def emit(e: Emitter, rows: Any, n: Any, source: Any, source_row: Any, target: Any, target_row: Any) -> None:
        end = e.b.sub(n, word(lanes))
        short = e.b.icmp_signed("<", end, word(0))
        mask = e.first(n, lanes)

        def row(_r: Any, at: list[Any]) -> list[Any]:
            def chunk(i: Any, _state: list[Any]) -> None:
                offset = e.times(e.minimum(i, end), size)
                e.store(e.load(e.address(at[0], offset), kind), e.address(at[1], offset))
            with e.b.if_else(short) as (narrow, wide):
                with narrow:
                    e.store(e.load(at[0], kind, mask), at[1])
                with wide:
                    e.loop(0, n, lanes, [], chunk)
            return [e.address(at[0], source_row), e.address(at[1], target_row)]
        e.loop(0, rows, 1, [source, target], row)
    return emit


def _split(dtype: str, path: cpu.Cpu) -> Any:
    """even[r, i] = source[r, 2 * i], odd[r, i] = source[r, 2 * i + 1] for the n >= 2 vectors of each row."""
    size, lanes = itemsize(dtype), path.lanes(itemsize(dtype))
    kind = vector(dtype, lanes)

    def emit(e: Emitter, rows: Any, n: Any, source: Any, source_row: Any, even: Any, odd: Any, target_row: Any) -> None:
        end = e.b.and_(e.b.sub(n, word(2 * lanes)), word(-2))
        alone = e.b.icmp_signed("!=", e.b.and_(n, word(1)), word(0))
        last = e.b.sub(n, word(1))

        def row(_r: Any, at: list[Any]) -> list[Any]:
            def chunk(i: Any, _state: list[Any]) -> None:
                i = e.minimum(i, end)
                low, high = (e.load(e.address(at[0], e.times(i, size), v * lanes * size), kind) for v in range(2))
                to = e.times(e.b.ashr(i, word(1)), size)
                e.store(e.shuffle(low, high, range(0, 2 * lanes, 2)), e.address(at[1], to))
                e.store(e.shuffle(low, high, range(1, 2 * lanes, 2)), e.address(at[2], to))
            e.loop(0, e.b.and_(n, word(-2)), 2 * lanes, [], chunk)
            with e.when(alone):
                e.store(e.load(e.address(at[0], e.times(last, size)), ELEMENTS[dtype]), e.address(at[1], e.times(e.b.ashr(last, word(1)), size)))
            return [e.address(at[0], source_row), e.address(at[1], target_row), e.address(at[2], target_row)]
        e.loop(0, rows, 1, [source, even, odd], row)
    return emit


def _multiply(dtype: str, path: cpu.Cpu, rows: int, vectors: int) -> Any:
    """y[r, q] = bias[0] + sum_t w[t] * f[offsets[t] + r * f_row + q], r < count <= rows, q < n; `vectors` of them at a time, if n is that large."""
    size, lanes = itemsize(dtype), path.lanes(itemsize(dtype))
    kind, element = vector(dtype, lanes), ELEMENTS[dtype]

    def emit(e: Emitter, count: Any, n: Any, taps: Any, offsets: Any, w: Any, bias: Any, biased: Any, f: Any, f_row: Any, y: Any,
             y_row: Any) -> None:
        given = e.load(e.b.select(e.b.icmp_signed("!=", biased, word(0)), bias, w), element)
        start = e.splat(e.b.select(e.b.icmp_signed("!=", biased, word(0)), given, ir.Constant(element, 0.0)), lanes)
        end = e.b.sub(n, word(vectors * lanes))
        short = e.b.icmp_signed("<", end, word(0))
        mask = e.first(n, lanes)

        def chunk(i: Any, _state: list[Any]) -> None:
            offset = e.times(e.b.select(short, word(0), e.minimum(i, end)), size)        # the last vectors of a row overlap

            def tap(_t: Any, state: list[Any]) -> list[Any]:
                at_offset, at_w, *sums = state
                factor = e.splat(e.load(at_w, element), lanes)
                row = e.address(f, e.load(at_offset, WORD), offset)
                found = [e.load(e.address(row, e.times(f_row, k // vectors), k % vectors * lanes * size), kind) for k in range(len(sums))]
                sums = [e.fma(value, factor, total) for value, total in zip(found, sums, strict=True)]
                return [e.address(at_offset, 8), e.address(at_w, size), *sums]

            _, _, *sums = e.loop(0, taps, 1, [offsets, w, *([start] * (rows * vectors))], tap)
            for k, total in enumerate(sums):
                r, place = k // vectors, e.address(y, e.times(y_row, k // vectors), offset, k % vectors * lanes * size)
                with e.when(e.b.icmp_signed("<", word(r), count)), e.b.if_else(short, likely=False) as (narrow, wide):
                    with narrow:
                        e.store(total, place, mask)
                    with wide:
                        e.store(total, place)
        e.loop(0, n, vectors * lanes, [], chunk)
    return emit


def _correlate(dtype: str, path: cpu.Cpu, taps: int) -> Any:
    """totals[t, lane] (+)= the lane's part of sum over r < rows, q < n of g[r, q] * f[offsets[t] + r * f_row + q]."""
    size, lanes = itemsize(dtype), path.lanes(itemsize(dtype))
    kind = vector(dtype, lanes)

    def emit(e: Emitter, rows: Any, n: Any, offsets: Any, f: Any, f_row: Any, g: Any, g_row: Any, totals: Any, accumulate: Any) -> None:
        shifts = [e.load(e.address(offsets, 8 * t), WORD) for t in range(taps)]
        whole = e.b.and_(n, word(-lanes))
        rest = e.first(e.b.sub(n, whole), lanes)

        def add(at_f: Any, at_g: Any, sums: list[Any], mask: Any) -> list[Any]:
            right = e.load(at_g, kind, mask)
            return [e.fma(e.load(e.address(at_f, shift), kind, mask), right, total) for shift, total in zip(shifts, sums, strict=True)]

        def row(_r: Any, state: list[Any]) -> list[Any]:
            at_f, at_g, *sums = state

            def chunk(i: Any, sums: list[Any]) -> list[Any]:
                offset = e.times(i, size)
                return add(e.address(at_f, offset), e.address(at_g, offset), sums, None)

            def last(i: Any, sums: list[Any]) -> list[Any]:
                offset = e.times(i, size)
                return add(e.address(at_f, offset), e.address(at_g, offset), sums, rest)
            sums = e.loop(whole, n, lanes, e.loop(0, whole, lanes, sums, chunk), last)
            return [e.address(at_f, f_row), e.address(at_g, g_row), *sums]

        _, _, *sums = e.loop(0, rows, 1, [f, g, *([ir.Constant(kind, None)] * taps)], row)
        adding = e.b.icmp_signed("!=", accumulate, word(0))
        for t, total in enumerate(sums):
            place = e.address(totals, t * lanes * size)
            with e.b.if_else(adding) as (more, first):
                with more:
                    e.store(e.b.fadd(e.load(place, kind), total), place)
                with first:
                    e.store(total, place)
    return emit


@functools.cache
def framed(dtype: str, path: cpu.Cpu) -> Any:
    """A function: the rows of a plane that a band of outputs meets, into the frame."""
    size = itemsize(dtype)
    copy = inlined_code(f"tileflow_frame_rows_{dtype}_{path.name}", "rows, n, source, source_row, target, target_row", path,
                        _copy(dtype, path))
    split = inlined_code(f"tileflow_frame_split_{dtype}_{path.name}", "rows, n, source, source_row, even, odd, target_row", path,
                         _split(dtype, path))
    least = 2 * path.lanes(size)

    def framed(x, plane, frame, first, depth, phase, columns, s):                                                           # type: ignore
        h, w, sx, top, left = s.h, s.w, s.sx, s.top, s.left
        pitch, start = sx * phase, top - first               # row 0 of the plane is row `start` of the frame
        i0, i1, j0, j1 = max(0, -start), min(h, depth - start), max(0, -left), min(w, columns - left)
        if i1 <= i0 or j1 <= j0:
            return
        if sx == 1:
            copy(i1 - i0, j1 - j0, address_of(x) + (plane + i0 * w + j0) * size, w * size,
                 address_of(frame) + ((start + i0) * pitch + left + j0) * size, pitch * size)
            return
        if sx == 2 and j1 - j0 >= least:
            first, to = j0 + left, address_of(frame) + (start + i0) * pitch * size
            split(i1 - i0, j1 - j0, address_of(x) + (plane + i0 * w + j0) * size, w * size, to + (first % 2 * phase + first // 2) * size,
                  to + ((first + 1) % 2 * phase + (first + 1) // 2) * size, pitch * size)
            return
        for i in range(i0, i1):
            for p in range(sx):
                begin = j0 + (p - left - j0) % sx            # the first column of this remainder
                to = (start + i) * pitch + p * phase + (begin + left) // sx
                source, target = x[plane + i * w + begin:plane + i * w + j1], frame[to:to + max(0, (j1 - begin + sx - 1) // sx)]
                for q in range(target.shape[0]):
                    target[q] = source[sx * q]
    return framed


def tap_offsets(f: Frame, size: int) -> Const:
    """The bytes from an output's place in the frame to what each tap reads."""
    taps = np.arange(f.kh * f.kw)[::-1 if f.flip else 1]
    column = taps % f.kw * f.dx
    return Const.of((taps // f.kw * f.dy * f.pitch + column % f.sx * f.phase + column // f.sx) * size)


@functools.cache
def _forward(dtype: str, path: cpu.Cpu, rows: int, vectors: int) -> Leaf:
    size = itemsize(dtype)
    copied, finish = framed(dtype, path), finisher()
    multiply = inlined_code(f"tileflow_planes_{dtype}_{path.name}_{rows}x{vectors}",
                            "count, n, taps, offsets, w, bias, biased, f, f_row, y, y_row", path, _multiply(dtype, path, rows, vectors))

    def conv_planes(x, weights, bias, y, frame, offsets, s, lo, hi, epilogue, rest):  # type: ignore[no-untyped-def]
        band, h, w, oh, ow, kh, sy, sx = s.band, s.h, s.w, s.oh, s.ow, s.kh, s.sy, s.sx
        columns = (ow - 1) * sx + (s.kw - 1) * s.dx + 1
        phase, bands, taps = (columns + sx - 1) // sx, (oh + band - 1) // band, kh * s.kw
        row, waiting = sx * phase * size, 0                  # finished planes that wait for the epilogue
        for unit in range(lo, hi):
            plane, first = unit // bands, unit % bands * band
            count = min(band, oh - first)
            if bands > 1 or unit == lo:
                for i in range(frame.shape[0]):
                    frame[i] = 0
            copied(x, plane * h * w, frame, first * sy, (count - 1) * sy + (kh - 1) * s.dy + 1, phase, columns, s)
            channel, to = plane % s.channels, (plane * oh + first) * ow
            for r in range(0, count, rows):
                multiply(count - r, ow, taps, address_of(offsets), address_of(weights) + channel * taps * size,
                         address_of(bias) + channel * size, s.biased, address_of(frame) + r * sy * row, sy * row,
                         address_of(y) + (to + r * ow) * size, ow * size)
            waiting += epilogue != 0
            last = bands > 1 or channel == s.channels - 1 or unit == hi - 1
            if waiting > 0 and (last or waiting * count * ow >= TOGETHER):
                finish(epilogue, rest, waiting, count * ow, address_of(y), to - (waiting - 1) * oh * ow, oh * ow,
                       channel - waiting + 1)
                waiting = 0

    signature = "T[:], T[:], T[:], T[:], T[w,:], i8[:], numbers, lo, hi"
    return Leaf(conv_planes, signature.replace("T", dtype) + CALLED,
                key=f"{path.name} {rows} {vectors}", numbers=PlanarDepthwiseSizes)


def serves(p: ConvProblem, dtype: str, path: cpu.Cpu) -> bool:
    """One channel and one filter to a group, and more than one tap.

    An input gradient has no strides here: they would multiply zeros in between, and these must not meet an infinite weight.
    """
    return planes(p, dtype) and p.depthwise and p.taps > 1 and not (p.turned and any(a.out_step > 1 for a in p.axes))


def panels(p: ConvProblem, dtype: str, path: cpu.Cpu) -> None:
    """The weights are read as they are."""


def calls(p: ConvProblem, dtype: str, path: cpu.Cpu, *, biased: bool = False, epilogue: Epilogue | None = None,
          packed: int = 0) -> list[Call]:
    """y [n, c, *out] (output 0) from x (input 0), weights [c, 1, *taps] (1) and bias (2, when `biased`)."""
    f, size, count = frame(p), itemsize(dtype), p.n * p.groups
    band, rows = f.blocks(size)
    elements = f.depth(-(-band // rows) * rows) * f.pitch + path.lanes(size)
    weights = In(1, (p.weights,))
    args = (In(0, (p.elements_in,)), weights, In(2, (p.groups,)) if biased else weights, Out(0, (p.elements_out,)),
            Work("frame", (elements,), dtype), tap_offsets(f, size), f.sizes(p.n, p.groups, band, biased),
            *arguments(epilogue, channels="rows"))
    leaf = _forward(dtype, path, rows, abreast(rows, f.ow, path.lanes(size)))
    return [Call(leaf, args, count * -(-f.oh // band), 1, _time(geometry(p), size, path) + (epilogue.cost if epilogue else 0.0))]


def abreast(rows: int, columns: int, lanes: int) -> int:
    """Vectors of a register block of few rows: a sum waits for the one before it, so that about ROWS of them are wanted in flight."""
    every = -(-columns // lanes)
    fits = range(1, max(1, min(ROWS // rows, columns // lanes)) + 1)
    return min(fits, key=lambda vectors: (-(-every // vectors) * max(ROWS, rows * vectors), vectors))


def _time(g: Geometry, size: int, path: cpu.Cpu) -> float:
    return (g.flops / SPEED / path.rates.convolutions + 0.5 * g.n * g.groups * g.h * g.w) * size / 4


@functools.cache
def _weights_leaf(dtype: str, path: cpu.Cpu, together: int) -> Leaf:
    size, lanes, copied = itemsize(dtype), path.lanes(itemsize(dtype)), framed(dtype, path)
    correlate = inlined_code(f"tileflow_planes_weights_{dtype}_{path.name}_{together}",
                             "rows, n, offsets, f, f_row, g, g_row, totals, accumulate", path, _correlate(dtype, path, together))

    def conv_planes_weights(x, g, dw, db, frame, offsets, totals, s, lo, hi):                                               # type: ignore
        band, h, w, oh, ow, kh, sy, sx = s.band, s.h, s.w, s.oh, s.ow, s.kh, s.sy, s.sx
        columns = (ow - 1) * sx + (s.kw - 1) * s.dx + 1
        phase, taps = (columns + sx - 1) // sx, kh * s.kw
        row = sx * phase * size
        for channel in range(lo, hi):
            total = g.dtype.type(0)
            for image in range(s.n):
                plane = image * s.channels + channel
                for first in range(0, oh, band):
                    count, at = min(band, oh - first), (plane * oh + first) * ow
                    if band < oh or (channel == lo and image == 0):
                        for i in range(frame.shape[0]):
                            frame[i] = 0
                    copied(x, plane * h * w, frame, first * sy, (count - 1) * sy + (kh - 1) * s.dy + 1, phase, columns, s)
                    for tap in range(0, taps, together):
                        correlate(count, ow, address_of(offsets) + tap * 8, address_of(frame), sy * row, address_of(g) + at * size, ow * size,
                                  address_of(totals) + tap * lanes * size, image + first > 0)
                    if s.biased != 0:
                        total += block_sum(g[at:at + count * ow])
            for tap in range(taps):
                dw[channel * taps + tap] = block_sum(totals[tap * lanes:(tap + 1) * lanes])
            if s.biased != 0:
                db[channel] = total

    signature = "T[:], T[:], T[:], T[:], T[w,:], i8[:], T[w,:], numbers, lo, hi"
    return Leaf(conv_planes_weights, signature.replace("T", dtype), key=f"{path.name} {together}",
                numbers=PlanarDepthwiseSizes)


def weight_gradient(p: ConvProblem, dtype: str, path: cpu.Cpu, *, biased: bool) -> list[Call]:
    """dw [c, 1, *taps] (output 0) and, when `biased`, db (1) from x (input 0) and dy (1). A unit of range is a channel."""
    size, f = itemsize(dtype), frame(p)
    band, _ = f.blocks(size)
    together = max(t for t in range(1, SUMS + 1) if p.taps % t == 0)
    dw = Out(0, (p.weights,))
    args = (In(0, (p.elements_in,)), In(1, (p.elements_out,)), dw, Out(1, (p.groups,)) if biased else dw,
            Work("frame", (f.depth(band) * f.pitch + path.lanes(size),), dtype), tap_offsets(f, size),
            Work("totals", (p.taps * path.lanes(size),), dtype), f.sizes(p.n, p.groups, band, biased))
    return [Call(_weights_leaf(dtype, path, together), args, p.groups, 1, _time(geometry(p), size, path))]
