"""The Plan: all graphs of a Program as rows over named regions, still without addresses, so that sessions can share it."""
from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..graph import PARTIAL, Graph, Value
from ..graph.collector import without_collector
from ..graph.composite import declares
from ..kernels.isa import cpu
from ..kernels.machine.leaf import Leaf
from ..memory import budget
from ..memory.alignment import padded_nbytes
from ..program.dealing import ReplicaShare, dealt
from ..program.program import Caller, Program
from ..program.schedule import (
    ACCUMULATE,
    REDUCE,
    Fold,
    Steps,
    Wave,
    atomic,
    depths,
    in_flight,
    in_one_memory,
    in_waves,
    in_waves_at_once,
    overwritten,
    per,
    to_text,
    widest,
)
from ..system.errors import OptionError, see
from ..system.text import one_line
from .memory import side_by_side
from .passes import PassSetting, host_program, part_forms
from .row import Lowered, Place
from .rows import lower
from .shards import Cuts, Shards, divided, kept_by_owners, refuse_elsewhere
from .slices import Slices, owned
from .tasks import Task, beside, tasks, turns


@dataclass
class Plan:
    """Rows by part, and the program's schedule as the host runs it: `lanes` micro-batches side by side, or (lanes = 1) one at a time over all
    workers.

    checks: by part, the rows that refuse what an atomic part must not write (see `lower.guard`). Arenas are called as parts and checks are.
    """

    program: Program
    schedule: Steps
    parts: dict[str, Lowered]
    checks: dict[str, Lowered]
    lanes: int
    workers: int
    stashes: dict[Value, int] = field(default_factory=dict)
    """Values that a stage hands to others, with the number of micro-batches that there is room for."""
    lane_bytes: int = 0
    """What lanes take or would take of their own, by which it was decided whether there are several; 0: nothing was
    decided."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By pass of the lowering, the time it took."""
    share: ReplicaShare | None = None
    """Of one of several processes: which micro-batches it computes; what all have left is exchanged. None: it computes
    all."""
    slices: Slices = field(default_factory=Slices)
    """Of several processes: what each of them folds a slice of."""
    shards: Shards = field(default_factory=Shards)
    """Of several processes: what each of them keeps and updates a slice of."""
    in_order: bool = False
    """Nothing is side by side but the chunks of a row: one worker does all, or Python has a part in it, which is to be
    called in one order."""

    @property
    def micro(self) -> Lowered:
        """The model's own step."""
        return self.parts["micro"]

    @property
    def lowered(self) -> dict[str, Lowered]:
        """Parts and checks by the names of their arenas."""
        return {part.arena: part for part in (*self.parts.values(), *self.checks.values())}

    @functools.cached_property
    def in_flight(self) -> dict[str, int]:
        """How many arenas there are of each part and check."""
        return {**dict.fromkeys(self.lowered, 1), **_flying(self.program, self.schedule)}

    @functools.cached_property
    def cost(self) -> dict[str, float]:
        """Nanoseconds that a run of each part takes on one core, estimated."""
        return {name: sum(row.cost for row in part.every_row()) for name, part in self.parts.items()}

    @functools.cached_property
    def _turns(self) -> list[str]:
        """The order of a wave's parts, where one worker does them all."""
        if self.program.caller is None or not self.in_order:
            return []
        touched = {name: self.program.touched(name) for name in self.parts}
        return turns(beside(self.schedule),
                     lambda a, b: sum(padded_nbytes(t) for v, t in touched[a].items() if v in touched[b]))

    def tasks(self, wave: Wave, folds: Sequence[Fold]) -> tuple[list[Task], Sequence[Fold]]:
        """What of a wave and of the folds that follow it is side by side, and the folds that come after it (see `lower.tasks`)."""
        return tasks(wave, folds, self._turns, self.cost)

    @functools.cached_property
    def memories(self) -> dict[str, list[tuple[str, int]]]:
        """By part and check: the name of the memory of each of its arenas. A stage's arena holds nothing when it has run, so stages that never run
        at the same time have the same memory."""
        stages = () if self.program.caller is None else per("micro-batch", self.schedule)
        apart = set() if self.in_order else {*beside(self.schedule)}
        shared = {name for name in stages if not self.parts[name].kept_bytes} - apart
        return {name: [("", i) if name in shared else (name, i) for i in range(n)] for name, n in self.in_flight.items()}

    @functools.cached_property
    def memory(self) -> dict[tuple[str, int], int]:
        """The bytes of each memory."""
        found: dict[tuple[str, int], int] = {}
        for name, memories in self.memories.items():
            for memory in memories:
                found[memory] = max(found.get(memory, 0), self.lowered[name].arena_bytes)
        return found

    def contributed(self, part: str) -> dict[Place, int]:
        """Of what a part leaves, the places of what every process has of all replicas, a slot for each; with the bytes
        of a slot."""
        if part == ACCUMULATE:
            return {Place(("partial", s.name)): padded_nbytes(s.input.type) for s in self.program.partial_sums()}
        return {Place(("stash", v)): padded_nbytes(v.type) for v in self.exchanged}

    @property
    def exchanged(self) -> list[Value]:
        """The values of which every process has all micro-batches of a turn."""
        return [] if self.share is None else [v for v, n in self.stashes.items() if n == self.program.batching.replicas]

    @property
    def common_sums(self) -> Mapping[str, tuple[slice, ...]]:
        """By the names of their accumulators, the sums that lie in memory which all processes have; by rank the bytes
        that a process sums up."""
        return {} if self.share is None or self.share.apart else self.slices.sums

    def arena_of(self, part: str, ahead: int) -> int:
        """Which of its arenas a part's run uses."""
        return ahead % self.in_flight[part]

    def bound_once(self, part: str, ahead: int) -> int:
        """What tells apart the runs of a part whose rows need addresses of their own. A stage's arena is its own and what it reads lies in stashes,
        whose addresses follow the micro-batches; replicas may have states of their own."""
        if self.program.caller is None:
            return ahead
        return self.arena_of(part, ahead) or (ahead % self.program.batching.replicas if self.program.own else 0)

    def leaves(self) -> list[Leaf]:
        """Every distinct leaf that runs, in order of first use: those of rows, and those that these call by address."""
        rows = (row for part in self.lowered.values() for row in part.every_row())
        return list(dict.fromkeys(leaf for row in rows for leaf in row.leaves()))

    def to_text(self) -> str:
        """The schedule, the passes with their times, then rows by part."""
        lines = [f"{self.lanes} lanes, {self.workers} workers", to_text(self.schedule), "passes"]
        lines += [f"  {name:<20} {1e3 * s:8.1f} ms" for name, s in self.seconds.items()]
        for name, part in self.lowered.items():
            lines.append(f"{name}: {part.arena_bytes} bytes")
            lines += [f"  {row.name:<24} n={row.n} cost={row.cost / 1e3:.1f} us  "
                      f"{row.node.origin if row.node else 'copy'}" for row in part.every_row()]
        return "\n".join(lines)


