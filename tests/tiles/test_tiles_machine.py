"""The tile machine on whole programs: costs add up, everything is placed, levers do what they say."""
from __future__ import annotations

import functools
import json
import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import paths
import pytest
from evaluate import evaluate
from golden_tiles import CASES, FILE, measure
from operators import OPS, declared, examples, f
from samples import Case
from tile_models import PROGRAMS, Mixer, Residual, alone, build, lenet, mlp

import tileflow
from tileflow import exact, nn
from tileflow.exact.boxes import parts_of
from tileflow.graph import Op, verify
from tileflow.graph.work import Gather, Scatter
from tileflow.optim import Adam
from tileflow.program.program import Program
from tileflow.system.errors import OutOfTileMemoryError
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.limits import bisect, largest_square_matmul, square_matmul
from tileflow.tiles.machine import TileProgram, analyze
from tileflow.tiles.plans.plan import Phases, TileOptions
from tileflow.tiles.program.recompute import recomputed
from tileflow.tiles.system.streaming import streaming_cycles

GC200, SMALL = chip("gc200"), chip("gc200").variant(name="small", tiles=16)
DECLARED = list(declared())
LONG = ("Trees", "TopK", "Recurrence", "RecurrenceGrad")
"""Compile kernels of their own for a second or more, sample by sample. The first of each is run at every change."""
EXAMPLES = list(examples())
WRITTEN = EXAMPLES[:len(EXAMPLES) - len(DECLARED)]


def check(tiled: TileProgram) -> None:
    """What holds for every program."""
    total = Phases()
    for step in tiled.steps:
        assert min(vars(step.phases).values()) >= 0
        total = total + step.phases.times(step.repeats)
    assert total == tiled.phases
    assert total.total == tiled.cycles_per_update
    assert np.array_equal(sum(tiled.categories.values()), tiled.peak)
    assert (tiled.always_live <= tiled.peak).all()
    assert tiled.liveness.max(initial=0) <= tiled.peak.max(initial=0)
    assert len(tiled.liveness) == len(tiled.steps)
    assert tiled.fits == (tiled.peak.max(initial=0) <= tiled.chip.usable_bytes)
    assert round(tiled.seconds_per_update * tiled.chip.clock_hz) >= max(1, total.total)
    assert 0 <= tiled.peak_fraction <= 1


def flops_of_parts(tiled: TileProgram, at: int) -> float:
    """FLOPs that all tiles together do in a step."""
    step = tiled.steps[at]
    if step.plan.layout is not None:
        return float(step.plan.layout.elements_per_tile().sum() * step.work.flops_per_point)
    axes = {a.name for a in step.work.axes}
    plan = replace(step.plan, splits={a: n for a, n in step.plan.splits.items() if a in axes})
    boxes = [box for part in parts_of(step.work, plan, tiled.chip.tiles) for box in part.boxes]
    space = {a.name for a in step.work.space}
    points = sum(math.prod(hi - lo for axis, (lo, hi) in box.items() if axis in space) for box in boxes)
    return points * step.work.flops_per_point


@pytest.mark.parametrize("precision", ["32.32", "16.16"])
@pytest.mark.parametrize("machine", [SMALL, GC200], ids=["small", "gc200"])
def test_costs_add_up_for_every_operator(machine: Any, precision: str) -> None:
    assert {op.name for op, _ in EXAMPLES} == {name for name, kind in OPS.items() if kind.work is not Op.work}
    for op, types in EXAMPLES:
        tiled = analyze(alone(op, types), machine, TileOptions(precision=precision))
        check(tiled)
        assert not tiled.infeasible
        step, = tiled.steps
        assert step.plan.tiles <= machine.tiles
        if step.plan.vertex != "none":
            assert tiled.cycles_per_update > 0, op
            assert flops_of_parts(tiled, 0) == pytest.approx(step.work.flops, rel=1e-12), op
        for value in (*step.node.operands, *step.node.outputs):
            mapping = tiled.mapping(value)
            assert mapping.size == value.type.size, op
            runs = mapping.intervals()
            assert np.array_equal(runs[1:, 1], runs[:-1, 2]), op
            assert not value.type.size or (runs[0, 1], runs[-1, 2]) == (0, value.type.size), op


