"""Colours that stand side by side are told apart by everybody: as people without one kind of cone see them,
simulated."""
from __future__ import annotations

import itertools

import numpy as np
import pytest

from tileflow.report import palette

SIGHTS = {
    "all colours": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""Linear RGB to linear RGB at full severity: Machado, Oliveira and Fernandes, A Physiologically-based Model for
Simulation of Color Vision Deficiency, IEEE TVCG 15 (6), 2009."""
APART = 20
"""In CIELAB; 2.3 is a just noticeable difference."""
TOGETHER = {
    "phases": ["compute", "exchange", "sync", "transform", "reduce", "host"],
    "memory": ["weights", "optimizer", "buffers", "constants", "code", "activations", "temporaries", "exchange"],
    "runs": ["forward", "recompute", "backward", "fold", "update", "replicas", "stream", "host", "exchange"],
}


def linear(colour):
    """#rrggbb as linear RGB."""
    value = np.array([int(colour[i:i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """Linear sRGB as CIELAB, white D65."""
    to_xyz = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                       [0.0193339, 0.1191920, 0.9503041]])
    xyz = to_xyz @ rgb / to_xyz.sum(1)
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def seen(colour, sight):
    return lab(np.clip(np.array(SIGHTS[sight]) @ linear(colour), 0, 1))


def luminance(colour):
    return np.array([0.2126, 0.7152, 0.0722]) @ linear(colour)


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("names", [*TOGETHER, "series"])
def test_colours_side_by_side_are_told_apart(names, sight):
    kind = "memory" if names == "memory" else ""
    colours = palette.SERIES if names == "series" else [palette.colour(name, kind) for name in TOGETHER[names]]
    apart = [float(np.linalg.norm(seen(a, sight) - seen(b, sight))) for a, b in itertools.combinations(colours, 2)]
    assert min(apart) > APART


@pytest.mark.parametrize("names", [*TOGETHER, "series"])
def test_what_stands_side_by_side_has_different_patterns(names):
    kind = "memory" if names == "memory" else ""
    colours = palette.SERIES if names == "series" else [palette.colour(name, kind) for name in TOGETHER[names]]
    numbers = [palette.patterns()[colour] for colour in colours]
    assert len({*numbers}) == len(numbers)


def test_colours_are_seen_on_both_papers():
    for colour in (*palette.KNOWN.values(), *palette.SERIES):
        if colour != palette.KNOWN["free"]:
            assert 1.05 / (luminance(colour) + 0.05) > 1.6, f"{colour} on white"
            assert (luminance(colour) + 0.05) / (luminance("#1a202a") + 0.05) > 1.6, f"{colour} on dark"


def test_the_simulation_mixes_up_what_such_people_mix_up():
    """Red and green without red or green cones; with all of them they are far apart."""
    pair = "#c03030", "#577000"
    apart = {sight: float(np.linalg.norm(np.subtract(*(seen(c, sight) for c in pair)))) for sight in SIGHTS}
    assert apart["all colours"] > 60 > 20 > apart["no green"]
