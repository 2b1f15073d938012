"""Colours of what reports draw, by name. What has none here gets one that follows from its name: new categories, phases and roles need no entry."""
from __future__ import annotations

import colorsys
import zlib

KNOWN = {
    "weights": "#4263eb", "optimizer": "#845ef7", "buffers": "#15aabf", "constants": "#82c91e", "code": "#868e96", "activations": "#f59f00",
    "temporaries": "#fd7e14", "exchange": "#12a594", "exchange buffers": "#d6517d", "compute": "#4c6ef5", "sync": "#adb5bd", "transform": "#f2a93b",
    "reduce": "#d6517d", "forward": "#4c6ef5", "recompute": "#f2a93b", "backward": "#845ef7", "fold": "#d6517d", "update": "#15aabf",
    "replicas": "#82c91e", "stream": "#fd7e14", "more": "#adb5bd", "grain": "#e8590c", "memory": "#c92a2a", "free": "#dee2e6",
    "host": "#5c940d",
}
"""Mid tones, which are told apart on white and on dark paper."""


def colour(name: str, kind: str = "") -> str:
    """#rrggbb of a name. kind: "memory" for categories of memory, where `exchange` are buffers."""
    found = KNOWN.get("exchange buffers" if kind == "memory" and name == "exchange" else name)
    if found is not None:
        return found
    seed = zlib.crc32(name.encode())
    red, green, blue = colorsys.hls_to_rgb(seed % 360 / 360, 0.5 + seed // 360 % 10 / 100, 0.55)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
