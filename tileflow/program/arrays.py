"""Arrays as bytes of a file, and their digests."""
from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from ..memory.types import CODES
from .fields import Fault


def digest_of(array: np.ndarray) -> str:
    """SHA-256 of a constant: its type, its shape and its little-endian bytes in row-major order."""
    if array.dtype.name not in CODES:
        raise Fault("a constant", f"has element type {array.dtype}, which tileflow lacks")
    found = hashlib.sha256(f"{array.dtype.name}{list(array.shape)}:".encode())
    found.update(bytes_of(array).data)
    return found.hexdigest()


def digest_of_all(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of named arrays in the order of their names, each with its name, type and shape."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(f"{name} {digest_of(arrays[name])}\n".encode())
    return found.hexdigest()


def bytes_of(array: np.ndarray) -> np.ndarray:
    """A constant's little-endian bytes in row-major order."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.astype(flat.dtype.newbyteorder("<"), copy=False).view(np.uint8)
