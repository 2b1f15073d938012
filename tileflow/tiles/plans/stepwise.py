"""Plans for steps one after the other, of which each needs what the one before made: recurrent layers and their gradients.

Directions, rows and hidden units are cut, all of which hold for all steps: a tile keeps the weights of its units (where rows are cut, too, a copy
of them is brought once), its units' share of the inputs and its units' states. At each product of a step the units exchange: forwards each tile
receives the states of all units of its rows; backwards each has partial sums for all units, which are added up in stages to those of its own.
So a step takes a barrier, that exchange, the product, and the cell's functions of the tile's units.

The summed axis is cut, too: K tiles of neighbouring units (the last ones may be fewer) do the products of all their
units together, tile j those with the states of every K-th tile's units from the j-th on. So a tile receives a K-th of
the states; forwards the K tiles then add up what each has of the others' units, backwards each is first sent what the
others' units give. K stands in the plan's notes, as `SUMMED`; all but the weights lies where it would without.

PopLibs' public LSTM (popnn/Lstm.cpp) does the same: a product planned for all units at each step, and the cell's functions on the tiles
that hold their units. Where units are cut in unequal parts and have several vectors each, tensors do not lie as they
are read (`mapping.owned`), and a tile is brought its part once.
"""
from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

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
SUMMED = "summed"
"""In a plan's notes: how many tiles do the products of their units together."""
FIXED = 29
"""Cycles of a worker that runs an element-wise vertex, beyond its loop."""


@dataclass(frozen=True)
class _Cuts:
    """Candidates, float64 each: parts of directions, rows and units, what the fullest tile has of them, and tiles that
    do products together."""

    parts: dict[str, Array]
    own: dict[str, Array]
    summed: Array

    @property
    def tiles(self) -> Array:
        return self.parts["d"] * self.parts["b"] * self.parts["n"]

    @property
    def read(self) -> Array:
        """Units whose states a tile's products read, at most: of those that do them together the last ones are the
        fewest."""
        fewest = self.parts["n"] - (self.groups - 1) * self.summed
        return np.where(self.summed > 1, np.ceil(self.parts["n"] / fewest) * self.own["n"], self.own["k"])

    @property
    def groups(self) -> Array:
        """How many times tiles do products together."""
        return np.ceil(self.parts["n"] / self.summed)


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
    once = sum((_copies(o, cuts, size["n"]) for o in work.inputs if o is not None), np.zeros_like(cuts.tiles))
    kinds, sums = _products(work, chip, dtype, partials, cuts), _exchanged(work, chip, item, partials, cuts)
    each = vector_cycles(work.functions, work.elementwise, item, 2 * size["g"] + 4)
    elements = cuts.own["d"] * cuts.own["b"] * cuts.own["n"]
    vectors = np.ceil(np.ceil(elements * item / chip.vector_bytes) / chip.workers)
    cell = chip.workers * (FIXED * len(work.products) + np.ceil(vectors * each)) + chip.launch_cycles * len(work.products)

    temp = np.ceil(once + sums.results + sums.arrived)
    compute = steps * (functools.reduce(np.minimum, kinds.values()) + cell)
    exchange = exchange_cycles(chip, once) + steps * sums.cycles
    sync = chip.sync_cycles * (steps * sums.rounds + (once > 0)) + chip.launch_cycles * steps * (
        len(work.products) + sums.rounds
    )
    reduce = steps * sums.adding
    total = compute + exchange + sync + reduce
    most = math.inf if bound_bytes is None else bound_bytes
    fits = temp <= most
    order = np.lexsort((cuts.tiles, temp, total) if fits.any() else (cuts.tiles, total, temp))
    at = int(next(i for i in order if fits[i] or not fits.any()))
    summed, kind, stages = int(cuts.summed[at]), min(kinds, key=lambda k: float(kinds[k][at])), int(sums.stages[at])
    splits = {a: int(n[at]) for a, n in cuts.parts.items() if n[at] > 1}
    phases = Phases(math.ceil(compute[at]), math.ceil(exchange[at]), math.ceil(sync[at]), 0, math.ceil(reduce[at]))
    code = vertex.CODE_BYTES[kind] + VERTEX_CODE["map"] + vertex.CODE_BYTES["reduce"] * (stages > 0) + 2 * CONTROL_CODE
    code += 4 * math.ceil((once[at] + sums.received[at]) / BYTES_PER_EXCHANGE_INSTRUCTION)
    return OpPlan(
        splits,
        kind,
        phases,
        int(temp[at]),
        math.ceil(once[at] + steps * sums.received[at]),
        code,
        partials=partials,
        reduce_stages=stages,
        tiles=int(cuts.tiles[at]),
        flops=work.flops,
        bound_bytes=bound_bytes,
        fits=bool(fits[at]),
        limit=limit_of(phases),
        gathered=math.ceil(steps * sums.cycles[at]),
        notes={SUMMED: summed} if summed > 1 else {},
    )


