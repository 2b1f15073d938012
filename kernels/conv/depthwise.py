"""Depthwise convolution over channels-last images: vectors run along the channels, addresses come from the table of indirection.py.

One filter per channel: y[p, k] = bias[k] + sum over taps t of w[t, k] * x[p + t, k]. The weight gradient sums x[p + t, k] * dy[p, k] over pixels.
Neighbours in a line of outputs meet the same pixels: those are read once for all of them (`_line`), with the sums of
`_depthwise`, bit by bit.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ..elementwise.epilogue import Epilogue, arguments, finisher
from ..isa import cpu
from ..isa.half import HALVES, narrow, read, stored, summed
from ..isa.vector import WORD, Emitter, inlined_code, itemsize, vector, word
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
ALONG = {(taps, step) for taps in (3, 5, 7) for step in (1, 2)}
"""Taps and steps along a line for which there is code that reads a pixel once for a block of outputs."""
CHANNELS = 64             # of a pixel that are done in turn, at least: fewer are no stream to the hardware (AVX2: 0.6)
AHEAD = 48                # pixels after a line's block that are asked for, where images lie beyond the caches
SPEED = 0.5               # of a path's rate: a load for each product
RATE, STRIDED = 0.4, 0.22
"""Measured speed as a part of a path's rate, to be compared with the planar kernels', without and with strides."""
LINE, LINE_STRIDED = {3: 0.5, 5: 0.8, 7: 0.8}, {3: 0.35, 5: 0.4, 7: 0.4}
"""Likewise along lines, by their taps, where registers hold a line's weights for two vectors; else planes stay as good
as they were."""


def _chunks(e: Emitter, lanes: int, vectors: int, first: Any, last: Any, chunk: Any) -> None:
    """`chunk(k, masks)` for the channels first..last, from k on, `vectors` of `lanes` at a time, the last ones masked
    or one by one."""
    wide = vectors * lanes
    whole = e.b.add(first, e.times(e.b.sdiv(e.b.sub(last, first), word(wide)), wide))
    e.loop(first, whole, wide, [], lambda k, _s: chunk(k, [None] * vectors))
    e.loop(whole, last, lanes, [], lambda k, _s: chunk(k, [e.first(e.b.sub(last, k), lanes)]))


def _begun(e: Emitter, dtype: str, lanes: int, k: Any, masks: list[Any], bias: Any,
           biased: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """For vectors of channels from k on, one for each mask: where they lie from a pixel's address on, and from that of
    a tap's weights on; and the sums of an output before its first tap, which are the bias or zero."""
    given, size, none = itemsize(dtype), itemsize(summed(dtype)), ir.Constant(vector(summed(dtype), lanes), None)
    offsets = [e.address(e.times(k, given), v * lanes * given) for v in range(len(masks))]
    rows_of_w = [e.address(e.times(k, size), v * lanes * size) for v in range(len(masks))]
    start = []
    for offset, mask in zip(offsets, masks, strict=True):
        value = read(e, dtype, e.address(bias, offset), lanes, mask)
        start.append(e.b.select(e.b.icmp_signed("!=", biased, word(0)), value, none))
    return offsets, rows_of_w, start


def _stored(e: Emitter, dtype: str, sums: list[Any], targets: list[Any], offsets: list[Any], masks: list[Any]) -> None:
    """Write the sums [output][vector] of a register block."""
    for i, target in enumerate(targets):
        for v, (offset, mask) in enumerate(zip(offsets, masks, strict=True)):
            total = sums[i * len(masks) + v]
            e.store(narrow(e, dtype, total) if dtype in HALVES else total, e.address(target, offset), mask)


def _depthwise(dtype: str, path: cpu.Cpu) -> Any:
    (rows, vectors), made = BLOCK, summed(dtype)
    size, lanes = itemsize(made), path.lanes(itemsize(made))
    kind = vector(made, lanes)

    def emit(e: Emitter, low: Any, high: Any, channels: Any, taps: Any, sources: Any, tap_step: Any, w: Any, bias: Any,
             biased: Any, places: Any) -> None:
        targets = [e.load(e.address(places, 8 * i), WORD) for i in range(rows)]
        w_step = e.times(channels, size)

        def chunk(k: Any, masks: list[Any]) -> None:
            offsets, rows_of_w, start = _begun(e, dtype, lanes, k, masks, bias, biased)

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
            _stored(e, dtype, sums, targets, offsets, masks)
        _chunks(e, lanes, vectors, low, high, chunk)
    return emit