@without_collector
def make_plan(program: Program, workers: int, arithmetic: str = "highest", detect_anomaly: bool = False,
              share: ReplicaShare | None = None, owner: ReplicaShare | None = None) -> Plan:
    """Lower a program for `workers` threads, computed in this arithmetic (`kernels.isa.cpu.precision`).

    detect_anomaly: the first operator that makes NaN or an infinity fails (see `lower.anomaly`).
    share: which of the replicas are computed here, where processes train together.
    owner: whose slices of optimizer states are kept and updated here; None: all states are here, whole.

    Raises:
        OptionError: the program cannot be dealt out to processes, or its optimizer states cannot be divided among them.
    """
    with cpu.precision(arithmetic):
        setting = PassSetting(cpu.current())
        program = host_program(program, setting)
        program = replace(program, schedule=in_one_memory(program.schedule))
        if share is not None and share.deals(program.batching.replicas):
            _check_dealt(program)
            program = replace(program, caller=Caller(tuple(program.inputs), tuple(program.outputs), "fold"))
        else:
            share = None
        if owner is not None and program.own_weights:
            raise OptionError("With option optimizer_sharded processes keep slices of the states of weights that all "
                              "replicas have in common, and with replica_grouping some have weights of their own: "
                              f"leave one of the two out.{see('distributed')}")
        return _choose(program, part_forms(program, setting, detect_anomaly), workers, setting, share, owner)


