"""What the compiler and the system let this process use of its CPU."""
from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys

from llvmlite import binding


@functools.cache
def features() -> frozenset[str]:
    """The features that code may ask for, as LLVM names them: the processor's, or those that the environment variables
    NUMBA_CPU_NAME (generic) and NUMBA_CPU_FEATURES name, which are read as Numba reads them, without it: code that is
    kept is run where nothing is compiled."""
    if os.environ.get("NUMBA_CPU_NAME", "").lower() == "generic":
        return frozenset()
    if (given := os.environ.get("NUMBA_CPU_FEATURES")) is not None:
        return frozenset(f[1:] for f in given.split(",") if f.startswith("+"))
    return frozenset(name for name, present in binding.get_host_cpu_features().items() if present)


def x86() -> bool:
    """Whether this is a 64-bit x86: the only processors with a path beside "generic"."""
    return platform.machine().lower() in ("x86_64", "amd64")


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
