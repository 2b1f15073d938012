"""Where the elements of modules' parameters and buffers live: in a session, of which the tensors are views."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..state import Session
from ..system.errors import UnsupportedError
from .calls import array_of, tensor_of


@dataclass
class Home:
    """A session, and how often training wrote it. names: those that tensors of modules have in it."""

    session: Session = field(default_factory=Session)
    written: int = 0
    names: set[str] = field(default_factory=set)


_homes: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""By tensor: (home, name)."""


@dataclass(slots=True)
class _Bound:
    """A parameter or buffer of a module: where the module keeps it, what it was when it was looked at last. shared: its
    memory is the session's."""

    holder: dict[str, Any]
    key: str
    name: str
    tensor: torch.Tensor
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


class _Shows:
    """Lets tensors show what was trained before a module's `state_dict`; copies and pickles of the module do not ask for it."""

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
        found = list(stored(module))
        homes = {id(home): home for *_, tensor in found if (home := _homes.get(tensor, (None,))[0]) is not None}
        if len(homes) > 1:
            raise UnsupportedError(
                f"{type(module).__name__} has parameters of {len(homes)} modules that were compiled one by one, and "
                "weights have one memory: make the model of the whole first, or of a copy (copy.deepcopy) of its parts."
            )
        self.home = next(iter(homes.values()), None) or Home()
        self.canonical: dict[str, str] = {}
        self._bound: list[_Bound] = []
        seen: dict[int, str] = {}
        for path, table, key, tensor in found:
            known = _homes.get(tensor)
            name = seen.get(id(tensor)) or (known[1] if known is not None else self._new(path))
            self.canonical[path] = name
            if id(tensor) not in seen:
                seen[id(tensor)] = name
                self.home.names.add(name)
                _homes[tensor] = self.home, name
            self._bound.append(_Bound(table, key, name, tensor, tensor.requires_grad))
        self.settle()
        self._hooked = False

    def _new(self, path: str) -> str:
        name, number = path, 2
        while name in self.home.names:
            name, number = f"{path}.{number}", number + 1
        return name

    def settle(self) -> None:
        """What all are now is known: programs were made of it."""
        for b in self._bound:
            b.tensor = b.holder[b.key]
            b.trainable = b.tensor.requires_grad
            b.settle()

    @property
    def session(self) -> Session:
        return self.home.session

    def names(self) -> dict[int, str]:
        """What the session calls each tensor, by its identity."""
        return {id(b.tensor): b.name for b in self._bound}

    def attach(self) -> None:
        """The session has memory for the states: let the tensors be views of it, where types are the same."""
        session = self.session
        with torch.no_grad():
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
        another."""
        changed = [b for b in self._bound if not b.is_settled()]
        if not changed:
            return True
        edits: dict[str, np.ndarray] = {}
        same = all([self._taken(b, b.holder.get(b.key), edits) for b in changed])
        if edits:
            self.session.put(edits)
            self._show(edits)
        return same

    def _taken(self, b: _Bound, tensor: torch.Tensor | None, edits: dict[str, np.ndarray]) -> bool:
        """One that changed; what its state is to be goes into `edits`. False: it was compiled in."""
        if tensor is None or tensor.shape != b.tensor.shape or tensor.dtype != b.tensor.dtype:
            raise UnsupportedError(
                f"The {b.name!r} of {type(self.module).__name__} has another shape or type than it was compiled with, or "
                "is gone; make a model of the module anew."
            )
        changed = tensor.requires_grad != b.trainable
        moved = tensor is not b.tensor or tensor.data_ptr() != b.pointer
        if tensor is not b.tensor:
            _homes[tensor] = self.home, b.name
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

    def to_device(self) -> None:
        """The session has what the tensors hold now, edits that cannot be seen (through `.data`) among them."""
        self.session.put({b.name: array_of(b.tensor) for b in self._bound if b.name in self.session})
        for b in self._bound:
            b.settle()