def _check_dealt(program: Program) -> None:
    """OptionError where a replica's micro-batch needs another's before it."""
    if program.caller is not None:
        raise OptionError("Several processes train replicas of a whole step, and option strategy cuts it into stages, "
                          f"which one process runs: leave one of the two out.{see('distributed')}")
    if program.ordered:
        raise OptionError("Several processes compute micro-batches at the same time, and this model reads in each what "
                          f"the one before wrote ({one_line(', '.join(sorted(program.ordered)))}): train it with one "
                          f"process.{see('distributed')}")


Forms = tuple[Mapping[str, Graph], Mapping[str, Graph]]
"""By part, the graphs that become rows, and those of what refuses beforehand."""


def _choose(program: Program, forms: Forms, workers: int, setting: PassSetting, share: ReplicaShare | None,
            owner: ReplicaShare | None) -> Plan:
    """With lanes for micro-batches side by side, if there is memory for them."""
    most = widest(program.schedule) if share is None else len(share.of(program.batching.replicas))
    lanes = 1 if program.ordered or _hosted(forms) else min(workers, most)
    if lanes > 1:
        plan = _lower(program, forms, lanes, workers, setting, share, owner)
        stashed = sum(n * padded_nbytes(v.type) for v, n in plan.stashes.items())
        lanes_own = {memory for name, n in plan.in_flight.items() if n > 1 for memory in plan.memories[name]}
        nbytes = stashed + sum(plan.memory[memory] for memory in lanes_own)
        chosen = plan if budget.lanes_fit(nbytes) else _lower(program, forms, 1, workers, setting, share, owner)
        return replace(chosen, lane_bytes=nbytes)
    return _lower(program, forms, 1, workers, setting, share, owner)


def _hosted(forms: Forms) -> bool:
    """Whether Python has a part in it."""
    return any(declares(node.op, "host") for graph in forms[0].values() for node in graph.walk())


def _flying(program: Program, steps: Steps) -> dict[str, int]:
    """How many arenas each part needs. What a stage leaves for others is in stashes, so that its arena is free when it has run."""
    return in_flight(steps) if program.caller is None else in_waves_at_once(steps)


def _stashes(program: Program, steps: Steps) -> tuple[dict[Value, int], dict[Value, Value]]:
    """The values that stages hand on, with how many micro-batches of each are on their way in these steps, which are those that run; and of each
    value that is handed on the one in whose stash it lies: one that has its elements lies in the same."""
    if program.caller is None:
        return {}, {}
    often = {*per("micro-batch", steps)}
    maker = {v: name for name in often for node in program.parts[name].nodes for v in node.outputs}
    deep, readers = depths(steps), [(program.links[v], name) for name in often for v in program.parts[name].inputs if v in program.links]
    if program.loss is not None and program.caller.checked:
        readers.append((program.loss, program.caller.checked))
    readers = [(v, name) for v, name in readers if v in maker]
    found = {v: deep[name, name] for name in often for v in program.kept(name)}
    for v, name in readers:
        found[v] = max(found.get(v, 1), deep[maker[v], name])
    same: dict[Value, Value] = {}
    for name in often:
        for node in program.parts[name].nodes:
            viewed = None if node.op.alias is None or len(node.outputs) > 1 else node.inputs[node.op.alias]
            if viewed is not None:
                same[node.outputs[0]] = same.get(viewed, viewed)
    of: dict[Value, Value] = {}
    own = {v: of.setdefault(same.get(v, v), v) for v in found}
    deepest: dict[Value, int] = {}
    for v, n in found.items():
        deepest[own[v]] = max(deepest.get(own[v], 1), n)
    least: dict[tuple[str, str], int] = {}
    for v, name in readers:
        least[maker[v], name] = min(least.get((maker[v], name), deepest[own[v]]), deepest[own[v]])
    assert not overwritten(steps, least), f"stashes between {overwritten(steps, least)} have too few slots"
    return deepest, own


