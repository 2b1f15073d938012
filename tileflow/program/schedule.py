"""The schedule of a Program: which part runs when, how often, for which micro-batch and on which IPU.

It is data, a small tree. The engine, the tile machine, tile-exact mode and the trace are interpreters of it, so whatever runs in another
order (stages of a pipeline, phases, updates that may be skipped) is another tree, written once.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Counter = Literal["micro-batch", "update"]
"""What a Repeat counts, from the start of a call on. Inputs, outputs and random streams follow micro-batches, hyper-parameters updates."""


@dataclass(frozen=True)
class Run:
    """A part runs once, for the micro-batch (or update) that is `ahead` of the counter. Runs with another `ahead` have memory of their own."""

    part: str
    ahead: int = 0
    ipu: int = 0


@dataclass(frozen=True)
class Fold:
    """A part adds what micro-batch `ahead` left to states that wait for the Commit. Folds keep the order of the micro-batches."""

    part: str
    ahead: int = 0
    ipu: int = 0


@dataclass(frozen=True)
class Stream:
    """What a part has for later leaves the chip for streaming memory after it has run, or (load) what it reads from there comes back before it
    runs. phase: the part's number; tensors leave only where the part that touches them next is more than `LIVE_PHASES` later."""

    part: str
    load: bool
    phase: int
    ipu: int = 0


LIVE_PHASES = 2
"""A tensor stays on the chip where the phase that touches it next has a number at most so much higher (PopART: [n, n + 2])."""


@dataclass(frozen=True)
class Wave:
    """Runs that may be side by side: none reads what another writes; and what passes to and from streaming memory meanwhile."""

    runs: tuple[Run | Stream, ...]


@dataclass(frozen=True)
class Begin:
    """An update begins: accumulators are zero, and what else folds change is what was committed last."""

    ipu: int = 0


@dataclass(frozen=True)
class Commit:
    """What folds have changed (running statistics, buffers) takes effect."""

    ipu: int = 0


@dataclass(frozen=True)
class Exchange:
    """Of several processes: what a part has left of the micro-batches up to `ahead` of the counter comes from those
    that ran it. `done`: nobody here reads it any more. In no program, only in the schedule of one process
    (`dealing`)."""

    part: str
    ahead: int
    done: bool = False


@dataclass(frozen=True)
class Join:
    """Of several processes: of what a fold has summed up in slices, each by its owner, every process gets all. As an
    Exchange in no program."""

    part: str


@dataclass(frozen=True)
class Repeat:
    """`times` turns of the steps; after each the counter moves on `by` as many as a turn has done (0: of its
    micro-batches there are none)."""

    times: int
    steps: tuple[Step, ...]
    counts: Counter
    by: int = 1


