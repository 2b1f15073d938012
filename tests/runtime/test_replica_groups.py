"""Weights that not all replicas share: groups of one are separate runs, one group of all is none; what is read, set, saved and refused."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from said import Said

import tileflow
from tileflow import nn, optim
from tileflow.program.replicas import Grouping
from tileflow.system.errors import DataError, OptionError, TileflowError

rng = np.random.default_rng(5)
X = rng.standard_normal((48, 2, 6, 6)).astype(np.float32)
Y = rng.integers(0, 4, 48)
R, A = 4, 3
"""Replicas and accumulation: 48 rows are micro-batches of four."""
LINEAR = "5.weight"


def network() -> nn.Module:
    """Weights that are laid out for the kernels once per update, running statistics, and a layer's bias."""
    nn.manual_seed(1)
    return nn.Sequential(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 4))


def trained(net: nn.Module, x: np.ndarray = X, y: np.ndarray = Y, calls: int = 2, optimizer: Any = None, **options: Any) -> tuple[Any, list[Any]]:
    """The model after some calls, and what they returned."""
    given = {"output_mode": "all", "accumulation_reduction": "sum", "gradient_accumulation": A, **options}
    model = tileflow.training_model(net, optimizer=optimizer or optim.AdamW(lr=0.01), **given)
    return model, [model(x, y) for _ in range(calls)]


def rows_of(replica: int) -> tuple[np.ndarray, np.ndarray]:
    """A replica's rows of all of X."""
    return X.reshape(A, R, 4, *X.shape[1:])[:, replica].reshape(-1, *X.shape[1:]), Y.reshape(A, R, 4)[:, replica].reshape(-1)


OPTIMIZERS = {
    "sgd": lambda: optim.SGD(lr=0.05, momentum=0.9), "adamw": lambda: optim.AdamW(lr=0.01, groups=[{"params": "*.bias", "lr": 0.1}]),
    "combined": lambda: optim.SGD(lr=0.05, momentum=0.9, use_combined_accum=True), "lamb": lambda: optim.LAMB(lr=0.01),
    "no decay": lambda: optim.Adam(lr=0.01, weight_decay=0.1, no_decay=("auto",))}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", *(pytest.param(x, marks=pytest.mark.exhaustive) for x in ("combined", "lamb", "no decay"))])
def test_groups_of_one_are_separate_runs(optimizer: str):
    """Weights, moments, running statistics, outputs and losses, to the bit: as many trainings as replicas, each of its own rows."""
    several, returned = trained(network(), optimizer=OPTIMIZERS[optimizer](), replication_factor=R, replica_grouping={"*": "no_grouping"},
                                broadcast_buffers=False)
    moments = several.optimizer_state_dict()
    for replica in range(R):
        alone, wanted = trained(network(), *rows_of(replica), optimizer=OPTIMIZERS[optimizer]())
        for name, array in alone.state_dict().items():
            np.testing.assert_array_equal(several.state_dict(replica)[name], array, err_msg=name)
        for name, array in alone.optimizer_state_dict().items():
            if name == "optimizer.micro_batches":                                  # all replicas' count, for random streams follow it
                assert moments[name] == R * array
                continue
            whose = next((p for p in alone.state_dict() if name.startswith(f"{p}.")), None)
            mine = name if whose is None or replica == 0 else f"{whose}@{replica}{name[len(whose):]}"
            np.testing.assert_array_equal(moments[mine], array, err_msg=name)
        for found, own in zip(returned, wanted, strict=True):
            for a, b in zip(found, own, strict=True):
                np.testing.assert_array_equal(a.reshape(A, R, -1)[:, replica].reshape(b.shape), b)


