"""Trained ONNX files, rehearsed before a run and written in it: in full (`trained_file`), or by what an earlier start
has found of the same file, options and metadata.

A rehearsal asks the file, the options and a micro-batch; what it has found stays true of these. What is written is
checked by computing with it, once: where the new file, read again, was the very graph that is trained, and all else in
it was bytes that no weight has a part in, a file with these bytes around other weights is as right. Then it is made of
them, and read back byte for byte.
"""
from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..memory.types import type_of
from ..options.options import Options
from ..system.files import MODEL, refuse_folder, replace_by, require_place, unwritable
from .front import answered
from .host import Progress
from .onnx_source import OnnxSource
from .source import Source, written_type

if TYPE_CHECKING:
    from ..importers.onnx import FileForm

Metadata = Mapping[str, str | None]


def rehearsed(source: OnnxSource, path: Path, options: Options, inputs: Sequence[np.ndarray],
              metadata: Metadata) -> None:
    """Raise what `write` would raise for `path`, as far as that can be known before the weights are trained
    (`trained_file.rehearse`)."""
    asked = False

    def rehearse() -> int:
        nonlocal asked
        from .trained_file import rehearse
        asked = True
        return rehearse(source, path, options, inputs, metadata)
    content = hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in inputs)).hexdigest()
    question = ["rehearsal", *_question(source, inputs, metadata), content, source.session.micro_batches]
    nbytes = answered(source.file, options, question, rehearse, int, int)
    if not asked:
        require_place(path, nbytes)


def write(source: Source, weights: Mapping[str, np.ndarray], path: Path, options: Options, inputs: Sequence[np.ndarray],
          metadata: Metadata, progress: Progress | None = None, form: FileForm | None = None) -> None:
    """`trained_file.write_trained`, or the file that an earlier one came to, with these weights in it."""
    done = False

    def written() -> SplitFile | None:
        nonlocal done
        from .trained_file import write_trained
        alike = write_trained(source, weights, path, options, inputs, metadata, progress, form)
        done = True
        return SplitFile.of(source, weights, options,
                            metadata) if alike and isinstance(source, OnnxSource) and source.file is not None else None
    if form is not None or not isinstance(source, OnnxSource):
        written()
        return
    question = ["trained file", *_question(source, inputs, metadata)]
    found = answered(source.file, options, question, written, lambda made: made and made.told(), SplitFile.of_told)
    if not done and (found is None or not found.fill(weights, path)):
        written()


def _question(source: OnnxSource, inputs: Sequence[np.ndarray], metadata: Metadata) -> list[Any]:
    return [dict(metadata), [written_type(type_of(np.asarray(a))) for a in inputs], *source.shaped_by()]


@dataclass(frozen=True)
class SplitFile:
    """A file without its weights. parts: the bytes before each of them, and after the last. weights: their names, and
    their types as `written_type` has them."""

    parts: tuple[bytes, ...]
    weights: tuple[tuple[str, list[Any]], ...]

    @classmethod
    def of(cls, source: OnnxSource, weights: Mapping[str, np.ndarray], options: Options,
           metadata: Metadata) -> SplitFile | None:
        """That of the file that is written of a source; None where weights have no place of their own in it."""
        from ..importers.onnx.export import open_form
        found = open_form(source.model, weights, keep_training_mode=options.keep_training_mode, metadata=metadata)
        return None if found is None else cls(tuple(found[0]),
                                              tuple((n, written_type(type_of(weights[n]))) for n in found[1]))

    def told(self) -> list[Any]:
        """In JSON's types, of which `of_told` makes it again."""
        return [[base64.b64encode(part).decode() for part in self.parts], self.weights]

    @classmethod
    def of_told(cls, told: Any) -> SplitFile:
        parts, weights = told
        made = cls(tuple(base64.b64decode(part, validate=True) for part in parts),
                   tuple((name, t) for name, t in weights))
        if len(made.parts) != len(made.weights) + 1:
            raise ValueError(told)
        return made

    def fill(self, weights: Mapping[str, np.ndarray], path: Path) -> bool:
        """Write the file with these weights, all or nothing, and read it back; False where they are others than it is
        made for.

        Raises:
            CheckpointError: it cannot be written, or what is read back differs; nothing is left behind.
        """
        if {name: written_type(type_of(a)) for name, a in weights.items() if a.size} != dict(self.weights):
            return False
        whole = b"".join(piece for part, (name, _) in zip(self.parts, self.weights, strict=False)
                         for piece in (part, _elements(weights[name]))) + self.parts[-1]
        try:
            refuse_folder(path)
            replace_by(path, [whole], lambda new: new.read_bytes() == whole)
        except OSError as error:
            raise unwritable(MODEL, path, error) from None
        return True


def _elements(array: np.ndarray) -> bytes:
    """Little endian, as the format wants them."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
