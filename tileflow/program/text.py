"""A Program's structure as text, and its digest: what tells a program that nobody has read yet."""
from __future__ import annotations

import hashlib
import json
from typing import Any

MAGIC = b"tflprog1"
"""A program's file begins with it, and what its digest is of; the last byte is the version of the form."""


def text_of(structure: Any) -> bytes:
    """The one text of a structure: names in order, no spaces."""
    return json.dumps(structure, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_of_text(text: bytes) -> str:
    """The digest of the program whose structure has this text."""
    return hashlib.sha256(MAGIC + text).hexdigest()