def same(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_one_group_of_all_is_no_group():
    wanted, _ = trained(network(), replication_factor=R)
    found, _ = trained(network(), replication_factor=R, replica_grouping={"*": "all", "5.*": "consecutive:4"})
    same(wanted.state_dict(), found.state_dict())
    assert found.program.own == {}
    assert found.replica_state_dict() == {}


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_and_iterations_change_nothing(threads: int):
    grouping = {LINEAR: "orthogonal:2", "0.*": "no_grouping"}
    wanted, _ = trained(network(), replication_factor=R, replica_grouping=grouping, calls=3, gradient_accumulation=1, x=X[:16], y=Y[:16])
    found, _ = trained(network(), replication_factor=R, replica_grouping=grouping, calls=1, gradient_accumulation=1, device_iterations=3,
                       x=np.tile(X[:16], (3, 1, 1, 1)), y=np.tile(Y[:16], 3), threads=threads)
    same(wanted.replica_state_dict(), found.replica_state_dict())
    same(wanted.state_dict(), found.state_dict())


def test_shared_weights_sum_over_all_and_grouped_ones_over_their_group():
    """Where all replicas get the same rows, a group of k has k / R of the gradient: SGD with k / R of the rate, a power of two."""
    found, _ = trained(network(), X[:12], Y[:12], optimizer=optim.SGD(lr=0.5), accumulation_reduction="mean", replication_factor=R,
                       input_group_size=R, replica_grouping={LINEAR: "consecutive:2", "0.weight": "no_grouping"})
    wanted, _ = trained(network(), X[:12], Y[:12], accumulation_reduction="mean",
                        optimizer=optim.SGD(lr=0.5, groups=[{"params": LINEAR, "lr": 0.25}, {"params": "0.weight", "lr": 0.125}]))
    for replica in range(R):
        for name, array in wanted.state_dict().items():
            if "running" not in name and "tracked" not in name:
                np.testing.assert_allclose(found.state_dict(replica)[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


class Product(nn.Module):
    """Columns of a product; the loss is the mean of their squares."""

    def __init__(self, w: np.ndarray) -> None:
        self.w = nn.Parameter(w)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return ((x @ self.w) ** 2).mean()


@pytest.mark.parametrize("orthogonal_rows", [True, False])
def test_weights_in_four_and_rows_in_two(orthogonal_rows: bool):
    """The reference system's own test: eight replicas, the columns of a weight in four groups and the rows in two, are one product on one machine, in
    both directions. Gradients are a group's sum over the number of all replicas, else the weights would move four times as far."""
    draw = np.random.default_rng(100)
    x, w = draw.standard_normal((24, 40)).astype(np.float32), (draw.standard_normal((40, 56)) * 40 ** -0.5).astype(np.float32)
    shards = np.ascontiguousarray(w.reshape(40, 4, 14).transpose(1, 0, 2))
    whole, losses = w.astype(np.float64), []
    for _ in range(4):
        z = x @ whole
        losses.append(np.square(z).mean())
        whole = whole - 0.01 * (x.T @ (2 * z) / z.size)
    rows, weights = ("orthogonal", "consecutive") if orthogonal_rows else ("consecutive", "orthogonal")
    model = tileflow.training_model(Product(shards[0]), optimizer=optim.SGD(lr=0.01), loss="identity", replication_factor=8, input_group_size=4,
                                    input_group_type=rows, output_mode="all", replica_grouping={"w": f"{weights}:2"})
    model.compile(x)
    model.load_replica_state_dict({"w": shards})
    for wanted in losses:
        np.testing.assert_allclose(np.mean(model(x)), wanted, atol=1e-6)
    found = model.replica_state_dict()["w"]
    np.testing.assert_allclose(found.transpose(1, 0, 2).reshape(40, 56), whole, atol=1e-6)


STAGES: dict[str, dict[str, Any]] = {
    "pipelined": {"strategy": "pipelined", "pipeline_splits": ("1", "5"), "gradient_accumulation": 6},
    "kept": {"strategy": "pipelined", "pipeline_splits": ("5",), "pipeline_recompute": False},
    "1f1b": {"strategy": "pipelined", "pipeline_splits": ("5",), "pipeline_schedule": "1f1b"},
    "sharded": {"strategy": "sharded", "pipeline_splits": ("1", "5")},
    "serial": {"strategy": "serial_phased", "pipeline_splits": ("1", "5"), "tensors_liveness": "off_chip_after_each_phase"},
    "parallel": {"strategy": "parallel_phased", "pipeline_splits": ("1", "5"), "separate_backward_phase": True}}


@pytest.mark.parametrize("name", STAGES)
def test_in_stages_groups_are_what_they_are_on_one_ipu(name: str):
    """Weights, what is made of them once per update, moments, statistics, outputs: of replicas with weights of their own and of groups that share
    some. So groups of one are separate runs in stages, too."""
    stages: dict[str, Any] = {"auto_round_num_ipus": True, **STAGES[name]}
    rows = A * R * 4 if "gradient_accumulation" not in stages else 6 * R * 2
    x, y = X[:rows], Y[:rows]
    for grouping in ({"*": "no_grouping"}, {LINEAR: "orthogonal:2", "0.*": "no_grouping"}):
        one = {"replication_factor": R, "replica_grouping": grouping, "broadcast_buffers": len(grouping) > 1,
               "gradient_accumulation": stages.get("gradient_accumulation", A)}
        alone, wanted = trained(network(), x, y, **one)
        found, results = trained(network(), x, y, threads=2, **{**one, **stages})
        assert [part for part in found.plan.parts if part.startswith("stage")], "the program is really cut"
        assert found.plan.in_flight["prologue"] == R
        for read in ("state_dict", "replica_state_dict", "optimizer_state_dict"):
            same(getattr(alone, read)(), getattr(found, read)())
        for a, b in zip(wanted, results, strict=True):
            for p, q in zip(a, b, strict=True):
                np.testing.assert_array_equal(p, q)


def test_inference_in_stages_by_replicas():
    net, grouping = network(), {"0.*": "no_grouping", "5.*": "consecutive:2"}
    trained(net, replication_factor=R, replica_grouping=grouping)
    one = tileflow.inference_model(net, replication_factor=R, device_iterations=3, replica_grouping=grouping)
    for strategy in ("pipelined", "sharded"):
        several = tileflow.inference_model(net, replication_factor=R, device_iterations=3, replica_grouping=grouping, strategy=strategy,
                                           pipeline_splits=("5",))
        np.testing.assert_array_equal(one(X), several(X))
    assert not np.array_equal(several.state_dict(0)["5.weight"], several.state_dict(2)["5.weight"])


# ---- what is read and set


def test_one_array_for_each_group_or_for_each_replica():
    grouping = {LINEAR: "consecutive:2:all_replicas", "0.*": "orthogonal:2"}
    model, _ = trained(network(), replication_factor=R, replica_grouping=grouping, broadcast_buffers=False)
    found = model.replica_state_dict()
    assert {name: len(a) for name, a in found.items() if "running" not in name} == {"0.weight": 2, "0.bias": 2, LINEAR: 4}
    assert len(found["1.running_mean"]) == R
    for replica, (linear, conv) in enumerate([(0, 0), (1, 1), (2, 0), (3, 1)]):
        own = model.state_dict(replica)
        np.testing.assert_array_equal(own[LINEAR], found[LINEAR][linear])
        np.testing.assert_array_equal(own["0.weight"], found["0.weight"][conv])
        np.testing.assert_array_equal(own["1.running_mean"], found["1.running_mean"][replica])
        np.testing.assert_array_equal(own["5.bias"], model.state_dict()["5.bias"])
    np.testing.assert_array_equal(found[LINEAR][0], found[LINEAR][1])
    assert not np.array_equal(found[LINEAR][1], found[LINEAR][2])
    changed = {name: a + 1 for name, a in found.items()}
    model.load_replica_state_dict(changed)
    same(model.replica_state_dict(), changed)
    model.load_replica_state_dict({LINEAR: changed[LINEAR][::2] * 2})          # one for each group is enough
    np.testing.assert_array_equal(model.replica_state_dict()[LINEAR], changed[LINEAR] * 2)
    model.load_state_dict(network().state_dict())                              # what is everybody's sets all
    assert (model.replica_state_dict()[LINEAR] == network().state_dict()[LINEAR]).all()


def test_inference_by_replicas():
    net = network()
    trained(net, replication_factor=R, replica_grouping={"5.*": "consecutive:2"})
    model = tileflow.inference_model(net, replication_factor=R, device_iterations=3, replica_grouping={"5.*": "consecutive:2"})
    scores = model(X).reshape(3, R, 4, 4)
    for replica in range(R):
        other = network()
        other.load_state_dict(model.state_dict(replica))
        wanted = tileflow.inference_model(other, device_iterations=3)(rows_of(replica)[0])
        np.testing.assert_array_equal(scores[:, replica].reshape(-1, 4), wanted)
    assert not np.array_equal(model.state_dict(0)["5.weight"], model.state_dict(2)["5.weight"])


@pytest.mark.parametrize(("tensors", "sentence"), [
    ({}, "got nothing by name"), ({"5.bias": np.zeros((2, 4))}, r"of their own of 0\.weight, 5\.weight, .*; got 5\.bias"),
    ({LINEAR: 1.0}, "Scalars cannot be passed as per-replica weight tensor values"),
    ({LINEAR: np.zeros((3, 4, 32))}, r"'5\.weight' has 3 arrays in its first dimension, and there are 2 groups of replicas"),
    ({LINEAR: np.zeros((2, 4, 31))}, r"'5\.weight(@1)?' is float32\[4, 32\], got float64\[4, 31\]"),
    ({LINEAR: np.arange(4 * 128).reshape(4, 4, 32) * 1.0}, "replicas of one group would get different weights")])
def test_what_cannot_be_set(tensors: dict[str, Any], sentence: str):
    grouping = {LINEAR: "consecutive:2:all_replicas", "0.weight": "no_grouping"}
    model = tileflow.training_model(network(), replication_factor=R, replica_grouping=grouping, broadcast_buffers=False)
    with pytest.raises(TileflowError, match="not been compiled"):
        model.replica_state_dict()
    model.compile(X[:4], Y[:4])
    before = model.replica_state_dict()
    with pytest.raises(DataError, match=sentence):
        model.load_replica_state_dict(tensors)
    same(model.replica_state_dict(), before)
    with pytest.raises(OptionError, match="There is no replica 4; the model has 4, counted from 0"):
        model.state_dict(replica=4)


@pytest.mark.parametrize(("options", "sentence"), [
    ({"replica_grouping": {"5.*": "consecutive:2"}, "replication_factor": 1}, "has no effect without replicas"),
    ({"replica_grouping": {"5.*": "consecutive:3"}}, "the size of 5\\.\\*=consecutive:3 must be a factor of replication_factor, and there are 4"),
    ({"replica_grouping": {"5.*": "orthogonal:8"}}, "cannot be larger than replication_factor"),
    ({"replica_grouping": {"5.*": "consecutive"}}, "must be a table of name patterns and TYPE:SIZE"),
    ({"replica_grouping": {"5.*": "no_grouping:2"}}, "must be a table of name patterns and TYPE:SIZE"),
    ({"replica_grouping": {"6.*": "no_grouping"}}, r"the pattern '6\.\*' fits no parameter; they are 0\.weight, 0\.bias"),
    ({"max_grad_norm": 1.0}, "max_grad_norm would have another norm for each replica"),
    ({"mean_reduction_strategy": "running"}, "a running mean of gradients is over the micro-batches of all replicas"),
    ({"accum_type": "float16"}, "float16 accumulators take running by themselves")])
def test_what_is_refused(options: dict[str, Any], sentence: str):
    with pytest.raises(OptionError, match=sentence):
        tileflow.training_model(network(), **{"replication_factor": R, "replica_grouping": {"5.*": "consecutive:2"}, **options}).compile(X[:4], Y[:4])


def test_the_groups_of_the_reference():
    assert Grouping("consecutive", 2).groups(6) == (0, 0, 1, 1, 2, 2)
    assert Grouping("orthogonal", 2).groups(6) == (0, 1, 2, 0, 1, 2)
    assert Grouping("no_grouping").groups(3) == (0, 1, 2)
    assert Grouping("all").groups(3) == (0, 0, 0)
    assert tileflow.Options(replication_factor=2, replica_grouping={"a": "consecutive:2:one_per_group", "b": "all"}).replica_grouping == {
        "a": "consecutive:2", "b": "all"}


# ---- whole runs

def test_a_run_of_a_file_is_resumed_and_says_whose_weights_it_writes(tmp_path: Path):
    nn.manual_seed(1)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
    tileflow.save_onnx(plain, tmp_path / "plain.onnx", np.zeros((1, 1, 8, 8), np.float32))

    def run(folder: str, epochs: int, **more: Any) -> tuple[tileflow.TrainResult, Said]:
        said = Said()
        return tileflow.train(tmp_path / "plain.onnx", data="digits", epochs=epochs, micro_batch_size=16, gradient_accumulation=2,
                              replication_factor=2, max_batches=4, replica_grouping={"3*": "no_grouping"}, out=str(tmp_path / folder),
                              callbacks=[said], **more), said
    (whole, said), _ = run("whole", 2), run("parts", 1)
    resumed, _ = run("parts", 2, resume=True)
    same(whole.model.replica_state_dict(), resumed.model.replica_state_dict())
    assert not np.array_equal(*whole.model.replica_state_dict()["3.weight"])
    same(whole.model.optimizer_state_dict(), resumed.model.optimizer_state_dict())
    assert any("a file has those of replica 0" in sentence for sentence in said.sentences)
    written = tileflow.inference_model(tmp_path / "whole" / "model.onnx").state_dict()
    same(written, {name: array for name, array in whole.model.state_dict(0).items() if name in written})
    with pytest.warns(UserWarning, match="a file has those of replica 0"):
        whole.model.save_onnx(tmp_path / "again.onnx")
    with pytest.raises(OptionError, match="drop_last=False the last rows would train the weights of replica 0 only"):
        run("rest", 1, drop_last=False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [{"precision": "16-mixed", "loss_scaling": 64.0}, {"precision": "bf16-true", "master_weights": "remainder"},
                                     {"precision": "64"}, {"gradient_checkpointing": ("0",)}, {"detect_anomaly": True}], ids=str)
def test_groups_of_one_are_separate_runs_in_every_precision(options: dict[str, Any]):
    several, _ = trained(network(), replication_factor=R, replica_grouping={"*": "no_grouping"}, broadcast_buffers=False, **options)
    for replica in range(R):
        alone, _ = trained(network(), *rows_of(replica), **options)
        same(several.state_dict(replica), alone.state_dict())
