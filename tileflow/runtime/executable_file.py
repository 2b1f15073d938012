"""An executable as a file: a compiled Program with all that a call needs besides, as data. Nothing of a file is
executed, and nothing of it is taken before its sizes and digests are known to be right.

Eight bytes of magic, whose last is the version; the header's length and SHA-256; a JSON header; then, each at a
multiple of 64 bytes and with a digest of its own, the text of the program's structure, the ONNX file that the model
came from, the states, and to the end of the file the program's constants.
"""
from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np

from ..kernels.dtypes import CODES, NARROW
from ..memory import budget
from ..memory.alignment import padded
from ..memory.tensor import Tensor
from ..memory.types import HIGHEST_RANK
from ..options.options import Options
from ..program.fields import Fault, read
from ..program.text import digest_of_text
from ..state.session import LASTING, StateDeclaration
from ..system.errors import ModelError, OptionError
from ..system.files import atomic_write
from ..system.reading import open_regular, parsed
from .model_file import EXECUTABLE as MAGIC

if TYPE_CHECKING:
    from ..program.program import Program

START = len(MAGIC) + 8 + 32
MAX_HEADER = 256 << 20
UNSTORED = 4
"""States of which a file says no numbers (accumulators) may take so many times the bytes of the others."""
SMALL = 1 << 20
DIGEST = hashlib.sha256
NEVER = "export the model again with compile_and_export"


@dataclass(frozen=True)
class KeptFile:
    """The ONNX file that a model came from, in its executable: what is known of it before it is parsed."""

    inputs: tuple[tuple[str, str], ...]
    plain: bool


@dataclass(frozen=True)
class Header:
    """What an executable says of itself.

    version: tileflow's. model: the class of the model. where: what messages called it. types: of a call's arrays; the
    first `own` are the model's inputs. inputs: of a micro-batch, by name. outputs: all that calls return, the loss
    (`loss_output`) among it, and last as many as there are `anchors`, which are what options call them. once: names of
    the outputs of which a call in output mode final keeps one micro-batch.
    whole: there are weights; else whoever loads has them.
    options, loss, fitted, optimizer: as `recipes` and `Options.told` write them; fitted: the loss for these outputs.
    structure: what of the optimizer is compiled in. asked: what of it is no data. assigned, updates, micro_batches,
    trainable: the session's. run: what schedules know of the run.
    states: all of the program's, in their order; stored: those whose numbers follow, in theirs. plateaus: what
    schedules have come to.
    codes: of operators of a user's own, by name (`custom.names.comparable`).
    file: the ONNX file that follows. form: how arguments and results are nested (`forms`; of PyTorch's modules
    `torch.executable`). program: bytes of the text of its structure. digests: of what follows that, the ONNX file
    first.
    """

    version: str
    model: Literal["TrainingModel", "InferenceModel"]
    where: str
    whole: bool
    types: tuple[tuple[str, tuple[int, ...]], ...]
    own: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...]
    loss_output: str | None
    anchors: tuple[str, ...]
    anchored: tuple[str, ...]
    once: tuple[str, ...]
    options: Any
    loss: Any
    fitted: Any
    optimizer: Any
    structure: Any
    asked: tuple[str, ...]
    fingerprint: str
    assigned: tuple[tuple[str, float], ...]
    updates: int
    micro_batches: int
    trainable: tuple[str, ...]
    run: tuple[int | None, int | None]
    states: tuple[StateDeclaration, ...]
    stored: tuple[str, ...]
    plateaus: tuple[tuple[str, tuple[float, ...]], ...]
    form: Any
    codes: tuple[tuple[str, str], ...] | None = None
    file: KeptFile | None = None
    file_nbytes: int = 0
    program: int = 0
    digests: tuple[str, ...] = ()


def write(path: str | os.PathLike[str], header: Header, program: tuple[bytes, Sequence[Any]],
          tensors: Mapping[str, np.ndarray], file: bytes | None) -> None:
    """Write an executable, whole or not at all; it is read back before it takes the place of an older one.

    Args:
        header: all but its last fields, which follow from the rest. program: its structure's text and its constants, as
            `program.file.parts_of` gives them. tensors: `header.stored` by name. file: the ONNX file.

    Raises:
        CheckpointError: it cannot be written; one that stood there is as it was.
    """
    text, constants = program
    blobs = [*([] if file is None else [memoryview(file)]), *(_bytes_of(tensors[name]) for name in header.stored)]
    told = dataclasses.replace(header, file_nbytes=0 if file is None else len(file), program=len(text),
                               digests=tuple(_digests(blobs)))
    content = json.dumps(dataclasses.asdict(told), separators=(",", ":")).encode()
    content += b" " * (-(START + len(content)) % 64)
    if len(content) > MAX_HEADER:
        raise ModelError(f"The header of {path} would have {len(content):,} bytes; {MAX_HEADER:,} are the most.")
    start = MAGIC + len(content).to_bytes(8, "little") + DIGEST(content).digest()
    parts = [part for blob in (text, *blobs) for part in (blob, bytes(-len(blob) % 64))]
    atomic_write(path, [start, content, *parts, *constants], check=_is_whole)


