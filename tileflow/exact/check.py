"""Compare a planned program, run tile by tile, with the same operators run whole by their kernels."""
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..graph import Graph, Node, State, Value
from ..graph.work import Contraction, Gather, Map, Move, Operand, Reduce, Scatter, Staged, Window, Work
from ..program.program import Program
from ..tiles.plans.plan import OpPlan, node_name
from .program import execute, micro_batches
from .tiles import Tiles, Traffic, work_of
from .vertex import Streams, run_op

if TYPE_CHECKING:
    from ..tiles.machine import TileProgram

Array = np.ndarray
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-2}
"""The largest error that another order of summation may make in each partials type."""
TURNS = 2
"""Of a call's Repeats over micro-batches, as are run: operators are compared once, but other rows may take other branches."""


@dataclass(frozen=True)
class Difference:
    """One operator's outputs on the tiles against the same operator run whole on the same inputs.

    error: largest difference, in units of the sum of magnitudes where sums are formed, else of the largest element (0: the same
        bits). exact: the bits must be equal.
    parts, tiles: computed, used. received, arena: bytes, of the tile that received or held most.
    """

    name: str
    kind: str
    error: float
    tolerance: float
    exact: bool
    parts: int
    tiles: int
    received: int
    arena: int

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance


@dataclass
class Report:
    """The differences of all operators, in the order they ran.

    memory: bytes of a tile; no arena was larger. seed: of the inputs and states.
    """

    memory: int
    seed: int
    steps: list[Difference] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Every operator agrees: to the bit where it moves data or computes element by element, else in accuracy class."""
        return all(s.ok for s in self.steps)

    @property
    def arena(self) -> int:
        """The most bytes that any tile's arena held."""
        return max((s.arena for s in self.steps), default=0)

    @property
    def worst(self) -> Difference | None:
        """The operator that is furthest off, measured by its tolerance."""
        return max(self.steps, key=lambda s: (not s.ok, s.error / s.tolerance if s.tolerance else 0.0), default=None)

    def to_text(self) -> str:
        """One line, and a line for each operator that differs."""
        same = sum(s.error == 0 for s in self.steps)
        lines = [f"tile-exact: {len(self.steps)} operators, {same} equal to the bit, {sum(not s.ok for s in self.steps)} wrong; "
                 f"the largest arena held {self.arena:,} of {self.memory:,} bytes"]
        lines += [f"  {s.name}: differs by {s.error:.2e} of its magnitude, {s.tolerance:.0e} is allowed" for s in self.steps if not s.ok]
        return "\n".join(lines)


def check(program: TileProgram, seed: int = 0, feeds: Mapping[str, Array] | None = None, states: Mapping[str, Array] | None = None) -> Report:
    """Run a TileProgram tile by tile on random inputs and states (or those given) and compare every operator with its fast path. Of a call with more
    micro-batches the first `TURNS` turns are run, and two updates.

    Raises:
        TileMemoryError: a part of an operator does not fit a tile.
    """
    plans = {step.node: step.plan for step in program.steps}
    return compare(program.program, plans, program.chip.tiles, program.chip.bytes_per_tile, program.options.precision, seed, feeds, states)


def compare(program: Program, plans: Mapping[Node, OpPlan], tiles: int, memory: int, precision: str = "32.32", seed: int = 0,
            feeds: Mapping[str, Array] | None = None, states: Mapping[str, Array] | None = None) -> Report:
    """`check` for a Program and its plans by node."""
    report = Report(memory, seed)
    machine = Tiles(tiles, memory, precision)
    done: set[Node] = set()

    def watch(node: Node, plan: OpPlan, inputs: list[Array | None], outputs: tuple[Array, ...], traffic: Traffic) -> None:
        if node not in done:                           # once is enough for operators that repeat
            done.add(node)
            report.steps.append(_difference(node, plan, inputs, outputs, traffic, precision, machine.streams))

    rng = np.random.default_rng(seed)
    found = {s.name: _state(s, rng) for s in program.states.values() if s.kind != "scalar"} | dict(states or {})
    hyper = {s.role: 0.1 for s in program.states.values() if s.kind == "scalar"}
    count = micro_batches(program, TURNS)
    fed = {v.name: _feed(v, program, count, rng) for v in program.inputs} | dict(feeds or {})
    execute(program, plans, fed, found, machine, scalars=lambda _: hyper, seed=seed, watch=watch, turns=TURNS)
    return report


def _difference(node: Node, plan: OpPlan, inputs: list[Array | None], outputs: tuple[Array, ...], traffic: Traffic, precision: str,
                streams: Streams) -> Difference:
    wanted = [np.empty(v.shape, v.type.numpy) for v in node.outputs]
    half = precision.startswith("16")
    if half:                                           # what travels is what both compute with: a rounded maximum may be another one
        inputs = [None if a is None else _halved(a) for a in inputs]
    with np.errstate(all="ignore"):
        run_op(node.op, [None if a is None else np.ascontiguousarray(a).reshape(a.shape) for a in inputs], wanted, streams)
    if half:
        wanted = [_halved(a) for a in wanted]
    work = work_of(node)
    exact = _same_bits(work, plan)
    kind = "float16" if half else plan.partials if wanted[0].dtype == np.float32 else wanted[0].dtype.name
    scales = _scales(node, work, inputs, wanted, streams, float(np.finfo(kind).smallest_normal) if kind == "float16" else 0.0)
    error = max((_error(*three) for three in zip(outputs, wanted, scales, strict=True)), default=0.0)
    return Difference(node_name(node), type(work).__name__.lower(), error, 0.0 if exact else TOLERANCE.get(kind, 0.0), exact, traffic.parts,
                      len(traffic.tiles), traffic.most_received, traffic.arena)


