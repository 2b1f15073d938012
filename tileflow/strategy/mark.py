"""Marks: which stage of the forward pass each node belongs to, from blocks, from patterns, or found by balancing.

Set before autograd, which hands the mark of a node to its gradient's. Nothing changes in the graph.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..graph import Annotation, Graph, Hints, Node, Value, selected
from ..program.batching import Batching
from ..program.staging import PHASED, Liveness, PipelineSchedule, Staging, Strategy
from ..system.errors import OptionError
from . import automatic, rules
from .stages import BESIDE, Stage, default_ipus, parsed

if TYPE_CHECKING:
    from ..options.options import Options

Found = tuple[dict[Node, int], list[int]]
"""The stage of each forward node, and the IPU of each stage."""


@dataclass(frozen=True)
class Marking:
    """The options of execution over several IPUs, by their names (docs/strategies.md).

    bytes_per_ipu: the bound that automatic stages keep; None: none. any_number: of IPUs may be taken, not the vendor's
    powers of two alone.
    """

    strategy: Strategy
    stages: tuple[Stage, ...] = ()
    phases: tuple[int, ...] = ()
    splits: tuple[str, ...] = ()
    auto_pipeline: int | None = None
    auto_stage: str = "same_as_ipu"
    rounded: bool = False
    recompute: bool = True
    liveness: Liveness = "always_live"
    separate_backward: bool = False
    pipeline_schedule: PipelineSchedule = "grouped"
    bytes_per_ipu: int | None = None
    any_number: bool = False

    @classmethod
    def of(cls, options: Options, bytes_per_ipu: int | None = None, any_number: bool = False) -> Marking | None:
        """What the options say; None where everything is to run on one IPU."""
        if options.strategy == "none":
            return None
        return cls(options.strategy, *parsed(options.stages), options.pipeline_splits, options.auto_pipeline, options.auto_stage,
                   options.auto_round_num_ipus, options.pipeline_recompute, options.tensors_liveness, options.separate_backward_phase,
                   options.pipeline_schedule, bytes_per_ipu, any_number)

    def mark(self, graph: Graph, batching: Batching, training: bool) -> Staging | None:
        """Mark the forward nodes of a graph and say what the marks mean; None, and no marks, where one IPU does all.

        Raises:
            OptionError: nothing says what the stages are, or they are not what the strategy can run.
        """
        pipelined, phased = self.strategy == "pipelined", self.strategy in PHASED
        self._check()
        stages, ipus = self._stages(graph, batching, training)
        phases: tuple[int, ...] = ()
        if phased:
            phases = self.phases if self._named else tuple(range(len(ipus)))
            if self.strategy == "parallel_phased":
                rules.require_parity(ipus, phases)
            stages, ipus, phases = _in_turns(graph, stages, ipus, phases)
        else:
            stages, ipus = _merged(stages, ipus)
            if self.strategy == "sharded":
                stages, ipus, _ = _in_turns(graph, stages, ipus, [0] * len(ipus))
                stages, ipus = _merged(stages, ipus)
        if len(ipus) < 2 or (not phased and len(set(ipus)) < 2):
            return None
        separate = self.separate_backward or self.liveness != "always_live" or self.pipeline_schedule == "1f1b"
        staging = Staging(self.strategy, tuple(ipus), self.recompute and pipelined and training, self.liveness, separate, phases,
                          self.pipeline_schedule, self.auto_pipeline is not None)
        if not self.any_number:
            rules.ipus_for(ipus, rounded=self.rounded)
        rules.check_flow(graph, stages)
        rules.check_shared(graph, stages, staging)
        if pipelined:
            rules.check_depth(staging, batching, training)
        last = len(ipus) - 1
        for node, stage in stages.items():
            node.ask(Hints(stage=stage, recomputed=f"stage {stage}" if staging.recompute and stage < last else None))
        return staging

    @property
    def _named(self) -> bool:
        """Whether stages are named: by the option stages or by blocks, neither split by patterns nor found by
        balancing."""
        return self.auto_pipeline is None and not self.splits

    def _check(self) -> None:
        """OptionError where options do not go together, whatever the graph."""
        rules.check_liveness(self.strategy, self.liveness)
        wanted = {"stages": self.stages, "pipeline_splits": self.splits, "auto_pipeline": self.auto_pipeline}
        given = [name for name, value in wanted.items() if value]
        if len(given) > 1:
            raise OptionError(f"Options {' and '.join(given)} each say what the stages are; leave all but one of them out.")
        if given and self.auto_stage == "auto_increment":
            raise OptionError(f"Option auto_stage has no effect where {given[0]} says what the stages are; leave one of them out.")
        if self.strategy not in PHASED and len(set(self.phases)) < len(self.phases):
            raise OptionError(f"Option stages: stages side by side ({BESIDE}) are those of one phase, and {self.strategy} execution has no phases.")

    def _stages(self, graph: Graph, batching: Batching, training: bool) -> Found:
        nodes = [n for n in graph.nodes if n.origin.role == "forward"]
        if self._named:
            default = default_ipus(self.strategy, self.phases)
            if self.stages and not any(n.origin.hints.annotation for n in nodes):
                return _by_pattern(graph, nodes, self.stages, default)
            return _blocks(graph, nodes, self.stages, self.auto_stage, self.strategy, default)
        if self.splits:
            found, ipus = _split(graph, nodes, self.splits)
        else:
            assert self.auto_pipeline is not None
            chain = automatic.Chain(graph, [n for n in nodes if not _is_of_loss(n)], [n for n in nodes if _is_of_loss(n)])
            begin, ipus = chain.cut(self.auto_pipeline, automatic.Wanted(
                training, self.recompute and self.strategy == "pipelined", self.pipeline_schedule if self.strategy == "pipelined" else None,
                batching.per_update if training else batching.micro_batches, self.bytes_per_ipu))
            places = {id(n): i for i, n in enumerate(nodes)}
            found = _begun_at(graph, nodes, [places[id(n)] for n in begin])
        return found, default_ipus(self.strategy, range(len(ipus))) if self.strategy in PHASED else ipus


def _merged(stages: dict[Node, int], ipus: list[int]) -> tuple[dict[Node, int], list[int]]:
    """Stages that follow one another on one IPU are one."""
    place: list[int] = []
    kept: list[int] = []
    for ipu in ipus:
        if not kept or kept[-1] != ipu:
            kept.append(ipu)
        place.append(len(kept) - 1)
    return {node: place[stage] for node, stage in stages.items()}, kept


def _in_turns(graph: Graph, stages: dict[Node, int], ipus: list[int], phases: Sequence[int]) -> tuple[dict[Node, int], list[int], tuple[int, ...]]:
    """Break cycles between stages of one phase. Where a stage reads a later one's result, the stages of the phase run
    in turns: a node's turn is the number of times that a path to it changes the stage, so in each turn a stage needs
    results of earlier turns only. The nodes of one stage and turn become a stage of their own, on the same IPU and in
    the same phase.

    Returns:
        stage by node, and the IPU and the phase of each stage.
    """
    made = {v: node for node in graph.nodes for v in node.outputs}
    read = {node: [m for v in node.operands if (m := made.get(v)) is not None and phases[stages[m]] == phases[stage]]
            for node, stage in stages.items()}
    mutual = {phases[stages[node]] for node, others in read.items() if any(stages[m] > stages[node] for m in others)}
    if not mutual:
        return stages, ipus, tuple(phases)
    turn: dict[Node, int] = {}
    entered = set(graph.inputs)
    for node in graph.nodes:
        if phases[stages[node]] in mutual:
            turn[node] = max((turn[m] + (stages[m] != stages[node]) for m in read[node]), default=0)
        if any(v in entered for v in node.operands):
            entered.update(node.outputs)
    latest: dict[Node, int] = {}
    for node in reversed([n for n in graph.nodes if n in turn]):              # what reads weights only goes with the first that reads it
        if node in latest and not any(v in entered for v in node.outputs):
            turn[node] = max(turn[node], latest[node])
        for m in read[node]:
            latest[m] = min(latest.get(m, turn[node]), turn[node] - (stages[m] != stages[node]))
    of = {node: (phases[stage], turn.get(node, 0), stage) for node, stage in stages.items()}
    idle = {*range(len(ipus))} - {*stages.values()}
    pieces = sorted({*of.values(), *((phases[stage], 0, stage) for stage in idle)})
    place = {piece: i for i, piece in enumerate(pieces)}
    return {node: place[piece] for node, piece in of.items()}, [ipus[s] for *_, s in pieces], tuple(phase for phase, *_ in pieces)


def _is_of_loss(node: Node) -> bool:
    return node.origin.sources == ("loss",)


def _spread(graph: Graph, nodes: Sequence[Node], own: dict[Node, int], last: int) -> dict[Node, int]:
    """Stages of all nodes, given those of some (`own`). Any other node gets the latest stage among its operands, where
    the graph's inputs count as stage 0; one that depends on weights and constants only gets the earliest stage among
    its readers; the loss gets stage `last`."""
    made: dict[Value, int | None] = dict.fromkeys(graph.inputs, 0)
    found: dict[Node, int | None] = {}
    for node in nodes:
        read = [s for v in node.operands if (s := made.get(v)) is not None]
        found[node] = own[node] if node in own else last if _is_of_loss(node) else max(read, default=None)
        made.update(dict.fromkeys(node.outputs, found[node]))
    first: dict[Value, int] = {}
    for node in reversed(nodes):
        stage = found[node]
        if stage is None:
            stage = found[node] = min((first[v] for v in node.outputs if v in first), default=0)
        for v in node.operands:
            first[v] = min(first.get(v, last), stage)
    return {node: stage or 0 for node, stage in found.items()}


def _split(graph: Graph, nodes: Sequence[Node], splits: Sequence[str]) -> Found:
    """A new stage begins with the first node that each pattern fits."""
    begin = [nodes.index(next(iter(selected(nodes, [pattern], "pipeline_splits")))) for pattern in splits]
    if sorted(set(begin)) != begin:
        raise OptionError(f"Option pipeline_splits: {', '.join(splits)} must fit nodes in the order in which they run, each another; they are the "
                          f"nodes {', '.join(map(str, begin))}.")
    return _begun_at(graph, nodes, begin), list(range(len(begin) + 1))


def _begun_at(graph: Graph, nodes: Sequence[Node], begin: Sequence[int]) -> dict[Node, int]:
    """Stages of all nodes, given the indices into `nodes` at which stages 1, 2, ... begin; nodes that depend on weights
    only get their readers' stage."""
    entered, own, stage = set(graph.inputs), {}, 0
    for i, node in enumerate(nodes):
        while stage < len(begin) and i >= begin[stage]:
            stage += 1
        if any(v in entered for v in node.operands):
            entered.update(node.outputs)
            if not _is_of_loss(node):
                own[node] = stage
    return _spread(graph, nodes, own, len(begin))


