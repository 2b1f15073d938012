"""Notes in the cache: what earlier starts have found out, as JSON under keys that say all that it was found from,
beside the images (`store`) and under the same rules."""
from __future__ import annotations

import json
from typing import Any

from . import store

LARGEST = 1 << 20
"""Bytes of a note that is kept."""


def load(key: str) -> Any:
    """The note of a key; None where there is none that is whole."""
    data = store.read(f"note-{key}")
    try:
        return None if data is None else json.loads(data)
    except ValueError:
        return None


def save(key: str, note: Any) -> None:
    """Keep a note, whole or not at all, unless it is too large."""
    data = json.dumps(note, separators=(",", ":")).encode()
    if len(data) <= LARGEST:
        store.write(f"note-{key}", data)
