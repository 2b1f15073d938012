"""What a partition of a contraction costs on the worst tile, for arrays of candidates at once.

The model is bulk-synchronous and that of the vendor's planner (PopLibs, ConvModel `addEstimates`): sizes are ceil-divided, phases add
up, and every byte of both operands counts as received, wherever it lies before. So nothing has to be added for an operand whose
producer left it in another layout. Two things differ: partial sums stay on their tile over the steps of a serial split of a
summed axis and are reduced once at the end, and an operand that a serial split does not cut is brought in once.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..work import Operand, Window
from . import vertex
from .chip import Chip
from .contraction import Canonical, elements, names_of, slides
from .exchange import exchange_cycles
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
    """Per candidate, float64: phases in cycles, bytes of temporaries and bytes received on the worst tile, tiles used, rounds of
    reduction; `second_last`: the axes of role "n" vary fastest in the tile numbering (so the first operand is broadcast to neighbours)."""

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
    conv = any(isinstance(d, Window) for x in (c.first, c.second, c.result) for d in x.dims)
    return bool(_fast_axes(t, conv) & set(c.role("k")))


def evaluate(chip: Chip, c: Canonical, v: Variant, parts: Mapping[str, Array], serial: Serial = None) -> Costs:
    """Price candidates. `parts[axis]` is a float64 array of parallel parts per axis, one entry a candidate."""
    e = part_extents(c, v, parts, serial)
    like = np.ones_like(next(iter(parts.values()))) if parts else np.ones(1)
    stream, coefficients = (c.second, c.first) if v.swap else (c.first, c.second)
    rows_role, channel_role = ("n", "m") if v.swap else ("m", "n")
    rows, n, groups = (_product(e, c.role(r), like) for r in (rows_role, channel_role, "group"))
    k, taps = _product(e, c.channels, like), _product(e, c.taps, like)
    split = {r: _product(parts, c.role(r), like) for r in ("group", "m", "n", "k")}
    used = split["group"] * split["m"] * split["n"] * split["k"]
    size = vertex.itemsize(stream.dtype)
    partial_size, out_size = vertex.itemsize(v.partials), vertex.itemsize(c.result.dtype)

    k_pad, n_pad, k_all = like, like, k * taps
    unit = chip.unit(stream.dtype, v.partials) if v.kind == "amp" else None
    if unit:
        inner = k_all if v.expand else k
        k_pad = unit.k_grain * np.ceil(inner / unit.k_grain) / inner
        n_pad = unit.units * np.ceil(n / unit.units) / n
    stream_bytes = elements(stream, e) * like * size * (like if v.expand else k_pad)
    coefficient_bytes = elements(coefficients, e) * like * size * k_pad * n_pad
    copied = np.zeros_like(like)
    if v.expand:
        copied = (rows if _slid(c, stream) else n) * groups * k_all * k_pad * size
    elif v.kind in ("amp", "hmac", "slic") and size < 4 and not natural(c, stream):
        copied = stream_bytes
    compute = _vertex_cycles(chip, c, v, e, rows, n, k, taps, groups)
    if c.extra_out:
        compute = compute + chip.workers * 26 + np.ceil(elements(c.second, e) / chip.vector(stream.dtype))

    # partial sums and their reduction
    outputs = elements(c.result, e) * like
    partial_bytes = outputs * n_pad * partial_size
    rounds, fan = reduction_rounds(chip.tiles)
    depth = split["k"].astype(np.intp)
    share, gathered, added, first_gather = outputs, 0.0 * like, 0.0 * like, None
    for i in range(3 if depth.max(initial=0) >= 125 else 2 if depth.max(initial=0) >= 16 else 1):
        f = fan[i][depth]
        share = np.ceil(share / f)
        arrived = share * (f - 1) * partial_size
        gathered = gathered + np.ceil(arrived / chip.exchange_bytes_per_cycle)
        added = added + vertex.reduction(chip, v.partials, share, f)
        first_gather = arrived if first_gather is None else first_gather
    stages = rounds[depth]
    reduce_bytes = first_gather if first_gather is not None else 0.0 * like
    overlap = _overlap(c, e, split, outputs)
    if overlap is not None:
        lapped = overlap * partial_size
        gathered = gathered + np.ceil(lapped / chip.exchange_bytes_per_cycle)
        added = added + np.where(overlap > 0, vertex.reduction(chip, v.partials, np.maximum(overlap, 1), 2.0), 0)
        reduce_bytes = reduce_bytes + lapped
        stages = np.maximum(stages, overlap > 0)
    converted = vertex.cast(chip, v.partials, c.result.dtype, share) if partial_size != out_size else 0.0 * like
    own_partials = np.where((split["k"] > 1) | (partial_size != out_size) | (reduce_bytes > 0), partial_bytes, 0)

    # exchange of operands: the axes that vary fastest decide which operand is broadcast to neighbours
    extra = sum((_product(e, names, like) * size for names in c.extra_in), 0.0 * like)
    a_bytes, b_bytes = (coefficient_bytes, stream_bytes) if v.swap else (stream_bytes, coefficient_bytes)
    a_bytes = a_bytes + extra
    once = np.where(split["n"] == 1, split["m"], 1), np.where(split["m"] == 1, split["n"], 1)
    cut = serial[0] if serial else ""
    steps = serial[1] if serial else like
    cuts_a, cuts_b = (bool(cut) and cut in names_of(t) for t in (c.first, c.second))
    times_a, times_b = steps if cuts_a else like, steps if cuts_b else like
    order_mn = times_a * exchange_cycles(chip, a_bytes, split["n"], used) + times_b * exchange_cycles(chip, b_bytes, once[0], used)
    order_nm = times_a * exchange_cycles(chip, a_bytes, once[1], used) + times_b * exchange_cycles(chip, b_bytes, split["m"], used)
    second_last = order_mn <= order_nm
    cuts_out = bool(cut) and cut in c.role("m") + c.role("n")
    times_out = steps if cuts_out else like
    exchange = np.minimum(order_mn, order_nm) + times_out * gathered

    # slicing for serial steps
    sliced, updated = 0.0 * like, 0.0 * like
    if serial:
        for t, cuts in ((c.first, cuts_a), (c.second, cuts_b)):
            if cuts:
                sliced = sliced + np.ceil(elements(t, c.sizes) * size / steps / used)
        if cuts_out:
            updated = share * out_size
    transform = steps * (vertex.copy(chip, copied) + vertex.copy(chip, sliced)) + times_out * (vertex.copy(chip, updated) + converted)
    exchanges = steps + (cuts_a != cuts_b) + times_out * stages
    launches = steps * (1 + (copied > 0) + (sliced > 0)) + times_out * (stages + (converted > 0) + (updated > 0))
    sync = exchanges * chip.sync_cycles + launches * chip.launch_cycles

    kept = (0.0 if cuts_a or not cuts_out else a_bytes) + (0.0 if cuts_b or not cuts_out else b_bytes)
    working = np.maximum(a_bytes + b_bytes + copied + own_partials + sliced, kept + own_partials + reduce_bytes)
    received = times_a * a_bytes + times_b * b_bytes + times_out * reduce_bytes
    return Costs(np.ceil(steps * compute), exchange, sync, transform, times_out * added, np.ceil(working), np.ceil(received), used,
                 stages + 0 * like, second_last)


def _overlap(c: Canonical, e: Mapping[str, Array], split: Mapping[str, Array], outputs: Array) -> Array | None:
    """Result elements that neighbours also add to, where a window slides over the result (input gradients); None where none does."""
    if not any(isinstance(d, Window) and d.out in c.role("m") + c.role("n") and d.tap in c.taps for d in c.result.dims):
        return None
    own = elements(c.result, c.sizes) / (split["m"] * split["n"] * split["group"])
    alone = split["m"] * split["n"] == 1
    return np.where(alone, 0, np.maximum(0, np.ceil(outputs - own)))


def _vertex_cycles(chip: Chip, c: Canonical, v: Variant, e: Mapping[str, Array], rows: Array, n: Array, k: Array, taps: Array,
                   groups: Array) -> Array:
    stream = c.second if v.swap else c.first
    if v.expand:
        k, taps = k * taps, np.ones_like(taps)
    runs = np.ones_like(rows) if v.expand else _runs(c, e, stream, rows)
    if v.kind == "amp":
        unit = chip.unit(stream.dtype, v.partials)
        assert unit is not None
        return vertex.amp(chip, unit, vertex.itemsize(stream.dtype), rows, runs, n, k, taps, groups)
    if v.kind == "hmac":
        return vertex.hmac(chip, stream.dtype, rows, n, k, taps, groups)
    if v.kind == "outer":
        return vertex.outer(chip, stream.dtype, rows, n, groups)
    if v.kind == "vmac":
        return vertex.vmac(chip, stream.dtype, rows, n, k, taps, groups)
    assert v.kind == "slic", v.kind
    inner = e[c.taps[-1]] if c.taps else np.ones_like(taps)
    return vertex.slic(chip, rows, runs, n, k, inner, taps / inner, groups)


def _runs(c: Canonical, e: Mapping[str, Array], stream: Operand, rows: Array) -> Array:
    """Stretches of consecutive rows: images are read line by line where a window slides over them."""
    outs = [d.out for t in (stream, c.result) for d in t.dims if isinstance(d, Window) and slides(d, c.sizes) and d.out not in c.role("k")]
    return np.maximum(1, np.ceil(rows / e[outs[-1]])) if outs else np.ones_like(rows)
