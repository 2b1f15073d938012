"""An independent check of the tile machine: what no exchange, no arithmetic and no memory could do, from who owns and who computes what.

From a TileProgram it takes where each tensor lies (`mapping`), how each operator is cut (the decisions of its plan, none of its figures), the
chip's rates and the order of the steps; and counts element by element:

- **receive**: a tile must be sent what it reads and does not own, at the exchange's rate, or `tiles_per_bus` times that where a neighbour on its
  bus reads the same or nothing;
- **send**: a tile must send what it owns and another reads, each element once however many listen;
- **partial results**: of D tiles that hold partials of the same results, D - 1 must be sent on, however the D share that;
- **steps** (recurrent layers): at each product the states of all other units must come, or partial sums of all units go on to theirs;
- **compute**: products at the matrix unit's peak, or a vector a cycle; other work no faster than results are stored, a vector a cycle, or operands
  loaded, two a cycle; partial results are added no faster than two vectors a cycle;
- **memory**: a tile holds its part of every tensor that was made and will be read, and what it receives for the step (of one serial step).

    violations(tiled) == []
"""
from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileflow.exact.boxes import ROWS, cut
from tileflow.graph import Value
from tileflow.graph.work import Axis, Contraction, Gather, Map, Move, Operand, Reduce, Scatter, Stepwise, Window, Work
from tileflow.program.schedule import folded
from tileflow.tiles.hardware.chip import ITEMSIZE, device_dtype
from tileflow.tiles.machine import TileProgram
from tileflow.tiles.plans.plan import TileStep

Array = np.ndarray
LARGEST = 1 << 22
"""Elements: larger tensors are not looked at one by one (and none of the zoo's is)."""


@dataclass
class Bounds:
    """The least that a step can take: cycles of bringing operands in (`bring`: the slower of receiving and sending), of partial results, of
    computing; bytes that each tile receives (of all serial steps)."""

    receive: float = 0.0
    send: float = 0.0
    partials: float = 0.0
    compute: float = 0.0
    brought: Array | None = None
    serial: int = 1

    @property
    def exchange(self) -> float:
        return max(self.receive, self.send) + self.partials


def violations(tiled: TileProgram) -> list[str]:
    """Sentences on what is better than it can be."""
    found = []
    brought: list[Array] = []
    for step in tiled.steps:
        bounds = Checker(tiled, step).bounds()
        brought.append(np.zeros(tiled.chip.tiles) if bounds.brought is None else bounds.brought / bounds.serial)
        if not step.times or step.plan.notes.get("planned") == "parallel":
            continue
        phases = {name: value / step.times for name, value in vars(step.phases).items()}
        taken = phases["compute"] + phases["reduce"] + phases["transform"]
        where = f"step {step.index} {step.node.op.name} {dict(step.plan.splits)} serial {dict(step.plan.serial)} {step.plan.vertex}"
        if phases["exchange"] < bounds.exchange * (1 - 1e-9) - 2:
            found.append(f"{where}: exchange {phases['exchange']:.0f} < {bounds.exchange:.0f} (receive {bounds.receive:.0f}, send {bounds.send:.0f}, "
                         f"partials {bounds.partials:.0f})")
        if taken < bounds.compute * (1 - 1e-9) - 2:
            found.append(f"{where}: compute {taken:.0f} < {bounds.compute:.0f}")
    return found + list(_memory(tiled, brought))


