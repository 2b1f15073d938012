"""IDX files, the format of MNIST (http://yann.lecun.com/exdb/mnist/), plain or gzipped.

Two zero bytes, the element type, the number of axes, the axes' sizes as big-endian uint32, then the data, big-endian.
"""
from __future__ import annotations

import gzip
import math
import re
import struct
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...system.errors import DataError
from ...system.reading import open_regular
from .limits import DEFLATE_RATIO, check_shape, check_size

DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_NAME = re.compile(r"(?:(?:.*[-_])?(?P<part>[^-_]+)[-_])?(?P<what>images|labels)[-.]idx\d-\w+(?:\.gz)?", re.IGNORECASE)
_PARTS = {"t10k": "test"}


def is_idx(path: Path) -> bool:
    """Whether a file is called as IDX files are."""
    return _NAME.fullmatch(path.name) is not None or ".idx" in path.name


def find_idx(path: Path) -> dict[str, Path]:
    """The IDX files of a folder, or one IDX file and its partner, named images_train, labels_train, images_test ..."""
    files = sorted(path.iterdir(), reverse=True) if path.is_dir() else [path, *_partner(path)]
    found: dict[str, Path] = {}
    for file in files:
        match = _NAME.fullmatch(file.name)
        if match is not None:
            part = match["part"].lower() if match["part"] else "train"
            found[f"{match['what'].lower()}_{_PARTS.get(part, part)}"] = file          # plain files come after their .gz twins
        elif not path.is_dir():
            found["images"] = file
    return found


def _partner(path: Path) -> list[Path]:
    """The label file that belongs to an image file."""
    match = _NAME.fullmatch(path.name)
    if match is None or match["what"].lower() != "images" or not path.parent.is_dir():
        return []
    start = path.name[:match.start("what")] + "labels"
    return sorted(file for file in path.parent.iterdir() if file.name.startswith(start) and _NAME.fullmatch(file.name))[:1]


def read_idx(path: Path) -> np.ndarray:
    """The array in an IDX file, in native byte order; DataError where the file is damaged or of another length than it says."""
    packed = path.suffix.lower() == ".gz"
    try:
        with open_regular(path) as whole:
            file: Any = gzip.GzipFile(fileobj=whole) if packed else whole
            dtype, shape = _read_header(path, file)
            check_shape(f"IDX file {path}", shape, dtype.itemsize)
            wanted = math.prod(shape) * dtype.itemsize
            check_size(f"IDX file {path}", wanted, path.stat().st_size, DEFLATE_RATIO if packed else 1)
            data = file.read(wanted + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"IDX file {path} cannot be read: {error}.") from None
    if len(data) != wanted:
        has = f"{len(data):,}" if len(data) < wanted else "more"
        raise DataError(f"IDX file {path} has shape {list(shape)}, {wanted:,} bytes, but holds {has}.")
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def _read_header(path: Path, file: IO[Any]) -> tuple[np.dtype, tuple[int, ...]]:
    start = file.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in DTYPES or start[3] == 0:
        raise DataError(f"{path} is not an IDX file: it starts with {start.hex(' ') or 'nothing'}.")
    sizes = file.read(4 * start[3])
    if len(sizes) < 4 * start[3]:
        raise DataError(f"IDX file {path} ends within its header.")
    return np.dtype(DTYPES[start[2]]), struct.unpack(f">{start[3]}I", sizes)