@pytest.mark.parametrize(("op", "types"), WRITTEN, ids=[f"{i}-{op.name}" for i, (op, _) in enumerate(WRITTEN)])
def test_written_examples_can_be_executed(op: Op, types: Any) -> None:
    """Tile by tile, from only what the plan brings there."""
    report = exact.check(analyze(alone(op, types), SMALL))
    assert report.ok, f"{op}: {report.to_text()}"


@pytest.mark.parametrize("case", [(paths.rare if c.op.name in LONG and not c.name.endswith("-0") else pytest.param)(c, id=c.name) for c in DECLARED])
def test_declared_samples_can_be_executed(case: Case) -> None:
    """On the operands that they declare: tables of links, drawn at random, lead nowhere."""
    feeds = {f"x{i}": a[None] for i, a in enumerate(case.arrays()) if a is not None}
    report = exact.check(analyze(alone(case.op, tuple(case.types)), SMALL), feeds=feeds)
    assert report.ok, f"{case.op}: {report.to_text()}"


@pytest.mark.parametrize(("program", "options"), [
    (lambda: build(Mixer(2, 8, 32), (4, 8, 32), accumulation=2, optimizer=Adam()), TileOptions(recompute=True)),
    paths.rare(lambda: build(Residual((1,), 8, 10), (2, 3, 16, 16), accumulation=2), TileOptions(recompute=True, precision="16.16")),
    (lambda: build(mlp(64, 64, 16), (16, 64), False), TileOptions(serialized={"0": ("output_channels", 4), "2": ("reducing_dim", 4)})),
], ids=["recomputed", "recomputed in half", "in pieces"])
def test_programs_under_every_lever_can_be_executed(program: Any, options: TileOptions) -> None:
    report = exact.check(analyze(program(), SMALL, options))
    assert report.ok, report.to_text()


@pytest.mark.parametrize("name", PROGRAMS)
def test_costs_add_up_for_programs(name: str) -> None:
    for machine in (SMALL, GC200):
        tiled = analyze(PROGRAMS[name](), machine)
        check(tiled)
        for graph in tiled.program.graphs:
            for value in [*graph.inputs, *graph.constants, *(s.input for s in graph.states), *(v for n in graph.nodes for v in n.outputs)]:
                assert tiled.mapping(value).elements_per_tile().sum() == value.type.size


@pytest.mark.parametrize("case", CASES)
def test_golden_figures(case: str) -> None:
    """A change of these is a change of the model: see golden_tiles.py."""
    assert measure(case) == json.loads(FILE.read_text())[case]


def test_micro_batches_repeat_and_updates_do_not() -> None:
    once, four = (analyze(build(lenet(), (8, 1, 28, 28), accumulation=n), GC200) for n in (2, 8))
    by_part = {part: sum(s.phases.total for s in once.steps if s.part == part) for part in ("micro", "fold", "update", "prologue")}
    assert four.cycles_per_update - once.cycles_per_update == 6 * (by_part["micro"] + by_part["fold"])
    assert four.samples_per_second * four.seconds_per_update == pytest.approx(64)


def test_tiles_wait_for_the_hosts_streams() -> None:
    tiled = analyze(build(mlp(64, 8), (16, 64), False), GC200)
    assert [(t.to_chip, t.nbytes) for t in tiled.transfers] == [(True, 16 * 64 * 4), (False, 16 * 8 * 4)]
    slow = analyze(tiled.program, GC200.variant(host_bytes_per_second=1e6))
    assert slow.cycles_per_update == tiled.cycles_per_update
    assert slow.seconds_per_update * GC200.clock_hz == pytest.approx(slow.host_cycles + slow.cycles_per_update)
    assert slow.host_cycles > slow.cycles_per_update