class Checker:
    """One step's operands, element by element."""

    def __init__(self, tiled: TileProgram, step: TileStep) -> None:
        self.tiled, self.step, self.chip = tiled, step, tiled.chip
        self.work, self.plan = step.work, step.plan
        self.axes = {a.name: a for a in (*self.work.axes, *_table(self.work))}
        self.tiles = tiled.chip.tiles

    def bounds(self) -> Bounds:
        if self.plan.vertex == "none" or not self.work.points:
            return Bounds()
        found = Bounds(serial=math.prod(self.plan.serial.values()))
        need, common, sent = (np.zeros(self.tiles) for _ in range(3))
        seen: set[tuple[Value, Operand]] = set()
        for i, (value, operand) in enumerate(zip(self.step.node.inputs, self.work.inputs, strict=False)):
            if value is None or operand is None or not 1 < value.type.size <= LARGEST or (value, operand) in seen:
                continue
            seen.add((value, operand))
            item = self._itemsize(value)
            counted = self._operand(value, _named(self.work, operand, i))
            if counted is not None:
                for total, own in zip((need, common, sent), counted, strict=True):
                    total += own * item
        rate, bus = self.chip.exchange_bytes_per_cycle, self.chip.tiles_per_bus
        found.receive = float(((need - common) / rate + common / (rate * bus)).max(initial=0))
        found.send = float(sent.max(initial=0)) / rate
        found.brought = need
        added = self._partials()
        found.partials = added / rate
        found.compute = self._compute() + added / (2 * self.chip.vector_bytes)
        if isinstance(self.work, Stepwise):
            found.partials, found.compute = self._steps(self.work)
        return found

    def _steps(self, work: Stepwise) -> tuple[float, float]:
        """Cycles of exchange and of computing that all steps take at least: of the fullest tile, whose units are as many as any one's."""
        chip, dtype = self.chip, work.outputs[0].dtype
        own = {name: int(self._points(self.axes[name]).sum(1).max()) for name in "dbn"}
        size, parts = {a.name: a.size for a in work.axes}, self._filled("n")
        times, lines = size["t"] * len(work.products), own["d"] * own["b"]
        rates = [u.macs_per_cycle for types, u in chip.matrix.items() if types.split(".")[0] == dtype]
        compute = size["t"] * lines * own["n"] * size["k"] * size["g"] / max([*rates, chip.vector_bytes / ITEMSIZE[dtype]])
        if parts == 1:
            return 0.0, compute
        rate, item, vectors = chip.exchange_bytes_per_cycle, ITEMSIZE[dtype], size["t"] * sum(work.products)
        together = self.plan.notes.get("summed", 1)  # tiles that do the products of their units together
        mates = vectors * lines * own["n"] * (together - 1)
        if work.added:
            sent = times * lines * size["n"] / together * (1 - together / parts) * ITEMSIZE[self.plan.partials]
            return sent / rate + mates * item / rate / chip.tiles_per_bus, compute + sent / (2 * chip.vector_bytes)
        states = times * lines * (size["n"] / together - own["n"]) * item / rate / chip.tiles_per_bus
        added = mates * ITEMSIZE[self.plan.partials]
        return states + added / rate, compute + added / (2 * chip.vector_bytes)

    def _itemsize(self, value: Value) -> int:
        return self.tiled.memory_schedule.of[value].itemsize

    # ---- who reads what -------------------------------------------------------------------------------------------------

    def _operand(self, value: Value, operand: Operand) -> tuple[Array, Array, Array] | None:
        """Elements that each tile must be sent, those among them that a neighbour on its bus reads too (or has no use for its wire), and
        those that each must send. None where the Work does not say which elements are read."""
        owner = self._owner(value)
        if self.plan.layout is not None and isinstance(self.work, Map):
            return self._followed(value, operand, owner)
        if len(operand.dims) != len(value.shape) or (isinstance(self.work, Move) and not self._whole(value, operand)):
            return None
        reads = [self._reads(dim, n) for dim, n in zip(operand.dims, value.shape, strict=True)]
        inside = {n for names, _ in reads for n in names}
        outside = math.prod(self._filled(a) for a in self.plan.splits if a not in inside)
        readers = functools.reduce(np.multiply.outer, [m.sum(0) for _, m in reads], np.array(outside))
        at = self._coordinates()                                            # [axes][parts]
        tiles = (self.plan.start_tile + np.arange(self._count())) % self.tiles
        size = np.ones(len(tiles))
        for axis in self.plan.splits:                                       # a part that is empty along any axis reads nothing
            if axis not in inside:
                size = size * (at[axis] < self._filled(axis))
        for names, m in reads:
            size = size * m.sum(1)[self._number(names, at)]
        number = np.full(self.tiles, -1)
        number[tiles] = np.arange(len(tiles))
        mine = self._own(owner, number, reads, at, value.shape)             # elements whose owner reads them, too
        kept = np.zeros(self.tiles)
        np.add.at(kept, owner[mine], 1)
        need = np.zeros(self.tiles)
        need[tiles] = size
        need = np.maximum(0, need - kept)
        sent = np.bincount(owner[(readers - mine) > 0], minlength=self.tiles)
        return need, np.minimum(need, self._shared(number, reads, at, tiles, size)), sent

    def _followed(self, value: Value, operand: Operand, owner: Array) -> tuple[Array, Array, Array] | None:
        """Where every result is computed where the layout has it: each tile reads what its results are made of."""
        layout = self.plan.layout
        sizes = [self.axes[d].size for d in self.work.outputs[0].dims if isinstance(d, str)]
        if layout.size != math.prod(sizes) or layout.size > LARGEST or any(isinstance(d, Window) for d in operand.dims):
            return None
        reader = _spread(layout).reshape(sizes)
        names = list(self.work.outputs[0].dims)
        if len(operand.dims) != len(value.shape):
            return None
        index = np.zeros(sizes, np.int64)
        for dim, n in zip(operand.dims, value.shape, strict=True):
            if dim is None and n != 1:
                return None
            index = index * n
            if dim is not None:
                shape = [1] * len(sizes)
                shape[names.index(dim)] = n
                index = index + np.arange(n).reshape(shape)
        if operand.dims == self.work.outputs[0].dims and value.shape == tuple(sizes):
            away = owner != reader
            need = np.bincount(reader[away], minlength=self.tiles).astype(float)
            return need, need, np.bincount(owner[away], minlength=self.tiles)
        pairs = np.unique(reader.reshape(-1) * value.type.size + np.broadcast_to(index, sizes).reshape(-1))
        who, what = pairs // value.type.size, pairs % value.type.size
        away = owner.reshape(-1)[what] != who
        need = np.bincount(who[away], minlength=self.tiles).astype(float)
        sent = np.bincount(owner.reshape(-1)[np.unique(what[away])], minlength=self.tiles)
        return need, need, sent                                             # whatever could share a bus may have

    def _owner(self, value: Value) -> Array:
        return _spread(self.tiled.memory_schedule.of[value].mapping).reshape(value.shape)

    def _whole(self, value: Value, operand: Operand) -> bool:
        """Whether a rearrangement says which elements it reads."""
        return all(isinstance(d, Window) or (isinstance(d, str) and self.axes[d].size == n) for d, n in zip(operand.dims, value.shape, strict=True))

    def _count(self) -> int:
        return math.prod(self.plan.splits.values())

    def _coordinates(self) -> dict[str, Array]:
        """The part of each axis that each tile of the plan has, the last axis varying fastest."""
        left, found, numbers = self._count(), {}, np.arange(self._count())
        for axis, n in self.plan.splits.items():
            left //= n
            found[axis] = numbers // left % n
        return found

    def _number(self, names: tuple[str, ...], at: dict[str, Array]) -> Array:
        """The row of a matrix of reads that each tile has."""
        total = np.zeros(self._count(), np.int64)
        for name in names:
            total = total * self.plan.splits.get(name, 1) + at.get(name, 0)
        return total

    def _points(self, axis: Axis) -> Array:
        """Which points of an axis each part has, bool[parts, size]."""
        grain, steps, parts = self.plan.grains.get(axis.name, 1), self.plan.serial.get(axis.name, 1), self.plan.splits.get(axis.name, 1)
        found = np.zeros((parts, axis.size), bool)
        for lo, hi in cut(0, axis.size, steps, grain if axis.size % steps else 1):
            for part, (first, last) in enumerate(cut(lo, hi, parts, grain)):
                found[part, first:last] = True
        return found

    def _filled(self, name: str) -> int:
        """Parts of an axis that have something to do."""
        return int(self._points(self.axes[name]).any(1).sum())

    def _reads(self, dim: str | Window | None, n: int) -> tuple[tuple[str, ...], Array]:
        """Which elements of a dimension the parts of the axes that index it read: the axes, bool[parts, n]."""
        if dim is None:
            return (), np.ones((1, n), bool)
        if isinstance(dim, str):
            points = self._points(self.axes[dim])
            return (dim,), points[:, :n]
        out, tap = self._points(self.axes[dim.out]), self._points(self.axes[dim.tap])
        found = np.zeros((len(out), len(tap), n), bool)
        for k in range(tap.shape[1]):
            at = np.arange(out.shape[1]) * dim.stride + k * dim.dilation - dim.pad
            inside = (at >= 0) & (at < n)
            hit = np.zeros((len(out), n), bool)
            hit[:, at[inside]] = out[:, inside]
            found |= hit[:, None, :] & tap[None, :, k, None]
        return (dim.out, dim.tap), found.reshape(-1, n)

    def _own(self, owner: Array, number: Array, reads: list[tuple[tuple[str, ...], Array]], at: dict[str, Array], shape: tuple[int, ...]) -> Array:
        """Which elements their own owner reads."""
        part = number[owner]
        mine = part >= 0
        for axis, coordinate in at.items():
            if axis not in {n for names, _ in reads for n in names}:
                mine &= coordinate[part] < self._filled(axis)
        for i, (names, m) in enumerate(reads):
            where = np.arange(shape[i]).reshape([-1 if k == i else 1 for k in range(len(shape))])
            mine &= m[self._number(names, at)[part], where]
        return mine

    def _shared(self, number: Array, reads: list[tuple[tuple[str, ...], Array]], at: dict[str, Array], tiles: Array, size: Array) -> Array:
        """Elements that each tile reads and the neighbour on its bus that shares most reads, too; all, where a neighbour reads nothing."""
        best = np.zeros(self.tiles)
        bus = self.chip.tiles_per_bus
        for away in range(1, bus):
            mate = tiles // bus * bus + (tiles + away) % bus
            mate = np.where(mate < self.tiles, mate, tiles)
            other = number[mate]
            both = np.ones(len(tiles))
            for names, m in reads:
                row = self._number(names, at)
                together = m.astype(float) @ m.T.astype(float)
                both = both * together[row, row[other]]
            idle = (other < 0) | (size[other] == 0)
            np.maximum.at(best, tiles, np.where(idle, np.inf, np.where(mate == tiles, 0, both)))
        return best

    # ---- partial results, arithmetic ------------------------------------------------------------------------------------

    def _partials(self) -> float:
        """Bytes per tile, at least, of adding up what several tiles have of the same results."""
        if not isinstance(self.work, Contraction | Reduce | Scatter) or self.plan.layout is not None:
            return 0.0
        most, half = 0.0, self.plan.partials == "float16" and isinstance(self.work, Contraction)
        for operand in self.work.outputs[:1]:
            if any(isinstance(d, Window) or d is None for d in operand.dims):
                continue
            missing = [a for a in self.plan.splits if a not in operand.dims and self.axes[a].kind == "reduce"]
            depth = math.prod(self._filled(a) for a in missing)
            if depth > 1:
                elements = math.prod(int(self._points(self.axes[d]).sum(1).max()) for d in operand.dims if isinstance(d, str))
                item = min(ITEMSIZE[operand.dtype], 2 if half else 4)
                most = max(most, elements * item * (depth - 1) / depth)
        return most

    def _compute(self) -> float:
        """Cycles of the busiest tile at rates that nothing exceeds."""
        work, plan, chip = self.work, self.plan, self.chip
        dtype = device_dtype(work.inputs[0].dtype if work.inputs and work.inputs[0] else work.outputs[0].dtype)
        if isinstance(work, Contraction):
            points = math.prod(int(self._points(a).sum(1).max()) for a in work.axes)
            rates = [u.macs_per_cycle for types, u in chip.matrix.items() if types.split(".")[0] == dtype]
            return points / max([*rates, chip.vector_bytes / ITEMSIZE[dtype]])
        if not isinstance(work, Map | Reduce):
            return 0.0
        if plan.layout is not None:
            points = plan.layout.worst
        else:
            points = math.prod(int(self._points(a).sum(1).max()) for a in work.axes)
        full = [o for o in work.outputs if len([d for d in o.dims if d]) == len(work.axes)]
        read = [o for o in work.inputs if o is not None and len([d for d in o.dims if d]) == len(work.axes)]
        stored, loaded = (max((ITEMSIZE[device_dtype(o.dtype)] for o in some), default=0) for some in (full, read))
        return points * max(stored, loaded / 2) / chip.vector_bytes


