"""A pytest plugin that writes down what calls of leaves read and computed, as digests: to compare two processes' code.

The file named by `TILEFLOW_LEAF_BITS` gets a line for each call unlike all before it: the leaf with its signature, a
digest of what it read, and one of what it left in its arrays; workers' scratch is no part of either. A call that reads
what another one computed differs by what it read, so that the leaf that computes otherwise is found, and none after it.
A leaf runs as plugins before this one have it run: as it is, or emulated.
"""
from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import emulator
import numpy as np
from emulator.layout import rows

from tileflow.kernels.dtypes import ELEMENTS
from tileflow.kernels.machine.leaf import Address, Leaf, Parameter

CALLS: dict[str, None] = {}
"""The lines so far."""
SILENT = {"f2": 0x7C00, "b2": 0x7F80}
"""Of 16-bit floats that travel as their bits: the bits of infinity, which those of NaN exceed."""


def _bytes(p: Parameter, value: Any) -> bytes:
    """What of an argument counts; NaN is one number."""
    if p.numbers:
        return repr(value.words()).encode()
    if isinstance(value, Address):
        return b"" if value.leaf is None else f"{value.leaf.name}({value.leaf.signature})".encode()
    if not isinstance(value, np.ndarray):
        return repr(value).encode()
    name = ELEMENTS[p.dtype].memory
    if p.dtype in SILENT:
        bits = value.view(np.uint16)
        return np.where((bits & 0x7FFF) > SILENT[p.dtype], np.uint16(0x7FFF), bits).tobytes()
    if np.dtype(name).kind == "f":
        return np.where(np.isnan(value), np.dtype(name).type("nan"), value).tobytes()
    return value.tobytes()


def _digest(leaf: Leaf, args: Sequence[Any]) -> str:
    whole = hashlib.sha256()
    for p, value in zip(leaf.takes(args), args, strict=True):
        if p.cut != "w":
            whole.update(_bytes(p, value) + b"\0")
    return whole.hexdigest()[:16]


def pytest_configure() -> None:
    emulator.choose()
    run: Any = Leaf.__call__

    def recorded(leaf: Leaf, *args: Any, n: int | None = None, lo: int = 0, **options: Any) -> int:
        read = _digest(leaf, args)
        status = int(run(leaf, *args, n=n, lo=lo, **options))
        name = f"{leaf.twin.__module__}.{leaf.name}({leaf.signature})"
        CALLS[f"{name}\t{lo}..{rows(leaf, args, n)} {read}\t{status} {_digest(leaf, args)}"] = None
        return status

    Leaf.__call__ = recorded                       # type: ignore[assignment, method-assign]


def pytest_unconfigure() -> None:
    Path(os.environ["TILEFLOW_LEAF_BITS"]).write_text("\n".join(CALLS))


Calls = dict[tuple[str, str], str]
"""What each call computed, by leaf and what it read."""


def read(path: Path) -> Calls:
    """The calls of a process that has ended."""
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    return {(leaf, what): found for leaf, what, found in lines}


def differing(one: Calls, other: Calls) -> set[str]:
    """The leaves that computed otherwise from the same."""
    return {call[0] for call in one.keys() & other.keys() if one[call] != other[call]}
