"""Colours of what reports draw, by name. What has none here gets one that follows from its name: new categories, phases and roles need no entry."""
from __future__ import annotations

import colorsys
import zlib

KNOWN = {
    "weights": "#4b69f0", "optimizer": "#692da5", "buffers": "#1ea5b4", "constants": "#96d269", "code": "#b4b4a5",
    "activations": "#ffa50f", "temporaries": "#e15a00", "exchange": "#0fa596", "exchange buffers": "#b43c69",
    "compute": "#4b69f0", "sync": "#b4c3e1", "transform": "#ffb41e", "reduce": "#d23c69", "forward": "#5a78ff",
    "recompute": "#f0b469", "backward": "#4b2dc3", "fold": "#d23c69", "update": "#00d2ff", "replicas": "#87d200",
    "stream": "#961e00", "more": "#adb5bd", "grain": "#e8590c", "memory": "#c92a2a", "free": "#dee2e6",
    "host": "#699600",
}
"""Tones that are seen on white and on dark paper. Those that stand beside each other (phases, categories of memory,
kinds of runs) are apart by at least 20 in CIELAB, also for people who see no red, no green or no blue: simulated by
tests/report/test_palette.py."""
PATTERNS = {
    "weights": 0, "optimizer": 1, "buffers": 2, "constants": 3, "code": 4, "activations": 5, "temporaries": 6,
    "exchange buffers": 7, "compute": 0, "exchange": 1, "sync": 2, "transform": 3, "reduce": 4, "host": 5,
    "forward": 0, "recompute": 2, "backward": 3, "fold": 4, "update": 6, "replicas": 7, "stream": 8, "more": 8,
}
"""Number of the pattern (0: none; the page's base.js draws them) in what has a colour: those beside each other have
different ones."""
SERIES = ("#3c3cb4", "#e1a55a", "#009687", "#c32d5a", "#9669ff", "#96d20f", "#5ac3ff", "#a55a2d")
"""Of what has no colour of its own, the largest first: as far apart as those."""


def colour(name: str, kind: str = "") -> str:
    """#rrggbb of a name. kind: "memory" for categories of memory, where `exchange` are buffers."""
    found = KNOWN.get("exchange buffers" if kind == "memory" and name == "exchange" else name)
    if found is not None:
        return found
    seed = zlib.crc32(name.encode())
    red, green, blue = colorsys.hls_to_rgb(seed % 360 / 360, 0.5 + seed // 360 % 10 / 100, 0.55)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def patterns() -> dict[str, int]:
    """The pattern of every colour that has a name or is of `SERIES`."""
    return {KNOWN[name]: number for name, number in PATTERNS.items()} | {c: i for i, c in enumerate(SERIES)}
