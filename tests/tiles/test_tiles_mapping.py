"""Which tile holds what: every element of every tensor on exactly one tile."""
from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tileflow.ops  # noqa: F401   (registers the operators)
from tileflow.exact.boxes import parts_of, region, slices
from tileflow.graph.work import Axis, Operand, Reduce, Window, Work, map_work
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.plans.mapping import DimensionCut, Mapping, axis_step, linear, owned, slab
from tileflow.tiles.plans.plan import OpPlan, Phases
from tileflow.tiles.plans.spread import plan_spread


def owners(mapping: Mapping) -> np.ndarray:
    """The tile of every element; fails where one has none or two."""
    tile = np.full(mapping.size, -1)
    for t, start, stop in mapping.intervals():
        assert start < stop
        assert (tile[start:stop] == -1).all(), "mapped twice"
        tile[start:stop] = t
    assert (tile >= 0).all(), "not mapped"
    assert (tile < mapping.tiles).all()
    return tile


def check(mapping: Mapping, itemsize: int = 4) -> np.ndarray:
    tile = owners(mapping)
    counted = np.bincount(tile, minlength=mapping.tiles) * itemsize if mapping.size else np.zeros(mapping.tiles)
    assert np.array_equal(counted, mapping.bytes_per_tile(itemsize))
    return tile


def plan(splits: dict[str, int], **more: object) -> OpPlan:
    return OpPlan(splits, "map", Phases(), 0, **more)          # type: ignore[arg-type]


@st.composite
def partitions(draw: st.DrawFn) -> tuple[Work, OpPlan, int]:
    """Some work over up to four axes, split on some tiles."""
    names = "abcd"[:draw(st.integers(1, 4))]
    axes = tuple(Axis(n, draw(st.integers(1, 13)), draw(st.sampled_from(("parallel", "reduce")))) for n in names)
    order = draw(st.permutations(names))
    tiles, room, splits, grains = draw(st.integers(1, 70)), 0, {}, {}
    room = tiles
    for n in order:
        size = axes["abcd".index(n)].size
        parts = draw(st.integers(1, max(1, min(room, size))))
        if parts > 1:
            splits[n], room = parts, room // parts
        grains[n] = draw(st.sampled_from((1, 2, 4)))
    dims: list[str | None] = [n if draw(st.booleans()) else None for n in names]
    work = Reduce(axes, (), (Operand(tuple(dims)),))
    return work, plan(splits, grains=grains, start_tile=draw(st.integers(0, tiles - 1))), tiles


@settings(max_examples=150, deadline=None)
@given(partitions())
def test_every_element_of_an_output_is_on_one_tile(made: tuple[Work, OpPlan, int]) -> None:
    work, p, tiles = made
    shape = tuple(next((a.size for a in work.axes if a.name == d), 3) for d in work.outputs[0].dims)
    check(owned(work, work.outputs[0], shape, p, tiles))


@settings(max_examples=80, deadline=None)
@given(partitions())
def test_an_unshared_output_lies_where_its_parts_are_computed(made: tuple[Work, OpPlan, int]) -> None:
    work, p, tiles = made
    axes = tuple(Axis(a.name, a.size) for a in work.axes)
    whole = Work(axes, (), (Operand(tuple(a.name for a in axes)),))
    shape = tuple(a.size for a in axes)
    tile = check(owned(whole, whole.outputs[0], shape, p, tiles)).reshape(shape)
    for part in parts_of(whole, p, tiles):
        for box in part.boxes:
            assert (tile[slices(region(whole.outputs[0], box, shape))] == part.tile).all()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 5000), st.integers(1, 60), st.sampled_from((1, 2, 4)), st.integers(0, 59))
def test_linear(size: int, tiles: int, itemsize: int, start: int) -> None:
    mapping = linear(size, itemsize, tiles, start)
    tile = check(mapping, itemsize)
    used = np.bincount(tile, minlength=1) * itemsize
    assert not size or (used[used > 0] >= 128).sum() >= (used > 0).sum() - 1      # but the last one no tile has fewer bytes
    assert mapping.tiles_used <= tiles


def test_linear_starts_where_it_is_told_and_goes_round() -> None:
    tile = owners(linear(96, 4, 4, start=3))
    assert tile[0] == 3
    assert set(tile.tolist()) == {3, 0, 1}


