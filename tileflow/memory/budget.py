"""Memory is budgeted before it is taken: what a step needs, against what can be had on this machine, in its container and by this process."""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..kernels.machine import limits
from ..system.errors import OutOfMemoryError

SMALL = 16 << 20
"""Bytes for which nobody asks: asking takes as long as filling them."""
RESERVE = 128 << 20
"""Bytes that stay free for what is not counted: machine code, the compiler."""


LANE_MEMORY_SHARE = 0.25
"""Lanes side by side may take this share of the memory that can be had; a larger model runs one micro-batch over all
workers."""


def lanes_fit(nbytes: int) -> bool:
    """Whether lanes may take so many bytes of their own."""
    room = limits.memory()
    return room is None or nbytes <= LANE_MEMORY_SHARE * room.nbytes


def available() -> int | None:
    """Bytes that can still be taken; None where the system does not say."""
    room = limits.memory()
    return None if room is None else room.nbytes


def require(nbytes: int, what: str, remedy: str) -> None:
    """Return if there is room for `nbytes`.

    Args:
        what: who needs them: the beginning of the sentence.
        remedy: its end.

    Raises:
        OutOfMemoryError: there is not.
    """
    room = _too_little(nbytes)
    if room is not None:
        raise OutOfMemoryError(f"{what} needs {size(nbytes)} of memory, and {size(max(0, room.nbytes - RESERVE))} can "
                               f"be had ({room.limit}); {remedy}.")


def fits(nbytes: int) -> bool:
    """Whether there is room for so many bytes."""
    return _too_little(nbytes) is None


def _too_little(nbytes: int) -> limits.Room | None:
    """The memory that can be had, where that is not enough."""
    room = None if nbytes < SMALL else limits.memory()
    return room if room is not None and nbytes > room.nbytes - RESERVE else None


def require_for_file(folder: Path, nbytes: int, what: str, remedy: str) -> None:
    """`require` for a file of so many bytes in `folder`, where files there lie in memory."""
    room = limits.memory_of_files(folder) if nbytes >= SMALL else None
    if room is not None and nbytes > room.nbytes - RESERVE:
        raise OutOfMemoryError(f"{what} needs {size(nbytes)} of {folder}, whose files lie in memory, and "
                               f"{size(max(0, room.nbytes - RESERVE))} can be had ({room.limit}); {remedy}.")


def require_parts(parts: Mapping[str, int], what: str, remedy: str) -> None:
    """`require` for the sum of named parts; the sentence says what the most of it is."""
    total = sum(parts.values())
    most = sorted(((n, name) for name, n in parts.items() if 100 * n >= total), reverse=True)
    require(total, f"{what} ({', '.join(f'{name} {size(n)}' for n, name in most)})", remedy)


def size(nbytes: float) -> str:
    """Bytes for people: "6.4 GB"."""
    for unit, digits in (("bytes", 0), ("KB", 0), ("MB", 0), ("GB", 1)):
        if nbytes < 1000:
            return f"{nbytes:.{digits}f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"