class _Exchanged(NamedTuple):
    """What passes between tiles in one step, of all its products: cycles of exchange and of adding, barriers, bytes
    received; of the last product the rounds of adding; of the largest the bytes that arrive at once and those of
    results before they are added up."""

    cycles: Array
    adding: Array
    rounds: Array
    received: Array
    stages: Array
    arrived: Array
    results: Array


def _exchanged(work: Stepwise, chip: Chip, item: int, partials: str, cuts: _Cuts) -> _Exchanged:
    """States, or what gives them, and partial sums."""
    several, together, groups = cuts.parts["n"] > 1, cuts.summed > 1, cuts.groups
    lines = cuts.own["d"] * cuts.own["b"]
    own, states = lines * cuts.own["n"], lines * cuts.read
    cycles = adding = rounds = received = stages = arrived = results = np.zeros_like(own)
    for vectors in work.products:
        made = states if work.added else own * vectors * cuts.summed
        gathered, added, stages, came, all_came = _sums(chip, partials, made, groups if work.added else cuts.summed)
        if work.added:
            fetched = np.where(together, own * vectors * (cuts.summed - 1) * item, 0)
            brought, barriers = exchange_cycles(chip, fetched), stages + together
        else:
            fetched, sent = np.where(several, states * item - own * item, 0), np.where(several, own * item, 0)
            alike = exchange_cycles(
                chip, fetched, cuts.parts["n"], cuts.tiles
            )  # neighbours that do not share products want the same
            brought = np.maximum(np.where(together, exchange_cycles(chip, fetched), alike), exchange_cycles(chip, sent))
            barriers = stages + several
        cycles, adding, rounds = cycles + brought + gathered, adding + added, rounds + barriers
        received, arrived = received + fetched + all_came, np.maximum(arrived, np.maximum(fetched, came))
        results = np.maximum(results, made * vertex.itemsize(partials))
    return _Exchanged(cycles, adding, rounds, received, stages, arrived, results)


def _cuts(work: Stepwise, chip: Chip) -> _Cuts:
    """All cuts into different numbers of directions, rows and units, on no more tiles than there are; their products
    alone, or together with others."""
    size = {a.name: a.size for a in work.axes}
    units, rows = (_parts(size[name], chip.tiles) for name in "nb")
    together = {n: _parts(n, n) for n in units}
    found = np.array(
        [
            (d, b, n, k)
            for d in sorted({1, size["d"]})
            for b in rows
            for n in units
            if d * b * n <= chip.tiles
            for k in together[n]
        ],
        np.float64,
    )
    parts = {name: found[:, i] for i, name in enumerate("dbn")}
    return _Cuts(parts, {name: np.ceil(size[name] / n) for name, n in parts.items()} |
                 {a.name: np.full(len(found), float(a.size)) for a in work.axes if a.name not in parts}, found[:, 3])


def _parts(size: int, most: int) -> list[int]:
    """Numbers of parts of which each is the least with its largest part."""
    return [n for n in range(1, min(size, most) + 1) if n == 1 or -(-size // n) < -(-size // (n - 1))]


def _copies(operand: Operand, cuts: _Cuts, size: int) -> Array:
    """Bytes that a tile is brought of an operand that several tiles read alike; of weights, also where it has other
    ones than those of its units; of several vectors of each of `size` units, where these are cut unequally."""
    elements, shared, moved = np.ones_like(cuts.tiles), cuts.tiles, (cuts.summed > 1) & ("k" in operand.dims)
    for dim in operand.dims:
        if isinstance(dim, Window):
            moved = moved | ((cuts.own[dim.out] > 1) & (cuts.parts["n"] * cuts.own["n"] != size))
        for name in (dim.out, dim.tap) if isinstance(dim, Window) else (dim,) if dim else ():
            elements = elements * cuts.own[name]
            shared = shared / cuts.parts.get(name, 1.0)
    return np.where((shared > 1) | moved, elements * item_bytes(operand), 0)


def _products(work: Stepwise, chip: Chip, dtype: str, partials: str, cuts: _Cuts) -> dict[Vertex, Array]:
    """Cycles of the products of one step, by kind of vertex."""
    rows, units, lanes = cuts.own["b"], cuts.own["n"], cuts.own["d"]
    every, unit, one = cuts.read, chip.unit(dtype, partials), np.ones_like(rows)
    found: dict[Vertex, Array] = {}
    for vectors in work.products:
        made = vectors * units * cuts.summed
        n, k = (every, made) if work.added else (made, every)
        ways: dict[Vertex, Array] = {
            "hmac": np.minimum(*(vertex.hmac(chip, dtype, a, b, k, one, lanes) for a, b in ((rows, n), (n, rows))))
        }
        if unit is not None:
            ways["amp"] = np.minimum(
                *(
                    vertex.amp(chip, unit, vertex.itemsize(dtype), partials, a, one, b, k, one, one, lanes)
                    for a, b in ((rows, n), (n, rows))
                )
            )
        found = {kind: found.get(kind, 0.0) + cycles for kind, cycles in ways.items()}
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