def _by_pattern(graph: Graph, nodes: Sequence[Node], stages: Sequence[Stage], default: Sequence[int]) -> Found:
    """Stages by patterns of nodes' and layers' names; what fits none is of the last stage that it reads."""
    own: dict[Node, int] = {}
    for i, stage in enumerate(stages):
        for pattern in stage.blocks:
            for node in selected(nodes, [pattern], "stages"):
                if own.setdefault(node, i) != i:
                    raise OptionError(f"{node.origin} associated with more than one stage.")
    return _spread(graph, nodes, own, len(stages) - 1), [d if s.ipu_id is None else s.ipu_id for s, d in zip(stages, default, strict=True)]


def _blocks(graph: Graph, nodes: Sequence[Node], stages: Sequence[Stage], auto: str, strategy: str, default: Sequence[int]) -> Found:
    """Stages by the blocks in which layers were recorded."""
    noted = [(n, n.origin.hints.annotation) for n in nodes if n.origin.hints.annotation is not None]
    if not noted:
        raise OptionError(f"Option strategy {strategy}: nothing says what the stages are; give stages or pipeline_splits (patterns of names), "
                          "auto_pipeline (how many), or let the network's layers be in blocks (tileflow.nn.Block, begin_block).")
    if any(a.block is None for _, a in noted):
        raise OptionError("No active Block, all the ops must belong to a Block")
    if strategy in PHASED and not stages:
        raise OptionError("There is currently no AutoStage for PhasedExecution, please explicitly specify the phases")
    before = nodes.index(noted[0][0]) > 0                         # what comes before the first block is of stage 0
    place, ipus = _named(noted, stages, default) if stages else _counted(noted, before) if auto == "auto_increment" else _by_ipu(noted)
    own = {node: place[a.block] for node, a in noted if a.block is not None and not _is_of_loss(node)}
    return _spread(graph, nodes, own, len(ipus) - 1), ipus


