"""Automatic stages: a forward pass as a chain, what each piece of it takes and holds, and the cut whose slowest stage is as fast as it can be."""
from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from ..graph import Graph, Node, Value
from ..program.staging import PipelineSchedule
from ..system.errors import OptionError
from .balance import Holding, balanced
from .cost import cycles

STATES = 4.0
"""Bytes that training holds for each byte of a weight: itself, its accumulator, two moments."""
BACKWARD = 3.0
"""What a forward and a backward pass take, in forward passes."""
TAILS = (0.1, 0.25, 0.5, 0.75)
"""Ends of the chain that may return to the first IPU, as shares of a stage of equal length."""


@dataclass(frozen=True)
class Wanted:
    """What stages are for. schedule: of a pipeline; None: stages follow one another. micro_batches: that go through before the pipeline drains.
    bound: bytes of an IPU; None: none."""

    training: bool
    recompute: bool
    schedule: PipelineSchedule | None
    micro_batches: int
    bound: int | None

    def waiting(self, stage: int, stages: int) -> int:
        """How many micro-batches' activations a stage holds at once (`strategy.pipelined`)."""
        if not self.training or self.schedule is None:
            return 1
        return stages - stage if self.schedule == "1f1b" else 2 * (stages - 1 - stage) + 1

    def again(self, stage: int, stages: int) -> bool:
        """Whether a stage is computed again for its backward pass."""
        return self.training and self.recompute and stage < stages - 1


@dataclass(frozen=True)
class _StageCut:
    length: float
    begin: list[int]
    ipus: list[int]


class Chain:
    """The forward nodes that depend on inputs, in their order, with cycles and bytes of each; those of the loss count with the last."""

    def __init__(self, graph: Graph, nodes: Sequence[Node], loss: Sequence[Node]) -> None:
        self.nodes: list[Node] = []
        entered = set(graph.inputs)
        for node in nodes:
            if any(v in entered for v in node.operands):
                entered.update(node.outputs)
                self.nodes.append(node)
        self.costs = [cycles(node) for node in self.nodes]
        if self.costs:
            self.costs[-1] += sum(map(cycles, loss))
        self.readers = _readers(graph, self.nodes)
        self.made = [0.0 if node.op.alias is not None else float(sum(v.type.nbytes for v in node.outputs)) for node in self.nodes]
        self.entering = self._entering(graph)

    def _entering(self, graph: Graph) -> list[float]:
        """Bytes that are made, or given, before each node and read at it or later."""
        first = dict.fromkeys(graph.inputs, 0) | {v: i + 1 for i, node in enumerate(self.nodes) for v in node.outputs}
        last = {v: i for i, node in enumerate(self.nodes) for v in node.operands if v in first}
        change = [0.0] * (len(self.nodes) + 1)
        for v, end in last.items():
            if first[v] <= end:
                change[first[v]] += v.type.nbytes
                change[end + 1] -= v.type.nbytes
        return list(itertools.accumulate(change))[:-1]

    def cut(self, count: int, wanted: Wanted) -> tuple[list[Node], list[int]]:
        """The nodes at which stages but the first begin, and the IPU of each stage, of which the last may be the first one's again.

        Among cuts whose stages fit their IPU (weights, states, stashes and activations) the pipeline that takes the fewest cycles; where none does,
        those whose weights and states fit.

        Raises:
            OptionError: there are not so many stages, or weights and states do not fit.
        """
        tied = _tail(self.readers, len(self.nodes))
        ends = dict.fromkeys((len(self.nodes), tied, *(self._shares(count) if wanted.schedule is not None else ())))
        failed: ValueError | None = None
        for activations in (True, False):
            found: list[_StageCut] = []
            for end in ends:
                try:
                    found.append(self._cut(count, end, wanted, activations))
                except ValueError as error:
                    failed = failed or error
            if found:
                best = min(found, key=lambda c: c.length)
                return [self.nodes[i] for i in best.begin], best.ipus
        raise OptionError(f"Option auto_pipeline: {failed}.")

    def _shares(self, count: int) -> list[int]:
        """Where ends begin that are about so long as `TAILS` says, between the readers of no weight."""
        between = {i for places in self.readers.values() for i in range(places[0] + 1, places[-1] + 1)}
        suffix = list(itertools.accumulate(reversed(self.costs)))[::-1]
        found = []
        for share in TAILS:
            at = next((i for i in range(len(suffix) - 1, 0, -1) if suffix[i] >= share * suffix[0] / count and i not in between), None)
            found += [] if at is None else [at]
        return found

    def _cut(self, count: int, end: int, wanted: Wanted, activations: bool) -> _StageCut:
        """The best cut of what is before `end` into so many stages, what follows being one more on the first IPU; ValueError where there is none."""
        if count > end:                     # before there are lists of so many
            raise ValueError(f"{end} pieces of work cannot be {count} stages")
        returns = end < len(self.nodes)
        stages = count + returns
        factors = [(BACKWARD + wanted.again(k, stages) if wanted.training else 1.0) for k in range(count)]
        nbytes, breaks = _held(self.readers, end)
        first = (BACKWARD if wanted.training else 1.0) * sum(self.costs[end:])
        holding = Holding([(STATES if wanted.training else 1.0) * n for n in nbytes])
        if activations:
            waiting = [wanted.waiting(k, stages) for k in range(count)]
            made = [1 if wanted.again(k, stages) else waiting[k] for k in range(count)]
            beyond = sum(self.made[end:]) + self.entering[end] if returns else 0.0
            holding = replace(holding, made=self.made[:end], made_times=made, entering=self.entering[:end], entering_times=waiting, first=beyond,
                              kept=wanted.training)
        begin = balanced(self.costs[:end], count, factors=factors, holding=holding, bound=inf if wanted.bound is None else wanted.bound,
                         breaks=breaks, first=first)
        lengths = [f * sum(self.costs[b:e]) for f, b, e in zip(factors, begin, [*begin[1:], end], strict=True)]
        lengths[0] += first
        rounds = wanted.micro_batches + stages - 1 if wanted.schedule is not None else 1
        return _StageCut(rounds * max(lengths), [*begin[1:], *([end] if returns else [])],
                         [*range(count), *([0] if returns else [])])


