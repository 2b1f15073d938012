"""What the page draws of a report, as compact data: columns in place of rows, each text once, colours and words for every name that occurs."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..program.schedule import elapsed, from_data
from . import format as f
from . import gantt, insights
from .json import Report
from .palette import colour

STEP_WORDS = {"run": "run", "fold": "fold", "wave": "side by side", "begin": "begin an update", "commit": "take effect", "repeat": "repeat",
              "atomic": "all or none", "refresh": "once, where states have changed"}
"""Kinds of steps of a schedule in words; others are called as the report calls them."""


class Texts:
    """Texts by number, each once."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._known: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text."""
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = len(self.all)
            self.all.append(text)
        return found


def data(report: Report) -> dict[str, Any]:
    """The page's data of one report."""
    texts = Texts()
    t, m = report["totals"], report["memory"]
    phases, constants = list(t["phases"]), report["chip"]["constants"]
    return {
        "model": report["model"] or "model", "title": f.title(report), "lines": [f.chip_line(report), f.options_line(report)],
        "notes": report["notes"],
        "fits": m["fits"], "error": report["out_of_memory"] and report["out_of_memory"]["message"], "made_by": report["made_by"],
        "unit": f.unit(report), "one": f.one(report), "figures": _figures(report),
        "phases": [{"name": p, "words": f.PHASE_WORDS.get(p, ""), "colour": colour(p), "cycles": t["phases"][p]} for p in phases],
        "shares": [{"name": p, "words": f.PHASE_WORDS.get(p, ""), "colour": colour(p), "cycles": n}
                   for p, n in f.shares(report).items()],
        "all_phases": f.all_phases(report), "cycles": t["cycles"],
        "limits": [*f.limits(report), *f.together(report), *f.apart(report),
                                                                        *f.efficiency(report)],
        "memory": _memory(report),
        "steps": _steps(report, phases, texts), "parts": _parts(report),
        "variables": _variables(report["variables"], texts), "spreads": report["spreads"],
        "align": int(_constant(report, "vector_bytes")), "roofs": _roofs(report),
        "energy": _energy(report),
        "kinds": {name: colour(name) for name in dict.fromkeys(v["kind"] for v in report["variables"])},
        "chart": _chart(report, texts), "ipus": _ipus(report), "tree": _tree(report), "insights": insights.sections(report),
        "frontier": report["frontier"] or [], "constants": [[c["name"], _value(c["value"]), c["kind"], c["source"]] for c in constants],
        "chip": f.chip_line(report), "options": [[k, _value(v)] for k, v in report["options"].items()], "texts": texts.all,
    }


def _figures(report: Report) -> list[list[Any]]:
    """The headline: value, label, and a share to be drawn as a bar (None: none)."""
    t, m = report["totals"], report["memory"]
    unit = f.unit(report)
    used = m["worst"] / max(1, m["bytes_per_tile"])
    return [[f.short(t["cycles"]), f"cycles per {unit}", None], [f.seconds(t["seconds"]), f"per {unit}", None],
            [f.short(t["samples_per_second"]), "samples per second", None], [*f.flops(t["tflops"]), None],
            [f.percent(t["peak_fraction"]), "of peak", round(t["peak_fraction"], 4)], [f.percent(used), "of memory, fullest tile", round(used, 4)]]


def _memory(report: Report) -> dict[str, Any]:
    m = report["memory"]
    kinds = [{"name": k["name"], "always": k["always_live"], "words": f.GROUPS.get(k["name"], "always live" if k["always_live"] else ""),
              "colour": colour(k["name"], "memory")} for k in m["kinds"]]
    ipus = [_of_ipu(i["number"], i["memory"], kinds) for i in report["ipus"] if i["memory"]] or [_of_ipu(-1, m, kinds)]
    first = max(range(len(ipus)), key=lambda k: (ipus[k]["worst"], -k))
    return {"bound": m["bytes_per_tile"], "kinds": kinds, "ipus": ipus, "first": first}