def _halved(array: Array) -> Array:
    """float32 rounded to float16, as it travels and rests."""
    with np.errstate(over="ignore"):
        return array if array.dtype != np.float32 else array.astype(np.float16).astype(np.float32)


def _same_bits(work: Work, plan: OpPlan) -> bool:
    """Element-wise and indexing operators; a scatter, running sums and votes only where no sum is split over tiles."""
    if isinstance(work, Scatter) and work.combine == "none":
        return True
    if isinstance(work, Scatter) or (isinstance(work, Staged) and work.joined != "select"):
        return all(
            max(plan.splits.get(a.name, 1), plan.serial.get(a.name, 1)) == 1
            for a in work.axes
            if a.kind in ("reduce", "staged")
        )
    return isinstance(work, Map | Move | Gather)


def _scales(node: Node, work: Work, inputs: list[Array | None], wanted: list[Array], streams: Streams,
            least: float) -> list[Array]:
    """What the rounding of each output grows with: where products or elements are added, the sum of their magnitudes (a sum may
    cancel); else the largest element of outputs and inputs. A type rounds numbers below its `least` normal one as it rounds that."""
    if isinstance(work, Contraction | Scatter) or (isinstance(work, Reduce) and work.combine == "add" and len(inputs) == 1):
        scales = [np.empty_like(a) for a in wanted]
        with np.errstate(all="ignore"):
            sizes = [None if a is None else np.maximum(np.abs(a), a.dtype.type(least)) if a.dtype.kind == "f" else np.array(a) for a in inputs]
            run_op(node.op, sizes, scales, streams)
        return [np.maximum(np.abs(s), least) for s in scales]
    floats = [a[np.isfinite(a)] for a in (*wanted, *(x for x in inputs if x is not None)) if a.dtype.kind == "f"]
    return [np.full((), max((float(np.max(np.abs(a), initial=0.0)) for a in floats), default=least), float)] * len(wanted)


def _error(found: Array, wanted: Array, scale: Array) -> float:
    """The largest difference in units of `scale`; infinite where NaN or infinity stand in other places."""
    if found.tobytes() == wanted.tobytes():
        return 0.0
    if found.dtype.kind != "f":
        return math.inf
    finite = np.isfinite(wanted)
    if not np.array_equal(found[~finite], wanted[~finite], equal_nan=True) or not np.isfinite(found[finite]).all():
        return math.inf
    difference = np.abs(found[finite].astype(np.float64) - wanted[finite].astype(np.float64))
    allowed = np.broadcast_to(scale, found.shape)[finite].astype(np.float64)
    if (difference[allowed == 0] > 0).any():
        return math.inf
    return max(float(np.max(difference[allowed > 0] / allowed[allowed > 0], initial=0.0)), np.finfo(np.float64).tiny)


def _state(s: State, rng: np.random.Generator) -> Array:
    """Weights about as large as training keeps them; variances, moments and counters positive."""
    t = s.input.type
    if s.kind == "parameter":
        fan = math.prod(t.shape[1:]) if t.rank > 1 else 1
        return (rng.standard_normal(t.shape) / math.sqrt(max(1, fan))).astype(t.numpy)
    return rng.uniform(0.5, 1.5, t.shape).astype(t.numpy)


def _feed(v: Value, program: Program, count: int, rng: np.random.Generator) -> Array:
    """Random rows of an input, `count` micro-batches; integers are valid as labels and indices of whatever reads them."""
    shape = (count, *v.shape)
    if v.type.is_float:
        return rng.standard_normal(shape).astype(v.type.numpy)
    return rng.integers(0, min(_values(g, v) for g in program.graphs if v in g.inputs), shape).astype(v.type.numpy)


def _values(graph: Graph, v: Value) -> int:
    """How many different numbers an integer value may hold: as many as any dimension has that its readers do not index it by."""
    most = []
    for node in graph.nodes:
        if v not in node.inputs:
            continue
        if node.op.regions:
            for region in node.op.regions:                       # what a region is given stands last among operands and inputs
                pairs = zip(reversed(node.operands), reversed(region.graph.inputs), strict=False)
                most += [_values(region.graph, inner) for outer, inner in pairs if outer is v and inner.dtype == v.dtype]
            continue
        if node.op.alias is not None:
            most.append(_values(graph, node.outputs[0]))
            continue
        work = work_of(node)
        operand = work.inputs[node.inputs.index(v)]
        own = set() if operand is None else set(operand.dims)
        most += [a.size for a in work.axes if a.name not in own]
        most += [n for o, x in zip(work.inputs, node.inputs, strict=False) if o is not None and x is not None and x is not v
                 for n in _whole(o, x)]
    return max(1, min((n for n in most if n > 1), default=2))


def _whole(operand: Operand, x: Value) -> list[int]:
    """Dimensions that no axis indexes."""
    return [n for d, n in zip(operand.dims, x.shape, strict=True) if not isinstance(d, str | Window)]
