"""Bytes per tile over the schedule: an independent count, sharing, what training keeps, code."""
from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from operators import f
from tile_models import PROGRAMS, Mixer, build, lenet, mlp

from tileflow.graph import Builder, Graph, Origin, State, TensorType, Value
from tileflow.graph.work import Map
from tileflow.optim import SGD, Adam
from tileflow.program.batching import Batching
from tileflow.program.program import Program
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.machine import TileProgram, analyze
from tileflow.tiles.placing.memory import holdings, tiles_of
from tileflow.tiles.plans.plan import OpPlan, Phases, TileOptions

SMALL = chip("gc200").variant(name="small", tiles=16)


def chain(n: int, size: int = 256) -> Program:
    """n transposes, one after the other."""
    graph = Graph("chain")
    b = Builder(graph)
    x = b.input("x", f(size, size))
    for i in range(n):
        with b.at(Origin((f"t{i}",))):
            x = b.Transpose(x, perm=(1, 0))
    graph.outputs.append(x)
    return Program.of(graph, Batching(size))


def products(n: int, size: int = 256) -> Program:
    """n products with weights of their own."""
    graph = Graph("products")
    b = Builder(graph)
    x = b.input("x", f(size, size))
    for i in range(n):
        weight = State(f"w{i}", "parameter", Value(f"w{i}", f(size, size)))
        graph.states.append(weight)
        with b.at(Origin((f"p{i}",))):
            x = b.MatMul(x, weight.input)
    graph.outputs.append(x)
    return Program.of(graph, Batching(size))


def count(tiled: TileProgram, step: int) -> np.ndarray:
    """Bytes per tile of all tensors alive during a step, interval by interval."""
    total = np.zeros(tiled.chip.tiles, np.int64)
    for storage in tiled.memory_schedule.storages:
        if not storage.always_live and any(first <= step <= last for first, last in storage.spans):
            assert storage.mapping is not None
            for tile, start, stop in storage.mapping.intervals():
                total[tile] += (stop - start) * storage.itemsize
    return total


@pytest.mark.parametrize("name", ["mlp training", "lenet inference", "mixer inference"])
def test_against_a_count_of_intervals(name: str) -> None:
    """Exact where nothing is overwritten in place, a bound from above elsewhere."""
    tiled = analyze(PROGRAMS[name](), SMALL)
    always = tiled.always_live
    for step in tiled.steps:
        tiles = tiles_of(step.plan, SMALL)
        wanted = (count(tiled, step.index) + tiles * (step.plan.temp_bytes + tiled.rearranged[step.index])).max()
        assert step.live_bytes == wanted if not isinstance(step.work, Map) else step.live_bytes <= wanted
        assert tiled.liveness[step.index] >= step.live_bytes
        assert tiled.liveness[step.index] <= step.live_bytes + always.max()


def test_tensors_that_are_not_live_together_share_memory() -> None:
    assert analyze(chain(40), SMALL).categories["activations"].max() <= analyze(chain(3), SMALL).categories["activations"].max() + 64
    few, many = analyze(products(3), SMALL), analyze(products(30), SMALL)
    assert many.categories["activations"].sum() == few.categories["activations"].sum()
    assert many.categories["weights"].sum() == 10 * few.categories["weights"].sum()


def test_an_element_wise_result_takes_its_input_over() -> None:
    graph = Graph("in place")
    b = Builder(graph)
    x = b.Transpose(b.input("x", f(256, 256)), perm=(1, 0))
    for _ in range(3):
        x = b.Relu(x)
    graph.outputs.append(x)
    tiled = analyze(Program.of(graph, Batching(256)), SMALL)
    assert [s.live_bytes for s in tiled.steps[1:]] == [256 * 256 * 4 // 16] * 3
    kept = Graph("not in place")
    b = Builder(kept)
    x = b.Transpose(b.input("x", f(256, 256)), perm=(1, 0))
    kept.outputs += [b.Relu(x), x]
    assert analyze(Program.of(kept, Batching(256)), SMALL).steps[-1].live_bytes == 2 * 256 * 256 * 4 // 16


def test_views_take_no_memory() -> None:
    graph = Graph("views")
    b = Builder(graph)
    x = b.input("x", f(16, 64))
    for _ in range(3):
        x = b.Reshape(b.Reshape(x, shape=(64, 16)), shape=(16, 64))
    graph.outputs.append(x)
    tiled = analyze(Program.of(graph, Batching(16)), SMALL)
    assert tiled.peak.sum() == 16 * 64 * 4
    assert tiled.cycles_per_update == 0


def test_training_keeps_what_the_backward_pass_needs() -> None:
    def activations(layers: int, training: bool) -> int:
        tiled = analyze(build(Mixer(layers, 32, 64), (8, 32, 64), training, accumulation=2 if training else 1), SMALL)
        return int(tiled.categories["activations"].sum())
    assert activations(8, True) > 2.5 * activations(2, True)
    assert activations(8, False) == activations(2, False)
    assert activations(2, True) > activations(2, False)


def test_states_are_always_live_and_counted_once() -> None:
    program = build(mlp(100, 60, 10), (8, 100), optimizer=Adam(), accumulation=2)
    tiled = analyze(program, SMALL)
    weights = 4 * (100 * 60 + 60 + 60 * 10 + 10)
    assert tiled.categories["weights"].sum() == weights
    assert tiled.categories["optimizer"].sum() == 3 * weights + 8         # two moments, a gradient; the step counter and the loss scale
    half = analyze(program, SMALL, TileOptions(precision="16.16"))
    assert half.categories["weights"].sum() == weights // 2
    assert half.categories["optimizer"].sum() == 2 * weights + weights // 2 + 8
    plain = analyze(build(mlp(100, 60, 10), (8, 100), optimizer=SGD(lr=0.1)), SMALL)
    assert plain.categories["optimizer"].sum() == 4                       # the loss scale


def test_device_types() -> None:
    graph = Graph("types")
    b = Builder(graph)
    x = b.input("x", TensorType("float64", (512,)))
    i = b.input("i", TensorType("int64", (512,)))
    graph.outputs += [b.Neg(x), b.Neg(i)]
    tiled = analyze(Program.of(graph, Batching(1)), SMALL)
    assert [t.nbytes for t in tiled.transfers] == [2048] * 4


def test_repeated_layers_share_code() -> None:
    few, many = analyze(products(2), SMALL), analyze(products(12), SMALL)
    assert many.categories["code"].max() <= few.categories["code"].max()
    other = analyze(build(lenet(), (8, 1, 28, 28), False), SMALL)
    assert other.categories["code"].max() > few.categories["code"].max()


def test_tiles_of_a_plan_go_round() -> None:
    plan = OpPlan({"m": 6}, "map", Phases(), 0, tiles=6, start_tile=13)
    assert np.flatnonzero(tiles_of(plan, SMALL)).tolist() == [0, 1, 2, 13, 14, 15]
    assert tiles_of(dataclasses.replace(plan, tiles=16), SMALL).all()


def test_holdings_are_what_lives_at_a_step() -> None:
    tiled = analyze(products(3), SMALL)
    names = [{s.name for s, _ in holdings(tiled.memory_schedule, i, 0)} for i in range(3)]
    assert all({"w0", "w1", "w2"} <= found for found in names)
    assert "x" in names[0]
    assert "x" not in names[1]