class Opened:
    """An executable's file that was looked at: its header is right, and all that it says lies where it should.

    digest: the program's.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises:
            ModelError: it cannot be read, is cut short, damaged, of another version or no executable.
            OutOfMemoryError: there is no room for its states.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise ModelError(f"An executable is the path of a file, not {type(path).__name__}.")
        self.path, self._absolute = Path(path), os.path.abspath(path)        # it may be read again from another folder

        def opened(file: BinaryIO) -> str:
            self._start = file.read(START)
            self.header, self._begin = _header(file)
            return digest_of_text(_text(file, self.header, self._begin))
        self.digest: str = self._from(opened)

    @cached_property
    def options(self) -> Options:
        """Those that the model had."""
        return self._read(self.header.options, "the options")

    def refused(self, why: object) -> ModelError:
        """The sentence for what is wrong with the file."""
        remedy = (isinstance(why, Fault) and why.remedy) or NEVER
        return ModelError(f"Executable {self.path} cannot be used: {why}; {remedy}.")

    def program(self) -> Program:
        """The program (ModelError where it is none, or the file is another one by now)."""
        from .. import host  # noqa: F401  (with it come the operators that programs name)
        from ..program.file import read_parts
        found: Program = self._from(lambda file: read_parts(file, *self._parts(file)))
        return found

    def check(self) -> None:
        """Read all of it (ModelError where something differs from its digest)."""
        from ..program.file import parts_in

        def read(file: BinaryIO) -> None:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # not from the memory it was written from
            at = self._begin + padded(self.header.program)
            for nbytes, digest in zip(_sizes(self.header), self.header.digests, strict=True):
                file.seek(at)
                if _digest_in(file, nbytes) != digest:
                    raise Fault("what it stores", "differs from its digest: the file is damaged")
                at += padded(nbytes)
            parts_in(file, *self._parts(file))
        self._from(read)

    def read_into(self, states: Callable[[str], np.ndarray]) -> None:
        """Read the stored states into arrays of their types, C-contiguous, by name (ModelError where they are
        damaged)."""
        first = 0 if self.header.file is None else 1
        arrays = [states(name) for name in self.header.stored]
        self._from(lambda file: self._blobs(file, first, [a.reshape(-1).view(np.uint8) for a in arrays]))
        if any(a.dtype == np.bool_ and a.view(np.uint8).max(initial=0) > 1 for a in arrays):
            raise self.refused("a state of truth values holds others")
        for a in arrays if sys.byteorder == "big" else ():
            a.byteswap(inplace=True)

    def model_bytes(self) -> bytes:
        """The ONNX file that the model came from (ModelError where it is damaged)."""
        budget.require(2 * self.header.file_nbytes, f"Executable {self.path}", "close other programs")
        found = np.empty(self.header.file_nbytes, np.uint8)
        self._from(lambda file: self._blobs(file, 0, [found]))
        return found.tobytes()

    # ---- reading

    def _from(self, act: Callable[[BinaryIO], Any]) -> Any:
        try:
            with open_regular(self._absolute) as file:
                return act(file)
        except Fault as fault:
            raise self.refused(fault) from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise ModelError(f"Executable {self.path} cannot be read: {why}.") from None

    def _read(self, data: Any, at: str) -> Options:
        try:
            return Options.of_told(data)
        except (OptionError, ValueError, TypeError, AttributeError) as error:
            raise self.refused(Fault(at, f"cannot be: {error}")) from None

    def _now(self, file: BinaryIO) -> tuple[Header, int]:
        """The header of the file as it is now: written again since, perhaps, with the same program and other
        weights."""
        file.seek(0)
        return (self.header, self._begin) if file.read(START) == self._start else _header(file)

    def _parts(self, file: BinaryIO) -> tuple[bytes, int, int]:
        """The text of the program's structure, and where in the file its constants are."""
        header, begin = self._now(file)
        text = _text(file, header, begin)
        if digest_of_text(text) != self.digest:
            raise Fault("the file", "is another one by now")
        return text, begin + sum(map(padded, (header.program, *_sizes(header)))), os.fstat(file.fileno()).st_size

    def _blobs(self, file: BinaryIO, first: int, into: Sequence[np.ndarray]) -> None:
        """Read what has a digest, from the number `first` on; of a file that was written again what is still the
        same."""
        header, begin = self._now(file)
        file.seek(begin + padded(header.program) + sum(map(padded, _sizes(header)[:first])))
        for blob in into:
            if file.readinto(blob.data) != blob.size or any(file.read(-blob.size % 64)):  # type: ignore[attr-defined]
                raise Fault("the states", "end too early, or what is between them is damaged")
        if _digests(into) != list(self.header.digests[first:first + len(into)]):
            raise Fault("what it stores", "differs from its digest: the file is damaged")


def _bytes_of(array: np.ndarray) -> memoryview:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.astype(flat.dtype.newbyteorder("<"), copy=False).view(np.uint8).data


