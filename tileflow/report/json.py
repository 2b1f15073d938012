"""report.json: everything the tile machine found out about one program, as plain data with a versioned schema (`report.schema.json`, docs/report.md).

All other forms (text, page, trace) are made from this data alone, so a saved report can be rendered again at any time.
"""
from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..program.schedule import period, to_data
from ..system.errors import ReportError
from ..system.reading import read_text
from ..system.text import one_line
from ..system.version import VERSION
from ..tiles.plans.plan import step_names
from ..tiles.system.ipus import Ipu, always_live, counts
from . import facts
from .consistent import first_wrong
from .schema import checker

if TYPE_CHECKING:
    from ..tiles.hardware.chip import Chip
    from ..tiles.machine import TileProgram
    from ..tiles.plans.plan import Phases, TileStep
    from ..tiles.tiled import Lever

SCHEMA_VERSION = 6
"""The field `schema_version` of reports that are written; older ones down to `OLDEST` are read as well."""
FILE = "report.json"
"""The report's name in its folder."""
PHASES = ("compute", "exchange", "sync", "transform", "reduce")
LINES = ("steps", "variables", "spreads", "layouts")
"""Fields whose elements have a line each."""
Report = dict[str, Any]
"""A report as plain data, as its JSON has it; docs/report.md tells every field and its unit."""

def build(tiled: TileProgram, *, model: str = "", out_of_memory: BaseException | None = None,
          frontier: Sequence[Mapping[str, Any]] | None = None, notes: Sequence[str] = ()) -> Report:
    """The report of a tile program.

    Args:
        model: what to call the model, usually its path.
        out_of_memory: the error that will be raised after the report is written.
        frontier: the points of a search (each as plain data).
        notes: sentences that come before the report's own.
    """
    batching, names = tiled.program.batching, step_names([s.node for s in tiled.steps])
    variables = facts.Variables(tiled)
    worst = {"worst_tile": tiled.worst_tile, "worst": tiled.peak.max(initial=0), "mean": tiled.peak.mean() if tiled.peak.size else 0.0,
             "always_live": tiled.always_live, "peak": tiled.peak, "peak_step": tiled.peak_step, "categories": dict(tiled.categories)}
    report = {
        "schema_version": SCHEMA_VERSION, "made_by": f"tileflow {VERSION}", "model": model, "training": tiled.program.training,
        "notes": [*notes, *facts.notes(tiled)],
        "batching": {"micro_batch": batching.micro_batch, "gradient_accumulation": batching.gradient_accumulation,
                     "device_iterations": batching.device_iterations, "samples_per_update": tiled.samples_per_update},
        "replicas": counts(tiled.ipus, tiled.options.replicas, tiled.chip.links is not None),
        "collectives": list(tiled.collectives),
        "chip": _chip(tiled), "host": _host(tiled), "options": _plain(tiled.options),
        "totals": {"cycles": tiled.cycles_per_update, "seconds": tiled.seconds_per_update, "samples_per_second": tiled.samples_per_second,
                   "tflops": tiled.tflops, "peak_fraction": tiled.peak_fraction,
                   "flops": sum(s.flops for s in tiled.steps), "phases": _phases(tiled.phases)},
        "memory": {"bytes_per_tile": tiled.chip.usable_bytes, "fits": tiled.fits, "kinds": facts.kinds(tiled.categories), **worst,
                   "steps": facts.over_steps(tiled.measured)},
        "schedule": to_data(period(tiled.program.schedule)),
        "ipus": [_ipu(i, tiled.cycles_per_update + tiled.io.waits) for i in tiled.ipus],
        "staging": _staging(tiled),
        "crossing": [] if tiled.links is None else [{"part": part, "cycles": n} for part, n in tiled.links.cycles.items()],
        "streaming": [] if tiled.away is None else
        [{"stream": name, "bytes": n, "cycles": tiled.away.cycles[name]} for name, n in tiled.away.bytes.items()],
        "steps": [_step(s, names[s.node], int(b), moved, tiled, variables)
                  for s, b, moved in zip(tiled.steps, tiled.liveness, tiled.rearranged, strict=True)],
        "variables": variables.rows, "spreads": variables.spreads, "layouts": facts.layouts(tiled, variables),
        "energy": _energy(tiled), "efficiency": _efficiency(tiled),
        "levers_sought": tiled.tried is not None, "levers": [_lever(lever) for lever in tiled.tried or ()],
        "infeasible": [str(x) for x in tiled.infeasible],
        "out_of_memory": None if out_of_memory is None else _error(out_of_memory),
        "frontier": None if frontier is None else list(frontier),
    }
    return validate(_plain(report), "the report")


