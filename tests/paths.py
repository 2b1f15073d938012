"""The CPU paths that tests run on: the fastest of this machine at every change, the others in `make check`."""
from __future__ import annotations

from typing import Any

import pytest

from tileflow.kernels.isa import cpu

FASTEST = cpu.available()[0]
exhaustive = pytest.mark.exhaustive


def on(path: str, *values: Any) -> Any:
    """A parameter set that starts with the path's name."""
    return pytest.param(path, *values, marks=() if path == FASTEST else exhaustive)


def rare(*values: Any, **options: Any) -> Any:
    """A parameter set for `make check`."""
    return pytest.param(*values, marks=exhaustive, **options)


PATHS = [on(path) for path in cpu.available()]
"""The names of all paths of this machine, for `parametrize`."""


def entry(path: cpu.Cpu, *values: Any, quick: bool = True) -> Any:
    """A parameter set that starts with a path or a variant of one: the fastest in vectors and its tiles at every change, if `quick`."""
    fastest = cpu.PATHS[FASTEST]
    at_each_change = quick and path.name == fastest.name and not path.half and (bool(path.tiles) or path.pairs == fastest.pairs)
    return pytest.param(path, *values, id="-".join([path.label, *map(str, values)]), marks=() if at_each_change else exhaustive)
