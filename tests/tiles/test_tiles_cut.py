"""What ran on one tile is cut apart and put together: within five times of an estimate by hand for tall, wide and
square shapes, never dearer than the plan that does not, and run tile by tile as planned."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import paths
import pytest
from tile_checker import violations
from tile_models import alone

from tileflow import exact
from tileflow.graph import OPS, Builder, Graph, Op, TensorType
from tileflow.graph.work import Work, sized
from tileflow.program.batching import Batching
from tileflow.program.program import Program
from tileflow.tiles.hardware.chip import Chip, chip
from tileflow.tiles.machine import analyze
from tileflow.tiles.plans.planner import plan_uncut, plan_work
from tileflow.tiles.plans.spread import on_device
from tileflow.tiles.plans.stepwise import plan_stepwise

GC200 = chip("gc200")
TILES, SYNC, CALL = GC200.tiles, GC200.sync_cycles, 200
"""Cycles of calling a vertex, about."""
EAGER = GC200.variant(name="eager", tiles=16, sync_cycles=0, launch_cycles=0)
"""A chip on which cutting costs nothing, so that small operators are cut."""


def floats(*shape: int) -> TensorType:
    return TensorType("float32", shape)


def places(*shape: int) -> TensorType:
    return TensorType("int64", shape)


def work_of(op: Op, *types: TensorType) -> Work:
    made = op.infer(*types)
    return on_device(sized(op.work(types, made), [t.shape for t in types], [t.shape for t in made]), "32.32")


def shares(tiles: int) -> list[int]:
    """Numbers of parts to try by hand."""
    return sorted({*(1 << i for i in range(tiles.bit_length())), tiles})


# ---- estimates by hand: a vector is two elements, a cycle a vector for each operation or load


def scattered(n: int, updates: int, columns: int, looked: float, pair: int = 1) -> float:
    """Two cycles for each update that is put. Tiles that share a column split its updates (then each passes its partial
    table on, a cycle an element; where the last update counts, each has a pair of the element and its number) and its
    rows (then each looks at all indices of its updates, `looked` cycles each)."""
    lanes, found = min(columns, TILES), []
    width = -(-columns // lanes)
    for p in shares(TILES // lanes):
        for r in shares(min(n, TILES // lanes // p)):
            walked = updates / p * width
            found.append(
                CALL
                + 2 * walked / r * (pair if p > 1 else 1)
                + (looked * walked if r > 1 else 0)
                + (pair * n / r * width if p > 1 else 0)
                + SYNC * ((r > 1) + 2 * (p > 1))
            )
    return min(found)


def ranked(lines: int, n: int, k: int) -> float:
    """log2(k + 1) + 1 operations a vector; of p parts the best are put together in two rounds of sqrt(p) each, sent at
    8 bytes each."""
    lanes = min(lines, TILES)
    each = (math.log2(k + 1) + 1) / 2
    return min(
        CALL
        + math.ceil(lines / lanes) * (n / p * each + (p > 1) * 2 * math.sqrt(p) * min(k, n / p) * (each + 2))
        + (p > 1) * 2 * SYNC
        for p in shares(TILES // lanes)
    )


def running(lines: int, n: int) -> float:
    """A pass over the elements; of p parts another one, and what each comes to sent to all, who add it up."""
    lanes = min(lines, TILES)
    return min(
        CALL + math.ceil(lines / lanes) * (n / p * (1 + (p > 1)) + 2 * (p > 1) * p) + (p > 1) * SYNC
        for p in shares(TILES // lanes)
    )


def searched(lines: int, n: int) -> float:
    """A pass over the elements, and partial results of p parts in rounds."""
    lanes = min(lines, TILES)
    return min(CALL + math.ceil(lines / lanes) * n / p + (p > 1) * 2 * (SYNC + 200) for p in shares(TILES // lanes))


def voted(rows: int, trees: int, depth: int) -> float:
    """Eight cycles a node that is walked; votes of parts of the trees in rounds."""
    return min(
        CALL + 8 * depth * math.ceil(rows / a) * math.ceil(trees / b) + (b > 1) * 2 * (SYNC + 200)
        for a in shares(TILES)
        for b in shares(TILES // a)
    )


def aligned(rows: int, steps: int, states: int) -> float:
    """Twenty operations a state and step of a row on a tile of its own."""
    return CALL + math.ceil(rows / TILES) * steps * states * 20 / 2


def along(n: int, updates: int, columns: int, reduction: str = "add") -> tuple[Op, tuple[TensorType, ...], float]:
    return (
        OPS["ScatterAlong"](reduction=reduction),
        (floats(1, n, columns), places(1, updates, columns), floats(1, updates, columns)),
        scattered(n, updates, columns, 5, 1 + (reduction == "none")),
    )


def by_row(n: int, updates: int, columns: int, reduction: str = "add") -> tuple[Op, tuple[TensorType, ...], float]:
    return (
        OPS["ScatterRows"](reduction=reduction),
        (floats(n, columns), places(updates), floats(updates, columns)),
        scattered(n, updates, columns, 30 / max(1, -(-columns // TILES)), 1 + (reduction == "none")),
    )


def rank(lines: int, n: int, k: int) -> tuple[Op, tuple[TensorType, ...], float]:
    return OPS["TopK"](K=k), (floats(lines, n),), ranked(lines, n, k)


def forest(rows: int, trees: int, how: str = "SUM", depth: int = 7) -> tuple[Op, tuple[TensorType, ...], float]:
    leaves = trees << depth
    nodes = 2 * leaves - trees

    def table(*shape: int) -> TensorType:
        return TensorType("uint32", shape)

    votes = TensorType("float64", (leaves,))
    types = (
        floats(rows, 30),
        floats(nodes),
        table(nodes, 4),
        table(trees),
        table(leaves + 1),
        table(leaves),
        votes,
        votes.with_shape((1,)),
    )
    return OPS["Trees"](aggregate=how, depth=depth), types, voted(rows, trees, depth)


def ctc(rows: int, steps: int, labels: int) -> tuple[Op, tuple[TensorType, ...], float]:
    return (
        OPS["CTCLoss"](),
        (floats(steps, rows, 30), places(rows, labels), places(rows), places(rows)),
        aligned(rows, steps, 2 * labels + 1),
    )


LINES = {"tall": (100_000, 16), "wide": (1, 1_000_000), "square": (1000, 1000)}
LINED: dict[str, Callable[[int, int], float]] = {
    "CumSum": running,
    "CumProd": running,
    "ArgMax": searched,
    "ArgMin": searched,
}
HAND: dict[str, tuple[Op, tuple[TensorType, ...], float]] = {
    "along, tall": along(1000, 10_000, 1),
    "along, wide": along(64, 100, 4096),
    "along, square": along(1000, 1000, 1000),
    "along, graph": along(1000, 10_000, 128),
    "along, sparse": along(100_000, 1000, 1),
    "along, large": along(100_000, 1_000_000, 1),
    "along, largest": along(1000, 10_000, 128, "max"),
    "along, put tall": along(1000, 10_000, 1, "none"),
    "along, put wide": along(64, 100, 4096, "none"),
    "along, put square": along(1000, 1000, 1000, "none"),
    "along, put large": along(100_000, 1_000_000, 1, "none"),
    "rows, put tall": by_row(1000, 10_000, 1, "none"),
    "rows, put wide": by_row(64, 100, 4096, "none"),
    "rows, put square": by_row(1000, 1000, 1000, "none"),
    "rows, put large": by_row(100_000, 1_000_000, 1, "none"),
    "rows, tall": by_row(1000, 10_000, 1),
    "rows, wide": by_row(64, 100, 4096),
    "rows, square": by_row(1000, 1000, 1000),
    "rows, graph": by_row(1000, 10_000, 128, "mul"),
    "rows, large": by_row(100_000, 1_000_000, 1),
    "best, tall": rank(100_000, 16, 3),
    "best, wide": rank(1, 1_000_000, 10),
    "best, square": rank(1000, 1000, 5),
    "best, many": rank(1, 50_000, 1000),
    **{
        f"{name}, {shape}": (OPS[name](axis=1), (floats(*size),), by_hand(*size))
        for name, by_hand in LINED.items()
        for shape, size in LINES.items()
    },
    **{
        f"forest, {how}, {shape}": forest(*size, how)
        for how in ("SUM", "AVERAGE", "MIN", "MAX")
        for shape, size in {"tall": (100_000, 10), "wide": (1, 1000), "square": (500, 500)}.items()
    },
    "alignments, tall": ctc(1024, 50, 20),
    "alignments, wide": ctc(4, 1000, 100),
    "alignments, square": ctc(128, 200, 50),
}


@pytest.mark.parametrize("case", HAND)
def test_plans_are_within_five_times_of_an_estimate_by_hand(case: str) -> None:
    op, types, estimate = HAND[case]
    plan = plan_work(work_of(op, *types), GC200, GC200.bound(0.6))
    assert plan.fits
    assert estimate / 5 <= plan.phases.total <= 5 * estimate, f"{plan.phases} for {estimate:,.0f}: {dict(plan.splits)}"


def shapes(rng: np.random.Generator) -> tuple[int, int, int]:
    return tuple(int(2 ** rng.uniform(0, 13)) for _ in range(3))  # type: ignore[return-value]


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=paths.exhaustive) for s in range(1, 30))])
def test_no_plan_is_dearer_than_one_that_is_not_cut_apart(seed: int) -> None:
    """Of any shape and chip, within any bound; and one that fits is never given up for one that does not."""
    rng = np.random.default_rng(seed)
    for _ in range(12):
        n, m, c = shapes(rng)
        machine = GC200.variant(
            name="some", tiles=int(rng.choice([1, 3, 16, 100, 1472])), sync_cycles=int(rng.choice([0, 600]))
        )
        made = [
            along(n, m, c),
            by_row(n, m, c, "max"),
            by_row(n, m, c, "none"),
            rank(c, n, min(n, m)),
            forest(n, min(m, 300), str(rng.choice(["SUM", "AVERAGE", "MIN", "MAX"]))),
            (OPS["CumSum"](axis=1, exclusive=1), (floats(c, n),), 0.0),
        ]
        for op, types, _ in made:
            work = work_of(op, *types)
            for bound in (None, 2000):
                plan, uncut = plan_work(work, machine, bound), plan_uncut(work, machine, bound)
                assert not uncut or (plan.fits, -plan.phases.total) >= (uncut[0].fits, -uncut[0].phases.total), (
                    f"{op} of {types}: {plan}, {uncut[0]}"
                )


BEFORE = {
    "ScatterElements, tall": 43_842,
    "ScatterElements, wide": 1_915_392,
    "ScatterElements, square": 5_021_056,
    "ScatterElements, few": 2_696,
    "ScatterND, tall": 43_842,
    "ScatterND, wide": 3_418,
    "ScatterND, square": 14_582,
    "ScatterND, few": 1_606,
    "ScatterND, spread": 40_230,
    "TopK, tall": 2_915,
    "TopK, wide": 3_503_747,
    "TopK, square": 4_309,
    "CumSum, tall": 1_277,
    "CumSum, wide": 2_003_735,
    "CumSum, square": 2_797,
}
"""Cycles on a GC200 when these were cut along what does not meet only, or not at all."""
SIZES = {
    "tall": (1000, 10_000, 1),
    "wide": (64, 100, 4096),
    "square": (1000, 1000, 1000),
    "few": (10, 10, 10),
    "spread": (9000, 300, 64),
}


@pytest.mark.parametrize("case", BEFORE)
def test_operators_are_no_dearer_than_they_were(case: str) -> None:
    name, shape = case.split(", ")
    if name.startswith("Scatter"):
        n, updates, columns = SIZES[shape]
        index = (updates, columns) if name == "ScatterElements" else (updates, 1)
        op, types = OPS[name](reduction="add"), (floats(n, columns), places(*index), floats(updates, columns))
    else:
        op, types = OPS[name](axis=1, **({"K": 10} if name == "TopK" else {})), (floats(*LINES[shape]),)
    assert analyze(alone(op, types), GC200, cache={}).cycles_per_update <= BEFORE[case]


def test_a_table_that_no_tile_holds_is_cut_into_rows() -> None:
    """Few updates are put the quickest by one tile, which cannot have a table of a million rows."""
    op, types, _ = along(1_000_000, 100, 1, "none")
    tiled = analyze(alone(op, types), GC200)
    assert tiled.fits
    assert tiled.steps[0].plan.splits["rows"] > 1
    op, types, _ = along(1000, 100, 1, "none")
    assert not plan_work(work_of(op, *types), GC200, None).splits, "one that a tile holds is not"


# ---- run tile by tile


def drawn(op: Op, types: tuple[TensorType, ...], machine: Chip, split: Callable[[Any], bool]) -> None:
    """The operator as planned on a machine, which must cut it so, compared with its kernel."""
    tiled = analyze(alone(op, types), machine)
    assert violations(tiled) == []
    step = next(s for s in tiled.steps if s.node.op.alias is None)
    assert split(step), f"{op} is cut {dict(step.plan.splits)}"
    report = exact.check(tiled)
    assert report.ok, report.to_text()


@pytest.mark.parametrize("reduction", ["none", "add", paths.rare("mul"), paths.rare("min"), "max"])
def test_scatters_are_run_as_planned(reduction: str) -> None:
    drawn(*along(40, 300, 3, reduction)[:2], EAGER, lambda s: s.plan.splits.get("b", 1) > 1)
    drawn(*by_row(40, 300, 3, reduction)[:2], EAGER, lambda s: s.plan.splits.get("a", 1) > 1)


@pytest.mark.parametrize(
    "op",
    [
        OPS["TopK"](K=3),
        OPS["CumSum"](axis=1, exclusive=1),
        paths.rare(OPS["CumSum"](axis=1, reverse=1)),
        paths.rare(OPS["CumProd"](axis=1)),
        OPS["ArgMax"](axis=1),
    ],
    ids=str,
)
def test_axes_that_are_put_together_are_run_as_planned(op: Op) -> None:
    drawn(op, (floats(2, 4001),), EAGER, lambda s: s.plan.splits.get("b", 1) > 1)


@pytest.mark.parametrize("shape", [(1, 5, 9, 2), paths.rare((3, 1, 17, 1)), paths.rare((2, 40, 300, 3))])
@pytest.mark.parametrize("name", ["ScatterRows", "ScatterAlong"])
def test_of_cut_updates_the_last_one_is_kept(name: str, shape: tuple[int, ...]) -> None:
    """Whichever tile puts it, at every cut of rows and of updates, in any number of rounds: the bits of the whole."""
    outer, n, k, inner = shape
    rng = np.random.default_rng(5)
    for dtype in ("float32", "int64", "float16", "bool"):
        index = rng.integers(-n, n, (outer, k, inner) if name == "ScatterAlong" else (k, outer))
        sizes = (
            ((outer, n, inner), (outer, k, inner)) if name == "ScatterAlong" else ((n, inner), (k, outer, inner))
        )
        arrays = [rng.integers(0, 2 if dtype == "bool" else 99, size).astype(dtype) for size in sizes]
        arrays.insert(1, index)
        arrays[0].reshape(-1)[:1] = np.nan if dtype.startswith("float") else 1
        op = OPS[name]()
        (wanted,) = op.reference(*arrays)
        updates = "b" if name == "ScatterAlong" else "a"
        for parts, rows, rounds in ((2, 1, 1), (3, 2, 2), (5, 1, 2)):
            plan = dataclasses.replace(exact.alone(), splits={"rows": rows, updates: parts}, reduce_stages=rounds)
            (found,) = exact.Tiles(16, 1 << 18).run(op, plan, arrays)
            assert found.tobytes() == wanted.tobytes(), (dtype, parts, rows)


def votes(how: str, seed: int, rows: int, trees: int) -> tuple[Op, list[Any]]:
    """A forest of stumps of which each votes for one of three targets, so that some have no vote; and some votes are
    not finite."""
    rng = np.random.default_rng(seed)
    nodes = 3 * trees
    links = np.zeros((nodes, 4), np.uint32)
    first = np.arange(0, nodes, 3)
    links[first] = np.stack([rng.integers(0, 4, trees), first + 1, first + 2, rng.integers(0, 2, trees)], 1)
    for child in (1, 2):
        links[first + child] = np.stack([0 * first, first + child, first + child, 2 * np.arange(trees) + child - 1], 1)
    thresholds = rng.standard_normal(nodes).astype(np.float32)
    targets = np.where(rng.random(2 * trees) < 0.1, 1, rng.integers(0, 2, 2 * trees) * 2)
    given = rng.standard_normal(2 * trees)
    given[rng.random(2 * trees) < 0.05] = rng.choice([np.inf, -np.inf])
    x = rng.standard_normal((rows, 4)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    starts = np.arange(2 * trees + 1)
    tables = [first, starts, targets]
    arrays = [x, thresholds, links, *(a.astype(np.uint32) for a in tables), given, np.array([0.5, -1.0, 2.0])]
    return OPS["Trees"](aggregate=how, missing=1, depth=99), arrays  # said to be deep, so that cutting them pays


@pytest.mark.parametrize("how", ["AVERAGE", "MAX", paths.rare("SUM"), paths.rare("MIN")])
def test_forests_are_run_over_parts_of_their_trees(how: str) -> None:
    for seed, (rows, trees) in enumerate([(7, 1), (1, 40), (23, 9)]):
        op, arrays = votes(how, seed, rows, trees)
        with np.errstate(invalid="ignore"):
            (wanted,) = op.reference(*arrays)
        plan = plan_work(work_of(op, *[TensorType(str(a.dtype), a.shape) for a in arrays]), EAGER, None)
        assert rows > 1 or plan.splits["t"] > 1
        for splits in (dict(plan.splits), {"a": 2}, *([{"t": 3, "a": 2}] if trees > 1 else [])):
            cut = dataclasses.replace(exact.alone(), splits=splits, reduce_stages=plan.reduce_stages)
            (found,) = exact.Tiles(16, 1 << 16).run(op, cut, arrays)
            np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)


# ---- recurrent layers


def step_of(kind: str, hidden: int, batch: int) -> Program:
    """What one turn of a Loop over the same steps computes: the product with the state, the cell's functions."""
    gates = {"RNN": 1, "LSTM": 4}[kind]
    graph = Graph("body")
    b = Builder(graph)
    x, h, r = (
        b.input("x", floats(batch, gates * hidden)),
        b.input("h", floats(batch, hidden)),
        b.input("r", floats(hidden, gates * hidden)),
    )
    at = b.Add(b.MatMul(h, r), x)
    if kind == "RNN":
        graph.outputs.append(b.Tanh(at))
        return Program.of(graph, Batching(1))
    i, o, f, g = b.Split(at, axis=1, sizes=(hidden,) * 4)
    state = b.Add(b.Mul(b.Sigmoid(f), b.input("c", floats(batch, hidden))), b.Mul(b.Sigmoid(i), b.Tanh(g)))
    graph.outputs += [b.Mul(b.Sigmoid(o), b.Tanh(state)), state]
    return Program.of(graph, Batching(1))


