"""Option optimizer_sharded: each process keeps slices of the optimizer's states, and all bits are those of one
process."""
from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from groups import forked
from test_resumed import SCALE, Torn, digest
from tileflow.errors import OptionError, ProcessError, TileflowError, TrainingError, WeightsLostError
from trained_networks import OPTIMIZERS, PRECISIONS

import tileflow
from tileflow import callbacks, collective, nn, optim
from tileflow.collective.shared import SharedMemory
from tileflow.lower.shards import UNIT
from tileflow.runtime.checkpoint import load_tensors

MICRO, REPLICAS, INNER = 3, 4, 900
SHARDED = {"optimizer_sharded": True}
OPTIMIZER = {**OPTIMIZERS, "rmsprop": lambda: optim.RMSprop(lr=0.001, momentum=0.9, centered=True),
             "clipped-lamb": lambda: optim.LAMB(lr=0.01, max_grad_norm=0.5),
             "averaged": lambda: optim.AdamW(lr=0.01, average=0.9)}
PRECISION = {**PRECISIONS, "drawn": {"precision": "bf16-true", "stochastic_rounding": True},
             "rests": {"precision": "16-true", "master_weights": "remainder", "loss_scaling": 64.0}}


class TwoHosts(SharedMemory):
    """Processes that have no memory in common."""

    on_one_host = False


def broad() -> nn.Module:
    """A weight of 36,000 elements, which is 9 units, one of 4500, which is two, and others that every process keeps
    whole."""
    return nn.Sequential(nn.Linear(40, INNER), nn.BatchNorm1d(INNER), nn.ReLU(), nn.Dropout(0.2), nn.Linear(INNER, 5))


def model_of(net: nn.Module, optimizer: Any, **options: Any) -> Any:
    return tileflow.training_model(net, optimizer=optimizer,
                                   **{"gradient_accumulation": 2, "replication_factor": REPLICAS, "threads": 1,
                                                                "micro_batch_size": MICRO, "device_iterations": 2,
                                                                **options})


def called(model: Any, calls: int = 2, scale: float = 1.0) -> list[np.ndarray]:
    draw, o = np.random.default_rng(0), model.options
    rows = o.device_iterations * o.gradient_accumulation * o.replication_factor * o.micro_batch_size
    found: list[np.ndarray] = []
    for _ in range(calls):
        x = scale * draw.standard_normal((rows, 40)).astype(np.float32)
        found += model(x.astype(model.source.input_dtype(0, x)), draw.integers(0, 5, rows))
    return found


def trained(optimizer: str, precision: str, **options: Any) -> tuple[dict[str, bytes], list[bytes], int]:
    """States after some calls, with optimizer states taken out and given back in between; all outputs; the updates that
    were skipped."""
    nn.manual_seed(1)
    net = broad()
    model = model_of(net, OPTIMIZER[optimizer](), **PRECISION[precision], **options)
    outputs = called(model)
    before = model.optimizer_state_dict()
    model.load_optimizer_state_dict(before)
    outputs += called(model, 1)
    states = {**net.state_dict(), **model.optimizer_state_dict()}
    taken = {n: np.ascontiguousarray(a).tobytes() for n, a in states.items()}
    return taken, [np.ascontiguousarray(a).tobytes() for a in outputs], model.skipped_updates


FIRST = [("adamw", "float32", 3, 2, SharedMemory), ("lamb", "mixed", 2, 1, TwoHosts)]
EVERY = [(o, p, 2 + (i + j // 2) % 3, 1 + i % 2, (SharedMemory, TwoHosts)[(i + j // 2) % 2])
         for i, o in enumerate(OPTIMIZER) for j, p in enumerate(PRECISION) if (i + j) % 2 == 0]


@pytest.mark.parametrize(("optimizer", "precision", "size", "threads", "kind"), [
    *FIRST, *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in EVERY if case not in FIRST)])
def test_bits_are_those_of_one_process(optimizer, precision, size, threads, kind, tmp_path):
    alone = trained(optimizer, precision)
    assert trained(optimizer, precision, **SHARDED) == alone, "one process keeps all"
    assert forked(tmp_path, size, lambda rank: trained(optimizer, precision, threads=threads, **SHARDED),
                  kind=kind) == [alone] * size


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [
    {"sync_each_batch": False}, {"broadcast_buffers": False}, {"gradient_noise": True}, {"reduce_dtype": "bfloat16"},
    {"frozen": ("0.weight",)}, {"replication_factor": 6, "gradient_accumulation": 1, "device_iterations": 1}], ids=str)
