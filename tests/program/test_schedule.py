"""Schedules: order and counts for every batching, waves that keep them, and that engine, tile machine, tile-exact mode and trace read them alike."""
from __future__ import annotations

import ctypes
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from images import rows_of
from tile_programs import handmade

import tileflow
from tileflow import exact, nn, optim, report
from tileflow.executable.image import DUE
from tileflow.kernels.machine import table as rows
from tileflow.kernels.machine.table import Table
from tileflow.program.batching import Batching
from tileflow.program.program import Program
from tileflow.program.schedule import (
    Atomic,
    Begin,
    Commit,
    Fold,
    Moment,
    Refresh,
    Repeat,
    Run,
    Steps,
    Wave,
    elapsed,
    folded,
    from_data,
    in_flight,
    in_waves,
    one_by_one,
    parts,
    per,
    period,
    times,
    to_data,
    to_text,
    unrolled,
    visits,
    widest,
)
from tileflow.report import trace
from tileflow.runtime.executable import make_engine
from tileflow.runtime.host import Host
from tileflow.state import Session
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.machine import analyze

BATCHINGS = [(micro_batches, updates) for micro_batches in (1, 2, 3, 4, 7) for updates in (None, 1, 2, 3)]


def piped(micro_batches: int) -> Steps:
    """Two stages on two IPUs: while the second computes a micro-batch the first computes the next."""
    turn = (Wave((Run("one", 1, 0), Run("two", 0, 1))), Fold("fold", 0, 1))
    return (Run("one"), Repeat(micro_batches - 1, turn, "micro-batch"), Repeat(1, (Run("two", 0, 1), Fold("fold", 0, 1)), "micro-batch"))


def said(moments: Any) -> list[tuple[Any, ...]]:
    """What a schedule does, without what belongs to no part or micro-batch."""
    return [(type(m.step).__name__, getattr(m.step, "part", ""), m.micro_batch, m.update) for m in moments]


# ---- what a schedule does

def test_training_in_full() -> None:
    assert said(unrolled(one_by_one(2, 2))) == [
        ("Begin", "", 0, 0), ("Run", "prologue", 0, 0),
        ("Run", "micro", 0, 0), ("Fold", "fold", 0, 0), ("Run", "micro", 1, 0), ("Fold", "fold", 1, 0),
        ("Run", "update", 2, 0), ("Commit", "", 2, 0),
        ("Begin", "", 2, 1), ("Run", "prologue", 2, 1),
        ("Run", "micro", 2, 1), ("Fold", "fold", 2, 1), ("Run", "micro", 3, 1), ("Fold", "fold", 3, 1),
        ("Run", "update", 4, 1), ("Commit", "", 4, 1)]


def test_inference_in_full() -> None:
    assert said(unrolled(one_by_one(2, None))) == [("Run", "prologue", 0, 0), ("Run", "micro", 0, 0), ("Run", "micro", 1, 0)]


