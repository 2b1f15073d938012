"""What a plan is: how one operator is cut over tiles, what it costs there, and the program of all operators.

Tile numbering. `OpPlan.splits` is an ordered mapping axis -> number of parts. A part is named by its coordinates (one per
axis, in the mapping's order); the tile that computes it is `(start_tile + mixed-radix number of the coordinates) % tiles`,
the last axis of the mapping varying fastest. Part `i` of an axis of `size` cut in `parts` with grain `g` covers
`[min(size, i * step), min(size, (i + 1) * step))` with `step = g * ceil(ceil(size / g) / parts)`: every part but the last ones
has the same size, the worst tile has `step`.

A lookup or scatter may also cut `rows`, the indexed dimension of its table, which is no axis of its Work: `Work.notes` has its size.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ...graph import Node
from ...graph.work import Work

Vertex = Literal["amp", "hmac", "outer", "vmac", "slic", "map", "reduce", "move", "gather", "scatter", "none"]


@dataclass(frozen=True)
class Phases:
    """Cycles of one operator on the worst tile, by what they are spent on; they add up (bulk-synchronous, no overlap)."""

    compute: int = 0
    exchange: int = 0
    sync: int = 0
    transform: int = 0       # rearrangements and casts on the tile
    reduce: int = 0          # adding partials, exchange of partials included in `exchange`

    @property
    def total(self) -> int:
        return self.compute + self.exchange + self.sync + self.transform + self.reduce

    def __add__(self, other: Phases) -> Phases:
        return Phases(self.compute + other.compute, self.exchange + other.exchange, self.sync + other.sync,
                      self.transform + other.transform, self.reduce + other.reduce)

    def times(self, n: int) -> Phases:
        return Phases(self.compute * n, self.exchange * n, self.sync * n, self.transform * n, self.reduce * n)


@dataclass(frozen=True)
class Standing:
    """Where a plan stands among those that no other beats in both cycles and temporary bytes.

    of: how many there are. faster: cycles and bytes of the next one with fewer cycles (None: this is the fastest). leaner: of the next one with
    fewer bytes (None: none takes less).
    """

    of: int
    faster: tuple[int, int] | None
    leaner: tuple[int, int] | None


@dataclass(frozen=True)
class OpPlan:
    """One operator's partition and its price.

    splits: parallel parts per axis of the operator's Work (axes not named are whole), in tile-numbering order.
    grains: smallest indivisible run per axis (1 where not named).
    serial: sequential parts per axis, done one after the other on the same tiles.
    vertex: the code that runs on a tile. partials: element type of partial sums.
    reduce_stages: exchange-and-add rounds for partials (0: nothing to reduce across tiles).
    temp_bytes: temporaries on the worst tile (inputs brought in, partials, rearranged copies): what the proportion bounds.
    exchange_bytes: bytes that the worst tile receives.
    gathered: the cycles of `phases.exchange` that partial results take after the vertices have run; the others bring operands in.
    code_bytes: vertex and control code on the worst tile.
    fits: the temporaries are within the bound that was asked for; else this is the least-memory plan.
    limit: what decides the cycles: "compute", "exchange", "reduce", "sync", "memory", "grain".
    """

    splits: Mapping[str, int]
    vertex: Vertex
    phases: Phases
    temp_bytes: int
    exchange_bytes: int = 0
    code_bytes: int = 0
    grains: Mapping[str, int] = field(default_factory=dict)
    serial: Mapping[str, int] = field(default_factory=dict)
    partials: str = "float32"
    reduce_stages: int = 0
    tiles: int = 1
    start_tile: int = 0
    flops: float = 0.0
    bound_bytes: int | None = None
    fits: bool = True
    limit: str = "compute"
    gathered: int = 0
    notes: Mapping[str, Any] = field(default_factory=dict)
    layout: Any = None
    """A tiles.mapping.Mapping: output 0 stays where an input lives, in place of the grid of `splits` (element-wise operators)."""
    choice: Standing | None = None
    """Of an operator planned by itself: what it was chosen from."""


@dataclass(frozen=True)
class TileOptions:
    """How the tile machine looks at a program.

    available_memory_proportion: share of a tile's memory that one operator's temporaries may take.
    per_op: proportions by node-name pattern (fnmatch on any of the node's origin sources); the first match counts.
    per_ipu: proportions of all other operators of an IPU, by "IPU0", "IPU1" ...
    precision: "32.32" (the program's types, float32 partials), "16.32" (float16 in place of float32, float32 partials), "16.16".
    program: the precision that the program was compiled with, for reports.
    serialized: node-name pattern -> (mode, factor) of serialized matmuls.
    replicas: copies of the program on IPUs of their own, which add up their gradients before an update; `same_rows` of them get the same rows.
    shared_by: how many replicas share a parameter, by pattern of its name; those that no pattern names are shared by all.
    pinned: pattern of a node's own name (`step_names`) or of a source -> plan as exported JSON; used instead of a search.
    activations_off_chip, weights_off_chip, optimizer_off_chip, accumulators_off_chip: a group of tensors is kept in streaming memory
        (`tiles.system.locations`). min_elements_off_chip: by group, how many elements a tensor has at least that leaves
        the chip.
    weights_sharded, optimizer_sharded: each replica keeps a share of them (`tiles.system.sharding`).
        min_elements_sharded: of tensors that are shared out.
    num_io_tiles: tiles that compute nothing (`tiles.hardware.io`). io_tiles_for: group of tensors -> load, store or
        both: what of their streaming they do.
    overlap_inputs, overlap_outputs: name pattern of what the host sends and gets -> the loop in which it passes beside the steps.
    """

    available_memory_proportion: float = 0.6
    per_op: Mapping[str, float] = field(default_factory=dict)
    per_ipu: Mapping[str, float] = field(default_factory=dict)
    precision: str = "32.32"
    program: str = "32"
    serialized: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    pinned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    joint_plans: bool = True
    activations_off_chip: bool = False
    weights_off_chip: bool = False
    optimizer_off_chip: bool = False
    accumulators_off_chip: bool = False
    min_elements_off_chip: Mapping[str, int] = field(default_factory=dict)
    weights_sharded: bool = False
    optimizer_sharded: bool = False
    min_elements_sharded: Mapping[str, int] = field(default_factory=dict)
    num_io_tiles: int = 0
    io_tiles_for: Mapping[str, str] = field(default_factory=dict)
    overlap_inputs: Mapping[str, str] = field(default_factory=dict)
    overlap_outputs: Mapping[str, str] = field(default_factory=dict)
    recompute: bool = False
    replicas: int = 1
    same_rows: int = 1
    shared_by: Mapping[str, int] = field(default_factory=dict)


@dataclass
class TileStep:
    """One operator in the schedule: where it stands, its plan, its phases with the rearrangement of its inputs included."""

    index: int
    part: str
    node: Node
    work: Work
    plan: OpPlan
    phases: Phases
    repeats: int = 1                  # times per weight update
    live_bytes: int = 0               # not-always-live bytes on the worst tile while it runs, temporaries included
    ipu: int = 0                      # that it runs on
    times: int = 1                    # of branches and loops: how often it counts when its part runs once; `phases` has them all

    @property
    def flops(self) -> float:
        """Useful FLOPs per weight update."""
        return self.work.flops * self.times * self.repeats


def node_name(node: Node) -> str:
    """How reports call a node."""
    return f"{node.origin.sources[0] if node.origin.sources else node.op.name}/{node.op.name}"


def step_names(nodes: Sequence[Node]) -> dict[Node, str]:
    """A name of its own for each node of a schedule: `node_name`, and #2, #3 … for later nodes of the same name."""
    count: dict[str, int] = {}
    names = {}
    for node in nodes:
        name = node_name(node)
        count[name] = count.get(name, 0) + 1
        names[node] = name if count[name] == 1 else f"{name}#{count[name]}"
    return names
