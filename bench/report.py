"""The form every case keeps: one JSON object with the machine and a list of results; and the same as a table."""
from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any


@dataclass
class Result:
    """One comparison. `ratio` = peer_s / ours_s, medians both: above 1 we are faster. `path` is our kernel path."""

    case: str
    peer: str
    threads: int
    path: str
    ours_s: float
    peer_s: float | None
    ratio: float | None
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        return {**{k: v for k, v in plain.items() if k != "extra"}, **plain["extra"]}


def compare(case: str, peer: str, threads: int, path: str, ours: Sequence[float], theirs: Sequence[float] | None, **extra: Any) -> Result:
    """A result from the times of several runs (seconds each)."""
    mine = statistics.median(ours)
    other = statistics.median(theirs) if theirs else None
    return Result(case, peer, threads, path, mine, other, None if other is None else other / mine, {"runs": len(ours), **extra})


def machine() -> dict[str, Any]:
    """What the figures depend on: processor features, cores, versions."""
    from tileflow.kernels import cpu

    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None
    names = ("numba", "llvmlite", "numpy", "onnx", "torch", "onnxruntime")
    wanted = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512fp16", "amx-bf16", "amx-tile")
    return {"system": platform.system(), "machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version(),
            "features": [f for f in wanted if f in cpu.features()], "paths": list(cpu.available()),
            "versions": {n: installed(n) for n in names}}


def show(results: Sequence[Any], as_json: bool) -> None:
    """Print results as one JSON object, or comparisons as a table and results of other kinds in their own words."""
    if as_json:
        print(json.dumps({"machine": machine(), "results": [r.to_dict() for r in results]}, indent=2))
        return
    own = [r.to_text() for r in results if not isinstance(r, Result)]
    results = [r for r in results if isinstance(r, Result)]
    if own:
        print("\n".join(own))
    if not results:
        return
    print(f"{'case':<28} {'peer':<16} {'threads':>7} {'ours':>12} {'peer':>12} {'ratio':>7}")
    for r in results:
        peer = "-" if r.peer_s is None else f"{1e3 * r.peer_s:10.2f}ms"
        ratio = "-" if r.ratio is None else f"{r.ratio:7.2f}"
        print(f"{r.case:<28} {r.peer:<16} {r.threads:>7} {1e3 * r.ours_s:10.2f}ms {peer:>12} {ratio:>7}")
