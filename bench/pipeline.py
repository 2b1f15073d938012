"""Several IPUs from the analysis of one: pipeline stages and replicas, in the simplest form that has their cost.

One analysis of the whole network gives every operator's cycles with all tiles of one IPU to itself, which is what it has in its
stage as well. With F stages of one IPU each, P = 2 F - 1 positions in the pipeline (forward and backward pass of a stage are
apart, but on one IPU) and G micro-batches per weight update:

    update = (G + P - 1) * (worst stage's micro-batch + boundary) + worst stage's weight update + all-reduce
    boundary = 2 * bytes between stages / link bandwidth        (activations onward, gradients back)
    all-reduce = ring over R replicas: 2 (R - 1) / R * gradient bytes of the worst stage / link bandwidth + 2 (R - 1) barriers
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tileflow.graph import Node
from tileflow.schedule import per
from tileflow.tiles.machine import TileProgram

LINK_SHARE = 0.5
"""Of an IPU's total link bandwidth: one direction."""


@dataclass(frozen=True)
class Layout:
    """How a network lies on IPUs.

    stages: for each stage patterns of layer paths, which name all that is in those layers (also what a layer itself adds up, beside the
        layers inside it); nodes that no pattern names are in stage 0.
    replicas: copies that train on different samples and add their gradients before each update.
    boundary_values: values of activation that pass between stages per micro-batch.
    """

    stages: tuple[tuple[str, ...], ...] = ((),)
    replicas: int = 1
    boundary_values: int = 0

    @property
    def ipus(self) -> int:
        return len(self.stages) * self.replicas

    def stage_of(self, node: Node) -> int:
        """Where an operator runs, by the layer or weight it stands for."""
        return self.stage_of_names(node.origin.sources)

    def stage_of_names(self, names: Sequence[str]) -> int:
        """Where something runs that any of these names stands for."""
        found = (stage for stage, patterns in enumerate(self.stages) for p in patterns for name in names
                 if fnmatchcase(name, p) or fnmatchcase(name, f"{p}.*"))
        return next(found, 0)


@dataclass(frozen=True)
class UpdateTime:
    """Seconds of one weight update over all IPUs, by what they are spent on, and each stage's cycles per micro-batch."""

    micro_batches: float
    bubbles: float
    boundary: float
    weight_update: float
    all_reduce: float
    stage_cycles: tuple[int, ...]

    @property
    def total(self) -> float:
        return self.micro_batches + self.bubbles + self.boundary + self.weight_update + self.all_reduce


def update_time(tiles: TileProgram, layout: Layout, link_share: float = LINK_SHARE) -> UpdateTime:
    """Time of one weight update of every replica."""
    chip, count = tiles.chip, len(layout.stages)
    micro, update = [0] * count, [0] * count
    often = per("micro-batch", tiles.program.schedule)
    for step in tiles.steps:
        per_micro = step.part in often
        (micro if per_micro else update)[layout.stage_of(step.node)] += step.phases.total
    link = chip.link_bytes_per_second * link_share
    itemsize = 2 if tiles.options.precision.startswith("16") else 4
    accumulation, positions = tiles.program.batching.gradient_accumulation, 2 * count - 1
    boundary = 2 * itemsize * layout.boundary_values / link if count > 1 else 0.0
    return UpdateTime(
        micro_batches=accumulation * max(micro) / chip.clock_hz,
        bubbles=(positions - 1) * (max(micro) / chip.clock_hz + boundary),
        boundary=accumulation * boundary,
        weight_update=max(update) / chip.clock_hz,
        all_reduce=_ring(max(_weights(tiles, layout)) * itemsize, layout.replicas, link, chip.link_sync_cycles / chip.clock_hz),
        stage_cycles=tuple(micro))


def _ring(nbytes: float, replicas: int, link: float, barrier: float) -> float:
    """Seconds of a ring all-reduce."""
    steps = 2 * (replicas - 1)
    return steps / replicas * nbytes / link + steps * barrier


def _weights(tiles: TileProgram, layout: Layout) -> Sequence[int]:
    """Trained weights per stage."""
    counts = [0] * len(layout.stages)
    for state in tiles.program.parts["update"].parameters:
        counts[layout.stage_of_names([state.name])] += state.input.type.size
    return counts