def _digests(blobs: Iterable[Any]) -> list[str]:
    """Digests of buffers; of large ones by two threads, for Python lets go of them meanwhile."""
    blobs = list(blobs)
    if sum(map(len, blobs)) < SMALL:
        return [DIGEST(blob).hexdigest() for blob in blobs]
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda blob: DIGEST(blob).hexdigest(), blobs))


def _digest_in(file: BinaryIO, nbytes: int) -> str:
    """The digest of the next bytes of a file, of which few are in memory at a time."""
    found = DIGEST()
    while nbytes > 0 and (part := file.read(min(nbytes, 16 * SMALL))):
        found.update(part)
        nbytes -= len(part)
    return found.hexdigest()


def _sizes(header: Header) -> list[int]:
    """Bytes of what follows the program's text and has a digest."""
    by_name = {s.name: s for s in header.states}
    return [*([] if header.file is None else [header.file_nbytes]), *(by_name[name].nbytes for name in header.stored)]


def _header(file: BinaryIO) -> tuple[Header, int]:
    """The header of a file and where what follows it begins (Fault where the file is not what its first bytes say)."""
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    start = file.read(START)
    if start[:len(MAGIC) - 1] != MAGIC[:-1]:
        raise Fault("the file", "is no executable of tileflow")
    if start[:len(MAGIC)] != MAGIC:
        version = start[len(MAGIC) - 1:len(MAGIC)].decode("latin-1")
        raise Fault("the file", f"has version {version!r} of the format, and this tileflow reads "
                                f"{MAGIC[-1:].decode()!r}")
    length = int.from_bytes(start[len(MAGIC):len(MAGIC) + 8], "little")
    if len(start) < START or length > min(MAX_HEADER, size - START):
        raise Fault("the header", f"claims {length:,} bytes, and the file has {size:,}")
    budget.require(10 * length, "The header of an executable", "close other programs")
    text = file.read(length)
    if DIGEST(text).digest() != start[-32:]:
        raise Fault("the header", "differs from its digest: the file is damaged")
    try:
        data = parsed(json.loads, text.decode())
    except ValueError as error:
        raise Fault("the header", f"is no JSON ({error})") from None
    header: Header = read(data, Header, "the header", {Any: lambda value, _: value})
    _check(header, size, START + length)
    return header, START + length


def _text(file: BinaryIO, header: Header, begin: int) -> bytes:
    """The text of a program's structure."""
    file.seek(begin)
    text = file.read(header.program)
    if len(text) != header.program:
        raise Fault("the program", "is cut off")
    return text


def _check(header: Header, size: int, begin: int) -> None:
    """Fault where sizes, names or numbers do not go together; nothing has been taken for them yet."""
    for tensor in (*header.inputs, *header.states, *(Tensor("an array", *t) for t in header.types)):
        if tensor.dtype not in CODES or len(tensor.shape) > HIGHEST_RANK or any(n < 0 for n in tensor.shape) \
                or math.prod(max(1, n) for n in tensor.shape) * tensor.numpy.itemsize > 1 << 48:
            raise Fault(f"the tensor {tensor.name!r:.80}", f"is {tensor.dtype!r:.20}{list(tensor.shape)!r:.80}")
    by_name = {s.name: s for s in header.states}
    lasting = {s.name for s in header.states if s.kind in LASTING}
    if len(by_name) < len(header.states) or len({*header.stored}) < len(header.stored):
        raise Fault("the states", "have one name twice")
    if header.whole != ({*header.stored} == lasting) and (header.stored or lasting):
        raise Fault("the stored states", "are not those of the program")
    if not header.whole and (header.stored or header.file is not None):
        raise Fault("the states", "are there, and it says that they are not")
    for s in header.states:
        owner = by_name.get(s.owner)
        alone = s.role in ("replica", "average") and (owner is None or owner.shape != s.shape)
        if alone or s.kind not in (*LASTING, "accumulator") or s.dtype in NARROW:
            raise Fault(f"the state {s.name!r:.80}", "is none that a session has")
    stored, others = (sum(s.padded_nbytes for s in header.states if (s.name in lasting) is kept)
                      for kept in (True, False))
    if others > UNSTORED * stored + SMALL:
        raise Fault("the states", f"whose numbers are not in it would take {others:,} bytes")
    sizes = _sizes(header)
    if min(header.file_nbytes, header.program, header.updates,
           header.micro_batches) < 0 or len(sizes) != len(header.digests):
        raise Fault("the header", "has no digest for each part, or counts below 0")
    if begin + padded(header.program) + sum(map(padded, sizes)) > size:
        raise Fault("the file", f"has {size:,} bytes, fewer than its parts need")
    if not 0 <= header.own <= len(header.types) == len(header.inputs) or len(header.anchors) > len(header.outputs) \
            or (header.model == "TrainingModel") != (header.loss_output is not None) \
            or (header.loss_output is not None and header.loss_output not in header.outputs):
        raise Fault("the header", "names inputs or outputs that do not go together")
    budget.require(stored + others, "The states of an executable", "close other programs")


def _is_whole(path: Path) -> bool:
    """A file, read from the disk, has the digests that it names."""
    try:
        Opened(path).check()
    except ModelError:
        return False
    return True
