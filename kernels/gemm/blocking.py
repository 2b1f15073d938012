"""Which way a matrix product is done and in which blocks: a versioned table, a function of sizes, dtype and CPU path alone.

Never of a clock: the same problem takes the same way on every machine with the same features, so bits repeat. Whoever
changes a number here changes bits: VERSION counts that. Ratios in the comments were measured in one run against the other ways.
"""
from __future__ import annotations

from dataclasses import dataclass

from ..isa import cpu
from ..isa.vector import itemsize
from . import tiles as tiled
from .micro import WIDE, columns
from .problem import GemmProblem

VERSION = 10
"""Counts the changes of the table."""
CACHE = 1 << 20
"""Bytes of second-level cache the blocking counts on."""
TALL = 12
"""Rows of C that units are counted in, whatever the height of the path's register block."""
SETS = 2048
"""Bytes apart at which rows fall into the same sets of a first-level cache, whether it has 32 or 48 KB."""
SMALL_B = 40 << 10
"""Bytes of a B from which laying it out in panels pays with small caches: where its rows lie, they fight for the sets of a cache of 32 KB.

Ratio to PyTorch 2.13 in panels and where it lies: 96^3 1.09, 1.22; 128^3 1.10, 1.05; 257 x 511 x 509 1.07, 0.76.
"""


@dataclass(frozen=True)
class Blocking:
    """How a problem is computed: the way, rows and columns of C in one unit of the range, length of one run of sums."""

    way: str                   # "direct" | "dots" | "panels" | "packed" | "tiles": float32.py describes them
    rows: int
    cols: int
    depth: int

    @property
    def panels(self) -> bool:
        """Whether the way reads B in panels."""
        return self.way in ("panels", "packed", "tiles")


