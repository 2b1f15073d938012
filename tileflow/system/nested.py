"""Arguments and results of a call: nested as users have them, and flat as programs take and give them."""
from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from .errors import DataError, UnsupportedError

PLAIN = (type(None), bool, int, float, str)
"""Constants that are data: they can be compared and written down."""
DEEPEST = 64
"""Structures within structures."""


class Spec(Protocol):
    """A structure without its leaves, which can be compared. (PyTorch's TreeSpec is one.)"""

    def unflatten(self, leaves: Any) -> Any:
        """The structure with these leaves, in its order."""


class Structure(tuple[Any, ...]):
    """Tuples (named ones, too), lists and dicts within each other: (type, keys of a dict, structures within); () is a
    leaf."""

    def unflatten(self, leaves: Any) -> Any:
        """The structure with these leaves, in its order."""
        return self._of(iter(leaves))

    def _of(self, leaves: Any) -> Any:
        if not self:
            return next(leaves)
        kind, keys, within = self
        parts = [part._of(leaves) for part in within]
        if keys is not None:
            return kind(zip(keys, parts, strict=True))
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


def flatten(nested: Any, is_leaf: Callable[[Any], bool] = lambda _: False,
            ) -> tuple[list[tuple[tuple[Any, ...], Any]], Structure]:
    """Leaves, each with its path, and the structure around them. Mappings of other kinds than dict become dicts.

    Args:
        is_leaf: tuples, lists and dicts that are not opened.

    Raises:
        DataError: it contains itself, or is nested more than 64 deep.
    """
    found: list[tuple[tuple[Any, ...], Any]] = []

    def walk(value: Any, path: tuple[Any, ...]) -> Structure:
        if len(path) > DEEPEST:
            raise DataError(f"The arguments or results of a call are nested more than {DEEPEST} deep; is there a list "
                            "or dict that contains itself?")
        kind, items, keys = type(value), None, None
        if not is_leaf(value):
            if isinstance(value, Mapping):
                kind, keys = kind if kind is OrderedDict else dict, tuple(value)
                items = [(key, value[key]) for key in keys]
            elif kind in (tuple, list) or (isinstance(value, tuple) and hasattr(value, "_fields")):
                items = [*enumerate(value)]
        if items is None:
            found.append((path, value))
            return Structure()
        return Structure((kind, keys, tuple(walk(part, (*path, key)) for key, part in items)))
    return found, walk(nested, ())


