"""What tiles send: element by element, whoever owns one that somebody else reads sends it once."""
from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tile_models import build

import tileflow.nn as nn
from tileflow.exact.boxes import parts_of
from tileflow.graph import OPS, TensorType
from tileflow.graph.work import Axis, Operand, Window, Work
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.machine import analyze
from tileflow.tiles.placing.sending import sent_elements
from tileflow.tiles.plans.mapping import DimensionCut, Mapping, linear, owned
from tileflow.tiles.plans.plan import OpPlan, Phases

TILES = 24


def counted(layout: Mapping, work: Work, operand: Operand, shape: tuple[int, ...], plan: OpPlan) -> np.ndarray:
    """`sent_elements`, element by element."""
    owner = np.empty(layout.size, int)
    for tile, start, stop in layout.intervals():
        owner[start:stop] = tile
    read = np.zeros((TILES, *shape), bool)
    for part in parts_of(work, plan, TILES):
        for box in part.boxes:
            hit = np.ones((), bool)
            for d, n in zip(operand.dims, shape, strict=True):
                at = np.zeros(n, bool)
                if isinstance(d, Window):
                    found = (np.arange(*box[d.out])[:, None] * d.stride + np.arange(*box[d.tap]) * d.dilation - d.pad).reshape(-1)
                    at[found[(found >= 0) & (found < n)]] = True
                else:
                    at[slice(*(box[d] if d else (0, n)))] = True
                hit = hit[..., None] & at
            read[part.tile] |= hit
    others = read.reshape(TILES, -1).copy()
    others[owner, np.arange(layout.size)] = False
    return np.bincount(owner[others.any(0)], minlength=TILES)


