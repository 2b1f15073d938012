"""Processes that train together: weights, outputs and errors are those of one process, to the bit."""
from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from groups import forked
from tileflow.errors import OptionError, ProcessError, TrainingError
from trained_networks import NETWORKS, OPTIMIZERS, PRECISIONS, SHORT, mlp, wide

import tileflow
from tileflow import collective, nn, optim
from tileflow.collective.shared import SharedMemory
from tileflow.kernels.isa import cpu
from tileflow.program.dealing import ReplicaShare
from tileflow.program.fields import Fault
from tileflow.program.reading import program_of
from tileflow.program.writing import structure_of

REPLICAS, MICRO, CALLS = 4, 3, 2


def trained(network: str, optimizer: str, precision: str, threads: int = 1, replicas: int = REPLICAS, seed: int = 1,
            nan: bool = False, bits: str = "path", accumulation: int = 2,
            **options: Any) -> tuple[dict[str, bytes], list[bytes], int]:
    """States after some calls, the last outputs, and the updates done."""
    make, shape = NETWORKS[network]
    nn.manual_seed(seed)
    net = make()
    model = tileflow.training_model(net, optimizer={**OPTIMIZERS, **SHORT}[optimizer](),
                                    gradient_accumulation=accumulation, threads=threads,
                                    replication_factor=replicas, micro_batch_size=MICRO, device_iterations=2, bits=bits,
                                    **PRECISIONS[precision], **options)
    draw = np.random.default_rng(0)
    rows = 2 * accumulation * replicas * MICRO
    for call in range(CALLS):
        x, y = draw.standard_normal((rows, *shape)).astype(np.float32), draw.integers(0, 5, rows)
        if nan and call:
            x[-1] = np.nan                                       # in the last micro-batch of the second update
        outputs = model(x.astype(model.source.input_dtype(0, x)), y)
    states = {**net.state_dict(), **model.optimizer_state_dict()}
    held = {n: np.ascontiguousarray(a).tobytes() for n, a in states.items()}
    return held, [np.ascontiguousarray(o).tobytes() for o in outputs], model.skipped_updates


PLAIN = [("mlp", "adamw", "float32", 3, 2), ("cnn", "clipped", "mixed", 2, 1)]
EVERY = [(n, o, p, size, 1 + size % 2) for i, n in enumerate(NETWORKS) if n != "wide"
         for j, o in enumerate(OPTIMIZERS) for k, p in enumerate(PRECISIONS)
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


SENT = [("wide", "adamw", "float32", 3)]


@pytest.mark.parametrize(("network", "optimizer", "precision", "size"),
                         [*SENT, *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in (
    *(("wide", o, p, n) for o, p, n in zip(OPTIMIZERS, PRECISIONS, (4, 2, 3), strict=True)),
    ("mlp", "adamw", "float32", 3), ("transformer", "lamb", "mixed", 2)))])
def test_bits_are_the_same_where_contributions_are_sent(network, optimizer, precision, size, tmp_path):
    alone = trained(network, optimizer, precision)
    for threads in (1, 2):
        found = forked(tmp_path / str(threads), size, lambda rank, n=threads: trained(network, optimizer, precision, n),
                       kind=TwoHosts)
        assert found == [alone] * size


class Counted(TwoHosts):
    """What arrives of the others' contributions."""

    received = 0

    def alltoall(self, send: Any, sizes: Any, what: str) -> Any:
        Counted.received += sum(sizes)
        return super().alltoall(send, sizes, what)


def test_contributions_travel_to_the_owners_of_their_slices_only(tmp_path):
    """Of 4 replicas two are the first process's; two turns an update, two updates a call."""
    def received(rank: int) -> int:
        trained("wide", "adamw", "float32")
        return Counted.received
    found = forked(tmp_path, 3, received, kind=Counted)
    assert found == [CALLS * 2 * 2 * 4 * elements * others for elements, others in ((1024, 2), (2048, 3), (1728, 3))]


