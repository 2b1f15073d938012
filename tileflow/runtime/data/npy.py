"""NumPy's `.npz` and `.npy` files, never unpickled."""
from __future__ import annotations

import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

from ...system.errors import DataError
from ...system.reading import open_regular
from ...system.text import one_line
from .limits import DEFLATE_RATIO, check_shape, check_size

_RATIOS = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: DEFLATE_RATIO}
SHOWN = 200
"""Characters of another package's message that ours repeat."""


def open_npz(path: Path) -> dict[str, Callable[[], np.ndarray]]:
    """Readers of the arrays in an `.npz` file by name; each raises DataError where its array is damaged."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist() if info.filename.endswith(".npy")}
    except MemoryError:
        raise
    except Exception as error:                                # the archive's reader raises many kinds for what is damaged
        raise DataError(f"Data file {path} is not a readable .npz file: {one_line(error, SHOWN)}.") from None
    return {name: _member(path, name, info) for name, info in members.items()}


def _member(path: Path, name: str, info: zipfile.ZipInfo) -> Callable[[], np.ndarray]:
    def read() -> np.ndarray:
        what = f"Array {name} in {path}"
        check_size(what, info.file_size, info.compress_size, _RATIOS.get(info.compress_type))
        try:
            with open_regular(path) as whole, zipfile.ZipFile(whole) as archive:
                with archive.open(info) as file:
                    _check_header(what, file, info.file_size)
                with archive.open(info) as file:
                    return npy_format.read_array(file, allow_pickle=False)
        except (DataError, MemoryError):
            raise
        except Exception as error:                            # damaged headers are Python's literals, so anything may come of them
            raise DataError(f"{what} cannot be read: {one_line(error, SHOWN)}.") from None
    return read


def _check_header(what: str, file: IO[Any], size: int) -> None:
    """DataError where the array's header asks for more bytes than there are, or for Python objects."""
    version = npy_format.read_magic(file)
    read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise DataError(f"{what} holds Python objects; tileflow reads numbers only.")
    if not dtype.itemsize:
        raise DataError(f"{what} holds elements of no size ({dtype}); tileflow reads numbers only.")
    check_shape(what, shape, dtype.itemsize)
    needed = math.prod(shape) * dtype.itemsize
    if needed > size:
        raise DataError(f"{what} has shape {list(shape)} ({needed:,} bytes) but stores {size:,} bytes.")


def open_npy(path: Path) -> dict[str, Callable[[], np.ndarray]]:
    """Readers of the `.npy` files of a folder, or of one file and the label file beside it (x.npy, y.npy; x_train.npy, y_train.npy)."""
    if path.is_dir():
        files = sorted(path.glob("*.npy"))
    else:
        label = path.with_name("y" + path.name[1:])
        files = [path, label] if path.name[0] in "xX" and label.exists() and label != path else [path]
    return {file.stem: _mapped(file) for file in files}


def _mapped(path: Path) -> Callable[[], np.ndarray]:
    def read() -> np.ndarray:
        try:
            with open_regular(path) as file:
                _check_header(f"Data file {path}", file, path.stat().st_size)
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (DataError, MemoryError):
            raise
        except Exception as error:
            raise DataError(f"Data file {path} cannot be read: {one_line(error, SHOWN)}.") from None
        return np.asarray(array)
    return read
