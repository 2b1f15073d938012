"""Sizes that are one number for all axes, or one for each."""
from __future__ import annotations

from ...system.errors import OptionError

Size = int | tuple[int, ...] | list[int]


def per_axis(size: Size, rank: int, what: str) -> tuple[int, ...]:
    """One number for each of `rank` axes.

    Raises:
        OptionError: another count of numbers.
    """
    sizes = (size,) * rank if isinstance(size, int) else tuple(size) * (rank if len(size) == 1 else 1)
    if len(sizes) != rank:
        raise OptionError(f"The {what} is one number or one for each of {rank} axes, got {list(sizes)}.")
    return sizes