@dataclass(frozen=True)
class Form:
    """How the arguments of a call are nested, and what of them is no tensor: constants, which are compiled in.

    names: what `forward` calls each tensor. constants: by the place of a leaf. tensors: places of those that are.
    """

    spec: Spec
    names: tuple[str, ...]
    constants: tuple[tuple[int, Any], ...]
    tensors: tuple[int, ...]

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """What no two forms that differ have in common, where all constants are PLAIN."""
        return self.spec, self.names, tuple((i, type(c), repr(c)) for i, c in self.constants), self.tensors

    def nested(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments and keyword arguments with these tensors."""
        leaves: dict[int, Any] = {**dict(self.constants), **dict(zip(self.tensors, tensors, strict=True))}
        args, kwargs = self.spec.unflatten([leaves[i] for i in range(len(leaves))])
        return args, kwargs

    def differs(self, other: Form) -> str:
        """How another call's form differs, as a phrase; '' where it does not."""
        if self.spec != other.spec or self.tensors != other.tensors:
            return f"it was compiled for the arguments {self._shown()} and got {other._shown()}"
        for (i, a), (_, b) in zip(self.constants, other.constants, strict=True):
            if not _same(a, b):
                return f"an argument that is no tensor was compiled in as {a!r} (leaf {i}) and is {b!r}"
        return ""

    def _shown(self) -> str:
        return f"({', '.join(self.names)})" + (f" and {len(self.constants)} that are no tensors"
                                               if self.constants else "")

    def data(self) -> list[Any]:
        """The arguments in JSON's types, of which `read` makes them again, with the number of each tensor in its
        place."""
        args, kwargs = self.nested([TensorPlace(i) for i in range(len(self.tensors))])
        return [written(args), written(kwargs)]


def _same(a: Any, b: Any) -> bool:
    try:
        return type(a) is type(b) and (bool(a == b) or (type(a) is float and math.isnan(a) and math.isnan(b)))
    except Exception:
        return a is b


def positional(args: Sequence[Any], kwargs: Mapping[str, Any],
               parameters: Sequence[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Keyword arguments in their places as far as they follow the others, so that a call has one form however it is
    written."""
    placed, rest = list(args), dict(kwargs)
    for name in parameters[len(args):]:
        if name not in rest:
            break
        placed.append(rest.pop(name))
    return tuple(placed), dict(sorted(rest.items()))


def named(path: Sequence[Any], parameters: Sequence[str]) -> str:
    """x, or batch_0 for what is in the argument `batch`; `path` as that of (args, kwargs)."""
    place, first, *rest = path
    if place == 0:
        first = parameters[first] if first < len(parameters) else f"input{first}"
    return "_".join(map(str, [first, *rest]))


def check_arguments(what: str, args: Sequence[Any], kwargs: Mapping[str, Any], parameters: Sequence[str],
                    required: Sequence[str], more: Sequence[str] = (), is_open: bool = False) -> None:
    """DataError for a keyword that is not known or given by its place, too, and for an argument that is missing.

    Args:
        what: is called. parameters: names in their order. required: those that have no default. more: keywords beside
            them. is_open: any keyword is taken.
    """
    there = f"there are {', '.join([*parameters, *more])}" if parameters or more else "there are none"
    placed = parameters[:len(args)]
    for name in kwargs:
        if name not in parameters and name not in more and not is_open:
            raise DataError(f"{what} takes no input {name!r}; {there}.")
        if name in placed:
            raise DataError(f"{what} got the input {name!r} twice: by its place, {placed.index(name)}, "
                            "and by its name.")
    if missing := [name for name in required if name not in placed and name not in kwargs]:
        raise DataError(f"{what} got no input {' and no '.join(map(repr, missing))}; {there}.")


@dataclass(frozen=True)
class Results:
    """How what `forward` returns is nested.

    places: by leaf, which of the program's outputs it is; None for what is no tensor, and then constants[leaf].
    """

    spec: Spec
    places: tuple[int | None, ...]
    constants: tuple[Any, ...]

    @classmethod
    def of(cls, returned: Any) -> Results:
        """That of results with a TensorPlace for each output."""
        leaves, spec = flatten(returned)
        return cls(spec, tuple(int(x) if isinstance(x, TensorPlace) else None for _, x in leaves),
                   tuple(None if isinstance(x, TensorPlace) else x for _, x in leaves))

    @cached_property
    def count(self) -> int:
        """How many of the program's outputs it shows."""
        return 1 + max((i for i in self.places if i is not None), default=-1)

    @cached_property
    def plain(self) -> str:
        """"tensor", or "tuple" of tensors, each another one; "": anything else."""
        if list(range(len(self.places))) != list(self.places):
            return ""
        nested = self.spec.unflatten(list(self.places))
        return "tensor" if type(nested) is int else "tuple" if type(nested) is tuple and nested == self.places else ""

    def nested(self, tensors: Sequence[Any]) -> Any:
        """What `forward` would return, of these tensors."""
        if self.plain == "tensor":
            return tensors[0]
        if self.plain == "tuple":
            return tuple(tensors)
        return self.spec.unflatten([c if i is None else tensors[i]
                                    for i, c in zip(self.places, self.constants, strict=True)])

    def data(self) -> Any:
        """In JSON's types, of which `read` makes it again, with the number of each output in its place."""
        return written(self.nested([TensorPlace(i) for i in range(self.count)]))


class TensorPlace(int):
    """Which tensor stands there."""


def written(value: Any) -> Any:
    """Arguments or results in JSON's types (UnsupportedError for what is none)."""
    if isinstance(value, TensorPlace):
        return int(value)
    if isinstance(value, (tuple, list)):
        return ["list" if isinstance(value, list) else "tuple", *map(written, value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"members": {key: written(x) for key, x in value.items()}}
    if type(value) in PLAIN:
        return {"float": repr(value)} if type(value) is float and not math.isfinite(value) else {"value": value}
    raise UnsupportedError(f"forward() takes or returns a {type(value).__name__}, which an executable cannot hold: "
                           "pass tensors, numbers and texts, in tuples, lists and dicts.")


def read(data: Any, count: int, tensor: Callable[[int], Any], depth: int = 0) -> Any:
    """What `written` wrote, with `tensor(i)` in the place of each of `count` (ValueError where it is none of that)."""
    if depth > DEEPEST:
        raise ValueError(f"are nested more than {DEEPEST} deep")
    if type(data) is int and 0 <= data < count:
        return tensor(data)
    if type(data) is list and data and data[0] in ("tuple", "list"):
        found = [read(x, count, tensor, depth + 1) for x in data[1:]]
        return found if data[0] == "list" else tuple(found)
    if type(data) is dict and data.keys() == {"members"} and type(data["members"]) is dict:
        return {key: read(x, count, tensor, depth + 1) for key, x in data["members"].items()}
    if type(data) is dict and data.keys() == {"value"} and type(data["value"]) in PLAIN:
        return data["value"]
    if type(data) is dict and data.keys() == {"float"} and data["float"] in ("nan", "inf", "-inf"):
        return float(data["float"])
    raise ValueError("hold what no arguments are")
