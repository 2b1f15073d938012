"""Tile-exact execution: operators and whole training steps, part by part in bounded arenas, against the kernels and the engine."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paths
import pytest
from evaluate import run_kernel
from samples import cases

import tileflow
from tileflow import exact, nn, optim
from tileflow.exact import Arena, TileMemoryError, Tiles
from tileflow.exact.boxes import cut, extent, parts_of, region, table_axis
from tileflow.graph import OPS as REGISTRY
from tileflow.graph import Node, Op, type_of
from tileflow.graph.work import Contraction, Reduce, Window, Work
from tileflow.ops.reduce import ReduceSum
from tileflow.program.program import Program
from tileflow.runtime.training_model import TrainingModel
from tileflow.system.errors import DataError
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.machine import analyze
from tileflow.tiles.plans.plan import OpPlan, Phases, TileOptions
from tileflow.tiles.plans.planner import plan_work

Array = np.ndarray
OPS: dict[str, Any] = dict(REGISTRY)
KIB = 1024
rng = np.random.default_rng(3)


def plan(splits: Mapping[str, int], **fields: Any) -> OpPlan:
    """A plan made by hand."""
    return OpPlan(splits, "none", Phases(), 0, **fields)


def random_plan(work: Work, random: np.random.Generator, tiles: int = 16, **fields: Any) -> OpPlan:
    """Any axes that may be split, in any order, with grains and serial parts: far from what a planner would choose."""
    axes = [a for a in (*work.axes, *table_axis(work)) if a.kind != "whole"]
    random.shuffle(axes)                                           # type: ignore[arg-type]
    splits, left = {}, tiles
    for a in axes:
        splits[a.name] = min(left, int(random.integers(1, 4)))
        left //= splits[a.name]
    grains = {a.name: 2 for a in axes if random.random() < 0.3}
    serial = {a.name: 2 for a in axes if random.random() < 0.2}
    return plan(splits, grains=grains, serial=serial, reduce_stages=int(random.integers(0, 3)), start_tile=int(random.integers(tiles)), **fields)


def f(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


# ---- parts and arenas

@pytest.mark.parametrize("size", [0, 1, 7, 12, 13])
@pytest.mark.parametrize("parts", [1, 3, 5])
@pytest.mark.parametrize("grain", [1, 4])
def test_parts_of_an_axis_cover_it_once(size: int, parts: int, grain: int):
    ranges = cut(0, size, parts, grain)
    assert len(ranges) == parts
    assert [i for lo, hi in ranges for i in range(lo, hi)] == list(range(size))
    assert all(lo % grain == 0 for lo, hi in ranges if lo < hi)
    lengths = [hi - lo for lo, hi in ranges]
    assert lengths == sorted(lengths, reverse=True)


def test_tiles_are_numbered_by_the_last_axis_first():
    work = OPS["MatMul"]().work((type_of(f(4, 6)), type_of(f(6, 8))), [type_of(f(4, 8))])
    parts = list(parts_of(work, plan({"n": 2, "m": 3}, start_tile=14), 16))
    assert [p.tile for p in parts] == [14, 15, 1, 2]                # m = 4 in 3 parts: 2, 2, 0
    assert parts[1].boxes == ({"m": (2, 4), "n": (0, 4), "k": (0, 6)},)


def test_an_arena_is_bounded_poisoned_and_guarded():
    arena = Arena(100)
    a = arena.take((3, 5), np.float32, "a")
    assert np.isnan(a).all()
    assert arena.used == 64                                        # whole double words
    with pytest.raises(TileMemoryError, match=r"b needs 40 bytes on a tile where 64 of 100 are taken"):
        arena.take((5,), np.float64, "b")
    a[...] = 1
    arena.reset()
    assert np.isnan(arena.take((24,), np.float32, "c")).all()
    beside = np.ndarray((25,), np.float32, arena._memory, 64)
    beside[24] = 0
    assert not arena.intact


# ---- single operators, split at random

def convolutions() -> list[tuple[Op, list[Array | None]]]:
    found: list[tuple[Op, list[Array | None]]] = []
    attributes: list[dict[str, Any]] = [dict(pads=(1, 1, 1, 1)), dict(strides=(2, 2)), dict(pads=(1, 1, 1, 1), group=2),
                                        dict(pads=(2, 0, 1, 3), strides=(2, 1), dilations=(1, 2))]
    for a in attributes:
        x, w, conv = f(3, 4, 9, 8), f(6, 4 // a.get("group", 1), 3, 2), OPS["Conv"](**a)
        g = f(*conv.infer(type_of(x), type_of(w))[0].shape)
        found += [(conv, [x, w, f(6)]), (OPS["ConvInputGrad"](shape=x.shape[2:], **a), [g, w]),
                  (OPS["ConvWeightGrad"](kernel_shape=w.shape[2:], biased=True, **a), [x, g])]
    return found


def pools() -> list[tuple[Op, list[Array | None]]]:
    found: list[tuple[Op, list[Array | None]]] = []
    attributes: list[dict[str, Any]] = [dict(kernel_shape=(2, 2), strides=(2, 2)),
                                        dict(kernel_shape=(3, 2), strides=(2, 2), ceil_mode=1, pads=(1, 0, 1, 1))]
    for a in attributes:
        x, pool = f(3, 4, 9, 8), OPS["MaxPool"](**a)
        g = f(*pool.infer(type_of(x))[0].shape)
        found += [(pool, [x]), (OPS["MaxPoolGrad"](**a), [g, x])]
        for count in (0, 1):
            found += [(OPS["AveragePool"](count_include_pad=count, **a), [x]),
                      (OPS["AveragePoolGrad"](count_include_pad=count, shape=x.shape[2:], **a), [g])]
    return [*found, (OPS["GlobalAveragePool"](), [f(3, 4, 9, 8)]), (OPS["GlobalMaxPool"](), [f(3, 4, 9, 8)])]


def sums() -> list[tuple[Op, list[Array | None]]]:
    x = f(6, 5, 4)
    found: list[tuple[Op, list[Array | None]]] = [
        (OPS["MatMul"](), [f(2, 1, 9, 13), f(3, 13, 7)]), (OPS["MatMul"](), [f(13), f(2, 13, 7)]), (OPS["MatMul"](), [f(4, 0), f(0, 3)]),
        (OPS["FusedMatMul"](transA=1, alpha=0.5), [f(2, 13, 9), f(2, 13, 7)]),
        (OPS["Gemm"](alpha=0.5, beta=2.0, transB=1), [f(9, 13), f(7, 13), f(7)]),
        (OPS["Gemm"](), [f(9, 13), f(13, 7), f(9, 1)])]
    found += [(OPS[name](axes=axes, keepdims=0), [x]) for name in ("ReduceSum", "ReduceMean", "ReduceMax") for axes in (None, (0, 2))]
    found += [(OPS[name](axis=1), [x]) for name in ("Softmax", "LogSoftmax")]
    found += [(OPS[name](axis=1), [x, f(6, 5, 4)]) for name in ("SoftmaxGrad", "LogSoftmaxGrad")]
    scale = f(5)
    found += [(OPS["BatchNormalization"](training_mode=1), [x, scale, f(5), None, None]),
              (OPS["BatchNormalization"](), [x, scale, f(5), f(5), abs(f(5))]),
              (OPS["BatchNormalizationGrad"](), [f(6, 5, 4), x, scale, f(5), abs(f(5))])]
    found += [(OPS[name](), [f(3, 4, 6, 5), f(4), f(4)]) for name in ("InstanceNormalization", "InstanceNormalizationTraining")]
    image = f(3, 6, 4, 5)
    for groups in (1, 2, 6):
        per = {"num_groups": groups}
        kept = OPS["GroupNormalizationTraining"](**per).reference(image, f(6), f(6))[1:]
        found += [(OPS[name](**per), [image, f(6), f(6)]) for name in ("GroupNormalization", "GroupNormalizationTraining")]
        found += [(OPS["GroupNormalizationGrad"](**per), [f(3, 6, 4, 5), image, f(6), *kept])]
    found += [(OPS["ReduceProd"](axes=axes, keepdims=0), [x]) for axes in (None, (0, 2))]
    wide = f(5, 4)
    statistics = OPS["LayerNormalization"](axis=1).reference(x, wide)[1:]
    inverse = OPS["RMSNormalization"](axis=1).reference(x, wide)[1]
    found += [(OPS["RMSNormalization"](axis=1), [x, wide]), (OPS["RMSNormalizationGrad"](axis=1), [f(6, 5, 4), x, wide, inverse])]
    found += [(OPS["LayerNormalization"](axis=1), [x, wide, f(5, 4)]), (OPS["LayerNormalizationGrad"](axis=1), [f(6, 5, 4), x, wide, *statistics])]
    return [*found, *losses("mean", [abs(f(5))]), (OPS["GatherGrad"](axis=1, shape=(2, 11, 3)), [f(2, 4, 2, 3), rng.integers(-11, 11, (4, 2))])]


def losses(reduction: str, weights: Sequence[Array] = ()) -> list[tuple[Op, list[Array | None]]]:
    x, labels = f(6, 5, 4), rng.integers(0, 5, (6, 4))
    found: list[tuple[Op, list[Array | None]]] = [
        (OPS["MSELoss"](reduction=reduction), [x, f(6, 5, 4)]), (OPS["IdentityLoss"](reduction=reduction), [x])]
    for name in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"):
        loss = OPS[name](reduction=reduction, ignore_index=2)
        g = np.ones(loss.infer(type_of(x), type_of(labels))[0].shape, np.float32)
        found += [(loss, [x, labels, *weights]), (OPS[name + "Grad"](reduction=reduction, ignore_index=2), [g, x, labels, *weights])]
    return found


def other_losses() -> list[tuple[Op, list[Array | None]]]:
    return [*losses("none"), *losses("sum")]


def same_bits() -> list[tuple[Op, list[Array | None]]]:
    x = f(6, 5, 4)
    x[1, 2, 3] = -0.0
    return [(OPS["Relu"](), [x]), (OPS["Add"](), [x, f(5, 1)]), (OPS["Exp"](), [x]), (OPS["Gelu"](), [x]), (OPS["Cast"](to="int64"), [x]),
            (OPS["Where"](), [x > 0, x, f(4)]), (OPS["Reshape"](shape=(10, 12)), [x]), (OPS["Transpose"](perm=(2, 0, 1)), [x]),
            (OPS["Concat"](axis=1), [x, f(6, 2, 4), x]), (OPS["Split"](axis=1, sizes=(2, 3)), [x]),
            (OPS["Slice"](starts=(1, -1), ends=(5, -99), axes=(0, 1), steps=(2, -1)), [x]),
            (OPS["Slice"](starts=(-6, 1), ends=(99, 3), axes=(0, 2)), [x]),
            (OPS["SliceGrad"](shape=(6, 5, 8), starts=(1,), ends=(8,), axes=(2,), steps=(2,)), [x]), (OPS["Expand"](shape=(6, 5, 4)), [f(5, 1)]),
            (OPS["Pad"](pads=(1, 0, -1, -1, 0, 1), value=2.0), [x]), (OPS["Tile"](repeats=(2, 1, 3)), [x]),
            (OPS["Repeat"](axis=1, times=3), [x]), (OPS["Repeat"](axis=2, times=2, rows=2), [f(2, 3, 5, 4)]),
            (OPS["Gather"](axis=1), [x, rng.integers(-5, 5, (3, 2))]), (OPS["Gather"](), [f(11, 3), rng.integers(0, 11, 7)]),
            (OPS["Dropout"](training_mode=1, mask=1, stream=3), [x]), (OPS["MaxPool"](kernel_shape=(2, 2), indices=True), [f(2, 3, 5, 4)]),
            (OPS["ReduceSum"](axes=(1,)), [rng.integers(-9, 9, (5, 7))]), (OPS["ReduceMin"](axes=(-1,)), [np.where(x > 1.5, np.nan, x)]),
            *[(OPS[name](axis=1, keepdims=k, select_last_index=last), [y]) for name in ("ArgMax", "ArgMin") for k, last in ((1, 0), (0, 1))
              for y in (np.where(x > 1.5, np.nan, x), rng.integers(-2, 2, (6, 5, 4)))]]


def magnitudes(op: Op, work: Work, arrays: list[Array | None], wanted: tuple[Array, ...]) -> list[Array]:
    """What rounding errors grow with: sums of magnitudes where the operator adds, else the largest element."""
    if isinstance(work, Contraction) or (isinstance(work, Reduce) and work.combine == "add" and len(arrays) == 1):
        return [abs(y) for y in run_kernel(op, *[None if a is None else np.abs(a) if a.dtype.kind == "f" else a for a in arrays])]
    largest = max(float(np.max(np.abs(a), initial=1.0)) for a in (*wanted, *(a for a in arrays if a is not None)) if a.dtype.kind == "f")
    return [np.float32(largest) for _ in wanted]


def put_together(wide: bool = False) -> list[tuple[Op, list[Array | None], float]]:
    """Scatters, the best of an axis, running sums, forests and alignments, with the tolerance of each: 0 where bits are
    the same."""
    found: list[tuple[Op, list[Array | None], float]] = []
    sizes = [
        (2, 5, 7, 3),
        *([(1, 1, 4, 1), (1, 23, 3, 2), (3, 2, 40, 5), (4, 9, 1, 1), (1, 6, 33, 17)] if wide else []),
    ]
    for outer, n, k, inner in sizes:
        for reduction in ("none", "add", "mul", "min", "max"):
            tolerance = 2e-5 if reduction in ("add", "mul") else 0.0
            index, updates = rng.integers(-n, n, (outer, k, inner)), f(outer, k, inner)
            found.append((OPS["ScatterAlong"](reduction=reduction), [f(outer, n, inner), index, updates], tolerance))
            rows = rng.integers(-n, n, (k, outer)).astype(np.int32)
            found.append((OPS["ScatterRows"](reduction=reduction), [f(n, inner), rows, f(k, outer, inner)], tolerance))
            whole = rng.integers(-3, 4, (outer, k, inner)).astype(np.int32)
            found.append(
                (OPS["ScatterAlong"](reduction=reduction), [np.ones((outer, n, inner), np.int32), index, whole], 0.0)
            )
        lines = np.round(f(outer, n * k, inner), 1)                        # so coarse that there are equals
        lines.reshape(-1)[:: 11] = -0.0
        found += [(OPS["TopK"](K=best, axis=1, largest=largest), [np.where(lines > 2, np.nan, lines), ], 0.0)
                  for best in sorted({1, min(3, n * k), min(n * k, 12)}) for largest in (0, 1)]
        found += [
            (OPS[name](axis=1, exclusive=e, reverse=r), [x], tolerance)
            for name in ("CumSum", "CumProd")
            for e in (0, 1)
            for r in (0, 1)
            for x, tolerance in ((lines, 2e-5), (rng.integers(-3, 4, lines.shape), 0.0))
        ]
    named = {c.name: c for c in cases()}
    trees, alignments = (
        ("Trees-1", *(("Trees-0", "Trees-2", "Trees-3", "Trees-4") if wide else ())),
        ("CTCLoss-0", "CTCLossGrad-0", "CTCBeamSearchDecoder-0"),
    )
    found += [(named[name].op, named[name].arrays(), 2e-5) for name in trees]
    return found + [(named[name].op, named[name].arrays(), 0.0) for name in alignments]


def check_operator(op: Op, arrays: list[Array | None], trials: int, tolerance: float, precision: str = "32.32",
                   memory: int = 8 * KIB, **fields: Any) -> None:
    """Random plans against the whole kernel; `tolerance` 0: the same bits."""
    wanted = run_kernel(op, *arrays)
    work = op.work([None if a is None else type_of(a) for a in arrays], [type_of(y) for y in wanted])
    scales = magnitudes(op, work, arrays, wanted) if tolerance else []
    random = np.random.default_rng(7)
    for _ in range(trials):
        chosen = random_plan(work, random, **fields)
        found = Tiles(16, memory, precision).run(op, chosen, arrays)
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            assert type_of(a) == type_of(b), op
            if tolerance == 0:
                assert a.tobytes() == b.tobytes(), f"{op} split by {chosen.splits}, {chosen.serial}"
            else:
                assert (np.abs(a.astype(np.float64) - b) <= tolerance * scales[i]).all(), f"{op} split by {chosen.splits}, {chosen.serial}"


@pytest.mark.parametrize("cases", [paths.rare(convolutions), paths.rare(pools), paths.rare(other_losses), sums])
def test_sums_split_at_random_are_equal_in_accuracy_class(cases: Callable[[], list[tuple[Op, list[Array | None]]]]):
    for op, arrays in cases():
        check_operator(op, arrays, 3, 5e-6)


def test_element_wise_and_indexing_operators_give_the_same_bits():
    for op, arrays in same_bits():
        check_operator(op, arrays, 3, 0.0)


@pytest.mark.parametrize("wide", [False, paths.rare(True)])
def test_parts_that_are_put_together_are_the_whole(wide: bool):
    """Whatever is cut, in uneven parts, with grains, one after the other: the same bits where nothing is added in
    another order."""
    for op, arrays, tolerance in put_together(wide):
        check_operator(op, arrays, 12 if wide else 4, tolerance, memory=64 * KIB)


@pytest.mark.parametrize("name", ["TopK", "CumSum", "ScatterAlong"])
def test_what_is_put_together_travels_as_float16(name: str):
    x = np.round(f(3, 16, 2), 1)
    given: dict[str, tuple[Op, list[Array | None]]] = {
        "TopK": (OPS["TopK"](K=4, axis=1), [x]), "CumSum": (OPS["CumSum"](axis=1), [x]),
        "ScatterAlong": (OPS["ScatterAlong"](reduction="add"), [x, rng.integers(0, 16, (3, 40, 2)), f(3, 40, 2)])}
    op, arrays = given[name]
    found = Tiles(16, 8 * KIB, "16.16").run(op, plan({"a": 3, "b": 4}, reduce_stages=2), arrays)
    for a, b in zip(found, run_kernel(op, *arrays), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-2)
        assert (a == a.astype(np.float16)).all()


def test_a_part_receives_what_others_found():
    """Of running sums one number of each other part; of the best of an axis all that the others of its group have."""
    x = f(1, 32)
    machine = Tiles(4, KIB)
    machine.run(OPS["CumSum"](axis=1), plan({"b": 4}), [x])
    assert machine.traffic.received == {t: 8 * 4 + 3 * 4 for t in range(4)}
    machine.run(OPS["TopK"](K=2, axis=1), plan({"b": 4}, reduce_stages=1), [x])
    assert machine.traffic.received == {0: 8 * 4 + 3 * 2 * (4 + 8), **{t: 8 * 4 for t in range(1, 4)}}


def test_scatters_give_the_same_bits_where_no_sum_is_split():
    g, index = f(7, 3), rng.integers(-11, 11, 7)
    wanted, = run_kernel(OPS["GatherGrad"](shape=(11, 3)), g, index)
    for splits in ({"rows": 4}, {"b": 3}, {"b": 2, "rows": 3}):
        found, = Tiles(16, 4 * KIB).run(OPS["GatherGrad"](shape=(11, 3)), plan(splits), [g, index])
        assert found.tobytes() == wanted.tobytes()


def test_half_precision_travels_and_rests_as_float16():
    for op, arrays in ((OPS["MatMul"](), [f(9, 40), f(40, 7)]), (OPS["Conv"](pads=(1, 1, 1, 1)), [f(3, 4, 9, 8), f(6, 4, 3, 2), f(6)])):
        check_operator(op, arrays, 3, 5e-3, "16.16", partials="float16")
        machine = Tiles(4, 8 * KIB, "16.32")
        y, = machine.run(op, plan({}), arrays)
        assert (y == y.astype(np.float16)).all()
        assert machine.traffic.received == {0: sum(a.nbytes // 2 for a in arrays)}


@pytest.mark.parametrize("tiles", [4, 64])
@pytest.mark.parametrize("some", [slice(-3, None), paths.rare(slice(None))], ids=["one", "all"])
def test_the_planners_temporaries_are_what_its_tiles_hold(some: slice, tiles: int):
    """An arena holds the planned temporaries, the output's part and what is added to it; and results are right for every bound."""
    small = chip("gc200").variant(tiles=tiles)
    cases: list[tuple[Op, list[Any]]] = [*convolutions()[some], (OPS["MatMul"](), [f(64, 96), f(96, 80)])]
    cases += [(OPS["Gemm"](), [f(9, 130), f(130, 7), f(7)])]
    for op, arrays in cases:
        wanted = run_kernel(op, *arrays)
        work = op.work([type_of(a) for a in arrays], [type_of(y) for y in wanted])
        for bound in (None, 20_000, 2000):
            chosen, machine = plan_work(work, small, bound), Tiles(tiles, 64 * KIB)
            found = machine.run(op, chosen, arrays)
            for a, b, scale in zip(found, wanted, magnitudes(op, work, arrays, wanted), strict=True):
                assert (abs(a - b) <= 5e-6 * scale).all(), f"{op} split by {chosen.splits}, {chosen.serial}"
            boxes = [box for part in parts_of(work, chosen, tiles) for box in part.boxes]
            own = [(o, t) for o, t in zip((*work.outputs, *work.inputs[2:]), (*wanted, *arrays[2:]), strict=True) if o is not None]
            rest = max(sum(4 * math.prod(extent(region(o, box, t.shape))) for o, t in own) for box in boxes)
            assert machine.traffic.arena <= chosen.temp_bytes + rest + 8 * (len(arrays) + len(wanted)), f"{op}: {chosen}"


