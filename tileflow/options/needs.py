"""What an option needs to have an effect: other options at certain values. An unmet one says how a sentence goes on."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


class Need:
    """A need of an option. `options` are an Options, which is made of declarations that have needs."""

    def wanted(self) -> str:
        """What the option is for: "it is for …"."""
        raise NotImplementedError

    def met(self, options: Any, verb: str) -> bool:
        raise NotImplementedError

    def missing(self, options: Any) -> str:
        """What is not so: "has no effect …"."""
        raise NotImplementedError


@dataclass(frozen=True)
class With(Need):
    """Another option has one of these values."""

    option: str
    values: tuple[str, ...]

    def wanted(self) -> str:
        return joined(self.values)

    def met(self, options: Any, verb: str) -> bool:
        return getattr(options, self.option) in self.values

    def missing(self, options: Any) -> str:
        return f"with the {self.option} {getattr(options, self.option)}"


@dataclass(frozen=True)
class Provided(Need):
    """A condition, test(options, verb), and the words for it: what is not so, and what the option is for."""

    test: Callable[[Any, str], bool]
    unmet: str
    purpose: str

    def wanted(self) -> str:
        return self.purpose

    def met(self, options: Any, verb: str) -> bool:
        return self.test(options, verb)

    def missing(self, options: Any) -> str:
        return self.unmet


def joined(words: Iterable[str]) -> str:
    """a, b and c."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
