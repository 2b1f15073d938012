"""Plans for steps one after the other, of which each needs what the one before made: recurrent layers and their gradients.

Directions, rows and hidden units are cut, all of which hold for all steps: a tile keeps the weights of its units (where rows are cut, too, a copy
of them is brought once), its units' share of the inputs and its units' states. At each product of a step the units exchange: forwards each tile
receives the states of all units of its rows; backwards each has partial sums for all units, which are added up in stages to those of its own.
So a step takes a barrier, that exchange, the product, and the cell's functions of the tile's units.

PopLibs' public LSTM (popnn/Lstm.cpp) does the same: a product planned for all units at each step, and the cell's functions on the tiles
that hold their units. Units are cut in equal parts, so that each tile has the same of every gate.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...graph.work import Operand, Stepwise, Window
from ..hardware import vertex
from ..hardware.chip import Chip
from ..hardware.exchange import exchange_cycles
from ..hardware.functions import vector_cycles
from .cost import reduction_rounds
from .plan import OpPlan, Phases, Vertex
from .spread import BYTES_PER_EXCHANGE_INSTRUCTION, CONTROL_CODE, VERTEX_CODE, item_bytes, limit_of

Array = np.ndarray
FIXED = 29
"""Cycles of a worker that runs an element-wise vertex, beyond its loop."""


@dataclass(frozen=True)
class _Cuts:
    """Candidates, float64 each: parts of directions, rows and units, and what the fullest tile has of them."""

    parts: dict[str, Array]
    own: dict[str, Array]

    @property
    def tiles(self) -> Array:
        return self.parts["d"] * self.parts["b"] * self.parts["n"]


def plan_stepwise(work: Stepwise, chip: Chip, bound_bytes: int | None = None, precision: str = "32.32") -> OpPlan:
    """The plan of steps on all tiles of a chip: fewest cycles whose temporaries are within the bound, ties by bytes and tiles; where none are, the
    fewest bytes, marked as not fitting.

    Args:
        bound_bytes: what temporaries may take on a tile; None: anything.
        precision: "16.16": products of float16 are added up in float16, where the matrix unit does.
    """
    if not work.points:
        return OpPlan({}, "none", Phases(), 0, bound_bytes=bound_bytes)
    cuts = _cuts(work, chip)
    size = {a.name: a.size for a in work.axes}
    dtype = work.outputs[0].dtype
    item, steps = vertex.itemsize(dtype), size["t"]
    partials = "float16" if dtype == "float16" and precision == "16.16" else "float32"
    rows, units, lanes = cuts.own["b"], cuts.own["n"], cuts.own["d"]
    several, states = cuts.parts["n"] > 1, lanes * rows * size["n"]

    once = np.zeros_like(cuts.tiles)
    for operand in work.inputs:
        once = once + _copies(operand, cuts) if operand is not None else once
    kinds = _products(work, chip, dtype, partials, cuts)
    kind = min(kinds, key=lambda k: float(kinds[k].min()))
    loads = 2 * size["g"] + 4
    each = vector_cycles(work.functions, work.elementwise, item, loads)
    vectors = np.ceil(np.ceil(lanes * rows * units * item / chip.vector_bytes) / chip.workers)
    cell = chip.workers * (FIXED * len(work.products) + np.ceil(vectors * each)) + chip.launch_cycles * len(work.products)

    times = steps * len(work.products)
    if work.added:
        exchanged, added, rounds, arrived, received = _sums(chip, partials, states, cuts.parts["n"])
    else:
        received = np.where(several, states * item * (1 - units / size["n"]), 0)
        sent = np.where(several, lanes * rows * units * item, 0)
        exchanged = np.maximum(exchange_cycles(chip, received, cuts.parts["n"], cuts.tiles), exchange_cycles(chip, sent))
        added, rounds, arrived = np.zeros_like(received), several * 1.0, received
    results = lanes * rows * (size["n"] if work.added else max(work.products) * units) * vertex.itemsize(partials)
    temp = np.ceil(once + results + arrived)
    brought = exchange_cycles(chip, once)
    compute = steps * (kinds[kind] + cell)
    exchange = brought + times * exchanged
    sync = chip.sync_cycles * (times * rounds + (once > 0)) + chip.launch_cycles * times * (1 + rounds)
    reduce = times * added
    total = compute + exchange + sync + reduce
    most = math.inf if bound_bytes is None else bound_bytes
    fits = temp <= most
    order = np.lexsort((cuts.tiles, temp, total) if fits.any() else (cuts.tiles, total, temp))
    at = int(next(i for i in order if fits[i] or not fits.any()))
    splits = {a: int(n[at]) for a, n in cuts.parts.items() if n[at] > 1}
    phases = Phases(math.ceil(compute[at]), math.ceil(exchange[at]), math.ceil(sync[at]), 0, math.ceil(reduce[at]))
    code = vertex.CODE_BYTES[kind] + VERTEX_CODE["map"] + vertex.CODE_BYTES["reduce"] * (work.added and bool(rounds[at])) + 2 * CONTROL_CODE
    code += 4 * math.ceil((once[at] + received[at]) / BYTES_PER_EXCHANGE_INSTRUCTION)
    return OpPlan(splits, kind, phases, int(temp[at]), math.ceil(once[at] + times * received[at]), code, partials=partials,
                  reduce_stages=int(rounds[at]) if work.added else 0, tiles=int(cuts.tiles[at]), flops=work.flops, bound_bytes=bound_bytes,
                  fits=bool(fits[at]), limit=limit_of(phases), gathered=math.ceil(times * exchanged[at]))


def _cuts(work: Stepwise, chip: Chip) -> _Cuts:
    """All cuts into different numbers of directions and rows and into equal parts of the units, on no more tiles than there are."""
    size = {a.name: a.size for a in work.axes}
    units = [n for n in range(1, min(size["n"], chip.tiles) + 1) if size["n"] % n == 0]
    rows = [n for n in range(1, min(size["b"], chip.tiles) + 1) if n == 1 or -(-size["b"] // n) < -(-size["b"] // (n - 1))]
    found = np.array([(d, b, n) for d in sorted({1, size["d"]}) for b in rows for n in units if d * b * n <= chip.tiles], np.float64)
    parts = {name: found[:, i] for i, name in enumerate("dbn")}
    return _Cuts(parts, {name: np.ceil(size[name] / n) for name, n in parts.items()} |
                 {a.name: np.full(len(found), float(a.size)) for a in work.axes if a.name not in parts})


def _copies(operand: Operand, cuts: _Cuts) -> Array:
    """Bytes that a tile is brought of an operand that several tiles read alike."""
    elements, shared = np.ones_like(cuts.tiles), cuts.tiles
    for dim in operand.dims:
        for name in (dim.out, dim.tap) if isinstance(dim, Window) else (dim,) if dim else ():
            elements = elements * cuts.own[name]
            shared = shared / cuts.parts.get(name, 1.0)
    return np.where(shared > 1, elements * item_bytes(operand), 0)


def _products(work: Stepwise, chip: Chip, dtype: str, partials: str, cuts: _Cuts) -> dict[Vertex, Array]:
    """Cycles of the products of one step, by kind of vertex."""
    rows, units, lanes = cuts.own["b"], cuts.own["n"], cuts.own["d"]
    every, unit, one = cuts.own["k"], chip.unit(dtype, partials), np.ones_like(rows)
    found: dict[Vertex, Array] = {}
    for vectors in work.products:
        n, k = (every, vectors * units) if work.added else (vectors * units, every)
        made: dict[Vertex, Array] = {"hmac": vertex.hmac(chip, dtype, rows, n, k, one, lanes)}
        if unit is not None:
            made["amp"] = np.minimum(*(vertex.amp(chip, unit, vertex.itemsize(dtype), partials, a, one, b, k, one, one, lanes)
                                       for a, b in ((rows, n), (n, rows))))
        found = {kind: found.get(kind, 0.0) + cycles for kind, cycles in made.items()}
    return found


def _sums(chip: Chip, partials: str, states: Array, parts: Array) -> tuple[Array, Array, Array, Array, Array]:
    """Adding up partial sums for all units to those of each: cycles of the exchange and of adding, rounds, bytes that arrive in the largest round,
    and in all."""
    table, fan = reduction_rounds(chip.tiles)
    depth = parts.astype(np.intp)
    rounds, share = table[depth], states
    exchanged = added = arrived = received = np.zeros_like(states)
    for i in range(int(rounds.max(initial=0))):
        f = fan[i][depth]
        share = np.ceil(share / f)
        came = share * (f - 1) * vertex.itemsize(partials)
        exchanged, received = exchanged + exchange_cycles(chip, came), received + came
        added = added + vertex.reduction(chip, partials, share, f)
        arrived = np.maximum(arrived, came)
    return exchanged, added, rounds, arrived, received
