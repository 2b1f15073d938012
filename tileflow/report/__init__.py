"""Reports of the tile machine: report.json, and text, page and trace made from it."""
from __future__ import annotations

import os
from pathlib import Path

from ..errors import ReportError
from . import page, text, trace
from .json import FILE, SCHEMA_VERSION, Report, build, load, to_text, validate


def write(report: Report, folder: str | os.PathLike[str]) -> Path:
    """Write report.json, page.html and trace.json into a folder (made if need be); returns it.

    Raises:
        ReportError: it cannot be made or written to.
    """
    where = Path(folder)
    try:
        where.mkdir(parents=True, exist_ok=True)
        for name, content in ((FILE, to_text(report)), (page.FILE, page.render(report)), (trace.FILE, trace.to_text(report))):
            part = where / f".{name}.part"
            part.write_text(content, encoding="utf-8")
            part.replace(where / name)
    except OSError as error:
        raise ReportError(f"Cannot write the report to {where} ({error.strerror or error}); choose another folder with --report.") from None
    return where


__all__ = ["FILE", "SCHEMA_VERSION", "Report", "build", "load", "page", "text", "trace", "validate", "write"]
