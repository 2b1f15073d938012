"""Where tensors live on the tiles is a decision: what lies on few tiles is spread where that pays."""
from __future__ import annotations

import functools

import numpy as np
import paths
import pytest
from evaluate import run_kernel
from test_tile_checker import CHIPS
from tile_models import alone, build
from tile_zoo import ZOO

import tileflow.nn as nn
import tileflow.ops  # noqa: F401   (registers the operators)
from tileflow.exact import Tiles, check
from tileflow.graph import OPS, TensorType, type_of
from tileflow.nn.tensor import Tensor
from tileflow.optim import AdamW
from tileflow.program.program import Program
from tileflow.tiles.hardware.chip import Chip, chip
from tileflow.tiles.machine import analyze
from tileflow.tiles.plans.lookup import Kept, plan_lookup
from tileflow.tiles.plans.plan import TileOptions

rng = np.random.default_rng(0)
SAMPLE = {("words training", "gc2"), ("lenet training", "gc200"), ("instance norm training", "mine"), ("transformer inference", "gc2")}
"""Of networks and chips, for every change."""


@pytest.mark.parametrize(("op", "attributes"), [
    ("Repeat", {"axis": 3, "times": 2, "rows": 2}), ("Repeat", {"axis": 3, "times": 2}), ("Split", {"axis": 2, "sizes": (20, 30)}),
    ("CumSum", {"axis": 2})])
def test_moves_along_a_whole_axis_use_the_tiles_that_all_elements_fill(op: str, attributes: dict[str, int]) -> None:
    """A batch of 4 times 128 channels alone, 2 KB, would fill 16 tiles."""
    made = analyze(alone(OPS[op](**attributes), (TensorType("float32", (4, 128, 50, 38)),)), chip("gc200"))
    step = next(s for s in made.steps if s.node.op.name == op)
    assert step.plan.tiles >= 512
    assert made.peak.max() <= 3 * made.peak.mean()


def test_element_wise_work_leaves_few_tiles_where_that_pays() -> None:
    """What goes along all of a row is on two tiles; what follows it is not, and the tiles compute it so. Short rows
    stay."""
    class Sums(nn.Module):
        def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
            return x.apply("CumProdGrad", x, axis=1).tanh().exp()

    for size, spread in ((20_000, True), (200, False)):
        made = analyze(build(Sums(), (2, size), False), chip("gc200"))
        tiles = [s.plan.tiles for s in made.steps if s.plan.vertex != "none"]
        assert tiles[0] == 2
        assert (min(tiles[1:]) > 300) is spread
        assert check(made).ok


# ---- every operator


def rises(name: str, machine: Chip, precision: str) -> list[float]:
    """By how much the fullest tile holds more with each lower proportion than with any higher one."""
    peaks: list[int] = []
    found = []
    for proportion in (0.6, 0.4, 0.2, 0.1, 0.05):
        peaks.append(int(analyze(ZOO[name](), machine, TileOptions(available_memory_proportion=proportion, precision=precision)).peak.max()))
        found.append(max(peaks[-1] / p for p in peaks))
    return found


@pytest.mark.parametrize(("name", "machine"), [
    pytest.param(name, m, marks=() if (name, m.name) in SAMPLE else paths.exhaustive, id=f"{name}-{m.name}") for name in ZOO for m in CHIPS])
def test_a_lower_proportion_never_needs_more_memory(name: str, machine: Chip) -> None:
    """Down to 0.05; below that code may outgrow what it saves."""
    for precision in ("32.32", "16.16"):
        assert max(rises(name, machine, precision)) <= 1.05, precision


def test_reductions_respect_the_proportion() -> None:
    """A normalisation brings its scale to every tile that has rows: with fewer temporaries it is cut so that each needs less of it."""
    def network() -> Program:
        return build(nn.Sequential(nn.LayerNorm((4096,)), nn.Softmax(1)), (64, 4096), False)
    made = {p: analyze(network(), chip("gc200"), TileOptions(available_memory_proportion=p)) for p in (0.6, 0.001)}
    for proportion, found in made.items():
        for step in found.steps:
            assert step.plan.temp_bytes <= chip("gc200").bound(proportion), (proportion, step.node.op.name, step.plan.temp_bytes)


# ---- tables


