"""What a partition of a contraction costs on the worst tile, for arrays of candidates at once.

The model is bulk-synchronous and that of the vendor's planner (PopLibs, ConvModel `addEstimates`): sizes are
ceil-divided, phases add up, and every byte of both operands counts as received, wherever it lies before. So nothing has
to be added for an operand whose producer left it on other tiles; tensors that lie in another order than vertices read
or write them are put in order first. Two things differ: partial sums stay on their tile over the steps of a serial
split of a summed axis and are reduced once at the end, and an operand that a serial split does not cut is brought in
once.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...graph.work import Operand, Window
from ..hardware import vertex
from ..hardware.chip import Chip
from ..hardware.exchange import exchange_cycles
from .contraction import Canonical, elements, names_of, slides
from .plan import Vertex

Array = np.ndarray


@dataclass(frozen=True)
class Variant:
    """How a tile's vertex sees the contraction.

    swap: the rows that stream are the second operand's (role "n"), the coefficients are the first's.
    expand: kernel taps are folded into the summed channels, which copies the operand that windows slide over (im2col on the tile).
    grains: smallest run of an axis that is cut.
    """

    kind: Vertex
    swap: bool = False
    expand: bool = False
    partials: str = "float32"
    grains: tuple[tuple[str, int], ...] = ()

    def grain(self, axis: str) -> int:
        return dict(self.grains).get(axis, 1)


@dataclass
class Costs:
    """Per candidate, float64: phases in cycles, bytes of temporaries and bytes received on the worst tile, tiles used, rounds of reduction;
    `second_last`: the axes of role "n" vary fastest in the tile numbering (so the first operand is broadcast to neighbours); `gathered`: the
    cycles of the exchange that partial sums take."""

    compute: Array
    exchange: Array
    sync: Array
    transform: Array
    reduce: Array
    temp: Array
    received: Array
    tiles: Array
    stages: Array
    second_last: Array
    gathered: Array

    @property
    def cycles(self) -> Array:
        return self.compute + self.exchange + self.sync + self.transform + self.reduce


@functools.cache
def reduction_rounds(most: int) -> tuple[Array, Array]:
    """Rounds and their fan-ins for every depth up to `most`: 3 rounds from depth 125, 2 from 16, else 1 (PopLibs, multi-stage reduce).

    Returns:
        rounds [most + 1] and fan-ins [3, most + 1] (1 where a round does not take place).
    """
    rounds = np.zeros(most + 1)
    fan = np.ones((3, most + 1))
    for depth in range(2, most + 1):
        count = 3 if depth >= 125 else 2 if depth >= 16 else 1
        rounds[depth], left = count, depth
        for i in range(count):
            fan[i, depth] = math.ceil(round(left ** (1 / (count - i)), 9))
            left = math.ceil(left / fan[i, depth])
    return rounds, fan


Serial = tuple[str, Array] | None
"""A serial split: the axis and the steps of each candidate (float64)."""


def part_extents(c: Canonical, v: Variant, parts: Mapping[str, Array], serial: Serial) -> dict[str, Array]:
    """Extent of the worst part per axis: cut in serial steps first, each step then in parallel parts, both at the grain."""
    found, grains = {}, dict(v.grains)
    for axis in c.axes:
        grain, size = grains.get(axis.name, 1), float(axis.size)
        runs = np.ceil(size / grain)
        if serial and serial[0] == axis.name:
            runs = np.ceil(runs / serial[1])
        found[axis.name] = np.minimum(size, grain * np.ceil(runs / parts[axis.name]))
    return found


def _product(values: Mapping[str, Array], names: tuple[str, ...], like: Array) -> Array:
    total = np.ones_like(like)
    for name in names:
        total = total * values[name]
    return total


def _fast_axes(t: Operand, conv: bool) -> set[str]:
    """The axes of the dimension that lies innermost on a tile: channels (dimension 1) of images, else the last one."""
    dim = t.dims[1] if conv and len(t.dims) > 2 else t.dims[-1] if t.dims else None
    return {dim.out, dim.tap} if isinstance(dim, Window) else {dim} if dim else set()


def _slid(c: Canonical, t: Operand) -> bool:
    return any(isinstance(d, Window) and slides(d, c.sizes) for d in t.dims)


def natural(c: Canonical, t: Operand) -> bool:
    """Whether the streaming operand lies with its summed channels innermost, as the matrix unit reads it."""
    return bool(_fast_axes(t, _convolves(c)) & set(c.role("k")))


def _convolves(c: Canonical) -> bool:
    """Whether windows index a tensor, also such of one tap."""
    return any(isinstance(d, Window) for x in (c.first, c.second, c.result) for d in x.dims)


@dataclass(frozen=True)
class _Part:
    """The worst part of each candidate: extents per axis and their products by what the vertex makes of them; parts per role."""

    e: Mapping[str, Array]
    rows: Array
    n: Array
    groups: Array
    k: Array
    taps: Array
    split: Mapping[str, Array]
    used: Array

    @property
    def nothing(self) -> Array:
        return np.zeros_like(self.used)


def _part(c: Canonical, v: Variant, parts: Mapping[str, Array], serial: Serial) -> _Part:
    e = part_extents(c, v, parts, serial)
    like = np.ones_like(next(iter(parts.values()))) if parts else np.ones(1)
    rows_role, channel_role = ("n", "m") if v.swap else ("m", "n")
    split = {r: _product(parts, c.role(r), like) for r in ("group", "m", "n", "k")}
    return _Part(e, _product(e, c.role(rows_role), like), _product(e, c.role(channel_role), like), _product(e, c.role("group"), like),
                 _product(e, c.channels, like), _product(e, c.taps, like), split, split["group"] * split["m"] * split["n"] * split["k"])


def evaluate(chip: Chip, c: Canonical, v: Variant, parts: Mapping[str, Array], serial: Serial = None) -> Costs:
    """Price candidates. `parts[axis]` is a float64 array of parallel parts per axis, one entry a candidate."""
    p = _part(c, v, parts, serial)
    cut, steps = serial if serial else ("", np.ones_like(p.used))
    cuts_a, cuts_b, cuts_out = cut in names_of(c.first), cut in names_of(c.second), cut in c.role("m") + c.role("n")
    times_a, times_b, times_out = (steps if cuts else np.ones_like(steps) for cuts in (cuts_a, cuts_b, cuts_out))
    a_bytes, b_bytes, n_pad = _operands(chip, c, v, p)
    ordered = _ordered(chip, c, v, p)
    sums = _reduce(chip, c, v, p, n_pad)
    brought, second_last = _bring(chip, p, a_bytes, b_bytes, times_a, times_b)
    sliced = p.nothing
    for t, cuts in ((c.first, cuts_a), (c.second, cuts_b)):
        if cuts:
            sliced = sliced + np.ceil(elements(t, c.sizes) * vertex.itemsize(t.dtype) / steps / p.used)
    updated = sums.share * vertex.itemsize(c.result.dtype) if cuts_out else p.nothing
    converted = vertex.cast(chip, v.partials, c.result.dtype, sums.share) if v.partials != c.result.dtype else p.nothing

    exchanges = steps + (cuts_a != cuts_b) + times_out * sums.stages + (ordered.exchange > 0)
    sum_launches = sums.stages + (converted > 0) + (updated > 0)
    launches = steps * (1 + (sliced > 0)) + times_out * sum_launches + ordered.tensors
    transform = steps * vertex.copy(chip,
                                    sliced) + ordered.copies + times_out * (vertex.copy(chip, updated) + converted)
    kept = (a_bytes if cuts_out and not cuts_a else 0) + (b_bytes if cuts_out and not cuts_b else 0)
    temp = np.maximum(a_bytes + b_bytes + sums.own + sliced, kept + sums.own + sums.arrived)
    return Costs(
        compute=np.ceil(steps * _vertex_cycles(chip, c, v, p)), gathered=times_out * sums.gathered,
        exchange=brought + ordered.exchange + times_out * sums.gathered,
        sync=exchanges * chip.sync_cycles + launches * chip.launch_cycles, transform=transform, reduce=times_out * sums.added,
        temp=np.ceil(np.maximum(temp, 2 * ordered.largest)), tiles=p.used,
        received=np.ceil(times_a * a_bytes + times_b * b_bytes + times_out * sums.arrived),
        stages=sums.stages, second_last=second_last)


def _operands(chip: Chip, c: Canonical, v: Variant, p: _Part) -> tuple[Array, Array, Array]:
    """Bytes of the first and the second operand as the vertex wants them, padded to its blocks, and the padding of the
    channels."""
    stream, coefficients = (c.second, c.first) if v.swap else (c.first, c.second)
    size = vertex.itemsize(stream.dtype)
    k_all = p.k * p.taps
    k_pad = n_pad = np.ones_like(p.used)
    unit = chip.unit(stream.dtype, v.partials) if v.kind == "amp" else None
    if unit:
        inner = k_all if v.expand else p.k
        k_pad = unit.k_grain * np.ceil(inner / unit.k_grain) / inner
        n_pad = unit.units * np.ceil(p.n / unit.units) / p.n
    stream_bytes = elements(stream, p.e) * size * (np.ones_like(p.used) if v.expand else k_pad)
    coefficient_bytes = elements(coefficients, p.e) * size * k_pad * n_pad
    if v.expand and _slid(c, stream):                               # what windows slide over comes with its taps folded
        stream_bytes = np.maximum(stream_bytes, p.rows * p.groups * k_all * k_pad * size)
    elif v.expand:
        coefficient_bytes = np.maximum(coefficient_bytes, p.n * p.groups * k_all * k_pad * size)
    a_bytes, b_bytes = (coefficient_bytes, stream_bytes) if v.swap else (stream_bytes, coefficient_bytes)
    for names in c.extra_in:
        a_bytes = a_bytes + _product(p.e, names, p.used) * size
    return a_bytes, b_bytes, n_pad


@dataclass(frozen=True)
class _Ordered:
    """What puts tensors in order: cycles of copies and of exchange, tensors, bytes of the largest on a tile."""

    copies: Array
    exchange: Array
    tensors: int
    largest: Array


def _ordered(chip: Chip, c: Canonical, v: Variant, p: _Part) -> _Ordered:
    """Tensors that lie in another order than vertices read or write them: tiles are sent even shares of them, and put
    these in order, before each is sent what it needs (PopLibs, poplin/ConvModel.cpp, addTransformCycleEstimate).

    Where the sum runs over what does not lie innermost (gradients of weights), both operands of a convolution are, what
    streams and the result of a product. Both operands are where taps are folded into channels and where summed channels
    fill no whole blocks; where output channels do not, the coefficients and the result. Room is needed twice, for what
    comes and what is in order; what vertices then need is not there yet.
    """
    stream, coefficients = (c.second, c.first) if v.swap else (c.first, c.second)
    rows, n, groups, channels, taps = (math.prod(c.sizes[a] for a in axes) for axes in (
        c.role("n" if v.swap else "m"), c.role("m" if v.swap else "n"), c.role("group"), c.channels, c.taps))
    k = channels * taps if v.expand else channels
    unit = chip.unit(stream.dtype, v.partials) if v.kind == "amp" else None
    across = v.kind in ("amp", "hmac", "slic") and not natural(c, stream)
    both = (across and _convolves(c)) or v.expand or (unit is not None and k % unit.k_grain > 0)
    narrow = unit is not None and n % unit.units > 0
    found: list[tuple[float, int, int]] = []                        # elements, bytes of one, those of a block
    for operand, length, wanted in ((stream, rows, both or across), (coefficients, n, both or narrow)):
        if wanted:
            folded = length * groups * k if v.expand and (operand is stream) == _slid(c, stream) else 0
            found.append((max(folded, float(elements(operand, c.sizes))), vertex.itemsize(operand.dtype), k * n))
    if narrow or (across and not both):
        found.append((float(elements(c.result, c.sizes)), vertex.itemsize(c.result.dtype), n))
    copies = nbytes = largest = p.nothing
    for count, size, block in found:
        share = np.ceil(count * size / p.used)
        # Even is what fills natural vectors, whatever the chip's are: with wider ones fewer blocks would, and the same
        # plan would cost more. So `even` is the same on both chips, and reorder falls with what a copy moves.
        copies = copies + vertex.reorder(chip, share, size, block * size % vertex.NATURAL_BYTES == 0)
        nbytes, largest = nbytes + share, np.maximum(largest, share)
    exchange = np.where(p.used > 1, exchange_cycles(chip, nbytes), 0)
    return _Ordered(copies, exchange, len(found), largest)


def _bring(chip: Chip, p: _Part, a_bytes: Array, b_bytes: Array, times_a: Array, times_b: Array) -> tuple[Array, Array]:
    """Cycles of exchange that bring the operands in, and whether the axes of role "n" should vary fastest in the tile numbering:
    then neighbours receive the same part of the first operand, else of the second."""
    alone_a, alone_b = exchange_cycles(chip, a_bytes), exchange_cycles(chip, b_bytes)
    shared_a = exchange_cycles(chip, a_bytes, p.split["n"], p.used)
    shared_b = exchange_cycles(chip, b_bytes, p.split["m"], p.used)
    n_fastest = times_a * shared_a + times_b * np.where(p.split["n"] == 1, shared_b, alone_b)
    m_fastest = times_a * np.where(p.split["m"] == 1, shared_a, alone_a) + times_b * shared_b
    return np.minimum(n_fastest, m_fastest), n_fastest <= m_fastest


@dataclass(frozen=True)
class _Sums:
    """Reduction across tiles: result elements left to each tile, cycles of exchange and of adding, bytes that arrive in the first (largest)
    round, rounds, and bytes of the tile's own partial sums where they are not the result itself."""

    share: Array
    gathered: Array
    added: Array
    arrived: Array
    stages: Array
    own: Array


