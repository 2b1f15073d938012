"""Parameter groups: which weights have attributes of their own, by name pattern, module or parameter."""
from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..system.errors import OptionError, see
from .attributes import AttributeOwner, check_number

if TYPE_CHECKING:
    from ..graph import State

AUTO = "auto"
"""What no_decay calls biases and the weights of norms: parameters of at most one dimension, and those whose name ends in bias."""
LISTED = 8
"""Names that a sentence lists."""


class Grouped(AttributeOwner, Protocol):
    """An optimizer that has groups."""

    no_decay: Any

    @property
    def param_groups(self) -> Sequence[ParamGroup]: ...
    def check_group(self, group: ParamGroup) -> None: ...


class ParamGroup(MutableMapping[str, Any]):
    """A group as PyTorch shows it: `optimizer.param_groups[1]["lr"] = 1e-4`. What a group does not say it takes from the optimizer; the first
    group, number 0, is the optimizer's own: all weights of no other group."""

    def __init__(self, optimizer: Grouped, number: int, given: Mapping[str, Any]) -> None:
        self._optimizer, self.number = optimizer, number
        self.own: dict[str, Any] = {}
        self.params = _listed(optimizer, number, given.get("params")) if number else ()
        self.name = str(given.get("name", number))
        for name, value in given.items():
            if name not in ("params", "name"):
                self[name] = value

    def of(self, other: Grouped, one: Callable[[Any], Any]) -> ParamGroup:
        """The same for a copy of the optimizer; `one` copies a value."""
        made = copy.copy(self)
        made._optimizer, made.own = other, {name: one(x) for name, x in self.own.items()}
        return made

    def __getitem__(self, name: str) -> Any:
        if name not in self._names():
            raise KeyError(name)
        return self.own[name] if name in self.own else getattr(self._optimizer, name)

    def __setitem__(self, name: str, value: Any) -> None:
        kind = type(self._optimizer).__name__
        if name not in self._names():
            hint = "it is the same for all weights, so give it to the optimizer itself." if hasattr(self._optimizer, name) else \
                f"there are {', '.join(self._names())}."
            raise OptionError(f"{kind}: a group has no attribute {name!r}; {hint}")
        if not self.number:
            setattr(self._optimizer, name, value)
            return
        if name in self._optimizer.flags and not isinstance(value, bool):
            raise OptionError(f"{kind}: {name} is true or false, got {value!r}.")
        before = dict(self.own)
        self.own[name] = check_number(kind, name, value) if name in self._optimizer.numbers else value
        self._optimizer.changed()
        try:
            self._optimizer.check_group(self)
        except OptionError:
            self.own = before
            raise

    def __delitem__(self, name: str) -> None:
        """Have it from the optimizer again."""
        del self.own[name]
        self._optimizer.changed()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def _names(self) -> tuple[str, ...]:
        return (*self._optimizer.numbers, *self._optimizer.flags)

    def described(self) -> dict[str, Any]:
        """As plain values: patterns as they are, modules by their class."""
        return {"params": [p if isinstance(p, str) else type(p).__name__ for p in self.params]} | self.own

    def names(self, parameters: Sequence[State], named: Mapping[int, str]) -> set[str]:
        """Its weights. `named`: names of the network's own parameter objects, by identity.

        Raises:
            OptionError: something in it matches no parameter.
        """
        kind, found = type(self._optimizer).__name__, set[str]()
        for item in self.params:
            if isinstance(item, str):
                names = {s.name for s in parameters if s.fits(item)}
                shown = f"the pattern {item!r}"
            else:
                objects = item.parameters() if hasattr(item, "parameters") else [item]
                names = {named[id(p)] for p in objects if id(p) in named}
                shown = f"a {type(item).__name__}"
            if not names:
                known = [s.known_as for s in parameters]
                more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
                raise OptionError(f"{kind}: group {self.name} matches nothing: {shown} fits no parameter of this model, which has "
                                  f"{', '.join(known[:LISTED])}{more}.{see('optimizers')}")
            found |= names
        return found


def _listed(optimizer: Grouped, number: int, params: Any) -> tuple[Any, ...]:
    """A group's patterns, modules and parameters."""
    kind = type(optimizer).__name__
    if params is None:
        raise OptionError(f"{kind}: group {number} does not say which weights it is for; give it params, a name pattern, a module or a list of such.")
    items = tuple(params) if isinstance(params, Iterable) and not _is_item(params) else (params,)
    for item in items:
        if not _is_item(item):
            raise OptionError(f"{kind}: params of group {number} are name patterns, modules or parameters, not {item!r}.")
    if not items:
        raise OptionError(f"{kind}: params of group {number} is empty.")
    return items


def _is_item(thing: Any) -> bool:
    """A name pattern, a module or a parameter."""
    return bool(thing) if isinstance(thing, str) else hasattr(thing, "parameters") or hasattr(thing, "trainable")


def assigned(optimizer: Grouped, parameters: Sequence[State], named: Mapping[int, str]) -> dict[str, int]:
    """The number of each parameter's group.

    Raises:
        OptionError: a group matches nothing, or a parameter is in two.
    """
    found: dict[str, int] = {}
    for group in optimizer.param_groups[1:]:
        for name in group.names(parameters, named):
            if name in found:
                one, other = optimizer.param_groups[found[name]].name, group.name
                raise OptionError(f"{type(optimizer).__name__}: {name!r} is in group {one} and in group {other}; a parameter has one group.")
            found[name] = group.number
    return {s.name: found.get(s.name, 0) for s in parameters}


def undecayed(optimizer: Grouped, parameters: Sequence[State]) -> set[str]:
    """The parameters that `no_decay` means (OptionError for a pattern that matches nothing)."""
    found: set[str] = set()
    for pattern in optimizer.no_decay:
        names = {s.name for s in parameters if (_is_small(s) if pattern == AUTO else s.fits(pattern))}
        if not names and pattern != AUTO:
            raise OptionError(f"{type(optimizer).__name__}: the no_decay pattern {pattern!r} matches nothing; the parameters are "
                              f"{', '.join([s.known_as for s in parameters][:LISTED])} …")
        found |= names
    return found


def _is_small(state: State) -> bool:
    return state.input.type.rank <= 1 or state.name.endswith("bias")
