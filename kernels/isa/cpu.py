"""Which instructions the kernels may use: decided by CPU features, never by the CPU's name."""
from __future__ import annotations

import ctypes
import functools
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from llvmlite import binding

PRECISIONS = ("highest", "high", "medium")
"""How float32 products are done by tiles: with six, three or one bfloat16 product for each."""


@dataclass(frozen=True)
class Cpu:
    """A kernel path: `vector_bytes` wide registers, `registers` of them, with or without fused multiply-add.

    `name` tells the vector code apart; a path with matrix tiles or float16 arithmetic shares it with the path that differs in these only.
    """

    name: str
    vector_bytes: int
    registers: int
    fma: bool
    tiles: str = ""                        # "amx": the CPU's tiles; "software": the same arithmetic in vectors (tests)
    precision: str = "highest"             # of float32 products in tiles, one of PRECISIONS
    half: bool = False                     # float16 multiply-adds in vectors, tiles or not

    @property
    def amx(self) -> bool:
        """Whether products may be done in bfloat16 tiles."""
        return self.tiles != ""

    @property
    def multiplies_halves(self) -> bool:
        """Whether float16 vectors are multiplied and added as they are (tiles mostly come with that, but not by themselves)."""
        return self.half or (self.tiles == "amx" and "avx512fp16" in features())

    @property
    def label(self) -> str:
        """The path as people know it."""
        return self.tiles or ("fp16" if self.half else self.name)

    def lanes(self, itemsize: int) -> int:
        """Elements of `itemsize` bytes in one vector register."""
        return self.vector_bytes // itemsize


_AVX512 = Cpu("avx512", 64, 32, True)
PATHS = {
    "amx": replace(_AVX512, tiles="amx"),
    "fp16": replace(_AVX512, half=True),
    "avx512": _AVX512,
    "avx2": Cpu("avx2", 32, 16, True),
    "generic": Cpu("generic", 16, 16, False),
}
_forced: list[Cpu] = []
_precision: list[str] = []


@functools.cache
def features() -> frozenset[str]:
    """The features that the compiler will target, as LLVM names them (`NUMBA_CPU_NAME` and `NUMBA_CPU_FEATURES` count)."""
    from numba.core import config
    if config.CPU_NAME == "generic":
        return frozenset()
    if config.CPU_FEATURES is not None:
        return frozenset(f[1:] for f in config.CPU_FEATURES.split(",") if f.startswith("+"))
    return frozenset(name for name, present in binding.get_host_cpu_features().items() if present)


@functools.cache
def tiles_granted() -> bool:
    """Whether the system lets this process use tile registers (Linux enlarges the threads' state on request only; asked once)."""
    if not sys.platform.startswith("linux"):
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    try:
        return int(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)) == 0
    except (OSError, AttributeError):
        return False


def available() -> tuple[str, ...]:
    """Names of the paths this CPU can run, fastest first."""
    have = features() if platform.machine().lower() in ("x86_64", "amd64") else frozenset()
    names = []
    if {"avx512f", "avx512vl", "avx512dq", "avx512bw"} <= have:
        if {"amx-tile", "amx-bf16"} <= have and tiles_granted():
            names.append("amx")
        if "avx512fp16" in have:
            names.append("fp16")
        names.append("avx512")
    if {"avx2", "fma", "f16c"} <= have:
        names.append("avx2")
    return (*names, "generic")


def current() -> Cpu:
    """The path new kernels are compiled for: the fastest available one unless `forced`, at the chosen `precision`."""
    path = _forced[-1] if _forced else PATHS[available()[0]]
    return replace(path, precision=_precision[-1]) if path.amx and _precision else path


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
    """Do float32 products with this precision in kernels made within the block: one of PRECISIONS. Without tiles all are the same."""
    if name not in PRECISIONS:
        raise ValueError(f"precision {name!r} is none of {', '.join(PRECISIONS)}")
    _precision.append(name)
    try:
        yield
    finally:
        _precision.pop()
