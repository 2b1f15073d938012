"""What is known about one option, declared once: the source of its flag, of its checks and of its help; and all of them, found by any name."""
from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..system.errors import OptionError
from ..system.text import shown
from .kinds import Kind
from .spellings import KNOWN_AS, NOT_YET

GROUPS = {
    "batching": "Batching",
    "training": "Training",
    "optimizer": "Optimizer",
    "data": "Data",
    "execution": "Execution over several IPUs (what is computed does not depend on it)",
    "machine": "Tile machine (what train computes does not depend on it, but for serialized_matmul)",
    "run": "Run",
}
"""Groups of options and their titles; an options file may use them as tables."""
MODEL_TABLE = "model"
"""A table that an options file may hold and that is no group: a run folder's file names the run's model there."""


@dataclass(frozen=True)
class Declaration:
    """One option."""

    name: str
    default: Any
    kind: Kind
    group: str
    help: str
    optional: bool
    aliases: tuple[str, ...] = ()
    """Names that it had before, or has elsewhere too, taken wherever its name is."""
    common: bool = False
    """Most runs set it, so that a command's --help shows it; the others stand in --help all."""

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return _flag(self.name)

    @property
    def old_flags(self) -> tuple[str, ...]:
        """The flags of the names that it had before."""
        return tuple(map(_flag, self.aliases))

    @property
    def expected(self) -> str:
        return self.kind.expected + (" or None" if self.optional else "")

    def check(self, value: Any) -> Any:
        """The value in its normal form; OptionError where it is not one."""
        if value is None and self.optional:
            return None
        try:
            return self.kind.check(value)
        except ValueError:
            raise OptionError(f"Option {self.name} must be {self.expected}, not {shown(value)}.") from None

    def parse(self, text: str) -> Any:
        """A command-line word to a checked value; OptionError where it is not one."""
        try:
            value = self.kind.parse(text)
        except ValueError:
            raise OptionError(f"Option {self.name} ({self.flag}) must be {self.kind.expected}, not {shown(text)}.") from None
        return self.check(value)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def declared(default: Any, kind: Kind, group: str, help: str, optional: bool = False, aliases: tuple[str, ...] = (), common: bool = False) -> Any:
    """Declare an option. `optional` lets it be None; `aliases` are its other names; `common` shows it in a command's short help."""
    checked = default if default is None else kind.check(default)
    return field(default_factory=lambda: checked, metadata={
        "default": checked, "kind": kind, "group": group, "help": help, "optional": optional, "aliases": aliases, "common": common})


class Declarations(Mapping[str, Declaration]):
    """The declarations of a class's options by name, in its order."""

    def __init__(self, made: Iterable[Declaration]) -> None:
        self._by_name = {d.name: d for d in made}
        self._current = {old: d.name for d in self._by_name.values() for old in d.aliases}

    @classmethod
    def of(cls, options: type) -> Declarations:
        """Those of a dataclass whose fields are all `declared`."""
        return cls(Declaration(f.name, **f.metadata) for f in dataclasses.fields(options))

    def __getitem__(self, name: str) -> Declaration:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def now(self, name: str) -> str:
        """What an option is called now, by any name that it has or had; a name that is none stays as it is."""
        return self._current.get(name, name)

    def find(self, name: str) -> Declaration:
        """The declaration of what is or was called `name`; OptionError with the nearest names where there is none."""
        found = self._by_name.get(self.now(name))
        if found is None:
            if name.lower() in NOT_YET:
                raise OptionError(f"There is no option {name!r} yet; {NOT_YET[name.lower()]}.")
            near = self.near(name)
            hint = f"did you mean {' or '.join(near)}?" if near else f"the options are {', '.join(self)}."
            raise OptionError(f"There is no option {name!r}; {hint}")
        return found

    def near(self, name: str) -> list[str]:
        """Options that somebody may have meant by a name that is none: what others call it, else what is spelled alike."""
        known = KNOWN_AS.get(name.lower())
        return [known] if known is not None else difflib.get_close_matches(name, self, n=3)

    def renamed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Options by what they are called now; names that are none stay as they are. OptionError where one is set by two of its names."""
        current: dict[str, Any] = {}
        for name, value in values.items():
            now = self.now(name)
            if now in current:
                raise OptionError(f"Option {now} is set twice: it is also called {', '.join(self[now].aliases)}.")
            current[now] = value
        return current
