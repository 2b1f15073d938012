"""Rearrangements on the tiles: what stays where it is, and who sends what a slice reads."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tile_checker import violations
from tile_models import alone

import tileflow.ops  # noqa: F401   (registers the operators)
from tileflow.exact.check import check
from tileflow.graph import OPS, Builder, Graph, TensorType
from tileflow.program.batching import Batching
from tileflow.program.program import Program
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.machine import TileProgram, analyze
from tileflow.tiles.placing.sending import sent_elements
from tileflow.tiles.plans.mapping import DimensionCut, Mapping
from tileflow.tiles.plans.plan import OpPlan, Phases, TileOptions, TileStep

FEW = chip("gc200").variant(name="few", tiles=64)


def after_a_product(name: str, **attributes: Any) -> tuple[TileProgram, TileStep]:
    """A batch of products, whose plan cuts several dimensions, and a rearrangement of what they make."""
    graph = Graph("moves")
    b = Builder(graph)
    x, y = (b.input(n, TensorType("float32", (8, 32, 48) if n == "x" else (8, 48, 40))) for n in "xy")
    z = b.MatMul(x, y)
    made = b.emit(OPS[name](**attributes), z)
    graph.outputs.extend(made if isinstance(made, (list, tuple)) else [made])
    tiled = analyze(Program.of(graph, Batching(1)), FEW, TileOptions())
    return tiled, tiled.steps[-1]


@pytest.mark.parametrize(("name", "attributes"), [("Transpose", {"perm": (2, 0, 1)}), ("Transpose", {"perm": (0, 2, 1)})])
def test_what_changes_the_order_of_dimensions_only_stays(name: str, attributes: dict[str, Any]) -> None:
    tiled, step = after_a_product(name, **attributes)
    of = tiled.memory_schedule.of
    before, after = (of[v].mapping for v in (step.node.inputs[0], step.node.outputs[0]))          # type: ignore[index]
    assert before is not None
    assert after is not None
    assert step.plan.tiles > 8
    assert step.phases.exchange == step.phases.sync == 0
    assert step.phases.transform > 0, "each tile turns what it has"
    np.testing.assert_array_equal(before.elements_per_tile(), after.elements_per_tile())
    assert violations(tiled) == []
    assert check(tiled).ok


def test_a_slice_of_a_dimension_that_is_whole_on_its_tiles_stays() -> None:
    """And one along a cut dimension travels."""
    tiled, step = after_a_product("Slice", starts=(1,), ends=(6,), axes=(0,))
    product = tiled.steps[0].plan.splits
    along = {axis: n for axis, n in product.items() if n > 1}
    names = {"b0": 0, "m": 1, "n": 2}
    for axis, place in names.items():
        tiled, step = after_a_product("Slice", starts=(1,), ends=(6,), axes=(place,))
        assert violations(tiled) == []
        assert check(tiled).ok
        if axis in along:
            assert step.phases.exchange > 0, axis
        elif "k" not in along:
            assert step.phases.exchange == 0, axis


@pytest.mark.parametrize(("first", "stop", "step"), [(0, 10, 1), (37, 64, 1), (5, 60, 7), (1, 64, 2)])
def test_tiles_send_what_a_slice_reads_of_theirs_and_nothing_else(first: int, stop: int, step: int) -> None:
    op = OPS["Slice"](starts=(first,), ends=(stop,), axes=(0,), steps=(step,))
    x = TensorType("float32", (64, 8))
    y = op.infer(x)[0]
    work = op.work([x], [y])
    # four rows on each of tiles 20 to 35
    layout = Mapping((DimensionCut(64, 4, ((16, 1),)), DimensionCut(8, 8)), 64, 20)
    plan = OpPlan({work.axes[0].name: 2}, "move", Phases(), 0, tiles=2)            # read by tiles 0 and 1
    sent = sent_elements(layout, work, work.inputs[0], x.shape, plan, y.size)      # type: ignore[arg-type]
    wanted = np.zeros(64, int)
    for row in range(first, stop, step):
        wanted[20 + row // 4] += 8
    np.testing.assert_array_equal(sent, wanted)


def test_a_slice_tells_its_readers_apart() -> None:
    """Operators alone, whose input lies in equal runs: none is better than it can be."""
    for starts, ends, steps in (((3, 0), (61, 8), (1, 1)), ((0, 2), (64, 7), (3, 2)), ((60, 0), (2, 8), (-2, 1))):
        op = OPS["Slice"](starts=starts, ends=ends, axes=(0, 1), steps=steps)
        tiled = analyze(alone(op, [TensorType("float32", (64, 8))]), FEW, TileOptions())
        assert violations(tiled) == []
        assert check(tiled).ok


def test_a_second_input_that_lies_elsewhere_is_brought() -> None:
    """A concatenation that stays where its largest input lies waits for the other."""
    graph = Graph("moves")
    b = Builder(graph)
    x, y = (b.input(n, TensorType("float32", (8, 32, 48) if n == "x" else (8, 48, 40))) for n in "xy")
    other = b.input("z", TensorType("float32", (8, 32, 30)))
    graph.outputs.append(b.Concat(b.MatMul(x, y), other, axis=2))
    tiled = analyze(Program.of(graph, Batching(1)), FEW, TileOptions())
    step = tiled.steps[-1]
    assert violations(tiled) == []
    assert check(tiled).ok
    least = 8 * 32 * 30 * 4 / 64 / (FEW.exchange_bytes_per_cycle * FEW.tiles_per_bus)
    assert step.phases.exchange >= 0.9 * least