# ---- partials

def test_partials_are_added_in_order_in_the_planned_type_and_rounds():
    a, b = f(3, 8), f(8, 5)
    halves = [(a[:, i:i + 2] @ b[i:i + 2]).astype(np.float16) for i in range(0, 8, 2)]
    for stages, wanted in ((1, ((halves[0] + halves[1]) + halves[2]) + halves[3]), (2, (halves[0] + halves[1]) + (halves[2] + halves[3]))):
        found, = Tiles(8, KIB).run(OPS["MatMul"](), plan({"k": 4}, partials="float16", reduce_stages=stages), [a, b])
        np.testing.assert_array_equal(found, wanted.astype(np.float32))


@pytest.mark.parametrize("partials", ["float16", "float32"])
def test_float16_products_add_up_on_a_tile_in_the_planned_type(partials: str):
    """65536 ones on one tile and on four: float16 sums of ones that are rounded after every 16 stop at 32768, float32's do not."""
    ones = [np.ones((1, 1 << 16), np.float16), np.full((1 << 16, 1), 0.25, np.float16)]
    one, = Tiles(1, 1 << 20).run(OPS["MatMul"](), plan({}, partials=partials), [ones[0], ones[1] * np.float16(4)])
    assert float(one[0, 0]) == (32768 if partials == "float16" else np.inf)
    four, = Tiles(4, 1 << 20).run(OPS["MatMul"](), plan({"k": 4}, partials=partials), ones)
    assert float(four[0, 0]) == 16384


