"""What the compiler and the system let this process use of its CPU."""
from __future__ import annotations

import ctypes
import functools
import platform
import sys

from llvmlite import binding


@functools.cache
def features() -> frozenset[str]:
    """The features that the compiler will target, as LLVM names them (`NUMBA_CPU_NAME` and `NUMBA_CPU_FEATURES` count)."""
    from numba.core import config
    if config.CPU_NAME == "generic":
        return frozenset()
    if config.CPU_FEATURES is not None:
        return frozenset(f[1:] for f in config.CPU_FEATURES.split(",") if f.startswith("+"))
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
