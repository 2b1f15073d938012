"""Reports of the tile machine: report.json, and text, page, trace and comparisons made from it."""
from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..system.errors import ReportError
from ..system.files import replace_by

if TYPE_CHECKING:
    from . import compare, page, text, trace
    from .json import FILE, SCHEMA_VERSION, Report, build, load, validate

OF_JSON = ("FILE", "SCHEMA_VERSION", "Report", "build", "load", "validate")
OWN = ("compare", "page", "text", "trace")


def __getattr__(name: str) -> Any:
    """What knows the tile machine; pages of training runs, which are made of the same curves and pictures, do
    without."""
    if name in OF_JSON:
        return getattr(import_module(f"{__name__}.json"), name)
    if name in OWN:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def write_both(a: Report, b: Report, names: tuple[str, str], folder: str | os.PathLike[str]) -> Path:
    """Write compare.html, a page of two reports and what differs between them, into a folder; returns the file.

    Raises:
        ReportError: it cannot be written.
    """
    from . import compare, page
    return _write(Path(folder), {page.COMPARISON: page.render_both(a, b, compare.compare(a, b, names))}) / page.COMPARISON


def write(report: Report, folder: str | os.PathLike[str]) -> Path:
    """Write report.json, page.html and trace.json into a folder (made if need be); returns it.

    Raises:
        ReportError: it cannot be made or written to.
    """
    from . import page, trace
    from .json import FILE, to_text
    return _write(Path(folder), {FILE: to_text(report), page.FILE: page.render(report), trace.FILE: trace.to_text(report)})


def _write(where: Path, files: Mapping[str, str]) -> Path:
    """Write files so that each is there whole or not at all."""
    try:
        where.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            replace_by(where / name, [content.encode()])
    except OSError as error:
        raise ReportError(f"Cannot write the report to {where} ({error.strerror or error}); choose another folder with --report.") from None
    return where


__all__ = ["FILE", "SCHEMA_VERSION", "Report", "build", "compare", "load", "page", "text", "trace", "validate", "write", "write_both"]