def random_layout(shape: tuple[int, ...], random: np.random.Generator, shared: bool) -> Mapping:
    if random.random() < 0.2:
        return linear(math.prod(shape), 4, TILES, int(random.integers(TILES)), grain=1)
    cuts, left, stride = [], TILES, 1
    for size in shape:
        parts = int(random.integers(1, min(left, size, 5) + 1))
        cuts.append(DimensionCut(size, -(-size // parts), ((parts, stride),)))
        stride, left = stride * parts, left // parts
    return Mapping(tuple(cuts), TILES, int(random.integers(TILES)), ((left, stride),) if shared and left > 1 else ())


def random_plan(work: Work, random: np.random.Generator) -> OpPlan:
    splits, left = {}, TILES
    for a in random.permutation(np.array([a.name for a in work.axes if a.kind != "whole"])):
        splits[str(a)] = int(random.integers(1, min(left, 4) + 1))
        left //= splits[str(a)]
    grains = {a: 2 for a in splits if random.random() < 0.3}
    serial = {a: 2 for a in list(splits)[:1] if random.random() < 0.2}
    return OpPlan(splits, "map", Phases(), 0, grains=grains, serial=serial, start_tile=int(random.integers(TILES)))


def works() -> list[tuple[Work, Operand, tuple[int, ...]]]:
    """Plain grids, broadcasts, sliding windows, windows with gaps and groups of channels."""
    plain = Work((Axis("a", 10), Axis("b", 9), Axis("c", 4)))
    window = Work((Axis("o", 9), Axis("t", 3, "reduce"), Axis("c", 6)))
    gaps = Work((Axis("o", 5), Axis("t", 1, "reduce"), Axis("c", 6)))
    groups = Work((Axis("g", 4), Axis("r", 3, "reduce"), Axis("c", 5)))
    return [(plain, Operand(("a", "b", "c")), (10, 9, 4)), (plain, Operand(("a", None, "c")), (10, 9, 4)), (plain, Operand(("b", "c")), (9, 4)),
            (window, Operand((Window("o", "t", 1, 1, 1), "c")), (9, 6)), (window, Operand((Window("o", "t", 2, 1, 1), "c")), (18, 6)),
            (gaps, Operand((Window("o", "t", 2), "c")), (10, 6)), (groups, Operand((Window("g", "r", 3), "c")), (12, 5))]


@pytest.mark.parametrize("number", range(7))
def test_sent_elements_are_those_of_an_owner_that_others_read(number: int) -> None:
    work, operand, shape = works()[number]
    random, exact = np.random.default_rng(number), 0
    for _ in range(100):
        layout, plan = random_layout(shape, random, random.random() < 0.3), random_plan(work, random)
        found, wanted = sent_elements(layout, work, operand, shape, plan, 1), counted(layout, work, operand, shape, plan)
        assert (found >= wanted).all(), (layout, plan)
        assert (found <= layout.elements_per_tile()).all()
        cut = {a for a, n in plan.splits.items() if n > 1}
        if layout.shape == shape and not layout.shares and not cut & {*plan.serial, "r", "t"}:
            exact += 1
            assert np.array_equal(found, wanted), (layout, plan)
    assert exact >= 10


def test_what_lies_where_it_is_read_is_not_sent() -> None:
    work, operand, shape = works()[0]
    plan = OpPlan({"a": 5, "c": 4}, "map", Phases(), 0, start_tile=3)
    assert not sent_elements(owned(work, operand, shape, plan, TILES), work, operand, shape, plan, 1).any()
    along = Mapping((DimensionCut(10, 1, ((10, 1),)), DimensionCut(9, 9), DimensionCut(4, 4)), TILES, 2)
    followed = OpPlan({}, "map", Phases(), 0, layout=along)
    assert not sent_elements(along, work, operand, shape, followed, 1).any()
    moved = sent_elements(Mapping(along.cuts, TILES, 3), work, operand, shape, followed, 1)
    assert np.array_equal(moved, Mapping(along.cuts, TILES, 3).elements_per_tile())


class Narrow(nn.Module):
    """A convolution that reads what an element-wise operator left on two tiles."""

    def __init__(self) -> None:
        self.conv = nn.Conv2d(8, 16, 3)

    def forward(self, x: Any) -> Any:                              # type: ignore[override]
        return self.conv(x)


def test_a_concentrated_tensor_takes_as_long_as_its_tiles_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """On two tiles each sends half of it, however little each of the others receives; a multicast is sent once."""
    machine = chip("gc200")
    program = build(Narrow(), (4, 8, 64, 64), training=False)
    spread = analyze(program, machine)
    size, item = 4 * 8 * 64 * 64, 4

    def on_two(made: Any, storage: Any) -> Mapping:
        return Mapping((DimensionCut(size, size // 2, ((2, 1),)),),
                       machine.tiles) if math.prod(storage.shape) == size else linear(
            math.prod(storage.shape), storage.itemsize, machine.tiles)
    monkeypatch.setattr("tileflow.tiles.placing.layout.Layouts.linear", on_two)
    narrow = analyze(program, machine)
    conv, = (s for s in narrow.steps if s.node.op.name == "Conv")
    before, = (s for s in spread.steps if s.node.op.name == "Conv")
    sends = size // 2 * item / machine.exchange_bytes_per_cycle
    assert before.phases.exchange < sends <= conv.phases.exchange - conv.plan.gathered
    assert conv.phases.exchange - conv.plan.gathered <= sends + size // machine.tiles       # and no more than a share of the weights
    assert conv.plan == before.plan


def test_tiles_send_what_a_slice_reads_of_their_runs() -> None:
    x = TensorType("float32", (64, 100))
    op: Any = OPS["Slice"](starts=(0,), ends=(25,), axes=(1,))
    work = op.work((x,), op.infer(x))
    layout = linear(6400, 4, TILES)
    found = sent_elements(layout, work, work.inputs[0], x.shape, OpPlan({"a": 8}, "move", Phases(), 0), 1600)
    owner = np.arange(6400) // layout.worst
    np.testing.assert_array_equal(found, np.bincount(owner[np.arange(6400) % 100 < 25], minlength=TILES))


def test_operators_side_by_side_send_at_once() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            self.a, self.b = nn.Conv2d(4, 8, 3), nn.Conv2d(4, 16, 3)

        def forward(self, x: Any) -> Any:                          # type: ignore[override]
            with nn.MultiConv(per_conv_reserved_tiles=20):
                return self.a(x), self.b(x)

    tiled = analyze(build(Two(), (2, 4, 12, 12), False), chip("gc200").variant(tiles=128))
    first, second = (s for s in tiled.steps if s.node.op.name == "Conv")
    assert first.plan.notes["planned"] == "parallel"
    assert second.plan.phases == Phases()
    own = tiled.mapping(first.node.inputs[0]).worst * 4 / tiled.chip.exchange_bytes_per_cycle
    assert second.phases.exchange <= 2 * own + 2 * tiled.mapping(second.node.inputs[1]).worst