@pytest.mark.parametrize(("micro_batches", "updates"), BATCHINGS)
@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 8])
def test_waves_do_the_same(micro_batches: int, updates: int | None, lanes: int) -> None:
    """Every micro-batch runs once, then is folded once, in order, whatever stands side by side; updates see all of theirs."""
    steps = one_by_one(micro_batches, updates)
    waves = in_waves(steps, lanes)
    moments = list(unrolled(waves))
    every = list(range(micro_batches * (updates or 1)))
    assert Counter(said(moments)) == Counter(said(unrolled(steps)))
    assert [m.micro_batch for m in moments if m.step == Run("micro", getattr(m.step, "ahead", 0))] == every
    folds = [m.micro_batch for m in moments if isinstance(m.step, Fold)]
    assert folds == (every if updates else [])
    done: set[int] = set()
    for m in moments:
        if isinstance(m.step, Fold):
            assert m.micro_batch in done
        elif m.step == Run("update"):
            assert len(done) == micro_batches * (m.update + 1) == m.micro_batch
        elif m.step.__class__ is Run and m.step.part == "micro":                                  # type: ignore[union-attr]
            assert m.update == (m.micro_batch // micro_batches if updates else 0)
            done.add(m.micro_batch)
    for wave in (s for s in walk(waves) if isinstance(s, Wave)):
        assert [run.ahead for run in wave.runs] == list(range(len(wave.runs)))
        assert len(wave.runs) <= lanes
    assert in_flight(waves)["micro"] == min(lanes, micro_batches)
    assert widest(steps) == micro_batches
    assert times(period(waves)) == times(period(steps)) or not updates


def walk(steps: Any) -> Any:
    for step in steps:
        yield step
        yield from walk(getattr(step, "steps", ()))


@pytest.mark.parametrize(("micro_batches", "updates"), BATCHINGS)
def test_questions(micro_batches: int, updates: int | None) -> None:
    steps = one_by_one(micro_batches, updates)
    once = times(period(steps))
    if updates is None:
        assert parts(steps) == ["prologue", "micro"]
        assert once == {"micro": 1}
        assert times(steps) == {"prologue": 0, "micro": micro_batches}, "what depends on states only has run before"
        assert per("micro-batch", steps) == ["micro"]
    else:
        assert parts(steps) == ["prologue", "micro", "fold", "update"]
        assert once == {"prologue": 1, "micro": micro_batches, "fold": micro_batches, "update": 1}
        assert times(steps) == {part: n * updates for part, n in once.items()}
        assert per("micro-batch", steps) == ["micro", "fold"]
        assert folded(steps) == ["fold"]
        assert [v.step.part for v in visits(steps) if v.atomic] == ["update"]
    cycles = {"prologue": 3, "micro": 100, "fold": 7, "update": 11}
    assert elapsed(period(steps), cycles) == sum(n * cycles[part] for part, n in once.items())


def test_stages_overlap() -> None:
    """What the slower IPU takes decides a turn; filling and draining the pipeline take what one stage takes."""
    for first, second in ((10, 4), (4, 10), (5, 5)):
        assert elapsed(piped(6), {"one": first, "two": second, "fold": 1}) == first + 5 * max(first, second + 1) + second + 1
    moments = list(unrolled(piped(6)))
    for part in ("one", "two", "fold"):
        assert [m.micro_batch for m in moments if getattr(m.step, "part", "") == part] == list(range(6))
    assert folded(piped(6), 0) == []
    assert folded(piped(6), 1) == ["fold"]
    assert in_waves(piped(6), 4) == piped(6), "these are waves already"


# ---- as data

SCHEDULES = [one_by_one(3, 2), one_by_one(2, None), in_waves(one_by_one(7, 2), 3), piped(4)]


@pytest.mark.parametrize("steps", SCHEDULES)
def test_schedules_as_data(steps: Steps) -> None:
    assert from_data(to_data(steps)) == steps
    assert len(to_text(steps).splitlines()) >= len(list(visits(steps)))


@pytest.mark.parametrize("damage", [
    None, {}, [1], ["run"], [{"kind": "walk"}], [{"kind": ["run"]}], [{"kind": "run", "part": 3, "ahead": 0, "ipu": 0}],
    [{"kind": "run", "part": "micro", "ahead": -1, "ipu": 0}], [{"kind": "run", "part": "micro", "ahead": True, "ipu": 0}],
    [{"kind": "repeat", "times": 2, "steps": [], "counts": "day", "by": 1}],
    [{"kind": "repeat", "times": 2, "steps": 4, "counts": "update", "by": 1}],
    [{"kind": "wave", "runs": [{"kind": "begin", "ipu": 0}]}], [{"kind": "atomic", "steps": [{"kind": "fold"}]}]])
def test_what_is_no_schedule(damage: Any) -> None:
    with pytest.raises(ValueError, match="schedule"):
        from_data(damage)


# ---- the interpreters agree

class Net(nn.Module):
    """Running statistics, and a weight that is turned once for all micro-batches."""

    def __init__(self) -> None:
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.norm(self.first(x)) @ x.lift(self.last.weight).transpose(1, 0)


def made(training: bool, accumulation: int, iterations: int, threads: int) -> tuple[Any, list[np.ndarray]]:
    """A model and arrays for a call of it."""
    nn.manual_seed(1)
    draw = np.random.default_rng(0)
    x = draw.standard_normal((4 * accumulation * iterations, 6)).astype(np.float32)
    if not training:
        return tileflow.inference_model(Net(), device_iterations=iterations, threads=threads), [x]
    model = tileflow.training_model(Net(), optimizer=optim.AdamW(lr=1e-2), gradient_accumulation=accumulation, device_iterations=iterations,
                                    threads=threads)
    return model, [x, draw.integers(0, 3, len(x))]


def executed(table: Table) -> Counter[Any]:
    """How often a call runs the rows of each owner, by a second interpreter of the table; words that it counts in are as a call leaves them."""
    found: Counter[Any] = Counter()

    def word(address: int) -> Any:
        return ctypes.c_int64.from_address(address)

    def walk(task: int) -> None:
        at, pc = table.tasks[task], 0
        while pc < len(at.rows):
            kind, a, b, c, d, *_ = at.rows[pc]
            after = pc + 1
            if kind == rows.LEAF:
                found[at.owners[pc]] += 1
            elif kind in (rows.REPEAT, rows.AGAIN):
                counter = word(a)
                counter.value += kind == rows.AGAIN
                more = counter.value < (word(c).value if c else b)
                after = (d if more else pc + 1) if kind == rows.AGAIN else (pc + 1 if more else d)
                if not more:
                    counter.value = 0
            elif kind == rows.BRANCH and word(a).value != b:
                after = c
            elif kind == rows.ADVANCE:
                word(a).value += b
            elif kind == rows.SPAWN:
                for child in range(a, a + b):
                    walk(child)
            pc = after
    walk(0)
    return found


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("accumulation", "iterations"), [(1, 1), (1, 3), (2, 1), (3, 2), (5, 2)])
@pytest.mark.parametrize("training", [False, True])
def test_the_interpreters_agree(training: bool, accumulation: int, iterations: int, threads: int) -> None:
    """Runs of each part in a call: the rows of the engine's table, the tile machine's repeats, the operators of tile-exact mode."""
    model, arrays = made(training, accumulation if training else 1, iterations, threads)
    model(*arrays)
    program, engine = model.program, model.engine
    wanted = times(program.schedule)

    counts = Counter[str]()
    for owner, n in executed(engine.table).items():
        counts[owner.part] += n
    for part, n in wanted.items():
        assert counts[part] == n * rows_of(engine, part), part

    tiled = analyze(program, chip("gc200").variant(name="small", tiles=4))
    for step in tiled.steps:
        assert step.repeats * iterations == wanted[step.part]
    assert [s.part for s in tiled.steps] == [part for part in parts(program.schedule) for _ in tiled.program.parts[part].nodes]

    ran: Counter[Any] = Counter()
    plans = {s.node: s.plan for s in tiled.steps}
    feeds = {v.name: a for v, a in zip(program.inputs, arrays, strict=True)}
    before = model.source.session.snapshot()
    exact.execute(tiled.program, plans, feeds, before, exact.Tiles(4, 1 << 20), watch=lambda node, *_: ran.update([node]),
                  scalars=model.optimizer.values if training else None)
    for step in tiled.steps:
        due = step.part == "prologue" and not training                                            # states are new there
        assert ran[step.node] == wanted[step.part] + due, step.node


