"""Depthwise convolution over channels-last images: vectors run along the channels, addresses come from the table of indirection.py.

One filter per channel: y[p, k] = bias[k] + sum over taps t of w[t, k] * x[p + t, k]. The weight gradient sums x[p + t, k] * dy[p, k] over pixels.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ..elementwise.epilogue import Epilogue, arguments, finisher
from ..isa import cpu
from ..isa.half import HALVES, narrow, read, stored, summed
from ..isa.vector import WORD, Emitter, as_intrinsic, itemsize, vector, word
from ..machine.call import Call, In, Out, Work
from ..machine.called import CALLED
from ..machine.leaf import Leaf, Numbers, generic
from ..machine.places import address_of
from .indirection import fill_table, phase_pixels, phase_taps, taps_before
from .panels import WeightPanels, converted, rounded_results
from .planar.correlate import add_shares
from .problem import UNITS, ConvProblem, speed
from .weights import sum_rows

PIXELS = 64               # pixels of a unit of range, about
SUMMED = 256              # pixels that the weight gradient sums in registers at a time
BLOCK = (4, 2)            # pixels and vectors of channels of a register block
SPEED = 0.5               # of a path's rate: a load for each product
RATE, STRIDED = 0.4, 0.22
"""Measured speed as a part of a path's rate, to be compared with the planar kernels', without and with strides."""


def _chunks(e: Emitter, lanes: int, vectors: int, channels: Any, chunk: Any) -> None:
    """`chunk(k, masks)` for the channels from k on, `vectors` of `lanes` at a time, the last ones masked or one by one."""
    wide = vectors * lanes
    whole = e.b.sdiv(channels, word(wide))
    whole = e.times(whole, wide)
    e.loop(0, whole, wide, [], lambda k, _s: chunk(k, [None] * vectors))
    e.loop(whole, channels, lanes, [], lambda k, _s: chunk(k, [e.first(e.b.sub(channels, k), lanes)]))


def _depthwise(dtype: str, path: cpu.Cpu) -> Any:
    (rows, vectors), given, made = BLOCK, itemsize(dtype), summed(dtype)
    size, lanes = itemsize(made), path.lanes(itemsize(made))
    kind = vector(made, lanes)

    def emit(e: Emitter, channels: Any, taps: Any, sources: Any, tap_step: Any, w: Any, bias: Any, biased: Any, places: Any) -> None:
        targets = [e.load(e.address(places, 8 * i), WORD) for i in range(rows)]
        w_step = e.times(channels, size)

        def chunk(k: Any, masks: list[Any]) -> None:
            offsets = [e.address(e.times(k, given), v * lanes * given) for v in range(len(masks))]
            rows_of_w = [e.address(e.times(k, size), v * lanes * size) for v in range(len(masks))]
            none = ir.Constant(kind, None)
            start = []
            for offset, mask in zip(offsets, masks, strict=True):
                value = read(e, dtype, e.address(bias, offset), lanes, mask)
                start.append(e.b.select(e.b.icmp_signed("!=", biased, word(0)), value, none))

            def tap(_t: Any, state: list[Any]) -> list[Any]:
                table, at_w, *sums = state
                factors = [e.load(e.address(at_w, o), kind, m) for o, m in zip(rows_of_w, masks, strict=True)]
                for i in range(rows):
                    row = e.load(e.address(table, 8 * i), WORD)
                    for v, (offset, mask) in enumerate(zip(offsets, masks, strict=True)):
                        at = i * len(masks) + v
                        sums[at] = e.fma(read(e, dtype, e.address(row, offset), lanes, mask), factors[v], sums[at])
                return [e.address(table, tap_step), e.address(at_w, w_step), *sums]

            _, _, *sums = e.loop(0, taps, 1, [sources, w, *(start * rows)], tap)
            for i in range(rows):
                for v, (offset, mask) in enumerate(zip(offsets, masks, strict=True)):
                    total = sums[i * len(masks) + v]
                    e.store(narrow(e, dtype, total) if dtype in HALVES else total, e.address(targets[i], offset), mask)
        _chunks(e, lanes, vectors, channels, chunk)
    return emit


def _depthwise_weights(dtype: str, path: cpu.Cpu, taps: int) -> Any:
    vectors, given, made = 4, itemsize(dtype), summed(dtype)
    size, lanes = itemsize(made), path.lanes(itemsize(made))
    kind = vector(made, lanes)

    def emit(e: Emitter, channels: Any, pixels: Any, sources: Any, tap_step: Any, g: Any, dw: Any, accumulate: Any) -> None:
        row_step, sums_step = e.times(channels, given), e.times(channels, size)
        adding = e.b.icmp_signed("!=", accumulate, word(0))

        def chunk(k: Any, masks: list[Any]) -> None:
            count = len(masks)
            offsets = [e.address(e.times(k, given), v * lanes * given) for v in range(count)]
            zero = ir.Constant(kind, None)
            before = [e.address(dw, e.times(sums_step, t), e.times(k, size), v * lanes * size) for t in range(taps) for v in range(count)]

            def pixel(_p: Any, state: list[Any]) -> list[Any]:
                table, at_g, *sums = state
                right = [read(e, dtype, e.address(at_g, o), lanes, m) for o, m in zip(offsets, masks, strict=True)]
                for t in range(taps):
                    row = e.load(e.address(table, e.times(tap_step, t)), WORD)
                    for v in range(count):
                        at = t * count + v
                        sums[at] = e.fma(read(e, dtype, e.address(row, offsets[v]), lanes, masks[v]), right[v], sums[at])
                return [e.address(table, 8), e.address(at_g, row_step), *sums]

            _, _, *sums = e.loop(0, pixels, 1, [sources, g, *([zero] * (taps * count))], pixel)
            with e.b.if_else(adding) as (add, write):
                with add:
                    for at, (total, place) in enumerate(zip(sums, before, strict=True)):
                        e.store(e.b.fadd(e.load(place, kind, masks[at % count]), total), place, masks[at % count])
                with write:
                    for at, (total, place) in enumerate(zip(sums, before, strict=True)):
                        e.store(total, place, masks[at % count])
        _chunks(e, lanes, vectors, channels, chunk)
    return emit


@dataclass(frozen=True)
class DepthwiseSizes(Numbers):
    """Images, channels, pixels of a unit of range; whether there is a bias."""

    n: int
    c: int
    pixels: int
    biased: int


@dataclass(frozen=True)
class DepthwiseWeightSizes(Numbers):
    """Of the weight gradient: channels and taps, and how the sums over pixels are cut into shares of blocks."""

    c: int
    taps: int
    shares: int
    blocks: int
    pixels: int
    biased: int


@functools.cache
def _leaf(dtype: str, path: cpu.Cpu) -> Leaf:
    size, rows, wide = itemsize(dtype), BLOCK[0], itemsize(summed(dtype))
    multiply = as_intrinsic(f"tileflow_depthwise_{dtype}_{path.name}", "channels, taps, sources, tap_step, w, bias, biased, places", path,
                            _depthwise(dtype, path))
    finish = finisher()

    def conv_depthwise(x, w, bias, y, indirection, table, spare, s, lo, hi, epilogue, rest):  # type: ignore
        c, pixels = s.c, s.pixels
        blocks = (s.n * phase_pixels(indirection, 0) + pixels - 1) // pixels
        pitch = (pixels + rows - 1) // rows * rows
        addresses, zero = address_of(table), address_of(spare)
        for i in range(c):
            spare[i] = 0
        for unit in range(lo, hi):
            first, phase = unit % blocks * pixels, unit // blocks
            count = min(pixels, s.n * phase_pixels(indirection, phase) - first)
            if count <= 0:
                continue
            fill_table(indirection, phase, first, count, address_of(x), c * size, address_of(y), c * size, zero, zero + c * size, table, pitch)
            taps, factors = phase_taps(indirection, phase), address_of(w) + taps_before(indirection, phase) * c * wide
            for p in range(0, count, rows):
                multiply(c, taps, addresses + (pitch + p) * 8, pitch * 8, factors, address_of(bias), s.biased, addresses + p * 8)
            finish(epilogue, rest, count, c, address_of(y), first * c, c, 0)

    signature = f"T[:], {summed(dtype)}[:], T[:], T[:], i8[:], i8[w,:], T[w,:], numbers, lo, hi{CALLED}"
    return Leaf(conv_depthwise, signature.replace("T", dtype), key=path.name, numbers=DepthwiseSizes)


@generic("T[:], T[:], i8[:], i8, lo, hi")
def conv_depthwise_rows(w, rows, order, c, lo, hi):                                                                         # type: ignore
    """Weights [c, taps] as rows [tap, phase by phase][c]; a unit of range is a row."""
    for unit in range(lo, hi):
        row = rows[unit * c:(unit + 1) * c]
        for i in range(c):
            row[i] = w[i * order.shape[0] + order[unit]]


def serves(p: ConvProblem, dtype: str, path: cpu.Cpu) -> bool:
    """One channel and one filter to a group."""
    return p.depthwise


def cost(p: ConvProblem, dtype: str, path: cpu.Cpu) -> float:
    """Estimated nanoseconds on one core, with laid-out weights, from measured rates."""
    return p.flops / (speed(summed(dtype), path) * (STRIDED if strided(p) else RATE))


def strided(p: ConvProblem) -> bool:
    """Whether the convolution, or the one of which this is the gradient, takes steps."""
    return any(a.in_step * a.out_step > 1 for a in p.axes)


def calls(p: ConvProblem, dtype: str, path: cpu.Cpu, *, biased: bool = False, epilogue: Epilogue | None = None,
          packed: int = 0) -> list[Call]:
    """y [n, *out, c] (output 0) from x (input 0), weights [c, 1, *taps] (1) and, when `biased`, a bias (2).

    With `packed`, input 1 is what `panels` made of the weights.
    """
    c, made = p.groups, summed(dtype)
    pixels = max(BLOCK[0], min(PIXELS, -(-p.phase_pixels // UNITS)))
    pitch = -(-pixels // BLOCK[0]) * BLOCK[0]
    laid = None if packed else panels(p, dtype, path)
    rows = In(1, (p.taps * c,)) if laid is None else laid.work(made)
    x = In(0, (p.elements_in,))
    args = (x, rows, In(2, (c,)) if biased else x, Out(0, (p.elements_out,)), p.indirection,
            Work("table", ((1 + p.taps) * pitch,), "i8"), Work("spare", (2 * c,), stored(dtype)),
            DepthwiseSizes(p.n, c, pixels, int(biased)), *arguments(epilogue))
    estimate = p.flops / (SPEED * speed(made, path)) + (epilogue.cost if epilogue else 0.0)
    before = [] if laid is None else laid.inside(made)
    return [*before, Call(_leaf(dtype, path), args, -(-p.phase_pixels // pixels) * p.phases, 1, estimate)]


def panels(p: ConvProblem, dtype: str, path: cpu.Cpu) -> WeightPanels:
    """How the weights are laid out: a row of channels to each tap."""
    made, given = summed(dtype), In(0, (p.weights,))
    weights: In | Work = given if made == dtype else Work("wide", (p.weights,), made)
    turn = Call(conv_depthwise_rows[made], (weights, Out(0, (p.weights,)), p.tap_order, p.groups), p.taps, 1, p.weights * 1.0)
    return WeightPanels(p.weights,
                        (turn,) if isinstance(weights, In) else (converted(given, dtype, weights, made), turn))


@functools.cache
def _weights_leaf(dtype: str, path: cpu.Cpu, together: int) -> Leaf:
    size, wide = itemsize(dtype), itemsize(summed(dtype))
    multiply = as_intrinsic(f"tileflow_depthwise_weights_{dtype}_{path.name}_{together}",
                            "channels, pixels, sources, tap_step, g, dw, accumulate", path, _depthwise_weights(dtype, path, together))

    add_rows = sum_rows(dtype, path)

    def conv_depthwise_weights(x, g, dw, db, indirection, table, spare, s, lo, hi):                                         # type: ignore
        c, taps, shares, pixels = s.c, s.taps, s.shares, s.pixels
        total, zero = g.shape[0] // c, address_of(spare)
        for i in range(c):
            spare[i] = 0
        for share in range(lo, hi):
            for block in range(s.blocks * share // shares, s.blocks * (share + 1) // shares):
                first, accumulate = block * pixels, block > s.blocks * share // shares
                count = min(pixels, total - first)
                fill_table(indirection, 0, first, count, address_of(x), c * size, 0, 0, zero, 0, table, count)
                if s.biased != 0:
                    add_rows(g, first * c, count, c, c, db[share * c:], accumulate, spare[c:])
                for tap in range(0, taps, together):
                    multiply(c, count, address_of(table) + (1 + tap) * count * 8, count * 8, address_of(g) + first * c * size,
                             address_of(dw) + (share * taps + tap) * c * wide, accumulate)

    signature = f"{dtype}[:], {dtype}[:], T[:], T[:], i8[:], i8[w,:], T[w,:], numbers, lo, hi"
    return Leaf(conv_depthwise_weights, signature.replace("T", summed(dtype)), key=f"{path.name} {together}",
                numbers=DepthwiseWeightSizes)


@generic("T[:,:,:], T[r,:], lo, hi")
def conv_depthwise_turn(work, dw, lo, hi):                                                                                    # type: ignore
    """dw[channel, tap] = the sum over shares of work[share, tap, channel], in order."""
    for i in range(dw.shape[0]):
        for tap in range(dw.shape[1]):
            total = work[0, tap, lo + i]
            for share in range(1, work.shape[0]):
                total += work[share, tap, lo + i]
            dw[i, tap] = total


def weight_gradient(p: ConvProblem, dtype: str, path: cpu.Cpu, *, biased: bool) -> list[Call]:
    """dw [c, 1, *taps] (output 0) and, when `biased`, db (1) of the depthwise convolution `p` from x (input 0) and dy (1)."""
    made, c, total = summed(dtype), p.groups, p.n * p.pixels_out
    blocks = -(-total // SUMMED)
    pixels = -(-total // blocks)
    shares = min(blocks, UNITS)
    together = 3 if p.taps % 3 == 0 else 1
    dw = Work("weights", (shares * p.taps * c,), made)
    db: Any = dw if not biased else Work("bias", (shares * c,), made) if shares > 1 else Out(1, (c,))
    args = (In(0, (p.elements_in,)), In(1, (total * c,)), dw, db, p.indirection, Work("table", ((1 + p.taps) * pixels,), "i8"),
            Work("spare", (3 * c,), made), DepthwiseWeightSizes(c, p.taps, shares, blocks, pixels, int(biased)))
    turn = Call(conv_depthwise_turn[made], (Work("weights", (shares, p.taps, c), made), Out(0, (c, p.taps))), c, 64, shares * p.taps * c * 1.0)
    done = [Call(_weights_leaf(dtype, path, together), args, shares, 1, p.flops / (SPEED * speed(made, path))), turn]
    if biased and shares > 1:
        done.append(Call(add_shares[made], (Work("bias", (shares, c), made), Out(1, (c,))), c, 1024, shares * c * 0.1))
    return rounded_results(done, dtype)