@dataclass(frozen=True)
class Atomic:
    """Steps that are done all or none: what must not be written is refused before the first, and nothing interrupts them."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Refresh:
    """Steps that depend on states only: done at the start of a call where states have changed since they were done last."""

    steps: tuple[Step, ...]


Leaf = Run | Fold | Stream | Begin | Commit | Exchange | Join
Step = Leaf | Wave | Repeat | Atomic | Refresh
Steps = tuple[Step, ...]


def one_by_one(micro_batches: int, updates: int | None, writes: bool = False) -> Steps:
    """A call on one IPU: micro-batch after micro-batch.

    Args:
        micro_batches: of an update; of the call where nothing is trained.
        updates: of the call; None: nothing is trained.
        writes: micro-batches change states where nothing is trained, too.
    """
    steps: Steps = (Run("micro"), Fold("fold"))
    if updates is None:
        turns = Repeat(micro_batches, steps if writes else steps[:1], "micro-batch")
        return whole_call((Refresh((Run("prologue"),)), turns), (0,) if writes else ())
    update = (Begin(), Run("prologue"), Repeat(micro_batches, steps, "micro-batch"), Atomic((Run("update"), Commit())))
    return Repeat(updates, update, "update"),


ACCUMULATE, REDUCE = "accumulate", "reduce"


def replicas_first(steps: Steps, replicas: int) -> Steps:
    """The schedule `one_by_one` of a training in which each replica sums up its own micro-batches (`ACCUMULATE`), and
    an update begins with the sums of all replicas, in order (`REDUCE`): a turn that moves no counter."""
    (updates,) = steps
    assert isinstance(updates, Repeat), "a training"
    begin, prologue, turns, atomic = updates.steps
    assert isinstance(turns, Repeat), "its micro-batches"
    run, fold = turns.steps
    sums = Repeat(1, tuple(Fold(REDUCE, ahead=r) for r in range(replicas)), "micro-batch", 0)
    return replace(updates, steps=(begin, prologue, replace(turns, steps=(run, Fold(ACCUMULATE), fold)), sums, atomic)),


def whole_call(steps: Steps, ipus: Sequence[int]) -> Steps:
    """The steps of a call that trains nothing; what micro-batches change on these IPUs takes effect with all of it."""
    return (*(Begin(i) for i in ipus), *steps, *([Atomic(tuple(Commit(i) for i in ipus))] if ipus else []))


def with_replicas(steps: Steps, replicas: int, weights: bool) -> Steps:
    """The schedule in which a turn is a micro-batch of each replica, side by side, and their folds in order. With `weights` of their own, what runs
    once for all micro-batches runs once for each replica, but for what is atomic."""
    return tuple(_replicated(step, replicas, weights) for step in steps)


def _replicated(step: Step, replicas: int, weights: bool) -> Step:
    if isinstance(step, Repeat) and _is_wavable(step):
        return Repeat(step.times // replicas, _wave(step.steps, replicas), step.counts, replicas)
    if isinstance(step, Repeat | Refresh):
        return replace(step, steps=with_replicas(step.steps, replicas, weights))
    return _wave((step,), replicas)[0] if weights and isinstance(step, Run) else step


# ---- questions that interpreters share


@dataclass(frozen=True)
class Visit:
    """A run or a fold as it stands in a schedule.

    times: how often it runs when the schedule runs once; 0 where states must have changed first. inside: the Repeats around it, outermost
    first. alone: in no Wave. atomic: it is done whole or not at all.
    """

    step: Run | Fold
    times: int
    inside: tuple[Repeat, ...]
    alone: bool
    atomic: bool


def visits(steps: Steps) -> Iterator[Visit]:
    """Every run and fold of a schedule, in order."""
    return _visits(steps, 1, (), False)


def _visits(steps: Steps, times: int, inside: tuple[Repeat, ...], atomic: bool) -> Iterator[Visit]:
    for step in steps:
        if isinstance(step, Run | Fold):
            yield Visit(step, times, inside, True, atomic)
        elif isinstance(step, Wave):
            yield from (Visit(run, times, inside, False, atomic) for run in step.runs if isinstance(run, Run))
        elif isinstance(step, Repeat):
            yield from _visits(step.steps, times * step.times, (*inside, step), atomic)
        elif isinstance(step, Atomic):
            yield from _visits(step.steps, times, inside, True)
        elif isinstance(step, Refresh):
            yield from _visits(step.steps, 0, inside, atomic)


def parts(steps: Steps) -> list[str]:
    """The names of the parts, in the order in which they first run."""
    return list(dict.fromkeys(v.step.part for v in visits(steps)))


def folded(steps: Steps, ipu: int | None = None) -> list[str]:
    """The names of the parts that are folded, on one IPU or on all."""
    return list(dict.fromkeys(v.step.part for v in visits(steps) if isinstance(v.step, Fold) and ipu in (None, v.step.ipu)))


def atomic(steps: Steps) -> list[str]:
    """The names of the parts that are done whole or not at all."""
    return list(dict.fromkeys(v.step.part for v in visits(steps) if v.atomic))


def in_flight(steps: Steps) -> dict[str, int]:
    """How many runs of each part have memory at the same time."""
    found: dict[str, int] = {}
    for v in visits(steps):
        if isinstance(v.step, Run):
            found[v.step.part] = max(found.get(v.step.part, 0), v.step.ahead + 1)
        else:
            found.setdefault(v.step.part, 1)
    return found


def in_waves_at_once(steps: Steps) -> dict[str, int]:
    """How many runs of each part are in one wave, at most: 1 for those that are in none."""
    found = dict.fromkeys(parts(steps), 1)
    for wave in waves(steps):
        names = [run.part for run in wave.runs if isinstance(run, Run)]
        for name in names:
            found[name] = max(found[name], names.count(name))
    return found


def waves(steps: Steps) -> Iterator[Wave]:
    """Every wave of a schedule, in order."""
    for step in steps:
        if isinstance(step, Wave):
            yield step
        elif isinstance(step, Repeat | Atomic | Refresh):
            yield from waves(step.steps)


def depths(steps: Steps) -> dict[tuple[str, str], int]:
    """Of a part and one that runs with it or after it: how many micro-batches' results of the first must be there so that the other finds its own.

    A part that runs `d` micro-batches before another needs a stash of d + 1: the one that is made, and those that wait. What a wave runs may be in
    any order; runs of one part in a wave need a place each.

    Args:
        steps: the schedule that runs, never its `period`, which is without the Repeats whose counters runs are ahead of. The time it takes does not
            grow with their turns: from the first turn on that changes nothing, the others do the same.
    """
    found: dict[tuple[str, str], int] = {}
    _follow(steps, None, {}, found)
    return found


def _follow(steps: Steps, counter: Counter | None, latest: dict[str, int], found: dict[tuple[str, str], int]) -> None:
    """What `depths` finds in these steps. latest: how far beyond the counter of micro-batches the results of each part reach."""
    for step in steps:
        if isinstance(step, Repeat):
            for _ in range(step.times):
                before = dict(latest)
                _follow(step.steps, step.counts, latest, found)
                if step.counts == "micro-batch":
                    latest.update({name: max(0, at - step.by) for name, at in latest.items()})
                if latest == before:
                    break
        elif isinstance(step, Atomic | Refresh):
            _follow(step.steps, counter, latest, found)
        else:
            leaves = step.runs if isinstance(step, Wave) else (step,)
            now = [(leaf.part, _at(leaf, counter, "micro-batch"))
                   for leaf in leaves if isinstance(leaf, Run | Fold | Exchange)]
            for name, at in now:
                latest[name] = max(latest.get(name, 0), at)
            for name, at in now:
                for other, most in latest.items():
                    found[other, name] = max(found.get((other, name), 1), most - at + 1)


def overwritten(steps: Steps, slots: Mapping[tuple[str, str], int]) -> list[tuple[str, str]]:
    """Of pairs of a part and one that reads its results, each micro-batch's in the slot of its number: those whose `slots` are too few, since a slot
    holds another micro-batch when it is read, or may do so, as what a wave runs may be in any order. Empty: a plan with so many can be run.

    Args:
        slots: what comes from other processes has one for each micro-batch of a turn; with fewer it is read where it
            was made.
        steps: the schedule that runs. Of its Repeats as many turns are looked at as runs can be ahead of the counter, and two updates.
    """
    found: dict[tuple[str, str], None] = {}
    held: dict[tuple[str, str, int], int] = {}
    for together in _moments(steps, {"micro-batch": 0, "update": 0}, None, 2 + max(in_flight(steps).values(), default=0)):
        ran = [(m.step.part, m.micro_batch) for m in together if isinstance(m.step, Run | Fold)]
        wanted = [(pair, (*pair, at % n), at) for pair, n in slots.items() for part, at in ran if part == pair[1]]
        found.update((pair, None) for pair, slot, at in wanted if held.get(slot) != at)
        come = [(m.step, m.micro_batch) for m in together if isinstance(m.step, Exchange)]
        for pair, n in slots.items():
            new = [at for part, at in ran if part == pair[0]]
            new += [at - i for step, at in come if step.part == pair[0] and step.ahead < n
                    for i in range(step.ahead + 1)]
            made = {at % n: at for at in new}
            if len(made) < len(new):
                found[pair] = None
            held.update(((*pair, slot), at) for slot, at in made.items())
        found.update((pair, None) for pair, slot, at in wanted if held.get(slot) != at)
    return list(found)


def per(counter: Counter, steps: Steps) -> list[str]:
    """The names of the parts that run for each micro-batch, or each update."""
    return list(dict.fromkeys(v.step.part for v in visits(steps) if v.inside and v.inside[-1].counts == counter))


def period(steps: Steps) -> Steps:
    """What figures are given for: one weight update; where nothing is trained one micro-batch, or, where these overlap, a call.

    Asked by those that count (cycles, samples, how often a part runs, a report). What is to run, and what must have room meanwhile (`depths`,
    `in_flight`), is asked of the schedule itself: runs are ahead of the counter of a Repeat that a period may be without.
    """
    repeats = [step for step in steps if isinstance(step, Repeat)]
    return repeats[0].steps if len(repeats) == 1 else steps


def times(steps: Steps) -> dict[str, int]:
    """How often each part runs when these steps run once."""
    found: dict[str, int] = {}
    for v in visits(steps):
        found[v.step.part] = found.get(v.step.part, 0) + v.times
    return found


def elapsed(steps: Steps, cycles: Mapping[str, int], crossing: Mapping[str, int] | None = None) -> int:
    """Cycles that steps take, `cycles` being those of one run of each part (and of each Stream, by its `key`). Steps follow one another; in a wave
    each IPU does its own runs and the folds that follow them.

    Args:
        crossing: what a part's results then take from IPU to IPU, all of them at once.
    """
    total = 0
    for together in rounds(steps):
        if len(together) > 1 or isinstance(together[0], Run | Fold | Stream | Wave):
            total += max(busy(together, cycles).values(), default=0) + exchanged(together, crossing or {})
            continue
        step = together[0]
        if isinstance(step, Repeat):
            total += step.times * elapsed(step.steps, cycles, crossing)
        elif isinstance(step, Atomic):
            total += elapsed(step.steps, cycles, crossing)
    return total


def rounds(steps: Steps) -> Iterator[Steps]:
    """The steps one after the other; a wave with the folds that follow it, and folds that follow one another, each IPU's being its own affair."""
    at = 0
    while at < len(steps):
        end = at + 1
        while isinstance(steps[at], Wave | Fold) and end < len(steps) and isinstance(steps[end], Fold):
            end += 1
        yield steps[at:end]
        at = end