def _of_ipu(number: int, m: Mapping[str, Any], kinds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Memory of an IPU, lists by category in the order of the kinds. number: -1 where there are no several."""
    names = [k["name"] for k in kinds]
    return {"number": number, "worst_tile": m["worst_tile"], "worst": m["worst"], "mean": m["mean"], "always": m["always_live"], "peak": m["peak"],
            "peak_step": m["peak_step"], "categories": [m["categories"][n] for n in names], "fullest": m["steps"]["fullest"],
            "over": [m["steps"]["categories"].get(n, []) for n in names]}


def _steps(report: Report, phases: Sequence[str], texts: Texts) -> dict[str, Any]:
    steps = report["steps"]

    def words(values: Iterable[str]) -> list[int]:
        return [texts.number(v) for v in values]
    numbers = {name: [s[field] for s in steps] for name, field in (
        ("ipu", "ipu"), ("tiles", "tiles"), ("times", "repeats"), ("cycles", "cycles"), ("all", "cycles_per_update"), ("flops", "flops"),
        ("temp", "temp_bytes"), ("bytes", "tile_bytes"), ("received", "exchange_bytes"), ("code", "code_bytes"), ("live", "live_bytes"),
        ("inputs", "inputs"), ("outputs", "outputs"))}
    return {
        "name": words(s["name"] for s in steps), "source": words(", ".join(s["sources"]) for s in steps), "op": words(s["op"] for s in steps),
        "role": words(s["role"] for s in steps), "part": words(s["part"] for s in steps), "partition": words(map(f.partition, steps)),
        "vertex": words(s["vertex"] for s in steps), "limit": words(s["limit"] for s in steps), "why": words(map(f.why, steps)),
        "fits": [int(s["fits"]) for s in steps], "use": [round(s["utilisation"], 4) for s in steps],
        "phases": [[s["phases"].get(p, 0) for s in steps] for p in phases], **numbers, **_running(report),
        **_shares(steps)}


def _shares(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The spreads of points of steps, and variables and bytes that they are sent; none where the report has none."""
    there = all("points" in s and "received" in s for s in steps)
    return {"points": [s["points"] for s in steps] if there else [],
            "sent": [[n for pair in s["received"] for n in pair] if there else [] for s in steps]}


def _energy(report: Report) -> dict[str, Any] | None:
    """What the summary says of it, its categories, and the joules that each operator takes at least and at most in an
    update."""
    found = report.get("energy")
    if not found:
        return None
    bounds = [[float(f"{sum(of[end] for of in step.values()):.4g}") for step in found["steps"]] for end in (0, 1)]
    return {"sentences": f.energy(report),
            "categories": [[name, *v] for name, v in found["categories"].items() if v[1]],
            "least": bounds[0], "most": bounds[1]}


def _roofs(report: Report) -> dict[str, Any]:
    """What bounds operators: FLOP/s of an IPU for each type that some compute in, bytes that its tiles are sent in a
    second, and how many times as fast those arrive that neighbours are sent alike."""
    chip = report["chip"]
    found: dict[str, float] = {}
    for s in report["steps"]:
        if s["utilisation"] and s["flops"]:
            peak = s["flops"] * chip["clock_hz"] / (s["cycles"] * s["utilisation"])
            found.setdefault(f"{peak:.6g}", peak)
    return {"peaks": [[peak, f"peak {f.short(peak)}FLOP/s"] for peak in sorted(found.values())],
            "bytes": chip["tiles"] * _constant(report, "exchange_bytes_per_cycle") * chip["clock_hz"],
            "shared": _constant(report, "tiles_per_bus")}


def _running(report: Report) -> dict[str, Any]:
    """What steps need on their tiles: `on`, the spreads of these, and `needs`, pairs of a category and its bytes by
    step."""
    running, kinds = [s["running"] for s in report["steps"]], _kinds(report)
    names = sorted({name for r in running for name in r["bytes"]}, key=kinds.__getitem__)
    return {"on": [r["spread"] for r in running], "needs": [[kinds[name], [r["bytes"].get(name, 0) for r in running]] for name in names]}


def _parts(report: Report) -> list[list[Any]]:
    """Parts with the numbers of their first and last steps."""
    found: dict[str, list[Any]] = {}
    for s in report["steps"]:
        found.setdefault(s["part"], [s["part"], s["index"], s["index"]])[2] = s["index"]
    return list(found.values())


def _variables(variables: Sequence[Mapping[str, Any]], texts: Texts) -> dict[str, Any]:
    def never(value: int | None) -> int:
        return -1 if value is None else value
    return {
        "name": [texts.number(v["name"]) for v in variables], "kind": [texts.number(v["kind"]) for v in variables],
        "layer": [texts.number(v["layer"]) for v in variables], "dtype": [texts.number(v["dtype"]) for v in variables],
        "shape": [texts.number(f.shape(v["shape"])) for v in variables], "off": [int(v["off_chip"]) for v in variables],
        **{name: [never(v[name]) for v in variables] for name in ("birth", "death", "heir")},
        **{name: [v[field] for v in variables] for name, field in (("ipu", "ipu"), ("bytes", "bytes"), ("largest", "largest"), ("tiles", "tiles"),
                                                                   ("spread", "spread"), ("each", "element_bytes"), ("copies", "copies"))},
        "stays": [[step for stay in v["stays"] for step in stay] for v in variables]}


def _constant(report: Report, name: str) -> float:
    """A constant of the chip; 1 where the report does not have it."""
    return next((float(c["value"]) for c in report["chip"]["constants"] if c["name"] == name), 1)


def _kinds(report: Report) -> dict[str, int]:
    """Numbers of the categories of memory."""
    return {kind["name"]: i for i, kind in enumerate(report["memory"]["kinds"])}


def _chart(report: Report, texts: Texts) -> dict[str, Any]:
    """Bars of who works when, by start; and what the kinds of work look like."""
    chart = gantt.Chart(report)
    bars = sorted(chart.bars, key=lambda b: (b.ipu, b.start))
    names = gantt.kinds(chart)
    number = {name: i for i, name in enumerate(names)}
    return {
        "cycles": chart.clock, "hz": report["chip"]["clock_hz"], "ipus": chart.ipus,
        "kinds": [{"name": n, "colour": colour(n)} for n in names],
        "ipu": [b.ipu for b in bars], "kind": [number[b.kind] for b in bars], "part": [texts.number(b.part) for b in bars],
        "micro": [-1 if b.micro_batch is None else b.micro_batch for b in bars], "start": [b.start for b in bars], "length": [b.cycles for b in bars],
        "first": [b.first for b in bars], "last": [b.last for b in bars],
        "host": [[texts.number(b.part), b.start, b.cycles]
                 for b in sorted((*chart.beside, *(b for b in chart.bars if b.kind == "host")),
                                                                           key=lambda b: b.start)],
        "advice": gantt.advice(report) if report["ipus"] else []}


def _ipus(report: Report) -> list[list[Any]]:
    fields = ("utilisation", "busy", "worst", "always_live", "stashed", "sent", "streamed")
    return [[f"IPU {i['number']}", *(i[name] for name in fields)] for i in report["ipus"]]


def _tree(report: Report) -> list[dict[str, Any]]:
    """The schedule as a tree: each step with its words and its cycles; runs name the part whose operators they do."""
    cycles: dict[str, int] = {}
    for s in report["steps"]:
        cycles[s["part"]] = cycles.get(s["part"], 0) + s["cycles"]
    cycles |= {s["stream"]: s["cycles"] for s in report["streaming"]}
    crossing = {c["part"]: c["cycles"] for c in report["crossing"]}
    ipus: dict[str, set[int]] = {}
    for s in report["steps"]:
        ipus.setdefault(s["part"], set()).add(s["ipu"])
    kinds = {(c["part"], c["when"]): f"{c['kind']} over {c['replicas']} replicas" for c in report["collectives"]}
    together = {key: {"kind": "replicas", "words": kinds[key], "cycles": n, "notes": "", "steps": []} for key, n in f.waits(report).items()}
    return _branches(report["schedule"], (cycles, crossing, ipus, together))


_Facts = tuple[Mapping[str, int], Mapping[str, int], Mapping[str, set[int]], Mapping[tuple[str, str], dict[str, Any]]]
"""Cycles of parts, cycles of what crosses after them, the IPUs of each, and what replicas do together before or after it."""


def _branches(steps: Iterable[Mapping[str, Any]], facts: _Facts) -> list[dict[str, Any]]:
    """Steps, with what replicas do together before and after them."""
    found = []
    for step in steps:
        before, after = ([facts[3].get((step.get("part", ""), when))] for when in ("before", "after"))
        found += [branch for branch in (*before, _branch(step, facts), *after) if branch is not None]
    return found


def _together(branches: Iterable[Mapping[str, Any]]) -> int:
    """Cycles of one turn of branches that replicas take together, which the schedule does not know."""
    return sum(b["cycles"] if b["kind"] == "replicas" else b["times"] * _together(b["steps"]) for b in branches)


def _branch(step: Mapping[str, Any], facts: _Facts) -> dict[str, Any]:
    kind, (cycles, crossing, ipus, _) = step["kind"], facts
    words = STEP_WORDS.get(kind, kind)
    if "times" in step:
        words += f" {step['times']:,} ×"
        if step.get("counts"):
            words += f", {step['counts']}es" if str(step["counts"]).endswith("ch") else f", {step['counts']}s"
    inner, times = _branches((s for name in ("steps", "runs") for s in step.get(name, ())), facts), step.get("times", 1)
    taken = elapsed(from_data([step]), cycles, crossing) + times * _together(inner)
    found = {"kind": kind, "words": words, "cycles": taken, "times": times}
    if "load" in step:                                   # tensors pass to or from streaming memory: no operator runs
        found["words"] = f"{'load' if step['load'] else 'store'} what {step['part']} {'reads' if step['load'] else 'leaves'}"
    elif "part" in step:
        found["part"] = step["part"]
    on = sorted(ipus.get(step.get("part", ""), ())) or ([step["ipu"]] if "ipu" in step else [])
    where = [f"IPU{'s' * (len(on) > 1)} {', '.join(map(str, on))}"] if len(cycles) and on else []
    notes = where + ([f"{step['ahead']} ahead"] if step.get("ahead") else [])
    return {**found, "notes": ", ".join(notes), "steps": inner}


def _value(v: Any) -> str:
    if isinstance(v, Mapping):
        return ", ".join(f"{k}: {_value(x)}" for k, x in v.items()) or "none"
    if isinstance(v, list):
        return ", ".join(map(_value, v)) or "none"
    if isinstance(v, bool) or v is None:
        return {True: "yes", False: "no", None: "unknown"}[v]
    if isinstance(v, (int, float)):
        return f.short(v) if abs(v) >= 1e7 else f.digits(v, 6) if isinstance(v, float) else f"{v:,}"
    return str(v)
