"""Plans for element-wise maps, reductions and normalisations, moves; and what plans of lookups (lookup.py) share with them.

Cycle formulas are PopLibs' (popops cycle estimators, Reduction, DynamicSlice): per tile a fixed part and a loop of its workers
over natural vectors of 8 bytes. Barriers precede exchanges; a step that finds all it needs on its tiles has none.

An operand that has every split axis among its dimensions is *aligned*: its part may already be on the tile, and the machine
(layout.py) adds an exchange only where it is not. Operands that several tiles need are brought in by the plan itself.

The search enumerates partitions and takes the fewest cycles whose temporaries are within the bound, ties by bytes; where none is, the
fewest bytes.
"""
from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping as Dict
from collections.abc import Sequence

from ...graph.work import Axis, Move, Nested, Operand, Reduce, Window, Work, indexed_by
from ..hardware.chip import ITEMSIZE, Chip, device_dtype
from ..hardware.functions import vector_cycles
from ..hardware.vertex import reduction, vector_sizes
from .mapping import MIN_BYTES_PER_TILE, Mapping, axis_step
from .plan import OpPlan, Phases, TileOptions, Vertex

VECTOR_BYTES = 8
"""The data path: a natural vector is 2 float32 or 4 float16 elements."""

VERTEX_CODE = {"map": 320, "reduce": 640, "move": 256, "gather": 480, "scatter": 560}
"""Bytes of a vertex's code on a tile: our estimate."""
CONTROL_CODE = 64
"""Bytes that call an operator's vertices, without its exchange: our estimate."""
BYTES_PER_EXCHANGE_INSTRUCTION = 64
"""Received bytes that one exchange instruction of 4 bytes moves, on average: our estimate."""

Splits = Dict[str, int]


def plan_spread(work: Work, chip: Chip, bound_bytes: int | None = None, options: TileOptions | None = None) -> OpPlan:
    """The plan of a Map, Reduce or Move on all tiles of a chip.

    Args:
        bound_bytes: what temporaries may take on a tile; None: anything.
        options: says the precision, where element types are not the device's yet.
    """
    if options is not None:
        work = on_device(work, options.precision)
    if not work.points:
        return OpPlan({}, "none", Phases(), 0, bound_bytes=bound_bytes)
    if isinstance(work, Reduce):
        plans = _reduce_plans(work, chip)
    else:
        # each worker is given a vector
        narrower = [chip, *(chip.variant(vector_bytes=n) for n in vector_sizes(chip)[1:])]
        splits = [even_splits(work, some, item_bytes(work.outputs[0])) for some in narrower]
        plans = [move_at(work, chip, s) if isinstance(work, Move) else map_at(work, chip, s) for s in splits]
    return choose(plans, bound_bytes)


def on_device(work: Work, precision: str) -> Work:
    """The work with the element types that tensors have on the tiles."""
    def typed(operand: Operand | None) -> Operand | None:
        if operand is None:
            return None
        dtype = device_dtype(operand.dtype, precision)
        return operand if dtype == operand.dtype else dataclasses.replace(operand, dtype=dtype)
    inputs = tuple(typed(o) for o in work.inputs)
    outputs = tuple(typed(o) for o in work.outputs)
    functions = tuple((name, device_dtype(dtype, precision), n) for name, dtype, n in work.functions)
    if (inputs, outputs, functions) == (work.inputs, work.outputs, work.functions):
        return work
    return dataclasses.replace(work, inputs=inputs, outputs=outputs, functions=functions)          # type: ignore[arg-type]


def choose(plans: Sequence[OpPlan], bound_bytes: int | None) -> OpPlan:
    """Fewest cycles within the bound (ties: fewest bytes, fewest tiles); else the least-memory plan, marked as not fitting."""
    fitting = [p for p in plans if bound_bytes is None or p.temp_bytes <= bound_bytes]
    if fitting:
        best = min(fitting, key=lambda p: (p.phases.total, p.temp_bytes, p.tiles))
    else:
        best = min(plans, key=lambda p: (p.temp_bytes, p.phases.total, p.tiles))
    return dataclasses.replace(best, bound_bytes=bound_bytes, fits=bool(fitting))


# ---- partitions ---------------------------------------------------------------------------------------------------------

def item_bytes(operand: Operand) -> int:
    return ITEMSIZE[device_dtype(operand.dtype)]


