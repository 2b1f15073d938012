"""The Program: what both consumers of a model share. Target-neutral: nothing in it depends on the host."""
from __future__ import annotations

from dataclasses import dataclass, field

from .graph import Graph, Value, to_text


@dataclass(frozen=True)
class Batching:
    """Rows of a call: `micro_batch * gradient_accumulation * device_iterations`, consumed in that nesting, innermost first."""

    micro_batch: int
    gradient_accumulation: int = 1
    device_iterations: int = 1

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one call."""
        return self.gradient_accumulation * self.device_iterations

    @property
    def rows(self) -> int:
        """Samples of one call."""
        return self.micro_batch * self.micro_batches

    @property
    def rows_per_update(self) -> int:
        return self.micro_batch * self.gradient_accumulation


@dataclass
class Program:
    """Four graphs that share states by name.

    prologue  what depends on weights and constants only; run before the first micro-step and after each update
    micro     forward, backward: inputs and states -> outputs, loss and contributions
    fold      one micro-batch's contributions into states (gradient accumulators, running statistics, summed outputs); run
              once per micro-batch in global order, so that micro-batches may be computed side by side
    update    accumulated gradients and optimizer states -> new weights and states

    `links` connect them: an input value of a later graph to the value of `micro` or `prologue` that feeds it.
    """

    micro: Graph
    batching: Batching
    prologue: Graph = field(default_factory=lambda: Graph("prologue"))
    fold: Graph = field(default_factory=lambda: Graph("fold"))
    update: Graph = field(default_factory=lambda: Graph("update"))
    links: dict[Value, Value] = field(default_factory=dict)
    loss: Value | None = None
    training: bool = False

    @property
    def inputs(self) -> list[Value]:
        """What a caller feeds: the micro-step's inputs but those that the prologue makes."""
        return [v for v in self.micro.inputs if v not in self.links]

    @property
    def graphs(self) -> tuple[Graph, ...]:
        return self.prologue, self.micro, self.fold, self.update

    def to_text(self) -> str:
        """All graphs, a node a line."""
        return "\n\n".join(to_text(g) for g in self.graphs if g.nodes or g is self.micro)