def no_dearer_than_a_loop(kind: str, hidden: int, batch: int) -> None:
    steps, gates = 20, {"RNN": 1, "LSTM": 4}[kind]
    work = work_of(
        OPS["Recurrence"](kind=kind), floats(1, steps, batch, gates * hidden), floats(1, gates * hidden, hidden)
    )
    plan = plan_stepwise(work, GC200)  # type: ignore[arg-type]
    assert plan.phases.total <= steps * analyze(step_of(kind, hidden, batch), GC200).cycles_per_update, (
        f"{kind} of {hidden} units, {batch} rows: {plan}"
    )


LAYERS = [(64, 512), (2048, 1), (512, 64), (512, 1), (128, 256), (300, 7), (1021, 32), (257, 64), (1382, 13), (320, 75)]


@pytest.mark.parametrize("kind", ["RNN", "LSTM"])
@pytest.mark.parametrize(("hidden", "batch"), LAYERS)
def test_recurrent_layers_are_no_dearer_than_the_same_in_a_loop(kind: str, hidden: int, batch: int) -> None:
    no_dearer_than_a_loop(kind, hidden, batch)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_no_recurrent_layer_is_dearer_than_the_same_in_a_loop(seed: int) -> None:
    """Of any number of units, primes among them, and of rows."""
    rng = np.random.default_rng(seed)
    for _ in range(100):
        no_dearer_than_a_loop(
            str(rng.choice(["RNN", "LSTM"])), int(2 ** rng.uniform(3, 11.5)), int(2 ** rng.uniform(0, 9))
        )
