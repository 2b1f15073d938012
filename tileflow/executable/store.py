"""Images in the cache, and notes (`notes`), beside the kernels that they name and under the same rules
(`kernels/machine/cache.py`): found by a key that says all that they were made from. The owner alone may read them, for
they hold constants of models."""
from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from ..kernels.machine import cache
from . import file
from .image import Image

LARGEST = 32 << 20
"""Bytes of an image that is kept."""
ROOM = 512 << 20
"""Bytes of all that are kept; those that were used least recently go first."""
STALE = 3600.0
"""Seconds after which nobody is writing a temporary file any more: whoever was has been killed."""
MODE = 0o600
KINDS = ("image", "note")
"""What names begin with."""
enabled = True
"""Whether images are looked for and kept."""


def load(key: str) -> Image | None:
    """The Image of a key; None where there is none that is whole."""
    data = read(_name(key))
    return None if data is None else file.read(data)


def save(key: str, image: Image) -> None:
    """Keep an Image, whole or not at all, unless it is too large."""
    if not enabled or image.words.nbytes + sum(a.nbytes for a in image.constants) > LARGEST:
        return
    data = file.write(image)
    if len(data) <= LARGEST:
        write(_name(key), data)


def read(name: str) -> bytes | None:
    """What was written under a name, which is used now; None where there is nothing whole."""
    data = cache.read(name) if enabled else None
    if data is not None:
        with contextlib.suppress(OSError):
            os.utime(cache.folder() / f"{name}{cache.SUFFIX}")
    return data


def write(name: str, data: bytes) -> None:
    """Keep data under a name that begins with one of KINDS, whole or not at all; what is too much goes."""
    if enabled:
        cache.write(name, data, MODE)
        _make_room()


def kept() -> list[Path]:
    """The files of images and notes, those used least recently first."""
    times = {}
    for path in (path for kind in KINDS for path in cache.folder().glob(f"{kind}-*{cache.SUFFIX}")):
        with contextlib.suppress(OSError):                  # another process may have made room
            times[path] = path.stat().st_mtime
    return sorted(times, key=lambda path: times[path])


def _name(key: str) -> str:
    return f"image-{key}"


def _make_room() -> None:
    """Delete what is too much, and what killed processes have left. Others may do so at the same time."""
    with contextlib.suppress(OSError):
        for path in (path for kind in KINDS for path in cache.folder().glob(f"{kind}-*.tmp")):
            if path.stat().st_mtime < time.time() - STALE:
                path.unlink()
        paths = kept()
        total = sum(path.stat().st_size for path in paths)
        for path in paths:
            if total <= ROOM:
                break
            total -= path.stat().st_size
            path.unlink()
