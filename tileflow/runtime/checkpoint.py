"""Tensors in one file: the safetensors format, written and read without pickle, replaced atomically.

Format (https://github.com/huggingface/safetensors): eight bytes with the header's length (little-endian), a JSON header
{name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {text: text}}, then the data. The tensors lie
end to end in row-major order, little-endian, with no gap and no overlap.

Files of ours carry a digest in their metadata: the SHA-256 of the whole file with zeros in the digest's own place. One bit of
the file that changes is found; files of other tools, which have none, are read all the same and come out as not proven.
"""
from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes  # noqa: F401  (teaches NumPy the name bfloat16)
import numpy as np

from ..memory import budget
from ..program.arrays import bytes_of
from ..system.errors import CheckpointError
from ..system.files import atomic_write
from ..system.logs import logger
from ..system.reading import open_regular
from ..system.spans import span

DTYPES = {
    "BOOL": "?", "U8": "<u1", "I8": "<i1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "BF16": "bfloat16", "I32": "<i4", "U32": "<u4",
    "F32": "<f4", "F64": "<f8", "I64": "<i8", "U64": "<u8",
}
"""The format's element types that NumPy has."""
CODES = {np.dtype(letters): code for code, letters in DTYPES.items()}
MAX_HEADER = 100_000_000
"""Bytes a header may have at most, as in the reference implementation."""
ALIGNMENT = 8
METADATA = "__metadata__"
DIGEST = "tileflow.sha256"
"""The key in the metadata whose value is the file's digest."""
BLANK = "0" * 64
READ_AT_ONCE = 1 << 22


class Checkpoint(NamedTuple):
    """What a file holds: tensors (fresh, writable, native byte order), metadata, and whether it had a digest, which then was right."""

    tensors: dict[str, np.ndarray]
    metadata: dict[str, str]
    proven: bool


def save_tensors(path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None,
                 follow: bool = True) -> None:
    """Write `tensors` and `metadata` with their digest to `path`. The new file is read back and takes the place of an older one only
    when its digest is right: on any failure the file there before stays as it was. Links as `atomic_write` has them.

    Raises CheckpointError where an element type has no name in the format or the file cannot be written.
    """
    with span(f"write {Path(path).name}", "checkpoint"):
        _save(path, tensors, metadata, follow)
    logger("checkpoint").debug("%s was written.", path)


def _save(path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None,
          follow: bool) -> None:
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header: dict[str, Any] = {METADATA: {**(metadata or {}), DIGEST: BLANK}}
    offset = 0
    for name, array in ordered:
        assert name != METADATA, "a tensor takes the name of the metadata"
        code = CODES.get(array.dtype.newbyteorder("<"))
        if code is None:
            raise CheckpointError(f"Tensor {name} has element type {array.dtype}, which a checkpoint cannot hold; "
                                  f"it can hold {', '.join(str(dtype) for dtype in CODES)}.")
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    if len(text) > MAX_HEADER:
        raise CheckpointError(f"The header of checkpoint {path} would have {len(text):,} bytes; the format allows {MAX_HEADER:,}.")
    parts = [bytes_of(array) for _, array in ordered]
    start = len(text).to_bytes(8, "little") + text
    found = hashlib.sha256(start)
    for part in parts:
        found.update(part.data)
    atomic_write(path, [start.replace(_entry_of(BLANK), _entry_of(found.hexdigest())), *parts], check=proven, follow=follow)


def load_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors and the metadata in `path`, as `load_checkpoint` reads them."""
    found = load_checkpoint(path)
    return found.tensors, found.metadata


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """What is in `path`.

    Raises CheckpointError where the file cannot be read, is cut short, does not keep to the format or differs from its digest. Every
    size is checked against the file's before memory is taken.
    """
    where = Path(path)
    try:
        with open_regular(where) as file:
            size = os.fstat(file.fileno()).st_size
            header, found, digest = _read_header(where, file, size)
            start = file.tell()
            metadata = _metadata(where, header)
            budget.require(size, f"Checkpoint {where}", "close other programs, or train on a machine with more memory")
            tensors = {}
            for entry in _entries(where, header, size - start):
                raw, tensors[entry.name] = _read_tensor(where, file, start, entry)
                found.update(raw)
    except OSError as error:
        raise CheckpointError(f"Checkpoint {where} cannot be read: {error.strerror or error}.") from None
    if digest is not None and found.hexdigest() != digest:
        raise _broken(where, "it differs from its digest")
    metadata.pop(DIGEST, None)
    return Checkpoint(tensors, metadata, digest is not None)


def proven(path: Path) -> bool:
    """A file of ours, read from the disk, has the digest that it names. OSError where it cannot be read."""
    try:
        with path.open("rb") as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)          # not from the memory that it was written from
            _, found, digest = _read_header(path, file, os.fstat(file.fileno()).st_size)
            while part := file.read(READ_AT_ONCE):
                found.update(part)
    except CheckpointError:
        return False
    return found.hexdigest() == digest


def _entry_of(digest: str) -> bytes:
    """The bytes in a header that hold a digest. Quotes within other texts of a JSON header have a backslash, so they stand there once."""
    return f'"{DIGEST}":"{digest}"'.encode(errors="replace")


@dataclass(frozen=True)
class _Entry:
    """One tensor of a header: its bytes are begin..end of the data."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def _broken(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"Checkpoint {path} is damaged or not a safetensors file: {what}; restore it from a copy or train anew.")


