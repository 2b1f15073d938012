"""Stashes between stages: as deep as the schedule that runs makes them, at any number of threads; the results are then one IPU's."""
from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from random_strategies import Images

import tileflow
from tileflow.kernels.machine import pool
from tileflow.lower import plan
from tileflow.program.batching import Batching
from tileflow.program.schedule import (
    Atomic,
    Fold,
    Refresh,
    Repeat,
    Run,
    Step,
    Steps,
    Wave,
    depths,
    in_one_memory,
    in_waves,
    overwritten,
    period,
)
from tileflow.program.staging import Staging
from tileflow.strategy.cut import BUILDERS
from tileflow.strategy.order import Parts
from tileflow.strategy.phased import numbers
from tileflow.strategy.pipelined import INTERVALS
from tileflow.strategy.stages import ParallelPhasedExecution, Phase, PipelinedExecution, SerialPhasedExecution, Stage

THREADS, ITERATIONS, ROWS = (1, 2, 3, 5), range(1, 10), (1, 8)
FOUR = PipelinedExecution(Stage("a").ipu(0), Stage("b").ipu(1), Stage("c").ipu(2), Stage("d").ipu(3)).to_options()
STRATEGIES: dict[str, dict[str, Any]] = {
    "pipelined": FOUR,
    "kept": {**FOUR, "pipeline_recompute": False},
    "1f1b": {**FOUR, "pipeline_schedule": "1f1b"},
    "back": PipelinedExecution(Stage("a").ipu(0), Stage("b", "c").ipu(1), Stage("d").ipu(0)).to_options(),
    "sharded": {**FOUR, "strategy": "sharded"},
    "serial": SerialPhasedExecution("a", "b", Phase("c", "d"), liveness="off_chip_after_each_phase").to_options(),
    "parallel": ParallelPhasedExecution("a", "b", "c", "d", separate_backward=True).to_options(),
    "groups": ParallelPhasedExecution(Phase(Stage("a"), Stage("b")).ipus(0, 2), Phase(Stage("c"), Stage("d")).ipus(1, 3)).to_options()}
PIPELINES = {"pipelined": 7, "kept": 7, "1f1b": 4, "back": 5}
"""The micro-batches that an update of them takes, at least; inference takes one for each forward stage."""




@pytest.fixture(autouse=True)
def five_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many lanes as are asked for, whatever this machine has: its threads take what they come to."""
    monkeypatch.setenv("NUMBA_NUM_THREADS", str(max(5, pool.most_threads())))


# ---- depths are those of the schedule


def together(steps: Steps) -> Iterator[list[tuple[str, int]]]:
    """Runs and folds of a call, a wave's together, with their micro-batches: a machine that knows nothing of stashes."""
    at = 0

    def walk(inner: Steps, counted: bool) -> Iterator[list[tuple[str, int]]]:
        nonlocal at
        for step in inner:
            if isinstance(step, Repeat):
                for _ in range(step.times):
                    yield from walk(step.steps, step.counts == "micro-batch")
                    at += step.by * (step.counts == "micro-batch")
            elif isinstance(step, Atomic | Refresh):
                yield from walk(step.steps, counted)
            else:
                leaves: tuple[Step, ...] = step.runs if isinstance(step, Wave) else (step,)
                yield [(leaf.part, at + leaf.ahead * counted) for leaf in leaves if isinstance(leaf, Run | Fold)]
    yield from walk(steps, False)


def needed(steps: Steps) -> dict[tuple[str, str], int]:
    """`depths`, turn after turn."""
    latest: dict[str, int] = {}
    found: dict[tuple[str, str], int] = {}
    for moment in together(steps):
        for name, at in moment:
            latest[name] = max(at, latest.get(name, 0))
        for name, at in moment:
            for other in latest:
                found[other, name] = max(found.get((other, name), 1), latest[other] - at + 1)
    return found


