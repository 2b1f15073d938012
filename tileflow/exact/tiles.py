"""One operator on the tiles: bring each part its slices, compute it in the tile's arena, put the outputs together."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..graph import Builder, Graph, Node, Op, TensorType, Value, type_of
from ..graph.work import Contraction, Gather, Operand, Reduce, Scatter, Staged, Stepwise, Work
from ..kernels.dtypes import BITS
from ..system.errors import DataError
from ..tiles.plans.plan import OpPlan
from . import contraction
from .arena import Arena
from .boxes import ROWS, Box, Part, Range, Region, dense, extent, parts_of, region, slices, table_axis
from .contraction import Slice
from .reduction import COMBINE, Contribution, Reducer, Sheet, in_type
from .stepwise import stepwise
from .vertex import Streams, Vertex, types_of

Array = np.ndarray
Arrays = Sequence[Array | None]


@dataclass
class Traffic:
    """What one operator did: parts computed, tiles used, bytes received by the tile that received most, most bytes in an arena."""

    parts: int = 0
    received: dict[int, int] = field(default_factory=dict)
    tiles: set[int] = field(default_factory=set)
    arena: int = 0

    @property
    def most_received(self) -> int:
        return max(self.received.values(), default=0)


class Tiles:
    """The tiles of a machine, all of them run by this thread, one after the other.

    Args:
        tiles: how many.
        memory: bytes of each; an arena is never larger.
        precision: "32.32", or "16.32" and "16.16": float32 tensors travel and rest as float16.
    """

    def __init__(self, tiles: int, memory: int, precision: str = "32.32", streams: Streams | None = None) -> None:
        self.tiles, self.half = tiles, precision.startswith("16")
        self.arena = Arena(memory)
        self.streams = streams or Streams()
        self.traffic = Traffic()

    def run(self, op: Op, plan: OpPlan, inputs: Arrays) -> tuple[Array, ...]:
        """The operator's outputs, computed as planned.

        Raises:
            TileMemoryError: a part does not fit a tile.
        """
        self.traffic = Traffic()
        self.arena.peak = 0
        outputs = self._run(op, plan, inputs)
        self.arena.reset()
        self.traffic.arena = self.arena.peak
        return outputs

    def _run(self, op: Op, plan: OpPlan, inputs: Arrays) -> tuple[Array, ...]:
        types = types_of(inputs)
        results = op.infer(*types)
        work = op.work(types, results)
        assert len(work.outputs) == len(results), f"{op}: work() describes {len(work.outputs)} of {len(results)} outputs"
        meet = any(
            a.kind in ("reduce", "staged") and max(plan.splits.get(a.name, 1), plan.serial.get(a.name, 1)) > 1
            for a in work.axes
        )
        if meet and (work.joined if isinstance(work, Staged) else getattr(work, "combine", "add")) == "":
            return self._partial_results(op, plan, inputs, len(results))
        if isinstance(work, Stepwise):
            return stepwise(self, op, work, plan, inputs, results)
        return _kind(work, meet)(self, op, work, plan, inputs, results).outputs()

    def _partial_results(self, op: Op, plan: OpPlan, inputs: Arrays, count: int) -> tuple[Array, ...]:
        """The simpler operators that an operator stands for, each split as this one along the axes it has."""
        graph = Graph(op.name)
        b = Builder(graph)
        given = [None if a is None else b.input(f"x{i}", type_of(a)) for i, a in enumerate(inputs)]
        results = op.partials(b, given)
        assert results is not None, f"{op} cannot be split along a reduce axis"
        graph.outputs = list(results[:count])
        graph.prune()
        values: dict[Value, Array] = dict(graph.constants)
        values.update({v: a for v, a in zip(given, inputs, strict=True) if v is not None and a is not None})
        for node in graph.nodes:
            made = self._run(node.op, fitted(plan, work_of(node)), [None if v is None else values[v] for v in node.inputs])
            values.update(zip(node.outputs, made, strict=True))
        return tuple(values[v] for v in graph.outputs)

    # ---- for jobs

    def carried(self, dtype: np.dtype) -> np.dtype:
        """The element type in which a tensor travels and rests."""
        return np.dtype(np.float16) if self.half and dtype == np.float32 else dtype

    def bring(self, tile: int, array: Array, where: Region, what: str, held: bool = False) -> Array:
        """Copy a region of a tensor into the tile's arena (`held`: the tile has it already); the array a vertex reads is in the host's type."""
        source = array[slices(where)]
        block = self.arena.take(source.shape, self.carried(array.dtype), what)
        with np.errstate(over="ignore"):
            block[...] = source
        if not held:
            self.receive(tile, block.nbytes)
        return block if block.dtype == array.dtype else block.astype(array.dtype)

    def receive(self, tile: int, nbytes: int) -> None:
        self.traffic.received[tile] = self.traffic.received.get(tile, 0) + nbytes


def work_of(node: Node) -> Work:
    """What a node does."""
    return node.op.work([None if v is None else v.type for v in node.inputs], [v.type for v in node.outputs])


def fitted(plan: OpPlan, work: Work) -> OpPlan:
    """The plan for another operator: splits only of the axes it has and may split."""
    allowed = {a.name for a in (*work.axes, *table_axis(work)) if a.kind != "whole"}

    def kept(splits: dict[str, int]) -> dict[str, int]:
        return {name: n for name, n in splits.items() if name in allowed}
    return replace(plan, splits=kept(dict(plan.splits)), serial=kept(dict(plan.serial)), grains=kept(dict(plan.grains)))


class _Job:
    """An operator under way: by its own kernel on slices."""

    def __init__(self, tiles: Tiles, op: Op, work: Work, plan: OpPlan, inputs: Arrays, results: Sequence[TensorType]) -> None:
        self.tiles, self.op, self.work, self.plan, self.results = tiles, op, work, plan, results
        self.name = str(op)
        self.inputs = list(inputs)
        if op.alias is not None:                       # a view is indexed in the output's shape
            x = self.inputs[op.alias]
            assert x is not None
            self.inputs[op.alias] = x.reshape(results[0].shape)
        self.types = types_of(self.inputs)
        self._vertices: dict[object, Vertex] = {}
        self._held: dict[int, Region] = {}
        self.how = "or" if isinstance(work, Gather) else _how(work)
        self.additive = self.how == "add" and isinstance(work, Contraction | Scatter | Reduce)

    def partial(self, dtype: np.dtype) -> np.dtype:
        """The element type of partials: the planned one, but for types that the chip does not have."""
        if isinstance(self.work, Gather):
            return np.dtype(BITS[dtype.itemsize])
        if dtype == np.float16 and isinstance(self.work, Contraction):
            return np.dtype(self.plan.partials)
        if dtype.name == "bfloat16" and isinstance(self.work, Contraction):
            return np.dtype(np.float32)
        return np.dtype(self.plan.partials) if dtype == np.float32 else dtype

    def outputs(self) -> tuple[Array, ...]:
        """Run all parts, then reduce."""
        found: list[list[Contribution]] = [[] for _ in self.results]
        for part in parts_of(self.work, self.plan, self.tiles.tiles):
            self.tiles.traffic.parts += 1
            self.tiles.traffic.tiles.add(part.tile)
            for k, regions in enumerate(self._part(part)):
                found[k] += [Contribution(part.tile, where, array) for where, array in regions.items()]
        sheets = [Sheet(t.shape, self.held(t.numpy)) for t in self.results]
        for sheet, contributions in zip(sheets, found, strict=True):
            reducer = Reducer(
                self.tiles.arena, self.how, self.plan.reduce_stages, self.partial(sheet.array.dtype), self.tiles.receive
            )
            if contributions:
                reducer.assemble(sheet, contributions)
        return self._finished(sheets)

    def held(self, dtype: np.dtype) -> np.dtype:
        """What a tile has of each element of an output, until all are put together."""
        return dtype

    def _marked(self, box: Box, blocks: Arrays, computed: list[Array]) -> list[Array]:
        """What a box gave, as `held` says."""
        return computed

    def _finished(self, sheets: Sequence[Sheet]) -> tuple[Array, ...]:
        """The outputs as they rest."""
        found = [sheet.finish(0 if self.additive else None) for sheet in sheets]
        found = [a if a.dtype.names is None else np.ascontiguousarray(a["value"]) for a in found]
        rest = [self.tiles.carried(made.dtype) for made in found]
        return tuple(
            made if kind == made.dtype else made.astype(kind).astype(made.dtype)
            for made, kind in zip(found, rest, strict=True)
        )

    def _part(self, part: Part) -> list[dict[Region, Array]]:
        """What one tile has of each output after all its boxes, in order."""
        found: list[dict[Region, Array]] = [{} for _ in self.results]
        self._held.clear()
        for whole in part.boxes:
            for box in dense(self.work, whole):
                self.tiles.arena.reset()
                self._box(part.tile, box, found)
        return found

    def _box(self, tile: int, box: Box, found: list[dict[Region, Array]]) -> None:
        """Bring the slices of one box and compute its outputs."""
        blocks = [self._bring(tile, box, i) for i in range(len(self.inputs))]
        wanted = [region(o, box, t.shape) for o, t in zip(self.work.outputs, self.results, strict=True)]
        onto = isinstance(self.work, Scatter) and self.work.onto
        if self.op.alias is not None:
            source = blocks[self.op.alias]
            assert source is not None
            computed = [source]
        else:
            op = self.op.part(box, self.types, self.results)
            self._once(box, blocks)
            hit = None if onto else self._indexed(box, blocks)
            if onto:
                self._onto(box, blocks)
            vertex = self._vertex(op, blocks)
            computed = [self._output(t) for t in vertex.outputs]
            vertex.run(blocks, computed, self.tiles.streams)
            if hit is not None:
                computed[0].view(BITS[computed[0].itemsize])[~hit] = 0
            computed = self._marked(box, blocks, computed)
        for k, (y, where) in enumerate(zip(computed, wanted, strict=True)):
            self._keep(found[k], where, _cropped(y, tuple((0, hi - lo) for lo, hi in where) if onto else where))

    def _vertex(self, op: Op, blocks: Sequence[Array | None]) -> Vertex:
        """The operator for blocks of these types; an operator that is the whole one is not compared by its
        attributes."""
        key = (None if op is self.op else op, tuple(None if b is None else (b.shape, b.dtype) for b in blocks))
        if key not in self._vertices:
            self._vertices[key] = Vertex.of(op, types_of(blocks))
        return self._vertices[key]

    def _indexed(self, box: Box, blocks: list[Array | None]) -> Array | None:
        """Where the table is cut: count the indices from the tile's first row; those of other tiles' rows do nothing.

        Returns for a Gather where the output has rows of this tile.
        """
        if ROWS not in box or box[ROWS] == (0, self.work.notes[ROWS]):
            return None
        values, index = blocks[0], blocks[1]
        assert values is not None
        assert index is not None
        here = self._here(box, index, 0)
        moved, positions = (self.work.outputs if isinstance(self.work, Gather) else self.work.inputs)[0], self.work.inputs[1]
        assert moved is not None
        assert positions is not None
        shape = tuple(box[d][1] - box[d][0] for d in moved.dims if isinstance(d, str))
        hit = np.broadcast_to(here.reshape([n if d in positions.dims else 1 for d, n in zip(moved.dims, shape, strict=True)]), shape)
        if isinstance(self.work, Gather):
            return hit
        values[~hit] = 0
        return None

    def _here(self, box: Box, index: Array, away: int) -> Array:
        """Let indices count from the tile's first row, those of other tiles' rows be `away`; whether each is of this
        tile's."""
        (lo, hi), size = box[ROWS], self.work.notes[ROWS]
        found = np.where(index < 0, index + size, index)
        if ((found < 0) | (found >= size)).any():
            raise DataError(f"{self.name}: an index is outside of the {size} rows of the table.")
        here: Array = (found >= lo) & (found < hi)
        index[...] = np.where(here, found - lo, away)
        return here

    def _onto(self, box: Box, blocks: list[Array | None]) -> None:
        """Where a table that is written is cut into rows, what is of other tiles' rows goes to one more behind the
        tile's own."""
        lo, hi = box[ROWS]
        table, index = blocks[0], blocks[1]
        assert table is not None
        assert index is not None
        if (lo, hi) == (0, self.work.notes[ROWS]):
            return
        operand = self.work.inputs[0]
        assert operand is not None
        at = operand.dims.index(None)
        shape = tuple(n + (i == at) for i, n in enumerate(table.shape))
        grown = self.tiles.arena.take(shape, table.dtype, f"{self.name}: a row for what is not its own")
        grown[...] = 0
        grown[tuple(slice(0, n) for n in table.shape)] = table
        self._here(box, index, hi - lo)
        blocks[0] = grown

    def _once(self, box: Box, blocks: list[Array | None]) -> None:
        """Of several parts whose results are combined the first has what each result takes in once; the others have
        what changes nothing."""
        taken = self.work.once if isinstance(self.work, Scatter | Staged) else ()
        if not taken or self.how in ("min", "max") or self._first(box):
            return
        for i in taken:
            block = blocks[i]
            assert block is not None
            block[...] = 1 if self.how == "mul" else 0

    def _first(self, box: Box) -> bool:
        """Whether a box is the first of those whose results meet."""
        return all(box[a.name][0] == 0 for a in self.work.axes if a.kind in ("reduce", "staged"))

    def _output(self, t: TensorType) -> Array:
        """Room for an output in the arena; the array a kernel writes is in the host's type."""
        kind = self.tiles.carried(t.numpy)
        block = self.tiles.arena.take(t.shape, kind, f"{self.name}: an output")
        return block if kind == t.numpy else np.full(t.shape, np.nan, t.numpy)

    def _bring(self, tile: int, box: Box, i: int) -> Array | None:
        array = self.inputs[i]
        operand = self.work.inputs[i] if i < len(self.work.inputs) else None
        if array is None:
            return None
        assert operand is not None, f"{self.name}: work() does not describe input {i}"
        return self._brought(tile, i, array, region(operand, box, array.shape))

    def _brought(self, tile: int, i: int, array: Array, where: Region) -> Array:
        """A region of input `i`, which stays on the tile from one serial step to the next where it is the same."""
        held = self._held.get(i) == where
        self._held[i] = where
        return self.tiles.bring(tile, array, where, f"{self.name}: input {i}", held)

    def _keep(self, found: dict[Region, Array], where: Region, y: Array) -> None:
        """Add to what the tile already has of that region, in the partials' type."""
        if where not in found:
            found[where] = y.copy()
            return
        kind = self.partial(y.dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            found[where] = in_type(COMBINE[self.how](in_type(found[where], kind), in_type(y, kind)), y.dtype)


def _cropped(y: Array, where: Region) -> Array:
    """`y` cut to `where` along the dimensions that it has whole."""
    wanted = extent(where)
    if y.shape == wanted:
        return y
    return y[tuple(slice(lo, hi) if n != m else slice(None) for n, m, (lo, hi) in zip(y.shape, wanted, where, strict=True))]


class _Contract(_Job):
    """A contraction under way: by the generic vertex."""

    def _box(self, tile: int, box: Box, found: list[dict[Region, Array]]) -> None:
        work = self.work
        assert isinstance(work, Contraction)
        target = self._target(work.outputs[0], box, 0, found[0])
        a, b = (self._slice(tile, box, i) for i in (0, 1))
        assert a is not None
        assert b is not None
        contraction.accumulate(work, box, a, b, target)
        reduced = [axis.name for axis in work.axes if axis.kind == "reduce"]
        if len(self.inputs) > 2 and self.inputs[2] is not None and all(box[name][0] == 0 for name in reduced):
            addend = self._slice(tile, box, 2)
            if addend is not None:
                contraction.add(target, addend, box, work)
        found[0][target.where] = target.array.copy()
        if len(work.outputs) > 1:
            self._sum(work, box, b, found[1])

    def _sum(self, work: Contraction, box: Box, source: Slice, found: dict[Region, Array]) -> None:
        """Output 1: by the tiles that stand first along the axes which the summed operand does not have."""
        own = contraction.axes_of(source.operand)
        if any(box[axis.name][0] for axis in work.axes if axis.name not in own):
            return
        target = self._target(work.outputs[1], box, 1, found)
        contraction.add_sum(target, source, box, work)
        found[target.where] = target.array.copy()

    def _slice(self, tile: int, box: Box, i: int) -> Slice | None:
        """Input `i` as brought to the tile; None where the work does not read it."""
        operand, array = self.work.inputs[i], self.inputs[i]
        if operand is None or array is None:
            return None
        where = region(operand, box, array.shape)
        return Slice(self._brought(tile, i, array, where), operand, where, array.shape)

    def _target(self, operand: Operand, box: Box, k: int, found: dict[Region, Array]) -> Slice:
        """The partial that the box adds to: the tile's own so far, or zeros."""
        shape = self.results[k].shape
        where = region(operand, box, shape)
        block = self.tiles.arena.take(extent(where), self.partial(self.results[k].numpy), f"{self.name}: partials")
        block[...] = found.get(where, 0)
        return Slice(block, operand, where, shape)


class _Put(_Job):
    """A table under way whose updates are cut, of which the last one for a place counts: beside each element lies the
    number of the update that wrote it, and of two the one with the larger number is kept."""

    def held(self, dtype: np.dtype) -> np.dtype:
        return np.dtype([("number", np.int32), ("value", dtype)])

    def _marked(self, box: Box, blocks: Arrays, computed: list[Array]) -> list[Array]:
        (values,), index, given = computed, blocks[1], self.inputs[1]
        table, places = self.work.inputs[:2]
        assert index is not None
        assert given is not None
        assert table is not None
        assert places is not None
        named = tuple(d is None or d in places.dims for d in table.dims)
        own = region(places, box, given.shape)
        numbers = np.arange(1, given.size + 1, dtype=np.int32).reshape(given.shape)[slices(own)]
        shape = tuple(n for n, is_named in zip(values.shape, named, strict=True) if is_named)
        before, after = (self.tiles.arena.take(shape, np.dtype(np.int32), f"{self.name}: numbers") for _ in range(2))
        before[...] = 0 if self._first(box) else -1  # what the table had comes before all updates
        operands = [before, index, np.ascontiguousarray(numbers)]
        self._vertex(self.op, operands).run(operands, [after], self.tiles.streams)
        made = np.empty(values.shape, self.held(values.dtype))
        made["value"] = values
        made["number"] = after.reshape([n if is_named else 1 for n, is_named in zip(values.shape, named, strict=True)])
        return [made]


@dataclass(frozen=True)
class _Found:
    """What the part of a staged axis that begins at `start` gave: of each output the region and the array."""

    start: int
    tile: int
    where: tuple[Region, ...]
    made: tuple[Array, ...]


class _Join(_Job):
    """An operator with a staged axis under way: parts along it are put together in their order, by the operator
    itself."""

    def outputs(self) -> tuple[Array, ...]:
        assert isinstance(self.work, Staged)
        axis, scans = self.work.staged.name, self.work.joined == "scan"
        lanes: dict[tuple[Range, ...], list[_Found]] = {}
        for part in parts_of(self.work, self.plan, self.tiles.tiles):
            self.tiles.traffic.parts += 1
            self.tiles.traffic.tiles.add(part.tile)
            self._held.clear()
            for box in part.boxes:
                self.tiles.arena.reset()
                found: list[dict[Region, Array]] = [{} for _ in self.results]
                self._box(part.tile, box, found)
                where, made = zip(*(next(iter(own.items())) for own in found), strict=True)
                lanes.setdefault(tuple(span for name, span in box.items() if name != axis), []).append(
                    _Found(box[axis][0], part.tile, where, made)
                )
        sheets = [Sheet(t.shape, t.numpy) for t in self.results]
        for parts in lanes.values():
            parts.sort(key=lambda part: part.start)
            for done in self._scanned(parts) if scans else self._selected(parts):
                for sheet, region_, y in zip(sheets, done.where, done.made, strict=True):
                    sheet.write(region_, y)
        return self._finished(sheets)

    def _fetch(self, tile: int, arrays: Sequence[Array], own: bool) -> None:
        """Room for arrays on a tile, which receives them unless they are its own."""
        for array in arrays:
            block = self.tiles.arena.take(
                array.shape, self.tiles.carried(array.dtype), f"{self.name}: what parts found"
            )
            if not own:
                self.tiles.receive(tile, block.nbytes)

    def _scanned(self, parts: list[_Found]) -> list[_Found]:
        """Each part with what comes before it: every tile is sent what the others come to."""
        if len(parts) < 2:
            return parts
        assert isinstance(self.work, Staged)
        axis = self.work.outputs[0].dims.index(self.work.staged.name)
        for part in parts:
            self.tiles.arena.reset()
            self._fetch(part.tile, part.made, True)
            self._fetch(
                part.tile,
                [np.concatenate([np.take(other.made[0], [-1], axis) for other in parts if other is not part], axis)],
                False,
            )
        done = self.op.joined([part.start for part in parts], [part.made for part in parts])
        return [replace(part, made=made) for part, made in zip(parts, done, strict=True)]

    def _selected(self, parts: list[_Found]) -> list[_Found]:
        """The best of all parts: of a group on the first of its tiles, round after round."""
        fan = 2
        while fan ** max(1, self.plan.reduce_stages) < len(parts):
            fan += 1
        while len(parts) > 1:
            groups = [parts[i:i + fan] for i in range(0, len(parts), fan)]
            parts = [group[0] if len(group) == 1 else self._best(group) for group in groups]
        return parts

    def _best(self, group: list[_Found]) -> _Found:
        first = group[0]
        self.tiles.arena.reset()
        for part in group:
            self._fetch(first.tile, part.made, part is first)
        made, = self.op.joined([part.start for part in group], [part.made for part in group])
        return replace(first, start=0, made=made)


def _how(work: Work) -> str:
    """How results of parts that meet are combined."""
    if isinstance(work, Staged):
        return work.joined
    combine = getattr(work, "combine", "") or "add"
    return "later" if combine == "none" else combine


def _kind(work: Work, meet: bool) -> type[_Job]:
    """What runs a work; meet: of some results several parts have something."""
    if isinstance(work, Contraction):
        return _Contract
    if isinstance(work, Staged) and work.joined in ("scan", "select"):
        return _Join
    return _Put if meet and isinstance(work, Scatter) and work.combine == "none" else _Job
