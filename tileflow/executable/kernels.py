"""The machine code that Images name, from the cache: once in a process."""
from __future__ import annotations

from collections.abc import Sequence

from ..kernels.machine import stored

_addresses: dict[str, int] = {}


def addresses(names: Sequence[str]) -> list[int] | None:
    """Where the kernels of these names are; None where the cache lacks one."""
    for name in names:
        if name not in _addresses:
            code = stored.load(name)
            if code is None:
                return None
            _addresses[name] = code.address
    return [_addresses[name] for name in names]
