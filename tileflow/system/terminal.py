"""The one way to a person's terminal: everything that the commands print goes through `say`."""
from __future__ import annotations

import sys
from typing import TextIO

from .text import printable


def say(text: object = "", file: TextIO | None = None) -> None:
    """Print a text of one or more lines, on standard output unless `file` is another stream: printable characters only, and those that the
    stream's encoding lacks as escapes."""
    stream = file or sys.stdout
    stream.write(encodable(printable(text), stream) + "\n")
    stream.flush()


def encodable(text: str, stream: TextIO) -> str:
    """The text with an escape such as \\u00e9 for each character that the stream cannot take."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
