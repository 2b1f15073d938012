"""One operator on the tiles: bring each part its slices, compute it in the tile's arena, put the outputs together."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..graph import Builder, Graph, Node, Op, TensorType, Value, type_of
from ..graph.work import Contraction, Gather, Operand, Reduce, Scatter, Stepwise, Work
from ..kernels.dtypes import BITS
from ..system.errors import DataError
from ..tiles.plans.plan import OpPlan
from . import contraction
from .arena import Arena
from .boxes import ROWS, Box, Part, Region, dense, extent, parts_of, region, slices, table_axis
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
        reduced = [a.name for a in work.axes if a.kind == "reduce" and max(plan.splits.get(a.name, 1), plan.serial.get(a.name, 1)) > 1]
        if reduced and isinstance(work, Reduce) and not work.combine:
            return self._partial_results(op, plan, inputs, len(results))
        if isinstance(work, Stepwise):
            return stepwise(self, op, work, plan, inputs, results)
        job = _Contract(self, op, work, plan, inputs, results) if isinstance(work, Contraction) else _Job(self, op, work, plan, inputs, results)
        return job.outputs()

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
        self.how = work.combine if isinstance(work, Reduce) and work.combine else "or" if isinstance(work, Gather) else "add"
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
        sheets = []
        for t, contributions in zip(self.results, found, strict=True):
            sheet = Sheet(t.shape, t.numpy)
            reducer = Reducer(self.tiles.arena, self.how, self.plan.reduce_stages, self.partial(t.numpy), self.tiles.receive)
            if contributions:
                reducer.assemble(sheet, contributions)
            made = sheet.finish(0 if self.additive else None)
            rest = self.tiles.carried(t.numpy)
            sheets.append(made if rest == made.dtype else made.astype(rest).astype(made.dtype))
        return tuple(sheets)

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
        if self.op.alias is not None:
            source = blocks[self.op.alias]
            assert source is not None
            computed = [source]
        else:
            op = self.op.part(box, self.types, self.results)
            hit = self._indexed(box, blocks)
            vertex = self._vertex(op, blocks)
            computed = [self._output(t) for t in vertex.outputs]
            vertex.run(blocks, computed, self.tiles.streams)
            if hit is not None:
                computed[0].view(BITS[computed[0].itemsize])[~hit] = 0
        for k, (y, where) in enumerate(zip(computed, wanted, strict=True)):
            self._keep(found[k], where, _cropped(y, where))

    def _vertex(self, op: Op, blocks: Sequence[Array | None]) -> Vertex:
        """The operator for blocks of these shapes; an operator that is the whole one is not compared by its attributes."""
        key = (None if op is self.op else op, tuple(None if b is None else b.shape for b in blocks))
        if key not in self._vertices:
            self._vertices[key] = Vertex.of(op, types_of(blocks))
        return self._vertices[key]

    def _indexed(self, box: Box, blocks: list[Array | None]) -> Array | None:
        """Where the table is cut: count the indices from the tile's first row; those of other tiles' rows do nothing.

        Returns for a Gather where the output has rows of this tile.
        """
        if ROWS not in box or box[ROWS] == (0, self.work.notes[ROWS]):
            return None
        (lo, hi), size = box[ROWS], self.work.notes[ROWS]
        values, index = blocks[0], blocks[1]
        assert values is not None
        assert index is not None
        found = np.where(index < 0, index + size, index)
        if ((found < 0) | (found >= size)).any():
            raise DataError(f"{self.name}: an index is outside of the {size} rows of the table.")
        here = (found >= lo) & (found < hi)
        index[...] = np.where(here, found - lo, 0)
        moved, positions = (self.work.outputs if isinstance(self.work, Gather) else self.work.inputs)[0], self.work.inputs[1]
        assert moved is not None
        assert positions is not None
        shape = tuple(box[d][1] - box[d][0] for d in moved.dims if isinstance(d, str))
        hit = np.broadcast_to(here.reshape([n if d in positions.dims else 1 for d, n in zip(moved.dims, shape, strict=True)]), shape)
        if isinstance(self.work, Gather):
            return hit
        values[~hit] = 0
        return None

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