def _chip(tiled: TileProgram) -> dict[str, Any]:
    chip = tiled.whole
    constants = [{"name": name, "value": value, "kind": kind, "source": source} for name, value, kind, source in chip.constants()]
    return {"name": chip.name, "ipus": counts(tiled.ipus, 1)["ipus"], "tiles": chip.tiles, "bytes_per_tile": chip.bytes_per_tile,
            "clock_hz": chip.clock_hz, "constants": constants}


def _host(tiled: TileProgram) -> dict[str, Any]:
    streams = [{"name": t.name, "to_chip": t.to_chip, "bytes": t.nbytes, "cycles": t.cycles, "repeats": t.repeats,
                "part": t.part, "overlaps": share} for t, share in zip(tiled.transfers, tiled.io.shares, strict=True)]
    return {"streams": streams, "cycles_per_update": tiled.host_cycles, "waits": tiled.io.waits,
            "io_tiles": {"number": tiled.options.num_io_tiles, "bytes": tiled.io.tile_bytes}, "streaming_memory_cycles": tiled.streaming_cycles,
            "streaming_memory_bytes": tiled.off_chip}


def _ipu(ipu: Ipu, cycles: int) -> dict[str, Any]:
    return {"number": ipu.number, "worst": ipu.worst, "always_live": always_live(ipu), "busy": ipu.busy, "utilisation": ipu.busy / max(1, cycles),
            "stashed": ipu.stashed, "sent": ipu.sent, "streamed": ipu.streamed, "memory": facts.memory(ipu.memory)}


def _energy(tiled: TileProgram) -> dict[str, Any] | None:
    """None of a chip that says nothing of it."""
    if not tiled.chip.energy.rows():
        return None
    found = tiled.energy
    return {"total": found.total, "board": found.board, "bounds": found.bounds, "per_sample": found.per_sample,
            "delay": found.delay, "uncounted": found.uncounted, "categories": found.categories,
            "steps": [{name.replace(" ", "_"): bounds for name, bounds in step.items()} for step in found.steps]}


def _efficiency(tiled: TileProgram) -> dict[str, Any] | None:
    """None of a chip that says neither how large it is nor what it costs."""
    chip = tiled.chip
    if chip.area_mm2 is chip.cost is None:
        return None
    return {"area_mm2": chip.area_mm2, "cost": chip.cost,
            "samples_per_second_per_mm2": tiled.samples_per_second_per_mm2,
            "samples_per_second_per_cost": tiled.samples_per_second_per_cost}


def _staging(tiled: TileProgram) -> dict[str, Any] | None:
    staging = tiled.program.staging
    if staging is None:
        return None
    schedule = staging.pipeline_schedule if staging.strategy == "pipelined" else staging.liveness if staging.phases else ""
    return {"strategy": staging.strategy, "schedule": schedule, "automatic": staging.automatic}


def _phases(phases: Phases) -> dict[str, int]:
    return {name: int(getattr(phases, name)) for name in PHASES}


