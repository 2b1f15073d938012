"""report.json: everything the tile machine found out about one program, as plain data with a versioned schema.

All other forms (text, page, trace) are made from this data alone, so a saved report can be rendered again at any time.

Schema, version 3 (`SCHEMA` below is the same thing in a form that `validate` checks). Cycles are the chip's clock cycles, bytes are
bytes of tile memory, every list named per tile has one element per tile of the machine in tile order.

    schema_version    3 (2 had no ipus, 1 no schedule); grows when a field that readers need comes, changes its meaning or goes away. Readers ignore
                      fields they do not know.
    made_by           name and version of the program that wrote it
    model, training   what was compiled, and whether for training
    batching          micro_batch, gradient_accumulation, device_iterations, samples_per_update
    chip              name, ipus (a program of one IPU: 1), tiles (per IPU), bytes_per_tile, clock_hz; constants: name, value, kind
                      ("documented", "estimate" or "user") and source of each
    host              streams between host and chip: name, to_chip (else from it), bytes and cycles each time, repeats per update;
                      cycles_per_update of all of them. They run beside the steps: the slower of the two decides totals.seconds.
                      streaming_memory_cycles: exchange with streaming memory per update, part of totals.cycles
    options           how the machine looked at it: available_memory_proportion, per_op, precision, serialized, ...
    totals            of one weight update (inference: one micro-batch): cycles, seconds, samples_per_second, tflops (achieved, 1e12
                      FLOP/s), peak_fraction (0 to 1), flops, phases (cycles by what they are spent on)
    memory            bytes_per_tile (what programs may use), fits, worst_tile, worst, mean, always_live and peak (per tile),
                      categories: name -> bytes per tile, at the step that decides each tile's peak
    schedule          of one weight update (inference: of one micro-batch): steps as `tileflow.schedule` has them, each with its kind, the
                      part that it runs and the IPU
    ipus              of a program in stages: number, worst and always_live (bytes on the fullest tile), busy (cycles of an update),
                      utilisation (0 to 1), stashed (bytes of micro-batches that wait, on all tiles), sent (bytes to other IPUs)
    crossing          part, and cycles that its results take from IPU to IPU after each run
    steps             the operators in the order in which they first run; per step: index, part, ipu, name, op, role, sources, repeats per update,
                      splits, serial, grains, vertex, partials, reduce_stages, tiles, start_tile, phases, cycles (one execution),
                      cycles_per_update, flops, temp_bytes, bound_bytes (null: none asked), exchange_bytes, code_bytes,
                      live_bytes (worst tile, not always live), tile_bytes (worst tile, everything), fits, limit
    infeasible        sentences: operators whose temporaries no plan keeps within the bound, and the like
    out_of_memory     null, or message: the error's sentence with tile, demand, bound, contributors and levers
    frontier          null, or the points that tuning tried: label, kind (sweep, search), proportion, per_op, cycles, bytes (worst
                      tile), fits, best
"""
from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ReportError
from ..reading import read_text
from ..schedule import from_data, period, to_data
from ..text import one_line
from ..tiles.ipus import Ipu, always_live
from ..tiles.plan import step_names
from ..version import VERSION

if TYPE_CHECKING:
    from ..tiles.machine import TileProgram
    from ..tiles.plan import Phases, TileStep

SCHEMA_VERSION = 3
FILE = "report.json"
PHASES = ("compute", "exchange", "sync", "transform", "reduce")
Report = dict[str, Any]

