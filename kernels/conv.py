"""Two-dimensional convolution and its gradients (cross-correlation, NCHW), as leaf calls over images unfolded along their width.

Unfolding copies, for each tap of a kernel row, the input columns that tap meets: `U[c, kx, r, q, ox] = x[c, q * sy + phase(r) - top,
ox * sx + kx * dx - left]`, zero outside of the image; r counts the remainders of the input rows modulo the stride. The taps along the
height then are plain shifts by whole rows: row (c, ky, kx) of the im2col matrix is one contiguous run of U, and U is smaller than that
matrix by the height of the kernel over the stride:

- forward: `y[o, p] = bias[o] + sum_k w[o, k] * U[offset[k] + p]` (register blocks of channels x pixel vectors);
- weight gradient: `dw[o, k] = sum_p dy[o, p] * U[offset[k] + p]` (dot products along the pixels, over several images);
- input gradient: `U'[offset[k] + p] += sum_o w[o, k] * dy[o, p]`, then U' is folded back onto the image; or, where that wastes little,
  the forward kernel with flipped weights over dy.

A convolution that needs no unfolding (one tap per row, stride 1, no padding: 1x1 above all) reads the image where it lies.
One-dimensional convolutions run along the height, with width 1. Every output element is summed in an order that depends on the shapes
and the CPU path alone.
"""
from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba.extending import register_jitable

from . import cpu
from .call import Call, In, Out, Work
from .leaf import Leaf, generic, leaf
from .micro import outer
from .vector import ELEMENTS, WORD, Emitter, as_intrinsic, itemsize, vector, word

FLOPS_PER_NS = {"avx512": 60.0, "avx2": 50.0, "generic": 10.0}
"""Rough float32 speed of one core, for the cost estimates of calls."""

CACHE = 320 * 1024        # bytes of an unfolded block: stays in a level-2 cache next to what is multiplied with it
DEPTH = 640               # products summed in registers at a time, about
UNITS = 8                 # units of range wanted at least, for the workers to share
LONG = 1024               # pixels that a dot product of the weight gradient sums in registers, about


