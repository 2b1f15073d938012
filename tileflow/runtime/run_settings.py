"""run.toml: every setting of a run and the model that it began with, so that the run's folder is enough to go on.

It is an options file like any other (`Options.load`, --options), with one table more, [model], that options files leave aside.
"""
from __future__ import annotations

import hashlib
import os
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..options import toml
from ..options.kinds import FilePath, Machine
from ..options.options import MODEL_TABLE, Options, declarations, read_options_file
from ..system.errors import CheckpointError, OptionError
from ..system.files import atomic_write_bytes
from ..system.reading import open_regular
from ..system.text import one_line
from .data.sources import BUILT_IN

RUN = "run.toml"


@dataclass(frozen=True)
class Recorded:
    """What a run folder keeps: options by name, the model's path and the SHA-256 of its file, where it was a file."""

    folder: Path
    options: dict[str, Any]
    model: Path | None
    sha256: str | None


def record(folder: Path, options: Options, model: Path | None) -> None:
    """Write the folder's run.toml; CheckpointError where that fails."""
    kept = options.clone()
    for d in declarations().values():
        value = getattr(kept, d.name)
        if not d.recorded or (isinstance(d.kind, Machine) and not isinstance(value, (str, type(None)))):
            setattr(kept, d.name, d.default)
        elif isinstance(d.kind, FilePath) and isinstance(value, str) and value not in BUILT_IN and os.path.exists(value):
            setattr(kept, d.name, os.path.abspath(value))
    tables = kept.tables(complete=True)
    for d in declarations().values():
        if not d.recorded:
            tables[d.group].pop(d.name, None)
    if model is not None:
        tables[MODEL_TABLE] = {"path": os.path.abspath(model), "sha256": file_digest(model) or ""}
    text = toml.dumps(tables, one_line("The settings of this run. Go on with: " + resume_command(folder)))
    atomic_write_bytes(folder / RUN, text.encode(errors="replace"), follow=False)


def recorded(folder: Path) -> Recorded | None:
    """What the folder's run.toml says; None where there is none.

    Raises:
        OptionError: the file is damaged or holds options that this tileflow does not know.
    """
    path = folder / RUN
    if not os.path.exists(path):
        return None
    options = read_options_file(path)
    model = tomllib.loads(path.read_text(encoding="utf-8")).get(MODEL_TABLE, {})
    if not isinstance(model, dict) or not all(isinstance(value, str) for value in model.values()):
        raise OptionError(f"Options file {path}: [{MODEL_TABLE}] must hold texts.")
    where = model.get("path")
    return Recorded(folder, options, None if where is None else Path(where), model.get("sha256"))


def resumed(options: Options) -> tuple[Options, Recorded | None]:
    """The options of a run that is to be resumed: what nobody gave is as its folder says; and all that the folder keeps.

    Raises:
        CheckpointError: options do not say which run.
        OptionError: the folder's run.toml cannot be read.
    """
    if options.resume is False:
        return options, None
    if isinstance(options.resume, str) and os.path.isdir(options.resume):
        options = options.clone(resume=True, out=options.out or options.resume)
    if options.resume is True and not options.out:
        raise CheckpointError("To resume a run, name its folder with out.")
    found = recorded(Path(options.resume).parent if isinstance(options.resume, str) else Path(str(options.out)))
    return (options, None) if found is None else (options.filled(found.options), found)


def file_digest(path: Path) -> str | None:
    """SHA-256 of a file; None where it cannot be read."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def resume_command(folder: Path, checkpoint: Path | None = None) -> str:
    """The command that goes on with the run in `folder`."""
    return shlex.join(["tileflow", "train", "--resume", *([str(checkpoint)] if checkpoint else []), "--out", str(folder)])
