"""What of a pipeline's cycle is a task on the host, in which order one worker does it all, and which stages share memory."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from images import arenas, stashes

import tileflow
from tileflow import nn
from tileflow.executable import engine
from tileflow.lower.row import ArrayOperand
from tileflow.lower.tasks import beside, tasks, turns
from tileflow.program.schedule import Fold, Repeat, Run, Wave
from tileflow.runtime import budget
from tileflow.system.errors import TrainingError

SPLITS = {"strategy": "pipelined", "pipeline_splits": ("1", "3", "5"), "auto_round_num_ipus": True}


def network() -> nn.Module:
    nn.manual_seed(3)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 5 * 5, 16), nn.ReLU(), nn.Linear(16, 5))


def rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.standard_normal((count, 1, 12, 12)).astype(np.float32), draw.integers(0, 5, count)


def trained(**options: Any) -> tuple[dict[str, np.ndarray], Any]:
    """Weights after a call of three updates of eight micro-batches of two rows, and the model."""
    net = network()
    model = tileflow.training_model(net, gradient_accumulation=8, device_iterations=3, micro_batch_size=2, learning_rate=1e-2, **options)
    model(*rows(2 * 8 * 3))
    return net.state_dict(), model


def test_a_single_worker_has_one_memory_and_one_task_for_all_stages():
    weights, model = trained(threads=1, **SPLITS)
    stages = [f"stage{i}" for i in range(7)]
    run, plan = model.engine, model.plan
    taken = arenas(run, plan)
    assert len(run.table.tasks) == 1
    assert {taken[name][0].ctypes.data for name in stages} == {taken["stage0"][0].ctypes.data}
    assert plan.memory["", 0] == max(plan.parts[name].arena_bytes for name in stages)
    several, model = trained(threads=2, **SPLITS)
    run, plan = model.engine, model.plan
    taken = arenas(run, plan)
    assert len(run.table.tasks) > 7
    assert len({taken[name][0].ctypes.data for name in stages if plan.parts[name].arena_bytes}) > 1
    for name, array in trained(threads=1)[0].items():
        np.testing.assert_array_equal(array, weights[name])
        np.testing.assert_array_equal(array, several[name])


@pytest.mark.parametrize("schedule", ["grouped", "1f1b"])
def test_stages_in_one_memory_do_not_meet_at_the_end_of_a_slice(schedule: str, monkeypatch: pytest.MonkeyPatch):
    """The driver stops wherever it can: tasks that have begun would each go on by a row before the next one ends."""
    wanted, _ = trained(threads=1)
    monkeypatch.setattr(engine, "SLICE_NS", 1)
    for name, array in trained(threads=1, pipeline_schedule=schedule, **SPLITS)[0].items():
        np.testing.assert_array_equal(array, wanted[name])


def test_a_view_lies_in_the_stash_of_what_it_shows():
    """A flattened image goes to the next stage, the image to the backward pass: there is one stash, and nothing is copied."""
    _, model = trained(threads=1, strategy="pipelined", pipeline_splits=("4",), pipeline_recompute=False)
    plan = model.plan
    views = {v: v.producer.operands[0] for v in plan.program.kept("stage0") if v.producer is not None and v.producer.op.alias is not None}
    assert any(image in plan.program.kept("stage0") for image in views.values())
    for v, image in views.items():
        assert plan.parts["stage0"].places[v] == plan.parts["stage0"].places[image]
        assert (v in plan.stashes) + (image in plan.stashes) == 1
    assert not [row for row in plan.parts["stage0"].every_row() if row.node is None]


def test_a_stashed_value_is_made_where_it_lies():
    """What an elementwise row turns into a stash's value lies in the stash already: the stage's arena has no room for it."""
    _, model = trained(threads=1, strategy="pipelined", pipeline_splits=("4",), pipeline_recompute=False)
    made = [{arg.place for arg in row.args if isinstance(arg, ArrayOperand) and arg.written
             and arg.place.region[0] == "stash"}
            for row in model.plan.parts["stage0"].every_row()]
    *_, pooled, activated = made
    assert activated
    assert activated < pooled, "the record of winners is handed on, too"


def test_memory_is_counted_as_it_is_taken():
    for threads in (1, 2):
        model = trained(threads=threads, **SPLITS)[1]
        run, plan = model.engine, model.plan
        own = arenas(run, plan)
        taken: dict[tuple[str, int], set[tuple[int, int]]] = {}
        for name, memories in plan.memories.items():
            for memory, array in zip(memories, own[name], strict=True):
                assert array.nbytes >= plan.lowered[name].arena_bytes
                taken.setdefault(memory, set()).add((array.ctypes.data, array.nbytes))
        assert all(len({at for at, nbytes in found if nbytes}) <= 1 for found in taken.values())
        needs = budget.fixed(plan)
        assert needs["activations and gradients"] + needs["weights laid out for the kernels"] == (
            sum(max(nbytes for _, nbytes in found) for found in taken.values()) + sum(a.nbytes for a in stashes(run)))


def test_a_loss_that_is_not_finite_is_refused_whichever_stage_is_folded_first():
    x, y = rows(2 * 8)
    x[5] = np.nan
    for threads in (1, 2):
        net = network()
        before = {name: array.copy() for name, array in net.state_dict().items()}
        model = tileflow.training_model(net, gradient_accumulation=8, micro_batch_size=2, threads=threads, **SPLITS)
        with pytest.raises(TrainingError, match="The loss is not finite at micro-batch 2 of the call"):
            model(x, y)
        for name, array in before.items():
            np.testing.assert_array_equal(array, net.state_dict()[name])


STEPS = (Repeat(1, (Run("a"), Wave((Run("a", 1), Run("b"))), Fold("fold b")), "micro-batch", 0),
         Repeat(2, (Wave((Run("a", 2), Run("b", 1), Run("c"))), Fold("fold b", 1), Fold("fold c")), "micro-batch"))


def test_the_last_part_is_first_but_for_neighbours_with_most_in_common():
    assert beside(STEPS) == ["a", "b", "c"]
    assert beside((Wave((Run("a"), Run("a", 1))),)) == []
    names = ["a", "b", "c", "d"]
    assert turns(names, lambda a, b: {("b", "c"): 7, ("c", "d"): 3}.get((a, b), 0)) == ["c", "d", "a", "b"]
    assert turns(names, lambda a, b: {("c", "d"): 3}.get((a, b), 0)) == ["d", "b", "a", "c"]
    assert turns([], lambda a, b: 1) == []


def test_folds_follow_their_runs_and_keep_their_order():
    wave = Wave((Run("a", 2), Run("b", 1), Run("c")))
    folds = [Fold("fold b", 1), Fold("fold c")]
    cost = {"a": 1.0, "b": 3.0, "c": 2.0}
    assert tasks(wave, folds, [], cost) == ([(Run("b", 1), folds[0]), (Run("c"), folds[1]), (Run("a", 2),)], [])
    assert tasks(wave, folds, ["c", "a", "b"], cost) == ([(Run("c"), Run("a", 2), folds[1], Run("b", 1), folds[0])], [])
    lanes, ordered = Wave((Run("a"), Run("a", 1))), [Fold("fold"), Fold("fold", 1)]
    assert tasks(lanes, ordered, [], cost) == ([(Run("a"),), (Run("a", 1),)], ordered)
