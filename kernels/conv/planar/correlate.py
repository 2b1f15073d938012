"""The weight gradient: dot products of output gradients and the unfolded image along the pixels, over several images.

The register blocks are a leaf of their own, called by its address, as those of the forward convolution are.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ...gemm.micro import add_dots, dot_totals
from ...isa import cpu
from ...isa.vector import WORD, Emitter, define, itemsize, vector, word
from ...machine.call import Address, Call, In, Out, Work
from ...machine.called import CALLED, caller
from ...machine.emitted import EmittedLeaf, signature_of, words_of
from ...machine.leaf import Leaf, Numbers, generic
from ...machine.places import address_of, word_at
from ...sums import row_sums
from ..problem import UNITS, ConvProblem, speed
from .geometry import CACHE, Geometry, Unfolding, geometry, planes, rate, time
from .unfold import HEAD, copy_rows, form_of, table, unfold

LONG = 1024               # pixels that a dot product sums in registers, about
RATE = 0.9                # speed as a part of a path's rate: ResNet's shapes on one AVX2 core


def _correlate(dtype: str, path: cpu.Cpu, rows: int, cols: int) -> Any:
    """Register block: c[i, j] (+)= sum over images and p < pixels of a[image, i, p] * u[image, offsets[j] + p].

    The first `skip_rows` rows and `skip_cols` columns are not written: another block has them.
    """
    lanes = path.lanes(itemsize(dtype))
    kind = vector(dtype, lanes)

    def emit(e: Emitter, images: Any, pixels: Any, a: Any, a_row: Any, a_image: Any, offsets: Any, u: Any, u_image: Any, c: Any,
             c_row: Any, accumulate: Any, skip_rows: Any, skip_cols: Any) -> None:
        shifts = [e.load(e.address(offsets, 8 * j), WORD) for j in range(cols)]

        def image(_i: Any, state: list[Any]) -> list[Any]:
            a, u, *sums = state
            lefts = [e.address(a, e.times(a_row, i)) for i in range(rows)]
            sums = add_dots(e, dtype, pixels, lefts, [e.address(u, shift) for shift in shifts], sums)
            return [e.address(a, a_image), e.address(u, u_image), *sums]

        zero = ir.Constant(kind, None)
        _, _, *sums = e.loop(0, images, 1, [a, u] + [zero] * (rows * cols), image)
        totals = dot_totals(e, sums)
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


WORDS = "oc, k, images, pixels, a, a_row, a_image, offsets, u, u_image, c, c_row, accumulate"
"""What the convolution hands the register blocks: rows and columns of what they cover, then what `_correlate` asks for;
addresses, strides in bytes."""


@functools.cache
def correlating_blocks(dtype: str, path: cpu.Cpu, rows: int, cols: int) -> Leaf:
    """All of oc x k products by blocks of so many rows and columns, the last ones of which overlap the ones before."""
    name = f"{dtype}_{path.name}_{rows}x{cols}"

    def correlating_blocks(e: Emitter, at_words: Any, _lo: Any, _hi: Any) -> None:
        words = words_of(e, at_words, WORDS)
        oc, k, images, pixels, a, a_row, a_image, offsets, u, u_image, c, c_row, accumulate = words
        block = define(e.b.module, f"tileflow_correlate_{name}", 13, path, _correlate(dtype, path, rows, cols))

        def down(from_o: Any, _: list[Any]) -> None:
            o = e.minimum(from_o, e.b.sub(oc, word(rows)))

            def across(from_j: Any, _: list[Any]) -> None:
                j = e.minimum(from_j, e.b.sub(k, word(cols)))
                left, to = e.address(a, e.b.mul(o, a_row)), e.address(c, e.b.mul(o, c_row), e.times(j, itemsize(dtype)))
                e.b.call(block, [images, pixels, left, a_row, a_image, e.address(offsets, e.times(j, 8)), u, u_image,
                                 to, c_row, accumulate, e.b.sub(from_o, o), e.b.sub(from_j, j)])
            e.loop(0, k, cols, [], across)
        e.loop(0, oc, rows, [], down)
    return EmittedLeaf(correlating_blocks, signature_of(WORDS), key=name, path=path)


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


@dataclass(frozen=True)
class CorrelateSizes(Numbers):
    """Of a convolution, and how sums and units are cut: shares of the images, output rows, images and channels at a time."""

    n: int
    shares: int
    c: int
    taps: int
    oc: int
    oh: int
    groups: int
    block: int
    together: int
    channels: int
    in_place: int
    biased: int


@functools.cache
def _weight_gradient(dtype: str, path: cpu.Cpu, form: int) -> Leaf:
    size = itemsize(dtype)
    copy, multiply = copy_rows(dtype, path, form), caller("correlating_blocks", WORDS)
    sum_rows = row_sums(dtype)

    def conv_weight_gradient(x, g, dw_out, db_out, table, u, s, lo, hi, registers, rest):               # type: ignore
        n, shares, c, khw, oc, oh, groups, block, channels = s.n, s.shares, s.c, s.taps, s.oc, s.oh, s.groups, s.block, s.channels
        h, w, ow, kw, pitch = (word_at(table, 0), word_at(table, 1), word_at(table, 2), word_at(table, 3),
                               word_at(table, 11))
        offsets = address_of(table) + HEAD * 8
        parts, k = (c + channels - 1) // channels, c * khw
        for unit in range(lo, hi):
            first = unit % parts * channels
            count = min(channels, c - first)
            group, share = unit // parts % groups, unit // (parts * groups)
            to = ((share * groups + group) * oc * k + first * khw) * size + address_of(dw_out)
            n0, n1 = n * share // shares, n * (share + 1) // shares
            for image in range(n0, n1, s.together):
                images = min(s.together, n1 - image)
                planes = address_of(x) + ((image * groups + group) * c + first) * h * w * size
                for row in range(0, oh, block):
                    accumulate = image > n0 or row > 0
                    base, image_step = planes + row * w * size, groups * c * h * w
                    if s.in_place == 0:
                        base, image_step = address_of(u), count * kw * pitch
                        for i in range(images):
                            unfold(copy, size, planes + i * groups * c * h * w * size, count, row, u, i * image_step, table)
                    pixels = min(block, oh - row) * ow
                    at = (image * groups + group) * oc * oh * ow + row * ow
                    if s.biased != 0 and first == 0:
                        sum_rows(address_of(g) + at * size, oc, oh * ow * size, images, groups * oc * oh * ow * size,
                                 pixels, address_of(db_out) + (share * groups + group) * oc * size, accumulate)
                    multiply(registers, oc, count * khw, images, pixels, address_of(g) + at * size, oh * ow * size,
                             groups * oc * oh * ow * size, offsets, base, image_step * size, to, k * size, accumulate)

    signature = "T[:], T[:], T[:], T[:], i8[:], T[w,:], numbers, lo, hi"
    return Leaf(conv_weight_gradient, signature.replace("T", dtype) + CALLED, key=f"{path.name} {form}",
                numbers=CorrelateSizes)


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


def serves(p: ConvProblem, dtype: str, path: cpu.Cpu) -> bool:
    """Every convolution over planes."""
    return planes(p, dtype)


def cost(p: ConvProblem, dtype: str, path: cpu.Cpu) -> float:
    """Estimated nanoseconds on one core, from measured rates, to be compared with other kernels'."""
    return p.flops / (speed(dtype, path) * rate(p, dtype, path, RATE, RATE))


