"""Name patterns of weights: `*` and `?`."""
from __future__ import annotations

import fnmatch
from collections.abc import Iterable


def matches(name: str, patterns: Iterable[str]) -> bool:
    """One of the patterns fits the name."""
    return any(fnmatch.fnmatchcase(str(name), p) for p in patterns)
