"""Whether the parts of a report fit together: what a schema cannot say. Whoever draws a report may then take every number in it for what it says."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..program.schedule import from_data


def first_wrong(report: Mapping[str, Any]) -> str | None:
    """Why they do not, None where they do. The report has been checked by its schema."""
    return next(_wrong(report), None)


def _wrong(report: Mapping[str, Any]) -> Iterator[str]:
    try:
        from_data(report["schedule"])
    except ValueError as error:
        yield str(error)
    steps = len(report["steps"])
    kinds = {kind["name"] for kind in report["memory"]["kinds"]}
    of_ipus = [(f"ipus[{i}].memory", ipu["memory"]) for i, ipu in enumerate(report["ipus"]) if ipu["memory"] is not None]
    for at, memory in (("memory", report["memory"]), *of_ipus):
        yield from _tiles(at, memory, kinds)
        yield from _over_steps(at, memory, kinds, steps)
    yield from _steps(report, kinds)
    energy = report.get("energy")
    if energy is not None and len(energy["steps"]) != steps:
        yield f"energy.steps does not have bounds for each of the {steps} steps"
    yield from _variables(report)
    yield from _layouts(report, kinds)


def _tiles(at: str, memory: Mapping[str, Any], kinds: set[str]) -> Iterator[str]:
    """Lists per tile."""
    tiles = len(memory["always_live"])
    for name, values in {"peak": memory["peak"], "peak_step": memory["peak_step"], **memory["categories"]}.items():
        if len(values) != tiles:
            yield f"{at} of {name} has {len(values)} tiles, always_live {tiles}"
    if set(memory["categories"]) != kinds:
        yield f"{at}.categories are not those of memory.kinds"
    if not 0 <= memory["worst_tile"] < tiles:
        yield f"there are {tiles} tiles and no worst_tile {memory['worst_tile']}"


def _over_steps(at: str, memory: Mapping[str, Any], kinds: set[str], steps: int) -> Iterator[str]:
    """Lists per step; none where nothing runs."""
    over, tiles = memory["steps"], len(memory["always_live"])
    if not over["fullest"] and not over["categories"]:
        return
    if set(over["categories"]) != kinds or any(len(values) != steps for values in (over["fullest"], *over["categories"].values())):
        yield f"{at}.steps does not have a number for each of the {steps} steps"
    if not all(0 <= tile < tiles for tile in over["fullest"]) or not all(-1 <= step < steps for step in memory["peak_step"]):
        yield f"{at} names steps or tiles that there are not"


def _steps(report: Mapping[str, Any], kinds: set[str]) -> Iterator[str]:
    variables = len(report["variables"])
    for i, step in enumerate(report["steps"]):
        if step["index"] != i:
            yield f"steps[{i}].index is {step['index']}"
        if not all(0 <= n < variables for n in (*step["inputs"], *step["outputs"])):
            yield f"steps[{i}] names a variable that there is not"
        if not 0 <= step["running"]["spread"] < len(report["spreads"]):
            yield f"steps[{i}].running has a spread that there is not"
        if not 0 <= step.get("points", 0) < max(1, len(report["spreads"])):
            yield f"steps[{i}].points is a spread that there is not"
        if not all(len(pair) == 2 and -1 <= pair[0] < variables and pair[1] >= 0 for pair in step.get("received", ())):
            yield f"steps[{i}].received names a variable that there is not"
        if not set(step["running"]["bytes"]) <= kinds:
            yield f"steps[{i}].running is of a category that there is not"


def _variables(report: Mapping[str, Any]) -> Iterator[str]:
    steps, tiles, variables = len(report["steps"]), len(report["memory"]["always_live"]), report["variables"]
    for i, spread in enumerate(report["spreads"]):
        if len(spread) % 2 or min(spread, default=0) < 0 or sum(spread[::2]) != tiles:
            yield f"spreads[{i}] is not one of {tiles} tiles"
    for i, v in enumerate(variables):
        if v["heir"] is not None and not 0 <= v["heir"] < len(variables):
            yield f"variables[{i}] has an heir that there is not"
        if (v["birth"] is None) != (v["death"] is None) or (v["birth"] is not None and not 0 <= v["birth"] <= v["death"] < max(1, steps)):
            yield f"variables[{i}] lives at steps that there are not"
        if not all(len(stay) == 2 and 0 <= stay[0] <= stay[1] < max(1, steps) for stay in v.get("stays", [])):
            yield f"variables[{i}] stays at steps that there are not"
        if not 0 <= v["spread"] < len(report["spreads"]):
            yield f"variables[{i}] has a spread that there is not"


def _layouts(report: Mapping[str, Any], kinds: set[str]) -> Iterator[str]:
    steps, tiles, variables = len(report["steps"]), len(report["memory"]["always_live"]), len(report["variables"])
    ipus = {ipu["number"] for ipu in report["ipus"]} or {0}
    for i, laid in enumerate(report["layouts"]):
        if laid["ipu"] not in ipus or laid["tile"] >= tiles:
            yield f"layouts[{i}] is of a tile that there is not"
        for k, block in enumerate(laid["blocks"]):
            first, last = block["first"], block["last"]
            if block["variable"] is not None and not 0 <= block["variable"] < variables:
                yield f"layouts[{i}].blocks[{k}] is of a variable that there is not"
            if block["category"] not in kinds:
                yield f"layouts[{i}].blocks[{k}] is of a category that there is not"
            if block["start"] + block["bytes"] > laid["extent"]:
                yield f"layouts[{i}].blocks[{k}] ends beyond the extent"
            if (first is None) != (last is None) or (first is not None and not 0 <= first <= last < max(1, steps)):
                yield f"layouts[{i}].blocks[{k}] is there at steps that there are not"