def _reduce(chip: Chip, c: Canonical, v: Variant, p: _Part, n_pad: Array) -> _Sums:
    size = vertex.itemsize(v.partials)
    outputs = elements(c.result, p.e) * np.ones_like(p.used)
    rounds, fan = reduction_rounds(chip.tiles)
    depth = p.split["k"].astype(np.intp)
    stages, share = rounds[depth], outputs
    gathered = added = arrived = p.nothing
    for i in range(int(stages.max(initial=0))):
        f = fan[i][depth]
        share = np.ceil(share / f)
        received = share * (f - 1) * size
        gathered = gathered + exchange_cycles(chip, received)
        added = added + vertex.reduction(chip, v.partials, share, f)
        arrived = received if i == 0 else arrived
    overlap = _overlap(c, p, outputs)
    if overlap is not None:
        gathered = gathered + exchange_cycles(chip, overlap * size)
        added = added + np.where(overlap > 0, vertex.reduction(chip, v.partials, np.maximum(overlap, 1), 2.0), 0)
        arrived = arrived + overlap * size
        stages = np.maximum(stages, overlap > 0)
    apart = (arrived > 0) | (v.partials != c.result.dtype)
    return _Sums(share, gathered, added, arrived, stages, np.where(apart, outputs * n_pad * size, 0))


