"""What both leaves of a recurrent layer read in sizes and places, and how its rows are shared out."""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ..gemm.micro import LINE, copy
from ..isa import cpu
from ..isa.half import HALVES, narrow_rows, widen_rows
from ..isa.vector import Emitter, inlined_code
from ..machine.leaf import Numbers

ROWS, TOGETHER = 16, 48
"""Rows of the batch that one worker takes at least, if there are as many, and that it does together at most: each reads the recurrent weights
once in a step."""
SKEW = 64
"""Bytes between rows of scratch: rows a power of two apart would fight for the same cache sets."""


@dataclass(frozen=True)
class Steps(Numbers):
    """Sizes, and where rows lie, counted in rows: x, the record and their gradients at d * x_d + t * x_t + b * x_b, the outputs at y_*, the states
    at s_*. A unit of the range is `rows` rows of a direction, of which there are `blocks`; the range begins at direction `first`.

    reverse: a bit for each direction that runs from the last step to the first. The other names say what is there.
    """

    steps: int
    batch: int
    n: int
    gates: int
    recorded: int
    width: int
    rows: int
    blocks: int
    first: int
    reverse: int
    x_t: int
    x_b: int
    x_d: int
    y_t: int
    y_b: int
    y_d: int
    s_b: int
    s_d: int
    reset_after: int
    biased: int
    lengths: int
    has_h: int
    has_c: int
    cell: int
    peepholes: int
    record: int
    gradient: int = 0
    gradient_h: int = 0
    gradient_c: int = 0


def between(dtype: str) -> tuple[Any, Any]:
    """The functions (rows, n, source, source_row, target, target_row) from memory to scratch, in which 16-bit numbers
    are float32, and back."""
    return (widen_rows(dtype), narrow_rows(dtype)) if dtype in HALVES else (copy(dtype), copy(dtype))


def _asked(e: Emitter, size: Any, at: Any) -> None:
    e.loop(0, size, LINE, [], lambda i, _state: e.prefetch(e.address(at, i)))


@functools.cache
def asked(path: cpu.Cpu) -> Any:
    """The function (bytes, address) that asks for the lines of a row that is read soon.

    The vectors of a row are streams too short for hardware to follow: 1.06 in bfloat16, 1.02 in float32 of the speed
    without it, forward, at 256 units and 32 rows. Not backward, nor for what is written: 0.98.
    """
    return inlined_code(f"recurrent_asked_{path.name}", "size, at", path, _asked)


def row_blocks(batch: int) -> tuple[int, int]:
    """Rows of a unit, and units of a direction: even ones of about ROWS."""
    count = max(1, batch // ROWS)
    rows = -(-batch // count)
    return rows, -(-batch // rows) if batch else 0


def most_rows(batch: int) -> int:
    """Rows that are done together at most."""
    rows, _ = row_blocks(batch)
    return min(batch, rows * max(1, TOGETHER // max(1, rows)))


def taken(unit: int, hi: int, rows: int, blocks: int, batch: int) -> tuple[int, int, int, int]:
    """The direction of a unit, its rows first..last together with those of units after it, and the next unit."""
    d, k = unit // blocks, unit % blocks
    count = min(blocks - k, hi - unit, max(1, TOGETHER // rows))
    return d, k * rows, min(batch, (k + count) * rows), unit + count


def active(lengths: Any, given: int, t: int, b: int, last: int) -> tuple[int, int]:
    """The first run of rows, from row b on, whose sequences have a step t; last, last: there is none."""
    if given == 0:
        return b, last
    while b < last and lengths[b] <= t:
        b += 1
    end = b
    while end < last and lengths[end] > t:
        end += 1
    return b, end