Noted = Sequence[tuple[Node, Annotation]]
Numbered = tuple[dict[str, int], list[int]]


def _named(noted: Noted, stages: Sequence[Stage], default: Sequence[int]) -> Numbered:
    """The stage of each block, where stages are given: a Stage's IPU goes before its blocks'."""
    place = {name: i for i, stage in enumerate(stages) for name in stage.blocks}
    asked: dict[int, int] = {}
    for _, a in noted:
        if a.block not in place:
            raise OptionError(f"Unknown Block '{a.block}' list of expected Blocks: [{', '.join(place)}]")
        if a.ipu is not None:
            asked.setdefault(place[a.block], a.ipu)
    missing = sorted({*range(len(stages))} - {place[a.block] for _, a in noted if a.block is not None})
    if missing:
        raise OptionError(f"The set of pipeline stages for all Ops contains {len(stages) - len(missing)} stages, but stage {missing[0]} is missing")
    return place, [asked.get(i, default[i]) if s.ipu_id is None else s.ipu_id for i, s in enumerate(stages)]


def _counted(noted: Noted, before: bool) -> Numbered:
    """A stage for each block, in their order. Blocks that begin in `forward()` leave stage 0 to what is before them, if there is anything."""
    place: dict[str, int] = {}
    ipus: list[int] = [0] if before else []
    for _, a in noted:
        if a.block is not None and a.block not in place:
            place[a.block] = len(ipus)
            ipus.append(len(ipus) if a.ipu is None else a.ipu)
    return place, ipus


def _by_ipu(noted: Noted) -> Numbered:
    """The stage of each block is its IPU."""
    place: dict[str, int] = {}
    for _, a in noted:
        if a.ipu is None:
            raise OptionError(f"AutoStage.SAME_AS_IPU was selected but no IPU was specified for block {a.block}")
        if a.block is not None:
            place.setdefault(a.block, a.ipu)
    count = max(place.values()) + 1
    missing = sorted({*range(1, count)} - {*place.values()})
    if missing:
        raise OptionError(f"The set of pipeline stages for all Ops contains {count - len(missing)} stages, but stage {missing[0]} is missing")
    return place, list(range(count))
