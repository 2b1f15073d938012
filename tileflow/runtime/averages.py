"""Weights that are averages for a while, or for good: what a run measures and writes where the optimizer keeps
averages."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..state import Session


def averages(session: Session) -> dict[str, np.ndarray]:
    """Copies of the averages by weight, in the weight's type; empty where the optimizer keeps none."""
    copies: dict[str, np.ndarray] = session.turn.hold(
        lambda: {weight: session[name].astype(session[weight].dtype) for weight, name in session.averages.items()})
    return copies


@contextmanager
def averaged(session: Session) -> Iterator[None]:
    """Within, the weights are their averages, where there are any; then they are what they were, bit for bit."""
    found = averages(session)
    if not found:
        yield
        return
    kept = session.turn.hold(lambda: {n: session[n].copy() for n in session.with_rests(found)})
    session.put(found)
    try:
        yield
    finally:
        session.put(kept)
