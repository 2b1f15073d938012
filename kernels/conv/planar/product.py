"""The forward convolution: panels of weights times the unfolded image, in register blocks of channels x pixel vectors.

The register blocks of a panel are a leaf of their own, called by its address: so the code around them is one for all of
their sizes.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ...elementwise.epilogue import Epilogue, arguments, finisher
from ...isa import cpu
from ...isa.vector import ELEMENTS, WORD, Emitter, define, itemsize, vector, word
from ...machine.call import Address, Call, In, Out, Work
from ...machine.called import CALLED, caller
from ...machine.emitted import EmittedLeaf, signature_of, words_of
from ...machine.leaf import Leaf, Numbers, generic
from ...machine.places import address_of, word_at
from ...pool.planes import Pooling, pooler
from ..panels import WeightPanels
from ..problem import UNITS, ConvProblem
from .geometry import CACHE, FIRST, Geometry, Unfolding, cost, geometry, planes, time
from .unfold import HEAD, copy_rows, form_of, table, unfold

__all__ = ["calls", "cost", "multiplier", "panels", "panels_of", "pools", "product_tile", "products", "register_blocks",
           "serves"]

DEPTH = 640               # products summed in registers at a time, about
POINTWISE = 192           # likewise where the kernel is one pixel: PyTorch's errors there are those of matrix products, smaller than elsewhere


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
        if path.mask_registers:                       # masked vectors cost nothing there
            emit_block(e, True, n, *args)
            return
        with e.b.if_else(e.b.icmp_signed(">=", n, word(vectors * lanes))) as (whole, part):
            with whole:
                emit_block(e, False, n, *args)
            with part:
                emit_block(e, True, n, *args)
    return emit


WORDS = "lines, pixels, k, a, offsets, b, b_line, bias, biased, c, c_line, c_row, accumulate, skip"
"""What a convolution hands the register blocks of a panel."""


def multiplier() -> Any:
    """The function `multiply(blocks, *WORDS)`, all intp, which runs `register_blocks`: `lines` lines of `pixels`
    pixels each, those of the image from `b` on and of the result from `c` on, `b_line` and `c_line` apart; the rest is
    `_product`'s. Addresses, strides in bytes."""
    return caller("register_blocks", WORDS)


@functools.cache
def register_blocks(dtype: str, path: cpu.Cpu, rows: int, vectors: int) -> Leaf:
    """What `multiplier` calls, for panels of so many rows, in blocks of so many vectors of pixels."""
    width, name = vectors * path.lanes(itemsize(dtype)), f"{dtype}_{path.name}_{rows}x{vectors}"

    def register_blocks(e: Emitter, at_words: Any, _lo: Any, _hi: Any) -> None:
        words = words_of(e, at_words, WORDS)
        lines, pixels, k, a, offsets, b, b_line, bias, biased, c, c_line, c_row, accumulate, skip = words
        block = define(e.b.module, f"tileflow_product_{name}", 11, path, _product(dtype, path, rows, vectors))

        def line(_: Any, at: list[Any]) -> list[Any]:
            def one(p: Any, _state: list[Any]) -> None:
                begin = e.times(p, itemsize(dtype))
                e.b.call(block, [e.b.sub(pixels, p), k, a, offsets, e.address(at[0], begin), bias, biased,
                                 e.address(at[1], begin), c_row, accumulate, skip])
            e.loop(0, pixels, width, [], one)
            return [e.address(at[0], b_line), e.address(at[1], c_line)]
        e.loop(0, lines, 1, [b, c], line)
    return EmittedLeaf(register_blocks, signature_of(WORDS), key=name, path=path)


def product_tile(m: int, pixels: int, dtype: str, path: cpu.Cpu) -> tuple[int, int]:
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


@dataclass(frozen=True)
class PlanarWeightSizes(Numbers):
    """Filters of a group and of a panel, channels, taps, elements between weights; `flip` reverses the taps."""

    oc: int
    rows: int
    c: int
    taps: int
    o_step: int
    c_step: int
    flip: int


@dataclass(frozen=True)
class PlanarSizes(Numbers):
    """Of a convolution, and how a unit of range cuts it: output rows, images, channels that are summed at a time,
    panels of weights of so many filters."""

    n: int
    c: int
    taps: int
    oc: int
    oh: int
    groups: int
    block: int
    together: int
    channels: int
    part: int
    rows: int
    in_place: int
    biased: int
    pooling: int                                             # bytes from `rest` to what the pooling reads there


