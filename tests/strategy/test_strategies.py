"""Execution over several IPUs: stages of the model, in every strategy's order, give the bits of one IPU."""
from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tileflow
from tileflow import nn
from tileflow.kernels.machine.emitted import EmittedLeaf
from tileflow.program.batching import Batching
from tileflow.program.schedule import (
    Fold,
    Repeat,
    Run,
    Stream,
    Wave,
    depths,
    elapsed,
    from_data,
    in_one_memory,
    key,
    period,
    to_data,
    unrolled,
    visits,
)
from tileflow.program.staging import Staging
from tileflow.report import gantt, pagedata
from tileflow.strategy import automatic, phased, pipelined
from tileflow.strategy.balance import Holding, balanced
from tileflow.strategy.order import Parts
from tileflow.strategy.phased import numbers, phase_ids
from tileflow.strategy.rules import counted_stages, ipus_for
from tileflow.strategy.stages import AutoStage, ParallelPhasedExecution, Phase, PipelinedExecution, SerialPhasedExecution, ShardedExecution, Stage
from tileflow.system.errors import OptionError

MODES = ("always_live", "off_chip_after_fwd", "off_chip_after_fwd_no_overlap", "off_chip_after_each_phase")
FOUR = PipelinedExecution(Stage("a").ipu(0), Stage("b").ipu(1), Stage("c").ipu(2), Stage("d").ipu(3))


class Cnn(nn.Module):
    """Convolutions, running statistics, random numbers; a block for each of four IPUs."""

    def __init__(self) -> None:
        self.first, self.second, self.norm = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8)
        self.hidden, self.drop, self.last = nn.Linear(8 * 4 * 4, 16), nn.Dropout(0.3), nn.Linear(16, 5)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        with nn.Block("a"):
            x = self.first(x).relu()
        with nn.Block("b"):
            x = nn.functional.max_pool2d(self.norm(self.second(x)).relu(), 2)
        with nn.Block("c"):
            x = self.drop(self.hidden(x.flatten(1)).relu())
        with nn.Block("d"):
            return self.last(x)


class Encoder(nn.Module):
    """A small BERT: layers of attention over embeddings."""

    def __init__(self, layers: int = 2, dropout: float = 0.0) -> None:
        self.embed = nn.Embedding(20, 16)
        self.layers = [nn.TransformerEncoderLayer(16, 2, 32, dropout=dropout, batch_first=True) for _ in range(layers)]
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: nn.Tensor) -> nn.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def trained(net: nn.Module, x: np.ndarray, y: np.ndarray, calls: int = 2, **options: Any) -> tuple[dict[str, np.ndarray], list[Any], Any]:
    """Weights and results after some calls from weights that are always the same."""
    draw = np.random.default_rng(7)
    for p in net.parameters():
        p.data = (draw.standard_normal(p.shape) * 0.2).astype(np.float32)
    given = {"gradient_accumulation": 7, "device_iterations": 2, "learning_rate": 1e-2, "seed": 3, "threads": 1, "output_mode": "all", **options}
    model = tileflow.training_model(net, **given)
    results = [model(x, y) for _ in range(calls)]
    return net.state_dict(), results, model


def same(a: tuple[dict[str, np.ndarray], list[Any], Any], b: tuple[dict[str, np.ndarray], list[Any], Any]) -> None:
    assert a[0].keys() == b[0].keys()
    for name, array in a[0].items():
        np.testing.assert_array_equal(array, b[0][name], err_msg=name)
    for x, y in zip(a[1], b[1], strict=True):
        for p, q in zip(x, y, strict=True):
            np.testing.assert_array_equal(np.asarray(p), np.asarray(q))


def images(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((2 * 14, 1, 12, 12)).astype(np.float32), rng.integers(0, 5, 2 * 14)


@pytest.fixture(scope="module")
def alone() -> tuple[dict[str, np.ndarray], list[Any], Any]:
    found = trained(Cnn(), *images())
    assert not found[2].plan.stashes
    return found


STRATEGIES: dict[str, dict[str, Any]] = {
    "pipelined": FOUR.to_options(),
    "kept": {**FOUR.to_options(), "pipeline_recompute": False},
    "1f1b": {**FOUR.to_options(), "pipeline_schedule": "1f1b"},
    "two": {"strategy": "pipelined", "pipeline_splits": ("hidden",)},
    "found": {"strategy": "pipelined", "auto_pipeline": 3, "auto_round_num_ipus": True},
    "sharded": {**FOUR.to_options(), "strategy": "sharded"},
    "serial": SerialPhasedExecution("a", "b", Phase("c", "d"), liveness="off_chip_after_each_phase").to_options(),
    "parallel": ParallelPhasedExecution("a", "b", "c", "d", separate_backward=True).to_options(),
    "groups": ParallelPhasedExecution(Phase(Stage("a"), Stage("b")).ipus(0, 2), Phase(Stage("c"), Stage("d")).ipus(1, 3),
                                      liveness="off_chip_after_fwd").to_options(),
    "back": PipelinedExecution(Stage("a").ipu(0), Stage("b", "c").ipu(1), Stage("d").ipu(0)).to_options(),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_gives_the_bits_of_one_ipu(name: str, threads: int, alone: tuple[dict[str, np.ndarray], list[Any], Any]):
    found = trained(Cnn(), *images(), threads=threads, **STRATEGIES[name])
    assert [p for p in found[2].plan.parts if p.startswith("stage")], "the program is really cut"
    same(alone, found)


class Digits(nn.Module):
    """The tutorial's size: 28 x 28 images, two convolutions, batch norm and dropout."""

    def __init__(self) -> None:
        self.first, self.second, self.norm = nn.Conv2d(1, 16, 3), nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32)
        self.hidden, self.drop, self.last = nn.Linear(32 * 12 * 12, 64), nn.Dropout(0.25), nn.Linear(64, 10)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        x = nn.functional.max_pool2d(self.norm(self.second(self.first(x).relu())).relu(), 2)
        return self.last(self.drop(self.hidden(x.flatten(1)).relu()))


EXHAUSTIVE = [("digits", ("second",)), ("digits", ("second", "hidden", "last")), ("bert", ("layers.2",)),
              ("bert", ("layers.1", "layers.2", "layers.3"))]


SPLITS = ("blocks.2", "blocks.4", "blocks.6")
PAIRWISE: list[dict[str, Any]] = [
    {"strategy": "pipelined", "pipeline_splits": ("blocks.2",), "threads": 2},
    {"strategy": "pipelined", "pipeline_splits": SPLITS, "threads": 1, "pipeline_schedule": "1f1b"},
    {"strategy": "pipelined", "pipeline_splits": SPLITS, "threads": 5, "pipeline_recompute": False},
    {"strategy": "pipelined", "auto_pipeline": 4, "threads": 2, "pipeline_schedule": "1f1b", "pipeline_recompute": False,
     "auto_round_num_ipus": True},
    {"strategy": "sharded", "pipeline_splits": SPLITS, "threads": 5},
    {"strategy": "serial_phased", "pipeline_splits": SPLITS, "threads": 1, "tensors_liveness": "off_chip_after_fwd"},
    {"strategy": "serial_phased", "pipeline_splits": ("blocks.2",), "threads": 5, "tensors_liveness": "off_chip_after_each_phase"},
    {"strategy": "parallel_phased", "pipeline_splits": SPLITS, "threads": 2, "tensors_liveness": "off_chip_after_fwd"},
    {"strategy": "parallel_phased", "pipeline_splits": ("blocks.2",), "threads": 1, "separate_backward_phase": True}]


@pytest.mark.exhaustive
def test_twenty_updates_of_a_resnet_18_give_the_bits_of_one_ipu():
    """Images of 32 x 32; two and four stages, schedules, recomputation, phases and threads, pairwise."""
    from bench.networks import ResNet
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((2 * 14, 3, 32, 32)).astype(np.float32), rng.integers(0, 5, 2 * 14)
    whole = trained(ResNet(18), x, y, calls=10)
    for options in PAIRWISE:
        same(whole, trained(ResNet(18), x, y, calls=10, **options))


MORE: dict[str, tuple[dict[str, Any], ...]] = {
    "pipelined": ({}, {"pipeline_recompute": False}, {"pipeline_schedule": "1f1b"}, {"pipeline_schedule": "1f1b", "pipeline_recompute": False}),
    "sharded": ({},),
    "serial_phased": (*({"tensors_liveness": mode} for mode in MODES), {"separate_backward_phase": True}),
    "parallel_phased": (*({"tensors_liveness": mode} for mode in MODES[:2]), {"separate_backward_phase": True})}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("network", "splits"), EXHAUSTIVE)