def _tail(readers: Mapping[Value, Sequence[int]], count: int) -> int:
    """The index of the first node that reads a weight again after more than half of the chain (tied weights); the
    chain's length where none does."""
    far = [b for places in readers.values() for a, b in itertools.pairwise(places) if 2 * (b - a) > count]
    return min(far, default=count)


def _readers(graph: Graph, chain: Sequence[Node]) -> dict[Value, list[int]]:
    """The places in a chain that read each weight, be it turned before."""
    weights = [s.input for s in graph.states if s.kind in ("parameter", "buffer")]
    sources: dict[Value, set[Value]] = {v: {v} for v in weights}
    inside = set(chain)
    for node in graph.nodes:
        found = set() if node in inside else {w for v in node.operands for w in sources.get(v, ())}
        for v in node.outputs if found else ():
            sources[v] = found
    readers: dict[Value, list[int]] = {}
    for i, node in enumerate(chain):
        for w in {w for v in node.operands for w in sources.get(v, ())}:
            readers.setdefault(w, []).append(i)
    return readers


def _held(readers: Mapping[Value, Sequence[int]], end: int) -> tuple[list[float], list[bool]]:
    """Of a chain's nodes before `end`: bytes of weights, each weight at its first reader (one that is read after `end`
    only, at node 0), and whether a stage may begin at the node, which it may not between readers of one weight."""
    nbytes, breaks = [0.0] * end, [True] * end
    for weight, every in readers.items():
        places = [i for i in every if i < end]
        nbytes[places[0] if places else 0] += weight.type.nbytes
        first = 0 if len(places) < len(every) else places[0]             # what the end reads, too, is on the first IPU
        for i in range(first + 1, places[-1] + 1) if places else ():
            breaks[i] = False
    return nbytes, breaks