@pytest.mark.parametrize("tiles", [4, 64])
def test_the_planned_exchange_is_what_tiles_receive(tiles: int):
    """Of the operands of whole grains to the byte; operands that stay over serial steps are received once."""
    for m, k, n, bound in ((64, 96, 80, None), (64, 96, 80, 2000), (16, 64, 128, 20_000), (32, 128, 32, 8000)):
        a, b = f(m, k), f(k, n)
        work = OPS["MatMul"]().work((type_of(a), type_of(b)), [type_of(f(m, n))])
        chosen, machine = plan_work(work, chip("gc200").variant(tiles=tiles), bound), Tiles(tiles, 64 * KIB)
        machine.run(OPS["MatMul"](), chosen, [a, b])
        received = machine.traffic.most_received
        assert received == chosen.exchange_bytes or (chosen.reduce_stages and abs(received - chosen.exchange_bytes) < 0.1 * received), chosen


def test_reducing_is_shared_by_the_tiles_that_hold_partials():
    machine = Tiles(8, 4 * KIB)
    machine.run(OPS["MatMul"](), plan({"k": 4}, reduce_stages=1), [f(16, 8), f(8, 16)])
    operands, share = (16 * 2 + 2 * 16) * 4, 16 * 16 // 4 * 4
    assert machine.traffic.received == {t: operands + 3 * share for t in range(4)}


