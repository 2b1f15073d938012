"""Which vector instructions the kernels may use: decided by CPU features, never by the CPU's name."""
from __future__ import annotations

import functools
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from llvmlite import binding


@dataclass(frozen=True)
class Cpu:
    """A kernel path: `vector_bytes` wide registers, `registers` of them, with or without fused multiply-add."""

    name: str
    vector_bytes: int
    registers: int
    fma: bool

    def lanes(self, itemsize: int) -> int:
        """Elements of `itemsize` bytes in one vector register."""
        return self.vector_bytes // itemsize


PATHS = {
    "avx512": Cpu("avx512", 64, 32, True),
    "avx2": Cpu("avx2", 32, 16, True),
    "generic": Cpu("generic", 16, 16, False),
}
_forced: list[str] = []


@functools.cache
def features() -> frozenset[str]:
    """The features that the compiler will target, as LLVM names them (`NUMBA_CPU_NAME` and `NUMBA_CPU_FEATURES` count)."""
    from numba.core import config
    if config.CPU_NAME == "generic":
        return frozenset()
    if config.CPU_FEATURES is not None:
        return frozenset(f[1:] for f in config.CPU_FEATURES.split(",") if f.startswith("+"))
    return frozenset(name for name, present in binding.get_host_cpu_features().items() if present)


def available() -> tuple[str, ...]:
    """Names of the paths this CPU can run, fastest first."""
    have = features() if platform.machine().lower() in ("x86_64", "amd64") else frozenset()
    names = []
    if {"avx512f", "avx512vl", "avx512dq", "avx512bw"} <= have:
        names.append("avx512")
    if {"avx2", "fma"} <= have:
        names.append("avx2")
    return (*names, "generic")


def current() -> Cpu:
    """The path new kernels are compiled for: the fastest available one unless `forced`."""
    return PATHS[_forced[-1] if _forced else available()[0]]


@contextmanager
def forced(name: str) -> Iterator[Cpu]:
    """Compile and run another path within the block (tests run every path this CPU has)."""
    if name not in available():
        raise ValueError(f"This CPU cannot run the {name!r} kernels; it can run: {', '.join(available())}.")
    _forced.append(name)
    try:
        yield PATHS[name]
    finally:
        _forced.pop()