def least_bytes(work: Work, chip: Chip, itemsize: int) -> int:
    """Bytes of elements of `itemsize` that a tile is given at least: 128, or fewer where computing those takes longer than a barrier, down to a
    vector for each worker."""
    operands = sum(o is not None for o in work.inputs) + len(work.outputs)
    each = vector_cycles(work.functions, work.flops_per_point, itemsize, operands)
    quick = int(chip.sync_cycles / each) * chip.vector_bytes if each else MIN_BYTES_PER_TILE
    return max(min(MIN_BYTES_PER_TILE, chip.workers * chip.vector_bytes), min(MIN_BYTES_PER_TILE, quick))


def even_splits(work: Work, chip: Chip, itemsize: int) -> Splits:
    """Parallel axes cut for the smallest worst tile: whole vectors along the last axis, `least_bytes` a tile."""
    axes = [a for a in work.axes if a.kind == "parallel"]
    budget = min(chip.tiles, max(1, -(-work.points * itemsize // least_bytes(work, chip, itemsize))))
    grains = vector_grains(work.axes, itemsize)
    parts = balanced(tuple(a.size for a in axes), tuple(grains.get(a.name, 1) for a in axes), budget)
    return {a.name: p for a, p in zip(axes, parts, strict=True) if p > 1}


def vector_grains(axes: Sequence[Axis], itemsize: int) -> dict[str, int]:
    """A natural vector along the last axis."""
    width = max(1, VECTOR_BYTES // itemsize)
    return {axes[-1].name: width} if axes and axes[-1].size >= width > 1 else {}


@functools.lru_cache(maxsize=65536)
def balanced(sizes: tuple[int, ...], grains: tuple[int, ...], budget: int) -> tuple[int, ...]:
    """Parts per axis, at most `budget` in all, that make the largest block smallest; ties by fewer parts, then outer axes."""
    return _balanced(sizes, grains, budget)[2]


@functools.lru_cache(maxsize=65536)
def _balanced(sizes: tuple[int, ...], grains: tuple[int, ...], budget: int) -> tuple[int, int, tuple[int, ...]]:
    if not sizes:
        return 1, 1, ()
    best = None
    for parts in _part_counts(-(-sizes[0] // grains[0]), budget):
        step = axis_step(sizes[0], parts, grains[0])
        volume, tiles, rest = _balanced(sizes[1:], grains[1:], budget // parts)
        found = (step * volume, parts * tiles, (parts, *rest))
        if best is None or found[:2] < best[:2] or (found[:2] == best[:2] and parts > best[2][0]):
            best = found
    assert best is not None
    return best


@functools.lru_cache(maxsize=65536)
def _part_counts(units: int, budget: int) -> tuple[int, ...]:
    """Numbers of parts worth trying: the fewest for each block size."""
    limit, found, p = min(units, budget), [], 1
    while p <= limit:
        found.append(p)
        step = -(-units // p)
        p = -(-units // (step - 1)) if step > 1 else limit + 1
    return tuple(found) or (1,)


def extents(work: Work, splits: Splits, grains: Splits) -> dict[str, int]:
    """Extent of each axis on the worst tile."""
    return {a.name: min(a.size, axis_step(a.size, splits.get(a.name, 1), grains.get(a.name, 1))) for a in work.axes}


def operand_elements(operand: Operand, extent: Dict[str, int]) -> int:
    """Elements of an operand on the worst tile."""
    total = operand.whole
    for dim in operand.dims:
        if isinstance(dim, Nested):
            total *= extent.get(dim.out, 1) * extent.get(dim.tap, 1)
        elif isinstance(dim, Window):
            total *= (extent.get(dim.out, 1) - 1) * dim.stride + (extent.get(dim.tap, 1) - 1) * dim.dilation + 1
        else:
            total *= 1 if dim is None or dim not in extent else extent[dim]
    return total


def aligned(operand: Operand, splits: Splits) -> bool:
    """Whether each element is needed on one tile only. What no axis names counts as such: every tile keeps it, or the machine brings it to each,
    however the work is cut (so it tells no plan from another)."""
    if all(d is None for d in operand.dims):
        return True
    named = {a for d in operand.dims for a in indexed_by(d)}
    return all(parts == 1 or axis in named for axis, parts in splits.items())


def _halo(work: Work, operand: Operand, extent: Dict[str, int], splits: Splits) -> int | None:
    """Elements beyond its even share that the worst tile needs of a windowed operand; None where it is not read by windows only."""
    named = {d for d in operand.dims if isinstance(d, str)} | {n for d in operand.dims if isinstance(d, Window) for n in (d.out, d.tap)}
    if not any(isinstance(d, Window) for d in operand.dims) or any(p > 1 and a not in named for a, p in splits.items()):
        return None
    own = operand.whole
    for dim in operand.dims:
        if isinstance(dim, Window):
            own *= extent[dim.out] * dim.stride
        elif dim is not None:
            own *= extent[dim]
    return max(0, operand_elements(operand, extent) - own)


def brought(work: Work, operand: Operand, plan: OpPlan) -> bool:
    """Whether the plan itself counts the whole operand's exchange."""
    if aligned(operand, plan.splits):
        return False
    return _halo(work, operand, extents(work, plan.splits, plan.grains), plan.splits) is None


def received(work: Work, splits: Splits, extent: Dict[str, int]) -> int:
    """Bytes that the worst tile must be sent because other tiles need or hold them too: broadcasts and halos."""
    total = 0
    for operand in work.inputs:
        if operand is None or aligned(operand, splits):
            continue
        halo = _halo(work, operand, extent, splits)
        total += (operand_elements(operand, extent) if halo is None else halo) * item_bytes(operand)
    return total


# ---- cycles -------------------------------------------------------------------------------------------------------------

def worker_cycles(work: Work, elements: int, itemsize: int, chip: Chip, fixed: int = 29) -> int:
    """Cycles of `elements` points on one tile: `workers * (fixed + loops * cycles per vector)` after the launch."""
    if not elements:
        return 0
    operands = sum(o is not None for o in work.inputs) + len(work.outputs)
    each = vector_cycles(work.functions, work.flops_per_point, itemsize, operands)
    vectors = -(-elements * itemsize // chip.vector_bytes)
    return chip.workers * (fixed + math.ceil(-(-vectors // chip.workers) * each)) + chip.launch_cycles


def exchange_cycles(nbytes: int, chip: Chip) -> int:
    """Cycles to receive `nbytes` on one tile."""
    return math.ceil(nbytes / chip.exchange_bytes_per_cycle)


def copy_cycles(nbytes: int, chip: Chip) -> int:
    """Cycles to rearrange `nbytes` within a tile."""
    return chip.copy_call_cycles + math.ceil(nbytes / chip.copy_bytes_per_cycle) if nbytes else 0


def limit_of(phases: Phases) -> str:
    """The phase that takes most cycles."""
    names = ("compute", "exchange", "reduce", "sync", "transform")
    worst = max(names, key=lambda n: getattr(phases, n))
    return "exchange" if worst == "transform" else worst


def plan_of(work: Work, splits: Splits, vertex: Vertex, phases: Phases, temp: int, exchanged: int, tiles: int | None = None,
          **more: object) -> OpPlan:
    tiles = math.prod(splits.values()) if tiles is None else tiles
    code = VERTEX_CODE[vertex] + CONTROL_CODE + 4 * -(-exchanged // BYTES_PER_EXCHANGE_INSTRUCTION)
    return OpPlan(splits, vertex, phases, temp, exchanged, code, tiles=tiles, flops=work.flops, limit=limit_of(phases),
                  **more)                                      # type: ignore[arg-type]


def map_at(work: Work, chip: Chip, splits: Splits, layout: Mapping | None = None, grains: Splits | None = None) -> OpPlan:
    """An element-wise plan with given splits; or on the tiles of `layout`, where an input lives."""
    itemsize = max(item_bytes(o) for o in work.outputs)
    grains = grains if grains is not None else {a: g for a, g in vector_grains(work.axes, itemsize).items() if a in splits}
    extent = extents(work, splits, grains)
    elements = math.prod(extent.values()) if layout is None else layout.worst
    sent = sum(min(operand_elements(o, extent), o.whole * elements) * item_bytes(o) for o in work.inputs if o and not aligned(o, splits))
    phases = Phases(worker_cycles(work, elements, itemsize, chip), exchange_cycles(sent, chip), chip.sync_cycles * (sent > 0))
    start = layout.start if layout else 0
    tiles = math.prod(splits.values()) if layout is None else layout.tiles_used
    return plan_of(work, splits, "map", phases, sent, sent, tiles, grains=grains, layout=layout, start_tile=start)


def move_at(work: Work, chip: Chip, splits: Splits) -> OpPlan:
    """A rearrangement: every output byte is received and put in place."""
    itemsize = item_bytes(work.outputs[0])
    grains = {a: g for a, g in vector_grains(work.axes, itemsize).items() if a in splits}
    nbytes = math.prod(extents(work, splits, grains).values()) * itemsize
    phases = Phases(exchange=exchange_cycles(nbytes, chip), sync=chip.sync_cycles, transform=copy_cycles(nbytes, chip))
    return plan_of(work, splits, "move", phases, nbytes, nbytes, grains=grains)


# ---- reductions ---------------------------------------------------------------------------------------------------------

def stages(depth: int) -> int:
    """Exchange-and-add rounds for `depth` partials (PopLibs' multi-stage reduction)."""
    return 0 if depth <= 1 else 3 if depth >= 125 else 2 if depth >= 16 else 1


def reduce_at(work: Work, chip: Chip, splits: Splits, grains: Splits | None = None, start_tile: int = 0) -> OpPlan:
    """A reduction with given splits: partial results on each tile, combined in stages, and handed back where outputs need them."""
    itemsize = max(item_bytes(o) for o in (*work.inputs, *work.outputs) if o is not None)
    grains = grains or {}
    extent = extents(work, splits, grains)
    compute = worker_cycles(work, math.prod(extent.values()), itemsize, chip, fixed=32)
    sent = received(work, splits, extent)
    partial, depth, back = _partials(work, splits, extent)
    rounds, adding = stages(depth), 0
    width = math.ceil(depth ** (1 / rounds)) if rounds else 1
    for _ in range(rounds):
        adding += int(reduction(chip, "float32", -(-partial // width), width))
    gathered, returned = rounds * partial * 4, back * 4
    exchanges = (sent > 0) + rounds + (back > 0)
    phases = Phases(compute, exchange_cycles(sent + gathered + returned, chip), chip.sync_cycles * exchanges, 0, adding)
    temp = sent + (2 * partial * 4 if rounds else 0) + returned
    return plan_of(work, splits, "reduce", phases, temp, sent + gathered + returned, grains=grains, reduce_stages=rounds, start_tile=start_tile,
                 gathered=phases.exchange - exchange_cycles(sent, chip))


def _partials(work: Work, splits: Splits, extent: Dict[str, int]) -> tuple[int, int, int]:
    """Partial results on the worst tile, how many tiles hold partials of one result, and elements handed back to all of them.

    An output that lacks a split axis is added up over it. Where a reduce axis is split and an output has it (a normalisation),
    the statistics come back; with no output of their own they are a maximum and a sum per row. Windows that write an output
    overlap in their halos only.
    """
    reduced = {a.name for a in work.axes if a.kind == "reduce"}
    partial, depth, full = 0, 1, False
    for o in work.outputs:
        named = {a for d in o.dims for a in indexed_by(d)}
        windows = [d for d in o.dims if isinstance(d, Window) and d.out not in named]
        missing = math.prod(p for a, p in splits.items() if a not in named and a not in {w.out for w in windows})
        if missing > 1:
            partial, depth = partial + operand_elements(o, extent), max(depth, missing)
        elif any(splits.get(w.out, 1) > 1 for w in windows):
            overlap = _halo(work, o, extent, splits) or 0
            partial, depth = partial + overlap, max(depth, 2 if overlap else 1)
        full = full or bool(named & reduced)
    tiles = math.prod(p for a, p in splits.items() if a in reduced)
    if tiles == 1 or not full:
        return partial, depth, 0
    own = sum(operand_elements(o, extent) for o in work.outputs if not {a for d in o.dims for a in indexed_by(d)} & reduced)
    back = own or 2 * math.prod(n for a, n in extent.items() if a not in reduced)
    return max(partial, back), max(depth, tiles), back


def _reduce_plans(work: Work, chip: Chip) -> list[OpPlan]:
    """Parallel axes first, and every power of two of the tiles left for the reduced ones."""
    itemsize = max(item_bytes(o) for o in (*work.inputs, *work.outputs) if o is not None)
    parallel = [a for a in work.axes if a.kind == "parallel"]
    reduced = [a for a in work.axes if a.kind == "reduce"]
    most = min(chip.tiles, max(1, -(-work.points * itemsize // least_bytes(work, chip, itemsize))))
    grains = vector_grains(work.axes, itemsize)
    plans, seen, depth = [], set(), 1
    while depth <= most:
        splits = cut_evenly(parallel, grains, most // depth) | cut_evenly(reduced, grains, depth)
        key = tuple(splits.items())
        if key not in seen:
            seen.add(key)
            plans.append(reduce_at(work, chip, splits, {a: g for a, g in grains.items() if a in splits}))
        depth *= 2
    return plans


def ladder(most: int) -> list[int]:
    """Numbers of parts up to `most`: it, 1, 2, 3, 4, 6, 8, 12 …, of which each has at least two thirds of the next."""
    found = {1, most, *(n << i for n in (2, 3) for i in range(most.bit_length()))}
    return sorted(n for n in found if n <= most)


def cut_evenly(axes: Sequence[Axis], grains: Splits, budget: int) -> dict[str, int]:
    parts = balanced(tuple(a.size for a in axes), tuple(grains.get(a.name, 1) for a in axes), budget)
    return {a.name: p for a, p in zip(axes, parts, strict=True) if p > 1}


# ---- where an input already lives ---------------------------------------------------------------------------------------

def splits_along(work: Work, operand: Operand, layout: Mapping) -> tuple[dict[str, int], dict[str, int]] | None:
    """Splits and grains that put an aligned operand's blocks exactly where `layout` has them; None where no splits do."""
    if layout.shares or len(layout.cuts) != len(operand.dims):
        return None
    axes = {a.name: a for a in work.axes}
    found: list[tuple[int, str, int, int]] = []
    for cut, dim in zip(layout.cuts, operand.dims, strict=True):
        digits = [d for d in cut.digits if d[0] > 1]
        if not digits:
            continue
        if isinstance(dim, Nested) and (two := _within(dim, axes[dim.out].size, cut.step, digits)):
            found += two
            continue
        name, stride = (dim.out, dim.stride) if isinstance(dim, Window) else (dim, 1)
        if len(digits) > 1 or name is None or axes[name].kind in ("whole", "staged") or cut.step % stride:
            return None
        found.append((digits[0][1], name, digits[0][0], cut.step // stride))
    found.sort(reverse=True)
    expected = 1
    for at, _, parts, _ in reversed(found):
        if at != expected:
            return None
        expected *= parts
    grains = {name: step for _, name, parts, step in found if axis_step(axes[name].size, parts) != step}
    exact = all(axis_step(axes[name].size, parts, grains.get(name, 1)) == step for _, name, parts, step in found)
    if not exact or len({name for _, name, _, _ in found}) != len(found):
        return None
    return {name: parts for _, name, parts, _ in found}, grains


def _within(dim: Nested, outer: int, step: int, digits: Sequence[tuple[int, int]]) -> list[tuple[int, str, int, int]]:
    """Tile stride, axis, parts and step of both axes of a dimension that is cut in equal runs within its `outer` groups; empty: it is not."""
    inner = dim.stride // step
    if dim.stride % step or inner == 1 or math.prod(parts for parts, _ in digits) != outer * inner:
        return []
    if len(digits) == 1:
        digits = [(outer, digits[0][1] * inner), (inner, digits[0][1])]
    if [parts for parts, _ in digits] != [outer, inner]:
        return []
    return [(at, name, parts, size) for name, (parts, at), size in zip((dim.out, dim.tap), digits, (1, step), strict=True) if parts > 1]


def map_along(work: Work, chip: Chip, operand: Operand, layout: Mapping) -> OpPlan:
    """An element-wise plan that leaves every element where `layout` has the operand's."""
    exact = splits_along(work, operand, layout)
    if exact is not None:
        return map_at(work, chip, exact[0], layout, exact[1])
    return map_at(work, chip, even_splits(work, chip, item_bytes(work.outputs[0])), layout)


def reduce_along(work: Work, chip: Chip, operand: Operand, layout: Mapping) -> OpPlan | None:
    """A reduction whose tiles reduce what they already hold; None where the layout is no split of its axes."""
    exact = splits_along(work, operand, layout)
    return None if exact is None else reduce_at(work, chip, exact[0], exact[1], layout.start)


def move_along(work: Work, chip: Chip, operand: Operand, layout: Mapping) -> OpPlan | None:
    """A rearrangement that each tile does with what it holds, so that nothing travels: a transposition, a slice or a part along dimensions that
    the layout does not cut. None where the layout cuts others, or is no split of the work's axes."""
    exact = splits_along(work, operand, layout)
    cuts = zip(layout.cuts, operand.dims, strict=False)
    if exact is None or any(cut.parts > 1 and not isinstance(dim, str) for cut, dim in cuts):
        return None
    splits, grains = exact
    itemsize = item_bytes(work.outputs[0])
    extent = extents(work, splits, grains)
    made = sum(operand_elements(o, extent) for o in work.outputs) if len(work.outputs) > 1 else math.prod(extent.values())
    return plan_of(work, splits, "move", Phases(transform=copy_cycles(made * itemsize, chip)), 0, 0, grains=grains, start_tile=layout.start)