def test_twenty_updates_of_two_and_four_stages_give_the_bits_of_one_ipu(network: str, splits: tuple[str, ...]):
    """Every strategy at 1, 2 and 5 threads; other schedules, recomputation on and off, and phases that stream, at one of them each."""
    rng = np.random.default_rng(0)
    x: np.ndarray = rng.standard_normal((4 * 14, 1, 28, 28)).astype(np.float32) if network == "digits" else rng.integers(0, 20, (4 * 14, 16))
    y = rng.integers(0, 5, len(x))

    def run(**options: Any) -> tuple[dict[str, np.ndarray], list[Any], Any]:
        return trained(Digits() if network == "digits" else Encoder(4, 0.1), x, y, calls=10, **options)
    whole = run()
    for strategy, variants in MORE.items():
        for i, more in enumerate(variants):
            for threads in (1, 2, 5) if i == 0 else ((1, 2, 5)[i % 3],):
                same(whole, run(strategy=strategy, pipeline_splits=splits, threads=threads, **more))


@pytest.mark.parametrize("network", ["cnn", "bert"])
def test_stages_run_the_kernels_of_the_whole_step(network: str, alone: tuple[dict[str, np.ndarray], list[Any], Any]):
    """Kernels, layouts and rules are chosen before the cut: the set of leaves is that of the plan without stages (attention stays fused, forward and
    backward). What is computed again is fused anew, and nothing is fused over a stage's end (the gradient of a relu into that of the convolution that
    the next stage begins with), so that an elementwise leaf may be another."""
    rng = np.random.default_rng(1)
    x, y = images() if network == "cnn" else (rng.integers(0, 20, (2 * 14, 8)), rng.integers(0, 5, 2 * 14))
    whole = alone if network == "cnn" else trained(Encoder(), x, y, calls=1)
    leaves = set(whole[2].plan.leaves())
    if network == "bert":
        assert {leaf.name for leaf in leaves if "attention" in leaf.name}
    for name in ("kept", "1f1b", "sharded", "parallel"):
        options = {**STRATEGIES[name], "pipeline_recompute": False} if name == "1f1b" else STRATEGIES[name]
        if network == "bert":
            options = {**{k: v for k, v in options.items() if k != "stages"}, "pipeline_splits": ("layers.1",)}
        found = trained(Cnn() if network == "cnn" else Encoder(), x, y, calls=1, **options)
        others = leaves ^ set(found[2].plan.leaves())
        assert {type(leaf) for leaf in others} <= ({EmittedLeaf} if network == "cnn" else set()), name
    again = {**options, "strategy": "pipelined"}
    again = {k: v for k, v in again.items() if not k.startswith(("tensors", "separate"))}
    more = set(trained(Cnn() if network == "cnn" else Encoder(), x, y, calls=1, **again)[2].plan.leaves())
    assert {type(leaf) for leaf in more ^ leaves} <= {EmittedLeaf}


def test_a_recomputed_stage_keeps_what_enters_it_only():
    """The activations that wait for the backward pass are the stages' inputs (and dropout's nothing): fewer bytes than with all kept."""
    def stashed(**options: Any) -> int:
        plan = trained(Cnn(), *images(), calls=1, **FOUR.to_options(), **options)[2].plan
        return sum(n * v.type.nbytes for v, n in plan.stashes.items())
    assert stashed() < 0.6 * stashed(pipeline_recompute=False)


def parts(places: int, ipus: tuple[int, ...] | None = None) -> Parts:
    names = tuple(f"s{i}" for i in range(places))
    return Parts(names, tuple(f"f{i}" for i in range(places)), ipus or tuple(range(places)))


