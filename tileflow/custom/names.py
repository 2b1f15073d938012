"""Which operators of users' own this process has, and what tells the code of each from another's."""

from __future__ import annotations

from collections.abc import Callable

DECLARED: dict[str, Callable[[], str | None]] = {}
"""By name in the registry: gives a digest of its code as it is now; None: nobody can tell."""


def code_of(name: str) -> str:
    """The digest of one; "" where nobody can tell."""
    return (DECLARED[name]() if name in DECLARED else None) or ""


def codes() -> dict[str, str] | None:
    """The digests of all by name; None where nobody can tell of one."""
    found = {name: code() for name, code in sorted(DECLARED.items())}
    return None if None in found.values() else {name: code for name, code in found.items() if code is not None}
