"""Studies of machines: chips as values, a model compiled once, many settings analysed side by side (docs/studies.md).

    from tileflow import machine

    program = machine.compile("resnet18.onnx", training=True, micro_batch_size=4, gradient_accumulation=8)
    program.on("gc200").samples_per_second                      # one chip, with all that the tile machine says
    chips = machine.grid("gc200", bytes_per_tile=[320 * 1024, 624 * 1024], exchange_bytes_per_cycle=[4, 8])
    found = program.study(chips, available_memory_proportion=[0.2, 0.6], processes=2)
    print(found.to_text())
    found.save("study")
    found.pareto(maximize="samples_per_second", minimize="bytes_per_tile")
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .api.exploration import checked, maker
from .api.models import Modelish, chosen_options, load, model_name
from .api.simulation import DEFAULT_MACHINE
from .compiler import Compilation
from .exploration import Exploration, ExplorationInterrupted, Point
from .exploration.explore import explored
from .exploration.grid import settings, values_of
from .exploration.planning import analyzed
from .exploration.search import program_key
from .options.options import Options, renamed
from .options.uses import AXES
from .system.errors import OptionError
from .system.text import one_line
from .tiles.hardware.chip import CHIPS, Chip, MatrixUnit, chip
from .tiles.hardware.energy import Energy
from .tiles.hardware.fabric import Fabric
from .tiles.machine import Analyses
from .tiles.tiled import TileProgram

if TYPE_CHECKING:
    from .exploration.search import Progress

__all__ = [
    "CHIPS",
    "Chip",
    "Energy",
    "Exploration",
    "ExplorationInterrupted",
    "Fabric",
    "MatrixUnit",
    "Point",
    "Program",
    "chip",
    "compile",
    "grid",
]

Machine = str | Path | Chip


def grid(base: Machine, **constants: Any) -> list[Chip]:
    """Every combination of values of a chip's constants: `grid("gc200", tiles=[736, 1472], bytes_per_tile=[319_488,
    638_976])` is four chips.

    Args:
        base: the chip whose other constants they have: a built-in one's name, a TOML file or a Chip.
        constants: a value or a list of values by name of `Chip`; the last one varies fastest.

    Raises:
        OptionError: there is no such chip or constant, or a value is wrong.
    """
    start = chip(base)
    lists = {name: values_of(name, given) for name, given in constants.items()}
    return [start.variant(**dict(zip(lists, values, strict=True))) for values in itertools.product(*lists.values())]


def compile(
    model: Modelish,
    options: Options | None = None,
    *,
    training: bool = False,
    inputs: Sequence[Any] | None = None,
    **changes: Any,
) -> Program:
    """Compile a model once, to be analysed on any number of chips.

    Args:
        model: an ONNX file, or a network of layers with `inputs`; options, changes: as for `tileflow.compile`.

    Raises:
        OptionError, ModelError, UnsupportedError: as `tileflow.compile` does.
    """
    chosen = chosen_options("compile", options, {"machine": DEFAULT_MACHINE, **renamed(changes)}, training)
    called = one_line(model_name(model))
    return Program(load(model) if isinstance(model, (str, os.PathLike)) else model, chosen, training, inputs, called)


class Program:
    """A compiled model.

    options: with which it was compiled; their `machine` is the chip where none is named. compilation: the program
    that chips share.
    """

    def __init__(self, model: Any, options: Options, training: bool, inputs: Sequence[Any] | None, name: str) -> None:
        self.options, self.training, self.name = options, training, name
        self._model, self._inputs = model, inputs
        self.compilation: Compilation = self._make(False)(training, options)
        self._analyses = Analyses(self.compilation.program)

    def __repr__(self) -> str:
        return (
            f"Program({self.name or 'a model'}, {'training' if self.training else 'inference'}, {self.compilation!r})"
        )

    def _make(self, batched: bool) -> Any:
        return maker(self._model, self._inputs, batched)

    def on(self, machine: Machine | None = None, **changes: Any) -> TileProgram:
        """The program on a chip, also where it does not fit: cycles, bytes per tile, plans, all that a report is made
        of.

        Args:
            machine: the options' own where there is none.
            changes: options of the tile machine that change no program, such as available_memory_proportion.

        Raises:
            OptionError: another program would have to be compiled for these options.
        """
        chosen = self.options.clone(**renamed(changes), **({} if machine is None else {"machine": machine}))
        if program_key(chosen) != program_key(self.options):
            raise OptionError(
                f"{', '.join(renamed(changes)) or 'Another machine'} would change the program itself; compile it so, "
                "or give it to study(), which compiles what it needs."
            )
        return analyzed(self.compilation, chosen, self._analyses)

    def study(
        self,
        machines: Machine | Iterable[Machine] | None = None,
        *,
        processes: int = 1,
        out: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
        **axes: Any,
    ) -> Exploration:
        """Analyse the program on chips, with every combination of settings.

        Columns are `machine`, the name, the constants in which chips of one name differ (those of `grid`), and the
        axes. A setting that fails or does not fit is a point that says why. Plans that settings have in common are
        made once in each process; an axis that changes the program (micro_batch_size, precision, ipus ...) has it
        compiled anew for each value.

        Args:
            machines: chips, names or TOML files; the options' own where there is none.
            processes: that work side by side; figures do not depend on it.
            out: folder for explore.csv, explore.json and explore.svg, also of what was done before Ctrl-C.
            progress: called with points done, how many there are, and the fastest so far.
            axes: values or lists of values of the axes of `tileflow.explore`; its other options hold for all settings.

        Raises:
            OptionError: a value is wrong, or two chips differ in nothing that a table can show.
            ExplorationInterrupted: Ctrl-C; its `exploration` has what was done.
        """
        given = renamed(axes)
        named = (
            [self.options.machine]
            if machines is None
            else [machines]
            if isinstance(machines, (str, Path, Chip))
            else list(machines)
        )
        chips = values_of("machines", [chip(one) for one in named])
        base = self.options.clone(**{name: value for name, value in given.items() if name not in (*AXES, "ipus")})
        chosen = {name: value for name, value in given.items() if name in AXES}
        told = _columns(chips)
        found = [
            dataclasses.replace(
                s,
                values={**told[s.options.machine], **{n: v for n, v in s.values.items() if n in given}},
            )
            for s in settings(base, {"training": self.training, "machine": chips, **chosen})
        ]
        checked(found, given)
        own, make = program_key(self.options), self._make("micro_batch_size" in given)

        def program(training: bool, options: Options) -> Compilation:
            return (
                self.compilation
                if (training, program_key(options)) == (self.training, own)
                else make(training, options)
            )

        return explored(self.name, found, program, out, progress, processes)


def _columns(chips: Sequence[Chip]) -> dict[Chip, dict[str, Any]]:
    """What a table says of each chip: its name, and the constants in which those of a name differ."""
    kinds = ("int", "float", "float | None", "str")
    plain = [f.name for f in dataclasses.fields(Chip) if f.type in kinds and f.name != "name"]
    by_name: dict[str, list[Chip]] = {}
    for one in chips:
        by_name.setdefault(one.name, []).append(one)
    differ = [
        name
        for name in plain
        if any(len({getattr(one, name) for one in alike} - {None}) > 1 for alike in by_name.values())
    ]
    rows = {one: {"machine": one.name, **{name: getattr(one, name) for name in differ}} for one in chips}
    if len({tuple(row.values()) for row in rows.values()}) < len(rows):
        raise OptionError(
            "Two chips have the same name and differ in no single number (in their matrix units, perhaps), so a table "
            "cannot tell them apart; give each a name: chip.variant(name=...)."
        )
    return rows
