"""Plans for contractions: exact over the space, monotone in the bound, adding up, pinned, joint and side by side."""
from __future__ import annotations

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

from tileflow.graph.work import Axis, Contraction, Operand, Window
from tileflow.memory.types import TensorType
from tileflow.ops import conv as conv_ops
from tileflow.ops.matmul import Gemm, MatMul
from tileflow.system.errors import OptionError
from tileflow.tiles.hardware.chip import Chip, MatrixUnit, chip
from tileflow.tiles.plans.contraction import canonical, elements, intervals, step
from tileflow.tiles.plans.cost import evaluate, reduction_rounds
from tileflow.tiles.plans.multiconv import plan_multi
from tileflow.tiles.plans.partition import Frontiers, explore, frontier_indices, partials_type
from tileflow.tiles.plans.pins import plan_to_dict
from tileflow.tiles.plans.plan import TileOptions
from tileflow.tiles.plans.planner import contraction_frontier, export_plans, import_plans, plan_layer, plan_work

SMALL = chip("gc200").variant(tiles=64)
HALF, MIXED = TileOptions(precision="16.16"), TileOptions(precision="16.32")


def gemm(m: int, n: int, k: int, trans_a: int = 0, trans_b: int = 0) -> Contraction:
    a, b = ((k, m) if trans_a else (m, k)), ((n, k) if trans_b else (k, n))
    types = [TensorType("float32", a), TensorType("float32", b)]
    op = Gemm(transA=trans_a, transB=trans_b)
    work = op.work(types, op.infer(*types))
    assert isinstance(work, Contraction)
    return work