_PHASES = {name: int for name in PHASES}
SCHEMA: dict[str, Any] = {
    "schema_version": int, "made_by": str, "model": str, "training": bool,
    "batching": {"micro_batch": int, "gradient_accumulation": int, "device_iterations": int, "samples_per_update": int},
    "chip": {"name": str, "ipus": int, "tiles": int, "bytes_per_tile": int, "clock_hz": float,
             "constants": [{"name": str, "value": object, "kind": str, "source": str}]},
    "host": {"streams": [{"name": str, "to_chip": bool, "bytes": int, "cycles": int, "repeats": int}], "cycles_per_update": int,
             "streaming_memory_cycles": int},
    "options": {"available_memory_proportion": float, "per_op": {...: float}, "precision": str, "serialized": {...: object}},
    "totals": {"cycles": int, "seconds": float, "samples_per_second": float, "tflops": float, "peak_fraction": float, "flops": float,
               "phases": _PHASES},
    "memory": {"bytes_per_tile": int, "fits": bool, "worst_tile": int, "worst": int, "mean": float, "always_live": [int], "peak": [int],
               "categories": {...: [int]}},
    "schedule": [{"kind": str}],
    "ipus": [{"number": int, "worst": int, "always_live": int, "busy": int, "utilisation": float, "stashed": int, "sent": int}],
    "crossing": [{"part": str, "cycles": int}],
    "steps": [{"index": int, "part": str, "ipu": int, "name": str, "op": str, "role": str, "sources": [str], "repeats": int, "splits": {...: int},
               "serial": {...: int}, "grains": {...: int}, "vertex": str, "partials": str, "reduce_stages": int, "tiles": int,
               "start_tile": int, "phases": _PHASES, "cycles": int, "cycles_per_update": int, "flops": float, "temp_bytes": int,
               "bound_bytes": (int, None), "exchange_bytes": int, "code_bytes": int, "live_bytes": int, "tile_bytes": int, "fits": bool,
               "limit": str}],
    "infeasible": [str],
    "out_of_memory": ({"message": str}, None),
    "frontier": ([{"label": str, "kind": str, "proportion": (float, None), "per_op": {...: float}, "cycles": int, "bytes": int,
                   "fits": bool, "best": bool}], None),
}
"""A type, a table of fields ({...: t}: any names), a list of one kind, or a tuple of alternatives."""


def build(tiled: TileProgram, *, model: str = "", out_of_memory: BaseException | None = None,
          frontier: Sequence[Mapping[str, Any]] | None = None) -> Report:
    """The report of a tile program.

    Args:
        model: what to call the model, usually its path.
        out_of_memory: the error that will be raised after the report is written.
        frontier: the points of a search (`tiles.tune.Point.to_dict`).
    """
    batching, names = tiled.program.batching, step_names([s.node for s in tiled.steps])
    report = {
        "schema_version": SCHEMA_VERSION, "made_by": f"tileflow {VERSION}", "model": model, "training": tiled.program.training,
        "batching": {"micro_batch": batching.micro_batch, "gradient_accumulation": batching.gradient_accumulation,
                     "device_iterations": batching.device_iterations, "samples_per_update": samples_per_update(tiled)},
        "chip": _chip(tiled), "host": _host(tiled), "options": _plain(tiled.options),
        "totals": {"cycles": tiled.cycles_per_update, "seconds": tiled.seconds_per_update, "samples_per_second": tiled.samples_per_second,
                   "tflops": tiled.tflops, "peak_fraction": tiled.peak_fraction,
                   "flops": sum(s.flops for s in tiled.steps), "phases": _phases(tiled.phases)},
        "memory": {"bytes_per_tile": tiled.chip.usable_bytes, "fits": tiled.fits, "worst_tile": tiled.worst_tile,
                   "worst": tiled.peak.max(initial=0), "mean": tiled.peak.mean() if tiled.peak.size else 0.0,
                   "always_live": tiled.always_live, "peak": tiled.peak, "categories": dict(tiled.categories)},
        "schedule": to_data(period(tiled.program.schedule)),
        "ipus": [_ipu(i, tiled.cycles_per_update) for i in tiled.ipus],
        "crossing": [] if tiled.links is None else [{"part": part, "cycles": n} for part, n in tiled.links.cycles.items()],
        "steps": [_step(s, names[s.node], int(b)) for s, b in zip(tiled.steps, tiled.liveness, strict=True)],
        "infeasible": [str(x) for x in tiled.infeasible],
        "out_of_memory": None if out_of_memory is None else _error(out_of_memory),
        "frontier": None if frontier is None else list(frontier),
    }
    return validate(_plain(report), "the report")


def samples_per_update(tiled: TileProgram) -> int:
    """Samples of one weight update; inference has none, so there it is one micro-batch."""
    return tiled.program.rows_per_period


def _chip(tiled: TileProgram) -> dict[str, Any]:
    chip = tiled.chip
    constants = [{"name": name, "value": value, "kind": kind, "source": source} for name, value, kind, source in chip.constants()]
    return {"name": chip.name, "ipus": 1 + max((i.number for i in tiled.ipus), default=0), "tiles": chip.tiles, "bytes_per_tile": chip.bytes_per_tile,
            "clock_hz": chip.clock_hz, "constants": constants}


def _host(tiled: TileProgram) -> dict[str, Any]:
    streams = [{"name": t.name, "to_chip": t.to_chip, "bytes": t.nbytes, "cycles": t.cycles, "repeats": t.repeats} for t in tiled.transfers]
    return {"streams": streams, "cycles_per_update": tiled.host_cycles, "streaming_memory_cycles": tiled.streaming_cycles}


