"""The frozen list of what is measured (cases.toml): rows with their bounds and shapes, and limits that are not ratios of times."""
from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "cases.toml"


@dataclass(frozen=True)
class Row:
    """A promise about several shapes. `amx`, `plain` and `stretch` bound the geometric mean of the ratios; None: nothing is promised."""

    id: str
    case: tuple[str, ...]                 # words of the command line that measure it
    what: str
    peer: str                             # "torch", "torch fused", "onnxruntime" ...: the module, then a variant of it
    kind: str
    shapes: tuple[Mapping[str, Any], ...]
    amx: float | None = None
    plain: float | None = None
    stretch: float | None = None

    def bound(self, path: str) -> float | None:
        """The promise for a kernel path."""
        return self.amx if path == "amx" else self.plain


@dataclass(frozen=True)
class Limit:
    """A figure with a ceiling: seconds (`most`), or our figure over the peer's (`share`)."""

    id: str
    what: str
    most: float | None = None
    share: float | None = None


@dataclass(frozen=True)
class Cases:
    rows: tuple[Row, ...]
    limits: tuple[Limit, ...]
    floor: float                          # no shape of a row with a bound may be below
    threads: tuple[int, ...]

    def of(self, case: str) -> list[Row]:
        """The rows that a word of the command line measures."""
        return [row for row in self.rows if case in row.case]

    def row(self, id: str) -> Row:
        return next(row for row in self.rows if row.id == id)

    def limit(self, id: str) -> Limit:
        return next(limit for limit in self.limits if limit.id == id)


def parse(text: str) -> Cases:
    """The cases in a TOML text. Whatever a row says beside the fields of `Row` holds for each of its shapes."""
    data = tomllib.loads(text)
    known = set(Row.__dataclass_fields__)

    def row(table: Mapping[str, Any]) -> Row:
        shared = {k: v for k, v in table.items() if k not in known}
        fields = {k: v for k, v in table.items() if k in known}
        fields |= {"case": tuple(table["case"].split()), "shapes": tuple(shared | shape for shape in table["shapes"])}
        return Row(**fields)

    return Cases(tuple(map(row, data["row"])), tuple(Limit(**table) for table in data["limit"]), data["floor"], tuple(data["threads"]))


@functools.cache
def cases() -> Cases:
    """The project's own."""
    return parse(FILE.read_text())


def words(rows: Sequence[Row]) -> list[str]:
    """Every word of the command line, in order of first use."""
    return list(dict.fromkeys(word for row in rows for word in row.case))
