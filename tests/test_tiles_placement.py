"""Where tensors live on the tiles is a decision: what lies on few tiles is spread where that pays."""
from __future__ import annotations

import pytest
from tile_models import alone

import tileflow.ops  # noqa: F401   (registers the operators)
from tileflow.graph import OPS, TensorType
from tileflow.tiles.chip import chip
from tileflow.tiles.machine import analyze


@pytest.mark.parametrize(("op", "attributes"), [
    ("Repeat", {"axis": 3, "times": 2, "rows": 2}), ("Repeat", {"axis": 3, "times": 2}), ("Split", {"axis": 2, "sizes": (20, 30)}),
    ("CumSum", {"axis": 2})])
def test_moves_along_a_whole_axis_use_the_tiles_that_all_elements_fill(op: str, attributes: dict[str, int]) -> None:
    """A batch of 4 times 128 channels alone, 2 KB, would fill 16 tiles."""
    made = analyze(alone(OPS[op](**attributes), (TensorType("float32", (4, 128, 50, 38)),)), chip("gc200"))
    step = next(s for s in made.steps if s.node.op.name == op)
    assert step.plan.tiles >= 512
    assert made.peak.max() <= 3 * made.peak.mean()
