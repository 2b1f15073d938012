"""Runs compiled leaves in an x86 emulator, so that the paths this machine lacks are executed and checked as well.

    if emulator.available():
        status = emulator.run(leaf, a, b, c)           # as leaf(a, b, c), on an emulated processor

The process must compile for that processor: `environment(path)` gives the variables to start it with.
`python tests/oracle/emulator PATH tests/kernels/test_gemm.py …` runs a test module like that, with every call of a leaf
emulated; nothing that was compiled runs natively then. Each array lies against an unmapped page, so that an access
outside of the arguments is found. Tile (AMX) instructions are done by `tiles.py`, all others by Bochs.
"""
from __future__ import annotations

import contextlib
import functools
import os
from typing import Any

from llvmlite import binding

from tileflow.kernels.isa import cpu, target
from tileflow.kernels.isa.paths import PATHS
from tileflow.kernels.isa.target import Target
from tileflow.kernels.machine.leaf import Leaf

from .layout import SIDES, Fault, Layout, rows, run_against
from .machine import PROCESSORS, Machine, installed

__all__ = ["TARGETS", "Fault", "available", "choose", "environment", "machine", "run"]

TARGETS = tuple(name for name, entry in PATHS.items() if entry.processor in PROCESSORS)
"""Names of the paths that can be emulated."""
LIBRARY = {"avx2": "AVX2", "fma": "FMA", "bmi": "BMI1", "bmi2": "BMI2", "lzcnt": "LZCNT", "movbe": "MOVBE",
           "avx512f": "AVX512F", "avx512vl": "AVX512VL", "avx512bw": "AVX512BW", "avx512dq": "AVX512DQ"}
"""Features as LLVM and as the C library names them, by which it chooses among its own functions."""

OTHERS = {"amx": ("graniterapids", "sapphirerapids prefer-128-bit"),
          "fp16": ("graniterapids", "sapphirerapids prefer-128-bit"), "bf16": ("znver4", "cooperlake prefer-128-bit"),
          "vnni": ("znver4", "cascadelake prefer-128-bit"), "avx512": ("znver4", "skylake-avx512 prefer-128-bit"),
          "avx2": ("znver3", "haswell prefer-128-bit"), "avx": ("bdver1", "sandybridge prefer-128-bit"),
          "generic": ("nehalem", "bonnell")}
"""By path: processors for which LLVM prefers other vectors, unrolls otherwise or counts other latencies, as it names
them, with what else it is told of one that bears on its estimates only."""
_TARGET, _CHOSEN = "TILEFLOW_TESTS_TARGET", contextlib.ExitStack()
HOST = "host"
"""The processor that this machine has, with all its features."""


def available() -> bool:
    """Whether leaves can be emulated here: Linux on x86-64 with `bochscpu-python` and a C compiler."""
    return os.uname().machine == "x86_64" and installed()


def environment(path: str, processor: str = "") -> dict[str, str]:
    """Environment variables under which a new process compiles for `path` (one of `TARGETS`) and nothing better.

    Args:
        processor: one of `OTHERS[path]`, for which LLVM then chooses and orders the path's instructions, or `HOST`.
    """
    name, *tuning = processor.split() or [PATHS[path].processor]
    have = PATHS[path].features.split()
    lacks = ",".join(f"-{name}" for feature, name in LIBRARY.items() if feature not in have)
    # What the linker binds late it binds by memory of its own, which the guest may not touch.
    library = {"LD_BIND_NOW": "1", **({"GLIBC_TUNABLES": f"glibc.cpu.hwcaps={lacks}"} if lacks else {})}
    if processor == HOST:
        return {_TARGET: f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}", **library}
    features = [f"+{feature}" for feature in [*have, *tuning]]
    if processor:                                              # which may have more, even more than this machine
        features += [f"-{feature}" for feature in sorted(binding.get_host_cpu_features()) if feature not in have]
    chosen = {_TARGET: f"{name} {','.join(features)}"} if processor else {}
    return {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": ",".join(features), **library, **chosen}


def choose() -> None:
    """Compile for the processor that `environment` named, for as long as the process lives."""
    if told := os.environ.get(_TARGET):
        processor, _, features = told.partition(" ")
        _CHOSEN.enter_context(target.forced(Target(processor, features)))


@functools.cache
def machine() -> Machine:
    """The process's guest: the processor that the process compiles for."""
    return Machine(PATHS[cpu.available()[0]].processor)


def run(leaf: Leaf, *args: Any, n: int | None = None, lo: int = 0, worker: int = 0, against: str = "after",
        seconds: float = 30.0) -> int:
    """Run a leaf over rows lo..n as `Leaf.__call__` does, in the emulator.

    Args:
        against: on which side of each array memory ends: "after", "before", or "both" for two runs, which must agree.
            On the other side garbage fills the page and must stay. Arrays that are not writeable must stay as well.
        seconds: computing time after which the run is given up.

    Raises:
        Fault: the leaf touched memory outside of its arguments (the message names the argument), changed a read-only
            one, or did something else that a processor refuses.
    """
    guest, stop = machine(), rows(leaf, args, n)

    def call(layout: Layout, _what: str) -> int:
        guest.where = layout.where
        return guest.call(leaf.address, (layout.block, lo, stop, worker), seconds)

    return run_against(guest, leaf, args, (lo, stop), SIDES if against == "both" else (against,), call)
