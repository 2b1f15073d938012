"""Cycles of the all-to-all exchange. Arguments are NumPy arrays (or numbers) and broadcast."""
from __future__ import annotations

from typing import Any

import numpy as np

from .chip import Chip


def shares_bus(chip: Chip, consecutive: Any, receivers: Any) -> Any:
    """Whether neighbours that share an exchange bus receive the same data.

    consecutive: tiles in a row that receive the same data. receivers: tiles that receive anything.
    They can share when the run is a multiple of the bus, or when it is everybody (PopLibs, ExchangeEstimator).
    """
    if chip.tiles_per_bus == 1:
        return np.zeros(np.broadcast(consecutive, receivers).shape, bool)
    return (consecutive > 1) & ((np.remainder(consecutive, chip.tiles_per_bus) == 0) | (consecutive == receivers))


def exchange_cycles(chip: Chip, received: Any, consecutive: Any = 1, receivers: Any = 0) -> Any:
    """Cycles until the worst tile has its `received` bytes; without the barrier (`Chip.sync_cycles`).

    Data broadcast to neighbours on one bus arrives `tiles_per_bus` times as fast.
    """
    if np.ndim(consecutive) == 0 and consecutive == 1:
        return np.ceil(received / chip.exchange_bytes_per_cycle)
    factor = np.where(shares_bus(chip, consecutive, receivers), chip.tiles_per_bus, 1)
    return np.ceil(received / (chip.exchange_bytes_per_cycle * factor))