# ---- what a tile sees

def test_too_little_tile_memory_is_an_error():
    x, w = f(2, 8, 8, 8), f(8, 8, 3, 3)
    conv = OPS["Conv"](pads=(1, 1, 1, 1))
    wanted, = run_kernel(conv, x, w)
    machine = Tiles(16, 4 * KIB)
    with pytest.raises(TileMemoryError, match=r"Conv.*: input 0 needs 4,096 bytes on a tile where"):
        machine.run(conv, plan({}), [x, w])
    found, = machine.run(conv, plan({"n": 2, "o": 4, "o0": 2}, serial={"c": 2}), [x, w])
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert 0 < machine.traffic.arena <= 4 * KIB


def test_only_the_planned_elements_are_brought():
    """Halos and no more: output rows 2 and 3 of a 3-tap convolution with padding 1 meet rows 1 to 4."""
    machine = Tiles(4, 64 * KIB)
    machine.run(OPS["Conv"](pads=(1, 1, 1, 1)), plan({"o0": 4}), [f(1, 1, 8, 8), f(1, 1, 3, 3)])
    assert machine.traffic.received == {0: (3 * 8 + 9) * 4, 1: (4 * 8 + 9) * 4, 2: (4 * 8 + 9) * 4, 3: (3 * 8 + 9) * 4}


