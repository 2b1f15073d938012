"""The error tree. Every message says what is wrong, where (node, layer, ONNX operator), with which values, and how to mend it."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .text import one_line

LONGEST = 20_000
"""Characters of an error's sentence: one may list many nodes."""


def see(page: str) -> str:
    """The end of a sentence that a page of the documentation explains: `see("batching")`; "tiles#levers" names a
    heading, too."""
    name, _, heading = page.partition("#")
    return f" See docs/{name}.md{'#' if heading else ''}{heading}."


class TileflowError(Exception):
    """Anything a user can mend: the command line prints its sentence and exits with code 2. The sentence is one line of printable
    characters, whatever the names in it hold."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(one_line(a, LONGEST) if isinstance(a, str) else a for a in args))

    def add_note(self, note: str) -> None:
        super().add_note(one_line(note, LONGEST))


class TileflowWarning(UserWarning):
    """What the command says on standard error of how data and model were read, where somebody calls from Python."""


class OptionError(TileflowError, ValueError):
    """An option has a wrong type, value or combination, or an options file cannot be read."""


class ModelError(TileflowError, ValueError):
    """A model file cannot be read or is not a valid ONNX model."""


class UnsupportedError(ModelError):
    """The model uses operators, types or attributes that tileflow does not have; the message lists all of them."""


class ShapeError(TileflowError, ValueError):
    """Shapes do not fit together."""


class TypeMismatchError(TileflowError, TypeError):
    """Element types do not fit together."""


class DataError(TileflowError, ValueError):
    """Training data is missing, malformed or out of range."""


class CheckpointError(TileflowError):
    """A checkpoint cannot be written, read, or does not belong to this model."""


class TrainingError(TileflowError, RuntimeError):
    """Training cannot go on: the loss is not finite, a label is out of range."""


class WeightsLostError(TrainingError):
    """An update made a weight infinite or NaN and wrote it: what is in memory is of no use, the last checkpoint is."""


class NoUpdateError(TrainingError):
    """No update of a run's last epoch counted: its state is saved, and it is no trained model. The command line exits with code 1."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during training, after the state was saved: the message says where and how to go on."""


class ProcessError(TileflowError, RuntimeError):
    """Of processes that train together, another one has ended, has failed, or is not like this one."""


class ReportError(TileflowError, ValueError):
    """A report of the tile machine cannot be written, read, or is not one."""


class OutOfTileMemoryError(TileflowError, MemoryError):
    """A program needs more bytes on a tile than the chip has.

    tile, demand, bound: the worst tile and its bytes. contributors: (layer, bytes, bytes by category), most first.
    levers: sentences on what was tried and measured.
    """

    compilation: Any = None
    """What was compiled and analysed."""

    def __init__(self, tile: int, demand: int, bound: int, contributors: list[tuple[str, int, dict[str, int]]],
                 levers: list[str] | None, remedies: Sequence[Mapping[str, Any]] = ()) -> None:
        """levers: None where nothing was tried."""
        self._remedies = list(remedies)
        self.tile, self.demand, self.bound = tile, demand, bound
        self.contributors, self.levers = contributors, levers or []
        most = "; ".join(f"{layer} {nbytes:,} ({', '.join(f'{k} {n:,}' for k, n in kinds.items())})" for layer, nbytes, kinds in contributors)
        tried = ("Nothing was tried to make it fit." if levers is None else
                 " ".join(levers) or "Nothing that was tried makes it fit.")
        super().__init__(f"Out of tile memory: tile {tile} needs {demand:,} bytes and has {bound:,}, {demand - bound:,} too many. "
                         f"The most of it, by layer: {most}. {tried}{see('tiles')}")

    @property
    def remedies(self) -> list[Mapping[str, Any]]:
        """Options of a run, by name, with which it fits: what was tried, cheapest first."""
        return self._remedies

    @remedies.setter
    def remedies(self, found: Sequence[Mapping[str, Any]]) -> None:
        self._remedies = list(found)


class OutOfMemoryError(TileflowError, MemoryError):
    """A step needs more memory than the machine, its container or the process's limits leave; nothing was taken."""


class TileMemoryError(TileflowError, MemoryError):
    """Running tile by tile, a part of an operator needs more bytes than a tile has."""