def key(leaf: Run | Fold | Stream) -> str:
    """What a leaf goes by where cycles are listed: its part; a Stream by "load" or "store" and its part."""
    return f"{'load' if leaf.load else 'store'} {leaf.part}" if isinstance(leaf, Stream) else leaf.part


def exchanged(steps: Steps, crossing: Mapping[str, int]) -> int:
    """How long the results of runs and waves take from IPU to IPU."""
    leaves = [leaf for step in steps for leaf in (step.runs if isinstance(step, Wave) else (step,))]
    return max((crossing.get(leaf.part, 0) for leaf in leaves if isinstance(leaf, Run | Fold)), default=0)


def busy(steps: Steps, cycles: Mapping[str, int]) -> dict[int, int]:
    """How long each IPU works on runs, folds, streams and waves."""
    found: dict[int, int] = {}
    for step in steps:
        for leaf in step.runs if isinstance(step, Wave) else (step,):
            if isinstance(leaf, Run | Fold | Stream):
                found[leaf.ipu] = found.get(leaf.ipu, 0) + cycles.get(key(leaf), 0)
    return found


@dataclass(frozen=True)
class Moment:
    """A step when it runs: the counters of the call, with the step's own `ahead`."""

    step: Leaf
    micro_batch: int
    update: int


def unrolled(steps: Steps, turns: int | None = None) -> Iterator[Moment]:
    """Every step of a call where all states are new, in the order of one that does nothing side by side and has one memory only.

    Args:
        turns: at most so many of a Repeat over micro-batches, and two updates, as a shorter call has them; None: all.
    """
    for together in _moments(steps, {"micro-batch": 0, "update": 0}, None, turns):
        yield from together