def _lower(program: Program, forms: Forms, lanes: int, workers: int, setting: PassSetting,
           share: ReplicaShare | None, owner: ReplicaShare | None) -> Plan:
    """Rows of all parts. A lane runs its micro-batch alone; everything else may run over all workers and needs their scratch."""
    replicas = program.batching.replicas
    steps = in_waves(program.schedule, lanes) if share is None else dealt(program.schedule, share, replicas, lanes)
    guarded, flying = atomic(steps), _flying(program, steps)
    stashes, stashed = _stashes(program, steps)
    given, waiting = set(program.outputs), {s.name for s in program.statistics()}
    places: dict[Value, Place] = {}

    def outside(graph: Graph) -> dict[Value, Place]:
        found: dict[Value, Place] = {v: Place(("constant", v)) for v in graph.constants}
        for s in graph.states:
            found[s.input] = Place(("partial" if s.role == PARTIAL else "pending" if s.name in waiting else "state",
                                    s.name))
        for v in graph.inputs:
            found[v] = places[program.links[v]] if v in program.links else Place(("io", v.name))
        return found

    def lowered(graph: Graph, arena: str, keep: list[Value], threads: int = workers, writes: bool = False) -> Lowered:
        direct = {v: Place(("io", v.name)) for v in graph.outputs if v in given}
        stash = {v: Place(("stash", stashed[v])) for v in keep if v in stashed}
        keep = [v for v in keep if v not in stash]
        found = lower(graph, arena, outside(graph).get, keep=keep, direct=direct, workers=threads, cpu=setting.cpu,
                      together=writes, stash=stash)
        found.places.update(stash)
        places.update(found.places)
        places.update({v: Place(("arena", found.arena), at) for v, at in side_by_side(keep)[0].items()})
        return found

    parts, checks = {}, {}
    for name, graph in forms[0].items():
        if name in forms[1]:
            checks[name] = lowered(forms[1][name], f"{name}.check", [], writes=True)
        parts[name] = lowered(graph, name, program.kept(name), workers if flying[name] == 1 else 1, name in guarded)
    slices = Slices()
    if share is not None and not program.own:
        (maker, fold) = (ACCUMULATE, REDUCE) if program.partial_sums() else ("micro", "fold")
        sums = [s for s in program.accumulators() if share.apart or not s.start]
        parts[fold], slices = owned({**parts, **{f"{name}.check": part for name, part in checks.items()}}, maker, fold,
                                    sums, share)
    shards = Shards() if owner is None else _divide(program, parts, checks, guarded, owner)
    return Plan(program, steps, parts, checks, lanes, workers, stashes, seconds=setting.seconds, share=share,
                slices=slices, shards=shards, in_order=workers == 1 or _hosted(forms))


def _divide(program: Program, parts: dict[str, Lowered], checks: dict[str, Lowered], guarded: Iterable[str],
            owner: ReplicaShare) -> Shards:
    """Let what updates states be what this process does of it."""
    states, handed = kept_by_owners(program.states.values(), owner), dict[str, Cuts]()
    refuse_elsewhere({name: part for name, part in parts.items() if name not in guarded}, states,
                     program.accumulators())
    for name in guarded:
        parts[name], found = divided(parts[name], states, owner)
        handed |= found
        if name in checks:
            checks[name], _ = divided(checks[name], states, owner, writes=False)
    return Shards(states, handed, owner.rank)
