"""What reports say of each tile's share of an operator and of what is sent to it: counted again from the plan."""
from __future__ import annotations

import collections
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from random_tile_programs import draw

import tileflow
from tileflow import nn, report
from tileflow.graph.work import Axis, Contraction, Operand
from tileflow.system.errors import ReportError
from tileflow.tiles.machine import analyze
from tileflow.tiles.placing import balance
from tileflow.tiles.plans.plan import OpPlan, Phases


class Net(nn.Module):
    """Convolutions, a normalisation, a lookup, a recurrent layer and products."""

    def __init__(self):
        self.conv, self.norm = nn.Conv2d(3, 9, 3, padding=1), nn.BatchNorm2d(9)
        self.table, self.memory = nn.Embedding(70, 24), nn.LSTM(24, 20)
        self.a, self.b = nn.Linear(9 * 49, 20), nn.Linear(20, 10)

    def forward(self, image, words):
        x = self.norm(self.conv(image)).relu().flatten(1)
        y = self.memory(self.table(words))
        y = y[0] if isinstance(y, tuple) else y
        return self.b(self.a(x).relu() + y.sum(1))


@pytest.fixture(scope="module")
def tiled():
    machine = {"name": "small", "base": "gc200", "tiles": 67}
    inputs = [np.zeros((5, 3, 7, 7), np.float32), np.zeros((5, 6), np.int64)]
    options = {"machine": machine, "loss": "cross_entropy", "optimizer": "adam"}
    return tileflow.compile(Net(), inputs=inputs, training=True, **options)


def per_tile(found, number):
    lengths, values = np.array(found["spreads"][number]).reshape(-1, 2).T
    return np.repeat(values, lengths)


def checked(tiled, found):
    """Each operator's points are all there, on the tiles of its plan, and what is received adds up; the kinds of
    vertices, operators of which some tiles have more than others, and those that are sent several tensors."""
    kinds, uneven, several = set(), 0, 0
    for step, said, moved in zip(tiled.steps, found["steps"], tiled.rearranged, strict=True):
        assert sum(n for _, n in said["received"]) == (step.plan.exchange_bytes + moved) * step.times
        assert {v for v, _ in said["received"]} <= {balance.OWN, *said["inputs"]}
        several += len(said["received"]) > 1
        points, on = per_tile(found, said["points"]), per_tile(found, said["running"]["spread"])
        if not step.work.points or step.plan.vertex == "none":
            continue
        if step.plan.layout is None:
            sizes = {**step.work.notes, **{a.name: a.size for a in step.work.axes}}
            assert points.sum() == math.prod(sizes[a] for a in step.plan.splits)
        assert points.max() > 0
        assert not points[on == 0].any(), said["name"]
        kinds.add(step.plan.vertex)
        uneven += len(np.unique(points[points > 0])) > 1
    return kinds, uneven, several


def test_points_and_bytes_of_a_network(tiled):
    kinds, uneven, several = checked(tiled.tiled, tiled.report)
    assert {"map", "reduce"} < kinds
    assert len(kinds) > 3
    assert uneven > 3
    assert several > 5


@pytest.mark.exhaustive
def test_points_and_bytes_of_random_programs():
    kinds = set()
    for seed in range(20):
        program, chip, options, _ = draw(seed)
        found = analyze(program, chip, options)
        kinds |= checked(found, report.json.build(found))[0]
    assert len(kinds) > 5


@pytest.mark.parametrize(("splits", "serial", "grains"), [
    ({"m": 3, "k": 2, "n": 4}, {}, {}), ({"n": 5, "m": 2}, {"n": 3}, {"n": 2}), ({}, {}, {}),
    ({"k": 7}, {"k": 2}, {"k": 3}), ({"m": 4}, {"n": 4}, {"m": 4})])
def test_points_of_a_product_are_counted_one_by_one(splits, serial, grains):
    """By the numbering rule of tiles.plans.plan, element by element."""
    sizes, tiles, start = {"m": 11, "n": 13, "k": 17}, 29, 23
    work = Contraction(tuple(Axis(a, n, "reduce" if a == "k" else "parallel") for a, n in sizes.items()))

    def part(axis, i):
        grain, steps, parts = grains.get(axis, 1), serial.get(axis, 1), splits.get(axis, 1)
        piece = grain * math.ceil(math.ceil(sizes[axis] / grain) / steps)
        return i % piece // (grain * math.ceil(math.ceil(piece / grain) / parts))
    count = collections.Counter()
    for point in itertools.product(*(range(n) for n in sizes.values())):
        number = 0
        for axis in splits:
            number = number * splits[axis] + part(axis, dict(zip(sizes, point, strict=True))[axis])
        count[(start + number) % tiles] += 1
    plan = OpPlan(splits, "amp", Phases(), 0, grains=grains, serial=serial, start_tile=start)
    found = balance.points(work, plan, tiles)
    whole = math.prod(n for a, n in sizes.items() if a not in splits)
    assert [count[t] for t in range(tiles)] == (found * whole).tolist()


def test_operands_of_a_product_are_received_by_size():
    """A tile that has a third of the rows and half of the columns is sent these of each operand, and its share of the
    sums where these are cut."""
    axes = Axis("m", 12), Axis("n", 10), Axis("k", 8, "reduce")
    work = Contraction(axes, (Operand(("m", "k")), Operand(("k", "n"))), (Operand(("m", "n")),))
    node, chip = SimpleNamespace(inputs=("a", "b")), SimpleNamespace(exchange_bytes_per_cycle=4.0)
    sent = 4 * 8 * 4 + 8 * 5 * 4

    def found(moved=0, times=1, **plan):
        plan = OpPlan(vertex="amp", phases=Phases(), temp_bytes=0, **plan)
        return dict(balance.received(SimpleNamespace(node=node, work=work, plan=plan, times=times), moved, chip))
    assert found(splits={"m": 3, "n": 2}, exchange_bytes=sent) == {"a": 128, "b": 160}
    assert found(splits={"m": 3, "n": 2}, exchange_bytes=sent, times=3) == {"a": 384, "b": 480}
    summed = {"m": 3, "n": 2, "k": 2}
    assert found(splits=summed, exchange_bytes=sent // 2 + 40, gathered=10) == {None: 40, "a": 64, "b": 80}
    assert sum(found(splits={"m": 3, "n": 2}, exchange_bytes=sent, moved=77).values()) == sent + 77


def test_a_report_that_names_what_is_not_there_is_refused(tiled):
    found = {**tiled.report, "steps": [dict(s) for s in tiled.report["steps"]]}
    assert report.validate(found, "it") is found
    wrong = [("points", len(found["spreads"])), ("received", [[len(found["variables"]), 4]]), ("received", [[0, -1]]),
             ("received", [[1]])]
    for name, value in wrong:
        before = found["steps"][2][name]
        found["steps"][2][name] = value
        with pytest.raises(ReportError, match="steps\\[2\\]"):
            report.validate(found, "it")
        found["steps"][2][name] = before
