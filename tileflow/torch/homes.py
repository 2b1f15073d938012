"""Where the elements of modules' parameters and buffers live: in a session, of which the tensors are views."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter, is_
from typing import Any
from weakref import ReferenceType

import numpy as np
import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.utils.weak import WeakIdKeyDictionary

from ..state import Session
from ..system.errors import UnsupportedError
from .calls import array_of, tensor_of


@dataclass
class Home:
    """A session, and how often training wrote it. names: those that tensors of modules have in it. trains: whose
    moments it has."""

    session: Session = field(default_factory=Session)
    written: int = 0
    names: set[str] = field(default_factory=set)
    trains: ReferenceType[Any] | None = None


_homes: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""By tensor: (home, name, the type and the shape that it had)."""
_END = (object(),)
_VERSION, _TRAINABLE = attrgetter("_version"), attrgetter("requires_grad")


@dataclass(slots=True)
class _Bound:
    """A parameter or buffer of a module: where the module keeps it, what it was when it was looked at last.

    kind: its type and shape, which stay. shared: its memory is the session's.
    """

    holder: dict[str, Any]
    key: str
    name: str
    tensor: torch.Tensor
    kind: tuple[torch.dtype, torch.Size]
    trainable: bool
    pointer: int = 0
    version: int = 0
    shared: bool = False
    written: int = 0

    def settle(self) -> None:
        """What it is now is known."""
        self.pointer, self.version = self.tensor.data_ptr(), self.tensor._version

    def is_settled(self) -> bool:
        """It is what it was."""
        t = self.tensor
        return (self.holder.get(self.key) is t and t._version == self.version and t.data_ptr() == self.pointer
                and t.requires_grad == self.trainable)

    def is_alike(self) -> bool:
        """There is a tensor of the same type and shape."""
        t = self.holder.get(self.key)
        return t is not None and _kind(t) == self.kind


class _Seen:
    """What a module was when it was looked at last, so that a call finds in little time that it is so still: all is
    asked for by `map`, for behind a step that has filled the caches with numbers of its own every line of Python
    costs."""

    def __init__(self, module: torch.nn.Module, bound: list[_Bound]) -> None:
        tables: list[dict[str, Any]] = [table for m in module.modules()
                                        for table in (m._modules, m._parameters, m._buffers)]
        self._tables, self._empty = [t for t in tables if t], [t for t in tables if not t]
        self._members = [*chain.from_iterable(map(dict.values, self._tables)), *_END]
        self._tensors = [b.tensor for b in bound]
        self._versions, self._pointers = [b.version for b in bound], [b.pointer for b in bound]
        self._trainable = [b.trainable for b in bound]

    def is_settled(self) -> bool:
        """Nothing has changed: the same parts, parameters and buffers are in the same places, with the same
        elements."""
        now, tensors = chain(chain.from_iterable(map(dict.values, self._tables)), _END), self._tensors
        return (all(map(is_, now, self._members)) and not any(self._empty)
                and [*map(torch.Tensor.data_ptr, tensors)] == self._pointers
                and [*map(_VERSION, tensors)] == self._versions and [*map(_TRAINABLE, tensors)] == self._trainable)


def _kind(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size]:
    return tensor.dtype, tensor.shape


