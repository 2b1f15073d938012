"""A pytest plugin under which every call of a leaf runs in the emulator, once against pages after its arrays and once against pages before."""
from __future__ import annotations

import functools

import emulator
from tileflow.kernels.isa import cpu
from tileflow.kernels.machine.leaf import Leaf


def pytest_configure() -> None:
    cpu.tiles_granted = lambda: True         # type: ignore[assignment]    # the emulator's tiles need nobody's leave
    Leaf.__call__ = functools.partialmethod(emulator.run, against="both")         # type: ignore[assignment, method-assign]
