"""What exchanging gradients costs between two hosts (network namespaces of this computer, as root), beside mpi4py's own
calls of the same bytes."""
from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .report import Figures
from .two_hosts import ADDRESSES, NoHosts, TwoHosts

SIZES = {"MNIST CNN": 4_800_000, "BERT-mini": 13_700_000}
"""Bytes of an update's gradients."""
ROUNDS = 40
MOST = 1.3
"""The promise: our seconds over mpi4py's."""


@dataclass
class Exchange(Figures):
    """Seconds of an update's exchange by two hosts, a replica each: contributions to the owners of their slices, then
    the sums to all."""

    case: str
    ours: float = 0.0
    theirs: float = 0.0
    ratio: float = 0.0
    note: str = ""

    def to_text(self) -> str:
        return f"{self.case:<40} {self.note}" if self.note else (
            f"{self.case:<40} exchanged between two hosts: {1e3 * self.ours:.2f} ms beside {1e3 * self.theirs:.2f} ms "
            f"of mpi4py's alltoall and allgather, {self.ratio:.2f} times as long (at most {MOST})")


def run() -> list[Exchange]:
    """Both networks; where there can be no two hosts a sentence says why."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "seconds.json"
        try:
            hosts = TwoHosts(Path(folder))
        except NoHosts as why:
            return [Exchange("exchange between two hosts", note=f"not measured: {why}")]
        try:
            launcher = hosts.start("launch", "-n", "2", "--hosts", ",".join(ADDRESSES), "python", "-m", __name__,
                                   str(told))
            said = launcher.communicate()[1]
            if launcher.returncode:
                raise RuntimeError(said)
        finally:
            hosts.close()
        found = json.loads(told.read_text())
    return [Exchange(case, *map(statistics.median, pairs),
                     ratio=statistics.median(a / b for a, b in zip(*pairs, strict=True)))
            for case, pairs in found.items()]


def _child(told: Path) -> None:
    from mpi4py import MPI

    from tileflow import collective
    group = collective.current()
    assert group is not None
    world = MPI.COMM_WORLD.Dup()
    found = {}
    for case, nbytes in SIZES.items():
        ours, theirs = _ours(group, nbytes), _theirs(world, nbytes)
        pairs = [(_seconds(world, ours), _seconds(world, theirs)) for _ in range(ROUNDS)]
        found[case] = [*zip(*pairs[2:], strict=True)]
    if group.is_first:
        told.write_text(json.dumps(found))


def _ours(group: Any, nbytes: int) -> Callable[[], None]:
    from tileflow.kernels.machine.host import Moment
    from tileflow.program.dealing import ReplicaShare
    from tileflow.runtime.exchange import Exchanging
    exchanging, moment = Exchanging(group, ReplicaShare(group.rank, 2, apart=True), 2), Moment(0, 0, print)
    stash, total = np.ones(2 * nbytes, np.uint8), np.ones(nbytes, np.uint8)
    cut = slice(0, nbytes // 2), slice(nbytes // 2, nbytes)

    def exchange() -> None:
        exchanging.gather([cut], moment, stash)
        exchanging.join([cut], moment, total)
    return exchange


def _theirs(world: Any, nbytes: int) -> Callable[[], None]:
    """The half of a contribution for the other, and the half of the sums."""
    half = nbytes // 2
    send, got, total = np.ones(half, np.uint8), np.ones(half, np.uint8), np.ones((2, half), np.uint8)
    counts = [half * (rank != world.rank) for rank in range(2)]

    def exchange() -> None:
        world.Alltoallv([send, (counts, None)], [got, (counts, None)])
        world.Allgather(send, total)
    return exchange


def _seconds(world: Any, exchange: Callable[[], None]) -> float:
    world.Barrier()
    began = time.perf_counter()
    exchange()
    return time.perf_counter() - began


if __name__ == "__main__":
    _child(Path(sys.argv[1]))
