"""A Program as a file: eight bytes that say what it is, the header's length and its SHA-256, a JSON header, then arrays
at multiples of 64 bytes.

The header has the program's structure (`writing.py`), which names every constant by type, shape and digest, and says
of each where its elements are: at a place of the file, or in a tensor of the model's own file, which is not stored
again. The digest of the structure is that of the program: it is the same in every process, and whether constants are
stored or named. Nothing of a file is executed; what it holds is checked as `reading.py` says.

Operators are found by their names in the registry, so whoever reads has imported `tileflow.ops`.
"""
from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..graph import TensorType
from ..kernels.dtypes import CODES, ELEMENTS
from ..kernels.machine import limits
from ..system.errors import ModelError, OutOfMemoryError, UnsupportedError
from ..system.files import atomic_write
from ..system.reading import open_regular, parsed
from .arrays import bytes_of, digest_of
from .fields import Fault, shown
from .program import Program
from .reading import array_types, program_of
from .text import MAGIC, digest_of_text, text_of
from .writing import Written, structure_of

START = len(MAGIC) + 8 + 32
"""Bytes before the header: the magic ones, the header's length (little-endian), its SHA-256."""
ALIGNMENT = 64
MAX_HEADER = 256 << 20
SMALL = 64
"""Bytes of a constant that are stored even where the model's file has the same: so few are found there by chance."""
CONVERSIONS = ("none", "transposed")
"""What a tensor goes through before it is cast to the constant's element type and seen in its shape."""
Tensors = Mapping[str, np.ndarray]
Find = Callable[[str], np.ndarray]


def digest(program: Program) -> str:
    """SHA-256 of all that a program is, its constants among it, in hexadecimal. Two programs with the same digest are
    lowered to the same plan and compute the same bits. It depends on no process, no machine and no dictionary's order.

    Raises:
        UnsupportedError: the program holds what a file cannot.
    """
    return _digest(_written(program).structure)


def parts_of(program: Program) -> tuple[bytes, list[Any]]:
    """A program for a file that holds more: the text of its structure, and its constants as buffers of bytes, each with
    what fills it up to a multiple of `ALIGNMENT`.

    Raises:
        UnsupportedError: the program holds what a file cannot.
    """
    found = _written(program)
    return text_of(found.structure), [part for array in found.arrays for part in _padded(array)]


def read_parts(file: BinaryIO, text: bytes, begin: int, end: int) -> Program:
    """The program of `parts_of`, whose constants are the bytes `begin` to `end` of a file (Fault where it is none)."""
    return program_of(*parts_in(file, text, begin, end))


def parts_in(file: BinaryIO, text: bytes, begin: int, end: int) -> tuple[Any, list[np.ndarray]]:
    """Its structure and its constants, which have the digests that the structure names (Fault where they have not)."""
    structure = _json(text, "the program")
    types = array_types(structure)
    offsets = list(accumulate((_room(t.nbytes) for t, _ in types), initial=0))[:-1]
    return structure, [_array(file, *place) for place in _places(offsets, types, begin, end)]


def save(path: str | os.PathLike[str], program: Program, tensors: Tensors | None = None) -> str:
    """Write a program to a file, whole or not at all; the file is read back before it takes the place of an older one.

    Args:
        tensors: what the model's file holds, by name. A constant that is one of these, cast to another element type, in
            another shape or with its two axes swapped, is named and not stored.

    Returns:
        the program's digest.

    Raises:
        UnsupportedError: the program holds what a file cannot: an operator that is not in the registry, such as those
            of the host's lowering; an attribute that is no plain data, such as a Python function; stages that are cut.
        CheckpointError: the file cannot be written; one that stood there is as it was.
    """
    found = _written(program)
    named = _Named(tensors or {})
    places: list[int | list[str]] = []
    parts: list[Any] = []
    offset = 0
    for array, (_, _, key) in zip(found.arrays, found.structure["arrays"], strict=True):
        place = named.find(array, key)
        places.append(offset if place is None else place)
        if place is None:
            parts += _padded(array)
            offset += _room(array.nbytes)
    header = text_of({"places": places, "program": found.structure})
    header += b" " * (-(START + len(header)) % ALIGNMENT)
    if len(header) > MAX_HEADER:
        raise UnsupportedError(f"The header of program {path} would have {len(header):,} bytes; {MAX_HEADER:,} are the "
                               f"most.")
    start = MAGIC + len(header).to_bytes(8, "little") + hashlib.sha256(header).digest()
    atomic_write(path, [start, header, *parts], check=_is_whole)
    return _digest(found.structure)


