"""Streaming memory: the memory beside a chip, and what it takes to bring bytes from there or back."""
from __future__ import annotations

import math

from ..hardware.chip import Chip


def streaming_cycles(nbytes: int, chip: Chip) -> int:
    """Cycles of the chip in which so many bytes pass between its tiles and its streaming memory, in either direction (bytes over the chip's
    `streaming_bytes_per_second`); nothing else of the IPU runs meanwhile. 0 for no bytes."""
    return math.ceil(nbytes / chip.streaming_bytes_per_second * chip.clock_hz)