def schedule(kind: str, training: bool, count: int, iterations: int, replicas: int = 1) -> Steps | None:
    """Three forward stages in a strategy; None where it takes more micro-batches. count: of an update."""
    strategy, _, variant = kind.partition(" ")
    phases = (0, 1, 2) if "phased" in strategy else ()
    staging = Staging(strategy, (0, 1, 2) if "phased" not in strategy else (0, 1, 0), phases=phases,                 # type: ignore[arg-type]
                      pipeline_schedule=variant or "grouped", separate_backward=variant == "1f1b")                   # type: ignore[arg-type]
    places = staging.places(training)
    if strategy == "pipelined" and (count if training else iterations) < (places if training and not variant else 3):
        return None
    made = Parts(tuple(f"s{i}" for i in range(places)), tuple(f"f{i}" if training else None for i in range(places)),
                 tuple(staging.ipu(i) for i in range(places)), numbers(staging, training), False,
                 tuple(frozenset({i - 1} - {-1}) for i in range(places)), INTERVALS[staging.pipeline_schedule], replicas)
    return BUILDERS[staging.strategy](made, Batching(1, count, iterations, replicas), training)


def handed(steps: Steps) -> set[tuple[str, str]]:
    """The pairs of parts of which the second may read what the first has made."""
    first: dict[str, int] = {}
    for i, moment in enumerate(together(steps)):
        first.update({name: i for name, _ in moment if name not in first and name[0] in "sf"})
    return {(a, b) for a in first for b in first if first[a] < first[b] and a[0] == "s"}


KINDS = ("pipelined", "pipelined 1f1b", "sharded", "serial_phased", "parallel_phased")


def hosted(kind: str) -> Iterator[Steps]:
    """All schedules of a strategy as a host runs them."""
    for training, count, iterations, replicas, lanes in itertools.product((False, True), (1, 3, 4, 5, 8), ITERATIONS, (1, 2), (1, *THREADS)):
        if (training or count == 1) and (iterations <= 3 or not training):
            steps = schedule(kind, training, count, iterations, replicas)
            if steps is not None:
                yield in_waves(in_one_memory(steps), lanes)


@pytest.mark.parametrize("kind", KINDS)
def test_depths_are_those_of_the_whole_schedule_turn_after_turn(kind: str):
    seen = 0
    for steps in hosted(kind):
        deep = depths(steps)
        assert deep == needed(steps)
        assert not overwritten(steps, {pair: deep[pair] for pair in handed(steps)}), "a stash for each pair, as deep as that"
        seen += max(deep.values()) > 1
    assert seen > 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_slot_less_is_found_out(kind: str):
    """For every pair whose results wait or are made side by side, on every schedule."""
    seen = 0
    for steps in hosted(kind):
        deep = depths(steps)
        less = {pair: deep[pair] - 1 for pair in handed(steps) if deep[pair] > 1}
        assert {*overwritten(steps, less)} == {*less}
        seen += len(less)
    assert seen > 20


def test_a_period_says_less_than_the_schedule():
    """Why depths are asked of what runs: two lanes are ahead of the counter of a Repeat that a period of inference is without."""
    steps = in_waves(schedule("sharded", False, 1, 4) or (), 2)
    assert depths(steps)["s0", "s1"] == 2
    assert depths(period(steps))["s0", "s1"] == 1
    assert ("s0", "s1") in overwritten(steps, {("s0", "s1"): 1})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", [False, True])
def test_depths_and_their_check_take_no_time_of_the_turns(kind: str, training: bool):
    """A billion iterations (training: updates) are as deep as ten; a turn each would take hours."""
    few, many = (in_waves(schedule(kind, training, 9, n) or (), 2) for n in (10, 10 ** 9 + 10))
    assert depths(few) == depths(many) == needed(few)
    assert not overwritten(many, {pair: depths(many)[pair] for pair in handed(few)})


# ---- stages give the bits of one IPU


