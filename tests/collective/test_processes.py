"""Processes that train together: weights, outputs and errors are those of one process, to the bit."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from groups import forked
from tileflow.errors import OptionError, ProcessError, TrainingError

import tileflow
from tileflow import collective, nn, optim
from tileflow.collective.shared import SharedMemory
from tileflow.kernels.isa import cpu
from tileflow.program.dealing import Share

REPLICAS, MICRO, CALLS = 4, 3, 2


class Tokens(nn.Module):
    """A small transformer: its own attention, layer normalisation, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.encoder(x).mean(1))


class Sequence(nn.Module):
    """An LSTM with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.drop, self.head = nn.LSTM(8, 16, batch_first=True), nn.Dropout(0.2), nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.drop(self.lstm(x)[0][:, -1]))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 5))


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5))


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {"mlp": (mlp, (8,)), "cnn": (cnn, (1, 8, 8)), "transformer": (Tokens, (6, 16)),
                                                "lstm": (Sequence, (6, 8))}
OPTIMIZERS: dict[str, Any] = {"adamw": lambda: optim.AdamW(lr=0.01), "lamb": lambda: optim.LAMB(lr=0.01),
                              "clipped": lambda: optim.SGD(lr=0.1, momentum=0.9, max_grad_norm=0.5)}
PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {}, "mixed": {"precision": "16-mixed"},
    "half": {"precision": "16-true", "loss_scaling": 2.0**24, "automatic_loss_scaling": "histogram"}}


def trained(network: str, optimizer: str, precision: str, threads: int = 1, replicas: int = REPLICAS, seed: int = 1,
            nan: bool = False, bits: str = "path") -> tuple[dict[str, bytes], list[bytes], int]:
    """States after some calls, the last outputs, and the updates done."""
    make, shape = NETWORKS[network]
    nn.manual_seed(seed)
    net = make()
    model = tileflow.training_model(net, optimizer=OPTIMIZERS[optimizer](), gradient_accumulation=2, replication_factor=replicas,
                                    micro_batch_size=MICRO, device_iterations=2, threads=threads, bits=bits, **PRECISIONS[precision])
    draw = np.random.default_rng(0)
    rows = 2 * 2 * replicas * MICRO
    for call in range(CALLS):
        x, y = draw.standard_normal((rows, *shape)).astype(np.float32), draw.integers(0, 5, rows)
        if nan and call:
            x[-1] = np.nan                                       # in the last micro-batch of the second update
        outputs = model(x.astype(model.source.input_dtype(0, x)), y)
    states = {**net.state_dict(), **model.optimizer_state_dict()}
    held = {n: np.ascontiguousarray(a).tobytes() for n, a in states.items()}
    return held, [np.ascontiguousarray(o).tobytes() for o in outputs], model.skipped_updates


PLAIN = [("mlp", "adamw", "float32", 3, 2), ("cnn", "clipped", "mixed", 2, 1)]
EVERY = [(n, o, p, size, 1 + size % 2) for i, n in enumerate(NETWORKS) for j, o in enumerate(OPTIMIZERS) for k, p in enumerate(PRECISIONS)
         for size in (2 + (i + j + k) % 3,)]


@pytest.mark.parametrize(("network", "optimizer", "precision", "size", "threads"), [
    *PLAIN, *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in EVERY if case not in PLAIN)])
def test_bits_are_those_of_one_process(network, optimizer, precision, size, threads, tmp_path):
    alone = trained(network, optimizer, precision)
    for found in forked(tmp_path, size, lambda rank: trained(network, optimizer, precision, threads)):
        assert found == alone


class TwoHosts(SharedMemory):
    """Processes that have no memory in common: contributions are sent."""

    on_one_host = False


def test_bits_are_the_same_where_contributions_are_sent(tmp_path):
    alone = trained("mlp", "adamw", "float32")
    assert forked(tmp_path, 3, lambda rank: trained("mlp", "adamw", "float32"), kind=TwoHosts) == [alone] * 3


FUSED = [name for name in cpu.available() if cpu.PATHS[name].fma]


@pytest.mark.skipif(len(FUSED) < 2, reason="this CPU has one path with fused multiply-adds only")
def test_other_processors_are_refused_but_for_portable_bits(tmp_path):
    """As two computers, one with the widest vectors and one with the narrowest."""
    def on(rank: int, bits: str) -> Any:
        with cpu.forced(FUSED[-rank]):
            return trained("mlp", "adamw", "float32", bits=bits)
    found = forked(tmp_path / "portable", 2, lambda rank: on(rank, "portable"))
    assert found == [on(0, "portable")] * 2
    for error in forked(tmp_path / "path", 2, lambda rank: on(rank, "path")):
        assert isinstance(error, OptionError)
        assert "has another kind of processor than process 0" in str(error)


def test_each_process_computes_its_own_replicas_only(tmp_path):
    def plan(rank: int) -> list[str]:
        model = tileflow.training_model(mlp(), gradient_accumulation=2, replication_factor=REPLICAS, micro_batch_size=MICRO)
        model.compile(np.zeros((24, 8), np.float32), np.zeros(24, np.int64))
        return [line.strip() for line in model.plan.to_text().split("passes")[0].splitlines() if "run micro" in line]
    runs = forked(tmp_path, 3, plan)
    assert [len(r) for r in runs] == [2, 1, 1]
    assert len({line for r in runs for line in r}) == REPLICAS


@pytest.mark.parametrize(("replicas", "size"), [(4, 2), (7, 3), (3, 3), (5, 4)])
def test_every_replica_has_one_process(replicas, size):
    shares = [Share(rank, size) for rank in range(size)]
    assert [r for share in shares for r in share.of(replicas)] == list(range(replicas))
    assert max(len(s.of(replicas)) for s in shares) - min(len(s.of(replicas)) for s in shares) <= 1
    assert sorted(i for share in shares for i in share.micro_batches(replicas, 3 * replicas)) == list(range(3 * replicas))


def test_a_loss_that_is_not_finite_is_one_in_all_processes(tmp_path):
    with pytest.raises(TrainingError) as alone:
        trained("mlp", "adamw", "float32", nan=True)
    found = forked(tmp_path, 2, lambda rank: trained("mlp", "adamw", "float32", nan=True))
    assert [str(error) for error in found] == [str(alone.value)] * 2
    assert all(type(error) is TrainingError for error in found)


def test_other_weights_or_programs_are_refused_before_anything_is_trained(tmp_path):
    found = forked(tmp_path / "seeds", 2, lambda rank: trained("mlp", "adamw", "float32", seed=rank))
    assert all(isinstance(e, OptionError) and "Process 1" in str(e) and "set of weights" in str(e) for e in found)
    found = forked(tmp_path / "options", 2, lambda rank: trained("mlp", ("adamw", "clipped")[rank], "float32"))
    assert all(isinstance(e, OptionError) and "has another program" in str(e) for e in found)


def test_fewer_replicas_than_processes_are_refused(tmp_path):
    found = forked(tmp_path, 3, lambda rank: trained("mlp", "adamw", "float32", replicas=2))
    assert all(isinstance(e, OptionError) and "set replication_factor to 3 or more" in str(e) for e in found)


def test_stages_are_refused(tmp_path):
    def staged(rank: int) -> None:
        tileflow.training_model(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 5)), replication_factor=2, gradient_accumulation=4, auto_pipeline=2,
                                strategy="pipelined").compile(np.zeros((24, 8), np.float32), np.zeros(24, np.int64))
    found = forked(tmp_path, 2, staged)
    assert all(isinstance(e, OptionError) and "option strategy cuts it into stages" in str(e) for e in found), found


def test_a_process_that_fails_ends_the_others_with_its_cause(tmp_path):
    def work(rank: int) -> None:
        if rank == 1:
            raise ValueError("the disk is full")
        trained("mlp", "adamw", "float32")
    first, second = forked(tmp_path, 2, work)
    assert isinstance(first, ProcessError)
    assert str(first) == "Process 1 of 2 has failed: the disk is full"
    assert isinstance(second, ValueError)


def test_processes_at_different_places_are_told(tmp_path):
    def work(rank: int) -> None:
        group = collective.current()
        assert group is not None
        group.numbers([rank] * (1 + rank), "some numbers")
    found = forked(tmp_path, 2, work)
    assert all(isinstance(e, ProcessError) and "at another place" in str(e) for e in found)


def test_long_messages_go_in_pieces(tmp_path):
    def work(rank: int) -> bool:
        group = collective.current()
        assert group is not None
        send = np.random.default_rng(rank).integers(0, 256, 200_001).astype(np.uint8)
        found = group.allgather(send, "bytes")
        common = group.common(10)
        assert common is not None
        common[rank] = rank + 1
        group.barrier("written")
        told = group.told({"text": "x" * 70_000}, "a text")
        return bool((found[1 - rank] == np.random.default_rng(1 - rank).integers(0, 256, 200_001)).all()) and common[:3].tolist() == [1, 2, 0] and \
            len(told["text"]) == 70_000 and not group.any(False, "nobody") and group.any(rank == 1, "one")
    assert forked(tmp_path, 2, work) == [True, True]
