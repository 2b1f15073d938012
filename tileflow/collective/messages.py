"""Arrays as bytes, for messages between processes: data, of which nothing is executed."""
from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod

import numpy as np

from ..system.errors import ProcessError

Parts = Sequence[tuple[np.ndarray, ...]]
TEXTS = "texts"
"""The type of an array of texts, which stand in the header."""


def filled(flat: np.ndarray, nbytes: int) -> np.ndarray:
    """These bytes, then zeros, uint8 [nbytes]: of one length in all processes."""
    found = np.zeros(nbytes, np.uint8)
    found[:flat.size] = flat
    return found


def filled_text(text: str, nbytes: int) -> np.ndarray:
    """A text, or as much of it as there is room for, as `filled` makes it."""
    return filled(np.frombuffer(text.encode(errors="replace")[:nbytes], np.uint8), nbytes)


def text_of(found: np.ndarray) -> str:
    """What `filled_text` was given."""
    return found.tobytes().partition(b"\0")[0].decode(errors="replace")


def packed(parts: Parts) -> np.ndarray:
    """Arrays of numbers or texts, uint8 [n]: the header's length, a header in JSON (types and shapes), and what the
    arrays hold."""
    arrays = [[np.asarray(a) for a in part] for part in parts]
    numbers = [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for part in arrays
               for a in part if a.dtype != object and a.size]
    header = json.dumps([[[TEXTS, a.shape, a.reshape(-1).tolist()] if a.dtype == object else [_name(a.dtype), a.shape]
                          for a in part]
                         for part in arrays]).encode()
    return np.concatenate([np.array([len(header)], np.int64).view(np.uint8), np.frombuffer(header, np.uint8), *numbers])


def unpacked(found: np.ndarray, rank: int) -> list[tuple[np.ndarray, ...]]:
    """What `packed` made, out of uint8 [n] of process `rank`.

    Raises:
        ProcessError: it is something else.
    """
    at = 8
    try:
        at += int(found[:8].view(np.int64)[0])
        parts: list[tuple[np.ndarray, ...]] = []
        for part in json.loads(found[8:at].tobytes()):
            arrays = []
            for name, shape, *texts in part:
                if name == TEXTS:
                    arrays.append(np.array(texts[0], object).reshape(shape))
                    continue
                dtype = np.dtype(name)
                nbytes = prod(shape) * dtype.itemsize
                if min(shape, default=0) < 0 or nbytes > found.size - at or dtype.hasobject:
                    raise ValueError(name)
                arrays.append(np.frombuffer(found[at:at + nbytes].tobytes(), dtype).reshape(shape).copy())
                at += nbytes
            parts.append(tuple(arrays))
        if at != found.size:
            raise ValueError(at)
    except (ValueError, TypeError, IndexError):
        raise ProcessError(f"Process {rank} has sent what are no arrays: all processes of a group must have the same "
                           "version of tileflow.") from None
    return parts


def _name(dtype: np.dtype) -> str:
    """What NumPy knows the type by: 16-bit and narrower floats of other packages by their names, all else by its
    code."""
    return dtype.name if dtype.kind == "V" else dtype.str
