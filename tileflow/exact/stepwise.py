"""Steps one after the other on the tiles: units of a row exchange what each step needs, and a tile computes its own from what came."""
from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..graph import Op, TensorType
from ..graph.work import Operand, Stepwise, Window
from ..tiles.plans.plan import OpPlan
from ..tiles.plans.stepwise import SUMMED
from .arena import Arena
from .boxes import Box, Part, Region, parts_of

Array = np.ndarray
Turns = Generator[Array, Array, tuple[Array, ...]]


class SteppedTiles(Protocol):
    """What of the tiles (tiles.py) the steps use."""

    tiles: int
    arena: Arena
    traffic: Any

    def carried(self, dtype: np.dtype) -> np.dtype: ...

    def bring(self, tile: int, array: Array, where: Region, what: str, held: bool = False) -> Array: ...

    def receive(self, tile: int, nbytes: int) -> None: ...


def stepwise(tiles: SteppedTiles, op: Op, work: Stepwise, plan: OpPlan, inputs: Sequence[Array | None],
             results: Sequence[TensorType]) -> tuple[Array, ...]:
    """The operator's outputs. Tiles whose parts differ in their units only run side by side, product by product (`op.turns`)."""
    outputs = tuple(np.zeros(t.shape, t.numpy) for t in results)
    together: dict[Any, list[tuple[Part, Box]]] = {}
    for part in parts_of(work, plan, tiles.tiles):
        box = part.boxes[0]
        together.setdefault((box["d"], box["b"]), []).append((part, box))
        tiles.traffic.parts += 1
        tiles.traffic.tiles.add(part.tile)
    summed = plan.notes.get(SUMMED, 1)
    for members in together.values():
        running: list[Turns] = []
        shared = (
            _weights_together(tiles, f"{op}", inputs, work, members, summed, plan)
            if summed > 1
            else [{} for _ in members]
        )
        for (part, box), weights in zip(members, shared, strict=True):
            tiles.arena.reset()
            own: list[Any] = [
                None
                if a is None or o is None
                else weights.get(i) or _brought(tiles, part.tile, a, o, box, f"{op}: input {i}")
                for i, (a, o) in enumerate(zip(inputs, work.inputs, strict=False))
            ]
            running.append(op.turns(box["d"][0], own))                                              # type: ignore[attr-defined]
        units = [box["n"] for _, box in members]
        made_by = _side_by_side(tiles, running, [part.tile for part, _ in members], units, work, plan)
        for (_, box), made in zip(members, made_by, strict=True):
            for target, operand, found in zip(outputs, work.outputs, made, strict=True):
                target[_places(operand, box, target.shape)] = found
    rest = [tiles.carried(y.dtype) for y in outputs]
    return tuple(y if kind == y.dtype else y.astype(kind).astype(y.dtype) for y, kind in zip(outputs, rest, strict=True))


class Shared:
    """Weights [rows, units] of one tile's units, of which the tiles that do its products have some columns each:
    products with them are sums of those tiles', forwards, and have those tiles' columns side by side, backwards."""

    __array_ufunc__ = None                             # so that NumPy leaves the product of an array and these to them

    def __init__(self, pieces: Sequence[Array], columns: Sequence[Array], kind: np.dtype, turned: bool = False) -> None:
        self.pieces, self.columns, self.kind, self.turned = pieces, columns, kind, turned
        self.dtype, self.shape = pieces[0].dtype, (*pieces[0].shape[:-1], sum(map(len, columns)))

    def __getitem__(self, which: Any) -> Shared:
        return Shared([piece[which] for piece in self.pieces], self.columns, self.kind, self.turned)

    @property
    def T(self) -> Shared:
        return Shared(self.pieces, self.columns, self.kind, not self.turned)

    def __rmatmul__(self, x: Array) -> Array:
        if self.turned:
            parts = [
                (x[:, at] @ piece.T).astype(self.kind) for piece, at in zip(self.pieces, self.columns, strict=True)
            ]
            return np.sum(parts, 0, dtype=self.kind).astype(x.dtype)
        whole = np.empty((len(x), sum(map(len, self.columns))), x.dtype)
        for piece, at in zip(self.pieces, self.columns, strict=True):
            whole[:, at] = x @ piece
        return whole


def _weights_together(
    tiles: SteppedTiles,
    name: str,
    inputs: Sequence[Array | None],
    work: Stepwise,
    members: Sequence[tuple[Part, Box]],
    summed: int,
    plan: OpPlan,
) -> list[dict[int, Any]]:
    """By tile the weights of its units, by number of the input: `summed` neighbours (the last ones may be fewer) have
    those of all their units, the j-th of K with the columns of every K-th tile's units from the j-th on."""
    found: list[dict[int, Any]] = [{} for _ in members]
    units = [np.arange(*box["n"]) for _, box in members]
    for i, (array, operand) in enumerate(zip(inputs, work.inputs, strict=False)):
        if array is None or operand is None or "k" not in operand.dims:
            continue
        kind = np.dtype(plan.partials) if array.dtype in (np.float16, np.float32) else array.dtype
        for first in range(0, len(members), summed):
            group = members[first:first + summed]
            columns = [np.concatenate(units[j::len(group)]) for j in range(len(group))]
            box = {**group[0][1], "n": (group[0][1]["n"][0], group[-1][1]["n"][1])}
            held = []
            for (part, _), at in zip(group, columns, strict=True):
                tiles.arena.reset()
                places = _places(operand, box, array.shape)
                held.append(
                    _fetched(
                        tiles, part.tile, array[np.ix_(*(p.reshape(-1) for p in places[:-1]), at)], f"{name}: input {i}"
                    )
                )
            vectors = held[0].shape[1] // (box["n"][1] - box["n"][0])
            for k, (_, own) in enumerate(group):
                rows = (
                    np.arange(vectors)[:, None] * (box["n"][1] - box["n"][0]) + np.arange(*own["n"]) - box["n"][0]
                ).reshape(-1)
                found[first + k][i] = Shared([piece[:, rows] for piece in held], columns, kind)
    return found


def _side_by_side(tiles: SteppedTiles, running: list[Turns], at: list[int], units: list[tuple[int, int]],
                  work: Stepwise,
                  plan: OpPlan) -> list[tuple[Array, ...]]:
    """Run tiles of the same rows from exchange to exchange."""
    given: list[Array] = [next(turns) for turns in running]
    found: list[tuple[Array, ...]] = []
    while not found:
        came = _summed(given, units, plan) if work.added else [_joined(tiles, given)] * len(given)
        together = plan.notes.get(SUMMED, 1)
        for tile, mine, (lo, hi) in zip(at, came, units, strict=True):
            others = (len(at) // together - 1) * (hi - lo) if work.added else mine.shape[-1] // together - (hi - lo)
            tiles.receive(tile, others * len(mine) * tiles.carried(mine.dtype).itemsize)
        given = []
        for turns, mine in zip(running, came, strict=True):
            try:
                given.append(turns.send(mine))
            except StopIteration as end:
                found.append(end.value)
        assert not (found and given), "tiles that run side by side take as many steps"
    return found


def _joined(tiles: SteppedTiles, given: list[Array]) -> Array:
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


def _brought(tiles: SteppedTiles, tile: int, array: Array, operand: Operand, box: Mapping[str, tuple[int, int]],
             what: str) -> Array:
    """A tile's part of an operand, as it travels; kept while other tiles' arenas are filled."""
    return _fetched(tiles, tile, array[_places(operand, box, array.shape)], what)


def _fetched(tiles: SteppedTiles, tile: int, part: Array, what: str) -> Array:
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