def test_other_options_of_training_go_along(options, tmp_path):
    alone = trained("adamw", "float32", **options)
    for kind in (SharedMemory, TwoHosts):
        found = forked(tmp_path / kind.__name__, 2, lambda rank: trained("adamw", "float32", **options, **SHARDED),
                       kind=kind)
        assert found == [alone] * 2


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_process_keeps_its_share_of_the_states_and_updates_that_share(size, tmp_path):
    def held(rank: int) -> Any:
        model = model_of(broad(), optim.AdamW(lr=0.01), **SHARDED)
        called(model, 1)
        session = model.source.session
        rows = sorted({row.n for row in model.plan.parts["update"].every_row()})
        states, weights = ({n: session[n].nbytes for n in session.names(kind)} for kind in ("optimizer", "parameter"))
        return states, weights, rows
    each = forked(tmp_path, size, held)
    whole, weights, _ = held(0)
    large = {f"{name}.{slot}": n for name, n in weights.items()
             for slot in ("exp_avg", "exp_avg_sq") if -(-n // 4 // UNIT) >= size}
    assert {n for n in large if n.startswith("0.weight")} == {"0.weight.exp_avg", "0.weight.exp_avg_sq"}
    for name, n in whole.items():
        parts = [states[name] for states, _, _ in each]
        if name in large:
            assert sum(parts) == n, "each element is kept once"
            assert max(parts) <= n / size + 4 * UNIT
        else:
            assert parts == [n] * size
    own = [n // 4 for n in (states["0.weight.exp_avg"] for states, _, _ in each)]
    assert sum(own) == 40 * INNER
    assert all(n in rows and 40 * INNER not in rows for n, (_, _, rows) in zip(own, each, strict=True)), \
        "the update goes over that share only"
    assert all(held == weights for _, held, _ in each), "weights are whole everywhere"


# ---- runs: checkpoints are whole, whoever has written them and whoever goes on


def run(folder: Path, optimizer: str, precision: str, **more: Any) -> None:
    """Train on rows that fill no whole number of updates, or go on with what is there."""
    nn.manual_seed(1)
    x = np.random.default_rng(0).standard_normal((59, 40)).astype(np.float32)
    tileflow.train(broad(), data=(x, np.arange(59) % 5), validation_split=0.2, epochs=2, micro_batch_size=2,
                   replication_factor=REPLICAS, seed=3,
                   gradient_accumulation=2, drop_last=False, optimizer=OPTIMIZER[optimizer](), loss="cross_entropy",
                   save_every_updates=1,
                   out=str(folder), resume=(folder / "checkpoint.safetensors").exists(), threads=1,
                   **{**PRECISION[precision], **(SCALE if precision == "half" else {}), **more})


RUNS = [("adamw", "float32"), *(pytest.param(*case, marks=pytest.mark.exhaustive)
                                for case in (("clipped", "mixed"), ("lamb", "half"), ("lamb", "float32")))]


@pytest.mark.filterwarnings("ignore::tileflow.TileflowWarning")
@pytest.mark.parametrize(("optimizer", "precision"), RUNS)
def test_a_run_that_fails_goes_on_with_another_number_and_with_or_without_the_option(optimizer, precision, tmp_path):
    run(tmp_path / "alone", optimizer, precision)
    for failing, more, before, after in ((2, 3, True, True), (3, 1, True, False), (2, 4, False, True)):
        folder = tmp_path / f"{failing}-{more}"
        found = forked(tmp_path / f"{failing}-fail{more}", failing,
                       lambda rank, to=folder, on=before: run(to, optimizer, precision, optimizer_sharded=on,
                                                              callbacks=[Torn()]))
        assert all(isinstance(error, ProcessError | RuntimeError) for error in found), found
        assert digest(folder) != digest(tmp_path / "alone")
        found = forked(tmp_path / f"{more}-on{failing}", more,
                       lambda rank, to=folder, on=after: run(to, optimizer, precision, optimizer_sharded=on))
        assert found == [None] * more
        assert digest(folder) == digest(tmp_path / "alone")


class Kept(callbacks.Callback):
    """Asks for a checkpoint in the middle of the run, halves a weight, and looks at what it must not."""

    def next_update(self, updates: int) -> int:
        return updates + 1

    def on_train_batch_end(self, batch: int, logs: Any) -> None:
        if self.run.updates == 2:
            self.run.save("kept")
            weights = self.run.model.state_dict()
            self.run.model.load_state_dict({**weights, "0.weight": weights["0.weight"] / 2})
            if self.run.model.source.session.parts:
                with pytest.raises(TileflowError, match="this one is alone here, as callbacks are"):
                    self.run.model.optimizer_state_dict()


@pytest.mark.filterwarnings("ignore::tileflow.TileflowWarning")
@pytest.mark.parametrize("precision", ["float32", pytest.param("rests", marks=pytest.mark.exhaustive)])
def test_callbacks_keep_checkpoints_and_set_weights(precision, tmp_path):
    run(tmp_path / "alone", "adamw", precision, callbacks=[Kept()])
    found = forked(tmp_path / "group", 2,
                   lambda rank: run(tmp_path / "run", "adamw", precision, callbacks=[Kept()], **SHARDED))
    assert found == [None] * 2
    assert digest(tmp_path / "run") == digest(tmp_path / "alone")
    for folder in ("run", "alone"):
        (tmp_path / folder / "checkpoint.safetensors").unlink()
        (kept,) = [p for p in (tmp_path / folder).iterdir() if "kept" in p.name and p.suffix == ".safetensors"]
        kept.rename(tmp_path / folder / "checkpoint.safetensors")
    assert digest(tmp_path / "run") == digest(tmp_path / "alone")


# ---- updates that fail, and what is refused


class Pushed(nn.Module):
    """A large weight whose gradient is what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * UNIT, 1, bias=False)

    def forward(self, x: Any) -> Any:
        return self.linear(x).sum()


def pushed(half: bool, **options: Any) -> tuple[Any, bool]:
    """Two updates, of which the second would make the last element of the weight, and that alone, infinite: the error,
    and whether the weight is as it was."""
    net = Pushed()
    net.load_state_dict({"linear.weight": np.zeros((1, 3 * UNIT), np.float32)})
    model = tileflow.training_model(net, optimizer=optim.SGD(lr=2e4 if half else 1e38, momentum=0.9), loss="identity",
                                    replication_factor=3, threads=1, micro_batch_size=1, accumulation_reduction="sum",
                                    precision="16-true" if half else "32-true", **options)
    x = np.zeros((3, 3 * UNIT), np.float16 if half else np.float32)
    x[:, -1] = 1
    model(x)
    before = net.state_dict()["linear.weight"].copy()
    with pytest.raises(TrainingError) as raised:
        model(x)
    error, after = raised.value, net.state_dict()["linear.weight"]
    return (type(error), str(error), model.source.session.updates), bool((before == after).all())


@pytest.mark.parametrize(("half", "kind"), [(True, TrainingError), (False, WeightsLostError)])
def test_an_update_that_fails_in_one_process_fails_in_all(half, kind, tmp_path):
    alone = pushed(half)
    assert alone[0][0] is kind
    assert alone[1] is half, "what 16 bits cannot hold is refused before anything is written"
    found = forked(tmp_path, 3, lambda rank: pushed(half, **SHARDED))
    assert [error for error, _ in found] == [alone[0]] * 3
    assert not half or all(kept for _, kept in found)


def failing(folder: Path, what: str, **options: Any) -> None:
    """A run whose second update fails in all processes, or in one that has the word."""
    class Raises(callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any) -> None:
            if what == "callback":
                raise RuntimeError("boom")
    x = np.zeros((8, 3 * UNIT), np.float32)
    x[:4, 0] = 1
    x[4:, -1] = {"loss": np.nan, "gradient": 3e38, "callback": 0}[what]        # of which the sum is infinite
    net = Pushed()
    net.load_state_dict({"linear.weight": np.zeros((1, 3 * UNIT), np.float32)})
    tileflow.train(net, data=(x,), loss="identity", optimizer=optim.AdamW(lr=0.1, weight_decay=0), shuffle=False,
                   accumulation_reduction="sum", micro_batch_size=1, replication_factor=4, epochs=1, threads=1,
                   out=str(folder), progress=False,
                   callbacks=[Raises()], **options)


@pytest.mark.filterwarnings("ignore::tileflow.TileflowWarning")
@pytest.mark.parametrize(("what", "says"), [("loss", "The loss is not finite"),
                                            ("gradient", "The loss is finite but the gradient of linear.weight")])
@pytest.mark.parametrize("kind", [SharedMemory, TwoHosts])
def test_a_run_that_fails_in_all_processes_leaves_its_state_whole(what, says, kind, tmp_path):
    """As one process leaves it. The last element of the gradient is that of the last process."""
    with pytest.raises(TrainingError, match=says):
        failing(tmp_path / "alone", what)
    found = forked(tmp_path / "group", 3, lambda rank: failing(tmp_path / "run", what, **SHARDED), kind=kind)
    assert [type(error) for error in found] == [TrainingError] * 3, found
    assert all(says in str(e) and "before the failure is saved in" in "".join(e.__notes__) for e in found)
    alone, group = (load_tensors(tmp_path / name / "checkpoint.failed")[0] for name in ("alone", "run"))
    assert {n: a.tobytes() for n, a in group.items()} == {n: a.tobytes() for n, a in alone.items()}
    assert next(a for n, a in alone.items() if n.endswith("linear.weight.exp_avg")).any()


@pytest.mark.filterwarnings("ignore::tileflow.TileflowWarning")
def test_a_run_that_fails_in_one_process_has_no_whole_state(tmp_path):
    """Without the option the first one has all of it."""
    for on in (True, False):
        folder = tmp_path / f"run{on}"
        found = forked(tmp_path / f"group{on}", 2, lambda rank, to=folder, on=on: failing(to, "callback",
                                                                                         optimizer_sharded=on))
        assert [type(error) for error in found] == [RuntimeError, ProcessError]
        assert (folder / "checkpoint.failed").exists() is not on


def test_what_is_not_divided_is_refused(tmp_path):
    velocity = {"optimizer": optim.SGD(lr=0.1, momentum=0.9, use_combined_accum=True)}
    for options, sentence in ((velocity, "use_combined_accum adds gradients to it"),
                              ({"replica_grouping": {"0.weight": "no_grouping"}},
                               "with replica_grouping some have weights of their own")):
        def work(rank: int, options: Any = options, on: bool = True) -> Any:
            model = model_of(broad(), **{"optimizer": optim.SGD(lr=0.1, momentum=0.9), **options}, optimizer_sharded=on)
            called(model, 1)
        found = forked(tmp_path / sentence[:4], 2, work)
        assert all(isinstance(e, OptionError) and sentence in str(e) for e in found), found
        assert forked(tmp_path / sentence[:3], 2, lambda rank, work=work: work(rank, on=False)) == [None] * 2


def test_a_model_with_slices_is_neither_copied_nor_looked_at_by_one_process(tmp_path):
    def work(rank: int, **options: Any) -> Any:
        model = model_of(broad(), optim.AdamW(lr=0.01), **options)
        called(model, 1)
        copy.deepcopy(model)
        with collective.alone():
            return {n: a.tobytes() for n, a in model.optimizer_state_dict().items()}

    def alone(rank: int) -> Any:
        model = model_of(broad(), optim.AdamW(lr=0.01), **SHARDED)
        called(model, 1)
        states = model.optimizer_state_dict()
        with collective.alone():
            for look in (model.optimizer_state_dict, lambda: model.load_optimizer_state_dict(states)):
                with pytest.raises(TileflowError, match="this one is alone here"):
                    look()
        with pytest.raises(TileflowError, match="no model to copy or to pickle"):
            copy.deepcopy(model)
        return {n: a.tobytes() for n, a in states.items()}
    assert forked(tmp_path / "whole", 2, work)[0].keys() == forked(tmp_path / "slices", 2, alone)[1].keys()


def test_models_of_one_network_have_the_option_alike(tmp_path):
    def work(rank: int) -> None:
        net = broad()
        called(model_of(net, optim.AdamW(lr=0.01)), 1)
        called(model_of(net, optim.AdamW(lr=0.01), **SHARDED), 1)
    found = forked(tmp_path, 2, work)
    wanted = "use the same types of moments and optimizer_sharded"
    assert all(isinstance(e, OptionError) and wanted in str(e) for e in found), found