def _moments(steps: Steps, counters: dict[Counter, int], counter: Counter | None, turns: int | None) -> Iterator[list[Moment]]:
    """Every step, those of a wave together. turns: at most so many of a Repeat over micro-batches, and two updates; None: all."""
    for step in steps:
        if isinstance(step, Repeat):
            for _ in range(step.times if turns is None else min(step.times, turns if step.counts == "micro-batch" else 2)):
                yield from _moments(step.steps, counters, step.counts, turns)
                counters[step.counts] += step.by
        elif isinstance(step, Atomic | Refresh):
            yield from _moments(step.steps, counters, counter, turns)
        else:
            yield [Moment(leaf, *(counters[c] + _at(leaf, counter, c) for c in ("micro-batch", "update")))
                   for leaf in (step.runs if isinstance(step, Wave) else (step,)) if not isinstance(leaf, Stream)]


def _at(leaf: Leaf, counter: Counter | None, counts: Counter) -> int:
    """How far a step is ahead of what `counts` counts, where the innermost Repeat around it counts `counter`."""
    return leaf.ahead if isinstance(leaf, Run | Fold | Exchange) and counter == counts else 0


# ---- schedules from schedules


def in_one_memory(steps: Steps) -> Steps:
    """The schedule for a machine with one memory: nothing passes to and from streaming memory, and what is side by side for one micro-batch alone
    follows one another, as micro-batches side by side are more."""
    found: list[Step] = []
    for step in steps:
        if isinstance(step, Repeat | Atomic | Refresh):
            found.append(replace(step, steps=in_one_memory(step.steps)))
        elif isinstance(step, Wave) and len({run.ahead for run in step.runs if isinstance(run, Run)}) < 2:
            found += [run for run in step.runs if isinstance(run, Run)]
        elif not isinstance(step, Stream):
            found.append(step)
    return tuple(found)


def widest(steps: Steps) -> int:
    """How many micro-batches may be computed side by side: the turns of the Repeats that `in_waves` turns into waves."""
    found = (r for v in visits(steps) for r in v.inside if _is_wavable(r))
    return max((r.times for r in found), default=1)


def in_waves(steps: Steps, lanes: int) -> Steps:
    """The schedule with up to `lanes` micro-batches in a wave, and their folds after it in order. Counters and results are the same."""
    return tuple(other for step in steps for other in _waved(step, lanes))


