"""Parameters stay where they are while a network is recorded: what `forward` assigned anew would be lost."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .parameter import Parameter


@contextmanager
def held(containers: Iterator[list[Any] | dict[Any, Any]]) -> Iterator[None]:
    """Within the block parameters stay in these containers; where one was replaced, all are put back.

    Raises:
        TileflowError: one was replaced.
    """
    before = [(found, found.copy()) for found in containers]
    lost: list[Parameter] = []
    try:
        yield
    finally:
        lost += [parameter for now, then in before for parameter in _lost(now, then)]
        for now, then in before if lost else ():
            if isinstance(now, dict):
                now.clear()
                now.update(then)
            else:
                now[:] = then
    if lost:
        lost[0].refuse_assignment()


def _lost(now: Any, then: Any) -> Iterator[Parameter]:
    """Parameters that a container had and has no more where they were."""
    for key in then if isinstance(then, dict) else range(len(then)):
        there = now.get(key) if isinstance(now, dict) else now[key] if key < len(now) else None
        if isinstance(then[key], Parameter) and there is not then[key]:
            yield then[key]
