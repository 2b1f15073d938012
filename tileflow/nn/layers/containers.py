"""Modules that hold modules: in sequence, in lists and in dicts, named by position or key."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from ...system.errors import OptionError, TypeMismatchError
from ..module import Module
from ..parameter import Parameter
from ..tensor import Tensor


def _module(item: Any, holder: str) -> Module:
    if isinstance(item, type) and issubclass(item, Module):
        raise TypeMismatchError(f"{holder} got the class {item.__name__}; give it an object: {item.__name__}(...).")
    if not isinstance(item, Module):
        raise TypeMismatchError(f"{holder} holds modules, not {type(item).__name__}.")
    return item


class _Held(Module):
    """What lists and dicts share: whether something may be in them."""

    holds = "module"

    @classmethod
    def _checked(cls, item: Any) -> Any:
        return _module(item, cls.__name__)


class _List(_Held):
    """A list, named by position ("0")."""

    def __init__(self, items: Any = ()) -> None:
        self._items: list[Any] = []
        self.extend(items)

    def append(self, item: Any) -> Self:
        self._items.append(self._checked(item))
        return self

    def extend(self, items: Any) -> Self:
        for item in items:
            self.append(item)
        return self

    def members(self) -> Iterator[tuple[str, Module | Parameter]]:
        return ((str(i), item) for i, item in enumerate(self._items))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        """An item, or for a slice a list of this kind with the same items."""
        return type(self)(self._items[index]) if isinstance(index, slice) else self._items[index]

    def __setitem__(self, index: int, item: Any) -> None:
        if not isinstance(index, int):
            raise TypeMismatchError(f"{type(self).__name__}: an item is assigned by its position, a whole number, not {index!r}.")
        self._items[index] = self._checked(item)


class _Dict(_Held):
    """Items by name."""

    def __init__(self, items: Mapping[str, Any] | None = None) -> None:
        self._items: dict[str, Any] = {}
        for name, item in (items or {}).items():
            self[name] = item

    def __setitem__(self, name: str, item: Any) -> None:
        if not isinstance(name, str) or not name or "." in name:
            raise OptionError(f"{type(self).__name__}: {name!r} is no name of a {self.holds}; a name is a text without dots.")
        self._items[name] = self._checked(item)

    def __getitem__(self, name: str) -> Any:
        if name not in self._items:
            raise OptionError(f"{type(self).__name__} has no {self.holds} {name!r}; it has {', '.join(self._items) or 'none'}.")
        return self._items[name]

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def keys(self) -> Any:
        return self._items.keys()

    def values(self) -> Any:
        return self._items.values()

    def items(self) -> Any:
        return self._items.items()

    def members(self) -> Iterator[tuple[str, Module | Parameter]]:
        return iter(self._items.items())


class ModuleList(_List):
    """A list of modules, named by position ("0.weight"); it is for `forward` to call them."""


class Sequential(ModuleList):
    """Modules one after another, named by position ("0.weight"); or by key, given one dict or list of pairs (name, module)."""

    def __init__(self, *modules: Any) -> None:
        only = modules[0] if len(modules) == 1 else None
        if isinstance(only, Mapping):
            modules = tuple(only.items())
        elif isinstance(only, Sequence):
            modules = tuple(only)
        pairs = [m if isinstance(m, tuple) else (str(i), m) for i, m in enumerate(modules)]
        super().__init__(m for _, m in pairs)
        self._names = [name for name, _ in pairs]

    def append(self, item: Any) -> Self:
        super().append(item)
        if hasattr(self, "_names"):
            self._names.append(str(len(self._names)))
        return self

    def members(self) -> Iterator[tuple[str, Module | Parameter]]:
        return iter(zip(self._names, self._items, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        for module in self._items:
            x = module(x)
        return x


class ModuleDict(_Dict):
    """Modules by name; it is for `forward` to call them."""


class _Parameters(_Held):
    """Parameters; arrays become such."""

    holds = "parameter"

    @classmethod
    def _checked(cls, item: Any) -> Any:
        return item if isinstance(item, Parameter) else Parameter(item)


class ParameterList(_Parameters, _List):
    """A list of parameters (arrays become such), named by position ("0")."""


class ParameterDict(_Parameters, _Dict):
    """Parameters by name (arrays become such)."""
