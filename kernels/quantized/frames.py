"""Images of bytes laid out for convolutions (see `conv`): each plane in its frame of zero points, then neighbours side by side in 32-bit groups."""
from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir

from ..isa.vector import Emitter, inlined_code, vector
from ..machine.leaf import Leaf, Numbers
from ..machine.places import address_of
from .dots import Way


@dataclass(frozen=True)
class Framing(Numbers):
    """What the leaf reads. Its range: sets of planes of all images and groups of the convolution.

    A set holds the planes of as many channels as a group has elements (`step_channel` is 1), or those of one channel (0).
    """

    sets: int                     # for a group of the convolution
    set: int                      # groups from a set to the next
    per: int                      # channels of a group of the convolution
    height: int                   # of an image
    width: int
    high: int                     # of a frame
    wide: int
    begin_y: int                  # of the image in its frame
    begin_x: int
    rows: int                     # of a plane of groups
    columns: int
    planes: int
    stride_y: int
    step_channel: int
    step_x: int                   # columns of the frame from an element of a group to the next


def framed(way: Way, stride: int, s: Framing) -> int:
    """Bytes of scratch: the framed planes of a set, and a vector's reach beyond the last one."""
    return (way.group if s.step_channel else 1) * s.high * s.wide + way.lanes * stride


@functools.cache
def frame_leaf(way: Way, signed: bool, stride: int) -> Leaf:
    """(x, zero point, first row and column of each plane in the frame, groups): the images in groups; `stride` is that of columns."""
    group, copy, join = way.group, _copier(way), _joiner(way, signed, stride)

    def frame_bytes(x, zero, planes, to, scratch, s, lo, hi):  # type: ignore[no-untyped-def]
        bordered = s.begin_y > 0 or s.begin_x > 0 or s.begin_y + s.height < s.high or s.begin_x + s.width < s.wide
        border, plane = np.uint8(zero[0] & 0xFF), s.high * s.wide
        high, wide = min(s.height, s.high - s.begin_y), min(s.width, s.wide - s.begin_x)
        base = address_of(scratch)
        for unit in range(lo, hi):
            channel = unit // s.sets * s.per + unit % s.sets * group * s.step_channel
            elements = min(group, s.per - unit % s.sets * group) if s.step_channel else 1
            if bordered:
                for i in range(elements * plane):
                    scratch[i] = border
            for j in range(elements):
                source = address_of(x) + (channel + j) * s.height * s.width
                copy(high, wide, source, s.width, base + j * plane + s.begin_y * s.wide + s.begin_x, s.wide)
            for q in range(s.planes):
                at = base + planes[2 * q] * s.wide + planes[2 * q + 1]
                target, row = address_of(to) + 4 * (unit * s.set + q * s.rows * s.columns), s.stride_y * s.wide
                rows, columns = s.rows, s.columns
                if row == columns * stride:                 # one row after the other, on both sides
                    rows, columns = 1, rows * columns
                step, last = (plane, elements - 1) if s.step_channel else (s.step_x, group - 1)
                join(rows, columns, at, at + min(1, last) * step, at + min(2, last) * step, at + min(3, last) * step, row, target, 4 * s.columns)
    return Leaf(frame_bytes, "u1[:], i4[:], i8[:], i4[:], u1[w,:], numbers, lo, hi", key=f"{way.name}-{signed}-{stride}", numbers=Framing)


@functools.cache
def _copier(way: Way) -> Any:
    """The function `copy(rows, n, x, x_row, y, y_row)`: n bytes a row, by vectors of 16; the last one, or two of 8, may overlap others."""
    wide, half, byte = vector("u1", 16), ir.IntType(64), ir.IntType(8)

    def emit(e: Emitter, rows: Any, n: Any, x: Any, x_row: Any, y: Any, y_row: Any) -> None:
        def by(kind: Any, size: int, source: Any, target: Any) -> None:
            def place(at: Any, to: Any) -> None:
                value = e.b.load(e.b.inttoptr(at, kind.as_pointer()), align=1)
                e.b.store(value, e.b.inttoptr(to, kind.as_pointer()), align=1)

            def step(i: Any, _: list[Any]) -> None:
                place(e.address(source, i), e.address(target, i))
            e.loop(0, e.address(n, 1 - size), size, [], step)
            if size > 1:
                place(e.address(source, n, -size), e.address(target, n, -size))

        def row(_i: Any, at: list[Any]) -> list[Any]:
            with e.b.if_else(e.b.icmp_signed(">=", n, ir.Constant(n.type, 16))) as (long, short):
                with long:
                    by(wide, 16, *at)
                with short, e.b.if_else(e.b.icmp_signed(">=", n, ir.Constant(n.type, 8))) as (some, few):
                    with some:
                        by(half, 8, *at)
                    with few:
                        by(byte, 1, *at)
            return [e.b.add(at[0], x_row), e.b.add(at[1], y_row)]
        e.loop(0, rows, 1, [x, y], row)
    return inlined_code(f"tileflow_frame_copy_{way.name}", "rows, n, x, x_row, y, y_row", way.path, emit)


@functools.cache
def _joiner(way: Way, signed: bool, stride: int) -> Any:
    """The function `join(rows, n, x0, x1, x2, x3, x_row, y, y_row)`: n groups a row of the bytes at x0 + i * stride, x1 + i * stride ... Whole
    vectors are read and written: after a row's end lies what is not laid out yet, or nothing."""
    flip, less = way.right(signed)
    words, shift = vector("i4", way.lanes), 32 // way.group

    def constant(kind: ir.VectorType, number: int) -> Any:
        return ir.Constant(kind, [number] * kind.count)

    def emit(e: Emitter, rows: Any, n: Any, x0: Any, x1: Any, x2: Any, x3: Any, x_row: Any, y: Any, y_row: Any) -> None:
        def joined(sources: Sequence[Any]) -> Any:
            made = None
            for j, source in enumerate(sources[:way.group]):
                many = e.load(source, vector("u1", way.lanes * stride))
                some = many if stride == 1 else e.shuffle(many, many, [i * stride for i in range(way.lanes)])
                value = e.b.sub(e.b.zext(e.b.xor(some, constant(some.type, flip)), words), constant(words, less))
                value = e.b.shl(e.b.and_(value, constant(words, (1 << shift) - 1)), constant(words, shift * j))
                made = value if made is None else e.b.or_(made, value)
            return made

        def row(_i: Any, at: list[Any]) -> list[Any]:
            def step(i: Any, _: list[Any]) -> None:
                e.store(joined([e.address(x, e.times(i, stride)) for x in at[:4]]), e.address(at[4], e.times(i, 4)))
            e.loop(0, n, way.lanes, [], step)
            return [*(e.b.add(x, x_row) for x in at[:4]), e.b.add(at[4], y_row)]
        e.loop(0, rows, 1, [x0, x1, x2, x3, y], row)
    return inlined_code(f"tileflow_frame_join_{way.name}_{signed}_{stride}", "rows, n, x0, x1, x2, x3, x_row, y, y_row", way.path, emit)
