"""Images in the cache, beside the kernels that they name and under the same rules (`kernels/machine/cache.py`): found
by a key that says all that they were made from. The owner alone may read them, for they hold constants of models."""
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
enabled = True
"""Whether images are looked for and kept."""


def load(key: str) -> Image | None:
    """The Image of a key; None where there is none that is whole."""
    data = cache.read(_name(key)) if enabled else None
    if data is None:
        return None
    with contextlib.suppress(OSError):
        os.utime(cache.folder() / f"{_name(key)}{cache.SUFFIX}")
    return file.read(data)


def save(key: str, image: Image) -> None:
    """Keep an Image, whole or not at all, unless it is too large."""
    if not enabled or image.words.nbytes + sum(a.nbytes for a in image.constants) > LARGEST:
        return
    data = file.write(image)
    if len(data) <= LARGEST:
        cache.write(_name(key), data, MODE)
        _make_room()


def kept() -> list[Path]:
    """The files of images, those used least recently first."""
    return sorted(cache.folder().glob(f"{_name('*')}{cache.SUFFIX}"), key=lambda path: path.stat().st_mtime)


def _name(key: str) -> str:
    return f"image-{key}"


def _make_room() -> None:
    """Delete what is too much, and what killed processes have left. Others may do so at the same time."""
    with contextlib.suppress(OSError):
        for path in cache.folder().glob(f"{_name('*')}.tmp"):
            if path.stat().st_mtime < time.time() - STALE:
                path.unlink()
        paths = kept()
        total = sum(path.stat().st_size for path in paths)
        for path in paths:
            if total <= ROOM:
                break
            total -= path.stat().st_size
            path.unlink()
