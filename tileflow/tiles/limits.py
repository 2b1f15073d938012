"""The largest problem that fits a chip, found by bisection, and what stops the next one."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..graph import Builder, Graph, Origin, TensorType
from ..program.batching import Batching
from ..program.program import Program
from .hardware.chip import Chip
from .machine import TileProgram, analyze
from .plans.plan import TileOptions

PRECISIONS = {"float32": "32.32", "float16": "16.16"}


@dataclass(frozen=True)
class Limit:
    """The largest size that fits, its program, the smallest size tried that does not, and what stops that one."""

    size: int
    tiled: TileProgram | None
    next_size: int
    stopped_by: str


def square_matmul(size: int) -> Program:
    """C = A @ B with A from the host and B a weight that stays on the tiles, all [size, size]."""
    from ..graph import State, Value
    graph = Graph("matmul")
    kind = TensorType("float32", (size, size))
    weight = State("b", "parameter", Value("b", kind))
    graph.states.append(weight)
    build = Builder(graph, Origin(("matmul",)))
    graph.outputs.append(build.MatMul(build.input("a", kind), weight.input))
    return Program.of(graph, Batching(size))


def largest_square_matmul(chip: Chip, dtype: str = "float16", *, options: TileOptions | None = None, multiple: int = 16,
                          most: int = 1 << 17) -> Limit:
    """The largest square matmul whose operands, result and temporaries fit the chip.

    Each size may take the fewest temporaries it can where the options' proportion does not fit.

    Args:
        dtype: float32 or float16 (with float16 partials; the options' precision goes before it).
        multiple: sizes are multiples of this.
        most: sizes tried are at most this.
    """
    base = options or TileOptions(precision=PRECISIONS[dtype])

    def attempt(size: int) -> TileProgram:
        program = square_matmul(size)
        tiled = analyze(program, chip, base)
        if not tiled.fits:
            tiled = analyze(program, chip, TileOptions(available_memory_proportion=0.0, precision=base.precision))
        return tiled

    return bisect(attempt, multiple, most // multiple * multiple)


def bisect(attempt: Callable[[int], TileProgram], multiple: int, most: int) -> Limit:
    """The largest multiple up to `most` that fits, assuming that what fits shrinks with size."""
    low, high = 0, 1
    found: dict[int, TileProgram] = {}

    def fits(k: int) -> bool:
        found[k] = attempt(k * multiple)
        return found[k].fits

    while high * multiple <= most and fits(high):
        low, high = high, high * 2
    if high * multiple > most:
        return Limit(low * multiple, found.get(low), most, f"the largest size tried, {most}, fits")
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return Limit(low * multiple, found.get(low), high * multiple, what_stops(found[high]))


def what_stops(tiled: TileProgram) -> str:
    """One sentence on the tile that is too full."""
    tile = tiled.worst_tile
    parts = sorted(((int(v[tile]), name) for name, v in tiled.categories.items() if v[tile]), reverse=True)
    listed = ", ".join(f"{name} {nbytes:,}" for nbytes, name in parts)
    return f"tile {tile} needs {int(tiled.peak[tile]):,} of {tiled.chip.usable_bytes:,} bytes: {listed}"
