"""Commands that are printed to be tried next: complete, and quoted so that a shell takes them as they stand."""
from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..options.options import Options, declarations
from ..options.uses import used_by
from ..system.errors import OutOfTileMemoryError
from ..system.terminal import say

if TYPE_CHECKING:
    from ..tiles.tiled import TileProgram

MOST = 3
"""Commands that are suggested."""
IN_THE_FILE = ("scale", "mean", "std")
"""What a trained file knows by itself."""
OF_INFER = tuple(d.name for d in used_by("infer") if d.name not in (*IN_THE_FILE, "device_iterations", "gradient_accumulation", "threads", "progress",
                                                                    "out", "data"))


def command(name: str, model: str | Path, *words: str) -> str:
    """A command over a model."""
    path = str(model)
    return shlex.join(["tileflow", name, f"./{path}" if path.startswith("-") else path, *words])


def flags(options: Options, names: Iterable[str]) -> list[str] | None:
    """The flags that give these options, but for those at their defaults; None where a value has no form as a flag."""
    words = []
    for name in names:
        declaration, value = declarations()[name], getattr(options, name)
        if value == declaration.default or value is None:
            continue
        if isinstance(value, bool):
            words.append(declaration.flag if value else f"--no-{declaration.flag[2:]}")
            continue
        text = declaration.kind.text(value)
        try:
            if declaration.parse(text) != value:
                return None
        except ValueError:
            return None
        words += [f"{declaration.flag}={text}"] if text.startswith("-") else [declaration.flag, text]
    return words


def compiling(remedies: Iterable[Mapping[str, Any]], model: str | Path, training: bool, options: Options) -> list[str]:
    """The commands that compile a model with each of these changes of options; what has no form as flags is left out."""
    found = [flags(options.clone(**changes), names_of_compile(training)) for changes in remedies]
    return [command("compile", model, *(["--training"] if training else []), *words) for words in found if words is not None]


def say_faster(tiled: TileProgram, model: str | Path, training: bool, options: Options) -> None:
    """What to try next of a program that fits: the first levers that make it faster."""
    faster = [lever.changes for lever in tiled.levers() if lever.samples_per_second > tiled.samples_per_second][:MOST]
    for i, line in enumerate(compiling(faster, model, training, options)):
        say(f"  {line}" if i else f"\nTry next:\n  {line}")


def say_fitting(error: OutOfTileMemoryError, model: str | Path, training: bool, options: Options) -> None:
    """Note what to try next at an error of a program that does not fit."""
    lines = compiling(error.remedies, model, training, options)
    if lines:
        error.add_note("Try next:")
    for line in lines:
        error.add_note(f"  {line}")


def names_of_compile(training: bool) -> list[str]:
    """The options that say what is compiled."""
    return [d.name for d in used_by("compile") if (training or not d.for_training) and d.name != "seed"]


def infer(folder: Path, options: Options) -> str:
    """The command that gives the predictions of a run's model on the rows that the run was measured with."""
    data = options.test_data or options.data
    names = [name for name in OF_INFER if name != "seed" or options.validation_split]
    words = flags(options, names)
    if words is None:
        words = ["--options", str(folder / "run.toml")]
    return command("infer", folder / "model.onnx", *(["--data", data] if data else []), *words)


def resume(folder: Path, epochs: int) -> str:
    """The command that trains a run for more epochs."""
    return shlex.join(["tileflow", "train", "--resume", "--out", str(folder), "--epochs", str(epochs)])