def test_a_process_folds_its_slices_only(tmp_path):
    def rows(rank: int) -> list[int]:
        model = tileflow.training_model(wide(), gradient_accumulation=2, replication_factor=REPLICAS,
                                        micro_batch_size=MICRO)
        model.compile(np.zeros((24, 8), np.float32), np.zeros(24, np.int64))
        return [row.n for row in model.plan.parts["fold"].every_row()]
    whole = rows(0)
    apart, together = forked(tmp_path / "apart", 3, rows, kind=TwoHosts), forked(tmp_path / "together", 3, rows)
    assert together == apart, "with memory in common or without"
    for each in zip(whole, *apart, strict=True):
        assert (each[1:] == (1024, 2048, 1728)) if each[0] == 4800 else (each[1:] == (each[0],) * 3)


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
        model = tileflow.training_model(mlp(), gradient_accumulation=2, replication_factor=REPLICAS,
                                        micro_batch_size=MICRO)
        model.compile(np.zeros((24, 8), np.float32), np.zeros(24, np.int64))
        return [line.strip() for line in model.plan.to_text().split("passes")[0].splitlines() if "run micro" in line]
    runs = forked(tmp_path, 3, plan)
    assert [len(r) for r in runs] == [2, 1, 1]
    assert len({line for r in runs for line in r}) == REPLICAS


@pytest.mark.parametrize(("replicas", "size"), [(4, 2), (7, 3), (3, 3), (5, 4)])
def test_every_replica_has_one_process(replicas, size):
    shares = [ReplicaShare(rank, size) for rank in range(size)]
    assert [r for share in shares for r in share.of(replicas)] == list(range(replicas))
    assert max(len(s.of(replicas)) for s in shares) - min(len(s.of(replicas)) for s in shares) <= 1
    assert sorted(i for share in shares
                  for i in share.micro_batches(replicas, 3 * replicas)) == list(range(3 * replicas))


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
        tileflow.training_model(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 5)), replication_factor=2,
                                gradient_accumulation=4, auto_pipeline=2,
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
        theirs = np.random.default_rng(1 - rank).integers(0, 256, 200_001)
        return bool((found[1 - rank] == theirs).all()) and common[:3].tolist() == [1, 2, 0] and \
            len(told["text"]) == 70_000 and not group.any(False, "nobody") and group.any(rank == 1, "one")
    assert forked(tmp_path, 2, work) == [True, True]


# ---- sync_each_batch=False: each replica's own micro-batches first

LOCALLY = {"sync_each_batch": False}
FIRST = [("wide", "adamw", "float32", 3, 2), ("cnn", "clipped", "mixed", 2, 1)]
EVERY_FIRST = [(n, o, p, 2 + (i + j) % 3, 1 + i % 3) for i, n in enumerate(NETWORKS) for j, o in enumerate(OPTIMIZERS)
               for k, p in enumerate(PRECISIONS) if (i + j + k) % 3 == 0]


@pytest.mark.parametrize(("network", "optimizer", "precision", "size", "threads"), [
    *FIRST, *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in EVERY_FIRST if case not in FIRST)])
def test_replicas_first_has_bits_of_its_own_and_the_same_for_every_number(network, optimizer, precision, size, threads,
                                                                          tmp_path):
    alone = trained(network, optimizer, precision, **LOCALLY)
    assert alone == trained(network, optimizer, precision, threads=3, **LOCALLY)
    if alone[2] < 2 * CALLS:                                     # where not all updates are skipped
        assert alone != trained(network, optimizer, precision)
    for kind in (SharedMemory, TwoHosts):
        found = forked(tmp_path / kind.__name__, size,
                       lambda rank: trained(network, optimizer, precision, threads, **LOCALLY), kind=kind)
        assert found == [alone] * size


