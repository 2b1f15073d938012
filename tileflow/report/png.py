"""Pictures as PNG files, by nothing but zlib."""
from __future__ import annotations

import struct
import zlib

import numpy as np


def png(pixels: np.ndarray) -> bytes:
    """A picture as a PNG file. pixels: uint8 [height, width] in shades of grey, or [height, width, 3] in red, green and
    blue."""
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 2 or pixels.shape[2] == 3
    height, width = pixels.shape[:2]
    rows = pixels.reshape(height, -1)
    filtered = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)          # filter 0 before each row
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if pixels.ndim == 2 else 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*c) for c in ((b"IHDR", head),
                                                                (b"IDAT", zlib.compress(filtered.tobytes(), 9)),
                                                                (b"IEND", b"")))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def picture(array: np.ndarray) -> np.ndarray | None:
    """Numbers [channels, height, width] (or [height, width]) as pixels from black, the least, to white, the greatest;
    None where they are no
    picture: other than one or three channels, or less than 4 pixels wide or high."""
    array = np.asarray(array)
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3 or array.shape[0] not in (1, 3) or min(array.shape[1:]) < 4:
        return None
    numbers = np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(numbers.min()), float(numbers.max())
    shades = np.round((numbers - low) * (255 / ((high - low) or 1))).astype(np.uint8)
    return shades[0] if len(shades) == 1 else np.ascontiguousarray(shades.transpose(1, 2, 0))