def _step(step: TileStep, name: str, tile_bytes: int, moved: int, tiled: TileProgram, variables: facts.Variables) -> dict[str, Any]:
    plan, origin, node = step.plan, step.node.origin, step.node
    flops = step.work.flops * step.times
    return {
        "index": step.index, "part": step.part, "ipu": step.ipu, "name": name, "op": node.op.name, "role": origin.role,
        "sources": list(origin.sources), "inputs": variables.numbers(node.operands, step.ipu), "outputs": variables.numbers(node.outputs, step.ipu),
        "repeats": step.repeats, "splits": plan.splits, "serial": plan.serial, "grains": plan.grains,
        "vertex": plan.vertex, "partials": plan.partials, "reduce_stages": plan.reduce_stages, "tiles": plan.tiles,
        "start_tile": plan.start_tile, "phases": _phases(step.phases), "cycles": step.phases.total,
        "cycles_per_update": step.phases.total * step.repeats, "flops": flops,
        "utilisation": _utilisation(step, flops, tiled.whole),
        "temp_bytes": plan.temp_bytes, "bound_bytes": plan.bound_bytes, "exchange_bytes": plan.exchange_bytes, "code_bytes": plan.code_bytes,
        "live_bytes": step.live_bytes, "tile_bytes": tile_bytes, "fits": plan.fits, "limit": plan.limit,
        "choice": None if plan.choice is None else _plain(plan.choice), "running": variables.running(step, moved, tiled.chip),
        "points": variables.points(step, tiled.chip), "received": variables.received(step, moved, tiled.chip),
    }


def _utilisation(step: TileStep, flops: float, chip: Chip) -> float:
    """Of what the chip could do at best in these cycles, in the type that the operator computes in."""
    operand = next((o for o in (*step.work.inputs, *step.work.outputs) if o is not None), None)
    if operand is None or not step.phases.total:
        return 0.0
    return flops * chip.clock_hz / (step.phases.total * chip.peak_flops(operand.dtype))


def _lever(lever: Lever) -> dict[str, Any]:
    return {"name": lever.name, "fits": lever.fits, "bytes": lever.bytes, "cycles": lever.cycles, "slower": lever.slower,
            "samples_per_second": lever.samples_per_second, "changes": _plain(lever.changes), "ipus": lever.ipus,
            "sentence": lever.sentence}


def _error(error: BaseException) -> dict[str, Any]:
    """The sentence and every public field of an error."""
    return {**{k: v for k, v in vars(error).items() if not k.startswith("_")}, "message": str(error)}


def _plain(value: Any) -> Any:
    """NumPy and dataclasses to what JSON has, texts without what is not printable. Numbers that are not finite become null: JSON has none."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, Mapping):
        return {one_line(k): _plain(v) for k, v in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def validate(report: Any, where: str) -> Report:
    """The report itself where it is one of this version; ReportError naming the first field that is wrong."""
    version = report.get("schema_version") if isinstance(report, Mapping) else None
    if version != SCHEMA_VERSION:
        raise ReportError(f"{where} has schema_version {version!r}, and this tileflow reads version {SCHEMA_VERSION}; "
                          "compile the model again.")
    wrong = checker()(report)
    wrong = wrong.lstrip(".") if wrong else first_wrong(report)
    if wrong:
        raise ReportError(f"{where} is damaged: {wrong}; compile the model again.")
    assert isinstance(report, dict)
    return report


def to_text(report: Report) -> str:
    """The file's text: one line per operator and variable, so that two reports compare line by line."""
    fields = []
    for name, value in report.items():
        if name in LINES:
            body = "[\n  " + ",\n  ".join(map(_dump, value)) + "\n ]" if value else "[]"
        else:
            body = _dump(value)
        fields.append(f" {json.dumps(name)}: {body}")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def load(path: str | os.PathLike[str]) -> Report:
    """Read and check a report: a report.json, or the folder with one.

    Raises:
        ReportError: it cannot be read, is not JSON, or is no report of this version.
    """
    where = Path(path)
    file = where / FILE if os.path.isdir(where) else where
    try:
        content = json.loads(read_text(file), parse_constant=_refuse)
    except OSError as error:
        raise ReportError(f"Report {file} cannot be read: {error.strerror or error}; write one with tileflow compile MODEL --machine "
                          "gc200 --report DIR.") from None
    except (ValueError, RecursionError) as error:
        raise ReportError(f"Report {file} is not valid JSON ({error}); compile the model again.") from None
    return validate(_plain(content), f"Report {file}")