class Words(nn.Module):
    """A table of words, a layer and a classifier over [batch, words]."""

    def __init__(self, words: int, width: int) -> None:
        self.table, self.hidden, self.out = nn.Embedding(words, width), nn.Linear(width, width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        return self.out(self.hidden(self.table(x)).relu().mean(1))


@functools.cache
def words(training: bool = True) -> Program:
    """The table is nearly all of the network: 20,000 words of 64 numbers."""
    return build(Words(20_000, 64), (8, 64), training, optimizer=AdamW(lr=1e-3), dtype="int64")


@pytest.mark.parametrize("machine", ["gc2", "gc200"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_a_table_and_its_moments_are_spread_whatever_the_proportion(machine: str, training: bool) -> None:
    """No tile holds more beyond its share of the table than a sixteenth of it and what the proportion allows; a lower one needs no more memory."""
    target = chip(machine)
    peaks = []
    for proportion in (0.6, 0.2, 0.05, 0.02, 0.01):
        made = analyze(words(training), target, TileOptions(available_memory_proportion=proportion), {})
        tables = [s for s in made.memory_schedule.storages if s.shape == (20_000, 64) and s.always_live and s.mapping is not None]
        assert len(tables) == (3 if training else 1)
        even = 20_000 * 64 * 4 * len(tables) / target.tiles
        held = sum(int(s.mapping.bytes_per_tile(4).max()) for s in tables if s.mapping is not None)
        assert held <= 1.0625 * even + target.bound(proportion) + 4, proportion
        peaks.append(int(made.peak.max()))
    assert all(after <= 1.05 * before for i, after in enumerate(peaks) for before in peaks[:i])


def test_steps_of_the_update_are_priced_with_the_place_of_a_table() -> None:
    """By columns the lookup itself is quicker; with the update of a table on so few tiles it is not. A table that nobody updates may lie so."""
    target = chip("gc200")
    work = OPS["Gather"]().work((TensorType("float32", (30_000, 768)), TensorType("int64", (64,))), (TensorType("float32", (64, 768)),))
    alone_, updated = plan_lookup(work, target), plan_lookup(work, target, None, Kept(12, 50.0))      # type: ignore[arg-type]
    assert alone_.tiles < updated.tiles >= 1300
    assert alone_.phases.total < updated.phases.total
    narrow = plan_lookup(work, target, 20_000, Kept(12))              # type: ignore[arg-type]
    assert narrow.notes["rows"] * -(-768 // (narrow.splits["b"])) * 12 <= 1.0625 * 30_000 * 768 * 12 / target.tiles + 20_000


@pytest.mark.parametrize(("op", "attributes", "shapes"), [
    ("Gather", {}, ((300, 24), (5, 37))), ("Gather", {"axis": 1}, ((6, 300), (37,))), ("GatherGrad", {"shape": (300, 24)}, ((5, 37, 24), (5, 37)))])
def test_lookups_one_after_the_other_need_less_and_give_the_same(op: str, attributes: dict[str, object], shapes: tuple[tuple[int, ...], ...]) -> None:
    """Temporaries are within any bound that holds one lookup, and the tiles compute what the whole operator does."""
    made = OPS[op](**attributes)
    arrays = [rng.standard_normal(shapes[0]).astype(np.float32), rng.integers(0, 300, shapes[1])]
    wanted = run_kernel(made, *arrays)
    work = made.work([type_of(a) for a in arrays], [type_of(y) for y in wanted])
    target, serial, cycles = chip("gc200").variant(tiles=8), 0, 0
    for bound in (None, 4000, 1000, 300):
        plan = plan_lookup(work, target, bound, Kept(12))             # type: ignore[arg-type]
        assert plan.fits, bound
        assert bound is None or plan.temp_bytes <= bound
        assert plan.phases.total >= cycles
        serial, cycles = serial + len(plan.serial), plan.phases.total
        found = Tiles(8, 1 << 16).run(made, plan, arrays)
        np.testing.assert_allclose(found[0], wanted[0], atol=1e-5)
    assert serial, "no plan was serial"


def test_the_planned_words_are_computed() -> None:
    """A whole program with its table cut by rows, in several steps."""
    program = build(Words(400, 16), (4, 64), optimizer=AdamW(lr=1e-3), dtype="int64")
    made = analyze(program, chip("gc200").variant(tiles=16), TileOptions(available_memory_proportion=0.002), {})
    assert any(s.plan.vertex in ("gather", "scatter") and s.plan.serial for s in made.steps)
    report = check(made)
    assert report.ok, report.to_text()