def _split(size: int, most: int, step: int) -> int:
    """The length of even blocks that cover `size`: about `most` or less, a multiple of `step`."""
    blocks = max(1, -(-size // most))
    return -(-size // (blocks * step)) * step if size else step


def blocking(p: GemmProblem, dtype: str, path: cpu.Cpu) -> Blocking:
    """The way and the blocks for a simplified problem. The thresholds come from measuring the ways against each other."""
    panel, size, tall = columns(dtype, path), itemsize(dtype), path.tile.rows
    depth, bytes_b, strip = 2048 // size, p.k * p.n * size, WIDE * path.lanes(size)
    rows = _split(p.m, 8 * TALL, tall)
    if path.amx and dtype == "f4" and tiled.pays(p.m, p.n, p.k, tiled.products(dtype, path)):
        return Blocking("tiles", *tiled.blocks(p.m, p.n), tiled.DEPTH)
    if p.trans_b and not p.trans_a and (p.m <= 48 or p.n == 1):
        # Few rows stream B from memory: long rows keep the hardware's prefetching going.
        return Blocking("dots", 48, 16, depth if p.m > 8 else 8 * depth)
    strided = p.trans_a and p.m * p.k * size >= CACHE               # 0.2 of torch where it lies, 1.1 copied: 30522 x 256 x 640
    # A B from beyond the caches is read where it lies by few rows, asked for ahead; laying it out would read it twice.
    # With small caches, over panels: 64 x 30400 x 64 1.7, 96 x 3000 x 1024 1.3, 256 x 7600 x 256 1.1, 512 x 3136 x 512
    # 0.95, rows a power of two apart 0.8.
    streamed = p.m <= 256 and bytes_b >= 3 * CACHE and p.n * size % SETS != 0
    if path.small_caches and (p.trans_b or strided or (min(p.m, p.k) >= 64 and bytes_b >= SMALL_B and not streamed)):
        return _short(p, dtype, path)
    outgrown = bytes_b >= (2 * CACHE if panel * size >= 128 and not p.trans_a else CACHE)
    # Likewise with large caches: 192 x 30400 x 64 1.5, 256 x 7600 x 256 1.2, 512 x 3136 x 512 1.1, 768 x 1900 x 512
    # 1.05, 1024^3 0.85.
    if p.trans_b or (p.m >= (192 if p.k > 512 else 768) and outgrown):
        # 16 KB of a panel in the first-level cache serve twice as many rows: 0.93 instead of 0.85 at 512 x 512 x 2048.
        rows = _split(p.m, 16 * TALL, tall)
        return Blocking("packed", rows, _across(p, rows, panel), depth // 2)
    if p.trans_a and p.m * p.k * size >= 8 * CACHE:
        # Read where it lies, such an A would come from memory again for each panel: 0.2 instead of 1.1 at 30522 x 256 x 640.
        rows = _split(p.m, 24 * TALL, tall)
        return Blocking("packed", rows, _across(p, rows, panel), depth // 2)
    if p.trans_a and min(p.m, p.n) >= 4 * TALL and p.k >= depth // 4 and 0 in (p.m * size % SETS, p.n * size % SETS):
        # Where they lie, the rows of A or of B push each other out of the cache: 0.64 instead of 0.80 of the peak at
        # 512 x 128 x 768,
        # 0.66 instead of 0.81 at 128 x 512 x 768; 384 x 128 x 768, whose rows do not, 0.78 instead of 0.75.
        rows = _split(p.m, 8 * TALL, tall)
        return Blocking("packed", rows, _across(p, rows, panel), depth // 2)
    if p.m <= 8 and bytes_b > 16 * CACHE:
        # Likewise for a row-major B: a few whole rows at a time, C stays in the first-level cache. Not eight: where they are a power of
        # two apart they fill all ways of one set (1 x 4096 x 4096: 0.96 of torch in halves of six rows, 0.82 in quarters of eight).
        return Blocking("direct", 8, _split(p.n, max(strip, min(128 * strip, p.n // 2)), strip), 6 if p.m <= 4 else 16)
    if p.m <= 8 and bytes_b > CACHE:
        if p.m == 1:
            return Blocking("direct", 1, 4 * strip, 32)         # 1.38 of torch at 1 x 1024 x 1024, eight long rows at a time give 1.00
        if p.m <= 4:
            return Blocking("direct", 8, min(16, max(4, p.n // 2 // strip)) * strip, 8)
        return Blocking("direct", 8, 2 * strip, 64)             # 1.42 at 8 x 1024 x 1024, where panels give 0.86
    if p.m == 1:
        return Blocking("direct", 1, strip, depth // 8)
    # One block of sums: wide units cost fewer starts. Several: C stays in the first-level cache between them.
    return Blocking("direct", rows, _across(p, rows, panel) if p.k <= depth // 2 else panel, depth // 2)


def _short(p: GemmProblem, dtype: str, path: cpu.Cpu) -> Blocking:
    """Blocks for 512 KB of second-level cache, an even number of rows of them for two workers. Ratios to PyTorch 2.13, one thread.

    12 register blocks of rows and long sums, so that C is read and written half as often: 1.06 at 3072 x 768 x 512 with A transposed, where
    192 rows and short sums give 0.99; 512^3 1.07, 1.01. Four times as many rows, and short sums, where long columns of A^T lie far apart in
    memory (1024 x 256 x 4096: 1.03, else 0.86), or where the columns of B outgrow the third-level cache (640 x 256 x 30522: 0.96, else 0.87).
    """
    panel, size, tall = columns(dtype, path), itemsize(dtype), path.tile.rows
    depth, wide = 2048 // size, 64 * panel
    many = (p.trans_a and p.k > depth) or p.k * min(p.n, wide) * size >= 16 * CACHE
    blocks = -(-p.m // ((48 if many else 12) * tall))
    # A large product that would be one block is two: else its columns are cut finer, and each cut copies A again.
    blocks += blocks % 2 * (blocks > 1 or p.m > 12 * tall)
    rows = _split(p.m, -(-p.m // blocks), tall)
    # One run of sums over rows that do not fall into the same sets of the cache: A is read where it lies.
    stays = not p.trans_a and p.k <= depth and p.k * size % 2048 != 0
    return Blocking("panels" if stays else "packed", rows, _across(p, rows, panel, wide), depth // 2 if many else depth)


def _across(p: GemmProblem, rows: int, panel: int, most: int = 0) -> int:
    """Columns of a unit, `most` or less, such that there are 6 units, if there are two panels for each.

    Every further unit copies its rows of A again.
    """
    down = -(-p.m // rows)
    across = min(-(-6 // down), max(1, p.n // (2 * panel)))
    return _split(p.n, min(most or 32 * panel, -(-p.n // across)), panel)


def prepacked(p: GemmProblem, dtype: str, path: cpu.Cpu) -> Blocking | None:
    """The blocks for a simplified problem whose B lies in panels already; None where B is better read as it is.

    The sums are those of `blocking`'s way, except where that is "dots" or rows are few (the bits are then those of `micro.outer` in one depth) or
    where only a packed B makes tiles pay.
    """
    # Few rows: panels pay where B comes from memory and has rows enough for sums in flight. 8 x 1024 x 1024 0.9 of reading it as it is,
    # 8 x 4096 x 1024 5.3 times; 8 of 8 x 1536 x 384 5.0, 4 rows 1.7, 2 rows 1.6, but 0.5 where such a B is in the third-level cache.
    few = 4 <= p.m <= 8 and p.k * p.n * itemsize(dtype) >= 2 * CACHE
    if p.batch or (p.m <= 8 and not few) or p.n == 1 or p.k == 0:
        return None
    if path.amx and dtype == "f4" and tiled.pays(p.m, p.n, p.k, tiled.products(dtype, path), packed=True):
        return Blocking("tiles", *tiled.blocks(p.m, p.n), tiled.DEPTH)
    plain, panel = blocking(p, dtype, path), columns(dtype, path)
    if plain.way == "packed":
        return plain
    depth = 1024 // itemsize(dtype) if plain.way == "dots" or few else plain.depth
    rows = _split(p.m, 8 * TALL, path.tile.rows)
    return Blocking("panels", rows, _across(p, rows, panel), depth)