@pytest.mark.parametrize("case", ["Conv", "MaxPool"])
def test_a_halo_that_is_too_small_does_not_pass(case: str, monkeypatch: pytest.MonkeyPatch):
    whole = Window.range
    monkeypatch.setattr(Window, "range", lambda self, box, size: (whole(self, box, size)[0], whole(self, box, size)[1] - 1))
    op, arrays = (OPS["Conv"](), [f(1, 2, 6, 6), f(2, 2, 3, 3)]) if case == "Conv" else (OPS["MaxPool"](kernel_shape=(3, 3)), [f(1, 2, 6, 6)])
    with pytest.raises((TypeError, ValueError, AssertionError)):
        Tiles(4, 64 * KIB).run(op, plan({"o0": 2}), arrays)


def test_a_wrong_declaration_is_found(monkeypatch: pytest.MonkeyPatch):
    """Partials that do not combine as declared: a maximum instead of a sum."""
    monkeypatch.setattr(ReduceSum, "combine", "max")
    x = f(8, 3)
    found, = Tiles(4, KIB).run(OPS["ReduceSum"](axes=(0,)), plan({"a": 2}), [x])
    assert not np.allclose(found, x.sum(0))


def test_an_element_written_twice_or_never_is_an_error():
    sheet = exact.reduction.Sheet((4,), np.dtype(np.float32))
    sheet.write(((0, 3),), np.ones(3))
    with pytest.raises(AssertionError, match="never computed"):
        sheet.finish(None)
    with pytest.raises(AssertionError, match="twice"):
        sheet.write(((2, 4),), np.ones(2))


