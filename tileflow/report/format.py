"""Figures as people read them."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

PHASE_WORDS = {
    "compute": "vertices at work on the worst tile", "exchange": "data on their way between tiles", "sync": "tiles waiting for one another",
    "transform": "rearranging and casting on the tile", "reduce": "adding partial sums",
    "host": "tiles waiting for streams of the host",
}
GROUPS = {
    "weights": "always live", "optimizer": "always live", "buffers": "always live", "constants": "always live", "code": "code",
    "activations": "not always live", "temporaries": "temporaries", "exchange": "exchange buffers",
}
"""The five kinds of tile memory that the categories belong to."""


WORDS = {"activations": "a micro-batch's activations", "weights": "weights", "optimizer": "optimizer state", "accumulators": "gradient accumulators"}
LIMIT_WORDS = {
    "compute": "vertices at work", "exchange": "data on their way between tiles", "sync": "too little work for so many tiles",
    "transform": "rearranging on the tile", "reduce": "adding partial sums", "memory": "the bound on temporaries ruled a faster plan out",
    "grain": "too few pieces for the tiles",
}


def count(n: float) -> str:
    """1234567 -> 1,234,567."""
    return f"{n:,.0f}"


def digits(n: float, most: int = 3) -> str:
    """So many significant digits, without an exponent: 1234 -> 1230, 0.00012345 -> 0.000123."""
    return format(Decimal(f"{n:.{most}g}"), "f")


def short(n: float, most: int = 3) -> str:
    """1234567 -> 1.23 M."""
    n = float(f"{n:.{most}g}")
    for limit, letter in ((1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(n) >= limit:
            return f"{digits(n / limit, most)}{letter}"
    return digits(n, most)


def flops(tera: float) -> tuple[str, str]:
    """1e12 FLOP/s as a figure and its unit: 1.25, TFLOP/s; 0.0125 is 12.5 GFLOP/s."""
    figure, _, letter = short(1e12 * tera, 4).partition(" ")
    return figure, f"{letter}FLOP/s"


def size(n: float) -> str:
    """Bytes with a binary unit."""
    if abs(n) < 1024:
        return f"{n:.0f} B"
    for limit, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(n) >= limit:
            return f"{n / limit:.1f} {unit}"
    raise AssertionError(n)


def seconds(t: float) -> str:
    """A duration with a unit that suits it."""
    t = float(f"{t:.3g}")
    for limit, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if t >= limit:
            return f"{digits(t / limit)} {unit}"
    return f"{digits(1e9 * t)} ns"


def percent(share: float) -> str:
    """0.1234 -> 12.3 %."""
    return f"{100 * share:.1f} %"


def partition(step: Mapping[str, Any]) -> str:
    """A plan's splits in one line: `m/8 n/46 serial k/2`."""
    parallel = " ".join(f"{axis}/{parts}" for axis, parts in step["splits"].items() if parts > 1)
    serial = " ".join(f"{axis}/{parts}" for axis, parts in step["serial"].items() if parts > 1)
    return " ".join(filter(None, (parallel, f"serial {serial}" if serial else ""))) or "whole"


def why(step: Mapping[str, Any]) -> str:
    """Why an operator has the plan that it has, in a sentence."""
    choice, bound = step["choice"], step["bound_bytes"]
    within = "" if bound is None else f" within {count(bound)} bytes of temporaries a tile"
    if choice is None:
        return "Its plan follows from where its operands lie, from operators planned with it, or from a file of plans."
    if not step["fits"]:
        said = f"No plan keeps{within.removeprefix(' within') or ' the bound'}; this is the one of {count(choice['of'])} that takes least."
    elif choice["of"] == 1:
        return "No other plan has fewer cycles or takes fewer bytes."
    else:
        said = f"The fastest{within} of {count(choice['of'])} plans worth having."
    for name, words in (("faster", "The next faster one takes"), ("leaner", "The next leaner one takes")):
        if choice[name]:
            said += f" {words} {count(choice[name][0])} cycles and {count(choice[name][1])} bytes."
    return said


def shape(extents: Sequence[int]) -> str:
    """64 × 3 × 7 × 7; a scalar has none."""
    return " × ".join(map(str, extents)) or "scalar"


def clip(text: str, width: int) -> str:
    """The end of a name that is too long: that is where it differs from others."""
    return text if len(text) <= width else "…" + text[1 - width:]


def title(report: Mapping[str, Any]) -> str:
    """What was compiled, in words."""
    return f"{report['model'] or 'model'}, {'training' if report['training'] else 'inference'}"