def calls(p: ConvProblem, dtype: str, path: cpu.Cpu, *, biased: bool) -> list[Call]:
    """Weight gradient (output 0) and, when `biased`, bias gradient (1) from x (input 0) and dy (1)."""
    g, size = geometry(p), itemsize(dtype)
    block, together, channels = _weight_blocks(g, size)
    un = Unfolding(g, block)
    parts = -(-g.c // channels)
    shares = min(g.n, max(1, -(-UNITS // (parts * g.groups))))
    together = min(together, -(-g.n // shares))
    rows, cols = _correlate_tile(g.oc, g.kh * g.kw * (channels if g.c % channels == 0 else 1), dtype, path)
    leaf = _weight_gradient(dtype, path, form_of(g.step))
    weights, biases = g.groups * g.oc * g.k, g.groups * g.oc
    dw: Any = Work("weights", (shares * weights,), dtype) if shares > 1 else Out(0, (weights,))
    db: Any = dw if not biased else Work("bias", (shares * biases,), dtype) if shares > 1 else Out(1, (biases,))
    args = (In(0, (g.n * g.groups * g.c * g.h * g.w,)), In(1, (g.n * biases * g.oh * g.ow,)), dw, db,
            table(un, channels, size), Work("unfolded", (1 if g.in_place else together * un.elements(channels),), dtype),
            CorrelateSizes(g.n, shares, g.c, g.kh * g.kw, g.oc, g.oh, g.groups, block, together, channels,
                           int(g.in_place), int(biased)), Address(correlating_blocks(dtype, path, rows, cols)))
    done = [Call(leaf, args, parts * g.groups * shares, 1, time(g, size, path))]
    if shares > 1:
        done.append(_add_call("weights", 0, shares, weights, dtype))
        if biased:
            done.append(_add_call("bias", 1, shares, biases, dtype))
    return done


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