def test_an_index_out_of_range_is_an_error():
    for splits in ({}, {"rows": 2}):
        with pytest.raises(DataError, match=r"out of range|outside of the 5 rows"):
            Tiles(4, KIB).run(OPS["Gather"](), plan(splits), [f(5, 2), np.array([1, 5])])


# ---- whole programs

@pytest.mark.parametrize(("size", "kernel", "stride", "pads", "dilation", "group"), [
    ((5, 5), 2, 2, (0, 0, 1, 1), 1, 1), ((7, 6), 2, 3, (0, 0, 1, 2), 1, 2), ((9, 9), 2, 4, (0, 0, 3, 0), 2, 1), ((7, 7), 1, 3, (0, 0, 2, 2), 1, 1),
    ((4, 5), 2, 2, (0, 1, 0, 0), 1, 1), ((5, 4), 3, 3, (0, 0, 4, 2), 1, 4)])
def test_windows_side_by_side_that_reach_beyond_the_end(size: tuple[int, int], kernel: int, stride: int, pads: tuple[int, ...], dilation: int,
                                                        group: int):
    """Strides of a kernel or more, with padding at the end only: forward and both gradients."""
    x, w = f(2, 4, *size), f(8, 4 // group, kernel, kernel)
    attributes: dict[str, Any] = dict(strides=(stride, stride), pads=pads, dilations=(dilation, dilation), group=group)
    y, = OPS["Conv"](**attributes).reference(x, w)
    for op, given in ((OPS["Conv"](**attributes), (x, w)), (OPS["ConvInputGrad"](shape=size, **attributes), (y, w)),
                      (OPS["ConvWeightGrad"](kernel_shape=(kernel, kernel), **attributes), (x, y))):
        wanted, = op.reference(*given)
        work = op.work([type_of(a) for a in given], [type_of(wanted)])
        for seed in range(4):
            made, = Tiles(16, 96 * KIB).run(op, random_plan(work, np.random.default_rng(seed)), list(given))
            np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5)