def call(training: bool, threads: int, iterations: int, rows: int, accumulation: int, **options: Any) -> tuple[dict[str, np.ndarray], list[Any]]:
    """Weights after two calls, and what they returned."""
    draw = np.random.default_rng(7)
    net = Images()
    for p in net.parameters():
        p.data = (draw.standard_normal(p.shape) * 0.2).astype(np.float32)
    common: dict[str, Any] = {"micro_batch_size": rows, "device_iterations": iterations, "threads": threads, "seed": 3, "output_mode": "all"}
    common |= options
    if training:
        model: Any = tileflow.training_model(net, gradient_accumulation=accumulation, learning_rate=1e-2, **common)
    else:
        model = tileflow.inference_model(net, **common)
    count = rows * iterations * (accumulation if training else 1)
    x, y = Images.rows(draw, 2 * count), draw.integers(0, 5, 2 * count)
    results = [np.asarray(r) for i in (0, count)
               for r in (model(x[i:i + count], y[i:i + count]) if training else (model(x[i:i + count]),))]
    return net.state_dict(), results


def same(name: str, training: bool, threads: int, iterations: int, rows: int, whole: dict[Any, Any]) -> None:
    """A strategy beside one IPU and one thread, whose results `whole` keeps."""
    accumulation = PIPELINES.get(name, 3)
    key = training, iterations, rows, accumulation * training
    if key not in whole:
        whole[key] = call(training, 1, iterations, rows, accumulation)
    wanted, found = whole[key], call(training, threads, iterations, rows, accumulation, **STRATEGIES[name])
    said = f"{name}, training={training}, threads={threads}, device_iterations={iterations}, micro_batch_size={rows}"
    for weight, array in wanted[0].items():
        np.testing.assert_array_equal(found[0][weight], array, err_msg=f"{weight}: {said}")
    for a, b in zip(wanted[1], found[1], strict=True):
        np.testing.assert_array_equal(b, a, err_msg=said)


def can_run(name: str, training: bool, iterations: int) -> bool:
    return training or name not in PIPELINES or iterations >= (3 if name == "back" else 4)


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_give_the_bits_of_one_ipu(name: str):
    """A sample: every number of threads and of iterations in inference, rows in turn; a few of training."""
    whole: dict[Any, Any] = {}
    for i, (threads, iterations) in enumerate(itertools.product(THREADS, ITERATIONS)):
        if can_run(name, False, iterations) and (iterations % max(threads, 2) == 0 or i % 4 == 0):
            same(name, False, threads, iterations, ROWS[i % 5 == 0], whole)
    for threads, iterations, rows in ((2, 2, 1), (3, 1, 8), (5, 3, 1)):
        same(name, True, threads, iterations, rows, whole)


@pytest.mark.exhaustive
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_give_the_bits_of_one_ipu_whatever_the_threads_and_the_batching(name: str, training: bool):
    whole: dict[Any, Any] = {}
    for threads, iterations, rows in itertools.product(THREADS, ITERATIONS, ROWS):
        if can_run(name, training, iterations):
            same(name, training, threads, iterations, rows, whole)


def test_a_plan_with_too_few_slots_is_refused_where_it_is_made(monkeypatch: pytest.MonkeyPatch):
    """One slot for each, as it once was for two lanes; and with one lane, where one slot is enough, it is none."""
    monkeypatch.setattr(plan, "depths", lambda steps: dict.fromkeys(depths(steps), 1))
    with pytest.raises(AssertionError, match=r"stashes between \[\('stage0', 'stage1'\)"):
        call(False, 2, 4, 1, 1, **STRATEGIES["sharded"])
    call(False, 1, 4, 1, 1, **STRATEGIES["sharded"])


def test_leaves_that_wait_are_of_the_schedule_with_lanes():
    """Room for a micro-batch of each lane, and no more for more iterations."""
    def slots(threads: int, iterations: int) -> set[int]:
        model = tileflow.inference_model(Images(), micro_batch_size=1, device_iterations=iterations, threads=threads, **STRATEGIES["sharded"])
        model(Images.rows(np.random.default_rng(0), iterations))
        return {*model.plan.stashes.values()}
    assert slots(1, 4) == {1}
    assert slots(2, 4) == slots(2, 9) == slots(2, 1000) == {2}
    assert slots(5, 9) == {5}
    assert slots(5, 3) == {3}
