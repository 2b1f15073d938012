"""Modules that hold modules: in sequence, in lists and in dicts, named by position or key."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...errors import OptionError, TypeMismatchError
from ..module import Module
from ..parameter import Parameter
from ..tensor import Tensor


def _module(item: Any, holder: str) -> Module:
    if isinstance(item, type) and issubclass(item, Module):
        raise TypeMismatchError(f"{holder} got the class {item.__name__}; give it an object: {item.__name__}(...).")
    if not isinstance(item, Module):
        raise TypeMismatchError(f"{holder} holds modules, not {type(item).__name__}.")
    return item


class ModuleList(Module):
    """A list of modules, named by position ("0.weight"); it is for `forward` to call them."""

    def __init__(self, modules: Any = ()) -> None:
        self._items: list[Module] = []
        self.extend(modules)

    def append(self, module: Module) -> ModuleList:
        self._items.append(_module(module, type(self).__name__))
        return self

    def extend(self, modules: Any) -> ModuleList:
        for module in modules:
            self.append(module)
        return self

    def members(self) -> Iterator[tuple[str, Module | Parameter]]:
        return ((str(i), module) for i, module in enumerate(self._items))

    def __iter__(self) -> Iterator[Module]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        """A module, or for a slice a list of this kind with the same modules."""
        return type(self)(self._items[index]) if isinstance(index, slice) else self._items[index]


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

    def append(self, module: Module) -> Sequential:
        super().append(module)
        if hasattr(self, "_names"):
            self._names.append(str(len(self._names)))
        return self

    def members(self) -> Iterator[tuple[str, Module | Parameter]]:
        return iter(zip(self._names, self._items, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        for module in self._items:
            x = module(x)
        return x


class ModuleDict(Module):
    """Modules by name; it is for `forward` to call them."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        self._items: dict[str, Module] = {}
        for name, module in (modules or {}).items():
            self[name] = module

    def __setitem__(self, name: str, module: Module) -> None:
        if not isinstance(name, str) or not name or "." in name:
            raise OptionError(f"ModuleDict: {name!r} is no name of a module; a name is a text without dots.")
        self._items[name] = _module(module, "ModuleDict")

    def __getitem__(self, name: str) -> Any:
        if name not in self._items:
            raise OptionError(f"ModuleDict has no module {name!r}; it has {', '.join(self._items) or 'none'}.")
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


class ParameterList(Module):
    """A list of parameters (arrays become such), named by position ("0")."""

    def __init__(self, values: Any = ()) -> None:
        self._items: list[Parameter] = []
        self.extend(values)

    def append(self, value: Any) -> ParameterList:
        self._items.append(_parameter(value))
        return self

    def extend(self, values: Any) -> ParameterList:
        for value in values:
            self.append(value)
        return self

    def members(self) -> Iterator[tuple[str, Module | Parameter]]:
        return ((str(i), p) for i, p in enumerate(self._items))

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        """A parameter, or for a slice a list of this kind with the same parameters."""
        return type(self)(self._items[index]) if isinstance(index, slice) else self._items[index]


class ParameterDict(Module):
    """Parameters by name (arrays become such)."""

    def __init__(self, parameters: Mapping[str, Any] | None = None) -> None:
        self._items: dict[str, Parameter] = {}
        for name, value in (parameters or {}).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str) or not name or "." in name:
            raise OptionError(f"ParameterDict: {name!r} is no name of a parameter; a name is a text without dots.")
        self._items[name] = _parameter(value)

    def __getitem__(self, name: str) -> Any:
        if name not in self._items:
            raise OptionError(f"ParameterDict has no parameter {name!r}; it has {', '.join(self._items) or 'none'}.")
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


def _parameter(value: Any) -> Parameter:
    return value if isinstance(value, Parameter) else Parameter(value)
