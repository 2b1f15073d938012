"""Images for the examples: the handwritten digits that come with tileflow, or MNIST from a file. Nothing is downloaded."""
from __future__ import annotations

from pathlib import Path

import numpy as np

import tileflow

MEAN, STD = 0.1307, 0.3081
"""Of MNIST's pixels from 0 to 1, as its tutorials have them."""
Set = tuple[np.ndarray, np.ndarray]
"""Images [N, 1, height, width] in float32 and labels [N]."""


def digits() -> tuple[Set, Set]:
    """1,438 images of 8x8 pixels from 0 to 1 to train on, and 359 to test with."""
    arrays = np.load(Path(tileflow.__file__).parent / "data" / "digits.npz")
    train, test = ((np.float32(arrays[f"x_{part}"][:, None] / 16), arrays[f"y_{part}"]) for part in ("train", "test"))
    return train, test


def mnist(path: str | None) -> tuple[Set, Set]:
    """MNIST from an .npz file with x_train, y_train, x_test and y_test; without a path the packaged digits in MNIST's size.

    Those are enlarged threefold and stand in a frame of 28x28; to train on, each stands in nine places: 12,942 images.
    """
    if path is not None:
        arrays = np.load(path)
        train, test = ((arrays[f"x_{part}"].reshape(-1, 1, 28, 28) / 255, arrays[f"y_{part}"]) for part in ("train", "test"))
    else:
        (x, y), (x_test, y_test) = digits()
        train = np.concatenate([framed(x, top, left) for top in (0, 2, 4) for left in (0, 2, 4)]), np.tile(y, 9)
        test = framed(x_test, 2, 2), y_test
    return normalised(*train), normalised(*test)


def framed(x: np.ndarray, top: int, left: int) -> np.ndarray:
    """Images of 8x8 as 24x24 of the 28x28."""
    return np.pad(x.repeat(3, 2).repeat(3, 3), ((0, 0), (0, 0), (top, 4 - top), (left, 4 - left)))


def normalised(x: np.ndarray, y: np.ndarray) -> Set:
    return ((x - MEAN) / STD).astype(np.float32), y.astype(np.int64)