@pytest.mark.parametrize(("places", "count"), [(2, 2), (3, 3), (3, 7), (7, 7), (7, 20), (5, 2)])
def test_a_pipeline_takes_g_plus_p_minus_1_cycles_for_every_update(places: int, count: int):
    """Place s has micro-batch c - s in cycle c; each is busy in G cycles; device iterations repeat fill and drain."""
    steps = pipelined.build(parts(places), Batching(1, count, 2), True)
    cycles = dict.fromkeys((f"s{i}" for i in range(places)), 1)
    assert elapsed(period(steps), cycles) == count + places - 1
    assert elapsed(steps, cycles) == 2 * (count + places - 1)
    ran = [(m.step.part, m.micro_batch) for m in unrolled(steps) if isinstance(m.step, Run) and m.step.part.startswith("s")]
    assert sorted(ran) == sorted((f"s{i}", m) for i in range(places) for m in range(2 * count))
    for s in range(places):
        assert [m for name, m in ran if name == f"s{s}"] == list(range(2 * count)), "in the order of the micro-batches"
    assert from_data(to_data(steps)) == steps


@pytest.mark.parametrize(("forward", "count"), [(2, 2), (2, 9), (3, 3), (4, 5), (4, 20)])
def test_1f1b_does_one_forward_and_one_backward_pass_in_turn(forward: int, count: int):
    """2 (G + F - 1) cycles; from stage s's first backward pass to its last forward pass it does one of each in turn; F - s micro-batches wait."""
    places = 2 * forward
    steps = pipelined.build(Parts(tuple(f"s{i}" for i in range(places)), (None,) * places, tuple(min(i, places - 1 - i) for i in range(places)),
                                  interval=2), Batching(1, count, 2), True)
    one = dict.fromkeys((f"s{i}" for i in range(places)), 1)
    assert elapsed(period(steps), one) == 2 * (count + forward - 1)
    assert from_data(to_data(steps)) == steps
    deep = depths(steps)
    for s in range(forward):
        there, back = f"s{s}", f"s{places - 1 - s}"
        ran = [(m.step.part, m.micro_batch) for m in unrolled(period(steps)) if isinstance(m.step, Run) and m.step.part in (there, back)]
        assert sorted(ran) == sorted((part, m) for part in (there, back) for m in range(count))
        assert [m for part, m in ran if part == back] == list(range(count)), "in the order of the micro-batches"
        first, last = ran.index((back, 0)), len(ran) - 1 - [part for part, _ in ran[::-1]].index(there)
        kinds = [part for part, _ in ran[first:last + 1]]
        assert all(a != b for a, b in itertools.pairwise(kinds))
        assert deep[there, back] == min(forward - s, count)


def test_a_stash_is_as_deep_as_the_stages_between():
    """For forward stage s of F: 2 (F - 1 - s) + 1 micro-batches wait for the backward pass; the last stage's wait for nothing."""
    forward = 4
    deep = depths(pipelined.build(parts(2 * forward - 1), Batching(1, 20, 1), True))
    assert [deep[f"s{s}", f"s{2 * (forward - 1) - s}"] for s in range(forward - 1)] == [7, 5, 3]
    assert deep["s0", "s1"] == 2


def test_inference_pipelines_have_a_place_for_each_stage():
    steps = pipelined.build(parts(3), Batching(1, 1, 5), False)
    assert elapsed(period(steps), dict.fromkeys(("s0", "s1", "s2"), 1)) == 5 + 3 - 1
    assert max(len(s.runs) for r in steps if isinstance(r, Repeat) for s in r.steps if isinstance(s, Wave)) == 3


def test_inference_in_a_pipeline_gives_the_bits_of_one_ipu():
    net, (x, _) = Cnn(), images()
    whole = tileflow.inference_model(net, device_iterations=7, threads=1)(x)
    cut = tileflow.inference_model(net, device_iterations=7, threads=1, **FOUR.to_options())(x)
    np.testing.assert_array_equal(np.asarray(whole), np.asarray(cut))


# ---- rules and their sentences


@pytest.mark.parametrize(("options", "sentence"), [
    ({"stages": ("a", "b+c+d"), "pipeline_splits": ("hidden",)}, "Options stages and pipeline_splits each say what the stages are; leave all"),
    ({"pipeline_splits": ("hidden",), "auto_pipeline": 2}, "Options pipeline_splits and auto_pipeline each say what the stages are"),
    ({"stages": ("a", "b+c+d"), "auto_stage": "auto_increment"}, "Option auto_stage has no effect where stages says what the stages are")])
def test_stages_are_said_once(options: dict[str, Any], sentence: str):
    with pytest.raises(OptionError, match=sentence):
        trained(Cnn(), *images(), strategy="sharded", **options)


def test_a_pipeline_wants_as_many_micro_batches_as_stages():
    with pytest.raises(OptionError, match=r"gradient_accumulation must be greater than or equal to the number of pipeline stages \(7\)"):
        trained(Cnn(), *images(), gradient_accumulation=2, **FOUR.to_options())
    with pytest.raises(OptionError, match=r"device_iterations must be greater than or equal to the number of pipeline stages \(4\)"):
        tileflow.inference_model(Cnn(), device_iterations=2, **FOUR.to_options())(images()[0])


def test_1f1b_wants_as_many_micro_batches_as_forward_stages():
    with pytest.raises(OptionError, match=r"number of pipeline stages \(4\) with the pipeline_schedule 1f1b; it is 2"):
        trained(Cnn(), *images(), gradient_accumulation=2, pipeline_schedule="1f1b", **FOUR.to_options())
    with pytest.raises(OptionError, match="pipeline_schedule has no effect with the strategy sharded"):
        tileflow.training_model(Cnn(), strategy="sharded", stages=("a", "b"), pipeline_schedule="1f1b")


def test_replicas_with_buffers_of_their_own_give_the_same_bits_in_stages():
    """The folds of each replica are cut like those of the first."""
    own = {"gradient_accumulation": 7, "device_iterations": 1, "replication_factor": 2, "broadcast_buffers": False}
    whole = trained(Cnn(), *images(), **own)
    assert [n for n in whole[2].plan.program.states if n.endswith("@1")], "there are such buffers"
    for name in ("pipelined", "1f1b", "back", "sharded", "groups"):
        found = trained(Cnn(), *images(), threads=2, **own, **STRATEGIES[name])
        same(whole, found)
        for state in (n for n in whole[2].plan.program.states if n.endswith("@1")):
            np.testing.assert_array_equal(whole[2].source.session[state], found[2].source.session[state])


def test_stages_are_counted_by_changes_of_the_ipu_from_0_on():
    assert counted_stages((0, 1, 2, 3)) == 4
    assert counted_stages((1, 2)) == 3, "a model that starts on IPU 1 counts one more"
    assert counted_stages((0, 1, 0)) == 3