def _ipu(ipu: Ipu, cycles: int) -> dict[str, Any]:
    return {"number": ipu.number, "worst": ipu.worst, "always_live": always_live(ipu), "busy": ipu.busy, "utilisation": ipu.busy / max(1, cycles),
            "stashed": ipu.stashed, "sent": ipu.sent}


def _phases(phases: Phases) -> dict[str, int]:
    return {name: int(getattr(phases, name)) for name in PHASES}


def _step(step: TileStep, name: str, tile_bytes: int) -> dict[str, Any]:
    plan, origin = step.plan, step.node.origin
    return {
        "index": step.index, "part": step.part, "ipu": step.ipu, "name": name, "op": step.node.op.name, "role": origin.role,
        "sources": list(origin.sources), "repeats": step.repeats, "splits": plan.splits, "serial": plan.serial, "grains": plan.grains,
        "vertex": plan.vertex, "partials": plan.partials, "reduce_stages": plan.reduce_stages, "tiles": plan.tiles,
        "start_tile": plan.start_tile, "phases": _phases(step.phases), "cycles": step.phases.total,
        "cycles_per_update": step.phases.total * step.repeats, "flops": step.work.flops, "temp_bytes": plan.temp_bytes,
        "bound_bytes": plan.bound_bytes, "exchange_bytes": plan.exchange_bytes, "code_bytes": plan.code_bytes,
        "live_bytes": step.live_bytes, "tile_bytes": tile_bytes, "fits": plan.fits, "limit": plan.limit,
    }


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
        raise ReportError(f"{where} has schema_version {version!r}, and this tileflow reads version {SCHEMA_VERSION}; compile the model again.")
    wrong = _first_wrong(report, SCHEMA, "")
    if wrong:
        raise ReportError(f"{where} is damaged: {wrong}; compile the model again.")
    wrong = _wrong_tiles(report["memory"]) or _wrong_schedule(report["schedule"])
    if wrong:
        raise ReportError(f"{where} is damaged: {wrong}; compile the model again.")
    assert isinstance(report, dict)
    return report


def _wrong_tiles(memory: Mapping[str, Any]) -> str | None:
    """Why the lists per tile do not fit together, None where they do."""
    tiles = len(memory["always_live"])
    for name, values in {"peak": memory["peak"], **memory["categories"]}.items():
        if len(values) != tiles:
            return f"memory of {name} has {len(values)} tiles, always_live {tiles}"
    worst = memory["worst_tile"]
    return None if 0 <= worst < tiles else f"there are {tiles} tiles and no worst_tile {worst}"


def _wrong_schedule(schedule: Any) -> str | None:
    """Why it is no schedule, None where it is one."""
    try:
        from_data(schedule)
    except ValueError as error:
        return str(error)
    return None


def _first_wrong(value: Any, schema: Any, at: str) -> str | None:
    """Why `value` is not of the schema, None where it is."""
    if isinstance(schema, tuple):
        tries = [None if s is None and value is None else _first_wrong(value, s, at) for s in schema if s is not None or value is None]
        return None if None in tries else tries[0]
    if isinstance(schema, dict):
        return _wrong_table(value, schema, at)
    if isinstance(schema, list):
        if not isinstance(value, list):
            return f"{at} is {_kind(value)}, not a list"
        return next((w for i, v in enumerate(value) if (w := _first_wrong(v, schema[0], f"{at}[{i}]"))), None)
    if schema is object:
        return None
    right = isinstance(value, (int, float) if schema is float else schema) and (schema is bool or not isinstance(value, bool))
    return None if right else f"{at} is {_kind(value)}, not {schema.__name__}"


def _wrong_table(value: Any, schema: dict[Any, Any], at: str) -> str | None:
    if not isinstance(value, dict):
        return f"{at} is {_kind(value)}, not a table"
    if ... in schema:
        return next((w for k, v in value.items() if (w := _first_wrong(v, schema[...], f"{at}.{k}"))), None)
    for name, inner in schema.items():
        here = f"{at}.{name}".lstrip(".")
        if name not in value:
            return f"{here} is missing"
        wrong = _first_wrong(value[name], inner, here)
        if wrong:
            return wrong
    return None


def _kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"


def to_text(report: Report) -> str:
    """The file's text: one line per step, so that two reports compare line by line."""
    fields = []
    for name, value in report.items():
        if name == "steps":
            body = "[\n  " + ",\n  ".join(_dump(step) for step in value) + "\n ]" if value else "[]"
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
        ReportError: it cannot be read, is not JSON, or is not a report of this version.
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
