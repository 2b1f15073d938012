"""The Program: what both consumers of a model share. Target-neutral: nothing in it depends on the host."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..graph import PARTIAL, Graph, State, TensorType, Value, to_text
from . import schedule
from .batching import Batching
from .replicas import copy_of
from .schedule import Steps
from .staging import Staging


@dataclass(frozen=True)
class Caller:
    """What a caller of a program gives and gets, where the step is cut into stages: inputs and outputs in the order that the whole step has them.

    checked: the first fold of a micro-batch that runs after its loss is there, before which the loss is looked at; empty: there is no loss.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    checked: str = ""


@dataclass
class Program:
    """Parts (named graphs that share states by name), the schedule that runs them, and what connects them.

    parts: by name; the model's own, `micro`, comes first, so that states lie in memory in the model's order. Today's are
        micro     forward, backward: inputs and states -> outputs, loss and contributions
        prologue  what depends on weights and constants only
        fold      one micro-batch's contributions into states (gradient accumulators, running statistics, summed outputs), in global order, so
                  that micro-batches may be computed side by side
        update    accumulated gradients and optimizer states -> new weights and states
      and where each replica sums up its own gradients first, once an update those of all (`schedule.replicas_first`)
        accumulate  one micro-batch's gradients into its replica's sums, each replica's its own (`partial_sums`)
        reduce      a replica's sums into the accumulators that the update reads, in the order of replicas
    schedule: which of them runs when. Nothing else knows the order of parts or how often they run.
    links: an input value of a part -> the value of another part that feeds it.
    own: states of which not all replicas have the same: what a part calls one -> what each replica's is called. Runs and folds are then `ahead` by
        the number of their replica.
    returned: how many of the step's outputs a caller gets; None: all.
    skips: the update itself keeps the states as they were where loss or gradients are not finite, so that nobody needs to refuse them.
    notes: sentences on what a user should know of it, such as weights that no gradient reaches.
    staging: what the marks on nodes mean, for those who cut the step into stages (`strategy.cut`). caller: set once it is cut: `micro` has given way
        to `stage0`, `stage1` ..., the fold to `fold0` ..., each for the stage that it follows.
    """

    parts: dict[str, Graph]
    batching: Batching
    schedule: Steps
    links: dict[Value, Value] = field(default_factory=dict)
    loss: Value | None = None
    returned: int | None = None
    training: bool = False
    own: dict[str, tuple[str, ...]] = field(default_factory=dict)
    skips: bool = False
    notes: list[str] = field(default_factory=list)
    staging: Staging | None = None
    caller: Caller | None = None

    @classmethod
    def of(cls, micro: Graph, batching: Batching, training: bool = False) -> Program:
        """A program of one step, whose other parts are still empty, micro-batch after micro-batch."""
        order = schedule.one_by_one(batching.per_update, batching.device_iterations) if training else \
            schedule.one_by_one(batching.micro_batches, None, any(s.output is not None for s in micro.states))
        return cls({"micro": micro, **{name: Graph(name) for name in ("prologue", "fold", "update")}}, batching, order, training=training)

    def with_parts(self, parts: Mapping[str, Graph], **changes: Any) -> Program:
        """A copy with other graphs for the parts that are named, and other fields."""
        return replace(self, parts={**self.parts, **parts}, **changes)

    def tell_apart(self, own: Mapping[str, tuple[str, ...]]) -> None:
        """Let replicas have these states of their own (`own`)."""
        if own:
            self.own = dict(own)
            self.schedule = schedule.with_replicas(self.schedule, self.batching.replicas, self.own_weights)

    @property
    def own_weights(self) -> bool:
        """Whether weights are among the states of which not all replicas have the same."""
        return any(s.name in self.own for graph in self.graphs for s in graph.parameters)

    # ---- what a caller gives and gets

    @property
    def micro(self) -> Graph:
        """The model's own step: what a caller's inputs enter."""
        return self.parts["micro"]

    @property
    def inputs(self) -> list[Value]:
        """What a caller feeds: the inputs of parts that no other part makes."""
        if self.caller is not None:
            return list(self.caller.inputs)
        return [v for graph in self.graphs for v in graph.inputs if v not in self.links]

    @property
    def outputs(self) -> list[Value]:
        """What a caller gets per micro-batch: all that the step gives but the gradients, which follow."""
        return list(self.caller.outputs if self.caller is not None else self.micro.outputs[:self.returned])

    # ---- parts

    @property
    def graphs(self) -> tuple[Graph, ...]:
        return tuple(self.parts.values())

    @property
    def rows_per_period(self) -> int:
        """Samples of what figures are given for (`schedule.period`)."""
        if self.training:
            return self.batching.rows_per_update
        return self.batching.micro_batch * max(schedule.times(schedule.period(self.schedule)).values(), default=1)

    @property
    def running(self) -> list[tuple[str, Graph]]:
        """The parts in the order in which they first run."""
        return [(name, self.parts[name]) for name in schedule.parts(self.schedule)]

    def kept(self, part: str) -> list[Value]:
        """What a part leaves in memory for others: contributions and what they are linked to, then the loss, which is looked at."""
        graph, linked, own = self.parts[part], set(self.links.values()), set(self.outputs)
        found = dict.fromkeys(v for v in graph.outputs if v not in own)
        made = [v for node in graph.nodes for v in node.outputs]
        found.update(dict.fromkeys(v for v in made if v in linked))
        if self.training and self.loss is not None and self.loss in made:
            found[self.loss] = None
        return list(found)

    def touched(self, part: str) -> dict[Value | str, TensorType]:
        """The tensors that a part has in common with others or might have: by name its states and what a caller gives it, and what it reads of other
        parts and leaves for them."""
        graph = self.parts[part]
        found: dict[Value | str, TensorType] = {s.name: s.input.type for s in graph.states}
        for v in graph.inputs:
            found[self.links.get(v, v.name)] = v.type
        found.update((v, v.type) for v in self.kept(part))
        return found

    # ---- states

    @property
    def ordered(self) -> set[str]:
        """States that micro-batches read as the one before left them: such micro-batches follow one another."""
        folds = schedule.folded(self.schedule)
        written = {s.name for name in folds for s in self.parts[name].states if s.output is not None}
        often = [self.parts[name] for name in schedule.per("micro-batch", self.schedule) if name not in folds]
        return {s.name for graph in often for s in graph.states if s.name in written}

    @property
    def states(self) -> dict[str, State]:
        """Every state once, by name, but for `partial_sums`."""
        found: dict[str, State] = {}
        for graph in self.graphs:
            for state in (s for s in graph.states if s.role != PARTIAL):
                found.setdefault(state.name, state)
                for other in self._copies(state) if state.kind in ("parameter", "buffer") else ():
                    found.setdefault(other.name, other)
        return found

    def _copies(self, state: State) -> Iterator[State]:
        """What other replicas have in place of a state of a part."""
        names = self.own.get(state.name, ())
        for replica, name in enumerate(names):
            if name in names[:replica] or name == state.name:
                continue
            if state.kind in ("parameter", "buffer"):
                yield copy_of(state, int(name.rpartition("@")[2]))
            else:
                owner, start = (self.own[of][replica] if of in self.own else of for of in (state.owner, state.start))
                yield replace(state, name=name, owner=owner, start=start)

    def accumulators(self, ipu: int | None = None) -> list[State]:
        """Sums over an update's micro-batches, zero when it begins."""
        return [s for s in self._folded(ipu) if s.kind == "accumulator" and s.role != PARTIAL]

    def partial_sums(self) -> list[State]:
        """Sums over a replica's micro-batches of an update, each replica's zero when it begins."""
        return [s for s in self._folded(None) if s.role == PARTIAL]

    def statistics(self, ipu: int | None = None) -> list[State]:
        """Buffers that micro-batches change: they have memory of their own until the update, or the call that trains nothing, is committed."""
        return [s for s in self._folded(ipu) if s.kind == "buffer" and s.output is not None]

    def _folded(self, ipu: int | None) -> list[State]:
        found = {s.name: s for name in schedule.folded(self.schedule, ipu) for s in self.parts[name].states}
        return [other for s in found.values() for other in (s, *self._copies(s))]

    def to_text(self) -> str:
        """The schedule, then the parts in its order, a node a line."""
        graphs = [to_text(g) for _, g in self.running if g.nodes or g is self.graphs[0]]
        return "\n\n".join([f"schedule\n{schedule.to_text(self.schedule, 2)}", *graphs])