def _line(dtype: str, path: cpu.Cpu, along: int, step: int, asks: bool) -> Any:
    """Likewise for outputs of one line: `along` taps to each of `lines`, a pixel for each `step`. Addresses are
    `pixel_step` bytes from output to output, which is below 0 where taps go backwards: the last output then is the
    first one. Where it `asks`, outputs AHEAD pixels on, and what those of a single step meet first, are asked for."""
    rows, made = BLOCK[0], summed(dtype)
    size, lanes = itemsize(made), path.lanes(itemsize(made))
    vectors = BLOCK[1] if BLOCK[1] * (along + rows + 1) < path.registers else 1  # a line's weights, sums and a pixel
    kind = vector(made, lanes)

    def emit(e: Emitter, low: Any, high: Any, channels: Any, lines: Any, sources: Any, tap_step: Any, pixel_step: Any,
             w: Any, bias: Any, biased: Any, places: Any) -> None:
        targets = [e.load(e.address(places, e.times(pixel_step, i)), WORD) for i in range(rows)]
        w_step = e.times(channels, size)

        def ask(offsets: list[Any]) -> None:
            """For the pixels of another block: the hardware takes parts of pixels for no stream."""
            ahead = e.times(channels, AHEAD * itemsize(dtype))
            last = e.b.mul(tap_step, e.b.sub(e.times(lines, along), word(1)))
            newest = e.address(sources, e.b.select(e.b.icmp_signed(">", pixel_step, word(0)), last, word(0)))
            for i, target in enumerate(targets):
                pixel = e.load(e.address(newest, e.times(pixel_step, i)), WORD) if step == 1 else None
                for offset in offsets:
                    e.prefetch(e.address(target, offset, ahead), write=True)
                    if pixel is not None:
                        e.prefetch(e.address(pixel, offset, ahead), locality=2)

        def chunk(k: Any, masks: list[Any]) -> None:
            offsets, rows_of_w, start = _begun(e, dtype, lanes, k, masks, bias, biased)
            count = len(masks)
            if asks:
                ask(offsets)

            def line(_l: Any, state: list[Any]) -> list[Any]:
                table, at_w, *sums = state
                factors = [[e.load(e.address(at_w, e.times(w_step, t), o), kind, m)
                            for o, m in zip(rows_of_w, masks, strict=True)]
                           for t in range(along)]
                for column in range(along + step * (rows - 1)):
                    own = min(column // step, rows - 1)                              # an output that meets it
                    row = e.load(e.address(table, e.times(tap_step, column - step * own), e.times(pixel_step, own)),
                                 WORD)
                    for v, (offset, mask) in enumerate(zip(offsets, masks, strict=True)):
                        pixel = read(e, dtype, e.address(row, offset), lanes, mask)
                        for i in range(rows):
                            if 0 <= column - step * i < along:
                                sums[i * count + v] = e.fma(pixel, factors[column - step * i][v], sums[i * count + v])
                return [e.address(table, e.times(tap_step, along)), e.address(at_w, e.times(w_step, along)), *sums]

            _, _, *sums = e.loop(0, lines, 1, [sources, w, *(start * rows)], line)
            _stored(e, dtype, sums, targets, offsets, masks)
        _chunks(e, lanes, vectors, low, high, chunk)
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
        _chunks(e, lanes, vectors, word(0), channels, chunk)
    return emit


@dataclass(frozen=True)
class DepthwiseSizes(Numbers):
    """Images, channels, pixels of a unit of range; whether there is a bias; lines of taps, outputs of a line (0: they
    are done one by one), and whether its taps go backwards."""

    n: int
    c: int
    pixels: int
    biased: int
    lines: int
    across: int
    backwards: int


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
def _leaf(dtype: str, path: cpu.Cpu, along: tuple[int, int] | None, asks: bool) -> Leaf:
    """`along`: one of ALONG, or None."""
    size, rows, wide = itemsize(dtype), BLOCK[0], itemsize(summed(dtype))
    part = max(CHANNELS, BLOCK[1] * path.lanes(wide))
    multiply = inlined_code(f"tileflow_depthwise_{dtype}_{path.name}",
                            "low, high, channels, taps, sources, tap_step, w, bias, biased, places", path,
                            _depthwise(dtype, path))
    sweep, finish = _sweep(dtype, path, along, asks), finisher()

    def conv_depthwise(x, w, bias, y, indirection, table, spare, s, lo, hi, epilogue, rest):  # type: ignore
        c, pixels = s.c, s.pixels
        blocks = (s.n * phase_pixels(indirection, 0) + pixels - 1) // pixels
        pitch = pixels + rows
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
            for low in range(0, c, part):  # a part of the channels of the pixels' neighbourhood stays in cache
                high, done = min(c, low + part), 0
                while done < count:
                    run = count - done if s.across == 0 else min(count - done, s.across - (first + done) % s.across)
                    lined = s.across != 0 and run >= rows
                    for p in range(0, run, rows):
                        if lined:  # the last block of a line begins before the one before it ends
                            at = addresses + (done + min(p, run - rows) + s.backwards * (rows - 1)) * 8
                            sweep(low, high, c, s.lines, at + pitch * 8, pitch * 8, 8 - 16 * s.backwards, factors,
                                  address_of(bias), s.biased, at)
                        else:  # what a block has beyond a line is right, and done again
                            at = addresses + (done + p) * 8
                            multiply(low, high, c, taps, at + pitch * 8, pitch * 8, factors, address_of(bias), s.biased,
                                     at)
                    done += run
            finish(epilogue, rest, count, c, address_of(y), first * c, c, 0)

    signature = f"T[:], {summed(dtype)}[:], T[:], T[:], i8[:], i8[w,:], T[w,:], numbers, lo, hi{CALLED}"
    return Leaf(conv_depthwise, signature.replace("T", dtype), key=f"{path.name} {along} {asks}",
                numbers=DepthwiseSizes)


def _sweep(dtype: str, path: cpu.Cpu, along: tuple[int, int] | None, asks: bool) -> Any:
    """`_line` as bodies call it; without `along` what is never called."""
    if along is None:
        def nothing(_low, _high, _channels, _lines, _sources, _tap_step, _pixel_step,  # type: ignore[no-untyped-def]
                    _w, _bias, _biased, _places):
            pass
        return nothing
    return inlined_code(f"tileflow_depthwise_line_{dtype}_{path.name}_{along[0]}_{along[1]}_{asks}",
                        "low, high, channels, lines, sources, tap_step, pixel_step, w, bias, biased, places",
                        path, _line(dtype, path, *along, asks))


def _along(p: ConvProblem) -> tuple[int, int] | None:
    """Taps and step of a line, where a block of outputs reads its pixels once."""
    axis = p.axes[2]
    found = axis.taps, axis.in_step
    return found if p.phases == 1 and abs(axis.tap_step) == 1 and axis.out >= BLOCK[0] and found in ALONG else None


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
    rate = STRIDED if strided(p) else RATE
    if (along := _along(p)) and path.yardstick.registers > 16:
        rate = (LINE_STRIDED if strided(p) else LINE)[along[0]]
    return p.flops / (speed(summed(dtype), path) * rate)


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
    along, axis = _along(p), p.axes[2]
    asks = along is not None and p.far(dtype)
    laid = None if packed else panels(p, dtype, path)
    rows = In(1, (p.taps * c,)) if laid is None else laid.work(made)
    x = In(0, (p.elements_in,))
    args = (x, rows, In(2, (c,)) if biased else x, Out(0, (p.elements_out,)), p.indirection,
            Work("table", ((1 + p.taps) * (pixels + BLOCK[0]),), "i8"), Work("spare", (2 * c,), stored(dtype)),
            DepthwiseSizes(p.n, c, pixels, int(biased), p.taps // axis.taps, axis.out if along else 0,
                           int(axis.tap_step < 0)), *arguments(epilogue))
    estimate = p.flops / (SPEED * speed(made, path)) + (epilogue.cost if epilogue else 0.0)
    before = [] if laid is None else laid.inside(made)
    return [*before, Call(_leaf(dtype, path, along, asks), args, -(-p.phase_pixels // pixels) * p.phases, 1, estimate)]


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
    multiply = inlined_code(f"tileflow_depthwise_weights_{dtype}_{path.name}_{together}",
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