class Mlp(nn.Module):
    def __init__(self) -> None:
        nn.manual_seed(1)
        self.one, self.two = nn.Linear(12, 16), nn.Linear(16, 5)

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        return self.two(self.one(x).relu())


class Everything(nn.Module):
    """Convolution, batch norm, pooling, dropout, dense."""

    def __init__(self) -> None:
        nn.manual_seed(5)
        self.conv, self.norm = nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8)
        self.drop, self.last = nn.Dropout(0.4), nn.Linear(8 * 9, 5)

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        x = self.norm(self.conv(x)).relu().apply("MaxPool", kernel_shape=(2, 2), strides=(2, 2))
        return self.last(self.drop(x.flatten()))


class Words(nn.Module):
    """Embedding, layer norm, softmax over tokens."""

    def __init__(self) -> None:
        nn.manual_seed(2)
        self.table, self.norm, self.last = nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(6 * 8, 5)

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        return self.last(self.norm(self.table(x)).apply("Softmax", axis=1).flatten())


def digits() -> Any:
    return Path(tileflow.__file__).parent / "data" / "digits_cnn.onnx"


MODELS: dict[str, tuple[Callable[[], Any], Array, Any]] = {
    "mlp": (Mlp, f(24, 12), optim.SGD(lr=0.5)),
    "everything": (Everything, f(24, 2, 8, 8), optim.AdamW(lr=0.01)),
    "words": (Words, rng.integers(0, 11, (24, 6)), optim.SGD(lr=0.5, momentum=0.9)),
    "digits": (digits, f(24, 1, 8, 8), optim.SGD(lr=0.1)),
}
LABELS = rng.integers(0, 5, 24)


def training(name: str) -> tuple[TrainingModel, dict[str, Array]]:
    """A compiled model (4 rows, 3 micro-batches an update, 2 updates a call) and its states before training."""
    make, x, optimizer = MODELS[name]
    model = tileflow.training_model(make(), optimizer=optimizer, output_mode="all", micro_batch_size=4, gradient_accumulation=3, device_iterations=2)
    model.compile(x, LABELS)
    return model, {n: a.copy() for n, a in model.source.session.snapshot().items()}


def compare_with_engine(name: str, plans: Callable[[Program], Mapping[Node, OpPlan]], tiles: int, memory: int) -> None:
    """Outputs, loss, weights, statistics and optimizer states of a call on the tiles and in the engine."""
    model, before = training(name)
    x = MODELS[name][1]
    feeds = {v.name: a for v, a in zip(model.program.inputs, (x, LABELS), strict=True)}
    session = model.source.session
    found = exact.execute(model.program, plans(model.program), feeds, before, Tiles(tiles, memory), scalars=model.optimizer.values,
                          seed=model.engine.seed)
    assert 0 < found.arena <= memory
    for (what, a), b in zip(found.outputs.items(), model.run_call(x, LABELS), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=what)
    for what, b in session.snapshot().items():
        if what.startswith("conv.bias"):
            continue                                               # before a batch norm its gradient is zero, and what there is is noise
        if what == "norm.running_mean":
            b = b + 0                                              # follows the noise of conv.bias by a hundredth
            np.testing.assert_allclose(found.states[what], b, atol=1e-2, err_msg=what)
            continue
        np.testing.assert_allclose(found.states[what], b, rtol=1e-3, atol=1e-5 * max(1.0, float(np.abs(b).max())), err_msg=what)