def _read_header(path: Path, file: BinaryIO, size: int) -> tuple[dict[str, Any], Any, str | None]:
    """The header as a table, the digest of the bytes up to its end, and the digest that the whole file should have; None: it names none."""
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8:
        raise _broken(path, f"it has {size} bytes, too few for a header")
    if length > min(MAX_HEADER, size - 8):
        raise _broken(path, f"its header claims {length:,} bytes, the file has {size:,}")
    try:
        text = file.read(length)
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"its header is not valid JSON ({error})") from None
    if not isinstance(header, dict):
        raise _broken(path, "its header is not a table")
    metadata = header.get(METADATA)
    digest = metadata.get(DIGEST) if isinstance(metadata, dict) else None
    if digest is not None:
        text = text.replace(_entry_of(str(digest)), _entry_of(BLANK))
    return header, hashlib.sha256(prefix + text), None if digest is None else str(digest)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object in which no name stands twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands twice")
    return found


def _metadata(path: Path, header: dict[str, Any]) -> dict[str, str]:
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _broken(path, f"{METADATA} is not a table of texts")
    return metadata


def _entries(path: Path, header: dict[str, Any], size: int) -> list[_Entry]:
    """The header's tensors in the order of the file; they must cover `size` bytes exactly."""
    entries = sorted((_entry(path, name, value) for name, value in header.items()), key=lambda entry: (entry.begin, entry.end))
    position = 0
    for entry in entries:
        if entry.begin != position:
            raise _broken(path, f"tensor {entry.name} begins at byte {entry.begin:,} of the data instead of {position:,}")
        position = entry.end
    if position != size:
        raise _broken(path, f"its tensors need {position:,} bytes of data, the file has {size:,}")
    return entries


def _entry(path: Path, name: str, value: Any) -> _Entry:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise _broken(path, f"tensor {name} is not described by dtype, shape and data_offsets")
    shape, offsets = value["shape"], value["data_offsets"]
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise _broken(path, f"tensor {name} has shape {shape} and data_offsets {offsets}")
    if not isinstance(value["dtype"], str) or value["dtype"] not in DTYPES:
        raise CheckpointError(f"Checkpoint {path} holds tensor {name} of element type {value['dtype']}; "
                              f"tileflow reads {', '.join(DTYPES)}.")
    dtype = np.dtype(DTYPES[value["dtype"]])
    if math.prod(shape) * dtype.itemsize != offsets[1] - offsets[0]:
        raise _broken(path, f"tensor {name} of shape {shape} has {offsets[1] - offsets[0]:,} bytes")
    return _Entry(name, dtype, tuple(shape), *offsets)


def _counts(value: Any) -> bool:
    """A list of sizes, or of offsets, that NumPy can index."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _read_tensor(path: Path, file: BinaryIO, start: int, entry: _Entry) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of a tensor, and the tensor."""
    try:
        array = np.empty(entry.shape, entry.dtype)
    except ValueError as error:
        raise _broken(path, f"tensor {entry.name} has shape {list(entry.shape)} ({error})") from None
    raw = array.reshape(-1).view(np.uint8)
    file.seek(start + entry.begin)
    if file.readinto(raw) != raw.size:                                              # type: ignore[attr-defined]
        raise _broken(path, f"the data of tensor {entry.name} end too early")
    if entry.dtype == np.bool_ and raw.max(initial=0) > 1:
        raise _broken(path, f"tensor {entry.name} is BOOL and holds other bytes than 0 and 1")
    return raw, array.astype(entry.dtype.newbyteorder("="), copy=False)
