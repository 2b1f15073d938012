"""Facts about how the reference runs programs that are easy to get wrong (poptorch.md, section 12), a test for each by its number: 1 to 4, 15 to 19,
26, 27. Those of optimizers, data and types are in test_facts.py. Where tileflow is deliberately otherwise the test says so: 18, 19, 26."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tileflow
from tileflow import nn, optim
from tileflow.program.batching import Batching
from tileflow.program.schedule import Run, depths, elapsed, period, times, unrolled
from tileflow.program.staging import Staging
from tileflow.strategy import pipelined, rules
from tileflow.strategy.order import Parts
from tileflow.system.errors import DataError, OptionError, ShapeError, TypeMismatchError

ROWS = np.arange(240, dtype=np.float32).reshape(120, 2)


class Same(nn.Module):
    """What it is given, and the sum of each micro-batch, a number."""

    def forward(self, x: nn.Tensor) -> Any:                                    # type: ignore[override]
        return x * 1.0, x.sum()


def outputs(rows: int = 120, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    shown, total = tileflow.inference_model(Same(), threads=1, **options)(ROWS[:rows])
    return np.asarray(shown), np.asarray(total)


# ---- 1 to 4

def test_1_the_global_batch_and_what_a_call_takes() -> None:
    """micro_batch * accumulation * replicas rows an update; a call has device_iterations of them, and replicas of one group share rows."""
    o = tileflow.Options(micro_batch_size=3, gradient_accumulation=5, replication_factor=4, device_iterations=2)
    assert (o.global_batch_size, o.combined_batch_size) == (60, 120)
    grouped = o.clone(input_group_size=2)
    assert grouped.combined_batch_size == 60
    assert outputs(rows=12, device_iterations=2, replication_factor=4, input_group_size=2)[0].shape == (2 * 4 * 3, 2)
    with pytest.raises(ShapeError, match="the batch dimension \\(13\\) must be a positive multiple of device_iterations \\(2\\)"):
        outputs(rows=13, device_iterations=2)

    class Doubled(nn.Module):
        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return x + x
    number = np.float32(4)
    assert float(np.asarray(tileflow.inference_model(Doubled())(number))) == 8
    with pytest.raises(ShapeError, match="must be a positive multiple of device_iterations"):
        tileflow.inference_model(Doubled(), device_iterations=2)(number)


def test_2_output_modes_and_their_defaults() -> None:
    """All for inference, final for training; every_n shows iterations 5 and 10 of 10, each with all of its micro-batches."""
    assert outputs(rows=20, device_iterations=10)[1].shape == (10,)
    assert outputs(rows=20, device_iterations=10, output_mode="final")[1].shape == ()
    np.testing.assert_array_equal(outputs(rows=20, device_iterations=10, output_mode="every_n", output_return_period=5)[0], ROWS[[8, 9, 18, 19]])
    assert outputs(rows=120, device_iterations=10, replication_factor=3, output_mode="every_n", output_return_period=5)[1].shape == (2 * 3,)
    with pytest.raises(OptionError, match="output_return_period"):
        outputs(rows=20, device_iterations=10, output_mode="every_n", output_return_period=4)
    model = tileflow.training_model(nn.Sequential(nn.Linear(2, 3)), device_iterations=2, gradient_accumulation=2, replication_factor=3)
    shown, loss = model(ROWS[:24], np.zeros(24, int))
    assert (np.shape(shown), np.shape(loss)) == ((6, 3), (3,)), "the last micro-batch of each replica"


def test_3_sums_are_over_iterations_and_accumulation_only() -> None:
    x = ROWS[:24].reshape(4, 3, 2, 2)                                                        # iterations, replicas, rows
    shown, total = outputs(rows=24, device_iterations=4, replication_factor=3, output_mode="sum")
    np.testing.assert_array_equal(shown, x.sum(0).reshape(6, 2))
    np.testing.assert_array_equal(total, x.sum((0, 2, 3)))


def test_4_the_mean_is_over_accumulation_and_replicas_by_default() -> None:
    def trained(**options: Any) -> np.ndarray:
        net = nn.Sequential(nn.Linear(2, 3))
        for p in net.parameters():
            p.data = np.full(p.shape, 0.5, np.float32)
        tileflow.training_model(net, optimizer=optim.SGD(lr=1e-3), threads=1, **options)(ROWS[:12], np.arange(12) % 3)
        return np.asarray(net.state_dict()["0.weight"])
    step = trained(micro_batch_size=12) - 0.5
    np.testing.assert_allclose(trained(gradient_accumulation=2, replication_factor=3) - 0.5, step, rtol=1e-4)
    np.testing.assert_allclose(trained(gradient_accumulation=2, replication_factor=3, accumulation_reduction="sum") - 0.5, 6 * step, rtol=1e-4)


# ---- 15 to 17

def parts(forward: int, ipus: tuple[int, ...] | None = None) -> Parts:
    places = 2 * forward - 1
    return Parts(tuple(f"s{i}" for i in range(places)), (None,) * places, ipus or tuple(min(i, places - 1 - i) for i in range(places)))


@pytest.mark.parametrize(("ipus", "forward"), [((0, 1, 2, 3), 4), ((0, 1), 2), ((1, 2), 3), ((0, 1, 0), 3), ((0, 0, 1), 2)])
def test_15_stages_are_changes_of_the_ipu_from_0_on(ipus: tuple[int, ...], forward: int) -> None:
    """2F - 1 stages in training, which accumulation must reach (7 for 4 IPUs); F in inference, which device iterations must."""
    staging = Staging("pipelined", ipus)
    assert rules.counted_stages(ipus) == forward
    stages = 2 * forward - 1
    rules.check_depth(staging, Batching(1, stages, 1), True)
    rules.check_depth(staging, Batching(1, 1, forward), False)
    with pytest.raises(OptionError, match=f"number of pipeline stages \\({stages}\\).*a model with {forward} pipeline stages will have an additional "
                                          f"{forward - 1} stages when training; it is {stages - 1}"):
        rules.check_depth(staging, Batching(1, stages - 1, 99), True)
    with pytest.raises(OptionError, match=f"device_iterations must be greater than or equal to the number of pipeline stages \\({forward}\\)"):
        rules.check_depth(staging, Batching(1, 1, forward - 1), False)


@pytest.mark.parametrize(("forward", "count"), [(2, 3), (3, 5), (4, 7), (4, 16)])
def test_16_a_pipeline_takes_g_plus_p_minus_1_cycles_for_each_update(forward: int, count: int) -> None:
    """P - 1 to fill, P - 1 to drain, each place busy in G of them; device iterations repeat all of it."""
    places = 2 * forward - 1
    steps = pipelined.build(parts(forward), Batching(1, count, 3), True)
    one = dict.fromkeys((f"s{i}" for i in range(places)), 1)
    apart = pipelined.build(parts(forward, tuple(range(places))), Batching(1, count, 3), True)           # each place on an IPU of its own
    assert elapsed(period(apart), one) == count + places - 1
    assert elapsed(apart, one) == 3 * (count + places - 1)
    assert {name: n for name, n in times(period(steps)).items() if name in one} == dict.fromkeys(one, count)


def test_17_pipelining_computes_again_by_default_and_stashes_what_enters() -> None:
    """Forward stage s keeps 2 (F - 1 - s) + 1 micro-batches; the last keeps nothing, and with pipeline_recompute=False all are kept."""
    forward = 4
    deep = depths(pipelined.build(parts(forward), Batching(1, 7, 1), True))
    assert [deep.get((f"s{s}", f"s{2 * forward - 2 - s}"), 1) for s in range(forward)] == [7, 5, 3, 1]

    class Stages(nn.Module):
        def __init__(self) -> None:
            self.layers = [nn.Linear(6, 6) for _ in range(8)]

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            for i, layer in enumerate(self.layers):
                with nn.Block(f"b{i // 2}", ipu_id=i // 2):
                    x = layer(x).tanh()
            return x

    def stashes(**options: Any) -> dict[str, list[int]]:
        model = tileflow.training_model(Stages(), gradient_accumulation=7, strategy="pipelined", threads=1, **options)
        model(np.zeros((14, 6), np.float32), np.zeros(14, int))
        plan, program = model.plan, model.plan.program
        made = {v: name for name, graph in program.parts.items() for node in graph.nodes for v in node.outputs}
        found: dict[str, list[int]] = {}
        for v, n in plan.stashes.items():
            if n > 2 and v is not program.loss:                                      # 2 is what one stage hands to the next
                found.setdefault(made[v], []).append(n)
        return found
    assert stashes() == {"stage0": [7], "stage1": [5], "stage2": [3]}, "what goes from stage to stage, and nothing within"
    assert stashes(pipeline_recompute=False) == {"stage0": [7, 7], "stage1": [5, 5], "stage2": [3, 3]}


# ---- 18, 19

class Blocks(nn.Module):
    def __init__(self, begun: bool) -> None:
        self.first, self.second, self.third = (nn.Linear(6, 6) for _ in range(3))
        self.begun = begun
        if begun:
            nn.begin_block(self.second, "b", ipu_id=1)
            nn.begin_block(self.third, "c", ipu_id=2)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        if self.begun:
            return self.third(self.second(self.first(x)))
        with nn.Block("a", ipu_id=0):
            x = self.first(x)
        with nn.Block("b", ipu_id=1):
            x = self.second(x)
        with nn.Block("c", ipu_id=2):
            return self.third(x)


@pytest.mark.parametrize("begun", [True, False])
def test_18_auto_increment_and_what_is_before_the_first_block(begun: bool) -> None:
    """What is before the first begun block is of stage 0. Deliberately otherwise: blocks in `forward()` begin at stage 0 as well where nothing is
    before them, not at stage 1, which would be a stage and an IPU more for nothing."""
    model = tileflow.training_model(Blocks(begun), gradient_accumulation=7, strategy="pipelined", auto_stage="auto_increment",
                                    auto_round_num_ipus=True)
    program = model.program_for(np.zeros((14, 6), np.float32), np.zeros(14, int))
    found = {name: n.origin.hints.stage for n in program.micro.nodes if n.origin.role == "forward"
             for name in n.origin.sources}
    assert [found[name] for name in ("first", "second", "third")] == [0, 1, 2]
    assert program.staging is not None
    assert program.staging.ipus == (0, 1, 2)


def test_18_weights_are_not_shared_by_two_ipus() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Linear(6, 6, bias=False)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            with nn.Block("a", ipu_id=0):
                x = self.weight(x)
            with nn.Block("b", ipu_id=1):
                return self.weight(x)
    for strategy in ("pipelined", "sharded"):
        with pytest.raises(OptionError, match=r"Can not copy variable tensor weight\.weight between virtual graphs when pipelining. All pipeline "
                                              "stages using this tensor should be on the same graph; it is read on the IPUs 0, 1"):
            tileflow.training_model(Tied(), gradient_accumulation=3, strategy=strategy)(np.zeros((6, 6), np.float32), np.zeros(6, int))


def test_19_ipus_are_a_power_of_two_and_at_most_64() -> None:
    assert [rules.ipus_for(tuple(range(n)), rounded=True) for n in (1, 2, 3, 5, 9, 33, 64)] == [1, 2, 4, 8, 16, 64, 64]
    with pytest.raises(OptionError, match="the use of 5 IPUs, however a minimum of 8 must be reserved"):
        rules.ipus_for(range(5))
    assert rules.ipus_for((0, 3)) == 4, "up to the highest number"
    with pytest.raises(OptionError, match=r"Too many IPUs requested \(65\)"):
        rules.ipus_for(range(65), rounded=True)
    with pytest.raises(OptionError, match=r"Too many IPUs requested \(66\)"):
        rules.ipus_for((0, 1), 33, rounded=True)


def test_19_replicas_may_share_buffers() -> None:
    """Deliberately otherwise: the reference refuses broadcast buffers that training changes with replicas; here they are one sequence over all
    micro-batches, the same as accumulation."""
    def trained(**options: Any) -> dict[str, np.ndarray]:
        net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        net.state_dict()
        for p in net.parameters():
            p.data = np.full(p.shape, 0.5, np.float32) + np.arange(p.data.size, dtype=np.float32).reshape(p.shape)
        tileflow.training_model(net, optimizer=optim.SGD(lr=1e-3), threads=1, **options)(ROWS[:16], np.arange(16) % 3)
        return dict(net.state_dict())
    shared, accumulated = trained(replication_factor=2, gradient_accumulation=2), trained(gradient_accumulation=4)
    for name, array in shared.items():
        np.testing.assert_array_equal(array, accumulated[name], err_msg=name)


# ---- 26, 27

def test_26_other_inputs_after_compiling_are_an_error_until_it_is_destroyed() -> None:
    net = nn.Sequential(nn.Linear(2, 3))
    model = tileflow.inference_model(net)
    model(ROWS[:4])
    for other in (ROWS[:6], ROWS[:4, :1]):
        with pytest.raises(ShapeError, match=r"Shape mismatch for x: expected \[4, 2\] but got .*destroy"):
            model(other)
    with pytest.raises(TypeMismatchError, match="Data type mismatch for x: expected float32 but got int64"):
        model(ROWS[:4].astype(np.int64))
    with pytest.raises(DataError, match="expected 1 but got 2"):
        model(ROWS[:4], ROWS[:4])
    np.testing.assert_array_equal(model(ROWS[:4].astype(np.float64)), model(ROWS[:4]), "NumPy's default type is taken for float32")
    np.testing.assert_array_equal(model(ROWS[:4]), model(ROWS[:4]))
    model.destroy()
    assert np.shape(model(ROWS[:6])) == (6, 3)


def test_27_weights_are_seen_wherever_they_are_read() -> None:
    """After training by whoever reads them, without a copy being asked for; what is loaded counts for every model of the network."""
    net = nn.Sequential(nn.Linear(2, 3))
    training, inference = tileflow.training_model(net, optimizer=optim.SGD(lr=1e-3)), tileflow.inference_model(net)
    before, shown = net.state_dict()["0.weight"].copy(), np.asarray(inference(ROWS[:4]))
    training(ROWS[:4], np.zeros(4, int))
    after = net.state_dict()
    assert not np.array_equal(after["0.weight"], before)
    np.testing.assert_array_equal(after["0.weight"], training.state_dict()["0.weight"])
    np.testing.assert_array_equal(after["0.weight"], np.asarray(net[0].weight.data))
    np.testing.assert_allclose(inference(ROWS[:4]), ROWS[:4] @ after["0.weight"].T + after["0.bias"], rtol=1e-5)
    assert not np.array_equal(np.asarray(inference(ROWS[:4])), shown)
    inference.load_state_dict({**after, "0.weight": np.zeros_like(before)})
    assert not training.state_dict()["0.weight"].any()


def test_every_place_runs_in_the_order_of_the_micro_batches() -> None:
    """What facts 15 to 17 rest on: folds, and so bits, follow the micro-batches."""
    steps = pipelined.build(parts(3), Batching(1, 6, 2), True)
    for s in range(5):
        assert [m.micro_batch for m in unrolled(steps) if isinstance(m.step, Run) and m.step.part == f"s{s}"] == list(range(12))