def test_half_precision_halves_activations_and_weights() -> None:
    program = build(mlp(256, 256, 256), (256, 256), False)
    full, half = (analyze(program, SMALL, TileOptions(precision=p)) for p in ("32.32", "16.32"))
    for name in ("weights", "activations"):
        assert half.categories[name].sum() == pytest.approx(full.categories[name].sum() / 2, rel=0.01)


def test_an_element_wise_step_after_a_product_moves_nothing() -> None:
    tiled = analyze(build(mlp(512, 512, 512), (64, 512), False), GC200)
    step = next(s for s in tiled.steps if s.node.op.name == "Relu")
    assert step.phases.exchange == step.phases.sync == step.phases.transform == 0
    assert tiled.mapping(step.node.inputs[0]) == tiled.mapping(step.node.outputs[0])


def test_a_transpose_moves_everything() -> None:
    x = f(60, 80, 50, 8)
    tiled = analyze(alone(OPS["Transpose"](perm=(3, 2, 1, 0)), (x,)), SMALL)
    assert tiled.phases.exchange >= x.nbytes / SMALL.tiles / SMALL.exchange_bytes_per_cycle


@pytest.mark.parametrize("kind", [Gather, Scatter])
def test_a_lower_proportion_never_needs_more_memory_and_a_higher_one_never_more_cycles(kind: type) -> None:
    op, types = next((op, types) for op, types in EXAMPLES if isinstance(op.work(types, op.infer(*types)), kind))
    program = alone(op, types)
    steps = [analyze(program, SMALL, TileOptions(available_memory_proportion=p)).steps[0] for p in (0, 0.0005, 0.001, 0.002, 0.01, 0.1, 1)]
    bytes_, cycles = [s.plan.temp_bytes for s in steps], [s.plan.phases.total for s in steps]
    assert bytes_ == sorted(bytes_)
    assert cycles == sorted(cycles, reverse=True)
    assert not steps[0].plan.fits
    assert steps[-1].plan.fits


def test_an_embedding_is_cut_where_it_helps() -> None:
    """A wide table is cut along its rows' elements; a narrow one by rows, which are selected from in a second stage."""
    wide, narrow = (analyze(alone(OPS["Gather"](axis=0), (f(30000, width), f(512, dtype="int64"))), GC200) for width in (768, 8))
    assert wide.steps[0].plan.splits["b"] == 384
    assert narrow.steps[0].plan.splits["rows"] > 4
    assert narrow.steps[0].plan.reduce_stages == 1


def test_recomputation_gives_the_same_numbers_and_needs_less_memory() -> None:
    program = build(Mixer(6, 16, 64), (4, 16, 64), accumulation=2)
    again = recomputed(program)
    verify(again.micro)
    assert recomputed(again) is again
    rng = np.random.default_rng(0)
    read = [*program.inputs, *(s.input for s in program.micro.states)]
    feeds: dict[str, Any] = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in read if v.type.is_float}
    feeds |= {v.name: np.arange(math.prod(v.shape)).reshape(v.shape) % 10 for v in program.inputs if not v.type.is_float}
    before, after = evaluate(program.micro, feeds), evaluate(again.micro, feeds)
    for v in program.micro.outputs:
        assert np.array_equal(before[v.name], after[v.name])
    assert any(n.origin.role == "recompute" for n in again.micro.nodes)
    large = build(Mixer(6, 64, 64), (32, 64, 64), accumulation=2)
    kept, spent = analyze(large, SMALL), analyze(large, SMALL, TileOptions(recompute=True))
    assert spent.categories["activations"].max() < kept.categories["activations"].max()
    assert spent.cycles_per_update > kept.cycles_per_update
    check(spent)
    assert recomputed(build(mlp(8, 4), (2, 8), False)).micro.nodes


def test_optimizer_state_off_the_chip() -> None:
    program = build(mlp(256, 512, 10), (16, 256), optimizer=Adam(), accumulation=4)
    on, off = analyze(program, SMALL), analyze(program, SMALL, TileOptions(optimizer_off_chip=True))
    check(off)
    assert off.always_live.max() < on.always_live.max()
    assert off.cycles_per_update - on.cycles_per_update >= off.streaming_cycles > 0
    assert on.streaming_cycles == 0


