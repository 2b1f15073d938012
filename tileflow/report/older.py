"""Reports of older versions as reports of this one: what they did not have is empty, and a sentence says so."""
from __future__ import annotations

from typing import Any

OLDEST = 3
ALWAYS_LIVE = ("weights", "optimizer", "buffers", "constants", "code")
"""The categories of version 3 that are there all the time."""


def upgraded(report: Any) -> Any:
    """The report in the version of today. What is no table, of no version that is read, or damaged, is left as it is: it is refused with its reason
    where it is checked."""
    while isinstance(report, dict) and (upgrade := UPGRADES.get(_version(report))) is not None:
        try:
            report = upgrade(report)
        except (KeyError, TypeError, AttributeError):
            return {**report, "schema_version": NEWEST}
    return report


def _version(report: dict[str, Any]) -> int:
    found = report.get("schema_version")
    return found if isinstance(found, int) else 0


def _from_5(report: dict[str, Any]) -> dict[str, Any]:
    """What operators need on their tiles while they run, from which addresses on any tile follow, came with version 6."""
    note = "This report is of an older version: addresses are in it of the fullest tiles only; compile the model again for those of any."
    steps = [{**s, "running": None} for s in report["steps"]]
    return {**report, "schema_version": 6, "steps": steps, "notes": [*report["notes"], *([note] if report["layouts"] else [])]}


def _from_4(report: dict[str, Any]) -> dict[str, Any]:
    """Addresses, and what throughput levers gave, came with version 5."""
    known = report["totals"]["samples_per_second"]
    levers = [{**lever, "samples_per_second": known / lever["slower"] if lever["slower"] else 0.0} for lever in report["levers"]]
    note = "This report is of an older version: addresses on tiles are not in it; compile the model again for these."
    return {**report, "schema_version": 5, "layouts": [], "levers": levers, "levers_sought": bool(levers), "notes": [*report["notes"], note]}


def _from_3(report: dict[str, Any]) -> dict[str, Any]:
    memory, tiles = report["memory"], len(report["memory"]["peak"])
    new = {"kinds": [{"name": name, "always_live": name in ALWAYS_LIVE} for name in memory["categories"]], "peak_step": [-1] * tiles,
           "steps": {"fullest": [], "categories": {}}}
    note = "This report is of version 3: what is on a tile, what is live at a step, variables and utilisations are not in it."
    ipus_of_one = report["chip"]["ipus"]
    replicas = {"count": 1, "ipus": ipus_of_one, "all": ipus_of_one, "reserved": ipus_of_one}
    ipus = [{**ipu, "memory": None, "streamed": 0} for ipu in report["ipus"]]
    steps = [{**s, "inputs": [], "outputs": [], "utilisation": 0.0, "choice": None} for s in report["steps"]]
    options = {"per_ipu": {}, **report["options"]}
    told = {"notes": [note], "replicas": replicas, "collectives": [], "streaming": [], "staging": None, "options": options}
    return {**report, "schema_version": 4, **told, "memory": {**memory, **new}, "ipus": ipus, "steps": steps, "variables": [], "spreads": [],
            "levers": []}


UPGRADES = {3: _from_3, 4: _from_4, 5: _from_5}
"""From each version to the next."""
NEWEST = 1 + max(UPGRADES)
