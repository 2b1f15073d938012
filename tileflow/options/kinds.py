"""Kinds of option values: what an option takes, in its normal form, and how a command-line word becomes one."""
from __future__ import annotations

import math
import numbers
import operator
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

LARGEST = 2 ** 63 - 1
"""The largest whole number: rows of a program, files and other processes have 64 bits for one."""


class Kind:
    """What values an option takes. `check` raises ValueError; `expected` completes 'Option x must be …'."""

    metavar = "VALUE"

    @property
    def expected(self) -> str:
        raise NotImplementedError

    def check(self, value: Any) -> Any:
        """The value in its normal form."""
        raise NotImplementedError

    def parse(self, text: str) -> Any:
        """A command-line word to a value; still to be checked."""
        return text

    def text(self, value: Any) -> str:
        """The word that `parse` takes for a value; a value that has none gives a word for another one, or for none."""
        if isinstance(value, Mapping):
            return ",".join(f"{name}={self.text(item)}" for name, item in value.items())
        if isinstance(value, (list, tuple)):
            return ",".join(map(self.text, value))
        return repr(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Range:
    """Bounds of a number: least <= x <= most, above < x < below."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def __contains__(self, x: float) -> bool:
        return ((self.least is None or x >= self.least) and (self.most is None or x <= self.most)
                and (self.above is None or x > self.above) and (self.below is None or x < self.below))

    def __str__(self) -> str:
        words = {"at least": self.least, "at most": self.most, "above": self.above, "below": self.below}
        return " and ".join(f"{word} {x:g}" for word, x in words.items() if x is not None)


def _within(noun: str, bounds: Range) -> str:
    return f"{noun}, {bounds}".rstrip(", ")


@dataclass(frozen=True)
class Integer(Kind):
    """A whole number (NumPy's too; not a bool)."""

    bounds: Range = Range()
    metavar = "N"

    @property
    def expected(self) -> str:
        return _within("a whole number", self.bounds)

    def check(self, value: Any) -> int:
        if isinstance(value, bool):
            raise ValueError
        try:
            number = operator.index(value)
        except TypeError:
            raise ValueError from None
        if number not in self.bounds or not -LARGEST <= number <= LARGEST:
            raise ValueError
        return number

    def parse(self, text: str) -> Any:
        return int(text)


@dataclass(frozen=True)
class IoTiles(Kind):
    """How many tiles are set aside for I/O: none, or as many as the reference takes."""

    expected = "0, or an even number between 32 and 192"
    metavar = "N"

    def check(self, value: Any) -> int:
        number = Integer().check(value)
        if number and (number % 2 or not 32 <= number <= 192):
            raise ValueError
        return number

    def parse(self, text: str) -> Any:
        return int(text)


@dataclass(frozen=True)
class OneOf(Kind):
    """One of a few whole numbers."""

    numbers: tuple[int, ...]

    @property
    def metavar(self) -> str:          # type: ignore[override]
        return "{" + ",".join(map(str, self.numbers)) + "}"

    @property
    def expected(self) -> str:
        return " or ".join(map(str, self.numbers))

    def check(self, value: Any) -> int:
        number = Integer().check(value)
        if number not in self.numbers:
            raise ValueError
        return number

    def parse(self, text: str) -> Any:
        return int(text)


@dataclass(frozen=True)
class Number(Kind):
    """A real number, finite unless `infinite` says that infinity is one, too."""

    bounds: Range = Range()
    infinite: bool = False
    metavar = "X"

    @property
    def expected(self) -> str:
        return _within("a number", self.bounds) + (" (inf for no bound)" if self.infinite else "")

    def check(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise ValueError
        try:
            number = float(value)
        except OverflowError:
            raise ValueError from None
        if not (math.isfinite(number) or (self.infinite and math.isinf(number))) or number not in self.bounds:
            raise ValueError
        return number

    def parse(self, text: str) -> Any:
        return float(text)


COUNT = Integer(Range(least=1))
NOT_NEGATIVE = Number(Range(least=0))


@dataclass(frozen=True)
class Numbers(Kind):
    """A list of numbers; a single number counts as a list of one. `count` None: any length."""

    each: Number = Number()
    count: int | None = None
    metavar = "X,X"

    @property
    def expected(self) -> str:
        many = "numbers" if self.count is None else f"{self.count} numbers"
        return f"{many}, each {self.each.bounds}".removesuffix(", each ")

    def check(self, value: Any) -> tuple[float, ...]:
        items = _listed([value] if isinstance(value, numbers.Real) else value)
        if self.count is not None and len(items) != self.count:
            raise ValueError
        return tuple(self.each.check(item) for item in items)

    def parse(self, text: str) -> Any:
        return [float(word) for word in text.split(",")]


@dataclass(frozen=True)
class Integers(Kind):
    """A list of whole numbers; a single number counts as a list of one."""

    each: Integer = Integer()
    metavar = "N,N"

    @property
    def expected(self) -> str:
        return f"whole numbers, each {self.each.bounds}".removesuffix(", each ")

    def check(self, value: Any) -> tuple[int, ...]:
        return tuple(self.each.check(item) for item in _listed([value] if isinstance(value, numbers.Real) else value))

    def parse(self, text: str) -> Any:
        return [int(word) for word in text.split(",")]


@dataclass(frozen=True)
class Choice(Kind):
    """One word out of a few. `spellings`: other words, and whole numbers as words, that are taken for one of them."""

    words: tuple[str, ...]
    spellings: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def metavar(self) -> str:          # type: ignore[override]
        return "{" + ",".join(self.words) + "}"

    @property
    def expected(self) -> str:
        return "one of " + ", ".join(map(repr, self.words))

    def check(self, value: Any) -> str:
        if self.spellings and isinstance(value, numbers.Integral) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            raise ValueError
        word = self.spellings.get(value, value)
        if word not in self.words:
            raise ValueError
        return word


@dataclass(frozen=True)
class Flag(Kind):
    """True or false."""

    expected = "true or false"

    def check(self, value: Any) -> bool:
        if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
            raise ValueError
        return bool(value)


@dataclass(frozen=True)
class Duration(Kind):
    """A time above 0: seconds, a text such as 90s, 10m, 1h30m or 2d, or a `datetime.timedelta`. Kept as seconds."""

    expected = "seconds, or a time such as 90s, 10m or 1h30m"
    metavar = "TIME"

    def check(self, value: Any) -> float:
        if isinstance(value, str):
            value = self.parse(value)
        return Number(Range(above=0)).check(value.total_seconds() if hasattr(value, "total_seconds") else value)

    def parse(self, text: str) -> Any:
        found = re.fullmatch(r"(?=\d)(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9}(?:\.\d{1,9})?)s?)?", text)
        if found is None:
            raise ValueError
        return sum(float(n or 0) * seconds for n, seconds in zip(found.groups(), (86400, 3600, 60, 1), strict=True))


@dataclass(frozen=True)
class Text(Kind):
    """A text that is not empty."""

    expected = "a text that is not empty"
    metavar = "NAME"

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError
        return value


@dataclass(frozen=True)
class Machine(Kind):
    """The name or file of a chip, a `tileflow.tiles.hardware.chip.Chip`, or a table of one's constants. What it means is checked where it is used."""

    expected = "the name of a chip, a .toml file, a Chip or a table of its constants"
    metavar = "CHIP"

    def check(self, value: Any) -> Any:
        if isinstance(value, Mapping) and value:
            return MappingProxyType(dict(value))
        if hasattr(value, "bytes_per_tile") and hasattr(value, "to_dict"):
            return value
        path = os.fspath(value) if isinstance(value, os.PathLike) else value
        if not isinstance(path, str) or not path:
            raise ValueError
        return path


@dataclass(frozen=True)
class FilePath(Kind):
    """A path, kept as text. `flag`: true is accepted as well and means "the usual place"."""

    flag: bool = False
    metavar = "PATH"

    @property
    def expected(self) -> str:
        return "a path, true or false" if self.flag else "a path"

    def check(self, value: Any) -> str | bool:
        if self.flag and isinstance(value, bool):
            return value
        if not isinstance(value, (str, os.PathLike)):
            raise ValueError
        path = os.fspath(value)
        if not isinstance(path, str) or not path or "\0" in path:
            raise ValueError
        return path


@dataclass(frozen=True)
class Names(Kind):
    """A list of names or name patterns; a single text counts as a list of one."""

    expected = "a list of texts"
    metavar = "NAME,NAME"

    def check(self, value: Any) -> tuple[str, ...]:
        items = _listed([value] if isinstance(value, str) else value)
        if not all(isinstance(item, str) and item for item in items):
            raise ValueError
        return tuple(items)

    def parse(self, text: str) -> Any:
        return [word.strip() for word in text.split(",") if word.strip()]


@dataclass(frozen=True)
class Sizes(Kind):
    """Dimension names to sizes."""

    expected = "a table of dimension names and sizes of at least 1, such as {batch = 4}"
    metavar = "DIM=N,DIM=N"

    def check(self, value: Any) -> Mapping[str, int]:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
            raise ValueError
        return MappingProxyType({name: COUNT.check(size) for name, size in value.items()})

    def parse(self, text: str) -> Any:
        pairs = [word.split("=") for word in text.split(",")]
        return {name.strip(): int(size) for name, size in pairs}


@dataclass(frozen=True)
class Proportions(Kind):
    """A share of at least 0 and at most 1, or shares by name pattern: the first pattern that matches counts."""

    expected = "a number from 0 to 1, or a table of name patterns and such numbers, such as {\"conv1*\" = 0.1, \"*\" = 0.3}"
    metavar = "X|NAME=X,NAME=X"
    _share = Number(Range(least=0, most=1))

    def check(self, value: Any) -> float | Mapping[str, float]:
        if isinstance(value, Mapping):
            return _by_pattern(value, self._share.check)
        return self._share.check(value)

    def parse(self, text: str) -> Any:
        return {name: float(x) for name, x in _pairs(text).items()} if "=" in text else float(text)


@dataclass(frozen=True)
class Counts(Kind):
    """A whole number of at least 1, or such numbers by one of a few names."""

    names: tuple[str, ...]
    metavar = "N|NAME=N,NAME=N"

    @property
    def expected(self) -> str:
        return f"a whole number of at least 1, or a table of such numbers by name ({', '.join(self.names)}), such as {{{self.names[0]} = 100}}"

    def check(self, value: Any) -> int | Mapping[str, int]:
        if isinstance(value, Mapping):
            if not set(value) <= set(self.names):
                raise ValueError
            return _by_pattern(value, COUNT.check)
        return COUNT.check(value)

    def parse(self, text: str) -> Any:
        return {name: int(n) for name, n in _pairs(text).items()} if "=" in text else int(text)


@dataclass(frozen=True)
class Partials(Kind):
    """The element type of partial sums, or types by name pattern: the first pattern that matches counts."""

    expected = "float32 or float16, or a table of name patterns and such types, such as {\"conv1*\" = \"float16\"}"
    metavar = "TYPE|NAME=TYPE,NAME=TYPE"
    _type = Choice(("float32", "float16"))

    def check(self, value: Any) -> str | Mapping[str, str]:
        if isinstance(value, Mapping):
            return _by_pattern(value, self._type.check)
        return str(self._type.check(value))

    def parse(self, text: str) -> Any:
        return dict(_pairs(text)) if "=" in text else text


@dataclass(frozen=True)
class ParamGroups(Kind):
    """Groups of parameters with settings of their own: tables with `params`, a name pattern or several. What the settings mean is checked by
    the optimizer that has them."""

    expected = ("a list of tables such as {params = \"*.bias\", weight_decay = 0}; on the command line PATTERN|PATTERN:NAME=X,NAME=X;PATTERN:NAME=X "
                "with true, false, a number or X/X")
    metavar = "PATTERN:NAME=X;..."
    _number = Number(infinite=True)

    def check(self, value: Any) -> tuple[Mapping[str, Any], ...]:
        return tuple(self._group(item) for item in _listed([value] if isinstance(value, Mapping) else value))

    def _group(self, item: Any) -> Mapping[str, Any]:
        if not isinstance(item, Mapping) or "params" not in item or not all(isinstance(name, str) for name in item):
            raise ValueError
        found: dict[str, Any] = {"params": Names().check(item["params"])}
        if not found["params"]:
            raise ValueError
        for name, x in item.items():
            if name == "name":
                found[name] = Text().check(x)
            elif name != "params":
                found["lr" if name == "learning_rate" else name] = self._setting(x)
        return MappingProxyType(found)

    def _setting(self, x: Any) -> Any:
        if isinstance(x, bool):
            return x
        return tuple(map(self._number.check, x)) if isinstance(x, (list, tuple)) else self._number.check(x)

    def parse(self, text: str) -> Any:
        return [self._parsed(word) for word in text.split(";") if word.strip()]

    def _parsed(self, text: str) -> dict[str, Any]:
        patterns, _, settings = text.rpartition(":")
        found: dict[str, Any] = {"params": [p.strip() for p in patterns.split("|") if p.strip()]}
        for name, word in _pairs(settings).items():
            found[name] = word if name == "name" else {"true": True, "false": False}.get(word)
            if found[name] is None:
                numbers = [float(x) for x in word.split("/")]
                found[name] = numbers if len(numbers) > 1 else numbers[0]
        return found

    def text(self, value: Any) -> str:
        return ";".join(f"{'|'.join(g['params'])}:{','.join(f'{n}={_setting_text(x)}' for n, x in g.items() if n != 'params')}" for g in value)


def _setting_text(x: Any) -> str:
    if isinstance(x, (list, tuple)):
        return "/".join(map(repr, x))
    return str(x).lower() if isinstance(x, bool) else x if isinstance(x, str) else repr(x)


SIZED, RETRIEVALS = ("consecutive", "orthogonal"), ("one_per_group", "all_replicas")
"""Types of groups of replicas that have a size, and what a user gets of what they share: the first by default."""
SERIAL_MODES = ("input_channels", "reducing_dim", "output_channels")


@dataclass(frozen=True)
class SerialSplits(Kind):
    """Name patterns of matmuls to "mode:factor", the dimension that is cut and into how many pieces."""

    expected = f"a table of name patterns and MODE:FACTOR, such as {{\"fc1\" = \"output_channels:4\"}}, with mode {' or '.join(SERIAL_MODES)}"
    metavar = "NAME=MODE:N,NAME=MODE:N"

    def check(self, value: Any) -> Mapping[str, str]:
        if not isinstance(value, Mapping):
            raise ValueError
        return _by_pattern(value, lambda text: "{}:{}".format(*serial_split(text)))

    def parse(self, text: str) -> Any:
        return _pairs(text)


@dataclass(frozen=True)
class WordsByName(Kind):
    """Names or name patterns to one word each."""

    noun: str
    words: tuple[str, ...]
    example: str
    names: tuple[str, ...] = ()
    """The only names; none: any."""
    metavar = "NAME=WORD,NAME=WORD"

    @property
    def expected(self) -> str:
        names = f" ({', '.join(self.names)})" if self.names else ""
        return f"a table of {self.noun}{names} and one of {', '.join(self.words)}, such as {self.example}"

    def check(self, value: Any) -> Mapping[str, str]:
        if not isinstance(value, Mapping) or (self.names and not set(value) <= set(self.names)):
            raise ValueError
        return _by_pattern(value, Choice(self.words).check)

    def parse(self, text: str) -> Any:
        return _pairs(text)


@dataclass(frozen=True)
class Groupings(Kind):
    """Name patterns of parameters to "type:size:retrieval", which replicas share them; the first pattern that matches counts."""

    expected = ("a table of name patterns and TYPE:SIZE, such as {\"head.*\" = \"consecutive:2\"}, with type consecutive or orthogonal; or all or "
                f"no_grouping without a size; and :{' or :'.join(RETRIEVALS)} behind")
    metavar = "NAME=TYPE:N,NAME=TYPE:N"

    def check(self, value: Any) -> Mapping[str, str]:
        if not isinstance(value, Mapping):
            raise ValueError

        def normal(text: Any) -> str:
            kind, size, retrieval = grouping(text)
            words = [kind, *([str(size)] if kind in SIZED else []), *([retrieval] if retrieval != RETRIEVALS[0] else [])]
            return ":".join(words)
        return _by_pattern(value, normal)

    def parse(self, text: str) -> Any:
        return _pairs(text)


def grouping(text: Any) -> tuple[str, int, str]:
    """"type:size:retrieval" to its parts, what may be left out filled in; ValueError where it is not one."""
    if not isinstance(text, str):
        raise ValueError
    kind, *more = text.split(":")
    retrieval = more.pop() if more and more[-1] in RETRIEVALS else RETRIEVALS[0]
    if kind in SIZED:
        if len(more) != 1 or not (more[0].isascii() and more[0].isdecimal()) or int(more[0]) < 1:
            raise ValueError
        return kind, int(more[0]), retrieval
    if kind not in ("all", "no_grouping") or more:
        raise ValueError
    return kind, 1, retrieval


def serial_split(text: Any) -> tuple[str, int]:
    """"mode:factor" to its two parts; ValueError where it is not one."""
    if not isinstance(text, str):
        raise ValueError
    mode, _, factor = text.partition(":")
    if mode not in SERIAL_MODES or not factor.isdecimal() or int(factor) < 1:
        raise ValueError
    return mode, int(factor)


def _pairs(text: str) -> dict[str, str]:
    """"name=value,name=value" as a table; a name may hold "=", a value not."""
    pairs = [word.rpartition("=") for word in text.split(",")]
    return {name.strip(): value.strip() for name, _, value in pairs}


def _by_pattern(value: Mapping[Any, Any], check: Callable[[Any], Any]) -> Mapping[str, Any]:
    if not all(isinstance(name, str) and name for name in value):
        raise ValueError
    return MappingProxyType({name: check(item) for name, item in value.items()})


def _listed(value: Any) -> list[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise ValueError
    return list(value)