def _table(work: Work) -> list[Axis]:
    return [Axis(ROWS, work.notes[ROWS], "reduce")] if isinstance(work, Gather | Scatter) and ROWS in work.notes else []


def _named(work: Work, operand: Operand, i: int) -> Operand:
    """The table of a lookup with its rows named."""
    if i or not (isinstance(work, Gather) or (isinstance(work, Scatter) and work.onto)):
        return operand
    return Operand(tuple(ROWS if d is None else d for d in operand.dims), operand.dtype)


_SPREAD: dict[Any, Array] = {}


def _spread(mapping: Any) -> Array:
    """The tile of every element in flattened order, int64[size]."""
    if mapping not in _SPREAD:
        if len(_SPREAD) > 200:
            _SPREAD.clear()
        found = np.full(mapping.size, -1)
        for tile, start, stop in mapping.intervals():
            found[start:stop] = tile
        assert (found >= 0).all(), "an element that no tile owns"
        _SPREAD[mapping] = found
    return _SPREAD[mapping]


# ---- memory -------------------------------------------------------------------------------------------------------------

def _memory(tiled: TileProgram, brought: list[Array]) -> Iterator[str]:
    """Each tile at each step holds its part of every tensor that exists and is read later, of states always, and what it receives."""
    program, of = tiled.program, tiled.memory_schedule.of
    if any(node.op.regions for graph in program.graphs for node in graph.nodes) or tiled.ipus:
        return
    root: dict[Value, Value] = dict(program.links)
    for step in tiled.steps:
        node = step.node
        if node.op.alias is not None and node.inputs[node.op.alias] is not None:
            root[node.outputs[0]] = node.inputs[node.op.alias]                # type: ignore[assignment]

    def rooted(v: Value) -> Value:
        while v in root:
            v = root[v]
        return v
    states = {v for graph in program.graphs for s in graph.states for v in (s.input, s.output) if v is not None}
    last: dict[Value, int] = {}
    folds = set(folded(program.schedule))
    for i, entry in enumerate(tiled.memory_schedule.entries):
        for v in entry.node.operands:
            # gradients are added as soon as they are made, and do not wait
            if entry.part not in folds or v not in program.links:
                last[rooted(v)] = i
    always = np.zeros(tiled.chip.tiles)
    named: set[str] = set()
    for graph in program.graphs:
        for s in graph.states:
            if s.name not in named and not of[s.input].off_chip and not of[s.input].share and not s.start:
                named.add(s.name)
                always += _bytes(tiled, s.input)
    live: dict[Value, Array] = {v: _bytes(tiled, v) for v in program.inputs if v in last and rooted(v) is v}
    held = always + sum(live.values(), np.zeros(tiled.chip.tiles))
    for i, step in enumerate(tiled.steps):
        needed = held + brought[i]
        over = needed - tiled.peak
        if over.max() > 8:
            tile = int(over.argmax())
            yield (f"step {i} {step.node.op.name}: tile {tile} holds {held[tile]:.0f} and receives {brought[i][tile]:.0f}, but its peak is "
                   f"{tiled.peak[tile]}")
        if needed.max() > tiled.liveness[i] + 8:
            yield f"step {i} {step.node.op.name}: a tile needs {needed.max():.0f} bytes, but the fullest is said to have {tiled.liveness[i]}"
        for v in [v for v in live if last[v] <= i]:
            held = held - live.pop(v)
        for v in step.node.outputs:
            if v not in root and v not in states and v not in live and last.get(v, -1) > i:
                live[v] = _bytes(tiled, v)
                held = held + live[v]


def _bytes(tiled: TileProgram, v: Value) -> Array:
    storage = tiled.memory_schedule.of[v]
    assert storage.mapping is not None
    return storage.mapping.elements_per_tile() * float(ITEMSIZE[storage.dtype])


