"""Recurrent layers on the tiles: directions, rows and hidden units are cut, and units of a row exchange their states at every step."""
from __future__ import annotations

import math
from typing import Any

import numpy as np
import paths
import pytest
from tile_checker import violations

import tileflow.ops  # noqa: F401   (registers the operators)
from tileflow.exact.check import check
from tileflow.exact.tiles import Tiles
from tileflow.graph import OPS, Builder, Graph, TensorType
from tileflow.graph.work import Stepwise
from tileflow.program.batching import Batching
from tileflow.program.program import Program
from tileflow.tiles.hardware.chip import Chip, chip
from tileflow.tiles.machine import TileProgram, analyze
from tileflow.tiles.plans.mapping import owned
from tileflow.tiles.plans.plan import OpPlan, Phases, TileOptions
from tileflow.tiles.plans.stepwise import SUMMED, plan_stepwise

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
KINDS: dict[str, dict[str, Any]] = {"RNN": {}, "GRU": {}, "GRU reset after": {"linear_before_reset": 1}, "LSTM": {"input_forget": 1},
                                    "LSTM rows first": {"layout": 1}}


def operator(name: str, hidden: int = 12, batch: int = 5, steps: int = 3, directions: int = 2) -> tuple[Any, list[TensorType | None]]:
    """A Recurrence and the types of what it reads: biases, lengths, a first state and, for an LSTM, peepholes, too."""
    kind = name.split()[0]
    more = KINDS[name]
    op = OPS["Recurrence"](kind=kind, direction="bidirectional" if directions == 2 else "forward", **more)
    wide, by_rows = GATES[kind] * hidden, bool(more.get("layout"))

    def floats(*shape: int) -> TensorType:
        return TensorType("float32", shape)
    state = floats(batch, directions, hidden) if by_rows else floats(directions, batch, hidden)
    types: list[TensorType | None] = [floats(directions, *((batch, steps) if by_rows else (steps, batch)), wide), floats(directions, wide, hidden)]
    types += [floats(directions, 2 * wide), TensorType("int32", (batch,)), state]
    return op, [*types, state, floats(directions, 3 * hidden)] if kind == "LSTM" else types


def work_of(name: str, **sizes: Any) -> Stepwise:
    op, types = operator(name, **sizes)
    work = op.work(types, op.infer(*types))
    assert isinstance(work, Stepwise)
    return work


def analysed(name: str, machine: Chip, options: TileOptions | None = None, **sizes: Any) -> TileProgram:
    op, types = operator(name, **sizes)
    graph = Graph("layer")
    b = Builder(graph)
    values = [None if t is None else b.input(f"x{i}", t) for i, t in enumerate(types)]
    graph.outputs.extend(b.emit(op, *values))
    return analyze(Program.of(graph, Batching(1)), machine, options or TileOptions())


def given(types: list[TensorType | None], rng: np.random.Generator, steps: int) -> list[Any]:
    return [None if t is None else rng.integers(0, steps + 1, t.shape).astype("int32") if t.dtype == "int32" else
            rng.standard_normal(t.shape).astype("float32") / math.sqrt(t.shape[-1]) for t in types]


@pytest.mark.parametrize("name", KINDS)
def test_parts_of_units_compute_what_the_whole_does(name: str) -> None:
    """Forward and backward, in uneven parts of directions, rows and units, by exchanging states or partial sums at every product."""
    op, types = operator(name)
    arrays = given(types, np.random.default_rng(3), 3)
    wanted = op.reference(*arrays)
    lengths, h, c, p = [*arrays[3:], None, None][:4]
    grad = OPS["RecurrenceGrad"](**op.attributes())
    back = [wanted[0] + 1, wanted[1], None if c is None else wanted[2], arrays[1], lengths, h, c, p, wanted[0], wanted[-1]]
    for which, inputs in ((op, arrays), (grad, back)):
        whole = which.reference(*inputs)
        for splits, summed in (
            ({"n": 5}, 1),
            ({"d": 2, "b": 2, "n": 12}, 1),
            ({"b": 5, "n": 3}, 1),
            ({"b": 2, "n": 6}, 3),
            ({"d": 2, "n": 4}, 4),
            ({"b": 2, "n": 5}, 3),
            ({"d": 2, "n": 6}, 4),
        ):
            plan = OpPlan(splits, "hmac", Phases(), 0, tiles=math.prod(splits.values()), notes={SUMMED: summed})
            tiles = Tiles(64, 1 << 20)
            found = tiles.run(which, plan, inputs)
            for a, b in zip(found, whole, strict=True):
                assert np.abs(b).max() > 0.01
                np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
            assert len(tiles.traffic.tiles) > 3


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("precision", ["32.32", "16.16"])
def test_plans_are_no_better_than_they_can_be_and_run(name: str, precision: str) -> None:
    tiled = analysed(name, chip("gc200").variant(tiles=64), TileOptions(precision=precision))
    assert violations(tiled) == []
    report = check(tiled)
    assert report.ok, report.to_text()


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("LSTM", {"hidden": 53, "batch": 2, "directions": 1}),
        paths.rare("RNN", {"hidden": 101, "batch": 3, "directions": 1}),
        paths.rare("GRU", {"hidden": 47, "batch": 9}),
        paths.rare("GRU reset after", {"hidden": 61, "batch": 1, "directions": 1}),
    ],
)
def test_units_in_unequal_parts_are_run_as_planned(name: str, sizes: dict[str, int]) -> None:
    """A prime number of units, on tiles of which each has several, the last one fewer; their products together, too."""
    tiled = analysed(name, chip("gc200").variant(tiles=16, sync_cycles=1, launch_cycles=0), **sizes)
    (step,) = (s for s in tiled.steps if isinstance(s.work, Stepwise))
    assert 1 < step.plan.splits["n"] < sizes["hidden"]
    assert violations(tiled) == []
    report = check(tiled)
    assert report.ok, report.to_text()


