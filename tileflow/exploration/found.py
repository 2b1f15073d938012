"""What an exploration found, and the files that hold it."""
from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

from ..system.errors import Interrupted, ReportError
from ..system.files import REMEDIES, atomic_write_bytes, remedy
from ..system.version import VERSION
from . import picture, text
from .point import Points

SCHEMA_VERSION = 1
TABLE, DATA, PICTURE = "explore.csv", "explore.json", "explore.svg"


class Exploration(Points):
    """The points of an exploration, as text, picture, data and files."""

    def to_text(self) -> str:
        """The table for a terminal."""
        return text.render(self)

    def to_svg(self) -> str:
        """The picture: samples per second over bytes on the fullest tile, with the front."""
        return picture.render(self)

    def to_csv(self) -> str:
        """A line for each point: the axes' values, its state, the figures, whether it is on the front, the reason."""
        best = {id(p) for p in self.front}
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        columns = {name: values for name, values in self.columns().items() if name != "reason"}
        writer.writerow([*columns, "front", "reason"])
        for p, *row in zip(self.points, *columns.values(), strict=True):
            writer.writerow([*("" if v is None else v for v in row), int(id(p) in best), p.reason])
        return out.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as explore.json has them; `front` and `best` are numbers of points."""
        number = {id(p): i for i, p in enumerate(self.points)}
        best = None if self.best is None else number[id(self.best)]
        return {"schema": SCHEMA_VERSION, "tileflow": VERSION, "model": self.model, "axes": self.axes, "settings": self.settings,
                "complete": self.complete, "points": [p.to_dict() for p in self.points], "front": [number[id(p)] for p in self.front], "best": best}

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write explore.csv, explore.json and explore.svg into a folder (made if need be), each whole or not at all; returns it.

        Raises:
            ReportError: it cannot be made or written to.
        """
        where = made(folder)
        data = json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"
        for name, content in ((TABLE, self.to_csv()), (DATA, data), (PICTURE, self.to_svg())):
            atomic_write_bytes(where / name, content.encode("utf-8", "replace"))
        return where


def made(folder: str | os.PathLike[str]) -> Path:
    """The folder, made if need be; ReportError where it cannot be."""
    where = Path(folder)
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        said = remedy(where, error) if error.errno in REMEDIES else "choose another folder"
        raise ReportError(f"Cannot make the folder {where} ({error.strerror or error}); {said}.") from None
    return where


class ExplorationInterrupted(Interrupted):
    """Ctrl-C during an exploration: `exploration` has the points that were done."""

    def __init__(self, sentence: str, exploration: Exploration) -> None:
        super().__init__(sentence)
        self.exploration = exploration