def stored(module: torch.nn.Module) -> Iterator[tuple[str, dict[str, Any], str, torch.Tensor]]:
    """Every parameter and buffer by all its paths: path, the table that holds it, its key there, the tensor."""
    for path, inner in module.named_modules(remove_duplicate=False):
        for table in (inner._parameters, inner._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    yield f"{path}.{key}" if path else key, table, key, tensor


def own_arrays(module: torch.nn.Module, canonical: Mapping[str, str], wanted: Set[str]) -> dict[str, np.ndarray]:
    """The elements of a module's parameters and buffers by what a session calls them, of those that are wanted."""
    return {canonical[path]: array_of(tensor) for path, _, _, tensor in stored(module) if canonical[path] in wanted}


def _counted(name: str, table: dict[str, Any], key: str) -> torch.Tensor:
    """A tensor of which PyTorch counts the edits: of what came to be in its inference mode it does not, and a buffer
    gives way to a copy.

    Raises:
        UnsupportedError: it is a parameter, or has no elements yet.
    """
    tensor: torch.Tensor = table[key]
    if tensor.is_meta or isinstance(tensor, UninitializedTensorMixin):
        raise UnsupportedError(f"{name} has no elements yet: " + (
            "give the module some (module.to_empty(device='cpu'), then its initial weights)." if tensor.is_meta
            else "its shape follows from the inputs; call the module once by itself."))
    try:
        _ = tensor._version
    except RuntimeError:
        if isinstance(tensor, torch.nn.Parameter):
            raise UnsupportedError(f"{name} was made in torch.inference_mode(), where PyTorch counts no edits: make "
                                   "the module outside of it.") from None
        with torch.inference_mode(False):
            tensor = table[key] = tensor.clone()
    return tensor


class _Shows:
    """Lets tensors show what was trained before a module's `state_dict`; copies and pickles of the module do not ask
    for it."""

    def __init__(self, homed: Homed | None = None) -> None:
        self._homed = homed

    def __call__(self, *_: Any) -> None:
        if self._homed is not None:
            self._homed.to_host()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Shows, ()


class Homed:
    """A module's parameters and buffers in a session that all modules share which have one of them.

    canonical: what the session calls each, by path.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self._hooked = False
        self._bound: list[_Bound] = []
        self.renew()

    def renew(self) -> None:
        """Take the module as it is now, of which programs are made.

        Raises:
            UnsupportedError: its tensors have not one memory, or one has none.
        """
        self._take([b for b in self._bound if not b.is_settled() and b.is_alike()])
        written = {b.name: b.written for b in self._bound}
        whose = type(self.module).__name__
        found = [(path, table, key, _counted(f"The {path!r} of {whose}", table, key))
                 for path, table, key, _ in stored(self.module)]
        known = {id(t): entry for *_, t in found
                 if (entry := _homes.get(t)) is not None and entry[2] == _kind(t)}
        homes = {id(home): home for home, _, _ in known.values()}
        if len(homes) > 1:
            raise UnsupportedError(
                f"{whose} has parameters of {len(homes)} modules that were compiled one by one, and "
                "weights have one memory: make the model of the whole first, or of a copy (copy.deepcopy) of its parts."
            )
        self.home = next(iter(homes.values()), None) or Home()
        self.canonical: dict[str, str] = {}
        self._bound = []
        seen: dict[int, str] = {}
        for path, table, key, tensor in found:
            name = seen.get(id(tensor)) or (known[id(tensor)][1] if id(tensor) in known else self._new(path))
            self.canonical[path] = name
            if id(tensor) not in seen:
                seen[id(tensor)] = name
                self.home.names.add(name)
                _homes[tensor] = self.home, name, _kind(tensor)
            b = _Bound(table, key, name, tensor, _kind(tensor), tensor.requires_grad, written=written.get(name, 0))
            b.settle()
            self._bound.append(b)
        self._parts, self._seen = [*self.module.modules()], _Seen(self.module, self._bound)
        edits = {b.name: array_of(b.tensor) for b in self._bound
                 if b.name in self.session and self._fits(b.tensor, self.session[b.name])
                 and b.tensor.data_ptr() != self.session[b.name].ctypes.data}
        if edits:                                           # of memory of its own, which no executor has seen
            self.session.put(edits)

    def _new(self, path: str) -> str:
        name, number = path, 2
        while name in self.home.names:
            name, number = f"{path}.{number}", number + 1
        return name

    @property
    def session(self) -> Session:
        return self.home.session

    def names(self) -> dict[int, str]:
        """What the session calls each tensor, by its identity."""
        return {id(b.tensor): b.name for b in self._bound}

    def attach(self) -> None:
        """The session has memory for the states: let the tensors be views of it, where types are the same."""
        session = self.session
        with torch.inference_mode(False), torch.no_grad():
            for b in self._bound:
                if b.name not in session or b.shared:
                    continue
                array = session[b.name]
                if self._fits(b.tensor, array):
                    view = tensor_of(array)
                    if b.tensor.data_ptr() != view.data_ptr():
                        b.tensor.data = view
                    b.shared = True
                b.written = self.home.written
                b.settle()
        self._seen = _Seen(self.module, self._bound)
        if not self._hooked and any(b.name in session and not b.shared for b in self._bound):
            self._hooked = True
            self.module.register_state_dict_pre_hook(_Shows(self))

    @staticmethod
    def _fits(tensor: torch.Tensor, array: np.ndarray) -> bool:
        return (
            tensor.device.type == "cpu" and array_of(tensor).dtype == array.dtype and tuple(tensor.shape) == array.shape
        )

    def look(self) -> bool:
        """Take over what the user changed since: elements, memory, tensors. False: something that was compiled in is
        another, and `renew` makes it known.

        Raises:
            UnsupportedError: a tensor has another shape or type.
        """
        if self._seen.is_settled():
            return True
        places = [(id(table), key) for _, table, key, _ in stored(self.module)]
        same = [*self.module.modules()] == self._parts and places == [(id(b.holder), b.key) for b in self._bound]
        changed = [b for b in self._bound if b.holder.get(b.key) is not None and not b.is_settled()]
        for b in changed:
            if not b.is_alike():
                raise UnsupportedError(f"The {b.name!r} of {type(self.module).__name__} has another shape or type than "
                                       "it was compiled with; make a model of the module anew.")
        same = self._take(changed) and same
        self._seen = _Seen(self.module, self._bound)
        return same

    def _take(self, changed: list[_Bound]) -> bool:
        """Take over what changed. False: something of it was compiled in."""
        edits: dict[str, np.ndarray] = {}
        same = all([self._taken(b, edits) for b in changed])
        if edits:
            self.session.put(edits)
            self._show(edits)
        return same

    def _taken(self, b: _Bound, edits: dict[str, np.ndarray]) -> bool:
        """One that changed; what its state is to be goes into `edits`. False: it was compiled in."""
        tensor = _counted(f"The {b.name!r} of {type(self.module).__name__}", b.holder, b.key)
        changed = tensor.requires_grad != b.trainable
        moved = tensor is not b.tensor or tensor.data_ptr() != b.pointer
        if tensor is not b.tensor:
            _homes[tensor] = self.home, b.name, b.kind
        b.tensor, b.trainable = tensor, tensor.requires_grad
        if b.name not in self.session:
            edited = moved or tensor._version != b.version
            b.settle()
            return not (changed or edited)
        if moved or tensor._version != b.version:
            edits[b.name] = array_of(tensor)
            if moved:
                b.shared = False
        b.settle()
        return not changed

    def _show(self, names: dict[str, np.ndarray]) -> None:
        """Edits are the session's: tensors that were moved are views again."""
        with torch.inference_mode(False):
            for b in self._bound:
                if b.name in names and not b.shared:
                    array = self.session[b.name]
                    if self._fits(b.tensor, array):
                        b.tensor.data = tensor_of(array)
                        b.shared = True
                    b.settle()

    def to_host(self) -> None:
        """Tensors of another type than the session's show what training made of them since they were looked at."""
        with torch.no_grad():
            for b in self._bound:
                if b.name in self.session and not b.shared and b.written != self.home.written:
                    b.tensor.copy_(tensor_of(np.ascontiguousarray(self.session[b.name])))
                    b.written = self.home.written
                    b.settle()
        self._seen = _Seen(self.module, self._bound)

    def to_device(self) -> None:
        """The session has what the tensors hold now, edits that cannot be seen (through `.data`) among them."""
        self.session.put({b.name: array_of(b.tensor) for b in self._bound if b.name in self.session})
        for b in self._bound:
            b.settle()
        self._seen = _Seen(self.module, self._bound)
