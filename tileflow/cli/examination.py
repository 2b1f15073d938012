"""`tileflow doctor`: what this installation stands on, problems first, each with the way to mend it."""
from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..collective import window
from ..kernels.machine import limits, pool, share
from ..memory import budget
from ..options.options import DEFAULTS, Options, default_options
from ..system.environment import obstacle
from ..system.errors import OptionError
from ..system.files import probe
from ..system.text import one_line
from ..system.version import VERSION

REQUIRED = ("numba", "llvmlite", "numpy", "onnx", "tqdm")
OPTIONAL = ("onnxruntime", "torch", "safetensors")
LOW_MEMORY = 500 << 20
LOW_DISK = 100 << 20
LOW_COMMON = 256 << 20
"""Of containers it is 64 MB where nobody says otherwise."""


@dataclass(frozen=True)
class Problem:
    """What is wrong and how to mend it. `broken`: nothing will run until it is."""

    what: str
    remedy: str
    broken: bool = False


@dataclass
class Examination:
    """Facts in lines (title, value) and the problems found on the way."""

    facts: list[tuple[str, str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def broken(self) -> bool:
        return any(problem.broken for problem in self.problems)

    def text(self) -> str:
        """The problems, then the facts."""
        lines = [f"{'Broken' if p.broken else 'Problem'}: {p.what}\n  Mend it: {p.remedy}" for p in self.problems]
        lines.append("Everything works." if not self.problems else "")
        width = max(len(title) for title, _ in self.facts)
        return "\n".join([*lines, *(f"{title:<{width}}  {value}" for title, value in self.facts)])


def examine() -> Examination:
    """Look at everything that tileflow depends on."""
    found = Examination()
    checks: list[Callable[[Examination], None]] = [_versions]
    if (why := obstacle()) is not None:
        found.problems.append(Problem("the environment keeps kernels from being compiled.", why, broken=True))
    elif all(_version(name) for name in REQUIRED):
        checks += [_cpu, _threads, _cache, _kernels]
    for check in [*checks, _memory, _common, _options, _peers]:
        check(found)
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _versions(found: Examination) -> None:
    found.facts += [("tileflow", VERSION), ("Python", f"{platform.python_version()} ({sys.executable})"),
                    ("system", f"{platform.system()} {platform.release()} {platform.machine()}")]
    for name in REQUIRED:
        version = _version(name)
        found.facts.append((name, version or "missing"))
        if version is None:
            found.problems.append(Problem(f"the package {name} is missing.", f"python -m pip install {name}", broken=True))


def _cpu(found: Examination) -> None:
    from ..kernels.isa import cpu
    path = cpu.current()
    wanted = ("sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "avx512bf16",
              "amx-tile", "amx-bf16", "amx-int8", "neon")
    have = cpu.features()
    found.facts += [("CPU", _cpu_name()), ("CPU features", " ".join(name for name in wanted if name in have) or "none that matter"),
                    ("kernels", f"{path.label}: vectors of {path.vector_bytes} bytes ({path.lanes(4)} float32), "
                                f"{path.registers} registers{', fused multiply-add' if path.fma else ''}{', bfloat16 tiles' if path.amx else ''}")]
    if not path.fma and platform.machine().lower() in ("x86_64", "amd64"):
        found.problems.append(Problem(f"only the {path.label} kernels can run here, much slower than AVX2's.",
                                      "use a CPU with AVX2, and unset NUMBA_CPU_NAME and NUMBA_CPU_FEATURES if they are set."))


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor() or "unknown")


def _threads(found: Examination) -> None:
    import numba
    here = limits.Processors()
    tightest, together, usable, cores = here.tightest(), here.count(), here.usable(), os.cpu_count() or 1
    most, told = pool.most_threads(), "NUMBA_NUM_THREADS" in os.environ
    workers = most if told else min(most, together)
    found.facts += [
        ("processors", f"{cores}, of which this process may use {usable}{'' if usable == cores else ' (affinity)'}; "
                       + ("no quota" if tightest is None else f"the control group {tightest[1].name} (version {2 if tightest[1].v2 else 1}) allows "
                                                                   f"{tightest[0]:g} of their time")),
        ("workers", f"{workers} by default{' (NUMBA_NUM_THREADS)' if told else ''}: the caller's thread and {workers - 1} of the process's own pool, "
                    + ("fewer while others use the cores" if share.Share.possible() else "as many whatever else runs"))]
    if told and tightest is not None and together < most:
        found.problems.append(Problem(f"{most} threads (NUMBA_NUM_THREADS) would share the {tightest[0]:g} processors this container may use.",
                                      f"unset NUMBA_NUM_THREADS, or set it or the option threads to {together}."))
    if numba.config.DISABLE_JIT:
        found.problems.append(Problem("NUMBA_DISABLE_JIT is set, so no kernel can be compiled.", "unset NUMBA_DISABLE_JIT.", broken=True))


def _cache(found: Examination) -> None:
    from ..executable import store
    from ..kernels.machine import cache, pack
    packed = pack.names()
    found.facts.append(("kernels in the package",
                        "damaged, and compiled when they are needed: install tileflow anew" if packed is None
                        else f"{len(packed)}, which are not compiled"
                        if packed else "none: each is compiled when it is needed first"))
    root, current = cache.root(), cache.folder()
    if why := cache.refusal():
        found.problems.append(Problem(f"the kernel cache {root} is not used, because {why}; kernels are kept in {current}.",
                                      "mend the permissions (chmod go-w) or set TILEFLOW_CACHE_DIR to a folder of your own."))
        return
    size, files = _size(root)
    others = [path for path in root.glob("kernels-*") if path != current] if root.is_dir() else []
    found.facts.append(("kernel cache", f"{root}, {budget.size(size)} in {files} files"
                        + (f", {len(others)} folders of other versions" if others else "") + f"; clear it by deleting {root}"))
    images = [path.stat().st_size for path in store.kept()]
    found.facts.append(("images and notes of programs",
                        f"{len(images)} of {current.name}, {budget.size(sum(images))} of at most "
                        f"{budget.size(store.ROOM)}"))
    if hurt := cache.damaged():
        found.facts.append(("damaged kernels", f"{len(hurt)} of {current.name}, deleted and compiled anew when they are needed next"))
    try:
        cache.make_folder()
        probe(current)
    except OSError as error:
        found.problems.append(Problem(f"the kernel cache {current} cannot be written ({error.strerror}), so every start compiles anew.",
                                      "set TILEFLOW_CACHE_DIR to a folder you may write to."))
        return
    free = shutil.disk_usage(current).free
    if free < LOW_DISK:
        found.problems.append(Problem(f"the disk of the kernel cache has {budget.size(free)} left.",
                                      f"free some space (clear the cache by deleting {root}) or set TILEFLOW_CACHE_DIR."))


def _common(found: Examination) -> None:
    """Where processes that train together keep their contributions."""
    try:
        free = shutil.disk_usage(window.PLACE).free
    except OSError:
        return
    little = ("; that is little, and files on disk take its place: docker run --shm-size=1g gives a container more"
              if free < LOW_COMMON else "")
    found.facts.append(("common memory",
                        f"{window.PLACE}, {budget.size(free)} left for processes that train together{little}"))


def _size(folder: Path) -> tuple[int, int]:
    """Bytes and number of files below a folder."""
    sizes = []
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                sizes.append(path.stat().st_size)
        except OSError:
            continue          # deleted meanwhile
    return sum(sizes), len(sizes)


def _twice(x, y):          # type: ignore[no-untyped-def]          # a kernel's body
    for i in range(y.shape[0]):
        y[i] = x[i] + x[i]


def _kernels(found: Examination) -> None:
    """Compile and run a kernel."""
    import numpy as np

    from ..kernels.machine.leaf import Leaf
    x, y = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    try:
        Leaf(_twice, "f4[r], f4[r]")(x, y)
        works = np.array_equal(y, x + x)
    except Exception as error:          # whatever it is, it is the answer
        found.problems.append(Problem(f"a kernel cannot be compiled ({type(error).__name__}: {error}).",
                                      "reinstall numba and llvmlite: python -m pip install --force-reinstall numba llvmlite", broken=True))
        return
    found.facts.append(("compiler", "works" if works else "gives wrong results"))
    if not works:
        found.problems.append(Problem("a compiled kernel gives wrong results.", "clear the kernel cache and try again.", broken=True))


def _memory(found: Examination) -> None:
    room = limits.memory()
    free = None if room is None else room.nbytes
    found.facts.append(("memory",
                        "unknown" if room is None else f"{budget.size(room.nbytes)} available ({room.limit})"))
    if free is not None and free < LOW_MEMORY:
        found.problems.append(Problem(f"only {budget.size(free)} of memory are available.",
                                      "close other programs or lower micro_batch_size."))


def _options(found: Examination) -> None:
    """The file of options that counts for every run here."""
    path = os.environ.get(DEFAULTS)
    if not path:
        return
    try:
        said = Options(**default_options())
    except OptionError as error:
        found.problems.append(Problem(str(error), f"mend the file, or unset {DEFAULTS}.", broken=True))
        return
    found.facts.append(("default options", f"{one_line(path)} ({DEFAULTS}): {said}"))


def _peers(found: Examination) -> None:
    found.facts += [(f"{name} (optional)", _version(name) or "not installed") for name in OPTIONAL]
