"""Hints: what a user asks of the tile machine's planner for one operator. The host runs the same program with or without them."""
from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class MultiConv:
    """Convolutions that are planned together; nodes with an equal value, role and operator are one group.

    name: unique in the graph.
    plan: "parallel" (side by side on parts of the tiles) or "serial" (one after the other on all tiles).
    reserved_tiles: tiles kept for each of the other convolutions while the largest one is planned.
    cycle_back_off: cycles the largest may take more than at its best, as a share, to leave tiles to the others.
    """

    name: str
    plan: str = "parallel"
    reserved_tiles: int = 50
    cycle_back_off: float = 0.1


@dataclass(frozen=True)
class Hints:
    """What is asked; None: nothing.

    available_memory_proportion: share of a tile's memory for the operator's temporaries, before any option.
    partials: element type of partial sums, "float16" or "float32".
    """

    available_memory_proportion: float | None = None
    partials: str | None = None
    multi_conv: MultiConv | None = None

    def over(self, outer: Hints | None) -> Hints:
        """These hints, and those of `outer` where these ask nothing."""
        if outer is None:
            return self
        return Hints(**{f.name: getattr(outer, f.name) if getattr(self, f.name) is None else getattr(self, f.name) for f in fields(self)})