def _waved(step: Step, lanes: int) -> Steps:
    if isinstance(step, Repeat) and _is_wavable(step):
        lanes = min(lanes, step.times)
        if lanes == 1:
            return step,
        full, rest = divmod(step.times, lanes)
        whole = Repeat(full, _wave(step.steps, lanes), step.counts, lanes)
        return (whole, Repeat(1, _wave(step.steps, rest), step.counts, rest)) if rest else (whole,)
    if isinstance(step, Repeat | Atomic | Refresh):
        return replace(step, steps=in_waves(step.steps, lanes)),
    return step,


def _is_wavable(repeat: Repeat) -> bool:
    """Runs, then folds, for one micro-batch a turn: a run writes memory of its own only."""
    kinds = [type(s) for s in repeat.steps]
    runs = kinds.count(Run)
    return repeat.counts == "micro-batch" and repeat.by == 1 and runs > 0 and kinds == [Run] * runs + [Fold] * (len(kinds) - runs)


def _wave(steps: Steps, lanes: int) -> Steps:
    runs = [s for s in steps if isinstance(s, Run)]
    folds = [s for s in steps if isinstance(s, Fold)]
    waves = tuple(Wave(tuple(replace(run, ahead=i) for i in range(lanes))) for run in runs)
    return *waves, *(replace(f, ahead=i) for i in range(lanes) for f in folds)


# ---- as text and as plain data


def to_text(steps: Steps, indent: int = 0) -> str:
    """A step a line."""
    return "\n".join(line for step in steps for line in _lines(step, indent))


def _lines(step: Step, indent: int) -> list[str]:
    start = " " * indent
    if isinstance(step, Run | Fold):
        ahead, where = f" + {step.ahead}" if step.ahead else "", f" on IPU {step.ipu}" if step.ipu else ""
        return [f"{start}{type(step).__name__.lower()} {step.part}{ahead}{where}"]
    if isinstance(step, Stream):
        return [f"{start}{key(step)}, phase {step.phase}" + (f" on IPU {step.ipu}" if step.ipu else "")]
    if isinstance(step, Begin | Commit):
        return [f"{start}{type(step).__name__.lower()}"]
    if isinstance(step, Exchange):
        return [f"{start}{'release' if step.done else 'exchange'} {step.part}"]
    if isinstance(step, Join):
        return [f"{start}join {step.part}"]
    head = f"{step.times} times, a turn {step.by} {step.counts}" if isinstance(step, Repeat) else type(step).__name__.lower()
    inner = step.runs if isinstance(step, Wave) else step.steps
    return [start + head, *(line for s in inner for line in _lines(s, indent + 2))]


_KINDS: dict[str, Any] = {kind.__name__.lower(): kind for kind in (Run, Fold, Stream, Wave, Begin, Commit, Repeat, Atomic, Refresh)}


def to_data(steps: Steps) -> list[dict[str, Any]]:
    """As JSON has it: a step is its fields and its `kind`."""
    def plain(step: Step) -> dict[str, Any]:
        fields = {name: getattr(step, name) for name in step.__dataclass_fields__}
        return {"kind": type(step).__name__.lower(), **{k: to_data(v) if isinstance(v, tuple) else v for k, v in fields.items()}}
    return [plain(step) for step in steps]


def from_data(data: Any, at: str = "schedule") -> Steps:
    """The schedule that `to_data` wrote.

    Raises:
        ValueError: it is none; the message says where.
    """
    if not isinstance(data, list):
        raise ValueError(f"{at} is no list")
    return tuple(_step(item, f"{at}[{i}]") for i, item in enumerate(data))


def _step(item: Any, at: str) -> Step:
    kind = _KINDS.get(item.get("kind", "")) if isinstance(item, dict) and isinstance(item.get("kind", ""), str) else None
    if kind is None:
        raise ValueError(f"{at} is no step")
    found: dict[str, Any] = {}
    for name, field in kind.__dataclass_fields__.items():
        value, where = item.get(name), f"{at}.{name}"
        right = {"int": isinstance(value, int) and not isinstance(value, bool) and value >= 0, "str": isinstance(value, str),
                 "bool": isinstance(value, bool), "Counter": value in ("micro-batch", "update")}.get(field.type, True)
        if not right:
            raise ValueError(f"{where} is wrong")
        found[name] = from_data(value, where) if name in ("steps", "runs") else value
    if not all(isinstance(s, Run | Stream) for s in found.get("runs", ())):
        raise ValueError(f"{at}.runs has more than runs and streams")
    made: Step = kind(**found)
    return made
