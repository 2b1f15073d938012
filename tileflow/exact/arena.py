"""A tile's memory while it computes one part: bounded, poisoned where nothing was put, with guards around everything that was."""
from __future__ import annotations

import math

import numpy as np

from ..system.errors import TileMemoryError

POISON = 0xFF             # NaN in every float type, -1 in integers
ALIGN = 64
ROUND = 8                 # a tile's allocations are whole double words
MOST_BLOCKS = 256


class Arena:
    """Hands out arrays that together are no larger than a tile's memory.

    All tiles run one after the other in the same host memory; `reset` between them puts poison back, so that a read of what
    was not brought gives NaN, and `intact` says whether somebody wrote beside the arrays.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.used = self.peak = 0
        raw = np.empty(nbytes + (2 * MOST_BLOCKS + 2) * ALIGN, np.uint8)
        self._memory = raw[-raw.ctypes.data % ALIGN:]
        self._memory[:] = POISON
        self._end = ALIGN
        self._guards: list[tuple[int, int]] = [(0, ALIGN)]

    def take(self, shape: tuple[int, ...], dtype: np.dtype | str, what: str) -> np.ndarray:
        """A poisoned array.

        Raises:
            TileMemoryError: it does not fit any more; `what` says in the message what it was for.
        """
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        counted = -(-size // ROUND) * ROUND
        if self.used + counted > self.nbytes:
            raise TileMemoryError(f"{what} needs {size:,} bytes on a tile where {self.used:,} of {self.nbytes:,} are taken; plan the operator with "
                                  "a lower available_memory_proportion, or split it further.")
        assert len(self._guards) <= MOST_BLOCKS, "too many arrays on one tile"
        start, stop = self._end, self._end + size
        self.used += counted
        self.peak = max(self.peak, self.used)
        self._end = -(-stop // ALIGN) * ALIGN + ALIGN
        self._guards.append((stop, self._end))
        return self._memory[start:stop].view(kind).reshape(shape)

    @property
    def intact(self) -> bool:
        """Nothing was written outside of the arrays."""
        return all(bool((self._memory[lo:hi] == POISON).all()) for lo, hi in self._guards)

    def reset(self) -> None:
        """Forget everything; the bytes that were used are poison again."""
        assert self.intact, "a vertex wrote outside of its arrays"
        self._memory[:self._end] = POISON
        self._end, self.used = ALIGN, 0
        self._guards = [(0, ALIGN)]