class Summed(nn.Module):
    """One weight, whose gradient is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1, bias=False)

    def forward(self, x: Any) -> Any:
        return self.linear(x).mean()


def summed(**options: Any) -> float:
    """The gradient of an update whose four micro-batches, two of each of two replicas, have the gradients 1e8, 1, -1e8,
    1."""
    net = Summed()
    net.load_state_dict({"linear.weight": np.zeros((1, 1), np.float32)})
    model = tileflow.training_model(net, optimizer=optim.SGD(lr=1.0), loss="identity", gradient_accumulation=2,
                                    replication_factor=2, micro_batch_size=1, accumulation_reduction="sum", **options)
    model(np.array([[1e8], [1], [-1e8], [1]], np.float32))
    return -float(net.state_dict()["linear.weight"][0, 0])


def test_replicas_first_is_the_order_that_it_says():
    one = np.float32(1)
    assert summed() == float(((np.float32(1e8) + one) - np.float32(1e8)) + one) == 1
    assert summed(**LOCALLY) == float((np.float32(1e8) - np.float32(1e8)) + (one + one)) == 2


@pytest.mark.parametrize("changed", [{"replicas": 1}, {"accumulation": 1}])
def test_replicas_first_is_refused_where_a_replica_has_one_micro_batch_or_all(changed):
    with pytest.raises(OptionError, match="sync_each_batch has no effect where a replica has one micro-batch"):
        trained("mlp", "adamw", "float32", **changed, **LOCALLY)


RUNNING = {"mean_reduction_strategy": "running"}


@pytest.mark.parametrize("options", [RUNNING, pytest.param({"broadcast_buffers": False}, marks=pytest.mark.exhaustive),
                                     pytest.param({"gradient_noise": True}, marks=pytest.mark.exhaustive)], ids=str)
def test_replicas_first_with_means_buffers_and_noise(options, tmp_path):
    alone = trained("wide", "clipped", "float32", **options, **LOCALLY)
    assert forked(tmp_path, 2, lambda rank: trained("wide", "clipped", "float32", **options, **LOCALLY),
                  kind=TwoHosts) == [alone] * 2
    for name, array in trained("wide", "clipped", "float32", **options)[0].items():
        if name.endswith((".weight", ".bias")):
            np.testing.assert_allclose(np.frombuffer(alone[0][name], np.float32), np.frombuffer(array, np.float32),
                                       rtol=1e-3, atol=1e-5)


def test_replicas_first_sends_gradients_once_an_update(tmp_path):
    """As above, and half of it: a process has the sums of the others' replicas, not each of their two micro-batches."""
    def received(rank: int) -> int:
        trained("wide", "adamw", "float32", **LOCALLY)
        return Counted.received
    found = forked(tmp_path, 3, received, kind=Counted)
    assert found == [CALLS * 2 * 4 * elements * others for elements, others in ((1024, 2), (2048, 3), (1728, 3))]


@pytest.mark.parametrize("kind", SHORT)
def test_accumulators_of_16_bits_are_what_travels_once_an_update(kind, tmp_path):
    """The sums of replicas in half the bytes, rounded so in one process, too."""
    def work(rank: int) -> Any:
        return trained("wide", kind, "float32", **LOCALLY), Counted.received
    alone = trained("wide", kind, "float32", **LOCALLY)
    assert alone != trained("wide", kind, "float32")
    found = forked(tmp_path, 2, work, kind=Counted)
    assert [one for one, _ in found] == [alone] * 2
    assert [n for _, n in found] == [CALLS * 2 * 2 * elements * 2 for elements in (2048 + 1024, 2752 + 1976)]


def test_a_loss_that_is_not_finite_is_one_in_all_processes_replicas_first_too(tmp_path):
    with pytest.raises(TrainingError) as alone:
        trained("mlp", "adamw", "float32", nan=True, **LOCALLY)
    found = forked(tmp_path, 2, lambda rank: trained("mlp", "adamw", "float32", nan=True, **LOCALLY))
    assert [str(error) for error in found] == [str(alone.value)] * 2


def test_replicas_first_with_groups_of_parameter_objects():
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 5))
    first, second = (list(layer.parameters()) for layer in net)
    before = {name: a.copy() for name, a in net.state_dict().items()}
    model = tileflow.training_model(net, optimizer=optim.SGD([{"params": first, "lr": 0.0}, {"params": second}],
                                                             lr=0.1), replication_factor=2,
                                    gradient_accumulation=2, micro_batch_size=3, **LOCALLY)
    model(np.ones((12, 8), np.float32), np.zeros(12, np.int64))
    assert [bool((net.state_dict()[name] == a).all()) for name, a in before.items()] == [True, True, False, False]


def test_what_has_no_sums_of_replicas_is_refused():
    for options, sentence in (({"optimizer": optim.SGD(lr=0.1, momentum=0.9, use_combined_accum=True)},
                               "use_combined_accum adds them"),
                              ({"replica_grouping": {"*": "no_grouping"}}, "with replica_grouping some weights"),
                              ({"auto_pipeline": 2, "strategy": "pipelined"}, "option strategy cuts it into stages")):
        model = tileflow.training_model(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 5)), replication_factor=2,
                                        gradient_accumulation=4,
                                        **{"optimizer": optim.SGD(lr=0.1), **options}, **LOCALLY)
        with pytest.raises(OptionError, match=sentence):
            model.compile(np.zeros((24, 8), np.float32), np.zeros(24, np.int64))


