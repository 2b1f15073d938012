"""Golden figures of the tile machine: cycles and bytes of small programs on several machines, as golden_tiles.json has them.

    python tests/oracle/golden_tiles.py --write        after a change of the model that is meant: look at the difference
"""
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import places

places.add_to_path()
from tile_models import PROGRAMS  # noqa: E402

from tileflow.tiles.hardware.chip import chip  # noqa: E402
from tileflow.tiles.machine import TileProgram, analyze  # noqa: E402
from tileflow.tiles.plans.plan import TileOptions  # noqa: E402

FILE = Path(__file__).with_name("golden_tiles.json")
SMALL = chip("gc200").variant(name="small", tiles=16)
HALF = TileOptions(precision="16.16", available_memory_proportion=0.2)

CASES: dict[str, tuple[str, Any, TileOptions]] = {
    "mlp training, gc2": ("mlp training", chip("gc2"), TileOptions()),
    "mlp training, gc200, 16.16": ("mlp training", chip("gc200"), HALF),
    "mlp inference, c600": ("mlp inference", chip("c600"), TileOptions()),
    "mlp inference, 16 tiles": ("mlp inference", SMALL, TileOptions()),
    "lenet training, gc200": ("lenet training", chip("gc200"), TileOptions()),
    "lenet training, bow, 16.32": ("lenet training", chip("bow"), TileOptions(precision="16.32")),
    "lenet inference, gc200": ("lenet inference", chip("gc200"), TileOptions()),
    "lenet training, 16 tiles": ("lenet training", SMALL, TileOptions()),
    "residual training, bow, 16.16": ("residual training", chip("bow"), HALF),
    "residual training, gc2": ("residual training", chip("gc2"), TileOptions()),
    "residual training, bow, recomputed": ("residual training", chip("bow"), TileOptions(precision="16.16", recompute=True)),
    "residual inference, gc200, 16.16": ("residual inference", chip("gc200"), HALF),
    "mixer training, gc200": ("mixer training", chip("gc200"), TileOptions()),
    "mixer training, bow, off-chip": ("mixer training", chip("bow"), TileOptions(optimizer_off_chip=True)),
    "mixer inference, gc200, 16.16": ("mixer inference", chip("gc200"), HALF),
}


def figures(tiled: TileProgram) -> dict[str, Any]:
    """What is compared: cycles by phase, bytes of the worst tile by category."""
    phases = {name: getattr(tiled.phases, name) for name in ("compute", "exchange", "sync", "transform", "reduce")}
    return {"cycles": tiled.cycles_per_update, **phases, "worst_bytes": int(tiled.peak[tiled.worst_tile]), "mean_bytes": int(tiled.peak.mean()),
            "always_live": int(tiled.always_live.max()), "fits": tiled.fits}


def measure(case: str) -> dict[str, Any]:
    """A case's figures now."""
    program, machine, options = CASES[case]
    return figures(analyze(PROGRAMS[program](), machine, options, {}))


if __name__ == "__main__":
    found = {case: measure(case) for case in CASES}
    if "--write" in sys.argv[1:]:
        FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    else:
        print(json.dumps(found, indent=1))
