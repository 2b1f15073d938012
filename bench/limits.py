"""The largest square matmul whose operands, result and temporaries fit each built-in chip, and what stops the next size."""
from __future__ import annotations

from dataclasses import dataclass

from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.limits import PRECISIONS, largest_square_matmul

from .report import Figures

CHIPS = ("gc2", "gc200", "bow", "c600")


@dataclass
class Largest(Figures):
    """One chip and element type: the size that fits, the next one tried, why that does not fit."""

    case: str
    size: int
    worst_tile_bytes: int
    tile_bytes: int
    next_size: int
    stopped_by: str

    def to_text(self) -> str:
        return (f"{self.case:<24} {self.size:>7,} squared fits ({self.worst_tile_bytes:,} of {self.tile_bytes:,} bytes); "
                f"{self.next_size:,}: {self.stopped_by}")


def run(threads: int | None, runs: int) -> list[Largest]:
    """All chips and element types."""
    found = []
    for name in CHIPS:
        for dtype in PRECISIONS:
            machine = chip(name)
            limit = largest_square_matmul(machine, dtype)
            assert limit.tiled is not None
            found.append(Largest(f"{name} {dtype} matmul", limit.size, int(limit.tiled.peak.max()), machine.usable_bytes, limit.next_size,
                                 limit.stopped_by))
    return found
