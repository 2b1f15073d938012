"""Transposed convolutions whose kernels are as large as their strides, over planes: each pixel becomes a block of its own.

The blocks of some lines of the image are one matrix product, [filters x taps, channels] times [channels, pixels], in
the worker's scratch; its rows are then woven into lines of the result, which are written once. Weights are read by
rows, so they are turned first. Pixels of a large image, whose channels lie pages apart, are laid into strips beside the
product.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ...elementwise.epilogue import Epilogue, arguments, finisher
from ...gemm.micro import columns, outer, slack, strips
from ...isa import cpu
from ...isa.vector import Emitter, inlined_code, itemsize, lanes_within, vector
from ...machine.call import Call, In, Out, Work
from ...machine.called import CALLED
from ...machine.leaf import Leaf, Numbers
from ...machine.places import address_of
from ...move import MoveAxis, move
from ..panels import WeightPanels
from ..problem import UNITS, ConvProblem, speed

SCRATCH = 128 << 10
"""Bytes of finished rows: half of a second cache, beside what is read."""
WEIGHTS = 256 << 10
"""Bytes of weights that a unit of range reads for every strip of pixels: they stay in a second cache."""
APART = 4096
"""Bytes from channel to channel from which pixels are laid into strips, where enough rows of weights meet them."""
MET = 24
"""Rows of weights that are enough for that."""
ROWS = 96
"""Rows of weights, filters times taps, that are enough beside all of an image's lines."""
SHUFFLED = 8
"""Taps of a line up to which it is woven by shuffles."""
RATE = 1.4
"""Speed of the products as a part of `speed`: 24 to 24 channels over 160 x 160 pixels, 256 to 128 over 16 x 16, on one AVX-512 core."""
WOVEN = 0.085
"""Nanoseconds a byte to weave."""


@dataclass(frozen=True)
class BlockSizes(Numbers):
    """Of a problem: images, channels and filters of a group, lines (of all planes) and their pixels, taps along each axis; lines and filters of a
    unit of range; elements from one row of turned weights to the next; whether pixels are laid into strips."""

    groups: int
    c: int
    oc: int
    high: int
    lines: int
    wide: int
    taps_d: int
    taps_h: int
    taps_w: int
    strip: int
    part: int
    pitch: int
    laid: int


def serves(p: ConvProblem, dtype: str, path: cpu.Cpu) -> bool:
    """Every pixel of the result belongs to one tap of one pixel."""
    return p.turned and dtype in ("f4", "f8") and p.taps > 1 and all(
        a.out_step == a.taps and a.in_step == 1 and a.out == a.size * a.taps and a.base == 0 and abs(a.tap_step) == 1 for a in p.axes)


def cost(p: ConvProblem, dtype: str, path: cpu.Cpu) -> float:
    """Estimated nanoseconds on one core."""
    return p.flops / (speed(dtype, path) * RATE) + p.elements_out * itemsize(dtype) * WOVEN


def _pitch(p: ConvProblem) -> int:
    """Elements from one row of turned weights to the next: rows a power of two apart would share cache sets."""
    return p.c if p.c < 64 else p.c + 16


def panels(p: ConvProblem, dtype: str, path: cpu.Cpu) -> WeightPanels:
    """The weights [groups][c][oc x taps] as rows [groups][oc x taps] of c elements."""
    rows, pitch = p.oc * p.taps, _pitch(p)
    turn = [MoveAxis(p.groups, p.c * rows, rows * pitch), MoveAxis(rows, 1, pitch), MoveAxis(p.c, rows, 1)]
    elements = p.groups * rows * pitch
    return WeightPanels(elements, tuple(move(In(0, (p.weights,)), Out(0, (elements,)), turn, itemsize(dtype))))


def _weave(dtype: str, lanes: int, taps: int) -> Any:
    """Line after line: target[i * taps + k] = row k of the source at i; an element at a time where `taps` is 0, for any
    number."""
    size, kind = itemsize(dtype), vector(dtype, lanes)

    def emit(e: Emitter, lines: Any, wide: Any, source: Any, source_line: Any, source_row: Any, target: Any,
             target_line: Any, many: Any) -> None:
        def line(_: Any, at: list[Any]) -> list[Any]:
            def chunk(i: Any) -> None:
                parts = [e.load(e.address(at[0], e.times(source_row, k), e.times(i, size)), kind) for k in range(taps)]
                to = e.address(at[1], e.times(i, taps * size))
                for v, part in enumerate(e.woven(parts)):
                    e.store(part, e.address(to, v * lanes * size))

            def tap(_: Any, to: list[Any]) -> list[Any]:
                def element(_: Any, over: list[Any]) -> list[Any]:
                    e.store(e.load(over[0], kind.element), over[1])
                    return [e.address(over[0], size), e.address(over[1], e.times(many, size))]
                e.loop(0, wide, 1, to, element)
                return [e.address(to[0], source_row), e.address(to[1], size)]
            if taps:
                e.along(wide, lanes, chunk)
            else:
                e.loop(0, many, 1, at, tap)
            return [e.address(at[0], source_line), e.address(at[1], target_line)]
        e.loop(0, lines, 1, [source, target], line)
    return emit


