"""Gaps of the tiles that are laid out: bytes between variables that no other may use, because each keeps its address for as long as it lives."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import format as f

Layout = Mapping[str, Any]


def peak(report: Mapping[str, Any], laid: Layout) -> int:
    """Bytes on the tile when it is fullest."""
    memory = next((i["memory"] for i in report["ipus"] if i["number"] == laid["ipu"] and i["memory"]), report["memory"])
    return int(memory["peak"][laid["tile"]])


def gaps(report: Mapping[str, Any], laid: Layout) -> int:
    """Bytes that the tile must have beyond those, as it is laid out."""
    return int(laid["extent"]) - peak(report, laid)


def where(report: Mapping[str, Any], laid: Layout) -> str:
    """The tile in words."""
    return f"{laid['tile']} of IPU {laid['ipu']}" if report["ipus"] else f"{laid['tile']}"


def sentences(report: Mapping[str, Any]) -> list[str]:
    """What gaps cost at most, and which tiles hold what they have to only without them; none where nothing is laid out."""
    if not report["layouts"]:
        return []
    bound = report["memory"]["bytes_per_tile"]
    worst = max(report["layouts"], key=lambda laid: (laid["extent"], -laid["tile"]))
    said = [f"With gaps between variables tile {where(report, worst)} takes {f.count(worst['extent'])} bytes, {f.count(gaps(report, worst))} more "
            f"than what it holds."]
    beyond = [laid for laid in report["layouts"] if peak(report, laid) <= bound < laid["extent"]]
    if beyond:
        tiles = ", ".join(where(report, laid) for laid in beyond)
        said.append(f"What tile{'s' * (len(beyond) > 1)} {tiles} hold{'s' * (len(beyond) == 1)} adds up to no more than the {f.count(bound)} bytes "
                    f"that there are, but laid out with gaps it reaches beyond: whether the program fits depends on how well it is laid out.")
    return said