def chip_line(report: Mapping[str, Any]) -> str:
    """The machine in one line."""
    chip = report["chip"]
    replicas = report["replicas"]
    many = f"{replicas['all']} × {chip['name']}{_copies(replicas)}, each" if replicas["all"] > 1 else f"{chip['name']}:"
    return f"{many} {count(chip['tiles'])} tiles of {size(chip['bytes_per_tile'])}, {chip['clock_hz'] / 1e9:.3g} GHz"


def _copies(replicas: Mapping[str, Any]) -> str:
    """Of which replicas the IPUs are, and that some stay idle."""
    each = f" of {replicas['ipus']} IPUs" if replicas["ipus"] > 1 else ""
    several = f"{replicas['count']} replicas{each}" if replicas["count"] > 1 else ""
    idle = f"{replicas['reserved']} reserved" if replicas["reserved"] > replicas["all"] else ""
    said = ", ".join(filter(None, (several, idle)))
    return f" ({said})" if said else ""


def together(report: Mapping[str, Any]) -> list[str]:
    """Sentences on what replicas do together; none where there is one."""
    replicas, each = report["replicas"], report["replicas"]["ipus"]
    if replicas["count"] < 2:
        return []
    shown = f"the {each} IPUs of one are" if each > 1 else "one is"
    found = [f"{replicas['count']} replicas of {each} IPU{'s' * (each > 1)}, {replicas['all']} IPUs in all, are alike and work side by side: {shown} "
             "shown; samples/s and TFLOP/s are those of all."]
    for c in report["collectives"]:
        methods = " and ".join(dict.fromkeys(c["methods"])) or "nothing to do"
        around = " round the ring" if {*c["methods"]} <= {"one way", "both ways", "half way round", "ring"} else ""
        where = f" of IPU {c['ipu']}" if each > 1 else ""
        found.append(f"{c['kind'].capitalize()} of {count(c['bytes'])} bytes over {_sharing(c, replicas)}{where} "
                     f"{c['when']} the {c['part']}: {count(c['steps'])} steps{around} ({methods}), {count(c['sent'])} "
                     f"bytes from each to its neighbours, {count(c['cycles'])} cycles "
                     f"({percent(c['cycles'] / max(1, report['totals']['cycles']))} of all).")
    return found


def _sharing(collective: Mapping[str, Any], replicas: Mapping[str, Any]) -> str:
    """Who does something together."""
    count, all_ = collective["replicas"], replicas["count"]
    return f"the {count} replicas" if count == all_ else f"{all_ // count} groups of {count} replicas"