def _overlap(c: Canonical, p: _Part, outputs: Array) -> Array | None:
    """Result elements that neighbours also add to, where a window slides over the result (input gradients); None where none does."""
    if not any(isinstance(d, Window) and d.out in c.role("m") + c.role("n") and d.tap in c.taps for d in c.result.dims):
        return None
    own = elements(c.result, c.sizes) / (p.split["m"] * p.split["n"] * p.split["group"])
    alone = p.split["m"] * p.split["n"] == 1
    return np.where(alone, 0, np.maximum(0, np.ceil(outputs - own)))


def _vertex_cycles(chip: Chip, c: Canonical, v: Variant, p: _Part) -> Array:
    """Cycles of the vertices of one serial step; a second output (the sum of the second operand) is another pass over it."""
    stream = c.second if v.swap else c.first
    k, taps = (p.k * p.taps, np.ones_like(p.taps)) if v.expand else (p.k, p.taps)
    inner = p.e[c.taps[-1]] if c.taps and not v.expand else np.ones_like(taps)
    runs = np.ones_like(p.rows) if v.expand else _runs(c, p.e, stream, p.rows)
    unit = chip.unit(stream.dtype, v.partials)
    if v.kind == "amp":
        assert unit is not None
        cycles = vertex.amp(chip, unit, vertex.itemsize(stream.dtype), v.partials, p.rows, runs, p.n, k, inner, taps / inner, p.groups)
    elif v.kind == "hmac":
        cycles = vertex.hmac(chip, stream.dtype, p.rows, p.n, k, taps, p.groups)
    elif v.kind == "outer":
        cycles = vertex.outer(chip, stream.dtype, p.rows, p.n, p.groups)
    elif v.kind == "vmac":
        cycles = vertex.vmac(chip, stream.dtype, p.rows, p.n, k * inner, taps / inner, p.groups)
    else:
        assert v.kind == "slic", v.kind
        assert unit is not None
        cycles = vertex.slic(chip, unit, p.rows, runs, p.n, k, inner, taps / inner, p.groups)
    if c.extra_out:
        cycles = cycles + chip.workers * 26 + np.ceil(elements(c.second, p.e) / chip.vector(stream.dtype))
    return cycles


def _runs(c: Canonical, e: Mapping[str, Array], stream: Operand, rows: Array) -> Array:
    """Stretches of consecutive rows: images are read line by line where a window slides over them."""
    outs = [d.out for t in (stream, c.result) for d in t.dims if isinstance(d, Window) and slides(d, c.sizes) and d.out not in c.role("k")]
    return np.maximum(1, np.ceil(rows / e[outs[-1]])) if outs else np.ones_like(rows)
