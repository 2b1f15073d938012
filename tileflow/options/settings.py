"""Declared settings as an object: checked where set, frozen once used, copied, compared, shown, and written as files."""
from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

from ..system.errors import OptionError
from ..system.files import replace_by
from . import files as options_file
from . import toml
from .declaration import GROUPS, Declarations


class FrozenOptionsError(OptionError, AttributeError):
    """An option is set after a model or a data loader took the options over."""


class Settings:
    """What `Options` is but for its fields: a dataclass whose fields are all `declared` and whose initializer went through `by_any_name`."""

    @classmethod
    @functools.cache
    def declared(cls) -> Declarations:
        """The declarations of all fields."""
        return Declarations.of(cls)

    def __new__(cls, **values: Any) -> Self:
        for name in values:
            cls.declared().find(name)
        made = super().__new__(cls)
        made.__dict__["_given"] = dict.fromkeys(cls.declared().renamed(values), "code")
        return made

    def __post_init__(self) -> None:
        self.validate()
        self.__dict__["_made"] = True

    def __getattr__(self, name: str) -> Any:
        """An option by a name that it had before."""
        current = self.declared().now(name)
        if current == name:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self, current)

    def __setattr__(self, name: str, value: Any) -> None:
        declaration = self.declared().find(name)
        name = declaration.name
        if self.is_frozen:
            raise FrozenOptionsError(
                f"Can't modify frozen Options: {name} was set after a model or data loader took the options; change a clone() of them.")
        object.__setattr__(self, name, declaration.check(value))
        if "_made" in self.__dict__:
            self.__dict__["_given"][name] = "code"

    def __delattr__(self, name: str) -> None:
        raise OptionError(f"Option {name} cannot be deleted.")

    def validate(self) -> None:
        """OptionError where options that are each right do not go together."""

    # ---- use

    @property
    def is_frozen(self) -> bool:
        return bool(self.__dict__.get("_frozen", False))

    def freeze(self) -> Self:
        """Check the combination and let nobody change the options any more; returns them."""
        self.validate()
        self.__dict__["_frozen"] = True
        return self

    def given(self, name: str, files: bool = True) -> bool:
        """Whether somebody set the option, be it to its default. `files`: a value out of an options file counts."""
        source = self.__dict__["_given"].get(self.declared().find(name).name)
        return source is not None if files else source == "code"

    # ---- copies

    def clone(self, **changes: Any) -> Self:
        """A copy that can change, with `changes` made."""
        changes = self.declared().renamed(changes)
        copy = type(self)(**{**{name: getattr(self, name) for name in self.declared()}, **changes})
        copy.__dict__["_given"] = {**self.__dict__["_given"], **dict.fromkeys(changes, "code")}
        return copy

    def filled(self, values: Mapping[str, Any], source: Literal["file", "defaults"] = "file") -> Self:
        """A copy in which what nobody gave is as `values` say: a file's, which go before the defaults that somebody has for all runs, or those."""
        before = ("code", "file") if source == "file" else ("code", "file", "defaults")
        taken = {name: value for name, value in self.declared().renamed(values).items() if self.__dict__["_given"].get(name) not in before}
        copy = self.clone(**taken)
        copy.__dict__["_given"].update(dict.fromkeys(taken, source))
        return copy

    def __copy__(self) -> Self:
        return self.clone()

    def __deepcopy__(self, _memo: Any) -> Self:
        return self.clone()

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle has what was given, and who gave it; what is read from it may be changed, as a copy may."""
        given = self.__dict__["_given"]
        values = {name: getattr(self, name) for name in given}
        return _again, (type(self), {n: dict(v) if isinstance(v, Mapping) else v for n, v in values.items()},
                        dict(given))

    def told(self) -> dict[str, list[Any]]:
        """What was given as plain values, each with who gave it: `of_told` makes these settings of it again."""
        return {name: [_plain(getattr(self, name)), source] for name, source in self.__dict__["_given"].items()}

    @classmethod
    def of_told(cls, told: Mapping[str, Any]) -> Self:
        """The settings that `told` gave (OptionError or ValueError where they are none)."""
        pairs = {name: (value, source) for name, (value, source) in told.items()}
        if not {source for _, source in pairs.values()} <= {"code", "file", "defaults"}:
            raise ValueError("it is not known who gave an option")
        return _again(cls, {name: value for name, (value, _) in pairs.items()},
                      {name: who for name, (_, who) in pairs.items()})

    # ---- what they are

    def diff(self, other: Self) -> dict[str, tuple[Any, Any]]:
        """What differs between two: option -> (value here, value there), in the order of the class; empty where they are equal."""
        if not isinstance(other, Settings):
            raise OptionError(f"Options are compared with Options, not with {type(other).__name__}.")
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in self.declared()}
        return {name: (_plain(mine), _plain(theirs)) for name, (mine, theirs) in pairs.items() if mine != theirs}

    def to_dict(self) -> dict[str, Any]:
        """All options as plain values that JSON can hold and `Options(**values)` takes back."""
        return {name: _plain(getattr(self, name)) for name in self.declared()}

    def __repr__(self) -> str:
        """The options that differ from their defaults, as the call that makes them."""
        shown = {name: _plain(getattr(self, name)) for name, d in self.declared().items() if getattr(self, name) != d.default}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    # ---- files

    @classmethod
    def load(cls, path: str | os.PathLike[str], **changes: Any) -> Self:
        """Options from a file, with `changes` made on top: TOML (.toml), JSON (.json), or lines as of a script (.conf).

        In TOML and JSON options stand at the top level or in tables named after their group:

            seed = 1
            [training]
            epochs = 3

        Lines are calls, with PopTorch's names or tileflow's (docs/poptorch.md); they are parsed and never executed:

            deviceIterations(4)
            Training.gradientAccumulation(8)
            outputMode(poptorch.OutputMode.Sum)

        Raises OptionError where the file cannot be read or parsed, or holds an unknown or wrong option.
        """
        content, changes = options_file.read(path, cls.declared()), cls.declared().renamed(changes)
        made = cls(**{**content, **changes})
        made.__dict__["_given"].update(dict.fromkeys(content.keys() - changes.keys(), "file"))
        return made

    def tables(self, complete: bool = False) -> dict[str, dict[str, Any]]:
        """The options by group as plain values: those that differ from their defaults, or all but those that are None."""
        tables: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
        for name, d in self.declared().items():
            value = getattr(self, name)
            if value is not None and (complete or value != d.default):
                tables[d.group][name] = _plain(value)
        return tables

    def save(self, path: str | os.PathLike[str], comment: str = "") -> None:
        """Write the options that differ from their defaults as a TOML file that `load` and --options read; OptionError where it cannot be."""
        try:
            replace_by(path, [toml.dumps(self.tables(), comment).encode()])
        except (OSError, UnicodeEncodeError) as error:
            raise OptionError(f"Options file {path} cannot be written ({getattr(error, 'strerror', None) or error}).") from None


def by_any_name(made: Callable[..., None]) -> Callable[..., None]:
    """The initializer that dataclasses made, for keywords by names that options had before as well."""
    @functools.wraps(made)
    def initialize(self: Settings, **values: Any) -> None:
        made(self, **self.declared().renamed(values))
    return initialize


def _again(kind: type[Any], values: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """Settings out of a pickle."""
    made = kind(**values)
    made.__dict__["_given"] = dict(given)
    return made


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return {name: _plain(item) for name, item in value.items()} if isinstance(value, Mapping) else value