def test_what_lies_otherwise_than_it_is_read_is_brought_once() -> None:
    """Of 53 units in unequal parts a tile is brought its weights and inputs; of 52 in equal ones it has them."""
    machine = chip("gc200").variant(tiles=13)
    odd, even = (plan_stepwise(work_of("LSTM", hidden=n, batch=1, steps=20, directions=1), machine) for n in (53, 52))
    assert (odd.splits["n"], even.splits["n"]) == (11, 13)
    assert odd.temp_bytes >= 4 * 5 * (53 + 20) * 4 > even.temp_bytes


def test_units_are_cut_where_rows_are_few() -> None:
    """One row of 512 units: 8 tiles had the rows of eight, this had one."""
    work = work_of("LSTM", hidden=512, batch=1, steps=20, directions=1)
    plan = plan_stepwise(work, chip("gc200"))
    alone = plan_stepwise(work, chip("gc200").variant(tiles=1))
    assert plan.splits["n"] >= 64
    assert plan.phases.total < alone.phases.total / 20
    assert plan.phases.exchange >= 20 * (512 - 512 // plan.splits["n"]) * 4 / 8, "all other units' states come at each step"
    assert plan.phases.sync >= 20 * chip("gc200").sync_cycles


def test_a_second_product_is_a_second_exchange() -> None:
    """A GRU that resets the state before its product waits twice a step."""
    before, after = (plan_stepwise(work_of(name, hidden=64, batch=1, steps=20, directions=1), chip("gc200"))
                     for name in ("GRU", "GRU reset after"))
    assert before.splits["n"] > 1 < after.splits["n"]
    assert not before.notes
    assert not after.notes
    assert before.phases.sync - after.phases.sync >= 20 * chip("gc200").sync_cycles
    assert before.phases.exchange > 1.9 * after.phases.exchange


def test_products_are_done_together_where_units_are_many() -> None:
    """Of 2048 units each tile gets an eighth of the states: less exchange, and no slower than each for itself."""
    machine = chip("gc200")
    work = work_of("LSTM", hidden=2048, batch=1, steps=20, directions=1)
    plan = plan_stepwise(work, machine)
    assert plan.notes[SUMMED] > 1
    assert plan.gathered < 20 * 2048 * 4 / 8, "less than the states of all other units, at a bus's rate"
    assert plan.reduce_stages > 0
    assert plan.phases.reduce > 0


def test_each_tile_keeps_the_weights_of_its_units_of_every_gate() -> None:
    work = work_of("LSTM", hidden=12, directions=1)
    plan = OpPlan({"n": 4}, "hmac", Phases(), 0, tiles=4)
    mapping = owned(work, work.inputs[1], (1, 48, 12), plan, 16)                      # type: ignore[arg-type]
    lies = np.full(48 * 12, -1)
    for tile, start, stop in mapping.intervals():
        lies[start:stop] = tile
    rows = lies.reshape(4, 12, 12)
    assert (rows == np.repeat(np.arange(4), 3)[None, :, None]).all()


def test_a_lower_proportion_takes_fewer_temporaries() -> None:
    """At the price of cycles; and what no plan can keep is said."""
    work = work_of("LSTM", hidden=1024, batch=64, steps=4, directions=1)
    machine = chip("gc200")
    fastest, none = plan_stepwise(work, machine), plan_stepwise(work, machine, 1)
    between = plan_stepwise(work, machine, (fastest.temp_bytes + none.temp_bytes) // 2)
    assert fastest.fits
    assert between.fits
    assert between.temp_bytes <= (fastest.temp_bytes + none.temp_bytes) // 2 < fastest.temp_bytes
    assert between.phases.total > fastest.phases.total
    assert not none.fits
