"""Which path the kernels are compiled for: decided by CPU features, never by the CPU's name."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from .features import features, tiles_granted, x86
from .paths import PATHS, PORTABLE, PRECISIONS, Cpu, portable

__all__ = ["PATHS", "PORTABLE", "PRECISIONS", "Cpu", "available", "current", "features", "forced", "precision"]

_forced: list[Cpu] = []
_precision: list[str] = []


def available() -> tuple[str, ...]:
    """Names of the paths this CPU can run, fastest first."""
    have = features() if x86() else frozenset()
    return tuple(name for name, path in PATHS.items() if path.needs <= have and (path.tiles != "amx" or tiles_granted()))


def current() -> Cpu:
    """The path new kernels are compiled for: the fastest available one unless `forced`, at the chosen `precision`."""
    path = _forced[-1] if _forced else PATHS[available()[0]]
    if not _precision:
        return path
    if _precision[-1] == PORTABLE:
        return portable(path)
    return replace(path, precision=_precision[-1]) if path.amx else path


@contextmanager
def forced(path: str | Cpu) -> Iterator[Cpu]:
    """Compile and run another path within the block (tests run every path this CPU has, by name or as a variant of one)."""
    if isinstance(path, str):
        if path not in available():
            raise ValueError(f"This CPU cannot run the {path!r} kernels; it can run: {', '.join(available())}.")
        path = PATHS[path]
    _forced.append(path)
    try:
        yield current()
    finally:
        _forced.pop()


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Compute with this precision in kernels made within the block: one of PRECISIONS, of float32 products, all the
    same without tiles; or PORTABLE."""
    if name not in (*PRECISIONS, PORTABLE):
        raise ValueError(f"precision {name!r} is none of {', '.join((*PRECISIONS, PORTABLE))}")
    _precision.append(name)
    try:
        yield
    finally:
        _precision.pop()
