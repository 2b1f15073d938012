"""The machine code that Images name, from the cache."""
from __future__ import annotations

from collections.abc import Sequence

from ..kernels.machine import stored


def addresses(names: Sequence[str]) -> list[int] | None:
    """Where the kernels of these names are; None where the cache lacks one."""
    found = [stored.load(name) for name in names]
    return None if None in found else [code.address for code in found if code is not None]