@generic("T[:], T[:], numbers, lo, hi", numbers=PlanarWeightSizes)
def conv_planar_panels(w, panels, s, lo, hi):                                                                               # type: ignore
    """Weights of each group as panels [c, taps][rows]; the last panel of a group starts early enough to be as wide as the others.

    Weight [o, c, tap] of a group lies at o * o_step + c * c_step + tap; `flip` reverses the taps. A unit of range is a panel.
    """
    oc, rows, c, taps, o_step, c_step = s.oc, s.rows, s.c, s.taps, s.o_step, s.c_step
    per_group = (oc + rows - 1) // rows
    for unit in range(lo, hi):
        o = min(unit % per_group * rows, oc - rows)
        source = w[unit // per_group * oc * c * taps + o * o_step:]
        target = panels[unit * rows * c * taps:(unit + 1) * rows * c * taps]
        for channel in range(c):
            for tap in range(taps):
                to = (channel * taps + tap) * rows
                at = channel * c_step + (taps - 1 - tap if s.flip != 0 else tap)
                for i in range(rows):
                    target[to + i] = source[at + i * o_step]


@functools.cache
def _forward(dtype: str, path: cpu.Cpu, form: int, pooled: bool) -> Leaf:
    size, copy = itemsize(dtype), copy_rows(dtype, path, form)
    multiply, finish, pool = multiplier(), finisher(), pooler()

    def conv_forward(x, panels, bias, y, table, u, s, lo, hi, registers, epilogue, pooling, rest):      # type: ignore
        n, c, taps, oc, oh, groups, block, together, part = s.n, s.c, s.taps, s.oc, s.oh, s.groups, s.block, s.together, s.part
        rows = s.rows
        h, w, ow, kw, pitch = (word_at(table, 0), word_at(table, 1), word_at(table, 2), word_at(table, 3),
                               word_at(table, 11))
        blocks, tiles, sets = (oh + block - 1) // block, (oc + rows - 1) // rows, (n + together - 1) // together
        parts = (tiles + part - 1) // part
        for unit in range(lo, hi):
            first = unit % parts * part
            row = unit // parts % blocks * block
            image = unit // (parts * blocks) % sets * together
            group = unit // (parts * blocks * sets)
            images = min(together, n - image)
            pixels = min(block, oh - row) * ow
            for c0 in range(0, c, s.channels):
                count = min(s.channels, c - c0)
                base = address_of(x) + (((image * groups + group) * c + c0) * h + row) * w * size
                step_image = groups * c * h * w
                if s.in_place == 0:
                    step_image = s.channels * kw * pitch
                    for i in range(images):
                        plane = address_of(x) + (((image + i) * groups + group) * c + c0) * h * w * size
                        unfold(copy, size, plane, count, row, u, i * step_image, table)
                    base = address_of(u)
                for tile in range(first, min(first + part, tiles)):
                    o = min(tile * rows, oc - rows)
                    panel = address_of(panels) + ((group * tiles + tile) * c + c0) * taps * rows * size
                    to, step = ((image * groups + group) * oc + o) * oh + row, groups * oc * oh
                    if pooled:                          # y is scratch memory that holds the planes of this unit alone
                        to, step = (o - first * rows) * oh, part * rows * oh
                    multiply(registers, images, pixels, count * taps, panel, address_of(table) + HEAD * 8, base,
                             step_image * size, address_of(bias) + (group * oc + o) * size, s.biased != 0 and c0 == 0,
                             address_of(y) + to * ow * size, step * ow * size, oh * ow * size, c0 > 0, tile * rows - o)
            o = first * rows
            count = min(part * rows, oc - o)
            for i in range(images):
                plane = ((image + i) * groups + group) * oc + o
                base = address_of(y)
                if pooled:
                    base += (i * part * rows - plane) * oh * ow * size
                finish(epilogue, rest, count, pixels, base, (plane * oh + row) * ow, oh * ow, group * oc + o)
                pool(pooling, rest + s.pooling, count, oh, ow, base + plane * oh * ow * size, plane, group * oc + o)

    signature = f"T[:], T[:], T[:], {'T[w,:]' if pooled else 'T[:]'}, i8[:], T[w,:], numbers, lo, hi"
    return Leaf(conv_forward, signature.replace("T", dtype) + ", i8, i8" + CALLED,
                key=f"{path.name} {form} {pooled}", numbers=PlanarSizes)


def _product_blocks(g: Geometry, size: int) -> tuple[int, int, int]:
    """Output rows, images and input channels that a unit of range unfolds at a time.

    Products are summed over at most about DEPTH terms at a time, so that a panel of weights stays in the cache. Several images
    share it where one has few pixels; rows are cut where one image is too large, or where there are few images to share.
    """
    channels = -(-g.c // -(-g.k // (POINTWISE if g.kh * g.kw == 1 else DEPTH)))
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


def serves(p: ConvProblem, dtype: str, path: cpu.Cpu) -> bool:
    """Every convolution over planes."""
    return planes(p, dtype) and not p.turned


def calls(p: ConvProblem, dtype: str, path: cpu.Cpu, *, biased: bool = False, epilogue: Epilogue | None = None,
          packed: int = 0, pooling: Pooling | None = None) -> list[Call]:
    """y[n, groups * oc, *out] (output 0) from x (input 0), weights [groups * oc, c, *taps] (1) and bias (2, when `biased`).

    With `packed`, input 1 is what `panels` made of the weights. With `pooling`, where `pools` allows it, y is not kept: the
    outputs are those of the pooling.
    """
    return products(geometry(p), dtype, path, biased, None if packed else panels(p, dtype, path), epilogue, pooling)


def pools(p: ConvProblem, dtype: str, path: cpu.Cpu) -> bool:
    """The planes that a unit of range computes are whole, and few enough to be pooled while they are in the first-level cache.

    Larger ones are not worth it: 10 planes of 24 x 24 took 345 us pooled at once and 260 us in two passes.
    """
    if p.rank != 2 or not serves(p, dtype, path):
        return False
    g = geometry(p)
    rows, _, _ = _product_blocks(g, itemsize(dtype))
    return rows == g.oh and min(g.oh, g.ow) > 1 and _plane_elements(g, dtype, path) * itemsize(dtype) <= FIRST // 2


def _plane_elements(g: Geometry, dtype: str, path: cpu.Cpu) -> int:
    """Elements of the planes of one unit of range."""
    block, together, _ = _product_blocks(g, itemsize(dtype))
    rows, _ = product_tile(g.oc, block * g.ow, dtype, path)
    return together * min(g.oc, _part(g, block, together, rows) * rows) * g.oh * g.ow


def _part(g: Geometry, block: int, together: int, rows: int) -> int:
    """Panels of weights that a unit of range multiplies: fewer where there are few units."""
    units = -(-g.n // together) * g.groups * -(-g.oh // block)
    tiles = -(-g.oc // rows)
    return -(-tiles // min(tiles, -(-UNITS // units)))


def panels(p: ConvProblem, dtype: str, path: cpu.Cpu) -> WeightPanels:
    """How the weights are laid out."""
    g = geometry(p)
    return panels_of(g, dtype, path, (g.k, g.kh * g.kw, 0))


def panels_of(g: Geometry, dtype: str, path: cpu.Cpu, order: tuple[int, int, int], rows: int = 0) -> WeightPanels:
    """The panels of a convolution, of `rows` filters, with `o_step`, `c_step` and `flip` of its weights (see `conv_planar_panels`)."""
    rows = rows or product_tile(g.oc, _product_blocks(g, itemsize(dtype))[0] * g.ow, dtype, path)[0]
    tiles, weights = g.groups * -(-g.oc // rows), g.groups * g.oc * g.k
    args = (In(0, (weights,)), Out(0, (tiles * rows * g.k,)), PlanarWeightSizes(g.oc, rows, g.c, g.kh * g.kw, *order))
    return WeightPanels(tiles * rows * g.k, (Call(conv_planar_panels[dtype], args, tiles, 1, weights * 0.7),))


def products(g: Geometry, dtype: str, path: cpu.Cpu, biased: bool, laid: WeightPanels | None,
             epilogue: Epilogue | None = None, pooling: Pooling | None = None) -> list[Call]:
    """The calls of the convolution g: of those of `laid` first, or with laid-out weights as input 1."""
    size = itemsize(dtype)
    block, together, channels = _product_blocks(g, size)
    un = Unfolding(g, block)
    rows, vectors = product_tile(g.oc, block * g.ow, dtype, path)
    units = -(-g.n // together) * g.groups * -(-g.oh // block)
    tiles = -(-g.oc // rows)
    part = _part(g, block, together, rows)
    y: Out | Work = Out(0, (g.n * g.groups * g.oc * g.oh * g.ow,))
    if pooling is not None:
        y = Work("planes", (together * part * rows * g.oh * g.ow,), dtype)
    weights = In(1, (g.groups * tiles * rows * g.k,)) if laid is None else laid.work(dtype)
    finished, *operands = arguments(epilogue, channels="rows")
    args = (In(0, (g.n * g.groups * g.c * g.h * g.w,)), weights, In(2, (g.groups * g.oc,)) if biased else weights,
            y, table(un, channels, size), Work("unfolded", (1 if g.in_place else together * un.elements(channels),), dtype),
            PlanarSizes(g.n, g.c, g.kh * g.kw, g.oc, g.oh, g.groups, block, together, channels, part, rows,
                        int(g.in_place), int(biased), 8 * sum(p.words for p in finished.parameters)),
            Address(register_blocks(dtype, path, rows, vectors)), finished, pooling.address if pooling else Address(),
            *operands, *(pooling.args if pooling else []))
    leaf = _forward(dtype, path, form_of(g.step), pooling is not None)
    total = time(g, size, path) + (epilogue.cost if epilogue else 0.0) + (pooling.cost if pooling else 0.0)
    before = [] if laid is None else laid.inside(dtype)
    return [*before, Call(leaf, args, units * -(-tiles // part), 1, total)]
