"""PopDist's names: what each instance is told, and what only whoever starts them says."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from peers import needs

needs("torch")

import torch  # noqa: E402

from tileflow import collective, poptorch  # noqa: E402
from tileflow.cli import main  # noqa: E402
from tileflow.collective.communicator import Communicator  # noqa: E402
from tileflow.poptorch import popdist  # noqa: E402


class Instance(Communicator):
    """One of three, that says nothing."""

    size, hosts = 3, ("a", "a", "b")

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def allgather(self, send: np.ndarray, what: str) -> np.ndarray:
        raise AssertionError("nothing is sent")

    def fail(self, cause: str) -> None:
        raise AssertionError("nothing fails")


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("TILEFLOW_NUM_REPLICAS", "TILEFLOW_IPUS_PER_REPLICA", "TILEFLOW_PROCESS"):
        monkeypatch.delenv(name, raising=False)
    collective.use(None)
    yield
    collective.use(None)


def test_alone() -> None:
    popdist.init()
    assert not popdist.isPopdistEnvSet()
    assert (popdist.getInstanceIndex(), popdist.rank, popdist.getNumInstances()) == (0, 0, 1)
    assert (popdist.getNumTotalReplicas(), popdist.getNumLocalReplicas(), popdist.getNumIpusPerReplica()) == (1, 1, 1)
    assert popdist.poptorch.Options().replication_factor == poptorch.Options().replication_factor == 1


@pytest.mark.parametrize(("total", "local"), [(None, [1, 1, 1]), ("3", [1, 1, 1]), ("7", [3, 2, 2]), ("12", [4, 4, 4])])
def test_replicas_are_dealt(total: str | None, local: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    if total is not None:
        monkeypatch.setenv("TILEFLOW_NUM_REPLICAS", total)
    monkeypatch.setenv("TILEFLOW_IPUS_PER_REPLICA", "2")
    for rank in range(3):
        collective.use(Instance(rank))
        assert popdist.isPopdistEnvSet()
        assert (popdist.getInstanceIndex(), popdist.rank, popdist.getNumInstances()) == (rank, rank, 3)
        assert (popdist.getNumTotalReplicas(), popdist.getNumLocalReplicas()) == (sum(local), local[rank])
        assert popdist.getNumIpusPerReplica() == 2
        options = popdist.poptorch.Options(ipus_per_replica=2).deviceIterations(4)
        assert (options.replication_factor, options.device_iterations,
                options.Distributed.numProcesses) == (sum(local), 4, 3)
        assert options.clone().replication_factor == sum(local)


def test_some_instances_do_something_by_themselves() -> None:
    for rank in range(3):
        collective.use(Instance(rank))
        found = popdist.execute_on_instances({0, 2}, lambda x, y: (x + y, collective.current()), 1, y=2)
        assert found == (None if rank == 1 else (3, None))
        assert collective.current() is not None


@pytest.mark.parametrize(("name", "does"), [
    ("replicationFactor", lambda o: o.replicationFactor(2)), ("useIpuId", lambda o: o.useIpuId(0)),
    ("replicationFactor", lambda o: setattr(o, "replication_factor", 2)),
    ("configureProcessId", lambda o: o.Distributed.configureProcessId(0, 1)),
    ("disable", lambda o: o.Distributed.disable()),
    ("setEnvVarNames", lambda o: o.Distributed.setEnvVarNames("A", "B"))])
def test_what_a_script_does_not_say(name: str, does: Any) -> None:
    with pytest.raises(RuntimeError, match=f"Cannot call `{name}` with popdist.poptorch.Options"):
        does(popdist.poptorch.Options())


def test_a_loader_has_the_rows_of_all_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEFLOW_NUM_REPLICAS", "6")
    collective.use(Instance(1))
    loader = poptorch.DataLoader(popdist.poptorch.Options(), torch.utils.data.TensorDataset(torch.zeros(24, 2)),
                                 batch_size=2)
    assert [len(x) for x, in loader] == [12, 12]


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match=r"getNumLocalReplica.*docs/distributed\.md"):
        _ = popdist.getNumLocalReplica


def test_the_launcher_tells_and_checks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for words, sentence in ((["--num-replicas", "2", "-n", "3"],
                             "--num-replicas 2 has no replica for each of 3 processes"),
                            (["--ipus-per-replica", "0"], "must be at least 1, not 0")):
        assert main(["launch", *words, "script.py"]) == 2
        assert sentence in capsys.readouterr().err