def load(path: str | os.PathLike[str], tensors: Tensors | Find | None = None) -> Program:
    """The program in a file. Every size is checked against the file's before memory is taken.

    Args:
        tensors: the tensors of the model's file, by name, or what gives one (KeyError where there is none).

    Raises:
        ModelError: the file cannot be read, is cut short, damaged, of another version or no program, or holds a program
            that cannot run; or the model's file is another one by now.
        OutOfMemoryError: there is no room for its constants.
    """
    find: Find = tensors if callable(tensors) else (tensors or {}).__getitem__
    try:
        with open_regular(path) as file:
            structure, places = _opened(file)
            arrays = [_array(file, *at) if type(at[0]) is int else _resolved(find, *at) for at in places]
            return program_of(structure, arrays)
    except Fault as fault:
        remedy = fault.remedy or "write it again from its model"
        raise ModelError(f"Program {path} cannot be used: {fault}; {remedy}.") from None
    except OSError as error:
        raise ModelError(f"Program {path} cannot be read: {error.strerror or error}.") from None


def _written(program: Program) -> Written:
    try:
        return structure_of(program)
    except Fault as fault:
        raise UnsupportedError(f"The program cannot be written: {fault}.") from None


def _digest(structure: Any) -> str:
    return digest_of_text(text_of(structure))


def _padded(array: np.ndarray) -> list[Any]:
    return [bytes_of(array).data, bytes(-array.nbytes % ALIGNMENT)]


def _json(text: bytes, at: str) -> Any:
    try:
        return parsed(json.loads, text.decode())
    except ValueError as error:
        raise Fault(at, f"is no JSON ({error})") from None


def _room(nbytes: int) -> int:
    return nbytes + -nbytes % ALIGNMENT


class _Named:
    """The tensors of a model's file, to be found by what they hold."""

    def __init__(self, tensors: Tensors) -> None:
        self._by_size: dict[int, list[tuple[str, np.ndarray]]] = {}
        for name, array in sorted(tensors.items()):
            self._by_size.setdefault(array.size, []).append((name, array))

    def find(self, array: np.ndarray, key: str) -> list[str] | None:
        """[name, conversion] of a tensor that a constant with this digest is made of; None: it is to be stored."""
        for name, tensor in self._by_size.get(array.size, []) if array.nbytes > SMALL else []:
            for conversion in CONVERSIONS if tensor.ndim == 2 else CONVERSIONS[:1]:
                if digest_of(_converted(tensor, conversion, array.dtype, array.shape)) == key:
                    return [name, conversion]
        return None


