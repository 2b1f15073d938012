"""Initial weights: PyTorch's defaults, from one seeded generator."""
from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..memory import budget

_generator = np.random.Generator(np.random.Philox(key=0))
_skipped = False


def manual_seed(seed: int) -> None:
    """Restart the generator that new layers draw their weights from."""
    global _generator
    _generator = np.random.Generator(np.random.Philox(key=seed))


def uniform(shape: tuple[int, ...], fan_in: int) -> np.ndarray:
    """float32 from U(-1/sqrt(fan_in), 1/sqrt(fan_in)): Kaiming's rule with a = sqrt(5), as torch.nn.Linear and Conv use."""
    return _between(shape, 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0)


def xavier_uniform(shape: tuple[int, ...]) -> np.ndarray:
    """float32 [rows, columns] from U(-k, k) with k = sqrt(6 / (rows + columns)) (Glorot and Bengio, 2010)."""
    return _between(shape, math.sqrt(6 / (shape[0] + shape[1])))


def _between(shape: tuple[int, ...], bound: float) -> np.ndarray:
    if _skipped:
        return _nothing(shape)
    _require(shape, 12)                              # drawn in float64, kept in float32
    return _generator.uniform(-bound, bound, shape).astype(np.float32)


def normal(shape: tuple[int, ...], std: float) -> np.ndarray:
    """float32 from N(0, std^2)."""
    if _skipped:
        return _nothing(shape)
    _require(shape, 8)
    return (std * _generator.standard_normal(shape, np.float32)).astype(np.float32, copy=False)


def kaiming_normal(shape: tuple[int, ...], fan: int) -> np.ndarray:
    """float32 from N(0, 2 / fan), for layers followed by a ReLU (He et al., 2015)."""
    return normal(shape, math.sqrt(2 / fan))


def _require(shape: tuple[int, ...], nbytes: int) -> None:
    budget.require(nbytes * math.prod(shape), f"Drawing weights of shape {list(shape)}", "make the layer smaller")


def _nothing(shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(np.float32(0), shape)


@contextmanager
def skip_init() -> Iterator[None]:
    """Layers made in the block get zeros that take no memory: for networks that are planned, not run, or loaded later."""
    global _skipped
    before, _skipped = _skipped, True
    try:
        yield
    finally:
        _skipped = before
