"""Parameters stay where they are while a network is recorded: what `forward` assigned anew would be lost."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ..errors import TileflowError
from .parameter import Parameter


def refuse_assignment(parameter: Parameter) -> NoReturn:
    """Raise TileflowError for a parameter or buffer that `forward` assigns anew."""
    raise TileflowError(f"{parameter._called()} is assigned anew in forward(), where it would be lost. {parameter._remedy()}")


@contextmanager
def held(containers: Iterator[list[Any] | dict[Any, Any]]) -> Iterator[None]:
    """Within the block parameters stay in these containers; where one was replaced, all are put back.

    Raises:
        TileflowError: one was replaced.
    """
    before = [(found, found.copy()) for found in containers]
    yield
    lost: Parameter | None = None
    for now, then in before:
        keys = then.keys() if isinstance(then, dict) else range(len(then))
        for key in keys:
            there = now.get(key) if isinstance(now, dict) else now[key] if key < len(now) else None
            if isinstance(then[key], Parameter) and there is not then[key]:
                lost = lost or then[key]
    if lost is None:
        return
    for now, then in before:
        if isinstance(now, dict):
            now.clear()
            now.update(then)
        else:
            now[:] = then
    refuse_assignment(lost)