def test_bytes_pass_to_and_from_streaming_memory_at_its_bandwidth() -> None:
    assert streaming_cycles(0, GC200) == 0
    assert streaming_cycles(20_000, GC200.variant(streaming_bytes_per_second=20e9, clock_hz=1e9)) == 1000
    assert streaming_cycles(1, GC200.variant(streaming_bytes_per_second=20e9, clock_hz=1e9)) == 1


def test_serialized_by_name() -> None:
    program = build(mlp(1024, 4096, 16), (256, 1024), False)
    plain = analyze(program, SMALL, TileOptions(available_memory_proportion=1.0))
    pieces = analyze(program, SMALL, TileOptions(available_memory_proportion=1.0, serialized={"0": ("output_channels", 8)}))
    check(pieces)
    assert pieces.steps[0].plan.serial.get("n") == 8
    assert pieces.steps[0].plan.temp_bytes < plain.steps[0].plan.temp_bytes
    assert pieces.steps[0].plan.flops == plain.steps[0].plan.flops


def test_hints_and_groups() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            self.a, self.b = nn.Conv2d(4, 8, 3), nn.Conv2d(4, 16, 3)

        def forward(self, x: Any) -> Any:                          # type: ignore[override]
            with nn.MultiConv(available_memory_proportions=[0.1, 0.3]):
                y, z = self.a(x), self.b(x)
            return y, z

    tiled = analyze(build(Two(), (2, 4, 12, 12), False), chip("gc200").variant(tiles=128))
    check(tiled)
    first, second = (s for s in tiled.steps if s.node.op.name == "Conv")
    assert (first.plan.bound_bytes, second.plan.bound_bytes) == (GC200.bound(0.1), GC200.bound(0.3))
    assert first.plan.notes["planned"] == "parallel"
    assert second.phases == Phases()
    tiles = {t for s in (first, second) for t in range(s.plan.start_tile, s.plan.start_tile + s.plan.tiles)}
    assert len(tiles) == first.plan.tiles + second.plan.tiles


TOO_LARGE: dict[str, Any] = {"training": True, "optimizer": "adam", "gradient_accumulation": 2,
                             "machine": chip("gc200").variant(name="tiny", tiles=64)}


def compiled(net: nn.Module, *shape: int, **given: Any) -> Any:
    return tileflow.compile(net, inputs=[shape], allow_out_of_memory=True, **given)


@functools.cache
def oversized() -> Any:
    return compiled(mlp(1024, 2048, 1000), 64, 1024, **TOO_LARGE)


def test_out_of_memory_is_a_result_first_and_then_one_error() -> None:
    found, tiled = oversized(), oversized().tiled
    assert not tiled.fits
    assert any("Tile" in sentence for sentence in tiled.infeasible)
    with pytest.raises(OutOfTileMemoryError) as caught:
        found.require_fit()
    error = caught.value
    assert (error.tile, error.demand, error.bound) == (tiled.worst_tile, int(tiled.peak.max()), 638_976)
    assert 1 <= len(error.contributors) <= 5
    sizes = [nbytes for _, nbytes, _ in error.contributors]
    assert sizes == sorted(sizes, reverse=True)
    assert {name for name, _, _ in error.contributors} >= {"0", "2"}
    assert 1 <= len(error.levers) <= 3
    message = str(error)
    assert "\n" not in message
    for word in (f"tile {error.tile}", f"{error.demand:,}", f"{error.bound:,}", "Tried"):
        assert word in message


def test_contributors_are_the_bytes_of_the_tile() -> None:
    tiled = oversized().tiled
    for tile in (tiled.worst_tile, 5):
        code = int(tiled.categories["code"][tile])
        assert sum(c.nbytes for c in tiled.contributors(tile)) == int(tiled.peak[tile]) - code


