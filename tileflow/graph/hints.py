"""Hints: what a user asks for one operator, by the layer or the block of code that it was recorded in.

Those for the tile machine's planner leave the program as it is; what is asked of automatic casts becomes Casts (`passes/autocast.py`) and is gone.
"""
from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields
from typing import Any


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
class Casting:
    """What is asked of automatic casts; None: nothing.

    enabled: whether operators are cast at all. low: the type of those in 16 bits.
    policy: a `tileflow.precision.policy.Policy`. rule: the set of a policy that all operators are in, whatever they are.
    """

    enabled: bool | None = None
    low: str | None = None
    policy: Hashable = None
    rule: str | None = None

    def over(self, outer: Casting | None) -> Casting:
        """This, and what `outer` asks where this asks nothing; a rule is its own policy's."""
        if outer is None:
            return self
        return Casting(**{**_merged(self, outer), "rule": outer.rule if self.rule is None and self.policy is None else self.rule})


@dataclass(frozen=True)
class Annotation:
    """The block that an operator was recorded in: its name, and the IPU that was asked for it. No name: after a block that has ended."""

    block: str | None
    ipu: int | None = None
    begun: bool = False
    """By `begin_block` or `Block.start`, which have no end."""


@dataclass(frozen=True)
class Hints:
    """What is asked; None: nothing.

    available_memory_proportion: share of a tile's memory for the operator's temporaries, before any option.
    partials: element type of partial sums, "float16" or "float32".
    annotation: the block for execution over several IPUs.
    """

    available_memory_proportion: float | None = None
    partials: str | None = None
    multi_conv: MultiConv | None = None
    casting: Casting | None = None
    annotation: Annotation | None = None

    def over(self, outer: Hints | None) -> Hints:
        """These hints, and those of `outer` where these ask nothing."""
        if outer is None:
            return self
        casting = self.casting.over(outer.casting) if self.casting is not None else outer.casting
        return Hints(**{**_merged(self, outer), "casting": casting})


def _merged(inner: Any, outer: Any) -> dict[str, Any]:
    """The fields of `inner`, and those of `outer` where they are None."""
    return {f.name: getattr(outer, f.name) if getattr(inner, f.name) is None else getattr(inner, f.name) for f in fields(inner)}
