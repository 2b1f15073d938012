"""Sizes that files claim are checked before memory is taken for them."""
from __future__ import annotations

from pathlib import Path

from ...errors import DataError

DEFLATE_RATIO = 1032
"""Deflate (zip, gzip) cannot shrink anything further than this (zlib's technical notes)."""


def available_memory() -> int | None:
    """Bytes of memory that can be had without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def check_size(what: str, claimed: int, stored: int, ratio: int | None = 1) -> None:
    """DataError where `claimed` bytes cannot come out of `stored` bytes (`ratio` at most, None unknown) or do not fit in memory."""
    if ratio is not None and claimed > stored * ratio:
        raise DataError(f"{what} claims {claimed:,} bytes of data but stores only {stored:,}; it is cut short or damaged.")
    free = available_memory()
    if free is not None and claimed > free:
        raise DataError(f"{what} needs {claimed:,} bytes of memory, {free:,} are available; "
                        "use .npy files, which are read from disk as needed, or fewer rows.")