def waits(report: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """Cycles that replicas take together before or after a part: those of the slowest of their IPUs."""
    own: dict[tuple[str, str], dict[int, int]] = {}
    for c in report["collectives"]:
        of_ipu = own.setdefault((c["part"], c["when"]), {})
        of_ipu[c["ipu"]] = of_ipu.get(c["ipu"], 0) + c["cycles"]
    return {key: max(of_ipu.values()) for key, of_ipu in own.items()}


def options_line(report: Mapping[str, Any]) -> str:
    """Batch and machine options in one line."""
    b, o = report["batching"], report["options"]
    parts = [f"micro-batch {b['micro_batch']}"]
    if b["gradient_accumulation"] > 1:
        parts.append(f"gradient accumulation {b['gradient_accumulation']}")
    if report["staging"] is not None:
        schedule = report["staging"]["schedule"]
        parts.append(f"{report['staging']['strategy']} ({schedule})".replace(" ()", "").replace("_", " "))
    program = o.get("program", "32")
    parts += [f"precision {o['precision'] if program == '32' else program}", f"available memory proportion {o['available_memory_proportion']:g}"]
    parts += [f"{name} {share:g}" for name, share in o["per_ipu"].items()]
    if o["per_op"]:
        parts.append(f"{len(o['per_op'])} by name")
    return ", ".join(parts)


def limits(report: Mapping[str, Any]) -> list[str]:
    """Sentences on what besides the tiles decides the time."""
    host, streaming, cycles = report["host"]["cycles_per_update"], report["host"]["streaming_memory_cycles"], report["totals"]["cycles"]
    said = []
    waits, io = report["host"].get("waits", 0), report["host"].get("io_tiles", {"number": 0, "bytes": 0})
    if host > cycles:
        said.append(f"The host decides the time: its streams take {count(host)} cycles and the tiles' work {count(cycles)}.")
    if waits * 20 > cycles or io["number"]:
        said.append(f"The tiles wait {count(waits)} cycles for the host, {percent(waits / max(1, cycles + waits))} of the time.")
    if io["number"]:
        said.append(f"{io['number']} tiles are set aside for I/O and hold {count(io['bytes'])} bytes each of what passes.")
    kept = report["host"].get("streaming_memory_bytes", {})
    for group, nbytes in kept.items():
        said.append(f"Streaming memory holds {size(nbytes)} of {WORDS.get(group, group)}." if nbytes else
                    f"Nothing of {WORDS.get(group, group)} is kept in streaming memory: there is none, or none that has a reason to leave the tiles.")
    if streaming:
        said.append(f"Exchange with streaming memory takes {count(streaming)} cycles ({percent(streaming / max(1, cycles))} of all).")
    return said


def unit(report: Mapping[str, Any]) -> str:
    """What figures are of, `schedule.period`: an update, a micro-batch, or a call where micro-batches overlap."""
    return "update" if report["training"] else "call" if any(step["kind"] == "repeat" for step in report["schedule"]) else "micro-batch"


def one(report: Mapping[str, Any]) -> str:
    """That, with its article."""
    return f"an {unit(report)}" if report["training"] else f"a {unit(report)}"


def apart(report: Mapping[str, Any]) -> list[str]:
    """Why the cycles of all operators are not those of an update, in a sentence; none where they are."""
    cycles, operators = report["totals"]["cycles"], sum(report["totals"]["phases"].values())
    if operators == cycles:
        return []
    ways = [(len(report["ipus"]) > 1, "IPUs work side by side or wait for one another"), (report["crossing"], "tensors pass from IPU to IPU"),
            (report["streaming"], "phases load and store what they need in streaming memory"),
            (report["collectives"], "replicas put together what they share")]
    said = [words for there, words in ways if there]
    why = f": {', '.join(said)}" if said else ""
    waited = " and their IPUs wait for the host" if "host" in shares(report) else ""
    return [f"Shares are of the {count(all_phases(report))} cycles that all operators take{waited}; {one(report)} "
            f"takes {count(cycles)}{why}."]


def energy(report: Mapping[str, Any]) -> list[str]:
    """What a sample takes in energy, in sentences; none of a chip that says nothing of it."""
    found = report.get("energy")
    if not found:
        return []
    samples = max(1, report["batching"]["samples_per_update"])
    shown = {name: span(v[0] / samples, v[1] / samples, "J") for name, v in found["categories"].items() if v[1]}
    least, most = found["per_sample"] or (0.0, 0.0)
    total = "is not bounded from above" if found["per_sample"] is None else f"takes {span(least, most, 'J')}"
    left = f"; not counted: {', '.join(found['uncounted'])}" if found["uncounted"] else ""
    return [f"Energy: a sample {total}. {', '.join(f'{name} {words}' for name, words in shown.items())}{left}."]


def efficiency(report: Mapping[str, Any]) -> list[str]:
    """Throughput over silicon and over cost, in a sentence; none of a chip that says neither."""
    found = report.get("efficiency")
    if not found:
        return []
    ways = (("area_mm2", "samples_per_second_per_mm2", "mm² of silicon", "an IPU has {} mm²"),
            ("cost", "samples_per_second_per_cost", "unit of cost", "an IPU costs {}"))
    said = [f"{found[rate]:.4g} samples/s for a {what} ({of.format(f'{found[name]:,g}')})"
            for name, rate, what, of in ways
            if found[rate] is not None]
    return [f"Efficiency: {', '.join(said)}."] if said else []


def span(least: float, most: float, unit: str) -> str:
    """A range of a quantity, in units of a thousandth or a millionth where it is small: 17.4 to 208 mJ."""
    scale, prefix = next(((s, p) for s, p in ((1.0, ""), (1e-3, "m"), (1e-6, "µ")) if most >= s), (1e-9, "n"))
    low, high = (f"{v / scale:.3g}" for v in (least, most))
    return f"{low} {prefix}{unit}" if low == high else f"{low} to {high} {prefix}{unit}"


def histogram(values: Sequence[float], top: float, bins: int) -> list[tuple[float, float, int]]:
    """(from, to, how many) over 0..top in equal bins; larger values count in the last."""
    width = max(top, 1) / bins
    counts = [0] * bins
    for v in values:
        counts[min(bins - 1, int(v / width))] += 1
    return [(i * width, (i + 1) * width, n) for i, n in enumerate(counts)]


def fullest_ipu(report: Mapping[str, Any]) -> int:
    """The IPU of several whose memory a report shows first: the one with the fullest tile."""
    return int(max(report["ipus"], key=lambda ipu: (ipu["worst"], -ipu["number"]))["number"])


def shares(report: Mapping[str, Any]) -> dict[str, int]:
    """Where the time of the IPUs of a replica goes: cycles of each phase of all operators and, as "host", those in
    which they wait for the host."""
    waited = report["host"].get("waits", 0) * max(1, len(report["ipus"]))
    return {**report["totals"]["phases"], **({"host": waited} if waited else {})}


def all_phases(report: Mapping[str, Any]) -> int:
    """All of these, of which shares of cycles are said; on one IPU alone they are an update's."""
    return max(1, sum(shares(report).values()))