def test_ipus_are_a_power_of_two():
    assert ipus_for((0, 1, 2, 3)) == 4
    assert ipus_for((0, 1), 8) == 16
    with pytest.raises(OptionError, match="The model specifies the use of 3 IPUs, however a minimum of 4 must be reserved"):
        ipus_for((0, 1, 2))
    assert ipus_for((0, 1, 2), rounded=True) == 4
    with pytest.raises(OptionError, match=r"Too many IPUs requested \(128\)"):
        ipus_for((0, 1, 2, 3), 32)


def test_weights_stay_on_one_ipu():
    class Tied(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Linear(6, 6)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            with nn.Block("a", ipu_id=0):
                x = self.weight(x).relu()
            with nn.Block("b", ipu_id=1):
                return self.weight(x)
    with pytest.raises(OptionError, match=r"Can not copy variable tensor weight\.(weight|bias) between virtual graphs"):
        trained(Tied(), np.zeros((14, 6), np.float32), np.zeros(14, int), strategy="pipelined")


def test_an_operator_outside_of_all_blocks_is_refused():
    class Half(nn.Module):
        def __init__(self) -> None:
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            with nn.Block("a", ipu_id=0):
                x = self.a(x)
            return self.b(x)
    with pytest.raises(OptionError, match="No active Block, all the ops must belong to a Block"):
        trained(Half(), np.zeros((14, 6), np.float32), np.zeros(14, int), strategy="pipelined")


def test_blocks_and_stages_that_do_not_know_each_other():
    x, y = images()
    with pytest.raises(OptionError, match=r"Unknown Block 'c' list of expected Blocks: \[a, b\]"):
        trained(Cnn(), x, y, **PipelinedExecution("a", "b").to_options())
    with pytest.raises(OptionError, match="contains 4 stages, but stage 4 is missing"):
        trained(Cnn(), x, y, **PipelinedExecution("a", "b", "c", "d", "e").to_options())
    with pytest.raises(OptionError, match="a associated with more than one stage"):
        PipelinedExecution(Stage("a"), Stage("b", "a"))
    with pytest.raises(OptionError, match="graph data flow must follow increasing stage order"):
        trained(Cnn(), x, y, gradient_accumulation=14, device_iterations=1, **PipelinedExecution("b", "a", "c", "d").to_options())
    with pytest.raises(OptionError, match="no IPU was specified for block a"):
        trained(Cnn(), x, y, **PipelinedExecution(AutoStage.SAME_AS_IPU).to_options())
    with pytest.raises(OptionError, match="off_chip_after_each_phase: This is only supported for serial phase execution"):
        trained(Cnn(), x, y, strategy="parallel_phased", stages=("a", "b", "c", "d"), tensors_liveness="off_chip_after_each_phase")
    with pytest.raises(OptionError, match=r"stages side by side \(\|\) are those of one phase, and pipelined execution has no phases"):
        trained(Cnn(), x, y, strategy="pipelined", stages=("a|b", "c", "d"))
    with pytest.raises(OptionError, match="even phases must run on even IPUs and odd phases on odd IPUs"):
        trained(Cnn(), x, y, strategy="parallel_phased", stages=("a@0", "b@2", "c@0", "d@1"))
    with pytest.raises(OptionError, match="the pattern 'third' fits no layer or node"):
        trained(Cnn(), x, y, strategy="pipelined", pipeline_splits=("third",))


def test_phases_and_their_numbers():
    """The reference's three-phase example in each of its modes."""
    assert phase_ids(3) == [(0, 4), (1, 3), (2, 2)]
    assert phase_ids(3, separate_backward=True) == [(0, 6), (1, 5), (2, 4)]
    assert phase_ids(3, "off_chip_after_fwd") == [(0, 8), (1, 7), (2, 6)]
    assert phase_ids(3, "off_chip_after_fwd_no_overlap") == [(0, 12), (2, 10), (4, 8)]
    assert phase_ids(3, "off_chip_after_each_phase") == [(0, 20), (4, 16), (8, 12)]
    with pytest.raises(OptionError, match="Phase contains 2 stages but you provided 1 ipus"):
        Phase(Stage("a"), Stage("b")).ipus(0)
    with pytest.raises(OptionError, match="even phases must run on even IPUs and odd phases on odd IPUs"):
        ParallelPhasedExecution(Phase("a").ipus(1), Phase("b").ipus(0))
    with pytest.raises(OptionError, match="There is currently no AutoStage for PhasedExecution"):
        SerialPhasedExecution()
    with pytest.raises(OptionError, match="This is only supported for serial phase execution"):
        ParallelPhasedExecution("a", "b", liveness="off_chip_after_each_phase")


def moments(steps: Any) -> list[Any]:
    """What a micro-batch of a phased schedule does, in order; what is side by side as a set."""
    repeat = next(s for s in period(steps) if isinstance(s, Repeat))
    return [{key(r) for r in s.runs} if isinstance(s, Wave) else key(s) for s in repeat.steps if not isinstance(s, Fold)]


def phases_of(mode: Any, ipus: tuple[int, ...], strategy: Any = "serial_phased") -> Any:
    staging = Staging(strategy, ipus, liveness=mode, separate_backward=mode != "always_live", phases=tuple(range(len(ipus))))
    places = staging.places(True)
    made = Parts(tuple(f"s{i}" for i in range(places)), tuple(f"f{i}" for i in range(places)), tuple(staging.ipu(i) for i in range(places)),
                 numbers(staging, True), mode != "always_live", tuple(frozenset({i - 1}) for i in range(places)))
    return phased.build(made, Batching(1, 2, 1), True)


def test_phases_stream_beside_their_neighbours_in_number_or_alone():
    """Two phases, forward and backward. Beside the run whose phase has the number before or after; else nothing runs meanwhile."""
    assert moments(phases_of("always_live", (0, 0))) == ["s0", "s1", "s2"]
    assert moments(phases_of("off_chip_after_fwd", (0, 0))) == [
        {"s0", "load s1"}, {"s1", "store s0"}, "store s1", "load s2", {"s2", "load s3"}, {"s3", "store s2"}]
    alone = ["s0", "store s0", "load s1", "s1", "store s1", "load s2", "s2", "store s2", "load s3", "s3"]
    assert moments(phases_of("off_chip_after_fwd_no_overlap", (0, 0))) == alone
    assert moments(phases_of("off_chip_after_each_phase", (0, 0))) == alone
    for mode in MODES:
        steps = phases_of(mode, (0, 1, 0), "parallel_phased")
        assert from_data(to_data(steps)) == steps
        plain = in_one_memory(steps)
        assert [m.step for m in unrolled(plain)] == [m.step for m in unrolled(steps)], "one memory: the same runs and folds, in the same order"
        assert not any(isinstance(s, Wave | Stream) for r in period(plain) if isinstance(r, Repeat) for s in r.steps)


class Wide(nn.Module):
    """Blocks whose activations are most of what an IPU holds."""

    def __init__(self) -> None:
        self.layers, self.last = [nn.Linear(64, 64) for _ in range(6)], nn.Linear(64, 5)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        for i, layer in enumerate(self.layers):
            with nn.Block(f"b{i // 2}"):
                x = layer(x).relu()
        with nn.Block("end"):
            return self.last(x)


WIDE = ("b0", "b1", "b2", "end")


def wide(execution: Any) -> Any:
    return tiled(Wide(), inputs=[(2048, 64)], micro_batch_size=2048, gradient_accumulation=2, **execution.to_options())


def test_tensors_that_leave_the_chip_free_their_bytes_and_take_cycles():
    """Serial phases: every cycle more is one of streaming memory, and each mode needs fewer bytes than the one before."""
    found = {mode: wide(SerialPhasedExecution(*WIDE, liveness=mode)) for mode in MODES}
    machines = {mode: f.tiled for mode, f in found.items()}
    stays = machines["always_live"]
    assert stays.ipus[0].streamed == 0
    states = stays.streaming_cycles
    for mode in MODES[1:]:
        m = machines[mode]
        assert m.cycles_per_update - stays.cycles_per_update == m.streaming_cycles - states == 2 * sum(m.away.cycles.values()), "of two micro-batches"
        assert m.ipus[0].streamed == 2 * sum(m.away.bytes.values())
        a_cycle = m.chip.streaming_bytes_per_second / m.chip.clock_hz
        assert m.streaming_cycles - states == 2 * sum(-int(-n // a_cycle) for n in m.away.bytes.values())
        report = found[mode].report
        assert gantt.Chart(report).clock == report["totals"]["cycles"] + report["host"]["waits"]
        assert sum(b.cycles for b in gantt.Chart(report).bars if b.kind == "stream") == m.streaming_cycles - states
    fell = [m.ipus[0].memory.categories["activations"].sum() for m in machines.values()]
    assert fell[0] > fell[1] > fell[2] >= fell[3]
    assert (np.diff([m.peak.max() for m in machines.values()]) <= 0).all()
    block = 2048 * 64 * 4
    assert machines["off_chip_after_fwd"].away.bytes["store stage0"] == 4 * block // 2, "its two activations, read by its backward pass"
    assert machines["off_chip_after_each_phase"].away.bytes["load stage1"] == block, "what the phase before made"
    assert "pass to and from streaming memory" in found["off_chip_after_fwd"].to_text()


def test_phases_on_two_ipus_stream_while_the_other_works():
    stays, leaves = (wide(ParallelPhasedExecution(*WIDE, separate_backward=True, liveness=mode)).tiled for mode in MODES[:2])
    assert [i.number for i in leaves.ipus] == [0, 1]
    assert leaves.ipus[0].worst < stays.ipus[0].worst
    beyond = leaves.cycles_per_update - stays.cycles_per_update
    assert 0 < beyond < leaves.streaming_cycles - stays.streaming_cycles, "some of it beside the other IPU's phases"


class Branches(nn.Module):
    def __init__(self) -> None:
        self.first, self.left, self.right, self.last = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        with nn.Block("first"):
            x = self.first(x)
        with nn.Block("left"):
            a = self.left(x).relu()
        with nn.Block("right"):
            b = self.right(x).tanh()
        with nn.Block("last"):
            return self.last(a + b)


def test_stages_of_one_phase_that_do_not_need_each_other_are_side_by_side():
    execution = SerialPhasedExecution("first", Phase(Stage("left"), Stage("right")).ipus(0, 1), "last", separate_backward=True)
    assert execution.to_options()["stages"] == ("first", "left@0|right@1", "last")
    report = tiled(Branches(), inputs=[(2, 6)], gradient_accumulation=2, **execution.to_options())
    assert moments(report.tiled.program.schedule) == ["stage0", {"stage1", "stage2"}, "stage3", "stage4", "stage5", "stage6", "stage7"], \
        "the backward pass of one adds the gradient of the other to its own"
    assert report.tile_exact().ok
    chained = tiled(Cnn(), **SerialPhasedExecution(Phase(Stage("a"), Stage("b")).ipus(0, 1), "c", "d").to_options()).tiled.program
    assert moments(chained.schedule)[:2] == ["stage0", "stage1"], "one reads what the other makes"
    x, y = np.random.default_rng(4).standard_normal((28, 6)).astype(np.float32), np.zeros(28, int)
    same(trained(Branches(), x, y), trained(Branches(), x, y, **execution.to_options()))


def stages_of(net: nn.Module, x: np.ndarray, y: np.ndarray, **options: Any) -> tuple[dict[str, int], Staging]:
    model = tileflow.training_model(net, gradient_accumulation=14, **options)
    program = model.program_for(x, y)
    found, backward = ({name: node.origin.hints.stage for node in program.micro.nodes if node.origin.role == role
                        for name in node.origin.sources} for role in ("forward", "backward"))
    assert program.staging is not None
    assert all(found[name] == stage for name, stage in backward.items() if stage is not None and name in found), \
        "gradients have the mark"
    return found, program.staging                                                                                   # type: ignore[return-value]


class Chain(nn.Module):
    def __init__(self, count: int = 4) -> None:
        self.layers = [nn.Linear(6, 6) for _ in range(count)]
        self.last = nn.Linear(6, 3)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


X, Y = np.zeros((28, 6), np.float32), np.zeros(28, int)


def test_what_is_before_the_first_begun_block_is_of_stage_0():
    net = Chain(2)
    nn.begin_block(net.layers[1], ipu_id=1)
    nn.begin_block(net.last, ipu_id=1)
    found, staging = stages_of(net, X, Y, strategy="pipelined")
    assert (found["layers.0"], found["layers.1"], found["last"]) == (0, 1, 1)
    assert staging.ipus == (0, 1)
    with pytest.raises(OptionError, match="module has already been assigned to a block"):
        nn.begin_block(net.last)
    with pytest.raises(OptionError, match=r"module is not an instance of tileflow\.nn\.Module"):
        nn.begin_block(3)                                                                                           # type: ignore[type-var]
    nn.remove_blocks(net)
    with pytest.raises(OptionError, match="nothing says what the stages are"):
        stages_of(net, X, Y, strategy="pipelined")


def test_every_new_block_is_a_stage_with_auto_increment():
    net = Chain(4)
    for layer, ipu in zip(net.layers[1:], (1, 2, 1), strict=True):
        nn.begin_block(layer, ipu_id=ipu)
    found, staging = stages_of(net, X, Y, auto_round_num_ipus=True, **PipelinedExecution(AutoStage.AUTO_INCREMENT).to_options())
    assert [found[f"layers.{i}"] for i in range(4)] == [0, 1, 2, 3]
    assert staging.ipus == (0, 1, 2, 1)


def test_blocks_without_a_name_are_counted_and_functions_are_blocks():
    @nn.block_function(ipu_id=1)
    def second(net: nn.Module, x: nn.Tensor) -> nn.Tensor:
        return net.last(x)

    class Counted(Chain):
        def forward(self, x: nn.Tensor) -> nn.Tensor:
            nn.Block.use_auto_id()
            with nn.Block(ipu_id=0):
                x = self.layers[0](x)
            return second(self, x)
    found, staging = stages_of(Counted(1), X, Y, **PipelinedExecution(Stage("0"), Stage("1")).to_options())
    assert (found["layers.0"], found["last"], staging.ipus) == (0, 1, (0, 1))
    assert repr(nn.Block("x", 2)) == "Block(user_id='x', ipu_id=2)"


def test_a_stage_says_the_ipu_before_its_blocks_do():
    net = Chain(1)
    nn.begin_block(net.layers[0], "a", ipu_id=0)
    nn.begin_block(net.last, "b", ipu_id=1)
    _, staging = stages_of(net, X, Y, auto_round_num_ipus=True, **PipelinedExecution(Stage("a"), Stage("b").ipu(3)).to_options())
    assert staging.ipus == (0, 3)


def test_stages_of_one_ipu_are_one_and_one_ipu_needs_no_pipeline():
    net = Chain(3)
    model = tileflow.training_model(net, gradient_accumulation=14, strategy="pipelined", stages=("layers.0@0", "layers.1@0", "layers.2+last@0"))
    assert model.program_for(X, Y).staging is None
    _, staging = stages_of(net, X, Y, strategy="sharded", stages=("layers.0@0", "layers.1@0", "layers.2+last@1"))
    assert staging.ipus == (0, 1)


def test_strategies_become_options():
    assert ShardedExecution(Stage("a", "b").ipu(1)).to_options() == {"strategy": "sharded", "stages": ("a+b@1",)}
    assert Stage.parse("a+b@1") == Stage("a", "b").ipu(1)
    for wrong in ("a@x", "", "a+", "a@"):
        with pytest.raises(OptionError):
            Stage.parse(wrong)
    with pytest.raises(OptionError, match=r"stages has no effect with the strategy none"):
        tileflow.training_model(Chain(), stages=("a",))


# ---- stages of equal length


@pytest.mark.parametrize("seed", range(30))
def test_balanced_stages_are_the_best_of_all(seed: int):
    """Against every contiguous cut, with factors, memory and forbidden beginnings."""
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(2, 10)), int(rng.integers(1, 5))
    k = min(k, n)
    costs = rng.integers(0, 9, n).astype(float)
    states, made, entering = rng.integers(0, 9, (3, n))
    factors, made_times, entering_times = rng.integers(1, 4, (3, k))
    breaks, bound, first = rng.random(n) < 0.8, float(rng.integers(20, 120)), float(rng.integers(0, 9))
    kept, beyond = bool(rng.random() < 0.5), float(rng.integers(0, 20))

    def holds(i: int, b: int, e: int) -> float:
        mine = made[b:e].sum() if kept else made[b:e].max()
        return states[b:e].sum() + made_times[i] * mine + entering_times[i] * entering[b] + beyond * (i == 0)

    def slowest(begin: tuple[int, ...]) -> float:
        ends = (*begin[1:], n)
        if any(holds(i, b, e) > bound for i, (b, e) in enumerate(zip(begin, ends, strict=True))):
            return np.inf
        return max(factors[i] * costs[b:e].sum() + first * (i == 0) for i, (b, e) in enumerate(zip(begin, ends, strict=True)))
    cuts = [(0, *c) for c in itertools.combinations([i for i in range(1, n) if breaks[i]], k - 1)]
    best = min(map(slowest, cuts), default=np.inf)
    holding = Holding(states, made, made_times, entering, entering_times, beyond, kept)
    if not np.isfinite(best):
        with pytest.raises(ValueError, match="stages"):
            balanced(costs, k, factors=factors, holding=holding, bound=bound, breaks=breaks, first=first)
    else:
        assert slowest(tuple(balanced(costs, k, factors=factors, holding=holding, bound=bound, breaks=breaks, first=first))) == best


def test_automatic_stages_never_part_the_readers_of_a_weight():
    class Tied(Chain):
        def forward(self, x: nn.Tensor) -> nn.Tensor:
            for layer in (self.layers[0], self.layers[1], self.layers[0], self.layers[2], self.layers[3]):
                x = layer(x)
            return self.last(x)
    found, staging = stages_of(Tied(), X, Y, strategy="pipelined", auto_pipeline=2)
    assert found["layers.0"] == found["layers.1"] == 0
    assert staging.ipus == (0, 1)

    class Ends(Chain):
        def forward(self, x: nn.Tensor) -> nn.Tensor:
            x = nn.functional.linear(x, self.last.weight)
            for layer in self.layers:
                x = layer(x)
            return nn.functional.linear(x, self.last.weight)
    ends = Ends(6)
    ends.last = nn.Linear(6, 6)
    program = tileflow.training_model(ends, gradient_accumulation=14, strategy="pipelined", auto_pipeline=2).program_for(X, Y)
    assert program.staging is not None
    assert program.staging.ipus == (0, 1, 0), "a head that shares the embedding's weight returns to the first IPU"
    shared = [s.input for s in program.micro.states if s.name == "last.weight"]
    users = [n for n in program.micro.nodes if n.origin.role == "forward" and set(shared) & set(n.operands)]
    assert {n.origin.hints.stage for n in users} == {0, 2}
    with pytest.raises(OptionError, match="cannot be 9 stages"):
        stages_of(Chain(1), X, Y, strategy="pipelined", auto_pipeline=9)


# ---- on the tile machine

TILES: dict[str, Any] = {"inputs": [(2, 1, 12, 12)], "training": True, "machine": "gc200", "micro_batch_size": 2, "loss": "cross_entropy",
                         "gradient_accumulation": 9}


def tiled(net: nn.Module | None = None, **options: Any) -> Any:
    return tileflow.compile(net or Cnn(), **{**TILES, **options})


def test_the_tile_machine_counts_the_cycles_of_the_schedule():
    """Every one of the G + P - 1 cycles takes what the slowest IPU takes, and what crosses."""
    machine = tiled(**FOUR.to_options()).tiled
    once: dict[str, int] = {}
    for s in machine.steps:
        once[s.part] = once.get(s.part, 0) + s.phases.total
    places, count, total = 7, 9, 0
    of = {v.step.part: v.step.ipu for v in visits(machine.program.schedule)}
    for cycle in range(count + places - 1):
        busy: dict[int, int] = {}
        crossing = [0]
        for s in range(places):
            if s <= cycle < s + count:
                for part in (f"stage{s}", f"fold{s}"):
                    busy[of.get(part, 0)] = busy.get(of.get(part, 0), 0) + once.get(part, 0)
                    crossing.append(machine.links.cycles.get(part, 0))
        total += max(busy.values()) + max(crossing)
    assert machine.cycles_per_update == total + once.get("prologue", 0) + once["update"]
    assert sum(i.busy for i in machine.ipus) == sum(s.phases.total * s.repeats for s in machine.steps)


def test_stages_hold_less_than_the_whole_and_every_weight_is_somewhere():
    whole, cut = tiled(), tiled(**FOUR.to_options())
    assert [i.number for i in cut.tiled.ipus] == [0, 1, 2, 3]
    assert max(i.worst for i in cut.tiled.ipus) == cut.tiled.peak.max() < whole.tiled.peak.max()
    for kind in ("weights", "optimizer", "buffers"):
        beyond = sum(i.memory.categories[kind].sum() for i in cut.tiled.ipus) - whole.tiled.categories[kind].sum()
        assert 0 <= beyond <= (16 if kind == "optimizer" else 0), f"{kind}: counters are wherever they are read"
    assert max(i.memory.always_live.max() for i in cut.tiled.ipus) < whole.tiled.always_live.max()


def test_the_last_ipu_stashes_nothing_and_recomputation_stashes_less():
    again, kept = tiled(**FOUR.to_options()).tiled, tiled(**FOUR.to_options(), pipeline_recompute=False).tiled
    assert again.ipus[3].stashed == 0
    assert sum(i.stashed for i in again.ipus) < sum(i.stashed for i in kept.ipus)
    assert again.ipus[0].stashed == 6 * (2 * 144 * 4 + 2 * 4 * 100 * 4), "2 (F - 1) more of the input, and of what crosses and ReLU's gradient reads"
    assert all(i.stashed == 0 for i in tiled(**STRATEGIES["sharded"]).tiled.ipus)


def test_advice_says_what_waiting_costs_and_suggests_nothing():
    """What nobody has run and priced is no suggestion."""
    found = [tiled(**STRATEGIES[name]) for name in ("found", "sharded")]
    assert [f.report["staging"] for f in found] == [{"strategy": "pipelined", "schedule": "grouped", "automatic": True},
                                                    {"strategy": "sharded", "schedule": "", "automatic": False}]
    told = [" ".join(gantt.advice(f.report)) for f in found]
    assert all("times as long as IPU" in text for text in told)
    assert "Filling and draining the pipeline costs" in told[0]
    assert not any(option in text for text in told for option in ("auto_pipeline", "pipeline_splits", "gradient_accumulation", "would"))
    assert tiled().report["staging"] is None


def test_1f1b_holds_fewer_micro_batches_than_the_grouped_schedule():
    grouped, alternating = tiled(**FOUR.to_options()), tiled(**FOUR.to_options(), pipeline_schedule="1f1b")
    stashed = [[i.stashed for i in found.tiled.ipus] for found in (grouped, alternating)]
    assert all(b < a for a, b in zip(stashed[0][:3], stashed[1][:3], strict=True))
    assert stashed[1][3] == 0
    assert alternating.tiled.ipus[0].stashed == 3 * (2 * 144 * 4 + 2 * 4 * 100 * 4), "F - 1 more"
    report = alternating.report
    assert gantt.Chart(report).clock == report["totals"]["cycles"] + report["host"]["waits"]


def test_equal_stages_work_all_the_time_but_for_the_ends():
    """An IPU of an equal pipeline works G / (G + F - 1) of the machine cycles, 10/13 of the tutorial's: fill runs forwards only, drain backwards
    only."""
    steps = pipelined.build(parts(7, (0, 1, 2, 3, 2, 1, 0)), Batching(1, 10, 1), True)
    cycles = {"s0": 1, "s1": 1, "s2": 1, "s3": 2, "s4": 1, "s5": 1, "s6": 1}
    assert elapsed(period(steps), cycles) == 2 * (10 + 4 - 1)


def test_the_partition_of_a_pipeline_computes_what_the_kernels_do():
    report = tiled(Chain(1), inputs=[(2, 6)], gradient_accumulation=3, strategy="pipelined", pipeline_splits=("last",)).tile_exact()
    assert report.ok
    assert len(report.steps) > 3 * 4, "every micro-batch of every stage"


@pytest.mark.parametrize(("training", "more", "one"), [
    (True, {"strategy": "pipelined", "gradient_accumulation": 4}, "an update"), (True, {}, "an update"), (False, {}, "a micro-batch"),
    (False, {"strategy": "pipelined", "device_iterations": 4}, "a call"), (False, {"strategy": "sharded", "device_iterations": 4}, "a micro-batch"),
    (False, {"strategy": "serial_phased", "device_iterations": 4}, "a micro-batch"),
])
def test_reports_say_what_their_figures_are_of(training: bool, more: dict[str, Any], one: str):
    """Micro-batches of a pipeline overlap, so there figures are those of a call."""
    stages = {"auto_pipeline": 2} if more else {}
    found = tileflow.compile("digits_cnn.onnx", training=training, machine="gc200", **stages, **more)
    text, unit = found.to_text(), one.split()[1]
    assert f"cycles per {unit} " in text
    if more:
        cycles = found.report["totals"]["cycles"] + found.report["host"]["waits"]
        assert f"IPUs over the {cycles:,} cycles of {one} (" in text
    assert {u for u in ("update", "call", "micro-batch") if f"cycles per {u}" in text} == {unit}
    data = pagedata.data(found.report)
    assert (data["unit"], data["one"]) == (unit, one)


def test_a_picture_of_the_schedule(tmp_path: Path):
    found = tiled(**FOUR.to_options(), report=tmp_path)
    chart = gantt.Chart(found.report)
    cycles = found.report["totals"]["cycles"] + found.report["host"]["waits"]
    assert chart.clock == cycles, "bars end where the update does"
    for ipu in found.report["ipus"]:
        own = sorted((b for b in chart.bars if b.ipu == ipu["number"]), key=lambda b: b.start)
        assert all(a.start + a.cycles <= b.start for a, b in itertools.pairwise(own)), "one thing at a time"
        assert sum(b.cycles for b in own if b.kind not in ("exchange", "host")) == ipu["busy"]
        assert ipu["utilisation"] == pytest.approx(ipu["busy"] / chart.clock)
    text = found.to_text()
    assert "IPU 3  │" in text
    assert "Filling and draining the pipeline costs" in text
    drawn = pagedata.data(found.report)["chart"]
    assert drawn["cycles"] == chart.clock
    assert sorted(zip(drawn["ipu"], drawn["start"], drawn["length"], strict=True)) == sorted((b.ipu, b.start, b.cycles) for b in chart.bars)
    assert 8 in drawn["micro"]
    trace = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    clock = found.report["chip"]["clock_hz"] / 1e6
    for ipu in found.report["ipus"]:
        work = [e for e in trace if e["ph"] == "X" and e["pid"] == ipu["number"] and "phase" in e["args"]]
        assert sum(e["args"]["cycles"] for e in work) == ipu["busy"]
        assert max(e["ts"] + e["dur"] for e in work) * clock <= chart.clock + 1e-3 * clock, "to a nanosecond"


@pytest.mark.parametrize("network", ["resnet50", "bert"])
def test_automatic_stages_of_large_models_are_quick(network: str):
    """ResNet-50 and BERT-Base into 4 stages in under a second (of this thread's time), with the memory of an IPU counted."""
    from bench import networks  # builders of the published models
    program = networks.resnet_program(50, 1, 16) if network == "resnet50" else networks.bert_program("base", 1, 16)
    nodes = [n for n in program.micro.nodes if n.origin.role == "forward"]
    chain_nodes = [n for n in nodes if n.origin.sources != ("loss",)]
    began = time.thread_time()
    chain = automatic.Chain(program.micro, chain_nodes, [n for n in nodes if n.origin.sources == ("loss",)])
    begin, ipus = chain.cut(4, automatic.Wanted(True, True, "grouped", 16, 1472 * 624 * 1024))
    assert time.thread_time() - began < 1.0
    assert len(ipus) == len(begin) + 1
    assert set(ipus) == {0, 1, 2, 3}
    place = {id(n): i for i, n in enumerate(chain.nodes)}
    ends = [0, *(place[id(n)] for n in begin), len(chain.nodes)]
    lengths: dict[int, float] = {}
    for k, ipu in enumerate(ipus):
        lengths[ipu] = lengths.get(ipu, 0.0) + (4.0 if k < len(ipus) - 1 else 3.0) * sum(chain.costs[ends[k]:ends[k + 1]])
    assert max(lengths.values()) < 1.25 * sum(lengths.values()) / 4, "about equal"


def chain_of(net: nn.Module, x: np.ndarray) -> automatic.Chain:
    program = tileflow.training_model(net, gradient_accumulation=len(x) // 2).program_for(x, np.zeros(len(x), int))
    nodes = [n for n in program.micro.nodes if n.origin.role == "forward"]
    return automatic.Chain(program.micro, [n for n in nodes if n.origin.sources != ("loss",)], [n for n in nodes if n.origin.sources == ("loss",)])


def test_automatic_stages_count_what_waits_as_well_as_weights():
    """A first stage that holds 7 micro-batches of wide activations becomes shorter where memory is scarce; 1F1B holds 4, and one at a time 1."""
    class Narrowing(nn.Module):
        def __init__(self) -> None:
            self.layers, self.last = [nn.Linear(64, 64, bias=False) for _ in range(8)], nn.Linear(64, 5)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            for layer in self.layers:
                x = layer(x)
            return self.last(x)
    chain = chain_of(Narrowing(), np.zeros((16, 64), np.float32))
    at_a_layer, weight = 2 * 64 * 4, 64 * 64 * 4

    def first_stage(schedule: Any, bound: int | None) -> int:
        begin, _ = chain.cut(2, automatic.Wanted(True, False, schedule, 8, bound))
        return chain.nodes.index(begin[0])
    free = first_stage("grouped", None)
    enough = 4 * free * weight + 3 * (free + 1) * at_a_layer
    assert first_stage("grouped", enough) == free, "weights, states, and 2 (F - 1) + 1 micro-batches of what enters and of what is made"
    assert first_stage("grouped", enough - 1) != free
    assert first_stage("1f1b", enough - 1) == first_stage(None, enough - 1) == free, "fewer wait"
    with pytest.raises(OptionError, match="no cut into 2 stages keeps each within"):
        chain.cut(2, automatic.Wanted(True, False, "grouped", 8, 4 * 3 * weight))


def test_automatic_stages_return_to_the_first_ipu_where_that_is_faster():
    """One long layer in the middle, two short ones around: on two IPUs the ends go together, if enough micro-batches pay for a longer pipeline."""
    class Hill(nn.Module):
        def __init__(self) -> None:
            self.a, self.b, self.c, self.d = nn.Linear(512, 512), nn.Linear(512, 2048), nn.Linear(2048, 512), nn.Linear(512, 512)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return self.d(self.c(self.b(self.a(x))))
    chain = chain_of(Hill(), np.zeros((16, 512), np.float32))
    _, ipus = chain.cut(2, automatic.Wanted(True, False, "grouped", 64, None))
    assert ipus == [0, 1, 0]
    assert chain.cut(2, automatic.Wanted(True, False, None, 64, None))[1] == [0, 1], "nothing overlaps"
    assert chain.cut(2, automatic.Wanted(True, False, "grouped", 1, None))[1] == [0, 1], "a longer pipeline does not pay"
