"""Sizes that files claim are checked before memory is taken for them."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...memory import budget
from ...memory.types import HIGHEST_RANK
from ...system.errors import DataError
from ...system.text import one_line

SHOWN = 300
"""Characters of a foreign text that a message repeats."""
DEFLATE_RATIO = 1032
"""Deflate (zip, gzip) cannot shrink anything further than this (zlib's technical notes)."""


def check_size(what: str, claimed: int, stored: int, ratio: int | None = 1) -> None:
    """Look at a claim before memory is taken for it.

    Raises:
        DataError: `claimed` bytes cannot come out of `stored` bytes (`ratio` at most, None unknown).
        OutOfMemoryError: there is no room for them.
    """
    if ratio is not None and claimed > stored * ratio:
        raise DataError(f"{what} claims {claimed:,} bytes of data but stores only {stored:,}; it is cut short or damaged.")
    budget.require(claimed, what, "use .npy files, which are read from disk as needed, or fewer rows")


def check_shape(what: str, shape: Sequence[Any], itemsize: int) -> None:
    """DataError where no array can have this shape: empty axes do not excuse the others."""
    if len(shape) > HIGHEST_RANK:
        raise DataError(f"{what} has {len(shape)} dimensions; tileflow's tensors have up to {HIGHEST_RANK}.")
    if any(type(n) is not int or n < 0 for n in shape) or math.prod(max(n, 1) for n in shape) * itemsize >= 2**63:
        raise DataError(f"{what} claims the shape {one_line(list(shape), SHOWN)}, which no array can have; it is damaged.")