def test_what_depends_on_weights_only_runs_where_they_changed() -> None:
    model, arrays = made(False, 1, 1, 1)
    model(*arrays)
    engine = model.engine

    def prologue() -> int:
        return sum(n for owner, n in executed(engine.table).items() if owner.part == "prologue")
    assert rows_of(engine, "prologue") > 0
    assert prologue() == 0, "the call above has made it"
    engine.memory.words[DUE] = 1
    assert prologue() == rows_of(engine, "prologue")
    assert prologue() == 0


# ---- one IPU or several

def test_a_trace_of_two_ipus() -> None:
    """Each IPU draws its own runs, and waits for the other at the end of a wave."""
    built = report.build(handmade())
    known = {s["part"] for s in built["steps"]}
    assert known == {"prologue", "micro", "update"}
    turn = (Wave((Run("micro", 1, 0), Run("update", 0, 1))),)
    built["schedule"] = to_data((Run("prologue"), Repeat(3, turn, "micro-batch"), Run("update", 0, 1)))
    built["chip"] = {**built["chip"], "ipus": 2}
    built["steps"] = [{**s, "ipu": int(s["part"] == "update")} for s in built["steps"]]
    report.validate(built, "the report")
    cycles = {part: sum(s["cycles"] for s in built["steps"] if s["part"] == part) for part in known}
    bars = [e for e in trace.build(built)["traceEvents"] if e["ph"] == "X" and "phase" in e["args"]]
    work = [[e for e in bars if e["pid"] == ipu] for ipu in (0, 1)]
    assert sum(e["args"]["cycles"] for e in work[0]) == cycles["prologue"] + 3 * cycles["micro"]
    assert sum(e["args"]["cycles"] for e in work[1]) == 4 * cycles["update"]
    second = 1e6 / built["chip"]["clock_hz"]
    assert work[1][0]["ts"] == pytest.approx(cycles["prologue"] * second, abs=1e-3)
    last = max(e["ts"] + e["dur"] for e in work[1])
    assert last == pytest.approx(second * elapsed(from_data(built["schedule"]), cycles), abs=1e-3)
    for events in work:
        for before, after in itertools.pairwise(sorted(events, key=lambda e: e["ts"])):
            assert after["ts"] >= before["ts"] + before["dur"] - 1e-5


