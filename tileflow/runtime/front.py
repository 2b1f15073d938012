"""What a model of a file came to at an earlier start, found by all that it was made from: what the importer answered to
questions about it, the program by its digest, and where in the file its weights stand. With the Image of that program
(`executable.kept_engine`) a start reads the file's bytes and imports, compiles and lowers nothing.

The key holds the content of the file and of its external data, the options that are compiled in or that calls look at,
as they came about, what of loss, optimizer and session shapes a program, the types of a call, and all of tileflow's
code. A reference to a weight is where the same bytes stand in the content that the key is of; what stands nowhere
there, since it was converted, is in the note itself as long as it is small.
"""
from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from ..custom import names
from ..executable import notes, store
from ..memory.types import TensorType
from ..options.options import Options
from .code_key import all_code
from .model_file import ModelFile
from .source import written_type

SMALL = 4096
"""Bytes of an array that is held in a note."""
UNFIT = (AttributeError, KeyError, IndexError, TypeError, ValueError)
"""What reading a note raises in which something else stands."""
T = TypeVar("T")


@dataclass(frozen=True)
class KeptModel:
    """What is kept of a compiled model.

    program: the digest of its Program. final: the outputs of which a call keeps the last micro-batch only.
    loss: the name of the output that is the loss. anchors: names of outputs that are values within the model.
    initial: what states start with, by name. known: what the model knows of the program's graph, in JSON's types.
    """

    program: str
    final: frozenset[str]
    loss: str | None
    anchors: tuple[str, ...]
    initial: Mapping[str, np.ndarray]
    known: Mapping[str, Any]


def entry(file: ModelFile, options: Options, shaped: Sequence[Any], types: Sequence[TensorType]) -> KeptPlace | None:
    """Where is kept what a model comes to; None where nothing can be found again.

    Args:
        shaped: what else than file, options and the types of a call shapes the program, as values that can be written
            down: an object, or a function, of somebody's own cannot. Operators of somebody's own count by their code.
    """
    contents = file.contents()
    if contents is None:
        return None
    key = _key([file.digest, *(hashlib.sha256(part).hexdigest() for part in contents[1:])], options,
               [shaped, [written_type(t) for t in types]])
    return None if key is None else KeptPlace(key, contents)


def answered(file: ModelFile | None, options: Options, question: Sequence[Any], ask: Callable[[], T],
             told: Callable[[T], Any], of_told: Callable[[Any], T]) -> T:
    """What `ask` gives, or what it gave at an earlier start for the same file, options and question. What it raises is
    kept nowhere, so that every start asks for it again.

    Args:
        question: what else the answer follows from.
        told, of_told: an answer in JSON's types, and out of them (one of UNFIT where it is none).
    """
    digests = None if file is None or not store.enabled else file.digests
    key = None if digests is None else _key(digests, options, ["answer", *question])
    if key is not None and (found := notes.load(key)) is not None:
        with contextlib.suppress(*UNFIT):
            return of_told(found)
    answer = ask()
    if key is not None:
        notes.save(key, told(answer))
    return answer


def _key(digests: Sequence[str], options: Options, shaped: Sequence[Any]) -> str | None:
    """By what is found what was made of files with these digests; None where it cannot be written down."""
    codes = names.codes()
    if codes is None:
        return None
    told = {d.name: [getattr(options, d.name), options.given(d.name), options.given(d.name, files=False)]
            for d in options.declared().values() if d.is_compiled or d.live}
    try:
        made = json.dumps([all_code(), codes, list(digests), _written(told), _written(shaped)])
    except TypeError:
        return None
    return hashlib.sha256(made.encode()).hexdigest()


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
class KeptPlace:
    """The place of what is kept of a model.

    contents: of its file, and of each file of external data.
    """

    key: str
    contents: tuple[bytes, ...]

    @cached_property
    def kept(self) -> KeptModel | None:
        """What is kept, read once; None where there is nothing, or nothing that fits the file."""
        found = notes.load(self.key)
        if found is None:
            return None
        try:
            initial = {name: _array(where, self.contents) for name, where in found["initial"].items()}
            return KeptModel(found["program"], frozenset(found["final"]), found["loss"], tuple(found["anchors"]),
                             initial, dict(found["known"]))
        except UNFIT:
            return None

    def save(self, kept: KeptModel) -> None:
        """Keep it, unless a large array stands nowhere in the file."""
        places, initial = _Places(self.contents), {}
        for name, array in kept.initial.items():
            if (where := places.of(array)) is None:
                return
            initial[name] = where
        notes.save(self.key, {"program": kept.program, "final": sorted(kept.final), "loss": kept.loss,
                              "anchors": kept.anchors, "initial": initial, "known": kept.known})


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