@functools.cache
def _leaf(dtype: str, path: cpu.Cpu, taps: int, lanes: int) -> Leaf:
    """`taps` of a line, or 0 for any number; `lanes` of a vector of pixels."""
    size, width, multiply, finish = itemsize(dtype), columns(dtype, path), outer(dtype), finisher()
    lay, spare = strips(dtype, width), slack(dtype, width, path)
    weave = inlined_code(f"tileflow_weave_{dtype}_{lanes}_{taps}_{path.name}",
                         "lines, wide, source, source_line, source_row, target, target_line, many", path,
                         _weave(dtype, lanes, taps))

    def conv_blocks(g, w, y, u, x, s, lo, hi, epilogue, rest):  # type: ignore[no-untyped-def]
        c, oc, wide, high = s.c, s.oc, s.wide, s.high
        area = s.taps_h * s.taps_w
        taps = s.taps_d * area
        runs, parts = (s.lines + s.strip - 1) // s.strip, (oc + s.part - 1) // s.part
        row_out, pixels = wide * s.taps_w, s.lines * wide
        for unit in range(lo, hi):
            first_o, first = unit % parts * s.part, unit // parts % runs * s.strip
            plane = unit // (parts * runs)
            filters, lines = min(s.part, oc - first_o), min(s.strip, s.lines - first)
            n, channel = lines * wide, plane % s.groups * oc + first_o
            weights, images = address_of(w) + channel * taps * s.pitch * size, address_of(g) + (plane * c * pixels + first * wide) * size
            if s.laid != 0:
                strip = (c * width + spare) * size
                lay(c, n, images, pixels * size, address_of(x), strip)
                for i in range(0, n, width):
                    multiply(filters * taps, min(width, n - i), c, weights, s.pitch * size, size, address_of(x) + i // width * strip, width * size,
                             address_of(u) + i * size, n * size, 0)
            else:
                multiply(filters * taps, n, c, weights, s.pitch * size, size, images, pixels * size, address_of(u), n * size, 0)
            line = 0
            while line < lines:
                z, v = (first + line) // high, (first + line) % high
                run = min(lines - line, high - v)
                for d in range(s.taps_d):
                    line_out = (z * s.taps_d + d) * high + v
                    begin = (plane * oc + first_o) * pixels * taps + line_out * s.taps_h * row_out
                    for o in range(filters):
                        at = begin + o * pixels * taps
                        for t in range(s.taps_h):
                            row = (o * taps + d * area + t * s.taps_w) * n + line * wide
                            to = at + t * row_out
                            weave(run, wide, address_of(u) + row * size, wide * size, n * size, address_of(y) + to * size,
                                  s.taps_h * row_out * size, s.taps_w)
                    finish(epilogue, rest, filters, run * s.taps_h * row_out, address_of(y), begin, pixels * taps,
                           channel)
                line += run

    signature = "T[:], T[:], T[:], T[w,:], T[w,:], numbers, lo, hi".replace("T", dtype) + CALLED
    return Leaf(conv_blocks, signature, key=f"{path.name} {taps} {lanes}", numbers=BlockSizes)


def _cut(p: ConvProblem, size: int, width: int, most: int) -> tuple[int, int]:
    """Filters and lines of a unit of range, of at least UNITS if `most`, all lines of all images, are as many.

    Both fit their caches: all lines if filters enough are left then, else as many as leave the fewest columns of register blocks empty.
    """
    lines, wide = p.axes[0].size * p.axes[1].size, p.axes[2].size
    few = -(-ROWS // p.taps)
    fitting = SCRATCH // (p.taps * wide * size)                          # filters times lines
    part = max(1, min(p.oc, WEIGHTS // (p.taps * _pitch(p) * size), fitting // lines if fitting // lines >= few else fitting // 2))
    part = -(-p.oc // -(-p.oc // part))
    longest = max(1, min(lines, fitting // part, -(-most * -(-p.oc // part) // UNITS)))

    def filled(strip: int) -> tuple[int, int]:
        whole, rest = divmod(lines, strip)
        return whole * -(-strip * wide // width) + -(-rest * wide // width), -strip
    return part, min(range(-(-longest // 2), longest + 1), key=filled)


def calls(p: ConvProblem, dtype: str, path: cpu.Cpu, *, biased: bool = False, epilogue: Epilogue | None = None,
          packed: int = 0) -> list[Call]:
    """The result (output 0) from images (input 0) and weights (1), which `packed` says are as `panels` made them."""
    assert not biased
    size, (d, h, w) = itemsize(dtype), p.axes
    lines, images, rows = d.size * h.size, p.n * p.groups, p.oc * p.taps
    laid = None if packed else panels(p, dtype, path)
    width = columns(dtype, path)
    part, strip = _cut(p, size, width, images * lines)
    apart = lines * w.size * size >= APART and part * p.taps >= MET
    room = -(-strip * w.size // width) * (p.c * width + slack(dtype, width, path)) if apart else 1
    sizes = BlockSizes(p.groups, p.c, p.oc, h.size, lines, w.size, d.taps, h.taps, w.taps, strip, part, _pitch(p),
                       int(apart))
    weights = In(1, (p.groups * rows * _pitch(p),)) if laid is None else laid.work(dtype)
    args = (In(0, (p.elements_in,)), weights, Out(0, (p.elements_out,)), Work("blocks", (part * p.taps * strip * w.size,), dtype),
            Work("strips", (room,), dtype), sizes, *arguments(epilogue, channels="rows"))
    leaf = _leaf(dtype, path, w.taps if w.taps <= SHUFFLED else 0, lanes_within(dtype, w.size, path))
    units = images * -(-lines // strip) * -(-p.oc // part)
    before = [] if laid is None else laid.inside(dtype)
    return [*before, Call(leaf, args, units, 1, cost(p, dtype, path) + (epilogue.cost if epilogue else 0.0))]
