"""Sharded execution: stages on several IPUs, one after the other, micro-batch after micro-batch."""
from __future__ import annotations

from ..program.batching import Batching
from ..program.schedule import Steps
from .order import Parts, per_update, updates


def build(parts: Parts, batching: Batching, training: bool) -> Steps:
    """The schedule of a call: all stages of a micro-batch, then its folds."""
    places = range(len(parts.stages))

    def one(ahead: int) -> Steps:
        return (*(parts.run(s, ahead) for s in places), *(f for s in places for f in parts.fold(s, ahead)))
    return updates(parts, parts.in_order(per_update(batching, training), one), batching, training)