def _converted(tensor: np.ndarray, conversion: str, dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
    turned = np.ascontiguousarray(tensor.T if conversion == "transposed" else tensor)
    with np.errstate(all="ignore"):
        return turned.astype(dtype, copy=False).reshape(shape)


Place = tuple[Any, TensorType, str]
"""Where a constant is (its offset in the file, or [tensor, conversion]), its type and its digest."""


def _opened(file: BinaryIO) -> tuple[Any, list[Place]]:
    """The structure in a file, and where its constants are; Fault where the file is not what its first bytes say."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(START)
    magic, length = start[:len(MAGIC)], int.from_bytes(start[len(MAGIC):len(MAGIC) + 8], "little")
    if magic[:-1] != MAGIC[:-1]:
        raise Fault("the file", "is no program of tileflow")
    if magic != MAGIC:
        version = shown(magic[-1:].decode("latin-1"))
        raise Fault("the file", f"has version {version} of the format, and this tileflow reads {MAGIC[-1:].decode()!r}")
    if len(start) < START or length > min(MAX_HEADER, size - START):
        raise Fault("the header", f"claims {length:,} bytes, and the file has {size:,}")
    text = file.read(length)
    if hashlib.sha256(text).digest() != start[-32:]:
        raise Fault("the header", "differs from its digest: the file is damaged")
    header = _json(text, "the header")
    if type(header) is not dict or header.keys() != {"places", "program"}:
        raise Fault("the header", "is no table of places and program")
    return header["program"], _places(header["places"], array_types(header["program"]), START + length, size)


def _places(data: Any, types: Sequence[tuple[TensorType, str]], begin: int, size: int) -> list[Place]:
    """Where each constant is: those that are stored fill the file from `begin` to its end, one after the other."""
    if type(data) is not list or len(data) != len(types):
        raise Fault("places", f"are not those of {len(types)} arrays")
    offset = 0
    found: list[Place] = []
    for i, (item, (t, key)) in enumerate(zip(data, types, strict=True)):
        if type(item) is int:
            if item != offset:
                raise Fault(f"places[{i}]", f"is {item} and not {offset}")
            offset += _room(t.nbytes)
            found.append((begin + item, t, key))
        elif type(item) is list and len(item) == 2 and type(item[0]) is str and item[1] in CONVERSIONS:
            found.append((item, t, key))
        else:
            raise Fault(f"places[{i}]", f"is {shown(item)}, which is no place")
    if begin + offset != size:
        raise Fault("the arrays", f"need a file of {begin + offset:,} bytes, and it has {size:,}")
    room, needed = limits.memory(), sum(t.nbytes for t, _ in types)
    if room is not None and needed > room.nbytes:
        raise OutOfMemoryError(f"The constants of a program need {needed:,} bytes of memory, and {room.nbytes:,} can "
                               f"be had ({room.limit}); close other programs.")
    return found


def _array(file: BinaryIO, offset: int, t: TensorType, key: str) -> np.ndarray:
    """A constant that is stored."""
    file.seek(offset)
    raw = np.empty(t.nbytes, np.uint8)
    if file.readinto(raw.data) != raw.size or any(file.read(-t.nbytes % ALIGNMENT)):       # type: ignore[attr-defined]
        raise Fault("the arrays", "end too early, or what is between them is damaged")
    found = raw.view(t.numpy.newbyteorder("<")).astype(t.numpy, copy=False).reshape(t.shape)
    if digest_of(found) != key:
        raise Fault(f"an array of {t}", "differs from its digest: the file is damaged")
    if not _is_valid(raw, t):
        raise Fault(f"an array of {t}", "holds bytes that are no such elements")
    return found


def _is_valid(raw: np.ndarray, t: TensorType) -> bool:
    """Truth values are 0 or 1; of elements of fewer than 8 bits the others repeat the sign, or are 0."""
    bits = 1 if t.dtype == "bool" else ELEMENTS[CODES[t.dtype]].bits
    if not bits:
        return True
    if t.dtype.startswith("int"):
        raw = raw + np.uint8(1 << bits - 1)                     # so that the least is 0; wraps
    return int(raw.max(initial=0)) < 1 << bits


def _resolved(find: Find, place: Sequence[str], t: TensorType, key: str) -> np.ndarray:
    """A constant that is a tensor of the model's file."""
    name, conversion = place
    try:
        tensor = np.asarray(find(name))
    except KeyError:
        raise Fault(f"the tensor {shown(name)}", "of the model's file is needed and was not given") from None
    fits = tensor.size == t.size and (conversion == "none" or tensor.ndim == 2)
    found = _converted(tensor, conversion, t.numpy, t.shape) if fits else None
    if found is None or digest_of(found) != key:
        raise Fault(f"the tensor {shown(name)}", "of the model's file is not the one that the program was made with")
    return found


def _is_whole(path: Path) -> bool:
    """A file, read from the disk, has the digests that it names."""
    with path.open("rb") as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)     # not from the memory it was written from
        try:
            for at in _opened(file)[1]:
                if type(at[0]) is int:
                    _array(file, *at)
        except Fault:
            return False
    return True