def conv(n: int, cin: int, cout: int, size: int, k: int, stride: int = 1, group: int = 1) -> list[Contraction]:
    """Forward, input gradient, weight gradient."""
    x, w = TensorType("float32", (n, cin, size, size)), TensorType("float32", (cout, cin // group, k, k))
    pads = (k // 2,) * 4
    op = conv_ops.Conv(strides=(stride, stride), pads=pads, group=group)
    y, = op.infer(x, w)
    dx = conv_ops.ConvInputGrad(shape=(size, size), strides=(stride, stride), pads=pads, group=group)
    dw = conv_ops.ConvWeightGrad(kernel_shape=(k, k), strides=(stride, stride), pads=pads, group=group)
    return [op.work([x, w], [y]), dx.work([y, w], [x]), dw.work([x, y], [w])]      # type: ignore[list-item]


WORKS = [gemm(512, 768, 768), gemm(1, 1000, 2048), gemm(7, 5, 1), gemm(64, 1, 300), gemm(3, 1000, 17), *conv(4, 3, 64, 32, 7, 2),
         *conv(4, 64, 64, 14, 3), *conv(2, 48, 48, 9, 3, 1, 48), *conv(2, 16, 16, 8, 3, 1, 4), *conv(3, 20, 28, 7, 1)]


def test_roles():
    c = canonical(gemm(4, 5, 6))
    assert dict(c.roles) == {"m": "m", "n": "n", "k": "k"}
    forward, dx, dw = map(canonical, conv(2, 4, 6, 8, 3, 2, 2))
    assert dict(forward.roles) == {"n": "m", "g": "group", "o": "n", "c": "k", "o0": "m", "o1": "m", "k0": "k", "k1": "k"}
    assert forward.taps == ("k0", "k1")
    assert forward.channels == ("c",)
    assert {a for a, r in dx.roles if r == "k"} == {"o", "k0", "k1"}
    assert {a for a, r in dw.roles if r == "k"} == {"n", "o0", "o1"}
    assert canonical(conv(2, 4, 6, 8, 1)[0]).windowed is False


def test_broadcast_batches_are_rows():
    types = [TensorType("float32", (3, 4, 5)), TensorType("float32", (5, 6))]
    c = canonical(MatMul().work(types, MatMul().infer(*types)))      # type: ignore[arg-type]
    assert c.role("m") == ("b0", "m")
    assert c.role("group") == ()


def test_halo_of_a_part():
    c = canonical(conv(1, 4, 4, 16, 3, 2)[0])
    part = {**c.sizes, "o0": 3, "k0": 3, "o1": 1, "k1": 2}
    assert elements(c.first, part) == 4 * ((3 - 1) * 2 + 3) * 2
    assert elements(c.first, {**part, "k0": 1, "k1": 1}) == 4 * 3      # a stride that skips lines does not read them


def test_parts_cover_an_axis_once():
    rng = np.random.default_rng(1)
    for size, parts, grain in rng.integers(1, 60, (200, 3)):
        cuts = list(intervals(int(size), int(parts), int(grain)))
        assert cuts[0][0] == 0
        assert cuts[-1][1] == size
        assert all(a[1] == b[0] for a, b in itertools.pairwise(cuts))
        assert max(hi - lo for lo, hi in cuts) == min(size, step(int(size), int(parts), int(grain)))


def plan_parts(plan, work):
    """Extents of all parts, serial steps included, per axis."""
    sizes = {a.name: a.size for a in work.axes}
    found = []
    for axis, size in sizes.items():
        grain, cuts = plan.grains.get(axis, 1), []
        for lo, hi in intervals(size, plan.serial.get(axis, 1), grain):
            cuts += [b - a for a, b in intervals(hi - lo, plan.splits.get(axis, 1), grain, lo)]
        found.append(cuts)
    return found


def frontier(work, chip, options=None, cache=None):
    """All plans worth having of a contraction, from fastest to leanest."""
    return contraction_frontier(work, chip, (options or TileOptions()).precision, {} if cache is None else cache).plans


@pytest.mark.parametrize("options", [TileOptions(), HALF], ids=["single", "half"])
@pytest.mark.parametrize("work", WORKS, ids=range(len(WORKS)))
def test_every_plan_is_a_partition(work, options):
    for plan in frontier(work, SMALL, options):
        assert plan.tiles == math.prod(plan.splits.values()) <= SMALL.tiles
        cuts = plan_parts(plan, work)
        flops = math.prod(sum(c) for c in cuts) * work.flops_per_point
        assert flops == plan.flops == work.flops
        if not plan.serial:
            assert all(n > 0 for c in cuts for n in c), "a tile without work"
        assert min(dataclasses.astuple(plan.phases)) >= 0
        peak = SMALL.peak_macs_per_cycle("float16" if options is HALF else "float32")
        assert plan.phases.compute * plan.tiles * peak * 2 >= work.flops, "no faster than the tiles' peak"


def grouped(groups: int, channels: int, rows: int, taps: int) -> Contraction:
    """A convolution along one line in groups of few channels."""
    x, w = TensorType("float32", (2, groups * channels, rows + taps)), TensorType("float32", (groups * channels, channels, taps))
    op = conv_ops.Conv(group=groups)
    made = op.work([x, w], list(op.infer(x, w)))
    assert isinstance(made, Contraction)
    return made


def test_no_candidate_beats_the_peak_of_its_chip():
    """Every candidate of the space, whatever the chip's units, data path and workers; before, a group of four channels did 32 a cycle."""
    hypothesis = pytest.importorskip("hypothesis", reason="pip install hypothesis makes it run")
    st = hypothesis.strategies
    power = st.integers(0, 7).map(lambda i: 1 << i)
    units = st.builds(MatrixUnit, st.one_of(st.integers(1, 20), st.integers(1, 130)), power, power)
    types = ("float16.float32", "float16.float16", "float32.float32", "float32.float16")
    chips = st.builds(lambda *given: Chip("any", given[-1], 1 << 19, 1e9, *given[:-1]),
                      st.fixed_dictionaries({}, optional=dict.fromkeys(types, units)), st.integers(1, 8), st.sampled_from([2, 4, 8, 16, 64]), power,
                      st.integers(1, 40))
    works = st.one_of(
        st.builds(gemm, st.integers(1, 90), st.integers(1, 90), st.integers(1, 200)),
        st.builds(grouped, st.integers(2, 40), st.integers(1, 6), st.sampled_from([1, 7, 60, 5000]), st.integers(1, 9)),
        st.tuples(st.builds(conv, st.integers(1, 3), *[st.sampled_from([4, 8, 24])] * 2, st.integers(5, 9), st.integers(1, 5), st.integers(1, 2),
                            st.sampled_from([1, 2, 4])), st.integers(0, 2)).map(lambda made: made[0][made[1]]))

    @hypothesis.settings(max_examples=100, deadline=None, derandomize=True)
    @hypothesis.given(chips, works, st.sampled_from(["32.32", "16.32", "16.16"]))
    def check(machine: Chip, work: Contraction, precision: str) -> None:
        c = canonical(work, precision)
        space = explore(c, machine, partials_type(c, precision))
        rate = c.macs / np.maximum(1, space.table("compute") * space.table("tiles"))
        assert rate.max() <= machine.peak_macs_per_cycle(c.first.dtype)
    check()


def test_frontier_is_exact():
    rng = np.random.default_rng(2)
    for n in (1, 2, 50, 3000):
        cycles, temp = rng.integers(1, 40, n).astype(float), rng.integers(0, 60, n).astype(float)
        kept = frontier_indices(cycles, temp)
        for bound in range(-1, 61):
            inside = temp <= bound
            chosen = next((i for i in kept if temp[i] <= bound), kept[-1])
            if inside.any():
                best = cycles[inside].min()
                assert (cycles[chosen], temp[chosen]) == (best, temp[inside & (cycles == best)].min())
            else:
                assert temp[chosen] == temp.min()


def test_monotone_in_the_bound():
    rng = np.random.default_rng(3)
    cache: dict = {}
    for _ in range(30):
        work = gemm(*(int(2 ** rng.uniform(0, 12)) for _ in range(3))) if rng.random() < 0.5 else conv(
            int(rng.integers(1, 9)), int(rng.integers(1, 130)), int(rng.integers(1, 130)), int(rng.integers(3, 30)), 3)[int(rng.integers(3))]
        plans = [plan_work(work, SMALL, SMALL.bound(p), HALF, cache) for p in np.linspace(0, 1, 21)]
        for lower, higher in itertools.pairwise(plans):
            assert lower.phases.total >= higher.phases.total
            assert lower.temp_bytes <= higher.temp_bytes or not lower.fits
            assert lower.fits <= higher.fits
        least = contraction_frontier(work, SMALL, HALF.precision, cache, slow=True).plans[-1]
        assert all(p.temp_bytes == least.temp_bytes for p in plans if not p.fits)


@pytest.mark.parametrize("slow", [False, True])
def test_what_other_memories_left_priced_changes_no_frontier(slow):
    """Chips that differ in the bytes of their tiles only, in any order: each has the plans of the whole space."""
    rng = np.random.default_rng(6)
    for work in (gemm(3000, 700, 900), *conv(8, 64, 128, 28, 3), conv(2, 48, 48, 9, 3, 1, 48)[0]):
        c = canonical(work, "16.32")
        shared = Frontiers(c, "float32", slow)
        for size in rng.permutation([2_000, 20_000, 60_000, 300_000, 2_000_000, 20_000]):
            machine = SMALL.variant(bytes_per_tile=int(size))
            space = explore(c, machine, "float32", slow)
            cycles = sum(space.table(n) for n in ("compute", "exchange", "sync", "transform", "reduce"))
            whole = [space.plan(machine, int(i)) for i in frontier_indices(cycles, space.table("temp"))]
            found = shared.on(machine)
            assert found.plans == whole
            assert found.floor == space.floor


def test_chosen_plan_is_the_best_of_the_space():
    c = canonical(gemm(300, 200, 500), "16.16")
    space = explore(c, SMALL, partials_type(c, "16.16"))
    cycles, temp = sum(space.table(n) for n in ("compute", "exchange", "sync", "transform", "reduce")), space.table("temp")
    for bound in np.quantile(temp, [0, 0.01, 0.1, 0.5, 1]):
        plan = plan_work(gemm(300, 200, 500), SMALL, int(bound), HALF)
        assert plan.phases.total == cycles[temp <= bound].min()
        assert plan.temp_bytes <= bound


def test_batch_of_candidates_costs_as_one():
    c = canonical(conv(4, 64, 64, 14, 3)[0], "16.16")
    space = explore(c, SMALL, "float16")
    rng = np.random.default_rng(4)
    for group in rng.choice(len(space.groups), 6):
        (v, serial), rows = space.groups[group], space.parts[group]
        i = int(rng.integers(len(rows)))
        alone = evaluate(SMALL, c, v, {a.name: rows[i:i + 1, j] for j, a in enumerate(c.axes)},
                         (serial[0], serial[1][i:i + 1]) if serial else None)
        assert float(alone.cycles[0]) == float(space.costs[group].cycles[i])
        assert float(alone.temp[0]) == float(space.costs[group].temp[i])


def test_cost_of_a_plan_by_hand():
    """64 x 64 x 64 in float32 on four tiles of a GC200: 16 rows each, blocks of 8 sums by 16 channels."""
    plan = plan_work(gemm(64, 64, 64), chip("gc200"), None, pin={"vertex": "amp", "splits": {"m": 4}})
    streamed = 16 * 8 / 16 * math.ceil(16 / 6)                # cycles a row of a block, rows of the busiest worker
    block = 25 + 16 * 8 * 4 / 8 + 6 * (22 + streamed)        # coefficients at 8 bytes a cycle, six workers in turn
    zeros = 6 * (2 + 16 * 4 / 8 * math.ceil(16 / 6))         # written to the sums before the first of the eight blocks
    assert plan.phases.compute == 50 + 24 + 7 * (15 + 4 * block) + 4 * (block + zeros)
    assert plan.phases.exchange == 16 * 64 * 4 / 4 + 64 * 64 * 4 / 8      # all four tiles receive the same second operand
    assert (plan.phases.sync, plan.phases.transform, plan.phases.reduce) == (600 + 11, 0, 0)
    assert plan.temp_bytes == plan.exchange_bytes == (16 * 64 + 64 * 64) * 4      # the sums are the result itself
    summed = plan_work(gemm(64, 64, 64), chip("gc200"), None, pin={"vertex": "amp", "splits": {"k": 4}})
    assert summed.reduce_stages == 1
    assert summed.phases.reduce == 6 * (32 + math.ceil(1024 / 4 / 6) * (3 * 4 + 8))
    assert summed.phases.exchange == 64 * 16 * 4 / 4 * 2 + 1024 * 3 * 4 / 4
    assert summed.temp_bytes == 64 * 64 * 4 + max(2 * 64 * 16 * 4, 1024 * 3 * 4)


def test_reduction_rounds():
    rounds, fan = reduction_rounds(1472)
    assert rounds[[0, 1, 2, 15, 16, 124, 125, 1472]].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (fan.prod(0) >= np.arange(1473)).all()
    assert fan[:, 125].tolist() == [5, 5, 5]


@pytest.mark.parametrize(("machine", "size", "options", "low", "high"), [
    ("c600", 4096, HALF, 0.40, 0.85), ("gc2", 2944, TileOptions(), 0.5, 0.8), ("gc2", 2688, MIXED, 0.38, 0.66)])
def test_square_products_come_near_published_figures(machine, size, options, low, high):
    """Published: a third party's own program reaches 32 % on the C600; library figures on the GC2 are about 60 % and 47 %."""
    tile_chip = chip(machine)
    plan = plan_work(gemm(size, size, size), tile_chip, tile_chip.bound(0.6), options)
    peak = tile_chip.peak_macs_per_cycle("float32" if options.precision == "32.32" else "float16") * tile_chip.tiles * 2
    assert low < plan.flops / plan.phases.total / peak < high
    assert plan.fits


def test_serial_splits_save_memory():
    plans = frontier(gemm(2048, 2048, 2048), chip("gc2"))
    assert any(p.serial for p in plans)
    assert all(len(p.serial) <= 1 for p in plans)
    assert min(p.temp_bytes for p in plans if p.serial) < min(p.temp_bytes for p in plans if not p.serial)


def test_impossible_bound_takes_the_leanest_plan_and_says_so():
    work = gemm(512, 512, 512)
    plan = plan_work(work, SMALL, 10)
    assert not plan.fits
    assert plan.bound_bytes == 10
    assert plan.temp_bytes == min(p.temp_bytes for p in frontier(work, SMALL))
    assert plan_work(work, SMALL, 0).temp_bytes == plan.temp_bytes


def test_plans_come_from_memory():
    cache: dict = {}
    first = frontier(gemm(100, 100, 100), SMALL, None, cache)
    size = len(cache)
    assert frontier(gemm(100, 100, 100), SMALL, None, cache) == first
    assert len(cache) == size
    assert frontier(gemm(100, 100, 100), SMALL.variant(workers=4), None, cache) != first


def test_vertices_fit_their_shapes():
    depthwise = conv(4, 64, 64, 14, 3, 1, 64)[0]
    assert plan_work(depthwise, SMALL, None, TileOptions()).vertex in ("amp", "hmac")
    assert plan_work(depthwise, SMALL, None, HALF).vertex in ("slic", "vmac")
    assert plan_work(gemm(512, 512, 512), SMALL, None, HALF).vertex == "amp"
    assert plan_work(gemm(512, 512, 1), SMALL, None).vertex == "outer"
    assert plan_work(gemm(1, 40, 10), SMALL, None).vertex in ("hmac", "vmac")
    assert plan_work(gemm(64, 64, 64), SMALL.variant(matrix={}), None).vertex == "hmac"


def test_half_partials_only_where_asked():
    assert plan_work(gemm(64, 64, 640), SMALL, None, MIXED).partials == "float32"
    assert plan_work(gemm(64, 64, 640), SMALL, None, HALF).partials == "float16"
    assert plan_work(gemm(64, 64, 640), SMALL, None).partials == "float32"


@pytest.mark.parametrize("work", [*conv(4, 64, 64, 14, 3), gemm(2048, 2048, 2048), conv(2, 16, 16, 8, 3, 1, 4)[0]], ids=range(5))
def test_export_and_pin(work):
    for plan in frontier(work, SMALL, HALF):
        pin = import_plans(json.loads(json.dumps(export_plans({"conv1": plan}))))["conv1"]
        pinned = plan_work(work, SMALL, None, HALF, pin=pin, where="conv1")
        assert (pinned.splits, pinned.serial, pinned.phases, pinned.temp_bytes) == (plan.splits, plan.serial, plan.phases, plan.temp_bytes)
        assert pinned.notes["pinned"]


@pytest.mark.parametrize(("change", "says"), [
    ({"splits": {"q": 2}}, "names the axis 'q' in splits; the operator has m, n, k"),
    ({"splits": {"m": 0}}, "splits 0 for axis 'm' of 64"),
    ({"splits": {"m": 65}}, "splits 65 for axis 'm' of 64"),
    ({"splits": {"m": 2.0}}, "whole number"),
    ({"splits": [2]}, "must be a table"),
    ({"splits": {"m": 16, "n": 2, "k": 4}}, "needs 128 tiles from tile 0"),
    ({"splits": {"m": 50}}, "leaves a part empty"),
    ({"serial": {"m": 2, "k": 2}}, "a plan may split one"),
    ({"vertex": "gemm"}, "vertex 'gemm'"),
    ({"vertex": "map"}, "a contraction takes one of"),
    ({"vertex": "outer"}, "summed axes of size 1"),
    ({"vertex": "vmac"}, "needs 16 bits and groups"),
    ({"vertex": "slic"}, "needs float16, groups of at most 4 channels, kernel taps"),
    ({"partials": "float64"}, "partials 'float64'"),
    ({"partials": "float16"}, "no matrix unit for float32 with float16"),
    ({"swap": 1}, "true or false"),
    ({"start_tile": 64}, "from tile 64"),
    ({"start_tile": -1}, "start_tile -1"),
    ({"colour": 1}, "unknown field 'colour'"),
    ({"version": 9}, "version 9"),
])
def test_wrong_pins(change, says):
    work = gemm(64, 64, 64)
    pin = {"vertex": "amp", "splits": {"m": 4}, **change}
    with pytest.raises(OptionError, match="The pinned plan of dense") as error:
        plan_work(work, SMALL, None, pin=pin, where="dense")
    assert says in str(error.value)


def test_joint_plans_cut_all_passes_alike():
    works = gemm(16, 512, 512), gemm(16, 512, 512, 0, 1), gemm(512, 512, 16, 1, 0)
    made = plan_layer(*works, SMALL, SMALL.bound(0.6))
    assert made.joint == (made.joint_cycles < made.separate_cycles)
    assert len(made.plans) == 3
    assert all(p.notes["joint"] is made.joint and p.fits for p in made.plans)
    apart = plan_layer(*works, SMALL, SMALL.bound(0.6), TileOptions(joint_plans=False))
    assert not apart.joint
    assert apart.separate_cycles == made.separate_cycles
    if made.joint:
        forward, dx, dw = (p.splits for p in made.plans)
        assert forward.get("n", 1) == dx.get("k", 1) == dw.get("n", 1)
        assert forward.get("k", 1) == dx.get("n", 1) == dw.get("m", 1)
    convolution = plan_layer(*conv(2, 64, 64, 14, 3), SMALL, SMALL.bound(0.6), HALF)
    assert convolution.joint == (convolution.joint_cycles < convolution.separate_cycles)
    assert not plan_layer(*works, SMALL, 10).joint


def test_joint_plans_where_they_pay():
    works = gemm(4, 2048, 2048), gemm(4, 2048, 2048, 0, 1), gemm(2048, 2048, 4, 1, 0)
    made = plan_layer(*works, chip("gc200"), chip("gc200").bound(0.6))
    assert made.joint
    assert made.joint_cycles < made.separate_cycles


def test_side_by_side():
    works = [conv(4, 64, 64, 14, 3)[0], conv(4, 32, 64, 14, 3)[0], conv(4, 16, 64, 14, 1)[0], gemm(16, 32, 64)]
    tile_chip = chip("gc200")
    made = plan_multi(works, tile_chip, [tile_chip.bound(0.6)] * 4, HALF)
    assert made.kind == "parallel"
    taken: set[int] = set()
    for plan in made.plans:
        tiles = set(range(plan.start_tile, plan.start_tile + plan.tiles))
        assert not tiles & taken
        assert max(tiles) < tile_chip.tiles
        taken |= tiles
    assert made.phases.compute == max(p.phases.compute for p in made.plans)
    serial = plan_multi(works, tile_chip, [None] * 4, HALF, plan_type="serial")
    assert serial.phases.total == sum(p.phases.total for p in serial.plans)
    assert made.phases.total < serial.phases.total


def test_side_by_side_needs_tiles():
    works = [gemm(16, 32, 64)] * 3
    few = plan_multi(works, SMALL, [None] * 3)
    assert few.kind == "parallel"
    assert "too few to set aside for 3 contractions; 21 each are" in few.notes[0]
    none = plan_multi(works, SMALL.variant(tiles=2), [None] * 3)
    assert none.kind == "serial"
    assert "do not fit side by side on 2 tiles" in none.notes[-1]
    for wrong in ({"plan_type": "both"}, {"per_conv_reserved_tiles": 0}, {"cycle_back_off": -1}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            plan_multi(works, SMALL, [None] * 3, **wrong)
    with pytest.raises(OptionError, match="needs 3 memory proportions, not 1"):
        plan_multi(works, SMALL, [None])


def test_plan_as_plain_values():
    table = plan_to_dict(plan_work(gemm(64, 64, 64), SMALL, None))
    assert json.loads(json.dumps(table)) == table


def touched(operand, box):
    """Elements of a tensor that the points of a box index, padding included, by enumeration."""
    found = set()
    names = list(box)
    for point in itertools.product(*(range(*box[n]) for n in names)):
        at = dict(zip(names, point, strict=True))
        found.add(tuple(at[d.out] * d.stride + at[d.tap] * d.dilation if isinstance(d, Window) else at.get(d, 0) for d in operand.dims))
    return len(found)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("group", [1, 2])
def test_bytes_of_a_part_by_enumeration(stride, group):
    for work in conv(2, 4, 4, 7, 3, stride, group):
        c = canonical(work)
        rng = np.random.default_rng(stride)
        for _ in range(3):
            box = {}
            for axis in c.axes:
                lo = int(rng.integers(axis.size))
                box[axis.name] = (lo, int(rng.integers(lo, axis.size)) + 1)
            part = {name: hi - lo for name, (lo, hi) in box.items()}
            for operand in (c.first, c.second, c.result):
                exact, counted = touched(operand, box), elements(operand, part)
                assert exact <= counted
                assert exact == counted or stride > 1, "dense windows are counted exactly"


@pytest.mark.parametrize("work", [gemm(1, 1, 1), gemm(1, 1, 4096), MatMul().work(
    [TensorType("float32", (9,)), TensorType("float32", (9,))], [TensorType("float32", ())]),
    Contraction((Axis("m", 5), Axis("n", 6)), (Operand(("m",)), Operand(("n",))), (Operand(("m", "n")),)),
    Contraction((Axis("k", 7, "reduce"),), (Operand(("k",)), Operand(())), (Operand(()),)),
    Contraction((), (Operand(()), Operand(())), (Operand(()),))], ids=["one", "dot", "vectors", "outer", "scaled", "scalar"])
def test_degenerate_contractions(work):
    for tile_chip in (SMALL, chip("bow").variant(tiles=1), chip("gc2")):
        plan = plan_work(work, tile_chip, None)
        assert plan.tiles <= tile_chip.tiles
        assert plan.flops == work.flops
        assert plan.phases.total > 0


def test_empty_contractions_cost_nothing():
    plan = plan_work(gemm(0, 5, 6), SMALL, 100)
    assert (plan.vertex, plan.phases.total, plan.temp_bytes) == ("none", 0, 0)


def test_a_product_as_large_as_the_chip_can_be_planned_in_little_memory():
    """12,288 squared in float16 fills 864 of the GC200's 897 MiB with its three matrices; about 24 KiB a tile are left."""
    plan = frontier(gemm(12288, 12288, 12288), chip("gc200"), HALF)[-1]
    assert plan.temp_bytes < 64 * 1024


def test_more_tiles_and_faster_parts_never_hurt():
    work = gemm(1024, 1024, 1024)
    base = chip("gc200")
    fastest = plan_work(work, base, None, HALF).phases.total
    assert plan_work(work, base.variant(tiles=368), None, HALF).phases.total > fastest
    for change in ({"exchange_bytes_per_cycle": 8}, {"coefficient_bytes_per_cycle": 16}, {"sync_cycles": 100}, {"copy_bytes_per_cycle": 16}):
        assert plan_work(work, base.variant(**change), None, HALF).phases.total <= fastest
