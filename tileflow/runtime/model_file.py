"""An ONNX file by its content: read at once, while the model in it is parsed, checked and imported only when somebody
needs more of it than an earlier start has noted."""
from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..executable import notes
from ..memory import budget
from ..system.errors import OutOfMemoryError
from ..system.reading import open_regular
from .code_key import all_code

if TYPE_CHECKING:
    from ..importers.onnx import OnnxModel

EXECUTABLE = b"tflexec1"
"""What an executable's file begins with; the last byte is the version of the format."""
PREFIX = "tileflow."
"""What the keys of those metadata begin with that tileflow writes and reads."""


class Input(NamedTuple):
    """An input as the file declares it; dims: as a `Port` of the importer has them."""

    name: str
    dtype: str
    dims: tuple[int | str | None, ...] | None = None


class ModelFile:
    """A file whose model is valid, as an earlier start has found or this one finds.

    inputs: those of the model, without initializers. outputs: their names. metadata: the entries that are tileflow's.
    plain: all inputs and outputs are tensors of numbers.
    """

    outputs: tuple[str, ...]
    metadata: Mapping[str, str]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Args:
            path: that of an ONNX file.

        Raises:
            ModelError: as `tileflow.load` does.
        """
        self.path = Path(path)
        self._content = _content(self.path)
        self.digest = hashlib.sha256(self._content or b"").hexdigest()
        """Of the file's own content."""
        self._readable = self._content is not None
        noted = None if self._content is None else notes.load(self._key)
        if noted is not None and not all((self.path.parent / file).is_file() for file in noted["external"]):
            noted = None                                    # there is a sentence for that
        self.known = noted is not None
        """An earlier start has found it valid."""
        if noted is None:
            model = self.model
            self.inputs = tuple(Input(port.name, port.dtype, port.dims) for port in model.inputs)
            self.outputs = tuple(port.name for port in model.outputs)
            self.metadata = {key: text for key, text in model.metadata.items() if key.startswith(PREFIX)}
            self.plain = model.plain
            self._external = tuple(os.path.relpath(file, self.path.parent) for file in model.external_files)
        else:
            self.inputs = tuple(Input(name, dtype, dims and tuple(dims)) for name, dtype, dims in noted["inputs"])
            self.outputs, self.metadata = tuple(noted["outputs"]), noted["metadata"]
            self.plain, self._external = noted["plain"], tuple(noted["external"])

    def note(self) -> None:
        """Let later starts know of it, now that its parameters were found to be told apart, too."""
        if not self.known:
            self.known = True
            notes.save(self._key, {"inputs": self.inputs, "outputs": self.outputs, "metadata": self.metadata,
                                   "plain": self.plain, "external": self._external})

    @cached_property
    def model(self) -> OnnxModel:
        """The model."""
        from ..importers.onnx import load_model
        from ..importers.onnx.load import parse_model
        made = load_model(self.path) if self._content is None else parse_model(self._content, self.path)
        self._content = None                                # the model has all of it
        return made

    @property
    def described(self) -> OnnxModel | ModelFile:
        """What says how messages call it, its inputs and its metadata."""
        return self

    @property
    def where(self) -> str:
        """How messages call this model."""
        return str(self.path)

    @cached_property
    def digests(self) -> tuple[str, ...] | None:
        """Of the content of the file, and of each file of external data; None where one of them cannot be read."""
        if not self._readable:
            return None
        found = [_content(self.path.parent / name) for name in self._external]
        whole = [hashlib.sha256(part).hexdigest() for part in found if part is not None]
        return (self.digest, *whole) if len(whole) == len(found) else None

    @property
    def _key(self) -> str:
        return hashlib.sha256(f"file {all_code()} {self.digest}".encode()).hexdigest()

    @property
    def identity(self) -> tuple[Any, ...]:
        """What tells the file, with those of its external data, from others and from what was or will be at the same
        path."""
        external = [os.stat(self.path.parent / file) for file in self._external]
        return os.path.realpath(self.path), self.digest, *((s.st_ino, s.st_size, s.st_mtime_ns) for s in external)

    def contents(self) -> tuple[bytes, ...] | None:
        """The bytes of the file, and of each file of external data; None where one of them cannot be read, or the file
        is another by now."""
        own = self._content
        if own is None and (own := _content(self.path)) is not None and hashlib.sha256(own).hexdigest() != self.digest:
            return None
        found = [own, *(_content(self.path.parent / name) for name in self._external)]
        whole = tuple(part for part in found if part is not None)
        return whole if len(whole) == len(found) else None


def is_executable(path: Any) -> bool:
    """Whether somebody named an executable's file, of whatever version: its first bytes say so."""
    if not isinstance(path, (str, os.PathLike)):
        return False
    try:
        with open_regular(path) as file:
            return file.read(len(EXECUTABLE))[:-1] == EXECUTABLE[:-1]
    except (OSError, ValueError):
        return False


def _content(path: Path) -> bytes | None:
    """What a file holds; None where reading it is refused, for which `load_model` has the sentences."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            budget.require(2 * size, str(path), "")
            return file.read() or None
    except (OSError, ValueError, OutOfMemoryError):
        return None
