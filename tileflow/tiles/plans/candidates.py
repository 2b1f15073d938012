"""Which partitions of a contraction are looked at: vertex variants, parts per axis, serial splits. Pure functions of sizes, types and chip."""
from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Sequence

import numpy as np

from ...graph.work import Window
from ..hardware.chip import ITEMSIZE, Chip
from ..hardware.vertex import NATURAL_BYTES, SLIC_CHANNELS
from .contraction import Canonical, slides
from .cost import Variant

SERIAL_STEPS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
MOST_CANDIDATES, LEAST_CANDIDATES, MACS_PER_CANDIDATE = 5000, 600, 40_000
"""Parallel splits per variant: lists of parts are thinned until they are at most so many, fewer for small contractions."""
LENGTHS = ((40, 24), (24, 12), (12, 8), (10, 6), (8, 5), (7, 4), (6, 3), (5, 3), (4, 2))
"""How long the lists of parts may be: for the widest rows and channels, and for the other axes."""
SERIAL_SHARE = 8
"""A serial split is looked at with one of so many parallel splits."""
EXPAND_WASTE = 1.25
"""Taps are folded into the channels where blocks of the channels alone would be filled worse than this."""


@functools.cache
def divisors(n: int) -> tuple[int, ...]:
    """Divisors of n in ascending order."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))


@functools.cache
def part_choices(size: int, grain: int, tiles: int, limit: int) -> tuple[int, ...]:
    """Numbers of parts for an axis: powers of two, divisors of the size (in grains), divisors of the chip's tiles.

    Each is the smallest number that gives its extent, so no part is empty. At most `limit` of them, the
    extremes included, evenly spread.
    """
    runs = max(1, -(-size // grain))
    most = min(runs, tiles)
    wanted = {1, most, *(d for d in divisors(runs) if d <= most), *(d for d in divisors(tiles) if d <= most),
              *(1 << i for i in range(most.bit_length()) if 1 << i <= most)}
    found = sorted({-(-runs // -(-runs // p)) for p in wanted})
    if len(found) <= limit:
        return tuple(found)
    keep = np.unique(np.linspace(0, len(found) - 1, max(2, limit)).round().astype(int))
    return tuple(found[i] for i in keep)


def variants(c: Canonical, chip: Chip, partials: str) -> list[Variant]:
    """The matrix unit's variants first, then the others that fit the contraction."""
    sizes, dtype = c.sizes, c.first.dtype
    widest = {role: max(c.role(role), key=lambda a: sizes[a], default="") for role in ("m", "n")}
    total = {role: math.prod(sizes[a] for a in c.role(role)) for role in ("group", "m", "n", "k")}
    found: list[Variant] = []
    single = c.channels[0] if len(c.channels) == 1 else ""
    unit = chip.unit(dtype, partials)
    folds = _folds(c)
    for swap in (False, True):
        if unit:
            channel = widest["m" if swap else "n"]
            grains = {channel: min(unit.units, sizes[channel])} if channel else {}
            waste = unit.k_grain * -(-_channels(c) // unit.k_grain) / max(1, _channels(c))
            for expand in (False, True):
                if (expand and not folds) or (not expand and folds == "always") or (expand and folds == "may" and waste <= EXPAND_WASTE):
                    continue
                block = {single: min(unit.k_grain, sizes[single])} if single and not expand else {}
                found.append(Variant("amp", swap, expand, partials, tuple(sorted({**grains, **block}.items()))))
        # Runs of natural vectors, also where the chip has wider ones: those would leave out parts that a chip of
        # narrower ones has.
        block = {single: min(chip.vector(dtype), NATURAL_BYTES // ITEMSIZE[dtype], sizes[single])} if single else {}
        found.append(Variant("hmac", swap, folds == "always", partials, tuple(sorted(block.items()))))
        if total["k"] == 1:
            found.append(Variant("outer", swap, False, partials))
        if total["group"] > 1:
            if takes_depth_wise(c, swap):
                found.append(Variant("vmac", swap, folds == "always", partials, ()))
            if takes_small_groups(c, chip, swap, partials):
                found.append(Variant("slic", swap, False, partials, ()))
    return found


def takes_small_groups(c: Canonical, chip: Chip, swap: bool, partials: str) -> bool:
    """Whether the small-group vertex has this contraction: float16, a matrix unit, taps, few channels on both sides."""
    narrow = math.prod(c.sizes[a] for a in c.role("m" if swap else "n"))
    return (c.first.dtype == "float16" and chip.unit("float16", partials) is not None and bool(c.taps and c.role("group"))
            and max(narrow, _channels(c)) <= SLIC_CHANNELS)


def takes_depth_wise(c: Canonical, swap: bool) -> bool:
    """Whether the vertex over groups has this contraction: 16 bits, groups of one channel that is made (PopLibs, getConvVertexVMACCandidates)."""
    return ITEMSIZE[c.first.dtype] == 2 and bool(c.role("group")) and math.prod(c.sizes[a] for a in c.role("m" if swap else "n")) == 1


def _channels(c: Canonical) -> int:
    return math.prod(c.sizes[a] for a in c.channels)


def _folds(c: Canonical) -> str:
    """Whether taps can be folded into the sums: "" no, "may", or "always" where a window slides along a summed axis."""
    windows = [d for t in (c.first, c.second) for d in t.dims if isinstance(d, Window) and slides(d, c.sizes)]
    if any(d.out in c.role("k") for d in windows):
        return "always"
    return "may" if any(d.tap in c.taps for d in windows) else ""


def _lists(c: Canonical, v: Variant, tiles: int, wide: int, narrow: int) -> tuple[tuple[int, ...], ...]:
    """Parts per axis: many for the widest rows and channels, fewer for sums and the rest, all or nothing for small taps."""
    sizes = c.sizes
    widest = {max(c.role(r), key=lambda a: sizes[a], default="") for r in ("m", "n")}
    limits = {a.name: 2 if a.name in c.taps else wide if a.name in widest else narrow for a in c.axes}
    return tuple(part_choices(a.size, v.grain(a.name), tiles, limits[a.name]) for a in c.axes)


@functools.lru_cache(4096)
def _count(lists: tuple[tuple[int, ...], ...], tiles: int) -> int:
    """Rows that `_grid` would give: combinations counted by their product."""
    ways = np.zeros(tiles + 1, np.int64)
    ways[1] = 1
    for choices in lists:
        more = np.zeros_like(ways)
        for n in choices:
            more[n::n] += ways[1:tiles // n + 1]
        ways = more
    return int(ways.sum())


def _grid(lists: Sequence[Sequence[int]], tiles: int) -> np.ndarray:
    """All combinations [n, axes] whose product is at most `tiles`."""
    used = np.ones(1)
    columns: list[np.ndarray] = []
    for choices in lists:
        options = np.asarray(choices, float)
        product = np.multiply.outer(used, options)
        rows, picks = np.nonzero(product <= tiles)
        columns = [column[rows] for column in columns]
        columns.append(options[picks])
        used = product[rows, picks]
    return np.stack(columns, 1) if columns else np.ones((1, 0))


def _filled(c: Canonical, v: Variant, grid: np.ndarray, tiles: int) -> np.ndarray:
    """The combinations once more with the widest row or channel axis cut as often as the tiles that are left allow. Of
    small contractions also of half of the tiles, as a chip of so many looks at those; larger ones are quicker on
    all."""
    sizes, names = c.sizes, [a.name for a in c.axes]
    halved = {max(1, tiles // 2)} if c.macs <= LEAST_CANDIDATES * MACS_PER_CANDIDATE else set()
    more = [grid]
    for role in ("m", "n"):
        axis = max(c.role(role), key=lambda a: sizes[a], default="")
        if not axis:
            continue
        at = names.index(axis)
        others = grid[grid[:, at] == 1]
        runs = max(1, -(-sizes[axis] // v.grain(axis)))
        for used in sorted({tiles} | halved, reverse=True):
            rows = others.copy() if used == tiles else others[others.prod(1) <= used]
            most = np.clip(np.floor(used / rows.prod(1)), 1, runs)
            rows[:, at] = np.ceil(runs / np.ceil(runs / most))
            more.append(rows)
    return np.concatenate(more)


def grid(c: Canonical, v: Variant, chip: Chip, serial: bool = False) -> np.ndarray:
    """Parallel parts per axis, one row a candidate. With `serial` a coarser grid that uses at least half of the tiles it can."""
    tiles = chip.tiles
    most = min(MOST_CANDIDATES, max(LEAST_CANDIDATES, c.macs // MACS_PER_CANDIDATE)) // (SERIAL_SHARE if serial else 1)
    few_enough = bisect.bisect_left(LENGTHS[:-1], True, key=lambda lengths: _count(_lists(c, v, tiles, *lengths), tiles) <= most)
    found = _filled(c, v, _grid(_lists(c, v, tiles, *LENGTHS[few_enough]), tiles), tiles)
    if serial:
        used = found.prod(1)
        found = found[used * 2 >= used.max()]
    return found


def serial_splits(c: Canonical, v: Variant, most: float) -> list[tuple[str, tuple[int, ...]]]:
    """(axis, numbers of steps up to `most`) of the serial splits: on the widest axis of one role at a time, never on two axes."""
    sizes, found = c.sizes, []
    for names in (c.role("m"), c.role("n"), c.channels):
        axis = max(names, key=lambda a: sizes[a], default="")
        steps = tuple(s for s in SERIAL_STEPS if axis and s <= min(most, -(-sizes[axis] // v.grain(axis))))
        if steps:
            found.append((axis, steps))
    return found