@pytest.mark.parametrize(("old", "new"), [((6, 8), (48,)), ((48,), (6, 8)), ((4, 6, 8), (24, 8)), ((24, 8), (4, 6, 8)), ((2, 3, 4), (2, 12)),
                                          ((5, 1, 4), (5, 4)), ((5, 4), (1, 5, 4, 1)), ((6, 8), (8, 6))])
@pytest.mark.parametrize("parts", [(1, 1), (2, 1), (3, 2), (1, 4)])
def test_views_stay_where_they_are(old: tuple[int, ...], new: tuple[int, ...], parts: tuple[int, int]) -> None:
    counts = (*parts, 1)[:len(old)] if len(old) > 1 else parts[:1]
    stride, cuts = 1, []
    for size, n in zip(reversed(old), reversed(counts), strict=True):
        n = min(n, size)
        cuts.append(DimensionCut(size, axis_step(size, n), ((n, stride),)))
        stride *= n
    mapping = Mapping(tuple(reversed(cuts)), 24, 5)
    viewed = mapping.reshaped(new)
    if viewed is not None:
        assert viewed.shape == new
        assert np.array_equal(owners(viewed), owners(mapping))
    if sum(n > 1 for n in counts) == 0 or old == new:
        assert viewed is not None


def test_rows_of_a_batch_keep_their_place_through_a_view() -> None:
    mapping = Mapping((DimensionCut(24, 4, ((6, 2),)), DimensionCut(8, 4, ((2, 1),))), 12)
    viewed = mapping.reshaped((2, 12, 8))
    assert viewed is None                                         # 24 rows in 6 blocks of 4 are no grid over 2 x 12
    assert mapping.reshaped((6, 4, 8)) is not None
    assert np.array_equal(owners(mapping.reshaped((6, 4, 8))), owners(mapping))      # type: ignore[arg-type]


def test_windows_and_groups() -> None:
    """A gradient that windows write, and channels in groups."""
    axes = (Axis("n", 2), Axis("g", 3), Axis("o", 4), Axis("o0", 5, "reduce"), Axis("k0", 3, "reduce"))
    image = Operand(("n", Window("g", "o", 4), Window("o0", "k0", 2, 1, 1)))
    work = Reduce(axes, (), (image,))
    for splits in ({"g": 3, "o0": 2}, {"o": 2, "g": 3}, {"k0": 3}, {"n": 2, "o": 4, "o0": 5}):
        check(owned(work, image, (2, 12, 10), plan(splits), 60))
    assert slab(work, image, (2, 12, 10), plan({"o0": 5, "g": 3})) == (2, 4, 3)


def test_shared_blocks_are_divided_evenly() -> None:
    axes = (Axis("m", 10), Axis("k", 64, "reduce"))
    mapping = owned(Reduce(axes, (), (Operand(("m",)),)), Operand(("m",)), (10,), plan({"m": 2, "k": 4}), 8)
    assert mapping.elements_per_tile().tolist() == [2, 2, 1, 0, 2, 2, 1, 0]
    check(mapping)


@pytest.mark.parametrize("shape", [(3, 5), (1,), (64, 100, 7), (1472, 8), (2, 1000003)])
def test_natural_grain_of_element_wise_plans(shape: tuple[int, ...]) -> None:
    """No tile gets less than 128 bytes by the grid, none part of a vector along the last axis but at its end."""
    work = map_work([shape], shape, "float32", 1.0)
    p = plan_spread(work, chip("gc200"))
    assert p.tiles <= min(1472, -(-math.prod(shape) * 4 // 128))
    last = axis_step(shape[-1], p.splits.get(work.axes[-1].name, 1), p.grains.get(work.axes[-1].name, 1))
    assert last == shape[-1] or last % 2 == 0
    check(owned(work, work.outputs[0], shape, p, 1472)) if math.prod(shape) < 1e6 else None


def test_a_mapping_is_quick() -> None:
    """1,472 blocks are counted at once."""
    mapping = Mapping((DimensionCut(1472, 32, ((46, 32),)), DimensionCut(1024, 32, ((32, 1),))), 1472)
    assert mapping.bytes_per_tile(2).sum() == 1472 * 1024 * 2
    assert mapping.worst == 1024
    assert len(mapping.intervals()) == 1472 * 32
