"""Replicated tensor sharding: what a replica keeps, what replicas bring together, and that an update of shares is that of the whole."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_strategies import FOUR, Cnn
from tile_checker import violations
from tile_models import build, mlp

import tileflow
from tileflow import nn
from tileflow.exploration.planning import analyzed
from tileflow.graph import Graph, TensorType, verify
from tileflow.optim import LAMB, SGD, Adam, AdamW, Optimizer
from tileflow.program.program import Program
from tileflow.system.errors import OptionError
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.machine import TileProgram, analyze
from tileflow.tiles.plans.plan import TileOptions
from tileflow.tiles.system.links import collective
from tileflow.tiles.system.sharding import SHARDED_FROM, ShareMove, share, shared_out
from tileflow.tiles.system.streaming import streaming_cycles

SMALL = chip("gc200").variant(name="small", tiles=16)
ALL = {"optimizer": 1, "weights": 1}


def training(optimizer: Optimizer | None = None) -> Program:
    return build(mlp(64, 130, 10), (16, 64), optimizer=optimizer or Adam(), accumulation=4)


def tiled(program: Program, replicas: int, **options: Any) -> TileProgram:
    found = analyze(program, SMALL, TileOptions(replicas=replicas, **options))
    assert not violations(found)
    return found


def states(found: TileProgram, kind: str) -> int:
    held = [s for s in found.memory_schedule.storages if s.state is not None and s.state.kind == kind]
    return sum(s.nbytes for s in held if s.state.owner not in ("", "optimizer"))


SIZES = (64 * 130, 130, 130 * 10, 10)


def test_a_share_is_padded() -> None:
    """PopART's example: [5, 2, 3] over 4 replicas is 8 elements each, of which the last has two padded."""
    assert share(5 * 2 * 3, 4) == 8
    assert SHARDED_FROM == 8192


@pytest.mark.parametrize("replicas", [2, 3, 4, 16])
def test_a_replica_keeps_its_share_of_the_optimizer_state(replicas: int) -> None:
    program = training()
    whole, shared = tiled(program, replicas), tiled(program, replicas, optimizer_sharded=True, min_elements_sharded=ALL)
    assert states(whole, "optimizer") == 2 * 4 * sum(SIZES)
    assert states(shared, "optimizer") == 2 * 4 * sum(share(n, replicas) for n in SIZES)
    freed = whole.categories["optimizer"].sum() - shared.categories["optimizer"].sum()
    assert freed == states(whole, "optimizer") - states(shared, "optimizer")
    padded = 4 * sum(replicas * share(n, replicas) for n in SIZES)
    assert [(c.kind, c.bytes, c.when) for c in shared.collectives] == [("reduce-scatter", padded, "before"), ("all-gather", padded, "after")]
    for c in shared.collectives:
        assert c.cycles == collective(c.kind, padded, replicas, SMALL).cycles
    steps = sum(s.phases.total * s.repeats for s in shared.steps)
    assert shared.cycles_per_update == steps + sum(c.cycles for c in shared.collectives)
    assert [s.phases for s in shared.steps if s.part == "micro"] == [s.phases for s in whole.steps if s.part == "micro"]
    assert steps < sum(s.phases.total * s.repeats for s in whole.steps), "each updates its share only"


def test_from_the_threshold_on() -> None:
    """8192 elements by default: the first weight has 8320, the second 1300."""
    program = training()
    assert set(tiled(program, 4, optimizer_sharded=True).shares.elements) == {"0.weight"}
    for least, names in ((8320, {"0.weight"}), (8321, set()), (1300, {"0.weight", "2.weight"}), (10, {"0.weight", "0.bias", "2.weight", "2.bias"})):
        found = tiled(program, 4, optimizer_sharded=True, min_elements_sharded={"optimizer": least})
        assert set(found.shares.elements) == names
    mixed = tiled(program, 4, optimizer_sharded=True)
    kinds = {c.kind: c.bytes for c in mixed.collectives}
    assert kinds == {"reduce-scatter": 4 * 8320, "all-gather": 4 * 8320, "all-reduce": 4 * (130 + 1300 + 10)}
    assert tiled(program, 1, optimizer_sharded=True).cycles_per_update == tiled(program, 1).cycles_per_update


