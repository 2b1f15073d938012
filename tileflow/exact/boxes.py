"""Which part of an operator's index space a tile computes, and which elements of its operands that meets."""
from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..graph.work import Axis, Gather, Operand, Scatter, Window, Work
from ..tiles.plans.plan import OpPlan

Range = tuple[int, int]
Box = dict[str, Range]
Region = tuple[Range, ...]


ROWS = "rows"
"""The axis along which plans cut the table of a Gather or Scatter: its indexed dimension, which no axis of the work names."""


@dataclass(frozen=True)
class Part:
    """What one tile does: boxes of the index space, one after the other (several where the plan is serial)."""

    tile: int
    boxes: tuple[Box, ...]


def cut(lo: int, hi: int, parts: int, grain: int) -> list[Range]:
    """lo..hi in `parts` runs of whole grains, all but the last ones equally long (the rule of tiles.plan); some may be empty."""
    size = hi - lo
    units = -(-size // grain)
    step = grain * -(-units // parts)
    return [(lo + min(size, i * step), lo + min(size, (i + 1) * step)) for i in range(parts)]


def parts_of(work: Work, plan: OpPlan, tiles: int) -> Iterator[Part]:
    """The parts that have something to do, in the order of their coordinates. An empty index space is one part."""
    axes = {a.name: a for a in (*work.axes, *table_axis(work))}
    for name, parts in (*plan.splits.items(), *plan.serial.items()):
        assert name in axes, f"the plan splits axis {name}, which the operator does not have"
        assert parts == 1 or axes[name].kind != "whole", f"axis {name} cannot be split"
    if work.points == 0:
        yield Part(plan.start_tile % tiles, ({name: (0, a.size) for name, a in axes.items()},))
        return
    runs = [_runs(a, plan) for a in axes.values()]                 # per axis [serial slice][part]
    place = [list(plan.splits).index(name) if name in plan.splits else None for name in axes]
    for number, at in enumerate(itertools.product(*(range(n) for n in plan.splits.values()))):
        own = [[part[0 if i is None else at[i]] for part in slices] for slices, i in zip(runs, place, strict=True)]
        filled = [[r for r in ranges if r[0] < r[1]] for ranges in own]
        if all(filled):
            yield Part((plan.start_tile + number) % tiles, tuple(dict(zip(axes, chosen, strict=True)) for chosen in itertools.product(*filled)))


def _runs(axis: Axis, plan: OpPlan) -> list[list[Range]]:
    """The parts of each serial slice of an axis. Slices are equal where that is possible, else whole grains: the worst part is the same."""
    grain, steps = plan.grains.get(axis.name, 1), plan.serial.get(axis.name, 1)
    slices = cut(0, axis.size, steps, grain if axis.size % steps else 1)
    return [cut(lo, hi, plan.splits.get(axis.name, 1), grain) for lo, hi in slices]


def table_axis(work: Work) -> list[Axis]:
    """The rows of the table of a Gather or Scatter, which its plan may cut; nothing for other kinds."""
    return [Axis(ROWS, work.notes[ROWS], "reduce")] if isinstance(work, Gather | Scatter) and ROWS in work.notes else []


def region(operand: Operand, box: Box, shape: tuple[int, ...]) -> Region:
    """The range of each dimension of a tensor of `shape` that the points of `box` meet."""
    assert len(operand.dims) == len(shape), f"the operand {operand.dims} is not a tensor of {shape}"
    found = []
    for dim, n in zip(operand.dims, shape, strict=True):
        if isinstance(dim, Window):
            found.append(dim.range(box, n))
        elif dim is None:
            found.append(box.get(ROWS, (0, n)))
        else:
            found.append(box[dim])
    return tuple(found)


def slices(where: Region) -> tuple[slice, ...]:
    """For NumPy."""
    return tuple(slice(lo, hi) for lo, hi in where)


def extent(where: Region) -> tuple[int, ...]:
    """The shape of a region."""
    return tuple(hi - lo for lo, hi in where)


def slides(window: Window, sizes: Mapping[str, int]) -> bool:
    """Whether windows of neighbouring points overlap or reach into padding; else each element belongs to one point and tap."""
    return window.pad != 0 or (sizes[window.tap] - 1) * window.dilation + 1 > window.stride


def reaches_out(window: Window, sizes: Mapping[str, int], n: int) -> bool:
    """Whether windows reach into padding, before the first or beyond the last of `n` elements: then some taps meet no element."""
    return window.pad != 0 or (sizes[window.out] - 1) * window.stride + (sizes[window.tap] - 1) * window.dilation >= n


def dense(work: Work, box: Box) -> list[Box]:
    """`box` cut so that windows that do not slide meet contiguous elements: channels in groups, of which a part takes some."""
    sizes = {a.name: a.size for a in work.axes}
    windows = {d for o in (*work.inputs, *work.outputs) if o is not None for d in o.dims if isinstance(d, Window) and not slides(d, sizes)}
    single = {w.out for w in windows if box[w.tap] != (0, sizes[w.tap])}
    choices = [[(i, i + 1) for i in range(*span)] if name in single else [span] for name, span in box.items()]
    return [dict(zip(box, chosen, strict=True)) for chosen in itertools.product(*choices)]
