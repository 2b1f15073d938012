"""Commands that are printed to be tried next: complete, and quoted so that a shell takes them as they stand."""
from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from ..options import Options, declarations
from ..uses import used_by

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