@pytest.mark.parametrize("name", MODELS)
def test_training_with_random_plans_is_the_engines(name: str):
    random = np.random.default_rng(4)
    compare_with_engine(name, lambda p: {n: random_plan(exact.work_of(n), random, 8) for g in p.graphs for n in g.nodes}, 8, 96 * KIB)


@pytest.mark.parametrize(("name", "tiles"), [("mlp", 4), ("everything", 16), ("words", 16), ("digits", 8)])
def test_training_with_the_planners_plans_is_the_engines(name: str, tiles: int):
    small = chip("gc200").variant(tiles=tiles, bytes_per_tile=64 * KIB)

    def plans(p: Program) -> Mapping[Node, OpPlan]:
        return {s.node: s.plan for s in analyze(p, small).steps}
    compare_with_engine(name, plans, tiles, small.bytes_per_tile)


@pytest.mark.parametrize("precision", ["32.32", "16.16"])
def test_check_reports_every_operator(precision: str):
    model, _ = training("digits")
    tiled = analyze(model.program, chip("gc200").variant(tiles=16, bytes_per_tile=64 * KIB), TileOptions(precision=precision))
    report = exact.check(tiled, seed=1)
    assert report.ok, report.to_text()
    assert len(report.steps) == len(tiled.steps)
    assert 0 < report.arena <= 64 * KIB
    assert "0 wrong" in report.to_text()
    assert all(s.error == 0 for s in report.steps if s.kind in ("map", "move", "gather"))


@pytest.mark.parametrize("mode", ["input_channels", "reducing_dim", "output_channels"])
def test_serialized_products_run_in_equal_pieces(mode: str):
    work = OPS["SerializedMatMul"](mode=mode, factor=4).work((type_of(f(8, 24)), type_of(f(24, 48))), [type_of(f(8, 48))])
    (axis, factor), = work.serial
    part, *_ = parts_of(work, plan({}, serial={axis: factor}, grains={"n": 16, "k": 8}), 4)
    assert [hi - lo for lo, hi in (box[axis] for box in part.boxes)] == [next(a.size for a in work.axes if a.name == axis) // 4] * 4
    model, _ = training("mlp")
    tiled = analyze(model.program, chip("gc200").variant(tiles=4, bytes_per_tile=64 * KIB), TileOptions(serialized={"one": (mode, 2)}))
    assert any(s.plan.serial for s in tiled.steps)
    report = exact.check(tiled)
    assert report.ok, report.to_text()


def test_check_finds_a_wrong_operator(monkeypatch: pytest.MonkeyPatch):
    model, _ = training("mlp")
    nodes = [n for g in model.program.graphs for n in g.nodes]
    monkeypatch.setattr(ReduceSum, "combine", "max")
    report = exact.compare(model.program, {n: plan({"a": 2} if n.op.name == "ReduceSum" else {}) for n in nodes}, 4, 64 * KIB)
    assert not report.ok
    assert report.worst is not None
    assert "ReduceSum" in report.worst.name
    assert "2 wrong" in report.to_text()


def test_gradients_are_the_micro_batchs():
    """SGD without momentum: the weights' change is the gradient."""
    make, x, _ = MODELS["mlp"]
    model = tileflow.training_model(make(), optimizer=optim.SGD(lr=1.0), output_mode="all")
    model.compile(x, LABELS)
    before = {n: a.copy() for n, a in model.source.session.snapshot().items()}
    random = np.random.default_rng(5)
    plans = {n: random_plan(exact.work_of(n), random) for g in model.program.graphs for n in g.nodes}
    feeds = {v.name: a for v, a in zip(model.program.inputs, (x, LABELS), strict=True)}
    found = exact.execute(model.program, plans, feeds, before, Tiles(16, 64 * KIB), scalars=model.optimizer.values)
    model(x, LABELS)
    changes = [before[s.name] - model.source.session[s.name] for s in model.program.micro.parameters]
    assert len(found.contributions) == len(changes) == 4
    for change in changes:
        assert min(float(np.abs(change - g).max()) for g in found.contributions.values() if g.shape == change.shape) < 1e-5


def test_a_missing_input_is_an_error():
    model, before = training("mlp")
    with pytest.raises(DataError, match=r"The input .* is missing"):
        exact.execute(model.program, {}, {}, before, Tiles(4, KIB))