def test_weights_as_shares_are_put_together_for_each_pass() -> None:
    program = training()
    shared = tiled(program, 4, optimizer_sharded=True, weights_sharded=True, min_elements_sharded=ALL)
    whole = {s.name: s for s in shared.memory_schedule.storages if s.share}
    assert {name: s.share for name, s in whole.items()} == {"0.weight": 2080, "0.bias": 33, "2.weight": 325, "2.bias": 3}
    assert not any(s.always_live for s in whole.values())
    assert sum(s.nbytes for s in shared.memory_schedule.storages if s.name.endswith(".shard") and s.always_live) == 4 * (2080 + 33 + 325 + 3)
    steps: dict[int, int] = {}
    for s in whole.values():
        for i in s.loads:
            steps[i] = steps.get(i, 0) + 4 * s.share * 4
    assert shared.gather_cycles == 4 * sum(collective("all-gather", n, 4, SMALL).cycles for n in steps.values()) > 0, "in each of 4 micro-batches"
    assert [c.kind for c in shared.collectives] == ["reduce-scatter"]
    kept = tiled(program, 4, optimizer_sharded=True, min_elements_sharded=ALL)
    assert shared.always_live.sum() < kept.always_live.sum()


def test_each_replica_fetches_its_share_from_streaming_memory() -> None:
    program = training()
    away = {"optimizer_off_chip": True, "weights_off_chip": True}
    whole = tiled(program, 4, **away)
    shared = tiled(program, 4, optimizer_sharded=True, weights_sharded=True, min_elements_sharded=ALL, **away)
    assert shared.off_chip == {"optimizer": 2 * 4 * (2080 + 33 + 325 + 3), "weights": 4 * (2080 + 33 + 325 + 3)}
    assert whole.off_chip == {"optimizer": 2 * 4 * sum(SIZES), "weights": 4 * sum(SIZES)}
    nbytes = 4 * 4 * (2080 + 33 + 325 + 3 + 325) + 2 * 4 * (2080 + 33 + 325 + 3) + 4 * 4 * (2080 + 33 + 325 + 3)
    assert 0 <= shared.streaming_cycles - streaming_cycles(nbytes, SMALL) < 60, "transfers are rounded up one by one"


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(lr=0.1, momentum=0.9), "adam": Adam(), "adamw, clipped": AdamW(weight_decay=0.1, max_grad_norm=0.5), "lamb": LAMB(lr=0.01)}


