"""Which operators of users' own this process has, and what tells the code of each from another's."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterable, Iterator

PYTHON = f"{sys.implementation.cache_tag} {sys.platform} {platform.machine()}"
"""Whose digests of one code are the same."""
DECLARED: dict[str, Callable[[], str | None]] = {}
"""By name in the registry: gives a digest of its code as it is now; None: nobody can tell."""


def code_of(name: str) -> str:
    """The digest of one; "" where nobody can tell."""
    return (DECLARED[name]() if name in DECLARED else None) or ""


def codes() -> dict[str, str] | None:
    """The digests of all by name; None where nobody can tell of one."""
    found = {name: code() for name, code in sorted(DECLARED.items())}
    return None if None in found.values() else {name: code for name, code in found.items() if code is not None}


def comparable(names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The digests of some by name, for a file that another Python may read; of those of which somebody can tell."""
    return tuple((name, f"{PYTHON} {code}") for name in names if (code := code_of(name)))


def differing(codes: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Those whose code was another one when `comparable` gave these; of another Python's nobody can tell."""
    for name, told in codes:
        there, _, code = told.rpartition(" ")
        if there == PYTHON and code_of(name) not in ("", code):
            yield name
