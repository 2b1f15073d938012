"""Random numbers of data: by seed, epoch, stream and place alone, whoever reads the rows, and not by NumPy's
version."""
from __future__ import annotations

import numpy as np


class Draws:
    """A stream of numbers of [0, 1). Stream 0 is that of the order of rows."""

    def __init__(self, seed: int, epoch: int, stream: int = 0, place: int = 0) -> None:
        self._bits = np.random.Philox(key=np.array([seed, epoch], np.uint64),
                                      counter=np.array([0, 0, place, stream], np.uint64))

    def __call__(self, count: int) -> np.ndarray:
        """The next ones, float64 [count]."""
        return (self.raw(count) >> np.uint64(11)).astype(np.float64) * 2.0 ** -53

    def raw(self, count: int) -> np.ndarray:
        """The next ones as whole numbers, uint64 [count]."""
        return np.asarray(self._bits.random_raw(count))

    def beta(self, alpha: float) -> float:
        """A number of the distribution Beta(alpha, alpha), alpha at most 1 (Joehnk's algorithm)."""
        while True:
            x, y = (self(2) ** (1 / alpha)).tolist()
            if 0 < x + y <= 1:
                return float(x / (x + y))
