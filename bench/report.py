"""The form every case keeps: one JSON object with the machine and a list of results; and the same as a table."""
from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512fp16", "avx512bf16", "amx-tile", "amx-bf16", "amx-fp16")


class Figures:
    """A dataclass whose fields are what is written down."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)             # type: ignore[call-overload]


@dataclass
class Result:
    """One comparison. `ratio` = peer_s / ours_s, medians both: above 1 we are faster. `path` is our kernel path.

    `row` and `shape` say which of cases.toml it is ("" for others). Errors are against float64; `fraction_of_peak` is of our
    measured FMA or tile peak, `fraction_of_bandwidth` of our measured copy. `note` says why a side has no figure.
    """

    case: str
    peer: str
    threads: int
    path: str
    ours_s: float | None
    peer_s: float | None
    ratio: float | None
    error_ours: float | None = None
    error_peer: float | None = None
    row: str = ""
    shape: str = ""
    fraction_of_peak: float | None = None
    fraction_of_bandwidth: float | None = None
    note: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        return {**{k: v for k, v in plain.items() if k != "extra"}, **plain["extra"]}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Result:
        """What `to_dict` made; fields of other versions go to `extra`."""
        known = set(cls.__dataclass_fields__) - {"extra"}
        return cls(**{k: v for k, v in plain.items() if k in known}, extra={k: v for k, v in plain.items() if k not in known})


def compare(case: str, peer: str, threads: int, path: str, ours: Sequence[float], theirs: Sequence[float] | None, **extra: Any) -> Result:
    """A result from the times of several runs (seconds each)."""
    mine = statistics.median(ours)
    other = statistics.median(theirs) if theirs else None
    return Result(case, peer, threads, path, mine, other, None if other is None else other / mine, extra={"runs": len(ours), **extra})


def machine() -> dict[str, Any]:
    """What the figures depend on: processor features, cores, versions, how busy the machine was."""
    from tileflow.kernels.isa import cpu

    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None
    names = ("numba", "llvmlite", "numpy", "onnx", "torch", "onnxruntime", "openvino")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"system": platform.system(), "machine": platform.machine(), "processor": processor(), "cores": os.cpu_count(), "load": load,
            "python": platform.python_version(), "features": [f for f in FEATURES if f in cpu.features()], "paths": list(cpu.available()),
            "versions": {n: installed(n) for n in names}}


def place(machine: Mapping[str, Any]) -> str:
    """Where results were measured, for people: processor, cores and features."""
    name = machine.get("processor") or machine["machine"]
    return f"{name}, {machine['cores']} cores ({', '.join(machine['features'])})"


def processor() -> str:
    """The processor's name, for people: nothing is decided by it."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def load(path: str) -> tuple[dict[str, Any], list[Result]]:
    """The machine and the comparisons of a results file; results of other kinds are left out."""
    with open(path) as file:
        data = json.load(file)
    return data["machine"], [Result.from_dict(r) for r in data["results"] if "ours_s" in r]


def to_json(results: Sequence[Any]) -> str:
    """The agreed form."""
    return json.dumps({"machine": machine(), "results": [r.to_dict() for r in results]}, indent=2)


def duration(seconds: float | None) -> str:
    """Seconds with a unit that keeps three figures."""
    if seconds is None:
        return "-"
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us"), (1e9, "ns")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def line(r: Result) -> str:
    """A comparison in a line."""
    what = r.shape or r.case
    if r.ours_s is None:
        return f"{what:<46} {r.note}"
    ratio = "-" if r.ratio is None else f"{r.ratio:.2f}"
    errors = "" if r.error_ours is None else f"{r.error_ours:.1e}" + ("" if r.error_peer is None else f" {r.error_peer:.1e}")
    share = f"{100 * r.fraction_of_peak:.0f} % flops" if r.fraction_of_peak is not None else (
        f"{100 * r.fraction_of_bandwidth:.0f} % bytes" if r.fraction_of_bandwidth is not None else "")
    more = ", ".join(f"{k} {v:,.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in r.extra.items() if k != "runs")
    return (f"{what:<46} {r.peer:<13} {r.threads:>2} {r.path:<7} {duration(r.ours_s):>8} {duration(r.peer_s):>8} {ratio:>6} {errors:<16} {share:<11} "
            f"{r.note}{more}").rstrip()


HEAD = f"{'case':<46} {'peer':<13} {'th':>2} {'path':<7} {'ours':>8} {'peer':>8} {'ratio':>6} {'errors o, p':<16} of peak"