def test_a_program_of_replicas_first_is_a_file():
    model = tileflow.training_model(mlp(), replication_factor=3, gradient_accumulation=2, **LOCALLY)
    model.compile(np.zeros((96, 8), np.float32), np.zeros(96, np.int64))
    written = structure_of(model.program)
    again = program_of(json.loads(json.dumps(written.structure)), written.arrays)
    assert again.schedule == model.program.schedule
    assert [s.name for s in again.partial_sums()] == [s.name for s in model.program.partial_sums()]
    broken = {**written.structure,
              "batching": {**written.structure["batching"], "gradient_accumulation": 6, "replicas": 1}}
    with pytest.raises(Fault, match="has sums of replicas"):
        program_of(broken, written.arrays)
    for part, state, changes in (("accumulate", 0, {"role": "grad"}), ("update", 0, {"role": "partial"}),
                                 ("accumulate", 0, {"start": "x"})):
        other = json.loads(json.dumps(written.structure))
        other["parts"][part]["states"][state].update(changes)
        with pytest.raises(Fault, match="no sum of each replica"):
            program_of(other, written.arrays)


# ---- reduce_dtype: contributions of 16 bits


@pytest.mark.parametrize(("network", "optimizer", "kind", "size"), [("wide", "adamw", "bfloat16", 3), *(
    pytest.param(*case, marks=pytest.mark.exhaustive)
    for case in (("wide", "clipped", "float16", 2), ("cnn", "lamb", "bfloat16", 4),
                                                                   ("transformer", "adamw", "bfloat16", 2),
                                                                   ("lstm", "clipped", "float16", 3)))])
def test_contributions_of_16_bits_are_half_the_bytes_and_the_same_bits_for_every_number(network, optimizer, kind, size,
                                                                                        tmp_path):
    def work(rank: int) -> Any:
        return trained(network, optimizer, "float32", reduce_dtype=kind), Counted.received
    alone = trained(network, optimizer, "float32", reduce_dtype=kind)
    assert alone != trained(network, optimizer, "float32")
    assert forked(tmp_path / "together", size, lambda rank: work(rank)[0]) == [alone] * size
    found = forked(tmp_path / "apart", size, work, kind=Counted)
    assert [one for one, _ in found] == [alone] * size
    if network == "wide" and size == 3:
        assert [n for _, n in found] == [CALLS * 2 * 2 * 2 * elements * others
                                         for elements, others in ((1024, 2), (2048, 3), (1728, 3))]


def test_contributions_are_rounded_before_they_are_summed_and_their_sum_is_not():
    """Four gradients of 1 + 2^-8 + 2^-10 are 1 + 2^-7 in bfloat16, and of 1e5 + 1 infinite in float16; sums of 256 and
    1 keep the 1."""
    def sum_of(kind: str | None, *gradients: float) -> float:
        net = Summed()
        net.load_state_dict({"linear.weight": np.zeros((1, 1), np.float32)})
        model = tileflow.training_model(net, optimizer=optim.SGD(lr=1.0), loss="identity", gradient_accumulation=2,
                                        replication_factor=2,
                                        micro_batch_size=1, accumulation_reduction="sum", reduce_dtype=kind)
        model(np.array(gradients, np.float32)[:, None])
        return -float(net.state_dict()["linear.weight"][0, 0])
    fine = 1 + 2.0**-8 + 2.0**-10
    assert sum_of(None, *[fine] * 4) == 4 * fine
    assert sum_of("bfloat16", *[fine] * 4) == 4 * (1 + 2.0**-7)
    assert sum_of("bfloat16", 256, 1, 256, 1) == 514
    with pytest.raises(TrainingError, match=r"linear\.weight"):
        sum_of("float16", 1e5, 1, 1, 1)


def test_stages_round_their_contributions_as_one_does():
    def found(**options: Any) -> dict[str, bytes]:
        return trained("mlp", "adamw", "float32", replicas=1, accumulation=4, reduce_dtype="bfloat16", **options)[0]
    assert found(auto_pipeline=2, strategy="pipelined") == found()


@pytest.mark.parametrize("changed", [{"replicas": 1, "accumulation": 1}, LOCALLY], ids=str)
def test_contributions_that_do_not_travel_have_no_type_of_their_own(changed):
    with pytest.raises(OptionError, match="reduce_dtype has no effect where an update has one micro-batch"):
        trained("mlp", "adamw", "float32", reduce_dtype="bfloat16", **changed)
