"""What a model of a file came to at an earlier start, found by all that it was made from: the program by its digest, and
where in the file its weights stand. With the Image of that program (`executable.kept_engine`) a start reads the file's
bytes and imports, compiles and lowers nothing.

The key holds the content of the file and of its external data, the options as they came about, what of loss, optimizer
and session shapes a program, the types of a call, and all of tileflow's code. A reference to a weight is where the same
bytes stand in the content that the key is of; what stands nowhere there, since it was converted, is in the note itself
as long as it is small.
"""
from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..custom import names
from ..executable import notes
from ..memory.types import TensorType
from ..options.options import Options
from .code_key import all_code
from .model_file import ModelFile

SMALL = 4096
"""Bytes of an array that is held in a note."""


@dataclass(frozen=True)
class Kept:
    """What is kept of a compiled model.

    program: the digest of its Program. final: the outputs of which a call keeps the last micro-batch only.
    loss: the name of the output that is the loss. anchors: names of outputs that are values within the model.
    initial: what states start with, by name.
    """

    program: str
    final: frozenset[str]
    loss: str | None
    anchors: tuple[str, ...]
    initial: Mapping[str, np.ndarray]


def entry(file: ModelFile, options: Options, shaped: Sequence[Any], types: Sequence[TensorType]) -> Entry | None:
    """Where is kept what a model comes to; None where nothing can be found again.

    Args:
        shaped: what else than file, options and the types of a call shapes the program, as values that can be written
            down: an object, or a function, of somebody's own cannot. Operators of somebody's own count by their code.
    """
    contents, codes = file.contents(), names.codes()
    if contents is None or codes is None:
        return None
    digests = [file.digest, *(hashlib.sha256(part).hexdigest() for part in contents[1:])]
    told = {name: [getattr(options, name), options.given(name), options.given(name, files=False)]
            for name in options.declared()}
    try:
        given = [[t.dtype, t.shape] for t in types]
        made = json.dumps([all_code(), codes, digests, _written(told), _written(shaped), given])
    except TypeError:
        return None
    return Entry(hashlib.sha256(made.encode()).hexdigest(), contents)


def _written(value: Any) -> Any:
    """A value in JSON's types, in which no two different ones are alike (TypeError where it has no words)."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(_written, value)]
    if isinstance(value, Mapping):
        return {"mapping": [[_written(k), _written(v)] for k, v in value.items()]}
    if isinstance(value, type) and value.__module__.startswith(f"{__package__.partition('.')[0]}."):
        return {"class": f"{value.__module__}.{value.__qualname__}"}
    raise TypeError(f"{type(value).__name__} cannot be written down")


@dataclass(frozen=True)
class Entry:
    """The place of what is kept of a model.

    contents: of its file, and of each file of external data.
    """

    key: str
    contents: tuple[bytes, ...]

    @cached_property
    def kept(self) -> Kept | None:
        """What is kept, read once; None where there is nothing, or nothing that fits the file."""
        found = notes.load(self.key)
        if found is None:
            return None
        try:
            initial = {name: _array(where, self.contents) for name, where in found["initial"].items()}
            return Kept(found["program"], frozenset(found["final"]), found["loss"], tuple(found["anchors"]), initial)
        except (KeyError, IndexError, TypeError, ValueError):
            return None

    def save(self, kept: Kept) -> None:
        """Keep it, unless a large array stands nowhere in the file."""
        places, initial = _Places(self.contents), {}
        for name, array in kept.initial.items():
            if (where := places.of(array)) is None:
                return
            initial[name] = where
        notes.save(self.key, {"program": kept.program, "final": sorted(kept.final), "loss": kept.loss,
                              "anchors": kept.anchors, "initial": initial})


class _Places:
    """Where arrays stand in contents: sought from where the last one ended, then from the beginning."""

    def __init__(self, contents: Sequence[bytes]) -> None:
        self._contents, self._at = contents, [0] * len(contents)

    def of(self, array: np.ndarray) -> dict[str, Any] | None:
        """The place of an array; None where it stands nowhere and is not small."""
        told = {"dtype": array.dtype.name, "shape": list(array.shape)}
        data = np.ascontiguousarray(array).tobytes()
        if len(data) <= SMALL:
            return told | {"data": base64.b64encode(data).decode()}
        for part, content in enumerate(self._contents):
            for start in dict.fromkeys((self._at[part], 0)):
                if (at := content.find(data, start)) >= 0:
                    self._at[part] = at + len(data)
                    return told | {"part": part, "at": at}
        return None


def _array(where: Mapping[str, Any], contents: Sequence[bytes]) -> np.ndarray:
    """The array of a place, read only (ValueError or IndexError where there is none)."""
    dtype, shape = np.dtype(where["dtype"]), tuple(where["shape"])
    if "data" in where:
        return np.frombuffer(base64.b64decode(where["data"], validate=True), dtype).reshape(shape)
    return np.frombuffer(contents[where["part"]], dtype, math.prod(shape), where["at"]).reshape(shape)
