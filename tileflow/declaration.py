"""What is known about one option, declared once: the source of its flag, of its checks and of its help."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .errors import OptionError
from .kinds import Kind


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
    """Names that it had before, taken wherever its name is."""

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
            raise OptionError(f"Option {self.name} must be {self.expected}, not {value!r}.") from None

    def parse(self, text: str) -> Any:
        """A command-line word to a checked value; OptionError where it is not one."""
        try:
            value = self.kind.parse(text)
        except ValueError:
            raise OptionError(f"Option {self.name} ({self.flag}) must be {self.kind.expected}, not {text!r}.") from None
        return self.check(value)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def declared(default: Any, kind: Kind, group: str, help: str, optional: bool = False, aliases: tuple[str, ...] = ()) -> Any:
    """Declare an option. `optional` lets it be None; `aliases` are names that it had before."""
    checked = default if default is None else kind.check(default)
    return field(default_factory=lambda: checked,
                 metadata={"default": checked, "kind": kind, "group": group, "help": help, "optional": optional, "aliases": aliases})