def test_a_program_of_one_step_knows_its_parts() -> None:
    from tileflow.graph import Graph
    program = Program.of(Graph("any"), Batching(4, 2, 3), training=True)
    assert list(program.parts) == ["micro", "prologue", "fold", "update"]
    assert [name for name, _ in program.running] == parts(program.schedule)
    assert program.schedule == one_by_one(2, 3)
    assert Program.of(Graph("any"), Batching(4, 1, 3)).schedule == one_by_one(3, None)
    assert isinstance(program.schedule[0], Repeat)
    assert [type(s) for s in program.schedule[0].steps] == [Begin, Run, Repeat, Atomic]
    assert program.schedule[0].steps[-1] == Atomic((Run("update"), Commit()))
    assert one_by_one(3, None)[0] == Refresh((Run("prologue"),))
    assert Moment(Begin(), 0, 0) == next(unrolled(program.schedule))


def written_out(micro_batches: int, updates: int) -> Steps:
    """All micro-batches of an update before the first fold, each in memory of its own, none in a loop."""
    ahead = range(micro_batches)
    steps = (*(Run("micro", i) for i in ahead), *(Fold("fold", i) for i in ahead))
    update = (Run("prologue"), Begin(), Repeat(1, steps, "micro-batch", micro_batches), Atomic((Run("update"), Commit())))
    return Repeat(updates, update, "update"),


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("steps", [one_by_one(3, 2), in_waves(one_by_one(3, 2), 2), in_waves(one_by_one(3, 2), 3), written_out(3, 2)],
                         ids=["one by one", "waves of two", "waves of three", "written out"])
def test_another_schedule_of_the_same_program_computes_the_same_bits(steps: Steps, threads: int) -> None:
    """The engine runs what it is told; outputs, weights, moments and statistics are those of the usual order."""
    model, arrays = made(True, 3, 2, 1)
    model.compile(*arrays)
    initial = {n: a.copy() for n, a in model.source.session.snapshot().items()}
    wanted = model.run_call(*arrays)
    program = model.program.with_parts({}, schedule=steps)
    session = Session()
    engine = make_engine(program, session, initial, Host(threads))
    found = engine.call(arrays, scalars=model.optimizer.values)
    assert engine.completed == 2
    for a, b in zip(found, wanted, strict=True):
        assert a[-1].tobytes() == b[-1].tobytes()
    for name, array in model.source.session.snapshot().items():
        assert session[name].tobytes() == array.tobytes(), name
    machine = chip("gc200").variant(name="small", tiles=4)
    assert analyze(program, machine).cycles_per_update == analyze(model.program, machine).cycles_per_update
