"""Steps one after the other on the tiles: units of a row exchange what each step needs, and a tile computes its own from what came."""
from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..graph import Op, TensorType
from ..graph.work import Operand, Stepwise, Window
from ..tiles.plans.plan import OpPlan
from .arena import Arena
from .boxes import Box, Part, Region, parts_of

Array = np.ndarray
Turns = Generator[Array, Array, tuple[Array, ...]]


class Tiles(Protocol):
    """What of the tiles (tiles.py) the steps use."""

    tiles: int
    arena: Arena
    traffic: Any

    def carried(self, dtype: np.dtype) -> np.dtype: ...

    def bring(self, tile: int, array: Array, where: Region, what: str, held: bool = False) -> Array: ...

    def receive(self, tile: int, nbytes: int) -> None: ...


def stepwise(tiles: Tiles, op: Op, work: Stepwise, plan: OpPlan, inputs: Sequence[Array | None], results: Sequence[TensorType]) -> tuple[Array, ...]:
    """The operator's outputs. Tiles whose parts differ in their units only run side by side, product by product (`op.turns`)."""
    outputs = tuple(np.zeros(t.shape, t.numpy) for t in results)
    together: dict[Any, list[tuple[Part, Box]]] = {}
    for part in parts_of(work, plan, tiles.tiles):
        box = part.boxes[0]
        together.setdefault((box["d"], box["b"]), []).append((part, box))
        tiles.traffic.parts += 1
        tiles.traffic.tiles.add(part.tile)
    names = f"{op}"
    for members in together.values():
        running: list[Turns] = []
        for part, box in members:
            tiles.arena.reset()
            own = [None if a is None or o is None else _brought(tiles, part.tile, a, o, box, f"{names}: input {i}")
                   for i, (a, o) in enumerate(zip(inputs, work.inputs, strict=False))]
            running.append(op.turns(box["d"][0], own))                                              # type: ignore[attr-defined]
        units = [box["n"] for _, box in members]
        made_by = _side_by_side(tiles, running, [part.tile for part, _ in members], units, work, plan)
        for (_, box), made in zip(members, made_by, strict=True):
            for target, operand, found in zip(outputs, work.outputs, made, strict=True):
                target[_places(operand, box, target.shape)] = found
    rest = [tiles.carried(y.dtype) for y in outputs]
    return tuple(y if kind == y.dtype else y.astype(kind).astype(y.dtype) for y, kind in zip(outputs, rest, strict=True))


def _side_by_side(tiles: Tiles, running: list[Turns], at: list[int], units: list[tuple[int, int]], work: Stepwise,
                  plan: OpPlan) -> list[tuple[Array, ...]]:
    """Run tiles of the same rows from exchange to exchange."""
    given: list[Array] = [next(turns) for turns in running]
    found: list[tuple[Array, ...]] = []
    while not found:
        came = _summed(given, units, plan) if work.added else [_joined(tiles, given)] * len(given)
        for tile, mine, (lo, hi) in zip(at, came, units, strict=True):
            others = (len(at) - 1) * (hi - lo) if work.added else mine.shape[-1] - (hi - lo)
            tiles.receive(tile, others * len(mine) * tiles.carried(mine.dtype).itemsize)
        given = []
        for turns, mine in zip(running, came, strict=True):
            try:
                given.append(turns.send(mine))
            except StopIteration as end:
                found.append(end.value)
        assert not (found and given), "tiles that run side by side take as many steps"
    return found


def _joined(tiles: Tiles, given: list[Array]) -> Array:
    """The states of all units, as they travel."""
    whole = np.concatenate(given, -1)
    kind = tiles.carried(whole.dtype)
    with np.errstate(over="ignore"):
        return whole if len(given) == 1 or kind == whole.dtype else whole.astype(kind).astype(whole.dtype)


def _summed(given: list[Array], units: list[tuple[int, int]], plan: OpPlan) -> list[Array]:
    """The sums of each tile's own units, added in the partials' type."""
    kind = np.dtype(plan.partials) if given[0].dtype in (np.float16, np.float32) else given[0].dtype
    with np.errstate(over="ignore", invalid="ignore"):
        total = given[0].astype(kind)
        for partial in given[1:]:
            total = total + partial.astype(kind)
        return [total[:, lo:hi].astype(given[0].dtype) for lo, hi in units]


def _brought(tiles: Tiles, tile: int, array: Array, operand: Operand, box: Mapping[str, tuple[int, int]], what: str) -> Array:
    """A tile's part of an operand, as it travels; kept while other tiles' arenas are filled."""
    part = array[_places(operand, box, array.shape)]
    return tiles.bring(tile, part, tuple((0, n) for n in part.shape), what).copy()


def _places(operand: Operand, box: Mapping[str, tuple[int, int]], shape: Sequence[int]) -> tuple[Array, ...]:
    """The elements that a box meets, as an index: of windows those of each vector, not what lies between."""
    found = []
    for dim, size in zip(operand.dims, shape, strict=True):
        if isinstance(dim, Window):
            (first, last), (lo, hi) = box[dim.out], box[dim.tap]
            found.append((np.arange(first, last)[:, None] * dim.stride + np.arange(lo, hi)).reshape(-1))
        else:
            found.append(np.arange(size) if dim is None else np.arange(*box[dim]))
    return np.ix_(*found)
