"""Initial weights: PyTorch's defaults, from one seeded generator."""
from __future__ import annotations

import math

import numpy as np

_generator = np.random.Generator(np.random.Philox(key=0))


def manual_seed(seed: int) -> None:
    """Restart the generator that new layers draw their weights from."""
    global _generator
    _generator = np.random.Generator(np.random.Philox(key=seed))


def uniform(shape: tuple[int, ...], fan_in: int) -> np.ndarray:
    """float32 from U(-1/sqrt(fan_in), 1/sqrt(fan_in)): Kaiming's rule with a = sqrt(5), as torch.nn.Linear and Conv use."""
    bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0
    return _generator.uniform(-bound, bound, shape).astype(np.float32)
