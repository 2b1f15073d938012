"""Hints: what is asked of one operator, by the scope that it was recorded in (`Builder.scope`, `Builder.begin`) or
afterwards (`Node.ask`).

None changes a graph by itself. Passes and planners read them, and gradients have those of what they belong to. What is
asked of automatic casts becomes Casts (`passes/autocast.py`) and is gone. Blocks, or patterns of names, say which stage
a node is in, and that is a hint, too (`strategy/mark.py`).
"""
from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

Asked = TypeVar("Asked", "Casting", "Hints")


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
    policy: a `tileflow.precision.policy.Policy`. rule: the set of a policy that all operators are in, whatever they
    are.
    """

    enabled: bool | None = None
    low: str | None = None
    policy: Hashable = None
    rule: str | None = None

    def over(self, outer: Casting | None) -> Casting:
        """This, and what `outer` asks where this asks nothing; a rule is its own policy's."""
        if outer is None:
            return self
        rule = outer.rule if self.rule is None and self.policy is None else self.rule
        return replace(_filled(self, outer), rule=rule)


@dataclass(frozen=True)
class Annotation:
    """The block that an operator was recorded in: its name, and the IPU that was asked for it. No name: after a block that has ended."""

    block: str | None
    ipu: int | None = None


@dataclass(frozen=True)
class Hints:
    """What is asked; None: nothing.

    available_memory_proportion: share of a tile's memory for the operator's temporaries, before any option.
    partials: element type of partial sums, "float16" or "float32".
    annotation: the block for execution over several IPUs.
    stage: the stage of the forward pass that a node, or what it is the gradient of, belongs to.
    recomputed: of forward nodes: the name of the part of the model, such as one layer of many, that is computed again
        for the backward pass.
    kept: of forward nodes: a checkpoint; what it makes is kept for the backward pass where the nodes around it are
        computed again.
    """

    available_memory_proportion: float | None = None
    partials: str | None = None
    multi_conv: MultiConv | None = None
    casting: Casting | None = None
    annotation: Annotation | None = None
    stage: int | None = None
    recomputed: str | None = None
    kept: bool | None = None

    def over(self, outer: Hints) -> Hints:
        """These hints, and those of `outer` where these ask nothing."""
        casting = self.casting.over(outer.casting) if self.casting is not None else outer.casting
        return replace(_filled(self, outer), casting=casting)

    def merged(self, others: Sequence[Hints], *, latest: bool) -> Hints:
        """Hints for a node in place of several that have these and `others`. What users ask comes from one of them, the
        first of which anything is asked; of their stages the node has the last where `latest`, else the first."""
        every = (self, *others)
        asked = next((h for h in every if replace(h, stage=None, recomputed=None, kept=None) != NOTHING), NOTHING)
        stages = [h.stage for h in every if h.stage is not None]
        recomputed = next((h.recomputed for h in every if h.recomputed), None)
        return replace(asked, stage=(max if latest else min)(stages, default=None), recomputed=recomputed,
                       kept=any(h.kept for h in every) or None)


NOTHING = Hints()
"""Hints that ask nothing: what nodes have by default."""


def _filled(inner: Asked, outer: Asked) -> Asked:
    """`inner`, with the fields of `outer` where its own are None."""
    return replace(inner, **{f.name: getattr(outer, f.name) for f in fields(inner) if getattr(inner, f.name) is None})