@dataclass(frozen=True)
class Geometry:
    """The sizes of one convolution; `c` and `oc` count the channels of one of `groups` groups."""

    n: int
    groups: int
    c: int
    h: int
    w: int
    oc: int
    oh: int
    ow: int
    kh: int
    kw: int
    sh: int = 1
    sw: int = 1
    dh: int = 1
    dw: int = 1
    top: int = 0
    left: int = 0

    @property
    def k(self) -> int:
        """Products per output element."""
        return self.c * self.kh * self.kw

    @property
    def flops(self) -> float:
        return 2.0 * self.n * self.groups * self.oc * self.oh * self.ow * self.k

    @property
    def in_place(self) -> bool:
        """The image already is its own unfolding."""
        return (self.kw, self.sw, self.sh, self.top, self.left) == (1, 1, 1, 0, 0) and self.ow == self.w \
            and self.oh + (self.kh - 1) * self.dh == self.h

    @property
    def column(self) -> bool:
        """An image of one column: it is unfolded as one row along its height."""
        return (self.w, self.kw, self.ow, self.left) == (1, 1, 1, 0)

    @property
    def step(self) -> int:
        """Elements between neighbours that unfolding brings together."""
        return self.sh if self.column else self.sw

    @property
    def phases(self) -> int:
        """Input rows with different remainders modulo the stride that the taps meet."""
        return min(self.kh, self.sh // math.gcd(self.sh, self.dh))


@dataclass(frozen=True)
class Unfolding:
    """U of `rows` output rows: `depth` input rows per phase; `pitch` elements from one (channel, kernel column) to the next."""

    g: Geometry
    rows: int

    @property
    def depth(self) -> int:
        return (self.g.kh - 1) * self.g.dh // self.g.sh + self.rows

    @property
    def pitch(self) -> int:
        if self.g.in_place:
            return self.g.h * self.g.w
        size = -(-self.g.phases * self.depth * self.g.ow // 16) * 16
        return size + 16 if size % 256 == 0 else size          # rows a power of two apart would share cache sets

    def elements(self, channels: int) -> int:
        """Elements of U of `channels` channels."""
        return channels * self.g.kw * self.pitch

    @property
    def numbers(self) -> tuple[int, ...]:
        """The head of the table that `_unfold` and `_fold` read."""
        g = self.g
        return g.h, g.w, g.ow, g.kw, g.sh, g.dh, g.dw, g.top, g.left, g.phases, self.depth, self.pitch, int(g.column)


# ---- moving between images and their unfolding ---------------------------------------------------------------------------------

def _copy_rows(dtype: str, path: cpu.Cpu, step: int) -> Any:
    """target[r, j] = source[r, start + j * step], j < width, zero where that is not in 0..limit."""
    size, lanes = itemsize(dtype), path.lanes(itemsize(dtype))
    kind = vector(dtype, lanes)

    def emit_vectors(e: Emitter, rows: Any, width: Any, start: Any, limit: Any, source: Any, source_row: Any, target: Any,
                     target_row: Any) -> None:
        def chunk(j: Any, _state: list[Any]) -> None:
            first = e.b.add(start, e.times(j, step))
            inside = []
            for v in range(step):
                at = e.address(first, v * lanes)
                inside.append(e.b.and_(e.first(e.b.sub(limit, at), lanes), e.b.not_(e.first(e.b.sub(word(0), at), lanes))))
            wanted = e.first(e.b.sub(width, j), lanes)

            def row(_r: Any, state: list[Any]) -> list[Any]:
                found = [e.load(e.address(state[0], v * lanes * size), kind, inside[v]) for v in range(step)]
                value = found[0] if step == 1 else e.shuffle(found[0], found[1], range(0, 2 * lanes, 2))
                e.store(value, state[1], wanted)
                return [e.address(state[0], source_row), e.address(state[1], target_row)]

            e.loop(0, rows, 1, [e.address(source, e.times(first, size)), e.address(target, e.times(j, size))], row)
        e.loop(0, width, lanes, [], chunk)

    def emit_scalars(e: Emitter, rows: Any, width: Any, start: Any, limit: Any, source: Any, source_row: Any, target: Any,
                     target_row: Any) -> None:
        zero = ir.Constant(ELEMENTS[dtype], 0.0)

        def row(_r: Any, state: list[Any]) -> list[Any]:
            def element(j: Any, position: list[Any]) -> list[Any]:
                inside = e.b.icmp_unsigned("<", position[0], limit)
                safe = e.b.select(inside, position[0], word(0))
                value = e.load(e.address(state[0], e.times(safe, size)), ELEMENTS[dtype])
                e.store(e.b.select(inside, value, zero), e.address(state[1], e.times(j, size)))
                return [e.address(position[0], step)]
            e.loop(0, width, 1, [start], element)
            return [e.address(state[0], source_row), e.address(state[1], target_row)]
        e.loop(0, rows, 1, [source, target], row)

    return emit_vectors if step <= 2 and path.name != "generic" else emit_scalars


def _add_rows(dtype: str, step: int) -> Any:
    """target[r, start + j * step] += source[r, j], j < width, where that is in 0..limit."""
    size = itemsize(dtype)

    def emit(e: Emitter, rows: Any, width: Any, start: Any, limit: Any, source: Any, source_row: Any, target: Any, target_row: Any) -> None:
        def row(_r: Any, state: list[Any]) -> list[Any]:
            def element(j: Any, position: list[Any]) -> list[Any]:
                with e.when(e.b.icmp_unsigned("<", position[0], limit)):
                    place = e.address(state[1], e.times(position[0], size))
                    value = e.load(e.address(state[0], e.times(j, size)), ELEMENTS[dtype])
                    e.store(e.b.fadd(e.load(place, ELEMENTS[dtype]), value), place)
                return [e.address(position[0], step)]
            e.loop(0, width, 1, [start], element)
            return [e.address(state[0], source_row), e.address(state[1], target_row)]
        e.loop(0, rows, 1, [source, target], row)
    return emit


def _fold_rows(dtype: str, path: cpu.Cpu) -> Any:
    """target[r, i] = sum over t < taps of source[t, r, i - start - t * dilation], i < limit, where that is in 0..width."""
    size, lanes = itemsize(dtype), path.lanes(itemsize(dtype))
    kind = vector(dtype, lanes)

    def emit(e: Emitter, rows: Any, width: Any, start: Any, limit: Any, dilation: Any, taps: Any, source: Any, source_row: Any,
             source_tap: Any, target: Any, target_row: Any) -> None:
        def chunk(i: Any, _state: list[Any]) -> None:
            wanted = e.first(e.b.sub(limit, i), lanes)

            def block(r: Any, count: int) -> None:
                """`count` rows, so that a mask serves them all."""
                def tap(t: Any, sums: list[Any]) -> list[Any]:
                    first = e.b.sub(e.b.sub(i, start), e.b.mul(t, dilation))
                    inside = e.b.and_(e.first(e.b.sub(width, first), lanes), e.b.not_(e.first(e.b.sub(word(0), first), lanes)))
                    place = e.address(source, e.b.mul(t, source_tap), e.b.mul(r, source_row), e.times(first, size))
                    return [e.b.fadd(total, e.load(e.address(place, e.times(source_row, n)), kind, inside)) for n, total in enumerate(sums)]

                sums = e.loop(0, taps, 1, [ir.Constant(kind, None)] * count, tap)
                place = e.address(target, e.b.mul(r, target_row), e.times(i, size))
                for n, total in enumerate(sums):
                    e.store(total, e.address(place, e.times(target_row, n)), wanted)

            whole = e.b.and_(rows, word(-4))
            e.loop(0, whole, 4, [], lambda r, _state: block(r, 4))
            e.loop(whole, rows, 1, [], lambda r, _state: block(r, 1))
        e.loop(0, limit, lanes, [], chunk)
    return emit


_ROWS = "rows, width, start, limit, source, source_row, target, target_row"


@functools.cache
def copy_rows(dtype: str, path: cpu.Cpu, step: int) -> Any:
    """Numba-callable: target[r, j] = source[r, start + j * step] for j < width, zero where start + j * step is not in 0..limit."""
    return as_intrinsic(f"tileflow_copy_rows_{dtype}_{path.name}_{step}", _ROWS, path, _copy_rows(dtype, path, step))


@functools.cache
def add_rows(dtype: str, path: cpu.Cpu, step: int) -> Any:
    """Numba-callable: target[r, start + j * step] += source[r, j] for j < width where start + j * step is in 0..limit."""
    return as_intrinsic(f"tileflow_add_rows_{dtype}_{path.name}_{step}", _ROWS, path, _add_rows(dtype, step))


@functools.cache
def fold_rows(dtype: str, path: cpu.Cpu) -> Any:
    """Numba-callable `fold_rows(rows, width, start, limit, dilation, taps, source, source_row, source_tap, target, target_row)`:
    see `_fold_rows`; addresses, strides in bytes."""
    return as_intrinsic(f"tileflow_fold_rows_{dtype}_{path.name}",
                        "rows, width, start, limit, dilation, taps, source, source_row, source_tap, target, target_row", path,
                        _fold_rows(dtype, path))


@register_jitable
def _address(x: Any) -> Any:
    """The address of an array, signed: mixed with Numba's unsigned one, sums would become floats."""
    return np.intp(x.ctypes.data)


@register_jitable
def _span(row: int, count: int, stride: int, limit: int) -> tuple[int, int]:
    """The part q0..q1 of q < count for which row + q * stride is in 0..limit."""
    q0 = min(count, max(0, (stride - 1 - row) // stride))
    q1 = min(count, max(q0, (limit - 1 - row) // stride + 1))
    return q0, q1


@register_jitable
def _numbers(table: Any) -> tuple[int, ...]:
    return (table[0], table[1], table[2], table[3], table[4], table[5], table[6], table[7], table[8], table[9], table[10], table[11],
            table[12])


@register_jitable
def _unfold(copy: Any, size: int, image: int, channels: int, first_row: int, u: Any, at: int, table: Any) -> None:
    """U of the channel planes at address `image` into u[at:], for output rows from `first_row` on."""
    h, w, ow, kw, sh, dh, dw, top, left, phases, depth, pitch, column = _numbers(table)
    base = _address(u)
    for c in range(channels):
        plane = image + c * h * w * size
        for r in range(phases):
            row = first_row * sh + r * dh % sh - top
            if column != 0:
                copy(1, depth, row, h, plane, 0, base + (at + c * pitch + r * depth) * size, 0)
                continue
            q0, q1 = _span(row, depth, sh, h)
            source = plane + (row + q0 * sh) * w * size
            for kx in range(kw):
                to = at + (c * kw + kx) * pitch + r * depth * ow
                for i in range(to, to + q0 * ow):
                    u[i] = 0
                for i in range(to + q1 * ow, to + depth * ow):
                    u[i] = 0
                copy(q1 - q0, ow, kx * dw - left, w, source, sh * w * size, base + (to + q0 * ow) * size, ow * size)


@functools.cache
def _fold(dtype: str, path: cpu.Cpu, step: int) -> Any:
    """`fold(image, channels, u, table)`: write to the channel planes at address `image` the sums of what `_unfold` read from there."""
    size = itemsize(dtype)
    gather = fold_rows(dtype, path)
    add = add_rows(dtype, path, step)

    @register_jitable
    def gather_planes(image, channels, u, table):                                                                           # type: ignore
        h, w, ow, kw, sh, dh, dw, top, left, phases, depth, pitch, column = _numbers(table)
        for c in range(channels):
            plane, base = image + c * h * w * size, _address(u) + c * kw * pitch * size
            if column != 0:
                gather(1, depth, -top, h, 0, 1, base, 0, 0, plane, 0)
                continue
            for r in range(phases):
                row = r * dh % sh - top
                q0, q1 = _span(row, depth, sh, h)
                gather(q1 - q0, ow, -left, w, dw, kw, base + (r * depth + q0) * ow * size, ow * size, pitch * size,
                       plane + (row + q0 * sh) * w * size, sh * w * size)

    @register_jitable
    def add_planes(image, channels, u, table):                                                                              # type: ignore
        h, w, ow, kw, sh, dh, dw, top, left, phases, depth, pitch, column = _numbers(table)
        for c in range(channels):
            plane, base = image + c * h * w * size, _address(u) + c * kw * pitch * size
            for r in range(phases):
                row = r * dh % sh - top
                if column != 0:
                    add(1, depth, row, h, base + r * depth * size, 0, plane, 0)
                    continue
                q0, q1 = _span(row, depth, sh, h)
                for kx in range(kw):
                    add(q1 - q0, ow, kx * dw - left, w, base + (kx * pitch + (r * depth + q0) * ow) * size, ow * size,
                        plane + (row + q0 * sh) * w * size, sh * w * size)

    return gather_planes if gathers(path, step) else add_planes


def gathers(path: cpu.Cpu, step: int) -> bool:
    """Folding writes every element of the rows it meets; else it adds to what is there."""
    return step == 1 and path.name != "generic"


HEAD = 13
"""Numbers at the head of a table."""


@leaf("i8[:]" + ", i8" * (HEAD + 3) + ", lo, hi")
def conv_table(table, c, kh, size, h, w, ow, kw, sh, dh, dw, top, left, phases, depth, pitch, column, lo, hi):             # type: ignore
    """`Unfolding.numbers`, then the byte offset in U of every row (channel, ky, kx) of the im2col matrix; the range is 0..1."""
    for _ in range(lo, hi):
        for i, number in enumerate((h, w, ow, kw, sh, dh, dw, top, left, phases, depth, pitch, column)):
            table[i] = number
        for channel in range(c):
            for ky in range(kh):
                within = (ky % phases * depth + ky * dh // sh) * ow
                for kx in range(kw):
                    table[HEAD + (channel * kh + ky) * kw + kx] = ((channel * kw + kx) * pitch + within) * size


def _table(un: Unfolding, channels: int) -> Work:
    return Work("table", (HEAD + channels * un.g.kh * un.g.kw,), "i8")


def _table_call(un: Unfolding, channels: int, size: int) -> Call:
    return Call(conv_table, (_table(un, channels), channels, un.g.kh, size, *un.numbers), 1, 1, 20 + channels * un.g.kh * un.g.kw * 1.0)


# ---- forward -------------------------------------------------------------------------------------------------------------------

def _product(dtype: str, path: cpu.Cpu, rows: int, vectors: int) -> Any:
    """Register block: c[i, p] (+)= bias[i] + sum_k a[k, i] * b[offsets[k] + p], i < rows, p < min(n, vectors * lanes).

    The first `skip` rows are not written: another block has them.
    """
    size, lanes = itemsize(dtype), path.lanes(itemsize(dtype))
    kind, element = vector(dtype, lanes), ELEMENTS[dtype]

    def emit_block(e: Emitter, masked: bool, n: Any, k: Any, a: Any, offsets: Any, b: Any, bias: Any, biased: Any, c: Any,
                   c_row: Any, accumulate: Any, skip: Any) -> None:
        masks = [e.first(e.b.sub(n, word(v * lanes)), lanes) if masked else None for v in range(vectors)]
        zero = ir.Constant(element, 0.0)
        none = e.b.icmp_signed("==", biased, word(0))
        source = e.b.select(none, a, bias)
        sums = []
        for i in range(rows):
            value = e.b.select(none, zero, e.load(e.address(source, e.b.select(none, word(0), word(i * size))), element))
            sums += [e.splat(value, lanes)] * vectors

        def step(_k: Any, state: list[Any]) -> list[Any]:
            at_a, at_offset, *sums = state
            row = e.address(b, e.load(at_offset, WORD))
            right = [e.load(e.address(row, v * lanes * size), kind, masks[v]) for v in range(vectors)]
            for i in range(rows):
                left = e.splat(e.load(e.address(at_a, i * size), element), lanes)
                for v in range(vectors):
                    sums[i * vectors + v] = e.fma(left, right[v], sums[i * vectors + v])
            return [e.address(at_a, rows * size), e.address(at_offset, 8), *sums]

        _, _, *sums = e.loop(0, k, 1, [a, offsets, *sums], step)
        adding = e.b.icmp_signed("!=", accumulate, word(0))
        for i in range(rows):
            places = [(e.address(c, e.times(c_row, i), v * lanes * size), masks[v]) for v in range(vectors)]
            totals = sums[i * vectors:(i + 1) * vectors]
            with e.when(e.b.icmp_signed(">=", word(i), skip)), e.b.if_else(adding, likely=False) as (add, write):
                with add:
                    for total, (place, mask) in zip(totals, places, strict=True):
                        e.store(e.b.fadd(e.load(place, kind, mask), total), place, mask)
                with write:
                    for total, (place, mask) in zip(totals, places, strict=True):
                        e.store(total, place, mask)

    def emit(e: Emitter, n: Any, *args: Any) -> None:
        if path.name == "avx512":                       # masked vectors cost nothing there
            emit_block(e, True, n, *args)
            return
        with e.b.if_else(e.b.icmp_signed(">=", n, word(vectors * lanes))) as (whole, part):
            with whole:
                emit_block(e, False, n, *args)
            with part:
                emit_block(e, True, n, *args)
    return emit


@functools.cache
def product(dtype: str, path: cpu.Cpu, rows: int, vectors: int) -> Any:
    """Numba-callable `product(n, k, a, offsets, b, bias, biased, c, c_row, accumulate, skip)`: see `_product`; addresses, strides in bytes."""
    return as_intrinsic(f"tileflow_product_{dtype}_{path.name}_{rows}x{vectors}",
                        "n, k, a, offsets, b, bias, biased, c, c_row, accumulate, skip", path, _product(dtype, path, rows, vectors))


def _product_tile(m: int, pixels: int, dtype: str, path: cpu.Cpu) -> tuple[int, int]:
    """Rows and vectors of the register block that covers m x pixels in the fewest estimated cycles."""
    lanes = path.lanes(itemsize(dtype))
    free = path.registers - (1 if path.fma else 2)
    found = []
    for vectors in range(1, 5):
        most = min(m, (free - vectors) // vectors, 24 if vectors == 1 else 14)
        if most > 0:
            blocks = -(-m // most)
            rows = -(-m // blocks)
            found.append((-(-pixels // (vectors * lanes)) * blocks * _block_cycles(rows, vectors), rows, vectors))
    return min(found)[1:]


def _block_cycles(rows: int, vectors: int) -> float:
    """Estimated cycles of one k of a register block: products, or loads, or the latency of a chain, and a little for the loop."""
    return max(rows * vectors, 0.5 * rows + 2 * vectors, 5) + 1.5


@generic("T[:], T[:], i8, i8, i8, i8, i8, i8, i8, lo, hi")
def conv_panels(w, panels, oc, rows, c, taps, o_step, c_step, flip, lo, hi):                                                 # type: ignore
    """Weights of each group as panels [c, taps][rows]; the last panel of a group starts early enough to be as wide as the others.

    Weight [o, c, tap] of a group lies at o * o_step + c * c_step + tap; `flip` reverses the taps. A unit of range is a panel.
    """
    per_group = (oc + rows - 1) // rows
    for unit in range(lo, hi):
        o = min(unit % per_group * rows, oc - rows)
        source = w[unit // per_group * oc * c * taps + o * o_step:]
        target = panels[unit * rows * c * taps:(unit + 1) * rows * c * taps]
        for channel in range(c):
            for tap in range(taps):
                to = (channel * taps + tap) * rows
                at = channel * c_step + (taps - 1 - tap if flip != 0 else tap)
                for i in range(rows):
                    target[to + i] = source[at + i * o_step]


@functools.cache
def _forward(dtype: str, path: cpu.Cpu, step: int, rows: int, vectors: int) -> Leaf:
    size, width = itemsize(dtype), vectors * path.lanes(itemsize(dtype))
    copy, multiply = copy_rows(dtype, path, step), product(dtype, path, rows, vectors)

    def conv_forward(x, panels, bias, y, table, u, n, c, taps, oc, oh, groups, block, together, channels, part, in_place, biased, lo, hi):   # type: ignore
        h, w, ow, kw, pitch = table[0], table[1], table[2], table[3], table[11]
        blocks, tiles, sets = (oh + block - 1) // block, (oc + rows - 1) // rows, (n + together - 1) // together
        parts = (tiles + part - 1) // part
        for unit in range(lo, hi):
            first = unit % parts * part
            row = unit // parts % blocks * block
            image = unit // (parts * blocks) % sets * together
            group = unit // (parts * blocks * sets)
            images = min(together, n - image)
            pixels = min(block, oh - row) * ow
            for c0 in range(0, c, channels):
                count = min(channels, c - c0)
                base = _address(x) + (((image * groups + group) * c + c0) * h + row) * w * size
                step_image = groups * c * h * w
                if in_place == 0:
                    step_image = channels * kw * pitch
                    for i in range(images):
                        plane = _address(x) + (((image + i) * groups + group) * c + c0) * h * w * size
                        _unfold(copy, size, plane, count, row, u, i * step_image, table)
                    base = _address(u)
                for tile in range(first, min(first + part, tiles)):
                    o = min(tile * rows, oc - rows)
                    panel = _address(panels) + ((group * tiles + tile) * c + c0) * taps * rows * size
                    for i in range(images):
                        to = _address(y) + ((((image + i) * groups + group) * oc + o) * oh + row) * ow * size
                        for p in range(0, pixels, width):
                            multiply(pixels - p, count * taps, panel, _address(table) + HEAD * 8, base + (i * step_image + p) * size,
                                     _address(bias) + (group * oc + o) * size, biased != 0 and c0 == 0, to + p * size, oh * ow * size, c0 > 0,
                                     tile * rows - o)

    signature = "T[:], T[:], T[:], T[:], i8[:], T[w,:]" + ", i8" * 12 + ", lo, hi"
    return Leaf(conv_forward, signature.replace("T", dtype), key=f"{path.name} {step} {rows} {vectors}")


def _product_blocks(g: Geometry, size: int) -> tuple[int, int, int]:
    """Output rows, images and input channels that a unit of range unfolds at a time.

    Products are summed over at most about DEPTH terms at a time, so that a panel of weights stays in the cache. Several images
    share it where one has few pixels; rows are cut where one image is too large, or where there are few images to share.
    """
    channels = -(-g.c // -(-g.k // DEPTH))
    rows = g.oh
    while rows > 1 and not g.in_place and Unfolding(g, rows).elements(channels) * size > CACHE:
        rows = -(-rows // 2)
    wanted = -(-UNITS // (g.n * g.groups))
    least = max(1, 64 // g.ow)                               # rows that still fill some vectors
    rows = max(min(rows, -(-g.oh // wanted)), min(rows, least))
    together = 1
    if rows == g.oh and g.oc * g.k * size > CACHE:
        together = max(1, min(CACHE // (Unfolding(g, rows).elements(channels) * size), 2 * g.n * g.groups // UNITS))
    return rows, together, channels


def forward(g: Geometry, dtype: str, path: cpu.Cpu, biased: bool) -> list[Call]:
    """y[n, groups * oc, oh, ow] (output 0) from x (input 0), weights [groups * oc, c, kh, kw] (1) and bias (2, when `biased`)."""
    return _products(g, dtype, path, biased, (g.k, g.kh * g.kw, 0))


def _products(g: Geometry, dtype: str, path: cpu.Cpu, biased: bool, order: tuple[int, int, int]) -> list[Call]:
    """The convolution g, with `o_step`, `c_step` and `flip` of the weights in input 1 (see `conv_panels`)."""
    size = itemsize(dtype)
    block, together, channels = _product_blocks(g, size)
    un = Unfolding(g, block)
    rows, vectors = _product_tile(g.oc, block * g.ow, dtype, path)
    units = -(-g.n // together) * g.groups * -(-g.oh // block)
    tiles = -(-g.oc // rows)
    part = -(-tiles // min(tiles, -(-UNITS // units)))
    weights = g.groups * g.oc * g.k
    panels = Work("panels", (g.groups * tiles * rows * g.k,), dtype)
    pack = Call(conv_panels[dtype], (In(1, (weights,)), panels, g.oc, rows, g.c, g.kh * g.kw, *order), g.groups * tiles, 1, weights * 0.7)
    args = (In(0, (g.n * g.groups * g.c * g.h * g.w,)), panels, In(2, (g.groups * g.oc,)) if biased else panels,
            Out(0, (g.n * g.groups * g.oc * g.oh * g.ow,)), _table(un, channels),
            Work("unfolded", (1 if g.in_place else together * un.elements(channels),), dtype), g.n, g.c, g.kh * g.kw, g.oc, g.oh, g.groups,
            block, together, channels, part, int(g.in_place), int(biased))
    leaf = _forward(dtype, path, g.step, rows, vectors)
    return [_table_call(un, channels, size), pack, Call(leaf, args, units * -(-tiles // part), 1, _cost(g, size, path))]


def _cost(g: Geometry, size: int, path: cpu.Cpu) -> float:
    """Estimated nanoseconds of a convolution or one of its gradients on one core."""
    unfolded = 0.0 if g.in_place else float(g.n * g.groups * g.c * g.kw * g.h * g.ow)
    return g.flops / (FLOPS_PER_NS[path.name] * 4 / size) + unfolded * 0.15


# ---- weight gradient -----------------------------------------------------------------------------------------------------------

def _correlate(dtype: str, path: cpu.Cpu, rows: int, cols: int) -> Any:
    """Register block: c[i, j] (+)= sum over images and p < pixels of a[image, i, p] * u[image, offsets[j] + p].

    The first `skip_rows` rows and `skip_cols` columns are not written: another block has them.
    """
    size, lanes = itemsize(dtype), path.lanes(itemsize(dtype))
    kind = vector(dtype, lanes)

    def emit(e: Emitter, images: Any, pixels: Any, a: Any, a_row: Any, a_image: Any, offsets: Any, u: Any, u_image: Any, c: Any,
             c_row: Any, accumulate: Any, skip_rows: Any, skip_cols: Any) -> None:
        shifts = [e.load(e.address(offsets, 8 * j), WORD) for j in range(cols)]
        zero = ir.Constant(kind, None)
        whole = e.b.and_(pixels, word(-lanes))

        def image(_i: Any, state: list[Any]) -> list[Any]:
            a, u, *sums = state
            lefts = [e.address(a, e.times(a_row, i)) for i in range(rows)]
            rights = [e.address(u, shift) for shift in shifts]

            def step(p: Any, sums: list[Any], mask: Any = None) -> list[Any]:
                at = e.times(p, size)
                sums = list(sums)
                right = [e.load(e.address(place, at), kind, mask) for place in rights]
                for i, place in enumerate(lefts):
                    left = e.load(e.address(place, at), kind, mask)
                    for j in range(cols):
                        sums[i * cols + j] = e.fma(left, right[j], sums[i * cols + j])
                return sums

            sums = e.loop(0, whole, lanes, sums, step)
            sums = e.loop(whole, pixels, lanes, sums, lambda p, state: step(p, state, e.first(e.b.sub(pixels, p), lanes)))
            return [e.address(a, a_image), e.address(u, u_image), *sums]

        _, _, *sums = e.loop(0, images, 1, [a, u] + [zero] * (rows * cols), image)
        sums += [zero] * (-len(sums) % lanes)
        totals = [e.sums(sums[i:i + lanes]) for i in range(0, len(sums), lanes)]
        new = e.b.and_(e.first(word(cols), lanes), e.b.not_(e.first(skip_cols, lanes)))
        adding = e.b.icmp_signed("!=", accumulate, word(0))
        for i in range(rows):
            picks = [min(i * cols + j, rows * cols - 1) for j in range(lanes)]
            low = picks[0] // lanes
            value = e.shuffle(totals[low], totals[min(low + 1, len(totals) - 1)], [pick - low * lanes for pick in picks])
            place = e.address(c, e.times(c_row, i))
            with e.when(e.b.icmp_signed(">=", word(i), skip_rows)), e.b.if_else(adding) as (add, write):
                with add:
                    e.store(e.b.fadd(e.load(place, kind, new), value), place, new)
                with write:
                    e.store(value, place, new)
    return emit


@functools.cache
def correlate(dtype: str, path: cpu.Cpu, rows: int, cols: int) -> Any:
    """Numba-callable `correlate(images, pixels, a, a_row, a_image, offsets, u, u_image, c, c_row, accumulate, skip_rows, skip_cols)`:
    see `_correlate`."""
    return as_intrinsic(f"tileflow_correlate_{dtype}_{path.name}_{rows}x{cols}",
                        "images, pixels, a, a_row, a_image, offsets, u, u_image, c, c_row, accumulate, skip_rows, skip_cols", path,
                        _correlate(dtype, path, rows, cols))


def _correlate_tile(m: int, k: int, dtype: str, path: cpu.Cpu) -> tuple[int, int]:
    """Rows and columns of the register block that covers m x k in the fewest estimated cycles."""
    free = path.registers - (1 if path.fma else 2)
    found = []
    for cols in range(1, min(k, path.lanes(itemsize(dtype)), 9) + 1):
        for rows in range(1, min(m, 9) + 1):
            if rows * cols + cols <= free:
                cycles = max(rows * cols, 1.5 * (rows + cols), 5) + 1
                found.append((-(-m // rows) * -(-k // cols) * cycles, rows, cols))
    return min(found)[1:]


@functools.cache
def _weight_gradient(dtype: str, path: cpu.Cpu, step: int, rows: int, cols: int) -> Leaf:
    size = itemsize(dtype)
    copy, multiply = copy_rows(dtype, path, step), correlate(dtype, path, rows, cols)

    @register_jitable
    def sum_rows(g, at, step, images, image_step, pixels, db, to, oc, accumulate):                                          # type: ignore
        for o in range(oc):
            total = g.dtype.type(0)
            for i in range(images):
                row = g[at + i * image_step + o * step:at + i * image_step + o * step + pixels]
                for p in range(pixels):
                    total += row[p]
            db[to + o] = db[to + o] + total if accumulate else total

    def conv_weight_gradient(x, g, dw_out, db_out, table, u, n, shares, c, khw, oc, oh, groups, block, together, channels, in_place,      # type: ignore
                             biased, lo, hi):
        h, w, ow, kw, pitch = table[0], table[1], table[2], table[3], table[11]
        offsets = _address(table) + HEAD * 8
        parts, k = (c + channels - 1) // channels, c * khw
        for unit in range(lo, hi):
            first = unit % parts * channels
            count = min(channels, c - first)
            group, share = unit // parts % groups, unit // (parts * groups)
            to = ((share * groups + group) * oc * k + first * khw) * size + _address(dw_out)
            n0, n1 = n * share // shares, n * (share + 1) // shares
            for image in range(n0, n1, together):
                images = min(together, n1 - image)
                planes = _address(x) + ((image * groups + group) * c + first) * h * w * size
                for row in range(0, oh, block):
                    accumulate = image > n0 or row > 0
                    base, image_step = planes + row * w * size, groups * c * h * w
                    if in_place == 0:
                        base, image_step = _address(u), count * kw * pitch
                        for i in range(images):
                            _unfold(copy, size, planes + i * groups * c * h * w * size, count, row, u, i * image_step, table)
                    pixels = min(block, oh - row) * ow
                    at = (image * groups + group) * oc * oh * ow + row * ow
                    if biased != 0 and first == 0:
                        sum_rows(g, at, oh * ow, images, groups * oc * oh * ow, pixels, db_out, (share * groups + group) * oc, oc,
                                 accumulate)
                    for from_o in range(0, oc, rows):
                        o = min(from_o, oc - rows)
                        for from_j in range(0, count * khw, cols):
                            j = min(from_j, count * khw - cols)
                            multiply(images, pixels, _address(g) + (at + o * oh * ow) * size, oh * ow * size,
                                     groups * oc * oh * ow * size, offsets + j * 8, base, image_step * size, to + (o * k + j) * size,
                                     k * size, accumulate, from_o - o, from_j - j)

    signature = "T[:], T[:], T[:], T[:], i8[:], T[w,:]" + ", i8" * 12 + ", lo, hi"
    return Leaf(conv_weight_gradient, signature.replace("T", dtype), key=f"{path.name} {step} {rows} {cols}",
                fastmath={"contract", "reassoc", "nsz", "arcp", "afn"})


@generic("T[:,:], T[r], lo, hi")
def add_shares(shares: Any, total: Any, lo: int, hi: int) -> None:
    """total[i] = the sum of shares[:, i], in order."""
    first = shares[0, lo:hi]
    for i in range(total.shape[0]):
        total[i] = first[i]
    for s in range(1, shares.shape[0]):
        row = shares[s, lo:hi]
        for i in range(total.shape[0]):
            total[i] += row[i]


def weight_gradient(g: Geometry, dtype: str, path: cpu.Cpu, biased: bool) -> list[Call]:
    """Weight gradient (output 0) and, when `biased`, bias gradient (1) from x (input 0) and dy (1)."""
    size = itemsize(dtype)
    block, together, channels = _weight_blocks(g, size)
    un = Unfolding(g, block)
    parts = -(-g.c // channels)
    shares = min(g.n, max(1, -(-UNITS // (parts * g.groups))))
    together = min(together, -(-g.n // shares))
    rows, cols = _correlate_tile(g.oc, g.kh * g.kw * (channels if g.c % channels == 0 else 1), dtype, path)
    leaf = _weight_gradient(dtype, path, g.step, rows, cols)
    weights, biases = g.groups * g.oc * g.k, g.groups * g.oc
    dw: Any = Work("weights", (shares * weights,), dtype) if shares > 1 else Out(0, (weights,))
    db: Any = dw if not biased else Work("bias", (shares * biases,), dtype) if shares > 1 else Out(1, (biases,))
    args = (In(0, (g.n * g.groups * g.c * g.h * g.w,)), In(1, (g.n * biases * g.oh * g.ow,)), dw, db,
            _table(un, channels), Work("unfolded", (1 if g.in_place else together * un.elements(channels),), dtype),
            g.n, shares, g.c, g.kh * g.kw, g.oc, g.oh, g.groups, block, together, channels, int(g.in_place), int(biased))
    calls = [_table_call(un, channels, size), Call(leaf, args, parts * g.groups * shares, 1, _cost(g, size, path))]
    if shares > 1:
        calls.append(_add_call("weights", 0, shares, weights, dtype))
        if biased:
            calls.append(_add_call("bias", 1, shares, biases, dtype))
    return calls


def _add_call(name: str, output: int, shares: int, n: int, dtype: str) -> Call:
    """Sum the shares `name` into an output."""
    return Call(add_shares[dtype], (Work(name, (shares, n), dtype), Out(output, (n,))), n, 1024, shares * n * 0.1)


def _weight_blocks(g: Geometry, size: int) -> tuple[int, int, int]:
    """Output rows and images that are summed in registers at a time, and input channels per unit of range.

    Summed are at least about LONG pixels, because each register block ends in a sum across its lanes; the unfolding of as many
    channels as then fit in the cache is shared by all output channels.
    """
    pixels = LONG
    if g.in_place:                                           # nothing is read twice but from the cache, so fit it all there
        pixels = max(128, min(LONG, CACHE // ((g.c + g.oc) * size)))
    block = min(g.oh, max(1, pixels // g.ow))
    together = max(1, min(g.n, pixels // (g.oh * g.ow))) if block == g.oh else 1
    if g.in_place:
        return block, together, max(1, min(g.c, CACHE // (together * block * g.ow * size)))
    bytes_per_channel = together * Unfolding(g, block).elements(1) * size
    return block, together, max(min(g.c, 4), min(g.c, CACHE // bytes_per_channel))


# ---- input gradient ------------------------------------------------------------------------------------------------------------

@generic("T[:], T[:], i8, i8, i8, i8, i8, i8, lo, hi")
def conv_turned(w: Any, turned: Any, c: int, kh: int, kw: int, oc: int, k: int, pitch: int, lo: int, hi: int) -> None:
    """Weights [groups][oc][c, kh, kw] as rows [groups][kh][c][kw] of oc elements, `pitch` apart; a unit of range is one row."""
    for unit in range(lo, hi):
        kx, channel = unit % kw, unit // kw % c
        ky, group = unit // (kw * c) % kh, unit // (kw * c * kh)
        source, row = group * oc * k + (channel * kh + ky) * kw + kx, turned[unit * pitch:unit * pitch + oc]
        for o in range(oc):
            row[o] = w[source + o * k]


@functools.cache
def _input_gradient(dtype: str, path: cpu.Cpu, step: int) -> Leaf:
    size = itemsize(dtype)
    multiply, fold, writes = outer(dtype), _fold(dtype, path, step), gathers(path, step)

    def conv_input_gradient(g, turned, dx, table, u, c, kh, oc, oh, groups, channels, turned_pitch, in_place, lo, hi):         # type: ignore
        h, w, ow, kw, sh, pitch = table[0], table[1], table[2], table[3], table[4], table[11]
        parts = (c + channels - 1) // channels
        covered = (in_place != 0 and kh == 1) or (in_place == 0 and writes and sh == 1)
        accumulate = in_place == 0 or kh > 1
        for unit in range(lo, hi):
            first, plane = unit % parts * channels, unit // parts
            count = min(channels, c - first)
            at = (plane * c + first) * h * w
            image = _address(dx) + at * size
            target = image
            if not covered:
                for i in range(at, at + count * h * w):
                    dx[i] = 0
            if in_place == 0:
                target = _address(u)
                for i in range(count * kw * pitch):
                    u[i] = 0
            for ky in range(kh):
                row = ((plane % groups * kh + ky) * c + first) * kw
                multiply(count * kw, oh * ow, oc, _address(turned) + row * turned_pitch * size, turned_pitch * size, size,
                         _address(g) + plane * oc * oh * ow * size, oh * ow * size, target + table[HEAD + ky * kw], pitch * size, accumulate)
            if in_place == 0:
                fold(image, count, u, table)

    signature = "T[:], T[:], T[:], i8[:], T[w,:]" + ", i8" * 8 + ", lo, hi"
    return Leaf(conv_input_gradient, signature.replace("T", dtype), key=f"{path.name} {step}")


def _flipped(g: Geometry) -> Geometry | None:
    """The input gradient as a convolution of dy with flipped weights, where that multiplies few zeros: stride 1, little padding lost."""
    top, left = (g.kh - 1) * g.dh - g.top, (g.kw - 1) * g.dw - g.left
    if g.sh != 1 or g.sw != 1 or top < 0 or left < 0 or g.h * g.w > 1.15 * g.oh * g.ow:
        return None
    return Geometry(g.n, g.groups, g.oc, g.oh, g.ow, g.c, g.h, g.w, g.kh, g.kw, 1, 1, g.dh, g.dw, top, left)


def input_gradient(g: Geometry, dtype: str, path: cpu.Cpu) -> list[Call]:
    """dx (output 0) from dy (input 0) and the weights (1)."""
    size = itemsize(dtype)
    if (flipped := _flipped(g)) is not None:
        return _products(flipped, dtype, path, False, (g.kh * g.kw, g.k, 1))
    un = Unfolding(g, g.oh)
    channels = g.c
    while channels > 1 and not g.in_place and un.elements(channels) * size > CACHE:
        channels = -(-channels // 2)
    wanted = -(-UNITS // max(1, g.n * g.groups))
    channels = min(channels, max(-(-g.c // wanted), min(g.c, 4)))
    weights = g.groups * g.oc * g.k
    pitch = g.oc if g.oc < 64 else g.oc + 16                 # rows a power of two apart would share cache sets
    turned = Work("turned", (g.groups * g.k * pitch,), dtype)
    turn = Call(conv_turned[dtype], (In(1, (weights,)), turned, g.c, g.kh, g.kw, g.oc, g.k, pitch), g.groups * g.k, 16, weights * 1.0)
    args = (In(0, (g.n * g.groups * g.oc * g.oh * g.ow,)), turned, Out(0, (g.n * g.groups * g.c * g.h * g.w,)),
            _table(un, 1), Work("unfolded", (1 if g.in_place else un.elements(channels),), dtype),
            g.c, g.kh, g.oc, g.oh, g.groups, channels, pitch, int(g.in_place))
    leaf = _input_gradient(dtype, path, g.step)
    return [_table_call(un, 1, size), turn, Call(leaf, args, g.n * g.groups * -(-g.c // channels), 1, _cost(g, size, path))]