def test_levers_are_measured() -> None:
    tiled = oversized().tiled
    levers = tiled.levers()
    assert tiled.levers() is levers
    assert {lever.name.split()[0] for lever in levers} >= {"optimizer_off_chip", "machine_precision"}
    for lever in levers:
        again = compiled(mlp(1024, 2048, 1000), lever.changes.get("micro_batch_size", 64), 1024,
                         **{**TOO_LARGE, **lever.changes}).tiled
        assert (int(again.peak.max()), again.cycles_per_update, again.fits) == (lever.bytes, lever.cycles, lever.fits)
        assert lever.bytes < tiled.peak.max()
    assert [lever.fits for lever in levers] == sorted((lever.fits for lever in levers), reverse=True)


def test_a_lever_that_helps_is_named_with_its_price() -> None:
    given: dict[str, Any] = {"training": True, "gradient_accumulation": 2}
    roomy = compiled(Mixer(6, 64, 64), 32, 64, 64, machine=SMALL, **given)
    narrow = SMALL.variant(bytes_per_tile=int(roomy.tiled.peak.max() * 0.95))
    found = compiled(Mixer(6, 64, 64), 32, 64, 64, machine=narrow, **given)
    with pytest.raises(OutOfTileMemoryError, match=r"it fits, with [\d,]+ bytes on the worst tile and [\d.]+% (more|fewer) cycles per sample"):
        found.require_fit()
    best = found.tiled.levers()[0]
    assert best.fits
    rows = best.changes.get("micro_batch_size", 32)
    again = compiled(Mixer(6, 64, 64), rows, 64, 64, **{**given, "machine": narrow, **best.changes})
    assert again.require_fit() is again


def test_nobody_looks_for_levers_of_a_program_of_no_model() -> None:
    tiled = analyze(PROGRAMS["mlp inference"](), GC200)
    assert (tiled.levers(), tiled.tried) == ([], None)


def test_a_program_that_fits_is_itself() -> None:
    found = compiled(mlp(64, 8), 16, 64, machine=GC200)
    assert found.require_fit() is found


def test_nothing_to_do() -> None:
    empty = analyze(build(nn.Sequential(nn.Flatten()), (4, 3, 2), False), GC200)
    check(empty)
    assert empty.cycles_per_update == 0


@pytest.mark.parametrize(("tiles", "dtype"), [(1, "float32"), (4, "float16"), (8, "float32")])
def test_the_largest_square_matmul(tiles: int, dtype: str) -> None:
    machine = GC200.variant(tiles=tiles, name="few")
    found = largest_square_matmul(machine, dtype, multiple=8)
    assert found.tiled is not None
    assert found.tiled.fits
    assert found.next_size == found.size + 8
    operands = 3 * found.size**2 * (4 if dtype == "float32" else 2)
    assert 0.3 * tiles * machine.bytes_per_tile < operands < tiles * machine.bytes_per_tile
    assert "bytes" in found.stopped_by
    precision = found.tiled.options.precision
    assert not analyze(square_matmul(found.next_size), machine, TileOptions(available_memory_proportion=0.0, precision=precision)).fits


def test_bisection_is_bounded() -> None:
    class Fitting:
        fits = True
    limit = bisect(lambda size: Fitting(), 16, 64)                    # type: ignore[arg-type, return-value]
    assert (limit.size, limit.next_size) == (64, 64)


def test_work_grows_with_the_number_of_operators_only() -> None:
    """Ten times the layers make about ten times the function calls, once plans are known (seconds are the benchmark's)."""
    def calls(program: Program) -> float:
        analyze(program, GC200)
        count = 0

        def counted(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += 1
        sys.setprofile(counted)
        try:
            analyze(program, GC200)
        finally:
            sys.setprofile(None)
        return count / sum(len(g.nodes) for g in program.graphs)
    short, long = (calls(build(Mixer(n, 16, 64), (2, 16, 64), accumulation=2)) for n in (3, 30))
    assert long < 1.5 * short


def test_a_residual_network_is_analysed_for_a_whole_chip() -> None:
    program = build(Residual(), (2, 3, 64, 64), accumulation=2)
    tiled = analyze(program, chip("bow"), TileOptions(precision="16.16", available_memory_proportion=0.2))
    check(tiled)