@pytest.mark.parametrize("weights", [False, True], ids=["whole weights", "shares of weights"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_of_shares_are_the_update(name: str, weights: bool) -> None:
    """The rewritten update is computed on each replica's share: together the shares are the whole update's states. Norms are of all replicas' shares,
    so of updates that have some only their number is looked at."""
    program, replicas = training(OPTIMIZERS[name]), 2
    new, shares = shared_out(program, replicas, 1, 1 if weights else None)
    before, after = program.parts["update"], new.parts["update"]
    verify(after)
    assert set(shares.elements) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert (shares.norms > 0) == (name in ("adamw, clipped", "lamb"))
    rng = np.random.default_rng(0)
    if shares.norms:
        return
    given = {s.name: (np.abs(rng.standard_normal(s.input.shape)) if s.input.shape else np.array(1.0)).astype(s.input.type.numpy)
             for s in before.states}
    wanted = _run(before, given)
    found: dict[str, list[np.ndarray]] = {}
    for r in range(replicas):
        own = {s.name: _part(given[s.name.removesuffix(".shard")], s.input.type, r) for s in after.states}
        for state, array in _run(after, own, r).items():
            found.setdefault(state.removesuffix(".shard"), []).append(array)
    for state, arrays in found.items():
        whole = wanted[state]
        if state.partition(".")[0] != "optimizer" and arrays[0].size != whole.size:
            np.testing.assert_array_equal(np.concatenate([a.ravel() for a in arrays])[:whole.size], whole.ravel(), err_msg=state)


def _part(array: np.ndarray, wanted: TensorType, replica: int) -> np.ndarray:
    """A replica's share of an array, zero padded, where the type is that of a share."""
    if array.shape == wanted.shape:
        return array
    n = wanted.size
    flat = np.zeros(n, array.dtype)
    piece = array.ravel()[replica * n:(replica + 1) * n]
    flat[:piece.size] = piece
    return flat.reshape(wanted.shape)


def _run(graph: Graph, given: dict[str, np.ndarray], replica: int = 0) -> dict[str, np.ndarray]:
    """New states by name, with Pieces as a replica takes them; what a replica puts together stays its share."""
    values: dict[Any, Any] = {s.input: given[s.name] for s in graph.states} | dict(graph.constants)
    for node in graph.nodes:
        if isinstance(node.op, ShareMove):
            source = values[node.inputs[0]]
            values[node.outputs[0]] = source if node.outputs[0].type.size > source.size else _part(source, node.outputs[0].type, replica)
            continue
        results = node.op.reference(*[None if v is None else values[v] for v in node.inputs])
        values.update(zip(node.outputs, results, strict=True))
    return {s.name: np.asarray(values[s.output]) for s in graph.states if s.output is not None}


def test_a_combined_velocity_stays_whole() -> None:
    program = training(SGD(lr=0.1, momentum=0.9, use_combined_accum=True))
    found = tiled(program, 4, optimizer_sharded=True, min_elements_sharded=ALL)
    assert not found.shares.elements
    assert [c.kind for c in found.collectives] == ["all-reduce"]


def test_stages_of_replicas_share_out_and_analyses_may_be_repeated() -> None:
    machine: dict[str, Any] = {"training": True, "machine": {"base": "gc200", "tiles": 16, "name": "small"}, "inputs": [(2, 1, 12, 12)],
                               "optimizer": "adam", "gradient_accumulation": 9, "replication_factor": 2, **FOUR.to_options()}
    whole = tileflow.compile(Cnn(), **machine)
    shared = tileflow.compile(Cnn(), optimizer_sharded=True, min_elements_sharded=64, **machine)
    assert sorted(shared.tiled.shares.elements) == ["hidden.weight", "last.weight", "second.weight"]
    assert sorted((c.kind, c.ipu) for c in shared.tiled.collectives if c.kind != "all-reduce") == [
        (kind, ipu) for kind in ("all-gather", "reduce-scatter") for ipu in (1, 2, 3)]
    most = [max(i.memory.categories["optimizer"].sum() for i in found.tiled.ipus) for found in (shared, whole)]
    assert most[0] < most[1]
    given = {name: value for name, value in machine.items() if name not in ("training", "inputs")}
    again = analyzed(shared, tileflow.Options(optimizer_sharded=True, min_elements_sharded=64, **given))
    assert again.cycles_per_update == shared.tiled.cycles_per_update
    assert again.shares.elements == shared.tiled.shares.elements
    assert "Each of the 2 replicas keeps a share of the optimizer state" in shared.to_text()
    with pytest.raises(OptionError, match="what replicas share out"):
        shared.tile_exact()


def test_the_host_computes_the_same_bits() -> None:
    x, y = np.random.default_rng(0).standard_normal((8, 6)).astype("f4"), np.arange(8) % 3
    found = []
    for options in ({}, {"optimizer_sharded": True, "min_elements_sharded": 1}):
        nn.manual_seed(0)
        net = nn.Linear(6, 3)
        model = tileflow.training_model(net, tileflow.Options(replication_factor=2, optimizer="adam", **options))
        model(x, y)
        found.append(net.state_dict())
    assert all(found[0][k].tobytes() == found[1][k].tobytes() for k in found[0])


def test_poptorchs_settings_are_these_options(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("replicationFactor(4)\n"
                    "TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False)"
                    ".useReplicatedTensorSharding().minElementsForReplicatedTensorSharding(4))\n"
                    "TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)"
                    ".minElementsForReplicatedTensorSharding(16))\n", encoding="utf-8")
    assert tileflow.Options.load(path) == tileflow.Options(
        replication_factor=4, optimizer_off_chip=True, optimizer_sharded=True, weights_sharded=True,
        min_elements_sharded={"optimizer": 4, "weights": 16})
    path.write_text("TensorLocations.setAccumulatorLocation(poptorch.TensorLocationSettings().useReplicatedTensorSharding(True))", encoding="utf-8")
    with pytest.warns(UserWarning, match="has no effect: replicas share out weights and optimizer state"):
        assert tileflow.Options.load(path) == tileflow.Options()


@pytest.mark.parametrize(("options", "says"), [
    ({"optimizer_sharded": True}, "has no effect without replicas"),
    ({"weights_sharded": True, "replication_factor": 2}, "needs optimizer_sharded"),
    ({"min_elements_sharded": 4, "replication_factor": 2}, "it is for optimizer_sharded"),
])
def test_what_has_no_effect_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        tileflow.compile(mlp(64, 32, 10), training=True, machine="gc200", inputs=[(8, 64)], **options)


def test_a_network_without_large_tensors_says_so() -> None:
    compiled = tileflow.compile(mlp(64, 32, 10), training=True, machine="gc200", inputs=[(8, 64)], replication_factor=2, optimizer_sharded=True)
    assert "No tensor is shared out over the replicas" in compiled.to_text()


