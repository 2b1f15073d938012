"""Sizes that files claim are checked before memory is taken for them."""
from __future__ import annotations

from ... import memory
from ...errors import DataError

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
    memory.require(claimed, what, "use .npy files, which are read from disk as needed, or fewer rows")
