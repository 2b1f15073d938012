"""No program of the zoo beats what wires, arithmetic and memory can do, on any chip at any proportion; and the checker finds one that does."""
from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any

import paths
import pytest
from operators import examples
from tile_checker import violations
from tile_models import alone
from tile_zoo import ZOO

from tileflow.program.program import Program
from tileflow.tiles.hardware.chip import Chip, MatrixUnit, chip
from tileflow.tiles.limits import square_matmul
from tileflow.tiles.machine import TileProgram, analyze
from tileflow.tiles.plans.plan import TileOptions

MINE = chip("gc200").variant(name="mine", tiles=100, tiles_per_bus=4, exchange_bytes_per_cycle=6.0, vector_bytes=16, workers=4,
                             bytes_per_tile=1 << 20,
                             matrix={"float32.float32": MatrixUnit(48, 12, 8), "float16.float16": MatrixUnit(96, 24, 8)})
"""A chip of a user's own: four tiles on a bus, blocks and a data path of other sizes, no float32 sums of float16 products."""
CHIPS: tuple[Chip, ...] = (chip("gc2"), chip("gc200"), chip("bow"), MINE)
PROPORTIONS = (0.0, 0.02, 0.05, 0.2, 0.6)
PRECISIONS = ("32.32", "16.16", "16.32")
SAMPLE = {("mixer training", "gc200", 0.6), ("lenet training", "mine", 0.05), ("instance norm training", "bow", 0.2), ("words training", "gc2", 0.02),
          ("transformer inference", "bow", 0.0), ("separable training", "mine", 0.6)}


@functools.lru_cache(2)
def program(name: str) -> Program:
    return ZOO[name]()


def analysed(name: str, machine: Chip, proportion: float) -> TileProgram:
    """Each precision has its turn over the proportions of a chip."""
    precision = PRECISIONS[(CHIPS.index(machine) + PROPORTIONS.index(proportion)) % len(PRECISIONS)]
    return analyze(program(name), machine, TileOptions(available_memory_proportion=proportion, precision=precision))


def cases() -> list[Any]:
    found = [(name, machine, p) for name in ZOO for machine in CHIPS for p in PROPORTIONS]
    return [pytest.param(*case, id=f"{case[0]}-{case[1].name}-{case[2]}",
                         marks=() if (case[0], case[1].name, case[2]) in SAMPLE else paths.exhaustive) for case in found]


@pytest.mark.parametrize(("name", "machine", "proportion"), cases())
def test_nothing_is_better_than_it_can_be(name: str, machine: Chip, proportion: float) -> None:
    assert violations(analysed(name, machine, proportion)) == []


@pytest.mark.parametrize("tiles", [16, pytest.param(100, marks=paths.exhaustive)])
def test_no_operator_alone_is_better_than_it_can_be(tiles: int) -> None:
    """Also those of which every part of the work needs whole dimensions of an operand: images of regions, tables, rows of attention."""
    few, found = chip("gc200").variant(name="few", tiles=tiles), {}
    for op, types in examples():
        found[f"{op} {types}"] = violations(analyze(alone(op, types), few, TileOptions()))
    assert len(found) > 100
    assert {name: sentences for name, sentences in found.items() if sentences} == {}


def test_every_precision_is_looked_at_on_every_chip() -> None:
    seen = {(c.name, PRECISIONS[(i + j) % 3]) for i, c in enumerate(CHIPS) for j in range(len(PROPORTIONS))}
    assert len(seen) == len(CHIPS) * len(PRECISIONS)


@functools.cache
def lenet() -> TileProgram:
    return analyze(program("lenet training"), chip("gc200"), TileOptions())


def cheaper(tiled: TileProgram, phase: str, op: str) -> TileProgram:
    """The program with an operator's exchange at a third, or its arithmetic at a twentieth (small vertices take long to start)."""
    share = 3 if phase == "exchange" else 20
    steps = [replace(s, phases=replace(s.phases, **{phase: getattr(s.phases, phase) // share})) if s.node.op.name == op else s for s in tiled.steps]
    return replace(tiled, steps=steps)


@pytest.mark.parametrize(("phase", "op"), [("exchange", "Conv"), ("exchange", "Gemm"), ("compute", "Relu")])
def test_an_operator_that_is_too_quick_is_found(phase: str, op: str) -> None:
    assert violations(lenet()) == []
    found = violations(cheaper(lenet(), phase, op))
    assert found
    assert all(f"{op} " in sentence and phase in sentence for sentence in found)


def test_a_product_above_the_peak_is_found() -> None:
    tiled = analyze(square_matmul(1024), chip("gc200").variant(tiles=16), TileOptions(precision="16.16"))
    assert violations(tiled) == []
    steps = [replace(s, phases=replace(s.phases, compute=int(s.phases.compute / 1.2), transform=0, reduce=0)) for s in tiled.steps]
    assert "compute" in violations(replace(tiled, steps=steps))[0]


def test_sources_on_few_tiles_are_found() -> None:
    """The same plans where a convolution's input lies on two tiles."""
    tiled = analyze(program("instance norm inference"), chip("gc200"), TileOptions())
    convolution = [s for s in tiled.steps if s.node.op.name == "Conv"][-1]
    storage = tiled.memory_schedule.of[convolution.node.inputs[0]]
    assert storage.mapping is not None
    before = storage.mapping
    cut = before.cuts[0]
    storage.mapping = replace(before, cuts=(replace(cut, step=-(-cut.size // 2), digits=((2, 1),)),
                                            *(replace(c, step=c.size, digits=()) for c in before.cuts[1:])), shares=())
    try:
        found = violations(tiled)
    finally:
        storage.mapping = before
    sent = storage.mapping.size // 2 * storage.itemsize // 4
    sends = [int(m[1]) for sentence in found if (m := re.search(r"Conv .*exchange .* send (\d+)", sentence))]
    assert len(sends) == 1
    assert sent <= sends[0] <= sent + 32                           # and a share of the weights


def test_memory_that_is_not_there_is_found() -> None:
    tiled = lenet()
    assert any("holds" in sentence for sentence in violations(replace(tiled, peak=tiled.peak // 20)))
    assert any("the fullest" in sentence for sentence in violations(replace(tiled, liveness=tiled.liveness // 20)))
